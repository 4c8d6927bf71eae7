"""Random programs that write tensors and views of them, held against PyTorch running them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import shardproof
from shardproof.engine.errors import InvalidInput
from shardproof.frontends.fx.files import side
from shardproof.frontends.fx.records import CALL, GETITEM, OUTPUT, PLACEHOLDER, Graph, operand
from shardproof.frontends.torch import eager
from tests.frontends.fx.graphs import Writer, verified


class Random(nn.Module):
    """A few steps that are drawn: views of what is there, and writes into it."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        rng = np.random.default_rng(self.seed)
        base = x * 2.0
        if rng.integers(2):
            base = torch.empty(4, 6)
            base[:, :3].copy_(x[:, 3:])
            base[:, 3:].copy_(y[:, :3])
        have = [base, y + 1.0]
        for _ in range(int(rng.integers(3, 9))):
            one = have[int(rng.integers(len(have)))]
            have.append(self.step(one, rng) if rng.integers(2) else self.write(one, rng))
        total = torch.zeros(())
        for number, one in enumerate(have):
            total = total + (one * (number + 1.5)).sin().sum()
        return total

    def step(self, x: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
        dim = int(rng.integers(max(x.dim(), 1)))
        kind = int(rng.integers(7)) if x.dim() else 0
        if kind == 1:
            return x.select(dim, int(rng.integers(x.shape[dim])))
        if kind == 2:
            start = int(rng.integers(x.shape[dim]))
            return x.narrow(dim, start, int(rng.integers(1, x.shape[dim] - start + 1)))
        if kind == 3:
            return x.transpose(dim, -1)
        if kind == 4:
            return x.unsqueeze(dim)
        if kind == 5:
            return x.chunk(2, dim)[-1]
        if kind == 6:
            return x.unbind(dim)[0]
        return x.detach()

    def write(self, x: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
        kind = int(rng.integers(4))
        if kind == 0:
            return x.mul_(1.5)
        if kind == 1:
            return x.add_(x.flatten()[0] * 0.5)
        if kind == 2:
            return x.fill_(0.25)
        return x.copy_(x.flip(0) if x.dim() else x)


def run(graph: Graph, *given: torch.Tensor) -> Any:
    """What a graph gives, node by node, by PyTorch."""
    known: dict[str, Any] = {}
    inputs = iter(given)

    def value(x: Any) -> Any:
        name = operand(x)
        if name is not None:
            return known[name]
        return [value(one) for one in x] if isinstance(x, list) else x

    for node in graph.nodes:
        if node.op == PLACEHOLDER:
            known[node.name] = next(inputs)
        elif node.op == OUTPUT:
            return value(node.args[0])[0]
        elif node.op == CALL and node.target == GETITEM:
            known[node.name] = known[str(operand(node.args[0]))][node.args[1]]
        else:
            named = {key: value(x) for key, x in node.kwargs.items()}
            known[node.name] = eager.call(node.target, [value(x) for x in node.args], named)
    raise AssertionError("no output")


def test_what_random_programs_write(tmp_path: Path) -> None:
    torch.manual_seed(0)
    refused = changed = 0
    for seed in range(60):
        given = torch.randn(4, 6, dtype=torch.float64), torch.randn(4, 6, dtype=torch.float64)
        path = tmp_path / f"{seed}.pt2"
        narrow = tuple(x.float() for x in given)
        torch.export.save(torch.export.export(Random(seed), narrow), path)
        try:
            (graph,) = side(path)
        except InvalidInput:
            refused += 1
            continue
        changed += any("@" in node.name for node in graph.nodes)
        torch.set_default_dtype(torch.float64)
        try:
            expected = Random(seed)(*(x.clone() for x in given))
            made = run(graph, *(x.clone() for x in given))
        finally:
            torch.set_default_dtype(torch.float32)
        torch.testing.assert_close(made, expected, msg=f"seed {seed}")
    assert refused <= 15
    assert changed >= 20


def layer(rank: int = 0, ranks: int = 1, wrong: str = "") -> dict[str, Any]:
    """Columns of x [3, 8] @ w, of which the first is set to zero in place, behind a view."""
    w = Writer(rank)
    own = 8 // ranks
    x, weight = w.given("x", (3, 4)), w.given("w", (4, own))
    y = w.call("y", "aten.mm.default", [x, weight], (3, own))
    rows = w.call("rows", "aten.view.default", [y, [3, own]], (3, own))
    if rank == 0 and wrong != "kept":
        first = w.call("first", "aten.select.int", [rows, 1, 0], (3,))
        w.call("zero", "aten.fill_.Scalar", [first, 0.0 if wrong != "one" else 1.0], (3,))
    else:
        last = w.call("last", "aten.select.int", [rows, 1, own - 1], (3,))
        w.call("same", "aten.mul_.Tensor", [last, 1.0], (3,))
    z = w.call("z", "aten.relu.default", [y], (3, own))
    if ranks > 1:
        z = w.call("turned", "aten.t.default", [z], (own, 3))
        gather = "_c10d_functional.all_gather_into_tensor.default"
        z = w.call("all", gather, [z, ranks, "tp"], (8, 3))
        z = w.call("back", "aten.t.default", [z], (3, 8))
    return w.output(z)


@pytest.mark.parametrize("wrong", ["", "one", "kept"])
def test_a_view_that_is_written_counts(wrong: str, tmp_path: Path) -> None:
    ranks = [layer(rank, 2, wrong) for rank in range(2)]
    result = verified(tmp_path, layer(), ranks)
    assert result.verdict == ("refuted" if wrong else "proved"), result.reason
    assert wrong or shardproof.check(tmp_path / "run").ok


def test_a_copy_or_a_view_is_refused(tmp_path: Path) -> None:
    """Whether ``reshape`` gave a view, a graph does not say."""
    w = Writer(0)
    x = w.given("x", (4, 6))
    y = w.call("y", "aten.exp.default", [x], (4, 6))
    flat = w.call("flat", "aten.reshape.default", [y, [24]], (24,))
    w.call("zero", "aten.fill_.Scalar", [flat, 0.0], (24,))
    (tmp_path / "g.json").write_text(
        json.dumps(w.output(w.call("z", "aten.exp.default", [y], (4, 6))))
    )
    with pytest.raises(InvalidInput, match=r"node .zero. .*writes memory that .z. reads as .y."):
        side(tmp_path / "g.json")


def test_a_tensor_that_lies_otherwise_is_refused(tmp_path: Path) -> None:
    """``t_`` changes no number, and no other view: it is no write."""
    w = Writer(0)
    x = w.given("x", (4, 4))
    y = w.call("y", "aten.exp.default", [x], (4, 4))
    row = w.call("row", "aten.select.int", [y, 0, 1], (4,))
    w.call("turned", "aten.t_.default", [y], (4, 4))
    (tmp_path / "g.json").write_text(json.dumps(w.output(row)))
    with pytest.raises(InvalidInput, match=r"node .turned. .*writes memory that .output. reads"):
        side(tmp_path / "g.json")

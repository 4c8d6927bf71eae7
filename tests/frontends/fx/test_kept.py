"""Rows that a mask keeps before and behind a function of each, held against PyTorch running them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

import shardproof
from shardproof.frontends.fx.kept import MARK, kept_rows
from shardproof.frontends.fx.records import Graph
from tests.frontends.fx.graphs import Writer, verified
from tests.frontends.fx.test_functional import run

#: As many rows as columns, so that what lies otherwise has the same shape.
SIZE = 4
SQUARE = (SIZE, SIZE)
BY_ENTRY = ("silu", "tanh", "exp", "relu", "cos", "neg")
ITEM = "<built-in function getitem>"


def masked(w: Writer, rng: np.random.Generator, name: str, x: Any, masks: list[Any]) -> Any:
    """A tensor times a mask of rows or of columns, or chosen by it, in one of several ways."""
    mask, shape = masks[int(rng.integers(len(masks)))]
    kind = int(rng.integers(4))
    if kind == 0:
        return w.call(name, "aten.where.ScalarOther", [mask, x, 0.0], SQUARE)
    if kind == 1:
        other = w.call(f"{name}n", "aten.bitwise_not.default", [mask], shape, "bool")
        return w.call(name, "aten.masked_fill.Scalar", [x, other, 0.0], SQUARE)
    factor = w.call(f"{name}f", "aten.to.dtype", [mask, "float64"], shape, "float64")
    if kind == 2:
        share = w.call(f"{name}s", "aten.mul.Tensor", [factor, 0.5], shape, "float64")
        factor = w.call(f"{name}h", "aten.mul.Tensor", [share, factor], shape, "float64")
    return w.call(name, "aten.mul.Tensor", [x, factor], SQUARE, "float64")


def drawn(seed: int) -> dict[str, Any]:
    """A few functions of a square tensor, of rows, of columns, and of both, and masks between."""
    rng = np.random.default_rng(seed)
    w = Writer(0)
    x, weight = w.given("x", SQUARE, "float64"), w.given("weight", SQUARE, "float64")
    masks: list[Any] = []
    for number in range(2):
        flags = w.given(f"flags{number}", (SIZE,), "float64")
        mask = w.call(f"set{number}", "aten.gt.Scalar", [flags, 0.0], (SIZE,), "bool")
        column = w.call(f"c{number}", "aten.unsqueeze.default", [mask, 1], (SIZE, 1), "bool")
        masks += [(mask, (SIZE,)), (column, (SIZE, 1)), (column, (SIZE, 1))]
    have = [x]
    for step in range(8):
        one = have[-1] if rng.integers(3) else have[int(rng.integers(len(have)))]
        kind, name = int(rng.integers(8)), f"y{step}"
        if kind < 3:
            made = masked(w, rng, name, one, masks)
        elif kind == 3:
            target = f"aten.{BY_ENTRY[int(rng.integers(len(BY_ENTRY)))]}.default"
            made = w.call(name, target, [one], SQUARE, "float64")
        elif kind == 4:
            both = [one, weight] if rng.integers(3) else [weight, one]
            made = w.call(name, "aten.matmul.default", both, SQUARE, "float64")
        elif kind == 5:
            name_of = ("t.default", "linear.default")[int(rng.integers(2))]
            args = [one] if name_of == "t.default" else [one, weight]
            made = w.call(name, f"aten.{name_of}", args, SQUARE, "float64")
        elif kind == 6:
            made = w.call(name, "aten.layer_norm.default", [one, [SIZE]], SQUARE, "float64")
        else:
            other = have[int(rng.integers(len(have)))]
            made = w.call(name, "aten.add.Tensor", [one, other], SQUARE, "float64")
        have.append(made)
    return w.output(masked(w, rng, "last", have[-1], masks))


def both(graph: dict[str, Any]) -> tuple[Graph, Graph]:
    before = msgspec.convert(graph, Graph)
    return before, kept_rows(before)


def test_what_is_written_anew_is_what_it_was() -> None:
    changed = 0
    for seed in range(150):
        before, after = both(drawn(seed))
        changed += after is not before
        rng = np.random.default_rng(seed)
        shapes = [tuple(node.shape or ()) for node in before.inputs]
        given = [torch.tensor(rng.normal(size=shape)) for shape in shapes]
        np.testing.assert_allclose(run(after, *given), run(before, *given), atol=1e-9)
    assert changed > 40


@pytest.mark.parametrize("function", ["log.default", "reciprocal.default", "rsqrt.default"])
def test_functions_that_zero_has_none_of_are_left(function: str) -> None:
    w = Writer(0)
    x, flags = w.given("x", SQUARE), w.given("flags", (SIZE, 1))
    mask = w.call("mask", "aten.gt.Scalar", [flags, 0.0], (SIZE, 1), "bool")
    y = w.call("kept", "aten.mul.Tensor", [x, mask], SQUARE)
    y = w.call("y", f"aten.{function}", [y], SQUARE)
    before, after = both(w.output(w.call("z", "aten.mul.Tensor", [y, mask], SQUARE)))
    assert after is before


def experts(rank: int = 0, ranks: int = 1, wrong: str = "") -> dict[str, Any]:
    """Two experts with a gated layer, each of the rows that choose it; a rank sees these alone."""
    w = Writer(rank)
    rows, wide = (6, 3), (6, 8)
    x, scores = w.given("x", rows), w.given("scores", (6, 2))
    w.call("top", "aten.topk.default", [scores, 1], None)
    ids = w.call("ids", ITEM, [{"n": "top"}, 1], (6, 1), "int64")
    total: Any = None
    for number in range(2 // ranks):
        expert = number + rank
        up, down = (w.given(f"{n}{expert}", s) for n, s in (("up", (8, 3)), ("down", (3, 4))))
        hit = w.call(f"hit{number}", "aten.eq.Scalar", [ids, expert], (6, 1), "bool")
        mask = w.call(f"mask{number}", "aten.any.dim", [hit, -1, True], (6, 1), "bool")
        own = x if ranks == 1 else w.call("own", "aten.where.ScalarOther", [mask, x, 0.0], rows)
        y = w.call(f"y{number}", "aten.linear.default", [own, up], wide)
        w.call(f"halves{number}", "aten.chunk.default", [y, 2, -1], None)
        halves = [
            w.call(f"half{number}{i}", ITEM, [{"n": f"halves{number}"}, i], (6, 4)) for i in (0, 1)
        ]
        one = w.call(f"cos{number}", "aten.cos.default", [halves[0]], (6, 4))
        y = w.call(f"gated{number}", "aten.add.Tensor", [one, halves[1]], (6, 4))
        y = w.call(f"z{number}", "aten.linear.default", [y, down], rows)
        if wrong != "open" or rank:
            y = w.call(f"own{number}", "aten.where.ScalarOther", [mask, y, 0.0], rows)
        total = y if total is None else w.call("total", "aten.add.Tensor", [total, y], rows)
    if ranks > 1:
        total = w.call("all", "_c10d_functional.all_reduce.default", [total, "sum", "ep"], rows)
    return w.output(total)


@pytest.mark.parametrize(("wrong", "verdict"), [("", "proved"), ("open", "refuted")])
def test_experts_of_rows_that_are_sent_to_them(wrong: str, verdict: str, tmp_path: Path) -> None:
    ranks = [experts(rank, 2, wrong) for rank in range(2)]
    assert any(MARK in node.name for node in both(ranks[1])[1].nodes)
    result = verified(tmp_path, experts(), ranks)
    assert result.verdict == verdict, result.reason
    if not wrong:
        assert shardproof.check(tmp_path / "run").ok

"""Parts of exported programs that run without gradients, or under autocast: their own graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import shardproof
from shardproof.frontends.fx.files import side
from tests.frontends.fx.test_pt2 import archive


class Rotary(nn.Module):
    """Angles as transformers computes them, and a product with their cosines."""

    def __init__(self, base: float = 10.0) -> None:
        super().__init__()
        self.register_buffer("inverse", base ** -torch.arange(4.0), persistent=False)
        self.out = nn.Linear(4, 4)

    @torch.no_grad()
    def angles(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        places = torch.arange(x.shape[1])[None, :, None].float()
        with torch.autocast("cpu", enabled=False):
            angles = places * self.inverse.to(torch.device("cpu"), torch.float32)
        return angles.cos().to(x.dtype), angles.sin()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        cosines, sines = self.angles(x)
        made: torch.Tensor = self.out(x * cosines + x.flip(-1) * sines)
        return made


def exported(folder: Path, name: str, rows: int, base: float = 10.0) -> Path:
    path = folder / name
    program = torch.export.export(Rotary(base), (torch.zeros(rows, 3, 4),))
    torch.export.save(program, path)
    return path


def test_a_graph_inside_is_read_where_it_stands(tmp_path: Path) -> None:
    (graph,) = side(exported(tmp_path, "one.pt2", 2))
    targets = [node.target for node in graph.nodes]
    assert "aten.cos.default" in targets
    assert not any("higher_order" in target for target in targets)


@pytest.mark.parametrize("base", [10.0, 20.0])
def test_rows_of_a_model_whose_angles_have_no_gradient(base: float, tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    single = exported(tmp_path, "single.pt2", 4)
    for rank in range(2):
        exported(tmp_path / "ranks", f"r{rank}.pt2", 2, base)
    result = shardproof.verify(single, tmp_path / "ranks", out=tmp_path / "run", cache=False)
    assert result.verdict == ("proved" if base == 10.0 else "refuted"), result.reason
    assert base != 10.0 or shardproof.check(tmp_path / "run").ok


def wrapped(inner: dict[str, Any], given: list[dict[str, Any]]) -> dict[str, Any]:
    """An archive's model that runs a graph over x [2], without gradients."""
    tensor = {"dtype": 7, "sizes": [{"as_int": 2}]}
    first = [
        {"name": "", "arg": {"as_bool": False}, "kind": 1},
        {"name": "", "arg": {"as_graph": {"name": "inside", "graph": inner}}, "kind": 1},
    ]
    call = {
        "target": "torch.ops.higher_order.wrap_with_set_grad_enabled",
        "inputs": [*first, *({"name": "", "arg": arg, "kind": 1} for arg in given)],
        "outputs": [{"as_tensor": {"name": "y"}}],
        "metadata": {},
    }
    graph = {
        "inputs": [{"as_tensor": {"name": "x"}}],
        "outputs": [{"as_tensor": {"name": "y"}}],
        "nodes": [call],
        "tensor_values": {"x": tensor, "y": tensor},
    }
    return {"graph_module": {"graph": graph}}


def inside(reads: str = "z", results: int = 1) -> dict[str, Any]:
    named = {"as_tensor": {"name": "w"}}
    node = {
        "target": "torch.ops.aten.exp.default",
        "inputs": [{"name": "self", "arg": {"as_tensor": {"name": reads}}, "kind": 1}],
        "outputs": [named],
        "metadata": {},
    }
    tensor = {"dtype": 7, "sizes": [{"as_int": 2}]}
    return {
        "inputs": [{"as_tensor": {"name": "z"}}],
        "outputs": [named] * results,
        "nodes": [node],
        "tensor_values": {"z": tensor, "w": tensor},
    }


X: list[dict[str, Any]] = [{"as_tensor": {"name": "x"}}]


def nested(depth: int) -> dict[str, Any]:
    """A graph in a graph, so many times."""
    graph = inside()
    for _ in range(depth):
        graph = wrapped(graph, X)["graph_module"]["graph"]
    return {"graph_module": {"graph": graph}}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (wrapped(inside(reads="x"), X), "an operand that its graph has not"),
        (wrapped(inside(), []), "an operand of a graph that is no tensor"),
        (wrapped(inside(), [{"as_int": 2}]), "an operand of a graph that is no tensor"),
        (wrapped(inside(results=2), X), "1 results of a graph that has 2"),
        (wrapped({}, X), "JSON"),
        (nested(40), "graphs, 17 deep"),
    ],
    ids=["outside", "operands", "number", "results", "no graph", "deep"],
)
def test_graphs_that_do_not_fit_are_refused(
    model: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = archive(tmp_path / "model.pt2", model)
    result = shardproof.verify(path, path, out=tmp_path / "run")
    assert result.verdict == "invalid input"
    assert message in result.reason


def test_a_graph_that_fits_is_proved(tmp_path: Path) -> None:
    path = archive(tmp_path / "model.pt2", wrapped(inside(), X))
    assert shardproof.verify(path, path, out=tmp_path / "run").verdict == "proved"

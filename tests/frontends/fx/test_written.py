"""Operators that write their operand: read as values where that is exact, else refused by name."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
from torch import nn

import shardproof
from shardproof.engine.errors import InvalidInput
from shardproof.frontends.fx import written
from shardproof.frontends.fx.files import side
from shardproof.frontends.fx.records import Graph, Node, operand


class Model(nn.Module):
    """``kind``: how the activation is written."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.up, self.down = nn.Linear(4, 6), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.up(x)
        if self.kind == "zeroed":
            y[:, 0].fill_(0.0)
        elif self.kind == "in place":
            torch.relu_(y).add_(1.0)
        else:
            y = torch.relu(y) + 1.0
        return self.down(y)


def exported(folder: Path, kind: str) -> Path:
    path = folder / f"{kind}.pt2"
    torch.export.save(torch.export.export(Model(kind), (torch.zeros(2, 4),)), path)
    return path


def test_what_only_its_writer_sees_is_a_value(tmp_path: Path) -> None:
    paths = exported(tmp_path, "by value"), exported(tmp_path, "in place")
    result = shardproof.verify(*paths, out=tmp_path / "run", cache=False)
    assert result.verdict == "proved", result.reason


def test_a_view_that_is_written_is_never_skipped(tmp_path: Path) -> None:
    by_value, zeroed = exported(tmp_path, "by value"), exported(tmp_path, "zeroed")
    result = shardproof.verify(by_value, zeroed, out=tmp_path / "run")
    assert result.verdict == "refuted"
    assert shardproof.verify(zeroed, zeroed, out=tmp_path / "again").verdict == "proved"


def graph(*nodes: tuple[str, str, list[str]]) -> Graph:
    """Nodes as (name, operator, operands); the last one is the output."""
    made = [Node("x", "placeholder", "x", [], {}, [2, 4], "float32")]
    for name, target, args in nodes:
        made.append(Node(name, "call_function", target, [{"n": a} for a in args], {}, [2, 4]))
    made.append(Node("output", "output", "output", [[{"n": nodes[-1][0]}]], {}))
    return Graph(0, made)


VIEW, ADD, WRITE = "aten.view.default", "aten.add.Tensor", "aten.mul_.Tensor"
EXACT = {
    "result": graph(("y", ADD, ["x", "x"]), ("z", WRITE, ["y", "x"]), ("w", ADD, ["z", "x"])),
    "before": graph(("y", ADD, ["x", "x"]), ("z", WRITE, ["x", "x"]), ("w", ADD, ["y", "z"])),
    "view after": graph(("z", WRITE, ["x", "x"]), ("v", VIEW, ["z"]), ("w", ADD, ["v", "z"])),
}
STALE = {
    "itself": graph(("y", ADD, ["x", "x"]), ("z", WRITE, ["y", "x"]), ("w", ADD, ["y", "x"])),
    "view": graph(("v", VIEW, ["x"]), ("z", WRITE, ["x", "x"]), ("w", ADD, ["v", "z"])),
    "base": graph(("v", VIEW, ["x"]), ("z", WRITE, ["v", "v"]), ("w", ADD, ["x", "z"])),
    "base of base": graph(
        ("v", VIEW, ["x"]), ("u", "own.look.default", ["v"]), ("z", WRITE, ["u"]), ("w", ADD, ["x"])
    ),
    "view of the result": graph(
        ("z", WRITE, ["x", "x"]), ("v", VIEW, ["z"]), ("y", WRITE, ["v", "v"]), ("w", ADD, ["z"])
    ),
}


@pytest.mark.parametrize("name", EXACT)
def test_graphs_that_are_exact_by_names(name: str) -> None:
    written.check(EXACT[name])


@pytest.mark.parametrize("name", STALE)
def test_values_that_were_written_under_another_name_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"writes memory that .w. reads as"):
        written.check(STALE[name])


def test_an_output_that_was_written_is_what_was_written(tmp_path: Path) -> None:
    held = graph(("y", ADD, ["x", "x"]), ("z", WRITE, ["y", "x"]))
    held.nodes[-1] = Node("output", "output", "output", [[{"n": "y"}]], {})
    (tmp_path / "g.json").write_bytes(msgspec.json.encode(held))
    assert operand(held.outputs[0]) == "y"
    (made,) = side(tmp_path / "g.json")
    assert operand(made.outputs[0]) == "z"
    forged = msgspec.structs.replace(made, written=("x",))
    (tmp_path / "g.json").write_bytes(msgspec.json.encode(forged))
    with pytest.raises(InvalidInput, match=r"g\.json.*a field that no file has: written"):
        side(tmp_path / "g.json")


def test_inputs_that_are_written_are_assumed_to_share_no_memory(tmp_path: Path) -> None:
    """Whether the caller gives one tensor as both inputs, a graph does not say."""

    class Writing(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            z = x.view(4, 2).mul_(2.0)
            return z.view(2, 4) + y

    path, given = tmp_path / "writing.pt2", (torch.ones(2, 4), torch.ones(2, 4))
    torch.export.save(torch.export.export(Writing(), given), path)
    result = shardproof.verify(path, path, out=tmp_path / "run", cache=False)
    assert result.verdict == "proved", result.reason
    assert "no two inputs share memory (written: 'x')" in result.assumptions
    by_value = exported(tmp_path, "by value")
    result = shardproof.verify(by_value, by_value, out=tmp_path / "again", cache=False)
    assert not any("share memory" in text for text in result.assumptions)

"""Graph modules of torch.fx from memory: read as files are, proved, and refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import shardproof
import shardproof.torch as sp
from shardproof.engine.errors import InvalidInput


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4, bias=False)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.down(torch.nn.functional.gelu(self.up(x))) * scale


def exported(scale: float = 1.0) -> bytes:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.model(x, scale)

    program = torch.export.export(Scaled(), (torch.zeros(2, 4),))
    return sp.graph(program.run_decompositions({}).graph_module)


@pytest.mark.parametrize(("scale", "verdict"), [(1.0, "proved"), (0.5, "refuted")])
def test_a_module_is_read_as_a_file_is(tmp_path: Path, scale: float, verdict: str) -> None:
    (tmp_path / "single.json").write_bytes(exported())
    (tmp_path / "parallel.json").write_bytes(exported(scale))
    result = shardproof.verify(
        tmp_path / "single.json", tmp_path / "parallel.json", out=tmp_path / "run", cache=False
    )
    assert result.verdict == verdict, result.reason


def test_what_is_no_operator_is_named() -> None:
    module = torch.fx.symbolic_trace(Model())
    with pytest.raises(InvalidInput, match="x"):
        sp.graph(module)

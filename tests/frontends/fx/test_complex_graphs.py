"""Complex tensors in exported graphs: operator by operator beside PyTorch, and rotary positions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from shardproof.frontends.fx import replay  # noqa: E402
from shardproof.frontends.fx.files import side  # noqa: E402
from shardproof.frontends.graphs.relations import Relations  # noqa: E402
from tests.frontends.fx.test_own_numbers import Model, verified  # noqa: E402

#: Of complex z [2, 3, 4] and w [4].
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "mul": lambda z, w: z * w,
    "mul by real": lambda z, w: z * w.abs() * 2,
    "div": lambda z, w: z / (w + 3),
    "add": lambda z, w: z + w,
    "sub": lambda z, w: w - z,
    "neg": lambda z, w: -z,
    "conj": lambda z, w: z.conj().resolve_conj() * w,
    "abs": lambda z, w: z.abs(),
    "view": lambda z, w: z.view(2, 12),
    "flatten": lambda z, w: z.flatten(1),
    "unsqueeze": lambda z, w: z.unsqueeze(-1) * w,
    "squeeze": lambda z, w: z[:, :1].squeeze(1),
    "expand": lambda z, w: w.expand(2, 3, -1) * z,
    "transpose": lambda z, w: z.transpose(-1, 0),
    "permute": lambda z, w: z.permute(2, 0, 1),
    "slice": lambda z, w: z[..., 1:3],
    "select": lambda z, w: z[:, -1],
    "cat": lambda z, w: torch.cat([z, z * w], -1),
    "sum": lambda z, w: z.sum(-1),
    "real": lambda z, w: z.real * w.imag,
    "polar": lambda z, w: torch.polar(z.abs(), z.real) * w,
    "complex": lambda z, w: torch.complex(z.imag, z.real),
}


class Operator(torch.nn.Module):  # type: ignore[misc, name-defined]
    """One operator, of pairs and to pairs."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, z: Any, w: Any) -> Any:
        made = self.function(torch.view_as_complex(z), torch.view_as_complex(w))
        return torch.view_as_real(made) if made.is_complex() else made


@pytest.mark.parametrize("name", OPERATORS)
def test_complex_operators_are_what_pytorch_says(name: str, tmp_path: Path) -> None:
    given = torch.ones(2, 3, 4, 2), torch.ones(4, 2)
    path = tmp_path / "one.pt2"
    torch.export.save(torch.export.export(Operator(OPERATORS[name]), given), path)
    (graph,) = side(path)
    judged = replay.validated(graph, [graph], Relations())
    assert (judged.replayed, judged.agrees) == (True, True), judged.message


def frequencies(base: float) -> Any:
    angles = torch.outer(torch.arange(4), 1 / base ** (torch.arange(0, 4, 2) / 4))
    return torch.polar(torch.ones(4, 2), angles)


class Rotary(Model):
    """Queries turned by complex numbers of their positions, which the program has as a constant."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__(wrong)
        self.turns = frequencies(100 if wrong == "base" else 1000)

    def forward(self, x: Any) -> Any:
        """x [rows, 3, 4]."""
        z = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        turns = self.turns[: x.shape[1]].view(1, x.shape[1], -1)
        if self.wrong == "conjugate":
            turns = turns.conj()
        return torch.view_as_real(z * turns).flatten(2)


@pytest.mark.parametrize("wrong", ["", "base", "conjugate"])
def test_rotary_positions_by_complex_numbers(wrong: str, tmp_path: Path) -> None:
    result = verified(tmp_path, Rotary(), Rotary(wrong), (4, 3, 4))
    assert result.verdict == ("refuted" if wrong else "proved"), result.reason

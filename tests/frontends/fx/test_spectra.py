"""Fourier layers whose channels ranks divide, with complex weights as inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import shardproof
from shardproof.frontends.fx.frontend import FRONTEND
from tests.frontends.fx.graphs import Writer, verified

ROWS, CHANNELS, POSITIONS, MODES = 2, 4, 8, 3
HALF = POSITIONS // 2 + 1


def layer(rank: int = 0, ranks: int = 1, wrong: str = "") -> dict[str, Any]:
    """The first modes of x [2, 4, 8], each mapped to other channels by a complex matrix, as
    positions again; a rank has some of these channels."""
    w = Writer(rank)
    own = CHANNELS // ranks
    x = w.given("x", (ROWS, CHANNELS, POSITIONS))
    weight = w.given("weight", (CHANNELS, own, MODES), "complex64")
    modes, kind = (ROWS, own, HALF), "complex64"
    whole = w.call("rfft", "aten.fft_rfft.default", [x], (ROWS, CHANNELS, HALF), kind)
    first = (ROWS, CHANNELS, MODES)
    low = w.call("low", "aten.slice.Tensor", [whole, 2, 0, MODES], first, kind)
    if wrong == "conjugate":
        weight = w.call("conj", "aten.conj_physical.default", [weight],
                        (CHANNELS, own, MODES), kind)  # fmt: skip
    equation = "bim,iom->bom"
    made = w.call("mapped", "aten.einsum.default", [equation, [low, weight]],
                  (ROWS, own, MODES), kind)  # fmt: skip
    zeros = w.call("zeros", "aten.zeros.default", [list(modes)], modes, kind)
    w.nodes[-1]["kwargs"] = {"dtype": kind}
    at = 1 if wrong == "modes" else 0
    spectrum = w.call("placed", "aten.slice_scatter.default", [zeros, made, 2, at, at + MODES],
                      modes, kind)  # fmt: skip
    y = w.call("irfft", "aten.fft_irfft.default", [spectrum, POSITIONS], (ROWS, own, POSITIONS))
    y = w.call("gelu", "aten.gelu.default", [y], (ROWS, own, POSITIONS))
    if ranks > 1:
        y = w.call("front", "aten.transpose.int", [y, 0, 1], (own, ROWS, POSITIONS))
        gather = "_c10d_functional.all_gather_into_tensor.default"
        y = w.call("all", gather, [y, ranks, "tp"], (CHANNELS, ROWS, POSITIONS))
        y = w.call("back", "aten.transpose.int", [y, 0, 1], (ROWS, CHANNELS, POSITIONS))
    return w.output(y)


@pytest.mark.parametrize("wrong", ["", "modes", "conjugate"])
def test_a_fourier_layer_whose_channels_are_divided(wrong: str, tmp_path: Path) -> None:
    result = verified(tmp_path, layer(), [layer(rank, 2, wrong) for rank in range(2)])
    assert result.verdict == ("refuted" if wrong else "proved"), result.reason
    text = " ".join(map(str, result.assumptions))
    replayed = FRONTEND.replay(tmp_path / "single.json", tmp_path / "ranks", {})
    assert replayed[:3] == (True, True, 3), replayed
    assert "input weight is divided along dimension 1 in the order of ranks" in text
    assert wrong or shardproof.check(tmp_path / "run").ok

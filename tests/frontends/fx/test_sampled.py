"""Images that are read at places which a network gives, of which each rank has some channels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import shardproof
from tests.frontends.fx.graphs import Writer, verified

ROWS, CHANNELS, SIZE = 2, 4, 3


def sampled(
    rank: int = 0, ranks: int = 1, padding: int = 0, aligned: bool = False, mode: int = 0
) -> dict[str, Any]:
    """Channels at places that a matrix for each row gives, times weights."""
    w = Writer(rank)
    own = CHANNELS // ranks
    image = w.given("image", (ROWS, own, SIZE, SIZE))
    theta, head = w.given("theta", (ROWS, 2, 3)), w.given("head", (own, 5))
    grid = w.call(
        "grid", "aten.affine_grid_generator.default",
        [theta, [ROWS, CHANNELS, SIZE, SIZE], False], (ROWS, SIZE, SIZE, 2),
    )  # fmt: skip
    args = [image, grid, mode, padding, aligned]
    y = w.call("y", "aten.grid_sampler.default", args, (ROWS, own, SIZE, SIZE))
    z = w.call("z", "aten.einsum.default", ["nchw,cd->nd", [y, head]], (ROWS, 5))
    if ranks > 1:
        z = w.call("all", "_c10d_functional.all_reduce.default", [z, "sum", "tp"], (ROWS, 5))
    return w.output(z)


@pytest.mark.parametrize(
    ("padding", "aligned", "verdict"),
    [(0, False, "proved"), (1, False, "refuted"), (0, True, "refuted")],
)
def test_ranks_read_their_channels(
    padding: int, aligned: bool, verdict: str, tmp_path: Path
) -> None:
    ranks = [sampled(rank, 2, padding, aligned) for rank in range(2)]
    result = verified(tmp_path, sampled(), ranks)
    assert result.verdict == verdict, result.reason
    if verdict == "proved":
        assert shardproof.check(tmp_path / "run").ok


@pytest.mark.parametrize(("padding", "mode"), [(2, 0), (0, 1), (0, 2)])
def test_other_ways_are_refused_by_name(padding: int, mode: int, tmp_path: Path) -> None:
    graphs = [sampled(rank, 2, padding, mode=mode) for rank in range(2)]
    result = verified(tmp_path, sampled(padding=padding, mode=mode), graphs)
    assert result.verdict == "inconclusive"
    why = f"grid_sample with mode {mode} and padding {padding}"
    assert any(why in text for text in result.assumptions), result.assumptions
    end = f"; aten.grid_sampler.default is not understood (y: {why})"
    assert result.reason.endswith(end), result.reason

"""An output that one side does not have is not passed over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import shardproof
from tests.frontends.fx.graphs import Writer, ref, write


def two(rank: int, *outputs: str | int | None) -> dict[str, Any]:
    """exp(x) and its square, of which ``outputs`` are returned."""
    w = Writer(rank)
    y = w.call("y", "aten.exp.default", [w.given("x", (4,))], (4,))
    w.call("z", "aten.mul.Tensor", [y, y], (4,))
    graph = w.output(y)
    graph["nodes"][-1]["args"] = [[ref(x) if isinstance(x, str) else x for x in outputs]]
    return graph


def verdict(
    folder: Path, single: tuple[str | int | None, ...], *ranks: tuple[str | int | None, ...]
) -> shardproof.Result:
    one = write(folder / "single", [two(0, *single)])
    many = write(folder / "ranks", [two(rank, *own) for rank, own in enumerate(ranks)])
    return shardproof.verify(one, many, out=folder / "run", cache=False)


@pytest.mark.parametrize(
    ("single", "ranks"),
    [(("y", "z"), ("y", None)), (("y", None), ("y", "z")), (("y", 3), ("y", 4))],
)
def test_an_output_without_counterpart_is_named(
    single: tuple[str | int | None, ...], ranks: tuple[str | int | None, ...], tmp_path: Path
) -> None:
    result = verdict(tmp_path, single, ranks, ranks)
    assert result.verdict == "inconclusive"
    words = f"output 1: {single[1]} and {ranks[1]}"
    assert words in result.reason
    assert any(words in text for text in result.assumptions)


@pytest.mark.parametrize("other", [None, 3])
def test_what_is_no_tensor_on_both_sides_is_left_out(other: int | None, tmp_path: Path) -> None:
    assert verdict(tmp_path, ("y", other), ("y", other), ("y", other)).verdict == "proved"


def test_a_rank_that_does_not_return_an_output_is_refused(tmp_path: Path) -> None:
    result = verdict(tmp_path, ("y", "z"), ("y", "z"), ("y", None))
    assert result.verdict == "invalid input"
    assert "rank 1: its outputs are others than those of rank 0" in result.reason

"""Quantized weights as inputs: integers of 8 bits beside scales."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import shardproof
from shardproof.frontends.fx import cuts, place
from shardproof.frontends.fx.records import Graph
from tests.frontends.fx.graphs import Writer, verified


def gated(rank: int = 0, ranks: int = 1, wrong: bool = False, block: int = 1) -> dict[str, Any]:
    """The product of gate and up, of one weight [8, 4] of integers and a scale of each block of
    rows."""
    w = Writer(rank)
    wide = 8 // ranks
    half = wide // 2
    x, weight = w.given("x", (6, 4)), w.given("weight", (wide, 4), "int8")
    scale = w.given("scale", (wide // block, 1))
    if block > 1:
        many = (wide // block, block)
        scale = w.call("many", "aten.expand.default", [scale, list(many)], many)
        scale = w.call("rows", "aten.reshape.default", [scale, [wide, 1]], (wide, 1))
    numbers = w.call("to", "aten._to_copy.default", [weight], (wide, 4), dtype="torch.float32")
    scaled = w.call("mul", "aten.mul.Tensor", [numbers, scale], (wide, 4))
    turned = w.call("t", "aten.t.default", [scaled], (4, wide))
    y = w.call("mm", "aten.mm.default", [x, turned], (6, wide))
    gate = w.call("gate", "aten.slice.Tensor", [y, 1, 0, half], (6, half))
    up = w.call("up", "aten.slice.Tensor", [y, 1, half, wide], (6, half))
    bent = w.call("exp", "aten.exp.default", [up if wrong else gate], (6, half))
    return w.output(w.call("product", "aten.mul.Tensor", [bent, up], (6, half)))


@pytest.mark.parametrize("block", [1, 2])
@pytest.mark.parametrize("wrong", [False, True])
def test_a_fused_weight_of_integers_is_in_pieces(wrong: bool, block: int, tmp_path: Path) -> None:
    """So are scales of blocks of its rows, which nothing cuts."""
    ranks = [gated(rank, 2, wrong, block) for rank in range(2)]
    result = verified(tmp_path, gated(block=block), ranks)
    assert result.verdict == ("refuted" if wrong else "proved"), result.reason
    if not wrong:
        pieces = "weight is taken as dim = 0, pieces = [[0, 4], [4, 4]]"
        assert any(pieces in a for a in result.assumptions)
        assert shardproof.check(tmp_path / "run").ok


def test_blocks_are_divided_as_their_rows() -> None:
    """Of a fused axis of 8, which is cut into 4 and 4: no block is on two ranks."""
    single, own = (msgspec.convert(gated(0, n), Graph) for n in (1, 2))
    assert cuts.in_blocks(single, own, 4, 2, 2) == [place.Piece(0, 2), place.Piece(2, 2)]
    assert cuts.in_blocks(single, own, 2, 1, 2) == []


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("int64", True), ("uint32", True), ("int8", False), ("uint8", False), ("float32", False)],
)
def test_short_integers_choose_no_rows(dtype: str, expected: bool) -> None:
    assert place.may_choose(dtype) == expected

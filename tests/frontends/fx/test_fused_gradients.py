"""Gradients of fused weights, which are outputs in pieces, in graphs written as an exporter does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import shardproof
from shardproof.frontends.fx import replay
from shardproof.frontends.fx.files import side
from shardproof.frontends.graphs.relations import Relations
from tests.frontends.fx.graphs import Writer, verified, written


def gated(rank: int = 0, ranks: int = 1, wrong: bool = False, groups: int = 1) -> dict[str, Any]:
    """The product of gate and up of one weight [4, 8], and the weight's gradient, which is added up
    over ``groups`` of ranks that have different rows."""
    w = Writer(rank)
    wide, rows = 8 // ranks, 6 // groups
    half = wide // 2
    x, weight = w.given("x", (rows, 4)), w.given("weight", (4, wide))
    y = w.call("mm", "aten.mm.default", [x, weight], (rows, wide))
    gate = w.call("gate", "aten.slice.Tensor", [y, 1, 0, half], (rows, half))
    up = w.call("up", "aten.slice.Tensor", [y, 1, half, wide], (rows, half))
    product = w.call("mul", "aten.mul.Tensor", [gate, up], (rows, half))
    both = [gate, up] if wrong else [up, gate]
    upper = w.call("cat", "aten.cat.default", [both, 1], (rows, wide))
    turned = w.call("t", "aten.t.default", [x], (4, rows))
    gradient = w.call("gradient", "aten.mm.default", [turned, upper], (4, wide))
    if groups > 1:
        target = "_c10d_functional.all_reduce.default"
        gradient = w.call("sum", target, [gradient, "sum", f"d{rank % ranks}"], (4, wide))
    return w.output(product, gradient)


def both(tmp_path: Path, wrong: bool, groups: int = 1) -> tuple[Path, Path]:
    ranks = [gated(rank, 2, wrong, groups) for rank in range(2 * groups)]
    return written(tmp_path, gated(), ranks)


@pytest.mark.parametrize("wrong", [False, True])
def test_the_gradient_of_a_fused_weight_is_in_its_pieces(wrong: bool, tmp_path: Path) -> None:
    paths = both(tmp_path, wrong)
    result = shardproof.verify(*paths, out=tmp_path / "run", cache_dir=tmp_path / "cache")
    assert result.verdict == ("refuted" if wrong else "proved"), result.reason
    assert any("output gradient is taken as" in a for a in result.assumptions)
    if not wrong:
        pieces = "dim = 1, pieces = [[0, 4], [4, 4]]; shard = 1 fits, too"
        assert any(f"gradient is taken as {pieces}" in a for a in result.assumptions)
        assert shardproof.check(tmp_path / "run").ok


@pytest.mark.parametrize("wrong", [False, True])
def test_pieces_are_divided_over_one_axis_of_a_mesh(wrong: bool, tmp_path: Path) -> None:
    """Of six ranks three have other rows; each two share the weight, and no group says which."""
    paths = both(tmp_path, wrong, groups=3)
    result = shardproof.verify(*paths, out=tmp_path / "run", cache_dir=tmp_path / "cache")
    assert result.verdict == ("refuted" if wrong else "proved"), result.reason
    if not wrong:
        assert shardproof.check(tmp_path / "run").ok


def test_outputs_in_pieces_are_replayed(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    single, ranks = both(tmp_path, False)
    judged = replay.validated(side(single)[0], side(ranks), Relations())
    assert (judged.replayed, judged.agrees, judged.compared) == (True, True, 9), judged.message


def beside(rank: int = 0, ranks: int = 1, wrong: bool = False) -> dict[str, Any]:
    """A fused weight, and one of the same size of which a rank has neighbouring columns."""
    w = Writer(rank)
    wide = 8 // ranks
    half = wide // 2
    x, fused, plain = w.given("x", (3, 4)), w.given("fused", (4, wide)), w.given("plain", (4, wide))
    y = w.call("mm", "aten.mm.default", [x, fused], (3, wide))
    gate = w.call("gate", "aten.slice.Tensor", [y, 1, 0, half], (3, half))
    up = w.call("up", "aten.slice.Tensor", [y, 1, half, wide], (3, half))
    product = w.call("mul", "aten.mul.Tensor", [gate, up], (3, half))
    z = w.call("z", "aten.mm.default", [x, plain], (3, wide))
    if wrong:
        z = w.call("neg", "aten.neg.default", [z], (3, wide))
    total = w.call("total", "aten.sum.dim_IntList", [z, [1]], (3,))
    if ranks > 1:
        total = w.call("all", "_c10d_functional.all_reduce.default", [total, "sum", "0"], (3,))
    return w.output(product, z, total)


@pytest.mark.parametrize("wrong", [False, True])
def test_two_weights_of_one_size_may_be_divided_differently(wrong: bool, tmp_path: Path) -> None:
    relations = (
        "[[outputs]]\nsingle = 'mul'\nparallel = 'mul'\nshard = 1\n[[outputs]]\n"
        f"single = 'z'\nparallel = '{'neg' if wrong else 'z'}'\nshard = 1\n"
    )
    ranks = [beside(rank, 2, wrong) for rank in range(2)]
    result = verified(tmp_path, beside(), ranks, relations)
    assert result.verdict == ("refuted" if wrong else "proved"), result.reason


def test_where_no_placement_agrees_the_one_with_fewest_differences_is_shown(tmp_path: Path) -> None:
    """One output is a partial sum under each of them; the weights are divided as the others say."""
    ranks = [beside(rank, 2) for rank in range(2)]
    for graph in ranks:
        graph["nodes"] = [node for node in graph["nodes"] if node["name"] != "all"]
        graph["nodes"][-1]["args"][0][2] = {"n": "total"}
    relations = (
        "[[outputs]]\nsingle = 'mul'\nparallel = 'mul'\nshard = 1\n"
        "[[outputs]]\nsingle = 'z'\nparallel = 'z'\nshard = 1\n"
        "[[outputs]]\nsingle = 'total'\nparallel = 'total'\n"
    )
    result = verified(tmp_path, beside(), ranks, relations)
    assert result.verdict == "refuted"
    assert [finding.kind for finding in result.findings] == ["partial"]
    failing = {c.name for c in result.conclusions if not c.holds and c.kind == "output"}
    assert failing == {"total"}


def whole(rank: int = 0, ranks: int = 1, wrong: bool = False) -> dict[str, Any]:
    """Gate times up of one input [12], and all of it, as a slice that cuts nothing off."""
    w = Writer(rank)
    wide = 12 // ranks
    x, half = w.given("x", (wide,)), wide // 2
    gate = w.call("gate", "aten.slice.Tensor", [x, 0, 0, half], (half,))
    up = w.call("up", "aten.slice.Tensor", [x, 0, half, wide], (half,))
    every = w.call("every", "aten.slice.Tensor", [x, 0, 0, 2**63 - 1], (wide,))
    doubled = w.call("doubled", "aten.add.Tensor", [every, every], (wide,))
    product = w.call("mul", "aten.mul.Tensor", [gate, gate if wrong else up], (half,))
    return w.output(product, doubled)


@pytest.mark.parametrize("wrong", [False, True])
def test_a_slice_that_cuts_nothing_off_hides_no_cut(wrong: bool, tmp_path: Path) -> None:
    ranks = [whole(rank, 2, wrong) for rank in range(2)]
    result = verified(tmp_path, whole(), ranks)
    assert result.verdict == ("refuted" if wrong else "proved"), result.reason

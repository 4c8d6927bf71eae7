"""Ranks on a mesh of two axes: which parts they have is told by groups, and by numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import shardproof
from shardproof.frontends.fx.layouts import divided, layer, layouts, words
from tests.frontends.fx.graphs import Writer, verified

TENSOR, DATA = [(0, 1), (2, 3)], [(0, 2), (1, 3)]


def test_layouts_are_places_in_groups_and_across_them() -> None:
    every, inner, outer = (0, 1, 2, 3), (0, 1, 0, 1), (0, 0, 1, 1)
    assert layouts(TENSOR, 4) == [every, inner, outer]
    assert layouts([*TENSOR, *DATA], 4) == [every, inner, outer]
    assert layouts([], 4) == [every]
    assert layouts([(0, 1)], 4) == [every]
    assert words(inner) == "part 0 on ranks [0, 2], part 1 on ranks [1, 3]"


def test_of_three_axes_each_has_a_layout() -> None:
    ranks = range(8)
    groups = [tuple(r for r in ranks if r & ~bit == low) for bit in (1, 2, 4) for low in ranks]
    made = layouts([g for g in groups if len(g) == 2], 8)
    for bit in (1, 2, 4):
        assert tuple(r // bit % 2 for r in ranks) in made
    assert tuple(r // 2 for r in ranks) in made


def test_two_dimensions_are_divided_over_different_axes() -> None:
    every = layouts(TENSOR, 4)
    over = divided("w", (8, 6), (4, 3), every, lambda *_: "parameter", {})
    assert over is not None
    assert over.box.starts == ((0, 0), (4, 0), (0, 3), (4, 3))
    assert divided("w", (8, 6), (2, 3), every, lambda *_: "parameter", {}) is None
    assert divided("w", (8, 6), (3, 6), every, lambda *_: "parameter", {}) is None


def network(rank: int = 0, mesh: bool = False, wrong: str = "") -> dict[str, Any]:
    """A layer divided over tensor parallel groups, a batch over data parallel ones, and the
    gradient of what follows, added up over the batch."""
    w = Writer(rank)
    parts = 2 if mesh else 1
    rows, inner = 8 // parts, 12 // parts
    x, up = w.given("x", (rows, 4)), w.given("up", (4, inner))
    down, scale = w.given("down", (inner, 4)), w.given("scale", (4,))

    def summed(name: str, value: Any, shape: Any, group: str) -> Any:
        if not mesh or wrong == f"no {group}":
            return value
        names = {"tp": f"t{rank // 2}", "dp": f"d{rank % 2}"}
        target = "_c10d_functional.all_reduce.default"
        return w.call(name, target, [value, "sum", names[group]], shape)

    h = w.call("h", "aten.mm.default", [x, up], (rows, inner))
    h = w.call("r", "aten.relu.default", [h], (rows, inner))
    y = summed("y", w.call("yp", "aten.mm.default", [h, down], (rows, 4)), (rows, 4), "tp")
    z = w.call("z", "aten.mul.Tensor", [y, scale], (rows, 4))
    by = w.call("by", "aten.sum.dim_IntList", [y, [0]], (4,))
    return w.output(z, summed("gradient", by, (4,), "dp"))


@pytest.mark.parametrize("wrong", ["", "no tp", "no dp"])
def test_a_mesh_of_two_axes_needs_no_relations(wrong: str, tmp_path: Path) -> None:
    result = verified(tmp_path, network(), [network(rank, True, wrong) for rank in range(4)])
    assert result.verdict == ("refuted" if wrong else "proved"), result.reason
    if not wrong:
        shares = "part 0 on ranks [0, 2], part 1 on ranks [1, 3] (inferred by shape and groups)"
        assert f"input up is divided along dimension 1, {shares}" in result.assumptions
        assert any("input x is taken as part 0 on ranks [0, 1]" in a for a in result.assumptions)
        assert shardproof.check(tmp_path / "run").ok


def averaged(rank: int = 0, mesh: bool = False, wrong: bool = False) -> dict[str, Any]:
    """Two layers over one axis, and the mean of rows over the other, which is a sum if ``wrong``;
    weights and rows of one size fit either axis."""
    w = Writer(rank)
    own = 2 if mesh else 4
    x, up, down = w.given("x", (own, 4)), w.given("up", (4, own)), w.given("down", (own, 4))
    h = w.call("h", "aten.mm.default", [x, up], (own, own))
    h = w.call("relu", "aten.relu.default", [h], (own, own))
    y = w.call("y", "aten.mm.default", [h, down], (own, 4))
    target = "_c10d_functional.all_reduce.default"
    if mesh:
        y = w.call("tp", target, [y, "sum", f"t{rank // 2}"], (own, 4))
    y = w.call("tanh", "aten.tanh.default", [y], (own, 4))
    total = w.call("mean", "aten.mean.dim", [y, [0]], (4,))
    if mesh:
        total = w.call("dp", target, [total, "sum" if wrong else "avg", f"d{rank % 2}"], (4,))
    return w.output(total)


@pytest.mark.parametrize("wrong", [False, True])
def test_a_fault_is_shown_under_the_placement_with_which_most_is_right(
    wrong: bool, tmp_path: Path
) -> None:
    ranks = [averaged(rank, True, wrong) for rank in range(4)]
    result = verified(tmp_path, averaged(), ranks)
    assert result.verdict == ("refuted" if wrong else "proved"), result.reason
    if wrong:
        assert result.findings[0].source == "line of mean", result.findings[0]


def experts(rank: int = 0, mesh: bool = False) -> dict[str, Any]:
    """Four experts over one axis of a mesh, and four rows over the other."""
    w = Writer(rank)
    own = 2 if mesh else 4
    x, up = w.given("x", (own, 3)), w.given("experts", (own, 3))
    each = w.call("t", "aten.t.default", [up], (3, own))
    y = w.call("y", "aten.mm.default", [x, each], (own, own))
    total = w.call("sum", "aten.sum.dim_IntList", [y, [1], True], (own, 1))
    if mesh:
        target = "_c10d_functional.all_reduce.default"
        total = w.call("all", target, [total, "sum", f"e{rank % 2}"], (own, 1))
    return w.output(total)


def test_rows_and_experts_of_one_size_may_be_divided_over_different_axes(tmp_path: Path) -> None:
    result = verified(tmp_path, experts(), [experts(rank, True) for rank in range(4)])
    assert result.verdict == "proved", result.reason


def test_what_is_divided_alike_is_told_by_names() -> None:
    assert {layer("p_3_up_weight"), layer("p_11_up_bias")} == {"p_#_up"}
    assert layer("layers.0.up.weight") == layer("layers.1.up.bias") == "layers.#.up"
    assert layer("primals_4") != layer("primals_5")
    assert layer("weight") == "weight"

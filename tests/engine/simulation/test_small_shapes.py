"""Which dimensions are one axis, and what sizes follow."""

from __future__ import annotations

from fractions import Fraction
from math import prod
from pathlib import Path

import pytest

from shardproof.engine.algebra.affine import Affine, affine
from shardproof.engine.errors import ShapeMismatch
from shardproof.engine.interpreters.dims import count
from shardproof.engine.ops import apply_backward, apply_forward
from shardproof.engine.ops.primitives import Selection
from shardproof.engine.simulation.axis_classes import Axes, extent
from shardproof.engine.simulation.recording import Recorded, RecordingInterpreter
from shardproof.engine.simulation.small_shapes import Sizes, small_shapes
from shardproof.frontends.zoo import build
from tests.engine.real_plans import LLAMA, real
from tests.engine.small_plans import INNER, replicas, row_parallel, sides


def recorded(interpreter: RecordingInterpreter, *shape: int) -> Recorded:
    return Recorded(tuple(interpreter.axes.fresh(n) for n in shape))


def reading() -> RecordingInterpreter:
    return RecordingInterpreter(Axes())


def same(axes: Axes, left: tuple[object, ...], right: tuple[object, ...]) -> bool:
    return axes.resolve(left) == axes.resolve(right)  # type: ignore[arg-type]


def test_a_view_splits_an_axis_for_all_its_extents() -> None:
    axes = Axes()
    whole, part = axes.fresh(4096), axes.fresh(2048)
    axes.relate(whole, part, 2048)
    heads, width = axes.reshape([whole], (32, 128))
    assert [f.size for f in axes.resolve(part)] == [16, 128]
    assert axes.resolve(part)[0].axis == axes.resolve(heads)[0].axis
    assert axes.resolve(part)[1:] == axes.resolve(width)
    assert axes[heads[0].axis].common == 16


def test_views_that_cut_differently_find_common_factors() -> None:
    axes = Axes()
    x = axes.fresh(4096)
    a = axes.reshape([x], (32, 128))
    b = axes.reshape([x], (64, 64))
    assert [f.size for f in axes.resolve(x)] == [32, 2, 64]
    assert same(axes, (*a[0], *a[1]), (*b[0], *b[1]))
    assert not any(axes[f.axis].frozen for f in axes.resolve(x))


def test_what_a_view_leaves_is_not_kept_for_what_it_cuts() -> None:
    """Heads that cannot be split keep their number; tokens and the size of a head do not."""
    axes = Axes()
    tokens, heads, width = axes.fresh(4096), axes.fresh(12), axes.fresh(128)
    part = axes.fresh(2)
    axes.relate(heads, part, 2)
    found = axes.reshape([tokens, heads, width], (4096, 2, 6, 128))
    assert (found[0], found[-1]) == (tokens, width)
    assert axes[heads[0].axis].frozen
    assert not axes[tokens[0].axis].frozen
    assert not axes[width[0].axis].frozen


def test_the_first_position_is_there_at_every_size() -> None:
    axes = Axes()
    x = axes.fresh(1024)
    axes.relate(x, (), 0)
    assert not axes[x[0].axis].frozen
    axes.relate(x, (), 3)
    assert axes[x[0].axis].frozen


def test_what_does_not_fit_keeps_its_true_extent() -> None:
    axes = Axes()
    x = axes.fresh(12)
    axes.reshape([x], (3, 4))
    y = axes.fresh(12)
    axes.reshape([y], (4, 3))
    axes.unify(x, y)
    assert all(axes[f.axis].frozen for f in axes.resolve(x)[:1])
    uneven = axes.fresh(10)
    axes.relate(uneven, axes.fresh(3), 7)
    assert axes[uneven[0].axis].common == 1


def test_unequal_sizes_are_no_axis() -> None:
    axes = Axes()
    with pytest.raises(ShapeMismatch, match="sizes 4 and 8"):
        axes.unify(axes.fresh(4), axes.fresh(8))


def test_a_linear_layer_relates_its_operands() -> None:
    r = reading()
    x, w = recorded(r, 4, 8), recorded(r, 16, 8)
    (y,) = apply_forward(r, "linear", [x, w], {})
    assert same(r.axes, x.dims[1], w.dims[1])
    assert same(r.axes, y.dims[0], x.dims[0])
    assert same(r.axes, y.dims[1], w.dims[0])
    gx, gw = apply_backward(r, "linear", [x, w], [recorded(r, 4, 16)], {}, [0, 1])
    assert same(r.axes, gx.dims[1], x.dims[1])
    assert same(r.axes, gw.dims[0], w.dims[0])


def test_index_data_carries_its_axis() -> None:
    r = reading()
    ids = Recorded((r.axes.fresh(6),), r.axes.new())
    table = recorded(r, 100, 8)
    apply_forward(r, "embedding", [ids, table], {"start": affine(0, {"tp": 100}), "stop": None})
    assert ids.domain is not None
    assert r.axes.find(ids.domain) == r.axes.find(table.dims[0][0].axis)
    assert r.axes[ids.domain].positional
    assert not r.axes[table.dims[1][0].axis].positional


def test_enough_experts_stay_to_choose_from() -> None:
    r = reading()
    scores = recorded(r, 6, 64)
    r.select(scores, Selection(topk=6, groups=8, topk_groups=4))
    (rule,) = r.axes[scores.dims[1][0].axis].rules
    assert [d for d in (1, 2, 4, 8, 16, 32, 64) if rule(d)] == [1, 2, 4]


def dims_of(sizes: Sizes, name: str) -> list[object]:
    return [sizes.dim(dim) for dim in sizes.recorder.parameters[name]]


def test_shards_stay_exact() -> None:
    """Two ranks hold 8 of 16 inner positions: two representatives each, for four positions."""
    plan = row_parallel()
    sizes = small_shapes(plan, *sides(plan))
    width, inner = ((4, 4),), ((4, 4, 4, 4),)
    assert dims_of(sizes, "w1") == [inner, width]
    assert dims_of(sizes, "w2") == [width, inner]
    shard = sizes.recorder.shard(plan.programs[1].shards[0])
    assert sizes.dims(shard.dims) == (((4, 4),), width)
    assert sizes.scaled(
        plan.programs[1].shards[0].offset[0], sizes.recorder.parameters["w1"][0]
    ) == Affine(INNER // 2)


def test_one_slice_stands_for_all_unless_expanded() -> None:
    plan = replicas()
    both = sides(plan)
    batch = small_shapes(plan, *both).recorder.batch[0]
    assert extent(batch.full[0]) == 12
    assert extent(batch.local[0]) == 3
    together = small_shapes(plan, *both)
    assert together.dim(together.recorder.batch[0].full[0]) == ((4,), (1, 1, 1))
    apart = small_shapes(plan, *both, frozenset({"dp", "mb"}))
    assert apart.dim(apart.recorder.batch[0].full[0]) == ((1,) * 12,)


def test_numbers_are_counted_without_being_written_out() -> None:
    """Dimensions of a hundred million positions are only counted."""
    plan = build("llama3-8b", layers=1, dp=1, tp=2, pp=1, microbatches=1)
    sizes = small_shapes(plan, *sides(plan))
    held = [x for side in (sizes.single, sizes.parallel) for x in side.tensors if x is not None]
    positions = [sizes.positions(dim) for x in held for dim in x.dims]
    entries = sizes.entries
    assert not sizes._dims
    assert positions == [count(sizes.dim(dim)) for x in held for dim in x.dims]
    assert entries == sum(prod(count(dim) for dim in sizes.dims(x.dims)) for x in held)


def test_indexed_axes_are_taken_smaller_on_both_sides() -> None:
    """Vocabulary and sequence shrink truly; attributes that count them follow."""
    plan = build("llama3-8b", layers=1, dp=1, tp=2, pp=1, microbatches=1)
    single, parallel = sides(plan)
    sizes = small_shapes(plan, single, parallel)
    vocabulary = sizes.recorder.parameters["tok_embeddings.weight"][0]
    assert sizes.small(vocabulary) == 4
    assert sizes.classes(sizes.recorder.batch[0].domain) == 4
    lookups = [
        (i, instance)
        for i, instance in enumerate(parallel.instances)
        if instance.name == "embedding"
    ]
    starts = {str(sizes.attrs(sizes.parallel, i, instance)["start"]) for i, instance in lookups}
    assert starts == {"2*tp"}
    views = [
        (i, instance) for i, instance in enumerate(single.instances) if instance.name == "view"
    ]
    for number, instance in views:
        size = sizes.attrs(sizes.single, number, instance)["size"]
        assert isinstance(size, tuple)
        assert size[1] == 2


def test_a_mean_divides_by_the_true_number() -> None:
    plan = replicas(loss="mean", factor=Fraction(1))
    single, parallel = sides(plan)
    sizes = small_shapes(plan, single, parallel)
    counts = [
        sizes.attrs(side, i, instance)["count"]
        for side, instances in (
            (sizes.single, single.instances),
            (sizes.parallel, parallel.instances),
        )
        for i, instance in enumerate(instances)
        if instance.name == "mean"
    ]
    assert counts == [96, 96, 24, 24]


def test_real_plans_become_small(shared_plans: Path) -> None:
    found = small_shapes(
        *real(shared_plans, LLAMA, "llama3_default_dp2_pp4_tp8_nm8_gbs512_ly2_h32_hi4096_sq128")
    )
    assert found.entries < 20_000_000

"""What a backward operator has saved, but does not read: another tensor of its shape changes
nothing, one of another shape is no plan."""

from __future__ import annotations

from dataclasses import replace

from shardproof.engine.plan.ir import Body, Plan
from shardproof.engine.schedule.unroll import unroll
from shardproof.engine.simulation.simulate import simulate
from shardproof.engine.simulation.small_shapes import small_shapes
from shardproof.engine.specification.gradients import recorded
from shardproof.frontends.builder.builder import BodyBuilder
from tests.faults.plans import assert_proved, assert_refuted, edit_body
from tests.faults.test_routes import Formula, plan

#: Names of tensors of `cast`.
SAVED, TURNED, LEVEL = "saved", "turned", "level"


def cast(b: BodyBuilder, x: int, t: int, w1: int, w2: int) -> int:
    """x w1 through a cast, plus x w2 turned twice."""
    y = b.op("float", b.op("matmul", x, w1, name=SAVED), dtype="float32")
    turned = b.op("transpose", b.matmul(x, w2), name=TURNED, dim0=0, dim1=1)
    return b.add(y, b.op("transpose", turned, name=LEVEL, dim0=0, dim1=1))


def parted(b: BodyBuilder, x: int, t: int, w1: int, w2: int) -> int:
    """`cast`, whose columns, unlike its instances, are cut in thirds and joined."""
    y = cast(b, x, t, w1, w2)
    return b.op("concat", *(b.op("slice", y, dim=1, start=i, size=2) for i in (0, 2, 4)), dim=1)


def saving(made: Plan, name: str) -> Plan:
    """The backward of the cast gets another context, which nobody else reads."""
    forward = made.programs[0].bodies[0]
    target = next(i for i, value in enumerate(forward.values) if value.name == name)

    def change(body: Body) -> Body:
        back = next(op for op in body.ops if op.name == "float")
        held = back.inputs[0]
        assert [op for op in body.ops if held in op.inputs] == [back]
        saved = tuple((v, target if v == held else source) for v, source in body.saved)
        values = list(body.values)
        values[held] = replace(values[held], shape=forward.values[target].shape)
        return replace(body, saved=saved, values=tuple(values))

    return edit_body(made, 0, "backward", change)


def routes(formula: Formula) -> Plan:
    return plan(formula, formula)


def test_a_context_of_this_shape_that_is_not_read_changes_nothing() -> None:
    assert_proved(saving(routes(cast), SAVED))
    assert_proved(saving(routes(cast), LEVEL))


def test_a_context_of_another_shape_is_refuted_though_it_is_not_read() -> None:
    assert_refuted(
        saving(routes(cast), TURNED), kind="shape", operator="backward of float", says="shape"
    )


def test_sizes_that_coincide_are_made_small_together() -> None:
    """With as many instances as columns the turned tensor fits, and the plan can be run."""
    made = saving(plan(parted, parted, replicas=1, rows=6), TURNED)
    single, parallel = unroll([made.single], 1), unroll(made.programs, 1)
    sizes = small_shapes(made, single, parallel)
    instance = next(
        instance
        for instance in parallel.instances
        if instance.name == "float" and instance.backward
    )
    context, gradient = (sizes.parallel.tensors[v] for v in instance.inputs)
    assert context is not None
    assert gradient is not None
    assert sizes.dims(context.dims) == sizes.dims(gradient.dims)
    found = simulate(made, recorded(made, single), parallel)
    assert (found.failure, found.differs) == ("", False)

"""Changes that make another run of a proved one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from shardproof.engine.algebra.affine import affine
from shardproof.engine.lineage.expressions import Einsum, Input
from shardproof.engine.lineage.lineage import Lineage, PartialRange, StridedInterval
from shardproof.engine.lineage.nodes import Reduction
from shardproof.engine.plan.ir import Op, Plan
from shardproof.engine.schedule.instances import Instance
from shardproof.engine.specification.conclusions import Conclusion

Change = Callable[[Any], Any]

# -- finding things in a run
# ------------------------------------------------------------------------


def rows(parts: Any, side: str = "parallel") -> Iterator[tuple[int, Instance]]:
    return enumerate(parts.sides[side].instances)


def is_live(parts: Any, number: int, side: str = "parallel") -> bool:
    return any(s.live for s in parts.stages if s.side == side and s.row == number)


def output(parts: Any, wanted: Callable[[Instance, Lineage], bool]) -> int:
    """The first output of a live row of the parallel side whose row and lineage are wanted."""
    for number, instance in rows(parts):
        for value in instance.outputs:
            lineage = parts.parallel[value]
            if lineage is not None and is_live(parts, number) and wanted(instance, lineage):
                return value
    raise AssertionError("there is no such row")


def operator(name: str) -> Callable[[Instance, Lineage], bool]:
    return lambda instance, lineage: (
        instance.kind == "op" and instance.name == name and not instance.backward
    )


def atom_of(lineage: Lineage, wanted: Callable[[StridedInterval], bool]) -> StridedInterval | None:
    intervals = [a for t in lineage.addends for d in t.view.dims for a in d]
    return next((a for a in intervals if a.axis >= 0 and wanted(a)), None)


def with_term(lineage: Lineage, **changes: Any) -> Lineage:
    return lineage._replace(addends=(lineage.addends[0]._replace(**changes), *lineage.addends[1:]))


def with_atom(lineage: Lineage, old: StridedInterval, **changes: Any) -> Lineage:
    addend = lineage.addends[0]
    dims = tuple(
        tuple(a._replace(**changes) if a == old else a for a in dim) for dim in addend.view.dims
    )
    return with_term(lineage, view=addend.view._replace(dims=dims))


def change_output(
    wanted: Callable[[Instance, Lineage], bool], change: Callable[[Any, Lineage], Lineage | None]
) -> Change:
    def apply(parts: Any) -> None:
        value = output(parts, wanted)
        changed = change(parts, parts.parallel[value])
        assert changed != parts.parallel[value]
        parts.parallel[value] = changed

    return apply


def change_atom(
    wanted: Callable[[Instance, Lineage], bool],
    which: Callable[[StridedInterval], bool],
    change: Callable[[StridedInterval], dict[str, Any]],
) -> Change:
    def apply(_: Any, lineage: Lineage) -> Lineage:
        interval = atom_of(lineage, which)
        assert interval is not None
        return with_atom(lineage, interval, **change(interval))

    return change_output(
        lambda instance, x: wanted(instance, x) and atom_of(x, which) is not None, apply
    )


def change_part(change: Callable[[PartialRange], dict[str, Any]]) -> Change:
    def apply(_: Any, lineage: Lineage) -> Lineage:
        partial = lineage.addends[0].partials[0]
        return with_term(
            lineage,
            partials=(partial._replace(**change(partial)), *lineage.addends[0].partials[1:]),
        )

    return change_output(is_partial, apply)


def is_partial(instance: Instance, lineage: Lineage) -> bool:
    return instance.kind == "op" and len(lineage.addends) == 1 and bool(lineage.addends[0].partials)


def change_node(kind: str, change: Callable[[int, Any], Any], which: int = 0) -> Change:
    def apply(parts: Any) -> None:
        numbers = [i for i, n in enumerate(parts.nodes.nodes) if n.kind == kind]
        number = numbers[which]
        parts.nodes.nodes[number] = change(number, parts.nodes.nodes[number])

    return apply


def change_stage(wanted: Callable[[Any, Any], bool], **changes: Any) -> Change:
    def apply(parts: Any) -> None:
        index = next(i for i, s in enumerate(parts.stages) if wanted(parts, s))
        parts.stages[index] = parts.stages[index]._replace(**changes)

    return apply


def claimed(parts: Any, stage: Any) -> bool:
    return stage.side == "parallel" and stage.template >= 0 and stage.live


def change_template(number: int, **changes: Any) -> Change:
    def apply(parts: Any) -> None:
        old = parts.templates[number]
        parts.templates[number] = old._replace(
            **{k: v(old) if callable(v) else v for k, v in changes.items()}
        )

    return apply


def swap_texts(parts: Any) -> None:
    a, b = parts.templates[3], parts.templates[4]
    assert a.linear != b.linear
    parts.templates[3] = a._replace(linear=b.linear, nonlinear=b.nonlinear)
    parts.templates[4] = b._replace(linear=a.linear, nonlinear=a.nonlinear)


def nonlinear(parts: Any) -> None:
    number = next(i for i, t in enumerate(parts.templates) if t.nonlinear)
    change_template(
        number,
        nonlinear=lambda t: t.nonlinear.replace("(assert (not", "(assert false)\n(assert (not"),
    )(parts)


def drop_stage(parts: Any) -> None:
    parts.stages.remove(next(s for s in parts.stages if claimed(parts, s)))


def drop_all_reduce_stage(parts: Any) -> None:
    number = next(n for n, instance in rows(parts) if instance.kind == "all_reduce")
    parts.stages.remove(next(s for s in parts.stages if s.side == "parallel" and s.row == number))


def repeat_stage(parts: Any) -> None:
    parts.stages.append(next(s for s in parts.stages if claimed(parts, s)))


def other_template(parts: Any) -> None:
    """A stage whose template has another example is given another template."""
    index = next(
        i
        for i, s in enumerate(parts.stages)
        if claimed(parts, s) and parts.templates[s.template].row != s.row
    )
    stage = parts.stages[index]
    other = next(
        i
        for i, t in enumerate(parts.templates)
        if t.linear != parts.templates[stage.template].linear
    )
    parts.stages[index] = stage._replace(template=other)


def extra_template(parts: Any) -> None:
    parts.templates.append(parts.templates[0])


def claim_on_shard(parts: Any) -> None:
    numbers = {n for n, instance in rows(parts) if instance.kind == "shard"}
    change_stage(lambda _, s: s.side == "parallel" and s.row in numbers, template=0)(parts)


def drop_conclusion(parts: Any) -> None:
    parts.conclusions.pop(3)


def repeat_conclusion(parts: Any) -> None:
    parts.conclusions.append(parts.conclusions[3])


def another_conclusion(parts: Any) -> None:
    parts.conclusions.append(Conclusion("gradient", "nothing", (0,), True, ""))


def rename_conclusion(parts: Any) -> None:
    parts.conclusions[-1] = parts.conclusions[-1]._replace(name="something")


def swap_inputs(parts: Any) -> None:
    """Two parameters of one shape change places."""
    seen: dict[tuple[int, ...], int] = {}
    nodes = parts.nodes.nodes
    for number, node in enumerate(nodes):
        if isinstance(node.definition, Input) and "norm" in node.definition.name:
            if node.extents in seen:
                other = seen[node.extents]
                nodes[number], nodes[other] = nodes[other], nodes[number]
                return
            seen[node.extents] = number
    raise AssertionError("no two parameters of one shape")


def swap_shards(interval: StridedInterval) -> dict[str, Any]:
    """The tensor-parallel ranks change places."""
    ((axis, step),) = interval.start.terms
    assert axis == "tp"
    return {"start": affine(step, {"tp": -step})}


def is_shard(instance: Instance, lineage: Lineage) -> bool:
    return instance.kind == "shard"


def self_reference(number: int, node: Any) -> Any:
    first, *others = node.definition.operands
    operands = (first._replace(node=number), *others)
    return node._replace(definition=Einsum(operands, node.definition.outputs))


def in_place_of_function(name: str) -> Callable[[int, Any], Any]:
    """A function of another name."""

    def change(_: int, node: Any) -> Any:
        return node._replace(definition=replace(node.definition, function=name))

    return change


def scale_addend(_: int, node: Any) -> Any:
    first, *others = node.definition.factors
    return node._replace(definition=replace(node.definition, factors=(first * 3, *others)))


def token(**changes: Any) -> Change:
    def apply(parts: Any) -> None:
        used = parts.parallel[output(parts, is_partial)].addends[0].partials[0].reduction
        parts.nodes.reductions[used] = parts.nodes.reductions[used]._replace(**changes)

    return apply


def part_of_a_sum(parts: Any) -> None:
    """A complete value called a part, so that its parts would add up to one of it."""
    value = output(parts, operator("add"))
    lineage = parts.parallel[value]
    node = lineage.addends[0].node
    assert parts.nodes.nodes[node].kind == "combine"
    parts.nodes.reductions.append(Reduction("sum", node, 0))
    partial = PartialRange(len(parts.nodes.reductions) - 1, affine(0), 1, 2)
    parts.parallel[value] = with_term(lineage, partials=(partial,))


def other_node(parts: Any, lineage: Lineage) -> Lineage:
    """The lineage of another parameter's view of the same extents."""
    node = lineage.addends[0].node
    extents = parts.nodes.nodes[node].extents
    other = next(
        i
        for i, n in enumerate(parts.nodes.nodes)
        if i != node and n.extents == extents and n.kind == parts.nodes.nodes[node].kind
    )
    return with_term(lineage, node=other)


def frozen(axis: str) -> Change:
    """What every replica (microbatch) has of its own is called the second one's of all."""
    return change_atom(
        operator("add"),
        lambda a: a.start.coefficient(axis) != 0,
        lambda a: {"start": a.start.fix(axis, 1)},
    )


# -- changing the plan
# ------------------------------------------------------------------------------


def change_plan(change: Callable[[Plan], Plan]) -> Change:
    def apply(parts: Any) -> Any:
        return parts.copy(plan=change(parts.plan))

    return apply


def edit_op(plan: Plan, name: str, change: Callable[[Op], Op], *, last: bool = False) -> Plan:
    """The plan with the first (last) operator of a name changed on its first ranks."""
    program = plan.programs[0]
    places = [
        (b, i)
        for b, body in enumerate(program.bodies)
        for i, op in enumerate(body.ops)
        if op.name == name
    ]
    b, i = places[-1 if last else 0]
    body = program.bodies[b]
    ops = (*body.ops[:i], change(body.ops[i]), *body.ops[i + 1 :])
    bodies = (*program.bodies[:b], replace(body, ops=ops), *program.bodies[b + 1 :])
    return replace(plan, programs=(replace(program, bodies=bodies), *plan.programs[1:]))


def without_reduction(plan: Plan, *, last: bool = False) -> Plan:
    return edit_op(
        plan, "all_reduce", lambda op: Op("identity", op.inputs, op.outputs, {}), last=last
    )


def without_last_reduction(plan: Plan) -> Plan:
    return without_reduction(plan, last=True)


def shift_shard(plan: Plan) -> Plan:
    """A rank holds another slice of a parameter."""
    program = plan.programs[0]
    shards = list(program.shards)
    number = next(i for i, s in enumerate(shards) if any(o.terms for o in s.offset))
    shard = shards[number]
    offset = tuple(
        affine(step, {"tp": -step}) if (step := o.coefficient("tp")) else o for o in shard.offset
    )
    shards[number] = replace(shard, offset=offset)
    return replace(plan, programs=(replace(program, shards=tuple(shards)), *plan.programs[1:]))

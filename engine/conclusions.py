"""What a proof has to conclude, and whether lineages say so.

Conclusions come from the single-device program alone: its loss, and for every parameter and every
rank that holds a shard of it, the gradient with coefficient 1 after the last reduction.  Whether a
lineage is the expected one is exact comparison at true size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from engine.affine import Affine, affine
from engine.derive import Derived
from engine.floating import settled
from engine.ir import MICROBATCH, Plan, Program, Shard
from engine.layout import Misaligned, narrow
from engine.lineage import Dim, Lineage, NodeTable, Term
from engine.places import cut, joined, of_dim
from engine.rows import Unrolled
from engine.sums import collect, family_sum, merge_parts
from engine.tiling import TooMany, boxes, tiles

Lineages = Sequence[Lineage | None]


class Conclusion(NamedTuple):
    """``kind``: "loss", "gradient", "coverage" or "single-device gradient"; ``value``: the tensor
    of the side that it is about (-1: none)."""

    kind: str
    name: str
    ranks: tuple[int, ...]
    holds: bool
    message: str
    program: int = -1
    value: int = -1


def scaled(lineage: Lineage, factor: Fraction) -> Lineage:
    return Lineage(
        lineage.shape, tuple(t._replace(factor=t.factor * factor) for t in lineage.terms)
    )


def _interval(dim: Dim, start: Affine, size: int, extents: Mapping[str, int]) -> Dim:
    """Positions [start, start + size) of a dimension; raises `Misaligned` if they are no view.

    A position along several axes is taken axis by axis, each within the block of the one outside:
    a dimension of several atoms is cut in one of them at a time.
    """
    outer = max(start.terms, key=lambda term: term[1], default=None)
    if outer is not None and len(start.terms) > 1:
        axis, block = outer
        rest = start - affine(0, {axis: block})
        reach = [c * (extents[a] - 1) for a, c in rest.terms]
        if all(x >= 0 for x in (rest.const, *reach)) and rest.const + sum(reach) + size <= block:
            return _interval(narrow(dim, start - rest, block), rest, size, extents)
    return narrow(dim, start, size)


def box_of(lineage: Lineage, shard: Shard, extents: Mapping[str, int]) -> Lineage:
    """The box of a full tensor that a shard holds, on ranks along axes of ``extents``; raises
    `Misaligned` if it is no view."""
    terms = list(lineage.terms)
    shape = lineage.shape
    for i, (size, full) in enumerate(zip(shard.shape, shard.full_shape, strict=True)):
        if size != full:
            start = shard.offset[i].settled(extents)
            found = (_box_along(term, shape, i, start, size, extents) for term in terms)
            terms = [term for term in found if term is not None]
            shape = (*shape[:i], size, *shape[i + 1 :])
    return Lineage(shard.shape, tuple(joined(terms)))


def is_same(one: Lineage, other: Lineage) -> bool:
    """Whether two lineages say the same: equal up to where positions of one of many are put."""
    if one == other:
        return True
    if one.shape != other.shape or len(one.terms) != len(other.terms):
        return False
    return all(
        a._replace(layout=settled(a.layout)) == b._replace(layout=settled(b.layout))
        for a, b in zip(one.terms, other.terms, strict=True)
    )


def _box_along(
    term: Term,
    shape: tuple[int, ...],
    dim: int,
    start: Affine,
    size: int,
    extents: Mapping[str, int],
) -> Term | None:
    """A term of a box along one dimension; None where it is zero there."""
    if of_dim(term, dim):
        return cut(term, shape, dim, start, size)
    dims = list(term.layout.dims)
    dims[dim] = _interval(dims[dim], start, size, extents)
    return term._replace(layout=term.layout._replace(dims=tuple(dims)))


def slices(plan: Plan, program: Program) -> int:
    """Into how many slices replicas and microbatches divide the batch."""
    count = plan.microbatches
    for axis in plan.replica_axes:
        count *= program.extents.get(axis, 1)
    return count


def conclude(
    plan: Plan,
    nodes: NodeTable,
    single: Derived,
    single_lineages: Lineages,
    parallel: Unrolled,
    lineages: Lineages,
) -> list[Conclusion]:
    """All conclusions, in a fixed order, each with whether it holds."""
    result = _single_gradients(plan, single, single_lineages)
    expected_loss = single_lineages[single.loss]
    result += _losses(plan, nodes, parallel, lineages, expected_loss)
    wanted = {name: single_lineages[v] for name, v in single.gradients.items()}
    result += _gradients(plan, parallel, lineages, wanted)
    result += [_coverage(plan, name) for name in sorted(wanted)]
    return result


def _single_gradients(plan: Plan, single: Derived, lineages: Lineages) -> list[Conclusion]:
    """The single-device plan's own backward must be the derivative of its forward."""
    result = []
    for program, number, value in single.unrolled.gradients:
        name = plan.single.shards[number].name
        derived = single.gradients.get(name)
        want = lineages[derived] if derived is not None else None
        have = lineages[value]
        holds = want is not None and have is not None and is_same(have, want)
        message = (
            ""
            if holds
            else (
                f"the single-device plan's gradient of {name} is not the derivative of its forward"
            )
        )
        result.append(
            Conclusion("single-device gradient", name, (0,), holds, message, program, value)
        )
    computed = {c.name for c in result}
    for name in sorted(set(single.gradients) - computed if computed else ()):
        message = f"the single-device plan computes no gradient of {name}"
        result.append(Conclusion("single-device gradient", name, (0,), False, message))
    return result


def _losses(
    plan: Plan,
    nodes: NodeTable,
    parallel: Unrolled,
    lineages: Lineages,
    expected: Lineage | None,
) -> list[Conclusion]:
    groups: dict[tuple[int, str], list[int]] = {}
    for program, which, value in parallel.losses:
        groups.setdefault((program, which), []).append(value)
    result = []
    for (program, which), values in groups.items():
        held = plan.programs[program]
        over = [(a, held.extents[a]) for a in reversed(plan.replica_axes) if a in held.extents]
        factor = Fraction(1, slices(plan, held)) if plan.loss == "mean" else Fraction(1)
        mesh = {**held.extents, MICROBATCH: plan.microbatches}
        # Innermost first: microbatches divide what a replica reads.
        own = [lineages[v] for v in values if not parallel.tensors[v].batched]
        each = [lineages[v] for v in values if parallel.tensors[v].batched]
        inner = ((MICROBATCH, plan.microbatches),) if parallel.symbolic else ()
        if each:
            own.append(_total(each, nodes, inner, mesh))
        found = _total(own, nodes, tuple(over), mesh)
        holds = found is not None and expected is not None and scaled(found, factor) == expected
        message = (
            ""
            if holds
            else (
                f"rank {held.base}: the {plan.loss} of the losses over {slices(plan, held)} slices "
                "of the batch is not the single-device loss"
            )
        )
        result.append(Conclusion("loss", which, (held.base,), holds, message, program, values[0]))
    if not result:
        result.append(Conclusion("loss", "loss", (), False, "no rank computes a loss"))
    return result


def _total(
    members: Sequence[Lineage | None],
    nodes: NodeTable,
    over: tuple[tuple[str, int], ...],
    mesh: Mapping[str, int],
) -> Lineage | None:
    present = [m for m in members if m is not None]
    if len(present) < len(members) or not present:
        return None
    together = merge_parts(nodes, [t for m in present for t in m.terms], mesh)
    try:
        return family_sum(nodes, Lineage(present[0].shape, tuple(collect(together))), over, mesh)
    except Misaligned:
        return None


def _gradients(
    plan: Plan,
    parallel: Unrolled,
    lineages: Lineages,
    wanted: Mapping[str, Lineage | None],
) -> list[Conclusion]:
    found = {(p, n): v for p, n, v in parallel.gradients}
    result = []
    for p, program in enumerate(plan.programs):
        for number, shard in enumerate(program.shards):
            if shard.updated_as >= 0:
                continue
            value = found.get((p, number), -1)
            if shard.name not in wanted:
                if shard.trainable:
                    result.append(_no_gradient(program, shard, lineages, p, value))
                continue
            have = lineages[value] if value >= 0 else None
            message = _gradient_fault(program, shard, have, wanted[shard.name], value)
            result.append(
                Conclusion("gradient", shard.name, (program.base,), not message, message, p, value)
            )
    return result


def _no_gradient(
    program: Program, shard: Shard, lineages: Lineages, number: int, value: int
) -> Conclusion:
    """A parameter that the single-device loss does not depend on must get no gradient, or zero."""
    have = lineages[value] if value >= 0 else Lineage(shard.shape, ())
    holds = have is not None and not have.terms
    message = (
        ""
        if holds
        else (
            f"rank {program.base}: {shard.name} gets a gradient, though the single-device loss "
            "does not depend on it"
        )
    )
    return Conclusion("gradient", shard.name, (program.base,), holds, message, number, value)


def _gradient_fault(
    program: Program, shard: Shard, have: Lineage | None, want: Lineage | None, value: int
) -> str:
    """Why a gradient is not the expected one ("" if it is)."""
    where = f"rank {program.base}: the gradient of {shard.name}"
    if value < 0:
        return f"{where} is never computed"
    if have is None or want is None:
        return f"{where} depends on an operator that is not supported"
    try:
        expected = box_of(want, shard, program.extents)
    except Misaligned:
        return f"{where} is held as a box that is no view of it"
    if is_same(have, expected):
        return ""
    if len(have.terms) == 1 and len(expected.terms) == 1:
        a, b = have.terms[0], expected.terms[0]
        if a.node == b.node and a.parts:
            intervals = ", ".join(f"[{p.start}, +{p.size}) of {p.extent}" for p in a.parts)
            return f"{where} is a partial sum (over {intervals}): a reduction is missing"
        if a.node == b.node and a.layout == b.layout:
            return f"{where} is {a.factor / b.factor} times the single-device gradient"
        if a.node == b.node:
            return f"{where} is another part of it than the shard"
    return f"{where} is not the single-device gradient"


def _coverage(plan: Plan, name: str) -> Conclusion:
    """The shards of a parameter that ranks update, over all ranks, must cover it."""
    held = [
        (shard, program.extents)
        for program in plan.programs
        for shard in program.shards
        if shard.name == name and shard.updated_as < 0
    ]
    full = list(held[0][0].full_shape) if held else []
    try:
        holds = tiles((boxes(s.offset, s.shape, extents) for s, extents in held), full)
        message = "" if holds else f"the shards of {name} do not tile its {full} elements"
    except TooMany as error:
        holds, message = False, f"whether the shards of {name} tile it is not decided: {error}"
    return Conclusion("coverage", name, (), holds, message)

"""Constants of the two sides that differ by rounding alone, taken as equal after a failure.

One planner writes 1/sqrt(128) in double precision, another in single.  Over the reals these are two
numbers, and the plans compute two things.  So where conclusions fail, constants of aligned
operators that differ by rounding alone are replaced by the single-device program's, and the plan is
partitioned anew.  Each pair is an assumption of the verdict and a finding of its own; the plan that
is certified says what was replaced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from shardproof.engine.findings import Finding
from shardproof.engine.plan.constants import (
    attribute,
    exact,
    is_rounding,
    printed,
    with_constant,
)
from shardproof.engine.plan.ir import Op, Plan, Program, Rounded
from shardproof.partition.stages.partition import Partition, partition

#: What an operator is aligned by: name, direction, module, place in the source, which of its
#: program's operators of that kind it is, and of how many.
Place = tuple[str, bool, str, str, int, int]


class _At(NamedTuple):
    """An operator of a program, by its numbers."""

    body: int
    op: int
    operator: Op


def without_rounding(result: Partition) -> Partition:
    """``result``, or where its conclusions fail and constants differ by rounding alone, the
    partition of the plan with the single-device program's constants; raises what `partition`
    raises.

    Example: a plan whose norms have eps 9.999999747378752e-06 on all ranks, and 1e-05 on the single
    device, is partitioned with 1e-05, and has a finding "precision" for each of these norms.
    """
    if result.faults or all(c.holds for c in result.conclusions):
        return result
    plan = rounded(result.plan)
    if plan is result.plan:
        return result
    again = partition(plan, result.more, result.memo)
    again.findings += findings(plan)
    return again


def rounded(plan: Plan) -> Plan:
    """The plan with constants of the parallel side replaced where they differ by rounding alone
    from those of the same operator on the single device (the plan itself, if none do).

    Example: ``eps`` 1e-05 in single precision becomes 1/100000; 1/50000, which is no rounding of
    it, stays.
    """
    theirs = dict(_places(plan.single))
    changed: list[Rounded] = []
    programs = []
    for number, program in enumerate(plan.programs):
        ops: dict[tuple[int, int], Op] = {}
        for place, at in _places(program):
            other = theirs.get(place)
            if other is None or other.operator.attrs == at.operator.attrs:
                continue
            for key, mine in at.operator.attrs.items():
                known = other.operator.attrs.get(key)
                if not isinstance(mine, Fraction) or not is_rounding(mine, known):
                    continue
                op = ops.get((at.body, at.op), at.operator)
                ops[at.body, at.op] = with_constant(op, key, known)
                changed.append(Rounded(number, at.body, at.op, key, mine))
        programs.append(_with(program, ops))
    if not changed:
        return plan
    return replace(plan, programs=tuple(programs), rounded=(*plan.rounded, *changed))


def findings(plan: Plan) -> list[Finding]:
    """Every replacement of constants, one finding for an operator on all its ranks.

    Example: "rms_norm in layers.0 on ranks [0, 1] has the constant 9.999999747378752e-06, the
    single-device program 1e-05: they differ by rounding alone, and are taken as equal".
    """
    alike: dict[tuple[object, ...], Finding] = {}
    for place in plan.rounded:
        program = plan.programs[place.program]
        op = program.bodies[place.body].ops[place.op]
        constant = exact(attribute(plan, place))
        if constant is None:
            continue
        source = op.source.location or op.source.cell
        key = (op.name, op.backward, op.source.module, source, place.key, place.value, constant)
        finding = alike.get(key)
        ranks = tuple(sorted({program.base, *(finding.ranks if finding is not None else ())}))
        name = f"backward of {op.name}" if op.backward else op.name
        layer = f" in {op.source.module}" if op.source.module else ""
        mine, other = printed(place.value), printed(constant)
        alike[key] = Finding(
            "precision",
            f"{name}{layer} on ranks {list(ranks)} has the constant {mine}, the single-device "
            f"program {other}: they differ by rounding alone, and are taken as equal",
            name,
            op.source.module,
            source,
            ranks,
            expected=other,
            actual=mine,
        )
    return list(alike.values())


def _places(program: Program) -> Iterator[tuple[Place, _At]]:
    """The operators of a program, each by its place in the model."""
    operators = [
        ((op.name, op.backward, op.source.module, op.source.location), _At(b, o, op))
        for b, body in enumerate(program.bodies)
        for o, op in enumerate(body.ops)
    ]
    total = Counter(key for key, _ in operators)
    counts: Counter[tuple[str, bool, str, str]] = Counter()
    for key, at in operators:
        yield (*key, counts[key], total[key]), at
        counts[key] += 1


def _with(program: Program, ops: Mapping[tuple[int, int], Op]) -> Program:
    """The program with other operators, by body and number."""
    if not ops:
        return program
    bodies = list(program.bodies)
    for b in sorted({b for b, _ in ops}):
        before = bodies[b].ops
        bodies[b] = replace(
            bodies[b], ops=tuple(ops.get((b, o), before[o]) for o in range(len(before)))
        )
    return replace(program, bodies=tuple(bodies))

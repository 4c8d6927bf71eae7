"""What a refutation may not rest on: operators without a meaning, and numbers that stand for a
function of which nothing is known.

A plan with such an operator has no numbers to be refuted by, and a difference of what depends on a
stand-in shows nothing of the program that it stands in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from shardproof.checker.values.sides import live_instances
from shardproof.engine.errors import Unsupported
from shardproof.engine.ops.declare import understood
from shardproof.engine.plan.ir import Plan, Program
from shardproof.engine.schedule.instances import Unrolled
from shardproof.engine.specification.demands import Demand, demands, roots
from shardproof.engine.specification.gradients import derive


class Grounds(NamedTuple):
    """Why nothing refutes a plan (``problem``; "": something may), or else how the names begin of
    results that refute nothing, because they depend on a stand-in.

    Example: of a plan with an operator ``fancy`` the problem "operator fancy is not declared"; of
    one with a kernel of which the output "y" is made, ("output y ",).
    """

    problem: str = ""
    excused: tuple[str, ...] = ()


def grounds(plan: Plan, single: Unrolled, parallel: Unrolled) -> Grounds:
    """What a difference of the two sides may show; ``plan`` has no contradiction.

    Example: ``Grounds()`` of a plan whose operators are declared, and that assumes no stand-in.
    """
    for finding in (*single.unsupported, *parallel.unsupported):
        return Grounds(finding.message)
    try:
        derived = derive(plan, single)
        live = roots(plan, derived, parallel)
        for side, needed in zip((derived.unrolled, parallel), live, strict=True):
            _declared(side, needed)
    except Unsupported as error:
        return Grounds(str(error))
    standing = [a for a in plan.assumed if a.kind == "stand-in"]
    if not standing:
        return Grounds()
    inputs = {shard.name for program in (plan.single, *plan.programs) for shard in program.shards}
    for assumption in standing:
        if assumption.about not in inputs:
            # Nothing says what depends on it: anything may.
            return Grounds(f"what differs may come from a stand-in: {assumption.text}")
    about = {assumption.about for assumption in standing}
    excused = []
    for demand in demands(plan, derived, parallel):
        values = [v for term in demand.sums for v in term.tensors]
        single_names = _names([plan.single], derived.unrolled, [demand.expected])
        if about & (single_names | _names(plan.programs, parallel, values)):
            excused.append(_called(plan, demand))
    return Grounds("", tuple(dict.fromkeys(excused)))


def _declared(side: Unrolled, needed: Iterable[int]) -> None:
    """Raise `Unsupported` for an operator without a declaration on which something depends."""
    for number in live_instances(side, needed):
        op = side.instances[number]
        if op.kind == "op":
            arity = op.attrs.get("arity") if op.backward else None
            understood(op.name, arity if isinstance(arity, int) else len(op.inputs), op.attrs)


def _names(programs: Sequence[Program], side: Unrolled, values: Iterable[int]) -> set[str]:
    """The inputs that values depend on."""
    names = set()
    for number in live_instances(side, values):
        instance = side.instances[number]
        shard = instance.attrs.get("shard")
        if instance.kind == "shard" and isinstance(shard, int):
            names.add(programs[instance.programs[0]].shards[shard].name)
    return names


def _called(plan: Plan, demand: Demand) -> str:
    """How the name of a result begins where both sides are compared
    (`engine.reference_runtime.compare.errors`)."""
    if plan.expectations:
        return f"{demand.kind} {demand.name} "
    return "loss " if demand.kind == "loss" else f"gradient of {demand.name} on rank "

"""Tables of constants of recorded programs, which a proof takes for any numbers.

A proof that holds for any table holds for the programs' own.  A difference does not: a program may
be right for the numbers that it has (another part of the table that holds the same) and no others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from shardproof.engine.plan.assumption import Assumption
from shardproof.engine.plan.ir import Plan, Program
from shardproof.engine.reference_runtime.agreement import agree_on
from shardproof.engine.reference_runtime.compare import fits
from shardproof.engine.simulation.hiding import hiding, zeros_and_ones
from shardproof.engine.simulation.simulate import WIDE
from shardproof.engine.simulation.true_size import TURNS, every_id, with_numbers
from shardproof.inputs.load import CONSTANT
from shardproof.partition.stages.partition import Partition

#: How large the random inputs are on which both sides have to agree: bounds and scales that show
#: for large numbers only are seen with these.
SCALES: Final = (1, 1, 2, 4)
#: On how many inputs a larger plan is run.
AT_TRUE_SIZES: Final = 2
#: The seed, after the first wide one, of which inputs that hide scores are zeros and ones.
ONES: Final = 3


def guarded(result: Partition) -> Plan:
    """The plan of a partition; where not all that has to hold is seen to hold for any tables, and
    both sides agree with the tables that the programs have (`Plan.tables`), these are stand-ins: a
    difference refutes nothing.  Tables that one side alone reads differ, as any numbers, from all
    that the other one has: these are stand-ins unless both sides are seen to differ with those of
    the programs.

    Example: ranks that each take half of a table of cosines, the second half of which is the first
    once more: "is taken for any numbers; with those that the programs have, both sides agree".
    """
    plan = result.plan
    if not plan.tables or all(c.holds for c in result.conclusions):
        return plan
    both = _read([plan.single]) & _read(plan.programs)
    own = sorted(plan.tables.keys() - both)
    seen = _seen(plan, plan.tables) if fits(plan) else _seen_at_true_sizes(result)
    if all(seen):
        text = "is taken for any numbers; with those that the programs have, both sides agree"
        return _with_standins(plan, sorted(plan.tables), text)
    if own and False not in seen:
        return _with_standins(plan, own, "is taken for any numbers, and one side alone has it")
    return replace(plan, numbers=plan.tables) if False in seen else plan


def _seen_at_true_sizes(result: Partition) -> list[bool | None]:
    """`_seen` of a plan that is too large for all of its ranks to be run one by one: ranks that are
    seen to compute the same are run once."""
    if result.faults or result.single.unrolled.unsupported or result.parallel.unrolled.unsupported:
        return [None]
    plan = replace(result.plan, numbers=result.plan.tables)
    made: list[bool | None] = []
    hides = [WIDE + ONES] if hiding(plan.single) else []
    for seed in [*range(WIDE, WIDE + AT_TRUE_SIZES), *hides]:
        both = with_numbers(plan, result.derived, result.parallel.unrolled, seed)
        if not both.failure and not both.undefined and both.comparisons:
            made.append(not both.differs)
        if both.failure or both.differs:
            break
    return made or [None]


def disagreeing(result: Partition, contents: Mapping[str, Any], prefix: str) -> set[str] | None:
    """Kinds of rows that begin with ``prefix`` in which both sides differ at true sizes, with the
    tables that the programs have; None: that cannot be seen.

    Example: of "loss combination 0", every rank by itself, and "loss combination 1", the mean over
    four replicas of two rows each, the first.
    """
    rows = tuple(row for row in result.plan.expectations if row.kind.startswith(prefix))
    plan = replace(result.plan, numbers=dict(contents), expectations=rows)
    if result.faults or result.single.unrolled.unsupported or result.parallel.unrolled.unsupported:
        return None
    both = with_numbers(plan, result.derived, result.parallel.unrolled, WIDE)
    if both.failure or both.undefined or not both.comparisons:
        return None
    return {comparison.demand.kind for comparison in both.comparisons if comparison.differs}


def _read(programs: Sequence[Program]) -> set[str]:
    """Inputs of constants that an operator of some program reads."""
    names: set[str] = set()
    for program in programs:
        for body in program.bodies:
            read = {*body.results, *(v for op in body.ops for v in op.inputs)}
            shards = (program.shards[n] for value, n in body.shards if value in read)
            names |= {shard.name for shard in shards if shard.kind == CONSTANT}
    return names


def agree(plan: Plan, contents: Mapping[str, Any]) -> bool:
    """Whether both sides are seen to compute the same with the tables that the programs have.

    Example: the mean of two losses of rows, each with half of a table of positions, and the loss of
    all rows.
    """
    return fits(plan) and all(_seen(plan, contents))


def _seen(plan: Plan, contents: Mapping[str, Any]) -> list[bool | None]:
    """Whether both sides agree on random inputs, again and again; None: that cannot be seen."""
    made = [agree_on(plan, contents, seed, scale) for seed, scale in enumerate(SCALES)]
    if False not in made:
        turns = [every_id(plan.single, turn) for turn in range(TURNS)]
        turns += [zeros_and_ones(plan.single, turn) for turn in range(TURNS)]
        made += [
            agree_on(plan, {**contents, **own}, turn % TURNS)
            for turn, own in enumerate(turns)
            if own
        ]
    return [agree for agree in made if agree is not None] or [None]


def _with_standins(plan: Plan, names: Iterable[str], text: str) -> Plan:
    assumed = (Assumption("stand-in", name, "", f"{name} {text}") for name in names)
    return replace(plan, assumed=(*plan.assumed, *assumed))

"""Which of two placements of fused inputs is meant, where both fit: numbers decide.

A weight whose parts (q, k, v) are interleaved has the shape of a contiguous shard.  Both programs
are run with either placement: the one under which they agree is taken, and that is an assumption
which names the other.  Where they differ with each of them, they differ whatever is meant, and the
first one is as good as the other to show it.  Where that cannot be seen, a difference that is
found later may come from the placement: it is then a stand-in, and nothing is refuted under it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any, Final

from shardproof.engine.plan.assumption import Assumption, Kind
from shardproof.engine.plan.ir import Plan
from shardproof.engine.reference_runtime.agreement import agree_on
from shardproof.engine.reference_runtime.compare import fits
from shardproof.engine.schedule.unroll import unroll
from shardproof.engine.simulation.simulate import simulate
from shardproof.engine.specification.gradients import derive
from shardproof.frontends.fx.inputs import Inputs, Open

#: Positions of an axis beyond the fewest, so that attention over few keys is no mean of them.
MORE: Final = 1
#: Kinds of pieces, of inputs and of outputs, of which each may be contiguous by itself.
MOST_KINDS: Final = 4
#: On how many random inputs sides have to agree.
TIMES: Final = 2

Pieces = tuple[object, ...]
Choice = frozenset[Pieces]
Made = tuple[Plan, Inputs, Mapping[str, Any]]


def chosen(make: Callable[[Choice], Made]) -> Plan:
    """The plan with the placement of fused inputs that numbers pick; ``make``: the plan in which
    inputs and outputs of these kinds of pieces are contiguous shards, all others in pieces, and the
    numbers that its constants have.

    Example: a fused weight [3072, 64] of which rank 0 has [1536, 64]: where only the plan with
    1024, 256 and 256 rows of q, k and v gives the single device's numbers, it is that, with the
    assumption "taken as ...; ... fits, too (numbers agree so: state one in a relations file)".
    """
    fused, inputs, tables = make(frozenset())
    if not inputs.open:
        return fused
    seen = []
    for plain in _choices(inputs.open.values()):
        plan, _, _ = make(plain) if plain else (fused, inputs, tables)
        seen.append(agrees(plan, tables))
        if seen[-1]:
            return _with_assumptions(plan, inputs.open, plain, "inferred", "numbers agree so")
    if None in seen:
        why = "that numbers agree with neither may have other reasons"
        return _with_assumptions(fused, inputs.open, frozenset(), "stand-in", why)
    why = "the sides differ under it, too"
    return _with_assumptions(fused, inputs.open, frozenset(), "inferred", why)


def _choices(inputs: Iterable[Open]) -> Iterator[Choice]:
    """Which kinds of pieces are contiguous: none, single ones, and so on; of many kinds none or
    all."""
    kinds = tuple(dict.fromkeys(one.kind for one in inputs))
    counts = range(len(kinds) + 1) if len(kinds) <= MOST_KINDS else (0, len(kinds))
    for count in counts:
        yield from map(frozenset, combinations(kinds, count))


def agrees(plan: Plan, tables: Mapping[str, Any]) -> bool | None:
    """Whether both sides give the same numbers; None: that cannot be seen.  A small plan is run as
    it is, with the numbers of its constants, a larger one at small size.

    Example: an MLP under tensor parallelism whose weights are divided as its ranks compute does;
    with a fused weight taken as contiguous that is interleaved it does not.
    """
    if fits(plan):
        seen = [agree_on(plan, tables, seed) for seed in range(TIMES)]
        return None if None in seen else all(seen)
    single = unroll([plan.single], 1)
    parallel = unroll(plan.programs, plan.microbatches)
    simulation = simulate(plan, derive(plan, single), parallel, more=MORE)
    if simulation.failure or simulation.undefined or (simulation.differs and tables):
        return None
    return not simulation.differs


def _with_assumptions(
    plan: Plan, inputs: Mapping[str, Open], plain: Choice, kind: Kind, why: str
) -> Plan:
    """The plan with what is assumed of its open inputs."""
    assumptions = []
    for one in inputs.values():
        meant, other = one.words, one.shard
        if one.kind in plain:
            meant, other = other, meant
        fit = f"{other} fits, too ({why}: state one in a relations file)"
        text = f"{one.what} {one.name} is taken as {meant}; {fit}"
        assumptions.append(Assumption(kind, one.name, "", text))
    return replace(plan, assumed=(*plan.assumed, *assumptions))

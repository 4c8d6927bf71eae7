"""Which of several placements of inputs and outputs is meant, where they fit: numbers decide.

A weight whose parts (q, k, v) are interleaved has the shape of a contiguous shard; on a mesh of two
axes of one size a shard may be divided over either.  Both programs
are run with each placement: the one under which they agree is taken, and that is an assumption
which names the other.  Where they differ with each of them, they differ whatever is meant, and the
one with which fewest results, and values on the way to them, differ shows it.  Where that cannot be
seen, a difference that is found later may come from the placement: it is then a stand-in, and
nothing is refuted under it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice, product
from math import prod
from typing import Any, Final

from shardproof.engine.plan import assumption
from shardproof.engine.plan.assumption import Assumption
from shardproof.engine.plan.ir import Plan
from shardproof.engine.reference_runtime.agreement import differing as results_differing
from shardproof.engine.reference_runtime.agreement import unlike
from shardproof.engine.reference_runtime.compare import fits
from shardproof.engine.schedule.unroll import unroll
from shardproof.engine.simulation.simulate import simulate
from shardproof.engine.specification.gradients import derive
from shardproof.frontends.fx.inputs import Inputs, Open
from shardproof.frontends.fx.layouts import Choice, Kind, layer, picked

#: Positions of an axis beyond the fewest, so that attention over few keys is no mean of them.
MORE: Final = 1
#: How many choices are tried at most, of how many they are the simplest, and how many nodes are
#: lowered for more of them.
MOST_TRIED: Final = 32
MOST_LISTED: Final = 1 << 12
MOST_LOWERED: Final = 60_000
#: On how many random inputs sides have to agree.
TIMES: Final = 2

Made = tuple[Plan, Inputs, Mapping[str, Any]]


def chosen(make: Callable[[Choice], Made], nodes: int) -> Plan:
    """The plan with the placements of inputs that numbers pick; ``make``: the plan with a choice of
    those of which several fit (of all others the first ones), and the numbers that its constants
    have; ``nodes``: how many the graphs have, by which the number of choices is bounded.

    Example: a fused weight [3072, 64] of which rank 0 has [1536, 64]: where only the plan with
    1024, 256 and 256 rows of q, k and v gives the single device's numbers, it is that, with the
    assumption "taken as ...; ... fits, too (numbers agree so: state one in a relations file)".
    """
    first, inputs, tables = make({})
    if not inputs.open:
        return first
    choices, every = _choices(inputs.open, max(MOST_TRIED, MOST_LOWERED // nodes))
    seen: list[int | None] = [] if every else [None]
    fewest: list[tuple[Plan, Inputs, Choice]] = []
    for choice in choices:
        plan, own, _ = make(choice) if choice else (first, inputs, tables)
        count = differing(plan, tables)
        seen.append(count)
        if count == 0:
            return _with_assumptions(plan, own.open, choice, "inferred", "numbers agree so")
        if count is not None and count <= min(n for n in seen if n is not None):
            fewest = [*(fewest if seen.count(count) > 1 else ()), (plan, own, choice)]
    if None in seen or not fewest:
        why = "that numbers agree with none may have other reasons"
        return _with_assumptions(first, inputs.open, {}, "stand-in", why)
    plan, own, choice = _likest(fewest, tables)
    why = "the sides differ under it, too"
    return _with_assumptions(plan, own.open, choice, "inferred", why)


def _likest(
    made: Sequence[tuple[Plan, Inputs, Choice]], tables: Mapping[str, Any]
) -> tuple[Plan, Inputs, Choice]:
    """Of plans in which as many results differ the one whose ranks compute most of what the single
    device computes on the way; the first one where that cannot be seen.

    Example: behind a mean that is a sum all results differ, whatever the placement of the weights:
    with the right one all values before it are the single device's.
    """
    if len(made) == 1 or not all(fits(plan) for plan, _, _ in made):
        return made[0]
    counts = [unlike(plan, tables, 0) for plan, _, _ in made]
    known = [n for n in counts if n is not None]
    return made[counts.index(min(known))] if known else made[0]


def _choices(inputs: Sequence[Open], most: int) -> tuple[list[Choice], bool]:
    """What may be taken of what fits, up to ``most`` choices, and whether that is all: what is of
    one kind alike first, with as few others than the first ones as there can be, then each input by
    itself."""
    kinds = {one.kind: len(one.options) for one in inputs}
    single = {(*one.kind, layer(one.name)): len(one.options) for one in inputs}
    every = prod(single.values()) <= most
    made = _combinations(kinds, most)
    return [*made, *(_combinations(single, most) if every else ())], every


def _combinations(options: Mapping[Kind, int], most: int) -> list[Choice]:
    some = islice(product(*map(range, options.values())), MOST_LISTED)
    ordered = sorted(some, key=lambda numbers: sum(n > 0 for n in numbers))
    return [
        {kind: n for kind, n in zip(options, numbers, strict=True) if n}
        for numbers in ordered[:most]
    ]


def differing(plan: Plan, tables: Mapping[str, Any]) -> int | None:
    """How many results of the sides differ; None: that cannot be seen.  A small plan is run as it
    is, with the numbers of its constants, a larger one at small size.

    Example: 0 of an MLP under tensor parallelism whose weights are divided as its ranks compute;
    with a fused weight taken as contiguous that is interleaved it is 1, its output.
    """
    if fits(plan):
        seen = [results_differing(plan, tables, seed) for seed in range(TIMES)]
        return None if None in seen else max(n for n in seen if n is not None)
    single = unroll([plan.single], 1)
    parallel = unroll(plan.programs, plan.microbatches)
    simulation = simulate(plan, derive(plan, single), parallel, more=MORE)
    if simulation.failure or simulation.undefined or (simulation.differs and tables):
        return None
    count = sum(c.differs and c.demand.required for c in simulation.comparisons)
    return max(count, 1) if simulation.differs else 0


def _with_assumptions(
    plan: Plan, inputs: Sequence[Open], choice: Choice, kind: assumption.Kind, why: str
) -> Plan:
    """The plan with what is assumed of its open inputs and outputs."""
    assumptions = []
    for one in inputs:
        number = picked(choice, one.kind, one.name) % len(one.options)
        others = [option for n, option in enumerate(one.options) if n != number]
        fit = f"{' and '.join(others)} fit{'s' if len(others) == 1 else ''}, too"
        text = f"{one.what} {one.name} is taken as {one.options[number]}; {fit}"
        hint = f"({why}: state one in a relations file)"
        assumptions.append(Assumption(kind, one.name, "", f"{text} {hint}"))
    return replace(plan, assumed=(*plan.assumed, *assumptions))

"""How far both sides of a plan agree on numbers, every rank by itself at the plan's sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.engine.plan.ir import Plan, Program
from shardproof.engine.reference_runtime.compare import Undefined, errors
from shardproof.engine.reference_runtime.exchange import Stuck
from shardproof.engine.reference_runtime.lots import Lot, exact
from shardproof.engine.reference_runtime.runtime import Crew, crews, execute, single_crew
from shardproof.engine.reference_runtime.values import Values

#: Relative differences up to this one are rounding.
TOLERANCE: Final = 1e-6
#: Numbers that are this close, relative to numbers above 1, are one.
SAME: Final = 1e-12


def agree_on(plan: Plan, contents: Mapping[str, Any], seed: int, scale: int = 1) -> bool | None:
    """Whether both sides compute the same with these numbers of some inputs, and random numbers of
    the others; None: they are no numbers.

    Example: with a table of slopes [4], and weights that are drawn.
    """
    count = differing(plan, contents, seed, scale)
    return None if count is None else count == 0


def differing(plan: Plan, contents: Mapping[str, Any], seed: int, scale: int = 1) -> int | None:
    """How many results differ with these numbers of some inputs, and random numbers of the others;
    None: they are no numbers.

    Example: 0 of ranks that agree with the single device; with a table of slopes [4], and weights
    that are drawn, 1 where the gradient of the table alone is another.
    """
    try:
        every = errors(plan, plan, _values(plan, contents, seed, scale), together=False)
    except (Undefined, Unsupported, ShapeMismatch, Stuck):
        return None
    return sum(not error <= TOLERANCE for error, _ in every) if every else 1


def unlike(plan: Plan, contents: Mapping[str, Any], seed: int) -> int | None:
    """How many of the values that ranks compute have an entry that no single-device value has,
    with numbers as those of `differing`; None: it cannot be run.

    Example: 1 of two ranks that leave out the sum of what both have a part of: the part of each of
    them is one anyway, and what is made of it is another one; with its weights divided the wrong
    way round more of them.
    """
    whole = replace(
        plan, single=_kept(plan.single), programs=tuple(_kept(own) for own in plan.programs)
    )
    values = _values(whole, contents, seed, 1)
    single, many = single_crew(whole, values), crews(whole, values, together=False, original=whole)
    try:
        with np.errstate(all="ignore"):
            execute([single])
            execute(many)
    except (Unsupported, ShapeMismatch, Stuck):
        return None
    known = np.unique(np.concatenate([[0.0], *map(np.ravel, _computed(single))]))
    return sum(not _among(x, known) for crew in many for x in _computed(crew))


def _values(plan: Plan, contents: Mapping[str, Any], seed: int, scale: int) -> Values:
    lots = {name: exact(np.asarray(x, dtype=float)) for name, x in contents.items()}
    return Values(plan, np.random.default_rng(seed), scale=scale, lots=lots)


def _kept(program: Program) -> Program:
    """A program that keeps all that its operators give."""
    bodies = [
        replace(body, results=tuple(v for op in body.ops for v in op.outputs if v >= 0))
        for body in program.bodies
    ]
    return replace(program, bodies=tuple(bodies))


def _computed(crew: Crew[Lot]) -> list[Any]:
    """All numbers that a program's ranks have computed, by value."""
    return [x.data for calls in crew.results.values() for x in calls]


def _among(x: Any, known: Any) -> bool:
    """Whether all entries are some of those known, which are in order, up to rounding."""
    after = np.minimum(np.searchsorted(known, x), len(known) - 1)
    before = np.maximum(after - 1, 0)
    off = np.minimum(np.abs(known[after] - x), np.abs(known[before] - x))
    return bool((off <= SAME * np.maximum(np.abs(x), 1.0)).all())

"""The configurations of both solvers that a text may be given to, in the order of their cost.

A configuration is raced only on the rungs that it is of use for, and only against a text that has
been open for ``after`` seconds: nearly every text is decided by the first one before that.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardproof.solvers.answers import SolverName
from shardproof.solvers.smtlib import Rung

RACE_AFTER = 0.2
"""Seconds that the first configuration has for itself before the other solver is asked as well: of
the 208 texts of a 671B pair, all of which Z3 decides, 24 take it more than 0.05 s on a busy machine
and 9 more than 0.2 s."""

STUBBORN_AFTER = 1.0
"""Seconds after which a text counts as stubborn: other methods are tried beside the usual ones."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """A solver with options that a text may be given to. ``options``: the solver's own, except
    "tactics" (Z3): tactics, one after the other, each with its parameters behind commas, in place
    of the solver that Z3 has for the logic, and "tactics for functions": those for a text with
    uninterpreted functions; "multiply" before them is
    `worker.multiplied_out`; ``warm``: whether its child is kept for the next text.

    Example: ``Configuration("cvc5", "cvc5", 0.2)``, which is asked once Z3 has taken 200 ms.
    """

    name: str
    solver: SolverName
    after: float = 0.0
    rungs: tuple[Rung, ...] = ("linear", "nonlinear")
    warm: bool = True
    options: tuple[tuple[str, str], ...] = ()


#: Z3's solver for QF_UFNRA interleaves cuts and case splits; nlsat decides by cylindrical
#: decomposition from the start, cvc5's coverings likewise.  Z3's nlsat gives up ("unknown") where
#: functions are left after preprocessing; a text that has any is multiplied out instead, first goal
#: by goal, with the sums that both sides of a goal share as letters (the backward of a norm over 16
#: features, 96 goals, is decided in a second so, and not otherwise in 30), then whole, for Z3's
#: usual procedure: entries of gradients are sums of thousands of products.
CONFIGURATIONS = (
    Configuration("z3", "z3"),
    Configuration("cvc5", "cvc5", RACE_AFTER),
    Configuration(
        "z3 nlsat",
        "z3",
        STUBBORN_AFTER,
        ("nonlinear",),
        warm=False,
        options=(
            ("tactics", "simplify purify-arith qfnra-nlsat"),
            ("tactics for functions", "multiply simplify,som=true,som_blowup=1000000 smt"),
        ),
    ),
    Configuration(
        "cvc5 coverings",
        "cvc5",
        STUBBORN_AFTER,
        ("nonlinear",),
        warm=False,
        options=(("nl-cov", "true"), ("nl-ext", "none")),
    ),
)

"""From obligations to verdicts.

An obligation is a list of equalities of terms under hypotheses. This folder writes it down as
SMT-LIB 2 text (`smtlib`), keeps one warm child process per solver that reads such text under
limits of memory, time and resources (`worker`, `child`), and asks Z3 and cvc5 in the order and
combination that costs least (`portfolio`). Nothing here knows what the terms mean, and neither
solver is ever imported into the calling process.
"""

from shardproof.solvers.answers import (
    Answer,
    Query,
    Solved,
    SolverDisagreement,
    SolverUnavailable,
    Verdict,
)
from shardproof.solvers.portfolio import Mode, Portfolio
from shardproof.solvers.smtlib import Rung, emit, outline

__all__ = [
    "Answer",
    "Mode",
    "Portfolio",
    "Query",
    "Rung",
    "Solved",
    "SolverDisagreement",
    "SolverUnavailable",
    "Verdict",
    "emit",
    "outline",
]

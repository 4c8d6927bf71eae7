"""What goes into the solvers and what comes out, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, Self, TypeAlias

from shardproof.solvers.smtlib import Equality, Rung, emit, has_products

SolverName: TypeAlias = Literal["z3", "cvc5"]
Verdict: TypeAlias = Literal["unsat", "sat", "unknown", "timeout", "memory", "crashed"]

_NO_MODEL: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Query:
    """One obligation as text, under the key its verdict is filed by.

    Example: of the goal x + y = y + x, a linear text, and no nonlinear one, since nothing in it is
    a product.

    ``nonlinear_text`` is empty when the linear text abstracts from nothing, so that "sat" there
    is final.
    """

    key: str
    linear_text: str
    nonlinear_text: str

    @classmethod
    def of(cls, key: str, goals: Sequence[Equality], hypotheses: Sequence[Equality] = ()) -> Self:
        """Emit both rungs. Raises ValueError as :func:`solvers.smtlib.emit` does."""
        linear = emit(goals, hypotheses, "linear")
        exact = not has_products(linear)
        return cls(key, linear, "" if exact else emit(goals, hypotheses, "nonlinear"))


@dataclass(frozen=True, slots=True)
class Answer:
    """What one solver said about one text.

    Example: ``Answer("sat", "cvc5", "1.4.2", 0.02, 37.6, {"x": "0", "y": "1"})`` to the question
    whether x is y.

    "unsat" and "sat" are decisions. "timeout" is a wall clock or a resource limit, "memory" the
    memory limit, "crashed" an error of the solver or a text it cannot read, "unknown" a solver
    that gave up; ``reason`` says more about these four. ``model`` holds, when sat on the last
    rung, the values of the symbols as rationals ("-3/2"), or as the solver writes an irrational.
    ``seconds`` is the time in the solver, parsing included; ``rss_mib`` the most its child held
    resident meanwhile. ``configuration`` is one of :mod:`solvers.configurations`, by name;
    ``proof`` the proof in CPC where one was asked for and the verdict is "unsat".
    """

    verdict: Verdict
    solver: SolverName
    version: str
    seconds: float
    rss_mib: float
    model: Mapping[str, str] = field(default_factory=lambda: _NO_MODEL)
    reason: str = ""
    configuration: str = ""
    proof: str = ""

    @property
    def decided(self) -> bool:
        """Whether the solver decided the text."""
        return self.verdict in ("unsat", "sat")


@dataclass(frozen=True, slots=True)
class Solved:
    """The verdict on a query: the rung it was reached on and every answer on the way to it.

    Example: ``Solved("unsat", "linear", (answer,))``, the obligation holds;
    ``Solved("sat", "nonlinear", ...)`` has a ``model``.

    "unsat" proves the obligation. "sat" is a counterexample to it, up to uninterpreted functions.
    """

    verdict: Verdict
    rung: Rung
    answers: tuple[Answer, ...]

    @property
    def model(self) -> Mapping[str, str]:
        """The counterexample of the first solver that found one; empty unless sat."""
        return next((a.model for a in self.answers if a.model), _NO_MODEL)

    @property
    def reason(self) -> str:
        """Why there is no decision, in the solvers' words; empty if there is one."""
        if self.verdict in ("unsat", "sat"):
            return ""
        return "; ".join(
            f"{a.configuration or a.solver}: {a.reason or a.verdict}" for a in self.answers
        )

    @property
    def short_of_memory(self) -> bool:
        """Whether more memory might decide it."""
        decided = self.verdict in ("unsat", "sat")
        return not decided and any(a.verdict == "memory" for a in self.answers)


class SolverDisagreement(RuntimeError):
    """One solver proved what the other refuted: a defect in one of them, so the run stops."""

    def __init__(self, key: str, rung: Rung, answers: Sequence[Answer]) -> None:
        self.key, self.rung, self.answers = key, rung, tuple(answers)
        verdicts = ", ".join(f"{a.solver} {a.version} says {a.verdict}" for a in answers)
        super().__init__(f"the solvers disagree on {key} ({rung} rung): {verdicts}")


class SolverUnavailable(RuntimeError):
    """A solver's child did not start: it is not installed, or the memory limit is too small."""

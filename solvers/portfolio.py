"""The portfolio: which solver is asked what, when, and what their answers amount to.

The ladder asks the linear rung first, where products are uninterpreted: "unsat" there is a
proof. Anything else goes on to the nonlinear rung, whose word is the last. Z3 answers alone as
long as it is quick; a text that takes it longer is given to cvc5 as well, a stubborn one to further
configurations of both (`solvers.configurations`), and the first decision wins.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterable, Iterator
from math import inf
from typing import Literal, TypeAlias, get_args

from shardproof.engine.storage.closing import Closing
from shardproof.solvers.answers import (
    Answer,
    Query,
    Solved,
    SolverDisagreement,
    SolverName,
    Verdict,
)
from shardproof.solvers.child import Child
from shardproof.solvers.configurations import CONFIGURATIONS, Configuration
from shardproof.solvers.smtlib import Rung

Mode: TypeAlias = Literal["portfolio", "z3", "cvc5", "both"]

RESOURCES_PER_SECOND: dict[SolverName, int] = {"z3": 4_000_000, "cvc5": 400_000}
"""The solver's own resource units for one second of ``timeout``: below what a machine of today
gets through on most texts, so that the repeatable limit is reached before the wall clock."""

SAMPLE_EVERY = 0.1
"""Seconds between two looks at the memory of a child at work."""

RETIRE_SHARE = 0.5
"""A child that keeps this share of its memory limit after an answer is replaced."""

_USUAL: dict[SolverName, Configuration] = {"z3": CONFIGURATIONS[0], "cvc5": CONFIGURATIONS[1]}
_ORDER = {configuration.name: place for place, configuration in enumerate(CONFIGURATIONS)}


def _due(first: Child, waiting: list[tuple[float, Configuration]]) -> float:
    """When the next configuration is asked: so many seconds after the first one was at work, for
    starting a solver may take longer than most texts do."""
    after = waiting[0][0] if waiting else inf
    return first.asked_at + after if after else 0.0


class Portfolio(Closing):
    """Solver children behind one question: does this text have a model?

    Example: ``with Portfolio() as portfolio: portfolio.solve(Query.of("a", goals)).verdict`` is
    "unsat" for the goal x + y = y + x.

    ``timeout`` is in seconds of wall clock per text and solver, and sets the resource limits in
    proportion; a solver is killed for its clock no sooner than `solvers.child` says.
    ``memory_limit_bytes`` bounds each child's address space (at least some 300 MiB). ``seed`` goes
    to every random source of the solvers. Children start when first needed and end with the
    context. Not for use from several threads at once.
    """

    def __init__(
        self,
        mode: Mode = "portfolio",
        timeout: float = 30.0,
        memory_limit_bytes: int = 2 << 30,
        seed: int = 1,
    ) -> None:
        if mode not in get_args(Mode):
            raise ValueError(f"solver mode {mode!r} is none of {', '.join(get_args(Mode))}")
        if timeout <= 0 or memory_limit_bytes <= 0:
            raise ValueError(
                f"limits must be positive: timeout {timeout} s, memory {memory_limit_bytes} bytes"
            )
        self.mode = mode
        self.timeout = timeout
        self.memory_limit_bytes = memory_limit_bytes
        self.seed = seed
        self._children: dict[str, Child] = {}

    def open(self) -> None:
        """Start the child that is asked first."""
        self._child(_USUAL["cvc5" if self.mode == "cvc5" else "z3"])

    def close(self) -> None:
        """End the children."""
        while self._children:
            self._children.popitem()[1].kill()

    def solve_batch(self, queries: Iterable[Query]) -> dict[str, Solved]:
        """The verdict on every query, by its key.

        Raises ValueError for a key given twice, SolverDisagreement in mode "both", and
        SolverUnavailable when a solver cannot be started.
        """
        solved: dict[str, Solved] = {}
        for key, outcome in self.solve_each(queries):
            if key in solved:
                raise ValueError(f"two queries of one batch have the key {key!r}")
            solved[key] = outcome
        return solved

    def solve_each(self, queries: Iterable[Query]) -> Iterator[tuple[str, Solved]]:
        """Keys and verdicts in the order of the queries, each as soon as it is there."""
        for query in queries:
            yield query.key, self.solve(query)

    def solve(self, query: Query) -> Solved:
        """The verdict on one query; raises as :meth:`solve_batch` does."""
        rungs: list[tuple[Rung, str]] = [("linear", query.linear_text)]
        if query.nonlinear_text:
            rungs.append(("nonlinear", query.nonlinear_text))
        answers: list[Answer] = []
        for rung, text in rungs:
            fresh = self._solve_text(text, rung, want_model=rung == rungs[-1][0])
            answers += fresh
            if {"unsat", "sat"} <= {a.verdict for a in fresh}:
                raise SolverDisagreement(query.key, rung, fresh)
            verdict = self._conclude(fresh)
            if verdict == "unsat":
                break
        return Solved(verdict, rung, tuple(answers))

    def prove(self, text: str) -> Answer:
        """What cvc5 says about one text, with its proof if that is "unsat"."""
        child = self._child(_USUAL["cvc5"])
        limit = max(1, int(self.timeout * RESOURCES_PER_SECOND["cvc5"]))
        child.ask(text, limit, self.timeout, want_proof=True)
        while True:
            for _, answer in self._wait([child], inf):
                return answer

    def _conclude(self, answers: list[Answer]) -> Verdict:
        """What the answers to one text amount to; in mode "both", decided only if both decided."""
        decided = [a for a in answers if a.decided]
        agreed = self.mode != "both" or {a.solver for a in decided} == {"z3", "cvc5"}
        if decided and agreed:
            return decided[0].verdict
        return next(a.verdict for a in answers if not a.decided)

    def _contestants(self, rung: Rung) -> list[tuple[float, Configuration]]:
        """Who may be asked about a text, by the seconds after which: the cheapest at once."""
        chosen = [
            c
            for c in CONFIGURATIONS
            if rung in c.rungs
            and self.mode in ("portfolio", "both", c.solver)
            # A child for one text alone takes longer to start than a shorter timeout gives it.
            and (c.warm or self.timeout > c.after)
        ]
        if self.mode == "both":
            return [(0.0 if c.warm else c.after, c) for c in chosen]
        return [(0.0 if c is chosen[0] else c.after, c) for c in chosen]

    def _solve_text(self, text: str, rung: Rung, want_model: bool) -> list[Answer]:
        """Ask the solvers of this mode about one text until it is decided or all have spoken."""
        (_, cheapest), *waiting = self._contestants(rung)
        first = self._ask(cheapest, text, want_model)
        racing, answers = [first], list[Answer]()
        while racing or waiting:
            while waiting and (not racing or time.perf_counter() >= _due(first, waiting)):
                racing.append(self._ask(waiting.pop(0)[1], text, want_model))
            for child, answer in self._wait(racing, _due(first, waiting)):
                racing.remove(child)
                answers.append(answer)
                if not child.configuration.warm:
                    self._discard(child)
            done = self._done(answers)
            for loser in [c for c in racing if c.solver in done]:
                racing.remove(loser)
                if not loser.withdraw() or not loser.configuration.warm:
                    self._discard(loser)
            waiting = [entry for entry in waiting if entry[1].solver not in done]
        return sorted(answers, key=lambda answer: _ORDER[answer.configuration])

    def _done(self, answers: list[Answer]) -> set[SolverName]:
        """The solvers of which nothing more is wanted."""
        decided: set[SolverName] = {a.solver for a in answers if a.decided}
        return decided if self.mode == "both" or not decided else {"z3", "cvc5"}

    def _ask(self, configuration: Configuration, text: str, want_model: bool) -> Child:
        child = self._child(configuration)
        limit = max(1, int(self.timeout * RESOURCES_PER_SECOND[configuration.solver]))
        child.ask(text, limit, self.timeout, want_model=want_model)
        return child

    def _child(self, configuration: Configuration) -> Child:
        """A child that is free, in place of one that died or was left at work by an error."""
        child = self._children.get(configuration.name)
        if child is not None and (child.busy or not child.alive):
            self._discard(child)
            child = None
        if child is None:
            child = Child(configuration, self.seed, self.memory_limit_bytes)
            self._children[configuration.name] = child
        return child

    def _discard(self, child: Child) -> None:
        child.kill()
        if self._children.get(child.configuration.name) is child:
            del self._children[child.configuration.name]

    def _wait(self, racing: list[Child], until: float) -> list[tuple[Child, Answer]]:
        """Move bytes until an answer is there, a child is over time, or ``until`` is reached."""
        poll = select.poll()
        for child in racing:
            poll.register(child.reply_fd, select.POLLIN)
            if child.wants_write:
                poll.register(child.question_fd, select.POLLOUT)
        deadlines = [child.deadline for child in racing]
        now = time.perf_counter()
        pause = min([*deadlines, now + SAMPLE_EVERY, until]) - now
        ready = {fd for fd, _ in poll.poll(max(0.0, pause) * 1000)}
        answers: list[tuple[Child, Answer]] = []
        for child in racing:
            if child.question_fd in ready:
                child.transmit()
            answer = child.receive() if child.reply_fd in ready else None
            if not ready:
                child.sample()
            if answer is None and time.perf_counter() >= child.deadline:
                answer = child.expire()
            if answer is not None:
                answers.append((child, answer))
                self._retire(child, answer)
        return answers

    def _retire(self, child: Child, answer: Answer) -> None:
        """Replace a child that is dead, has run out of memory, or keeps too much of it."""
        heavy = child.rss_bytes > RETIRE_SHARE * self.memory_limit_bytes
        if heavy or not child.alive or answer.verdict == "memory":
            self._discard(child)

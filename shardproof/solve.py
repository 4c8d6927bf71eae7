"""Templates to verdicts: the distinct texts, then wider cuts for what is not proved.

A template that no rung proves is tried again with its cut moved away, for every live stage that
has it: intermediate lineages are guesses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from cluster.cache import VerdictCache
from cluster.execute import Counts, execute
from cluster.ledger import Ledger, text_key
from cluster.settings import Settings
from engine.errors import ShapeMismatch, Unsupported
from engine.obligation import Obligation
from partition.partition import Partition, Stage, widened
from solvers import Query, Solved

#: How far a cut is moved away from an operator whose template is not proved.
WIDEST = 2


@dataclass(slots=True)
class Answers:
    """``texts``: the distinct texts (linear rung, nonlinear rung), by number; ``text_of``: template
    -> text; ``solved``: text -> verdict; ``wider``: template -> verdict with a wider cut."""

    texts: list[tuple[str, str]] = field(default_factory=list)
    text_of: list[int] = field(default_factory=list)
    solved: dict[int, Solved] = field(default_factory=dict)
    wider: dict[int, Solved] = field(default_factory=dict)
    cached: int = 0
    solver_peak_mib: float = 0.0

    def proved(self, template: int) -> bool:
        if self.solved[self.text_of[template]].verdict == "unsat":
            return True
        return template in self.wider and self.wider[template].verdict == "unsat"

    def of(self, template: int) -> Solved:
        """The last answer about a template."""
        return self.wider.get(template, self.solved[self.text_of[template]])


class Solving:
    """Solves the templates of a partition; verdicts go to ``ledger`` before they count."""

    def __init__(
        self,
        result: Partition,
        settings: Settings,
        ledger: Ledger,
        cache: VerdictCache | None,
        progress: Callable[[int, int], None],
    ) -> None:
        self.result = result
        self.settings = settings
        self.ledger = ledger
        self.cache = cache
        self.progress = progress
        self.answers = Answers()

    def run(self) -> Answers:
        """Raises the errors of `cluster.execute.execute`."""
        self._templates()
        for steps in range(1, WIDEST + 1):
            self._widen(steps)
        return self.answers

    def hold(self, obligations: Sequence[Obligation]) -> bool:
        """Whether further obligations are all proved."""
        queries = {}
        for obligation in obligations:
            query = Query.of("", obligation.goals)
            key = text_key(query)
            queries[key] = replace(query, key=key)
        solved = self._execute(list(queries.values())) if queries else {}
        return all(answer.verdict == "unsat" for answer in solved.values())

    def _execute(self, queries: list[Query]) -> dict[str, Solved]:
        def told(counts: Counts) -> None:
            self.progress(counts.done, counts.total)

        done = execute(queries, self.settings, self.ledger, self.cache, told)
        self.answers.cached += done.counts.cached
        self.answers.solver_peak_mib = max(self.answers.solver_peak_mib, done.solver_peak_mib)
        return done.solved

    def _templates(self) -> None:
        numbers: dict[tuple[str, str], int] = {}
        for obligation in self.result.templates:
            query = Query.of("", obligation.goals)
            texts = (query.linear_text, query.nonlinear_text)
            self.answers.text_of.append(numbers.setdefault(texts, len(numbers)))
        self.answers.texts = list(numbers)
        queries = [Query(str(i), *texts) for i, texts in enumerate(self.answers.texts)]
        solved = self._execute(queries)
        self.answers.solved = {int(key): answer for key, answer in solved.items()}

    def _widen(self, steps: int) -> None:
        """Try live stages of unproved templates with a wider cut; each of them has to hold."""
        stages: dict[int, list[Stage]] = {}
        for stage in self.result.stages:
            if stage.live and stage.template >= 0 and not self.answers.proved(stage.template):
                stages.setdefault(stage.template, []).append(stage)
        obligations: dict[int, list[Obligation]] = {}
        for template, members in stages.items():
            try:
                obligations[template] = [widened(self.result, s, steps) for s in members]
            except (Unsupported, ShapeMismatch):
                continue
        queries: dict[str, Query] = {}
        keys: dict[int, set[str]] = {}
        for template, wide in obligations.items():
            for obligation in wide:
                query = Query.of("", obligation.goals)
                key = text_key(query)
                queries[key] = replace(query, key=key)
                keys.setdefault(template, set()).add(key)
        solved = self._execute(list(queries.values())) if queries else {}
        for template, members_keys in keys.items():
            found = [solved[key] for key in sorted(members_keys)]
            self.answers.wider[template] = next(
                (s for s in found if s.verdict != "unsat"), found[0]
            )

"""Templates to texts, and texts to verdicts: every distinct one is solved once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from shardproof.cluster.execute import Counts, execute
from shardproof.cluster.settings import Settings
from shardproof.cluster.state_claims import Texts
from shardproof.cluster.verdicts.cache import VerdictCache
from shardproof.cluster.verdicts.ledger import Ledger, text_key
from shardproof.engine.obligations.obligation import Obligation
from shardproof.solvers import Query, Solved


@dataclass(slots=True)
class Answers:
    """``texts``: the distinct texts (linear rung, nonlinear rung), by number; ``text_of``: template
    -> text; ``solved``: text -> verdict."""

    texts: list[Texts] = field(default_factory=list)
    text_of: list[int] = field(default_factory=list)
    solved: dict[int, Solved] = field(default_factory=dict)
    cached: int = 0
    solver_peak_mib: float = 0.0

    def proved(self, template: int) -> bool:
        return self.of(template).verdict == "unsat"

    def of(self, template: int) -> Solved:
        """The answer about a template."""
        return self.solved[self.text_of[template]]


class Solving:
    """Solves templates; verdicts go to ``ledger`` before they count."""

    def __init__(
        self,
        settings: Settings,
        ledger: Ledger,
        cache: VerdictCache | None,
        progress: Callable[[int, int], None],
    ) -> None:
        self.settings = settings
        self.ledger = ledger
        self.cache = cache
        self.progress = progress
        self.answers = Answers()

    def run(self, texts: Sequence[Texts]) -> Answers:
        """Solve every template, given its texts; raises the errors of `cluster.execute.execute`."""
        numbers: dict[Texts, int] = {}
        self.answers.text_of = [numbers.setdefault(text, len(numbers)) for text in texts]
        self.answers.texts = list(numbers)
        queries = [Query(str(i), *texts) for i, texts in enumerate(self.answers.texts)]
        solved = self._execute(queries)
        self.answers.solved = {int(key): answer for key, answer in solved.items()}
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

"""Templates to texts, and texts to verdicts: every distinct one is solved once."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace

from shardproof.cluster.execute import Counts, Execution, execute
from shardproof.cluster.local import SMALL, LocalExecutor
from shardproof.cluster.lower_claims import Texts
from shardproof.cluster.settings import Settings
from shardproof.cluster.verdicts.cache import VerdictCache
from shardproof.cluster.verdicts.events import Events
from shardproof.cluster.verdicts.ledger import Ledger, text_key
from shardproof.engine.obligations.obligation import Obligation
from shardproof.solvers import Query, Solved


@dataclass(slots=True)
class Answers:
    """What the solvers said. ``texts``: the distinct texts (linear rung, nonlinear rung), by
    number; ``text_of``: template -> text; ``solved``: text -> verdict.

    Example: 204 templates of a GPT with 114 distinct texts; ``proved(203)`` asks for the text of
    template 203.
    """

    texts: list[Texts] = field(default_factory=list)
    text_of: list[int] = field(default_factory=list)
    solved: dict[int, Solved] = field(default_factory=dict)
    cached: int = 0
    solver_peak_mib: float = 0.0

    def proved(self, template: int) -> bool:
        """Whether a template's text has no model."""
        return self.of(template).verdict == "unsat"

    def of(self, template: int) -> Solved:
        """The answer about a template."""
        return self.solved[self.text_of[template]]


#: Texts that are waited for before the solvers are asked again.
ROUND = 16


class Ahead:
    """Solves texts in a thread of its own, round after round, while further ones are stated.

    Example: of 204 texts the first 50 are waited for; then rounds of 16 are solved while the others
    are stated.

    Verdicts go to the ledger, where `Solving.run` finds them; what goes wrong, `finish` raises.
    With fewer than `SMALL` texts there is no thread: one solver has done all of them before two
    have started.
    """

    def __init__(
        self,
        round_: Callable[[Sequence[Texts], LocalExecutor], None],
        made: Callable[[], LocalExecutor],
    ) -> None:
        self._round = round_
        self._made = made
        self._given: queue.SimpleQueue[Texts | None] = queue.SimpleQueue()
        self._known: set[Texts] = set()
        self._error: BaseException | None = None
        self._left = False
        self._thread: threading.Thread | None = None

    def give(self, texts: Texts) -> None:
        """Have texts solved."""
        if texts in self._known:
            return
        self._known.add(texts)
        self._given.put(texts)
        if self._thread is None and len(self._known) >= SMALL:
            self._thread = threading.Thread(target=self._work, name="solving ahead", daemon=True)
            self._thread.start()

    def finish(self) -> None:
        """Wait until all that was given is solved."""
        if self._thread is None:
            return
        self._given.put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def leave(self) -> None:
        """Let the thread end by itself with the round that it is in."""
        self._left = True
        self._given.put(None)

    def _work(self) -> None:
        try:
            # Not opened: it starts a solver with the first text that nobody knows the verdict on.
            with closing(self._made()) as executor:
                more = True
                while more and not self._left:
                    lowered: list[Texts] = []
                    while more and (len(lowered) < ROUND or not self._given.empty()):
                        texts = self._given.get()
                        more = texts is not None
                        lowered += [] if texts is None else [texts]
                    self._round(lowered, executor)
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits (a budget, too)
            self._error = error


class Solving:
    """Solves templates; verdicts go to ``ledger`` before they count.

    Example: with the proofs of an earlier run in the cache, ``run(texts)`` starts no solver and
    ``cached`` is 114.
    """

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
        self._ahead: Ahead | None = None

    @contextmanager
    def ahead(self) -> Iterator[Callable[[Texts], None]]:
        """What takes texts to be solved from now on, before `run` is asked for all verdicts.  A run
        on a cluster does not begin before all are there: it plans by them."""
        if self.settings.on_cluster:
            yield lambda texts: None
            return
        events = Events(self.ledger.path.parent)
        ahead = Ahead(self._round, lambda: LocalExecutor(self.settings, events=events))
        try:
            yield ahead.give
        except BaseException:
            ahead.leave()
            raise
        self._ahead = ahead

    def _round(self, texts: Sequence[Texts], executor: LocalExecutor) -> None:
        queries = [Query(str(i), *both) for i, both in enumerate(texts)]
        done = execute(queries, self.settings, self.ledger, self.cache, executor=executor)
        self._count(done)

    def _count(self, done: Execution) -> None:
        self.answers.cached += done.counts.cached
        self.answers.solver_peak_mib = max(self.answers.solver_peak_mib, done.solver_peak_mib)

    def run(
        self, texts: Sequence[Texts], meanwhile: Callable[[Answers], None] = lambda answers: None
    ) -> Answers:
        """Solve every template, given its texts; raises the errors of `cluster.execute.execute`.

        ``meanwhile``: what is done with the answers, of which only the texts are there, while
        solvers are at work on those that were given ahead."""
        numbers: dict[Texts, int] = {}
        self.answers.text_of = [numbers.setdefault(text, len(numbers)) for text in texts]
        self.answers.texts = list(numbers)
        if texts:
            meanwhile(self.answers)
        if self._ahead is not None:
            self._ahead.finish()
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
        def report_counts(counts: Counts) -> None:
            self.progress(counts.done, counts.total)

        done = execute(queries, self.settings, self.ledger, self.cache, report_counts)
        self._count(done)
        return done.solved

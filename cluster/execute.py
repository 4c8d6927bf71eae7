"""From queries to verdicts on record: what is known is not asked, what is asked is recorded.

A query is identified by its texts. Its verdict comes from the ledger of this run (a killed run
resumes), else from the cache of earlier runs, else from the solvers; in every case it is in the
ledger before it counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from shardproof.cluster.local import LocalExecutor, Peaks
from shardproof.cluster.memory import model as needs
from shardproof.cluster.settings import Options, Settings
from shardproof.cluster.verdicts.cache import VerdictCache
from shardproof.cluster.verdicts.events import Events
from shardproof.cluster.verdicts.ledger import Ledger, text_key
from shardproof.engine.system.extras import has
from shardproof.solvers import Query, Solved

LARGE = 5_000
"""From this many queries on, "auto" takes Ray even without a cluster."""


POISONED = "poisoned"
"""The folder of a run with the texts that its solvers died of, by the beginning of their keys."""


class Executor(AbstractContextManager["Executor"], Protocol):
    """Whatever solves queries; it may be used for several rounds before it is closed."""

    options: Options
    peaks: Peaks
    events: Events

    def solve(self, queries: Sequence[Query], on_solved: Callable[[str, Solved], None]) -> None:
        """Report the verdict on each query once, by its key, from the calling thread."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Distinct texts, and where the verdicts on them came from so far.

    Example: ``Counts(20, solved=12, resumed=8)``, a run of 20 texts that was killed after 8
    verdicts and went on.
    """

    total: int = 0
    solved: int = 0
    cached: int = 0
    resumed: int = 0

    @property
    def done(self) -> int:
        """Texts with a verdict."""
        return self.solved + self.cached + self.resumed


@dataclass(frozen=True, slots=True)
class Execution:
    """The verdict on every query, by the query's own key, and what it took.

    Example: ``Execution({"3": Solved("unsat", ...)}, Counts(1, cached=1), 0.0, 0.0)``, one query
    whose proof an earlier run kept; no solver started.

    ``solver_peak_mib`` is the most that one solver child held resident, ``solvers_peak_mib`` the
    sum of such peaks over all workers and solvers.
    """

    solved: dict[str, Solved]
    counts: Counts
    solver_peak_mib: float
    solvers_peak_mib: float


def execute(
    queries: Iterable[Query],
    settings: Settings,
    ledger: Ledger,
    cache: VerdictCache | None = None,
    progress: Callable[[Counts], None] = lambda counts: None,
    executor: Executor | None = None,
) -> Execution:
    """Find the verdict on every query. ``executor`` is one that is open already, to be reused.

    Example: of 20 texts the ledger has 8 and the cache 5; the executor gets 7, and 12 verdicts are
    new in the ledger.

    Raises ValueError for two queries of one key with different texts and for an executor with
    other options than the settings, SolverDisagreement (in mode "both"), SolverUnavailable, and
    the errors of the executor; verdicts that were there by then are in the ledger.
    """
    if executor is not None and executor.options != settings.options:
        raise ValueError(f"the executor has {executor.options}, the settings {settings.options}")
    names, texts = _distinct(queries)
    events = Events(ledger.path.parent)
    round_ = _Round(settings.options, ledger, cache, progress, events, texts)
    missing = round_.recall()
    events.say("round", texts=len(texts), missing=len(missing))
    peaks: Peaks = {}
    if missing:
        opened: AbstractContextManager[Executor]
        if executor is not None:
            opened = nullcontext(executor)
        else:
            known = needs.Needs() if cache is None else needs.recall(cache.folder)
            opened = choose_executor(settings, len(missing), known, events)
        try:
            with opened as chosen:
                chosen.solve(missing, round_.record)
                peaks = dict(chosen.peaks)
        finally:
            round_.keep_needs()
    solved = {name: round_.solved[key] for name, key in names.items()}
    return Execution(
        solved, round_.counts, max(peaks.values(), default=0.0), sum(peaks.values(), start=0.0)
    )


def joined(settings: Settings) -> AbstractContextManager[None]:
    """Use the Ray cluster of a run to the end of the block, where it has one to itself: what it
    does there begins and ends in one session. Raises `cluster.on_ray.pool.ClusterError`.

    Example: around the texts and the verdicts of ``shardproof verify PLAN --address HEAD:6379``;
    with the local executor, or a pool shared with other runs, it does nothing.
    """
    if not settings.own_cluster:
        return nullcontext()
    from shardproof.cluster.on_ray import pool as ray_pool

    return ray_pool.joined(settings)


def choose_executor(
    settings: Settings,
    queries: int,
    known: needs.Needs | None = None,
    events: Events | None = None,
) -> Executor:
    """The executor for this much work, not yet open. Ray is imported only if it is the one.

    Example: 300 queries without an address get the local executor; 6000, where Ray is installed,
    get Ray.
    """
    name = settings.executor
    if name == "auto":
        large = queries > LARGE and has("ray")
        name = "ray" if settings.on_cluster or large else "local"
    if name == "local":
        return LocalExecutor(settings, events=events)
    if settings.pool:
        from shardproof.cluster.on_ray.shared_pool import HubExecutor

        return HubExecutor(settings)
    from shardproof.cluster.on_ray.executor import RayExecutor

    return RayExecutor(settings, known, events)


def _distinct(queries: Iterable[Query]) -> tuple[dict[str, str], dict[str, Query]]:
    """The text key of every query's own key, and one query per text, under the text's key."""
    names: dict[str, str] = {}
    texts: dict[str, Query] = {}
    for query in queries:
        key = text_key(query)
        if names.setdefault(query.key, key) != key:
            raise ValueError(f"two queries with different texts have the key {query.key!r}")
        if key not in texts:
            texts[key] = Query(key, query.linear_text, query.nonlinear_text)
    return names, texts


class _Round:
    """One call of :func:`execute`: verdicts as they come, on record before they count."""

    def __init__(
        self,
        options: Options,
        ledger: Ledger,
        cache: VerdictCache | None,
        progress: Callable[[Counts], None],
        events: Events,
        texts: dict[str, Query],
    ) -> None:
        self.solved: dict[str, Solved] = {}
        self.counts = Counts(len(texts))
        self._options = options
        self._ledger = ledger
        self._cache = cache
        self._progress = progress
        self._events = events
        self._texts = texts
        self._measured: list[tuple[needs.Shape, float]] = []

    def recall(self) -> list[Query]:
        """Take what the ledger and the cache know; returns what nobody knows.

        A verdict that an attempt before took from the cache counts as cached again.
        """
        cached: dict[str, Solved] = {}
        missing: list[Query] = []
        for key, query in self._texts.items():
            solved = self._ledger.get(key, self._options)
            if solved is not None:
                self.solved[key] = solved
            elif self._cache and (known := self._cache.get(key, self._options)):
                cached[key] = known
            else:
                missing.append(query)
        resumed = len(self.solved)
        again = sum(self._ledger.once_cached(key, self._options) for key in self.solved)
        self._ledger.append(cached, self._options, cached=True)
        self.solved.update(cached)
        self.counts = Counts(len(self._texts), cached=len(cached) + again, resumed=resumed - again)
        self._progress(self.counts)
        return missing

    def record(self, key: str, solved: Solved) -> None:
        """Put a new verdict on record, keep it for later runs, and count it."""
        if solved.verdict in ("memory", "crashed"):
            self._save_texts(key, solved)
        self._ledger.append({key: solved}, self._options)
        if self._cache:
            self._cache.put({key: solved}, self._options)
        if peak := max(answer.rss_mib for answer in solved.answers):
            self._measured.append((needs.shape_of(self._texts[key]), peak))
        self.solved[key] = solved
        so_far = self.counts
        self.counts = Counts(
            so_far.total, so_far.solved + 1, cached=so_far.cached, resumed=so_far.resumed
        )
        self._progress(self.counts)

    def keep_needs(self) -> None:
        """Let later runs know what the queries of this one needed."""
        if self._cache and self._measured:
            needs.keep(self._cache.folder, self._measured)

    def _save_texts(self, key: str, solved: Solved) -> None:
        """Leave the texts of a query that ends solvers as SMT-LIB files, to be looked at."""
        folder = self._ledger.path.parent / POISONED
        folder.mkdir(exist_ok=True)
        query = self._texts[key]
        for rung, text in (("linear", query.linear_text), ("nonlinear", query.nonlinear_text)):
            if text:
                (folder / f"{key[:16]}-{rung}.smt2").write_text(text, encoding="utf-8")
        self._events.say(solved.verdict, [key], reason=solved.reason)

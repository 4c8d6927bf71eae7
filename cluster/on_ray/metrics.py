"""What Ray's metrics endpoint says of this driver: counters and histograms, named shardproof_*."""

from __future__ import annotations

from ray.util.metrics import Counter, Gauge, Histogram

from shardproof.solvers import Solved

SECONDS = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0]
MIB = [32.0, 64.0, 96.0, 128.0, 192.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 16384.0]
RATIOS = [0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0, 1.1, 1.5, 2.0]


class Meters:
    """The instruments of one driver; ``run`` tags all of them.

    Example: a template that Z3 proved counts in ``shardproof_templates{run="night-3",
    verdict="unsat", solver="z3"}``.
    """

    def __init__(self, run: str) -> None:
        keys = ("run", "verdict", "solver")
        self._tags = {"run": run or "-"}
        self._templates = Counter(
            "shardproof_templates", "templates with a verdict, by verdict and solver", keys
        )
        self._seconds = Histogram(
            "shardproof_solver_seconds", "time in solvers, per template", SECONDS, keys
        )
        self._queue = Gauge("shardproof_queue_depth", "templates that no worker has", ("run",))
        self._retried = Counter(
            "shardproof_retried", "templates tried again, by why", ("run", "cause")
        )
        self._measured = Histogram(
            "shardproof_solver_rss_mib", "peak resident memory of a solver", MIB, ("run",)
        )
        self._predicted = Histogram(
            "shardproof_predicted_rss_mib", "what the memory model said before", MIB, ("run",)
        )
        self._ratio = Histogram(
            "shardproof_rss_measured_to_predicted", "above 1: predicted too low", RATIOS, ("run",)
        )

    def solved(self, solved: Solved, predicted_mib: float) -> None:
        """A template has its verdict."""
        deciding = [a for a in solved.answers if a.verdict == solved.verdict] or solved.answers
        tags = self._tags | {"verdict": solved.verdict, "solver": deciding[-1].solver}
        self._templates.inc(1, tags)
        self._seconds.observe(sum(a.seconds for a in solved.answers), tags)
        peak = max(a.rss_mib for a in solved.answers)
        self._measured.observe(peak, self._tags)
        self._predicted.observe(predicted_mib, self._tags)
        self._ratio.observe(peak / predicted_mib, self._tags)

    def queue(self, depth: int) -> None:
        """So many templates are with no worker."""
        self._queue.set(depth, self._tags)

    def retried(self, cause: str, templates: int) -> None:
        """Templates go back into the queue: "memory", or "death" of a worker."""
        if templates:
            self._retried.inc(templates, self._tags | {"cause": cause})

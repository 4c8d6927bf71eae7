"""A check in parts: what the parts of one run say together."""

from __future__ import annotations

from collections.abc import Sequence

from shardproof.checker.result import CheckResult

#: Counts of which every part has a share; of the others all parts say the same.
SHARED = ("rebuilt", "unforeseen", "members", "solved")


def joined(parts: Sequence[CheckResult]) -> CheckResult:
    """The result of a check whose parts, all n of them, were done apart: it holds if each does.

    Example: parts (0, 2) and (1, 2) rebuilt 94 and 95 obligations; together 189, of the same 152
    templates.

    ``seconds`` are those of the slowest part.  Raises ValueError for no parts, or for parts of runs
    with different verdicts.
    """
    verdicts = {part.verdict for part in parts}
    if len(verdicts) != 1:
        raise ValueError(f"expected the parts of one run, found verdicts {sorted(verdicts)}")
    counts: dict[str, int] = {}
    for part in parts:
        for name, count in part.counts.items():
            counts[name] = counts.get(name, 0) + count if name in SHARED else count
    slowest = max(parts, key=lambda part: part.seconds.get("total", 0.0))
    return CheckResult(
        all(part.ok for part in parts),
        verdicts.pop(),
        tuple(dict.fromkeys(problem for part in parts for problem in part.problems)),
        dict(slowest.seconds),
        counts,
        tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )

"""The check of a finished run on a cluster: every task checks a part, from a copy of the files.

Nodes share no file system, so the files travel. A part checks everything but the obligations of
other parts' templates, which is where the time goes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from shardproof.checker.result import CheckResult
from shardproof.cluster.settings import Settings
from shardproof.engine.records.certificate import read_certificate

#: Parts for each worker: they differ in size.
PARTS_PER_WORKER: Final = 2

#: What a part takes besides what its solvers may.
MEMORY_BYTES: Final = 1 << 30

Files = dict[str, bytes]


def can_be_spread(run_dir: Path) -> bool:
    """Whether a run is a proof: only these are checked in parts. Raises `InvalidInput`.

    Example: a refuted run is checked whole, here.
    """
    return read_certificate(run_dir).verdict == "proved"


def check(
    run_dir: Path,
    settings: Settings,
    tell: Callable[[int, int], None] = lambda done, total: None,
    **options: Any,
) -> CheckResult:
    """`checker.check` of a proof in parts on the cluster of ``settings``; ``options`` are its own.

    Example: on four workers eight parts, whose results are joined to one.

    Raises `cluster.on_ray.pool.ClusterError` too.
    """
    from shardproof.checker.record.parts import joined
    from shardproof.cluster.on_ray.tasks import spread

    def work(workers: int) -> list[tuple[int, int, dict[str, Any]]]:
        parts = PARTS_PER_WORKER * workers
        return [(number, parts, options) for number in range(parts)]

    return joined(spread(check_part, packed(run_dir), work, settings, MEMORY_BYTES, tell))


def packed(run_dir: Path) -> Files:
    """The files of a run by their place in its directory.

    Example: ``{"certificate.json": b"{...", "plan/...": b"..."}``.
    """
    return {
        path.relative_to(run_dir).as_posix(): path.read_bytes()
        for path in sorted(run_dir.rglob("*"))
        if path.is_file()
    }


def check_part(files: Files, part: tuple[int, int, dict[str, Any]]) -> CheckResult:
    """The check of part k of n, in a directory of its own.

    Example: part ``(0, 8, {})`` states and solves every eighth template, and checks all else.
    """
    from shardproof import checker

    number, count, options = part
    with tempfile.TemporaryDirectory(prefix="shardproof-check-") as folder:
        for name, data in files.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return checker.check(folder, part=(number, count), parallel=1, **options)

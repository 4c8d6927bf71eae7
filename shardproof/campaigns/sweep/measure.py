"""One point, once: the plan made in one process, verified in another, and what both took."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from shardproof.campaigns.sweep.spec import Point, Scalar
from shardproof.engine.storage.sources import python_path
from shardproof.engine.system import portable

#: The verdict on a point whose process gave no result.
INTERNAL: Final = "internal error"

#: All verdicts, the worst first, with the exit code that each of them makes.
VERDICTS: Final[Mapping[str, int]] = {
    INTERNAL: 4,
    "invalid input": 3,
    "refuted": 1,
    "inconclusive": 2,
    "proved": 0,
}


@dataclass(frozen=True, slots=True)
class Run:
    """What one run of one point gave; seconds are of wall clock unless they are of ``cpu``.

    Example: ``Run("7ac4b2ca84bfb319f442", "proved", ranks=4, templates=114, total=3.86,
    peak_mib=83.2)``.

    ``make``: building and saving the plan; ``load`` to ``total``: the phases of ``verify``, as it
    reports them; ``wall``, ``cpu``, ``peak_mib``: the whole process of ``verify`` and its children.
    """

    key: str
    verdict: str
    reason: str = ""
    ranks: int = 0
    single_operators: int = 0
    parallel_operators: int = 0
    stages: int = 0
    obligations: int = 0
    templates: int = 0
    cached: int = 0
    make: float = 0.0
    load: float = 0.0
    partition: float = 0.0
    solve: float = 0.0
    compose: float = 0.0
    total: float = 0.0
    wall: float = 0.0
    cpu: float = 0.0
    make_mib: float = 0.0
    peak_mib: float = 0.0

    def row(self) -> dict[str, Any]:
        """As a row of the table of runs."""
        return asdict(self)


class Ended(NamedTuple):
    """A process that is over: its output, and what it and the children it waited for took.

    Example: ``Ended(0, b'{"seconds": 1.9}', "", 2.3, 2.1, 210.0)``.
    """

    code: int
    output: bytes
    errors: str
    seconds: float
    cpu: float
    resident_mib: float


def measure(
    key: str,
    point: Point,
    options: Mapping[str, Scalar],
    work: Path,
    reports: Path | None = None,
) -> Run:
    """Make the plan of a point in ``work`` (removed afterwards) and verify it; ``options`` of
    ``verify`` are those of the sweep.  ``reports``: the folder for the page of the run, made once
    for each key, after the run and outside of what is measured.

    Example: a point that the zoo refuses is ``Run(key, "invalid input", reason)``; one whose
    process was killed is "internal error".
    """
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        measured = _measured(key, point, point.options(options), work)
        if reports is not None and measured.verdict != INTERNAL:
            _keep_report(work / "run", reports / report_name(key))
        return measured
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _measured(key: str, point: Point, options: Mapping[str, Scalar], work: Path) -> Run:
    make, make_mib = 0.0, 0.0
    if point.files is not None:
        files = point.files
        inputs = [str(p) for p in (files.single, files.parallel) if p is not None]
        if files.assume is not None:
            inputs += ["--assume", str(files.assume)]
    else:
        inputs = [str(work / "plan")]
        given = json.dumps(point.made_of).encode()
        made = ended(["-m", "shardproof.campaigns.sweep.make", *inputs], given)
        if made.code:
            verdict = "invalid input" if made.code == VERDICTS["invalid input"] else INTERNAL
            return Run(key, verdict, _last(made.errors))
        make, make_mib = json.loads(made.output)["seconds"], made.resident_mib
    command = ["-m", "shardproof", "verify", *inputs, "--json", "--out", str(work / "run")]
    done = ended([*command, *arguments(options)])
    try:
        document = json.loads(done.output)
    except ValueError:
        reason = _last(done.errors) or f"verify ended with code {done.code}"
        return Run(key, INTERNAL, reason, make=make, make_mib=make_mib)
    return Run(
        key=key,
        verdict=document["verdict"],
        reason=document["reason"],
        make=make,
        wall=done.seconds,
        cpu=done.cpu,
        make_mib=make_mib,
        peak_mib=document["peak_rss_mib"],
        **document["counts"],
        **document["seconds"],
    )


def report_name(key: str) -> str:
    """The file of the page of a run.

    Example: ``7ac4b2ca84bfb319f442.html``.
    """
    return f"{key}.html"


def _keep_report(run_dir: Path, page: Path) -> None:
    """Write the page of a run that there is; a run of which none can be made has none."""
    if run_dir.is_dir() and not page.exists():
        page.parent.mkdir(exist_ok=True)
        ended(["-m", "shardproof", "report", str(run_dir), "-o", str(page)])


def arguments(options: Mapping[str, Scalar]) -> list[str]:
    """Options of ``verify`` as its command line takes them; cold unless ``cache`` is true.

    Example: ``{"solver": "both", "exhaustive": True}`` is
    ``--no-cache --solver both --exhaustive``.
    """
    words = [] if options.get("cache", False) else ["--no-cache"]
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if name == "cache":
            continue
        if isinstance(value, bool):
            words += [flag] if value else []
        else:
            words += [flag, str(value)]
    return words


def ended(args: Sequence[str], given: bytes = b"") -> Ended:
    """Run this interpreter with ``args`` and ``given`` on stdin, to its end.

    Example: ``ended(["-m", "shardproof", "verify", "plan", "--json"])``, whose ``code`` is 1 for a
    refuted plan.
    """
    import time

    with (
        tempfile.TemporaryFile() as stdin,
        tempfile.TemporaryFile() as stdout,
        tempfile.TemporaryFile() as stderr,
    ):
        stdin.write(given)
        stdin.seek(0)
        start = time.perf_counter()
        child = subprocess.Popen(
            [sys.executable, "-P", *args],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env={**os.environ, "PYTHONPATH": python_path()},
        )
        with ExitStack() as undo:
            undo.callback(child.wait)
            undo.callback(child.kill)
            _, status, used = os.wait4(child.pid, 0)
            undo.pop_all()
        seconds = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        stdout.seek(0)
        stderr.seek(0)
        return Ended(
            child.returncode,
            stdout.read(),
            stderr.read().decode(errors="replace"),
            seconds,
            portable.processor_seconds(used),
            portable.most_resident(used) / (1 << 20),
        )


def _last(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""

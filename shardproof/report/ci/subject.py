"""What the formats of CI have in common: the causes of a result, and where they are in the code."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final, NamedTuple

from shardproof.engine.findings import Finding
from shardproof.run.plain import plain
from shardproof.run.result import Result

#: A file and a line, as Python's tracebacks write them and as compilers do.
_PLACES: Final = (
    re.compile(r'File "(?P<file>[^"\n]+)", line (?P<line>[1-9][0-9]{0,8})'),
    re.compile(r'(?P<file>[^\s:"\']+\.py):(?P<line>[1-9][0-9]{0,8})'),
)


class Problem(NamedTuple):
    """One thing that CI is to show: ``level`` is "error", "warning" or "note".

    Example: ``Problem("mismatch", "error", "add in h.1.mlp ... Cause: missing reduction. ...",
    "h.1.mlp, add", "examples/gpt.py:98")``.
    """

    kind: str
    level: str
    message: str
    where: str = ""
    source: str = ""


def problems(result: Result) -> list[Problem]:
    """What a result says is wrong or worth knowing: each cause once, then why there is no verdict.

    Example: a GPT without its last all-reduce has one, though 37 conclusions do not hold.

    Of a refuted plan every cause is an error, and what stands beside them is a note, as are the
    findings of a proved one.  What follows from a cause is left to the report.
    """
    listed: list[Problem] = []
    seen: set[tuple[str, int | str]] = set()
    for finding in result.findings:
        key = (finding.kind, finding.group or finding.message)
        alike = ("", finding.group) if finding.group else key
        if alike in seen:
            continue
        seen.add(alike)
        listed.append(_of_finding(result, finding))
    if result.verdict == "inconclusive":
        listed.insert(0, Problem("inconclusive", "warning", plain(result.reason)))
    if result.verdict == "invalid input":
        listed.insert(0, Problem("invalid-input", "error", plain(result.reason)))
    if result.verdict == "refuted" and not any(p.level == "error" for p in listed):
        failed = next((c for c in result.conclusions if not c.holds), None)
        reason = failed.message if failed is not None else result.reason
        listed.insert(0, Problem("refuted", "error", plain(reason)))
    return listed


def _of_finding(result: Result, finding: Finding) -> Problem:
    grouped = any(f.group for f in result.findings)
    wrong = result.verdict == "refuted" and (finding.group > 0 or not grouped)
    sentences = [finding.message]
    sentences += [f"Cause: {finding.cause}"] if finding.cause else []
    sentences += [f"Repair: {finding.repair}"] if finding.repair else []
    where = ", ".join(part for part in (finding.layer, finding.operator) if part)
    level = "error" if wrong else "note"
    return Problem(
        plain(finding.kind), level, ". ".join(map(plain, sentences)), plain(where), finding.source
    )


def place(source: str) -> tuple[str, int] | None:
    """The file and line that a source names, the file relative to this folder if it is in it.

    Example: ``examples/gpt.py:98`` and ``File "examples/gpt.py", line 98`` are
    ``("examples/gpt.py", 98)``.
    """
    for pattern in _PLACES:
        match = pattern.search(source)
        if match is not None:
            return relative(plain(match["file"])), int(match["line"])
    return None


def relative(name: str) -> str:
    """A file from this folder, if it is in it: what CI calls it.

    Example: in ``/work``, ``/work/train.py`` is ``train.py`` and ``/opt/lib.py`` stays.
    """
    try:
        return Path(name).relative_to(os.getcwd()).as_posix()
    except (ValueError, OSError):
        return Path(name).as_posix()

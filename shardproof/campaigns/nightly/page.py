"""The report of a night: one HTML file that holds all it shows, and the same as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from shardproof.campaigns.nightly.changes import CODES, Change, exit_code
from shardproof.campaigns.nightly.night import Night
from shardproof.engine.errors import InvalidInput
from shardproof.inputs import rundir

PAGE: Final = "report.html"
DOCUMENT: Final = "report.json"


def document(night: Night, before: Night | None, changes: Sequence[Change]) -> dict[str, Any]:
    """The report as plain data.

    Example: ``"headline": "1 slower, 2 new plan"``, with ``"exit_code": 2``.
    """
    then = {(p.plan, p.seed): p for p in before.points} if before is not None else {}
    points = []
    for point in night.points:
        old = then.get((point.plan, point.seed))
        points.append(
            {name: getattr(point, name) for name in point.__struct_fields__ if name != "templates"}
            | {"templates": len(point.templates), "report": ""}
            | {"then": None if old is None else {"verdict": old.verdict, "seconds": old.seconds,
                                                 "peak_rss_mib": old.peak_rss_mib}}
        )  # fmt: skip
    code = exit_code(list(changes))
    counts = {kind: sum(c.kind == kind for c in changes) for kind in CODES}
    counted = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    return {
        "suite": night.suite,
        "began": night.began,
        "before": "" if before is None else before.began,
        "versions": night.versions,
        "exit_code": code,
        "headline": counted or ("as expected, as before" if before else "as expected"),
        "changes": [change.to_dict() for change in changes],
        "points": points,
    }


def write(folder: Path, data: dict[str, Any]) -> Path:
    """Write both forms of the report, and the page of every run; where the first page is.

    Example: ``20260314-030000/report.html``, which links ``runs/llama3-8b-dp-2-1/report.html``.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    for point in data["points"]:
        point["report"] = _of_run(folder, point["run_dir"])
    rundir.keep(folder, DOCUMENT, json.dumps(data, indent=2, allow_nan=False) + "\n")
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined
    )
    rundir.keep(folder, PAGE, environment.get_template("nightly.html.j2").render(data))
    return folder / PAGE


def _of_run(folder: Path, run_dir: str) -> str:
    """Write the page of a run below ``folder``; where it is from there, empty if there is none."""
    from shardproof.report.html.collect import collect
    from shardproof.report.html.page import render

    place = Path(run_dir or "/")
    if not place.is_relative_to(folder.resolve()):
        return ""
    try:
        text = render(collect(place))
    except InvalidInput:  # no run that came to its end
        return ""
    rundir.keep(place, PAGE, text)
    return (place / PAGE).relative_to(folder.resolve()).as_posix()

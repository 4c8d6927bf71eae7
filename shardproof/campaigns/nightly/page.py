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

_TEMPLATE: Final = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ suite }}, {{ began }}</title>
<style>
body { font: 14px/1.4 system-ui, sans-serif; margin: 2em auto; max-width: 76em; padding: 0 1em; }
table { border-collapse: collapse; margin: 1em 0;
  display: block; max-width: 100%; overflow-x: auto; }
th, td { padding: 3px 10px; border-bottom: 1px solid #ddd; text-align: right; }
td.words, th.words { text-align: left; }
.proved, .c0 { color: #17692c; } .refuted, .invalid, .internal, .c1, .c4 { color: #b00020; }
.inconclusive, .c2 { color: #8a6100; }
</style></head><body>
<h1>{{ suite }}, {{ began }}</h1>
<p><b class="c{{ exit_code }}">{{ headline }}</b> (exit code {{ exit_code }}). Compared with
{{ before or "nothing: this is the first night" }}.
Z3 {{ versions.z3 }}, cvc5 {{ versions.cvc5 }}.</p>
<h2>What changed</h2>
{% if changes %}<table><tr><th class="words">what</th><th class="words">plan</th><th class="words">
</th></tr>
{% for one in changes %}<tr><td class="words c{{ one.exit_code }}">{{ one.kind }}</td>
<td class="words">{{ one.plan }}</td><td class="words">{{ one.message }}</td></tr>
{% endfor %}</table>{% else %}<p>Nothing.</p>{% endif %}
<h2>Plans</h2>
<table><tr><th class="words">plan</th><th>seed</th><th class="words">verdict</th><th class="words">
</th><th>s</th>
<th>before</th><th>MiB</th><th>before</th><th>templates</th><th class="words">reason</th></tr>
{% for one in points %}<tr><td class="words">{{ one.plan }}</td><td>{{ one.seed }}</td>
<td class="words {{ one.verdict.split()[0] }}">{{ one.verdict }}</td>
<td class="words">{% if one.report %}<a href="{{ one.report }}">report</a>{% endif %}</td>
<td>{{ "%.1f" % one.seconds }}</td>
<td>{{ "" if one.then is none else "%.1f" % one.then.seconds }}</td>
<td>{{ "%.0f" % one.peak_rss_mib }}</td>
<td>{{ "" if one.then is none else "%.0f" % one.then.peak_rss_mib }}</td>
<td>{{ one.templates }}</td><td class="words">{{ one.reason }}</td></tr>
{% endfor %}</table>
</body></html>
"""


def document(night: Night, before: Night | None, found: Sequence[Change]) -> dict[str, Any]:
    """The report as plain data."""
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
    code = exit_code(list(found))
    counts = {kind: sum(c.kind == kind for c in found) for kind in CODES}
    said = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    return {
        "suite": night.suite,
        "began": night.began,
        "before": "" if before is None else before.began,
        "versions": night.versions,
        "exit_code": code,
        "headline": said or "as expected, as before",
        "changes": [change.to_dict() for change in found],
        "points": points,
    }


def write(folder: Path, data: dict[str, Any]) -> Path:
    """Write both forms of the report, and the page of every run; where the first page is."""
    from jinja2 import Environment, StrictUndefined

    for point in data["points"]:
        point["report"] = _of_run(folder, point["run_dir"])
    rundir.keep(folder, DOCUMENT, json.dumps(data, indent=2, allow_nan=False) + "\n")
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    rundir.keep(folder, PAGE, environment.from_string(_TEMPLATE).render(data))
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

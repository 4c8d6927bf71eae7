"""The page of a sweep: one HTML file that holds everything it shows."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from shardproof.campaigns.sweep.measure import report_name
from shardproof.campaigns.sweep.plots import PLOTS, can_draw, draw, panels
from shardproof.campaigns.sweep.run import REPORTS, Swept
from shardproof.campaigns.sweep.spec import Sweep
from shardproof.campaigns.sweep.table import Row
from shardproof.engine.system.extras import install_line

PAGE: Final = "index.html"

#: The columns of the page's table of points beside their parameters, and their headings.
_COLUMNS: Final[Mapping[str, str]] = {
    "verdict": "verdict",
    "runs": "runs",
    "ranks": "ranks",
    "parallel_operators": "operators",
    "templates": "templates",
    "operators_per_template": "operators per template",
    "make": "make s",
    "load": "load s",
    "partition": "partition s",
    "solve": "solve s",
    "compose": "compose s",
    "total": "total s",
    "cpu": "CPU s",
    "peak_mib": "MiB",
    "compared": "compared s",
}


def write(swept: Swept) -> Path:
    """Draw the plots of all sweeps and write the page beside them; its path.

    Example: ``index.html`` beside ``points.csv``, with the plots as SVG and a link to the report of
    each run.
    """
    import jinja2

    sections = [
        _section(swept, sweep, rows, number)
        for number, (sweep, rows) in enumerate(zip(swept.sweeps, swept.rows, strict=True))
    ]
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True)
    template = environment.get_template("sweep.html.j2")
    path = swept.folder / PAGE
    path.write_text(
        template.render(
            title=", ".join(sweep.name for sweep in swept.sweeps),
            verdict=swept.verdict,
            machine=f"{os.cpu_count()} CPUs, Python {platform.python_version()}",
            sections=sections,
            draws=can_draw(),
            draws_with=install_line("plots"),
        ),
        encoding="utf-8",
    )
    return path


def _section(swept: Swept, sweep: Sweep, rows: Sequence[Row], number: int) -> dict[str, Any]:
    from shardproof.campaigns.sweep.growth import MEASURES
    from shardproof.inputs.rundir import slug

    keys = [point.key(sweep.options) for point in sweep.points]
    drawn = draw(panels(sweep, keys, rows), swept.folder, slug(sweep.name))
    parameters = list(dict.fromkeys(n for point in sweep.points for n in point.parameters))
    shown = [*parameters, *(n for n in _COLUMNS if any(row.get(n) is not None for row in rows))]
    return {
        "name": sweep.name,
        "measures": MEASURES,
        "growth": swept.growth[number],
        "plots": [drawn[name][drawn[name].index("<svg") :] for name in PLOTS if name in drawn],
        "headings": [_COLUMNS.get(name, name) for name in shown],
        "rows": [
            {"cells": [_cell(row.get(name)) for name in shown], "report": _report(swept, row)}
            for row in rows
        ],
        "reasons": list(dict.fromkeys(row["reason"] for row in rows if row["reason"])),
    }


def _report(swept: Swept, row: Row) -> str:
    """Where the page of a point's run is, from this one; of runs on a cluster there is none."""
    name = f"{REPORTS}/{report_name(str(row['key']))}"
    return name if (swept.folder / name).is_file() else ""


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)

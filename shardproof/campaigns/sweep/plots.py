"""The plots of a sweep: time by phase, memory, templates and how often each is used.

One panel per axis; a sweep without axes has one panel over its points in their order.  An axis is
logarithmic where its values span more than a factor of eight.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shardproof.campaigns.sweep.spec import Sweep
from shardproof.campaigns.sweep.table import Row
from shardproof.engine.system.extras import has

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: File stem -> title, unit, and the columns that are drawn with their labels.
PLOTS: Final[Mapping[str, tuple[str, str, Mapping[str, str]]]] = {
    "time": (
        "Time by phase",
        "seconds",
        {
            "make": "make the plan",
            "load": "load",
            "partition": "partition",
            "solve": "solve",
            "compose": "compose",
            "total": "verify, in all",
            "cpu": "verify, processor time",
            "compared": "compared",
        },
    ),
    "memory": ("Memory of the process tree", "MiB", {"peak_mib": "at most"}),
    "templates": ("What is distinct", "count", {"templates": "templates", "stages": "stages"}),
    "dedup": (
        "How often a template is used",
        "per template",
        {
            "operators_per_template": "parallel operators",
            "obligations_per_template": "obligations",
        },
    ),
}

SPAN: Final = 8.0
"""From this ratio on a logarithm fits better."""

POINTS: Final = "point"
"""The panel of points that are on no axis, in their order."""

_COLUMNS: Final = 3
_THICK: Final = {"total": "-", "compared": "--", "cpu": ":"}


class Panel(NamedTuple):
    """Rows along one parameter, with its value at each.

    Example: ``Panel("tp", [1, 2, 4, 8], rows)``.
    """

    name: str
    values: Sequence[Any]
    rows: Sequence[Row]


def panels(sweep: Sweep, keys: Sequence[str], rows: Sequence[Row]) -> list[Panel]:
    """The panels of a sweep; points without a measurement are left out.

    Example: a sweep with the axes ``layers`` and ``tp`` and a point on neither has three, the last
    "point".
    """
    measured = {row["key"]: row for row in rows if row["total"]}
    result = []
    for axis in sweep.axes:
        pairs = [
            (value, measured[keys[point]])
            for value, point in zip(axis.values, axis.points, strict=True)
            if keys[point] in measured
        ]
        if pairs:
            result.append(Panel(axis.name, [v for v, _ in pairs], [r for _, r in pairs]))
    on_axes = {keys[point] for axis in sweep.axes for point in axis.points}
    rest = [row for key, row in measured.items() if key not in on_axes]
    if rest:
        result.append(Panel(POINTS, list(range(1, len(rest) + 1)), rest))
    return result


def can_draw() -> bool:
    """Whether there is something to draw with.

    Example: false after ``pip install shardproof`` without the extra "plots".
    """
    return has("matplotlib")


def draw(given: Sequence[Panel], folder: Path, stem: str) -> dict[str, str]:
    """Write every plot as PNG and SVG, ``folder/stem-plot.*``; the SVG texts, by plot, none where
    matplotlib is not installed.

    Example: ``growth-time.png``, ``growth-memory.svg`` and so on for the sweep "growth".
    """
    if not can_draw():
        return {}
    import matplotlib as mpl

    drawn = {}
    with mpl.rc_context({"svg.hashsalt": "shardproof", "svg.fonttype": "path", "font.size": 8}):
        for name in PLOTS if given else ():
            figure = _figure(given, name)
            figure.savefig(folder / f"{stem}-{name}.png", dpi=120)
            text = io.StringIO()
            figure.savefig(text, format="svg", metadata={"Date": None})
            (folder / f"{stem}-{name}.svg").write_text(text.getvalue(), encoding="utf-8")
            drawn[name] = text.getvalue()
    return drawn


def _figure(given: Sequence[Panel], name: str) -> Figure:
    from matplotlib.figure import Figure

    title, unit, columns = PLOTS[name]
    wide = min(_COLUMNS, len(given))
    high = -(-len(given) // wide)
    figure = Figure(figsize=(3.6 * wide, 2.9 * high + 0.5), layout="constrained")
    figure.suptitle(title)
    grid = figure.subplots(high, wide, squeeze=False)
    for panel, axes in zip(given, grid.flat, strict=False):
        _panel(axes, panel, unit, columns)
    for axes in list(grid.flat)[len(given) :]:
        axes.set_visible(False)
    handles: dict[str, Artist] = {}
    for axes in grid.flat:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(str(label), handle)
    figure.legend(
        list(handles.values()), list(handles), loc="outside lower center", ncols=4, frameon=False
    )
    return figure


def _panel(axes: Axes, panel: Panel, unit: str, columns: Mapping[str, str]) -> None:
    numeric = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in panel.values)
    places = list(panel.values) if numeric else list(range(len(panel.values)))
    drawn: list[float] = []
    for number, (column, label) in enumerate(columns.items()):
        heights = [row.get(column) for row in panel.rows]
        # A phase that takes next to nothing only stretches a logarithmic scale.
        if all(height is None or height < 0.005 for height in heights):
            continue
        drawn += [height for height in heights if height]
        axes.plot(
            places,
            [float("nan") if h is None else h for h in heights],
            # Single points are no axis along which something grows.
            linestyle="none" if panel.name == POINTS else _THICK.get(column, "-"),
            color=f"C{number}",
            linewidth=1.8 if column in _THICK else 1.1,
            marker="o",
            markersize=3,
            label=label,
        )
    if numeric and spans(places):
        axes.set_xscale("log", base=2)
    axes.set_xticks(places, [str(v) for v in panel.values], rotation=45 if len(places) > 8 else 0)
    axes.minorticks_off()
    if spans(drawn):
        axes.set_yscale("log")
    else:
        # A line that is level would lie on the frame otherwise.
        axes.set_ylim(0, max(drawn, default=1) * 1.08)
    axes.set_xlabel(panel.name)
    axes.set_ylabel(unit)
    axes.grid(alpha=0.3)


def spans(values: Sequence[float]) -> bool:
    """Whether a logarithmic scale fits.

    Example: 1 to 8 does, 1 to 7 does not, nor do values with a zero.
    """
    return bool(values) and min(values) > 0 and max(values) >= SPAN * min(values)

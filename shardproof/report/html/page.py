"""The page of a run: ``page.html.j2`` (its macros: ``parts.html.j2``, ``graphs.html.j2``),
``report.css``, ``report.js`` and ``graphs.js`` in one file.  Every value is escaped: names come
from plans that nobody trusts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

#: Pixels of one row of the schedule.
ROW: Final = 22
#: Where the templates, the styles and the scripts lie.
_FOLDER: Final = Path(__file__).parent


def _many(count: int, one: str, more: str = "") -> str:
    return f"{count:,} {one if count == 1 else more or one + 's'}"


def render(data: dict[str, Any]) -> str:
    """The page of what `collect` found.

    Example: one file of HTML whose title has the verdict; a module called ``<b>`` is shown as text.
    """
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(many=_many, row=ROW)
    for parts in ("parts.html.j2", "graphs.html.j2"):
        environment.globals.update(vars(environment.get_template(parts).module))
    style = (_FOLDER / "report.css").read_text(encoding="utf-8")
    names = (
        ("report.js", "graphs.js") if data["plan"] and data["plan"]["graphs"] else ("report.js",)
    )
    script = "\n".join((_FOLDER / name).read_text(encoding="utf-8") for name in names)
    page = environment.get_template("page.html.j2")
    return page.render(d=data, css=Markup(style), script=Markup(script))

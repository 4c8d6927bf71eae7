"""What happened in a run, as JSON lines with the run and the templates in them.

A line is one object: ``time`` (seconds since 1970), ``run``, ``event``, and what the event says.
Lines are written whole; the file only grows, over all attempts at a run. Workers write lines of the
same form to their own logs, which Ray keeps on their nodes.
"""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import TypeAlias

FILE = "events.jsonl"
MOST_TEMPLATES = 20
"""Templates that one line names; more are counted by ``templates_total``."""

Word: TypeAlias = str | int | float | bool | list[str] | list[int] | None


class Events:
    """The log of a run; without a folder, one that nobody reads.

    Example: ``Events(Path("runs/night-3")).say("retry", ["a81f"], cause="memory")`` adds a line to
    ``runs/night-3/events.jsonl``.
    """

    def __init__(self, folder: Path | None = None, run: str = "") -> None:
        self.run = run or ("" if folder is None else folder.name)
        self._path = None if folder is None else folder / FILE

    def say(self, event: str, templates: list[str] | None = None, **more: Word) -> None:
        """Write a line; a log that cannot be written stops no run."""
        if self._path is None:
            return
        text = line(self.run, event, templates, **more)
        with contextlib.suppress(OSError), self._path.open("a", encoding="utf-8") as file:
            file.write(text + "\n")


def line(run: str, event: str, templates: list[str] | None = None, **more: Word) -> str:
    """A line of a log, without its end.

    Example: ``{"time": 1.8e9, "run": "night-3", "event": "retry", "templates": ["a81f"],
    "templates_total": 1, "cause": "memory"}``.
    """
    words: dict[str, Word] = {"time": round(time.time(), 3), "run": run, "event": event}
    if templates is not None:
        words["templates"] = templates[:MOST_TEMPLATES]
        words["templates_total"] = len(templates)
    return json.dumps(words | more, allow_nan=False)

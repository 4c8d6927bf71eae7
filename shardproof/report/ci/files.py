"""Where CI wants its files: refused before the run if they cannot be there, written after it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from shardproof.engine.storage.files import unwritable
from shardproof.run.result import Result


@dataclass(frozen=True, slots=True)
class Wanted:
    """What continuous integration wants of a run. ``subject``: the name of what is verified;
    ``file``: where it is; ``junit``, ``sarif``: files to write; ``annotate``: whether this is a
    step of GitHub Actions.

    Example: ``Wanted("gpt", "plans/gpt", junit=Path("out.xml"))``.
    """

    subject: str
    file: str
    junit: Path | None = None
    sarif: Path | None = None
    annotate: bool = False

    def refused(self) -> str:
        """Why a file cannot be written, as far as that can be known before ("": nothing is)."""
        for path in (self.junit, self.sarif):
            if path is None:
                continue
            if path.is_dir():
                return f"expected a file to write, found a folder: {path}"
            if not os.access(path.resolve().parent, os.W_OK):
                return f"expected a folder that can be written to, found none: {path.parent}"
        return ""

    def write(self, result: Result) -> list[str]:
        """Write the files; the annotations are returned, a line each.  Raises `InvalidInput` for
        a file that cannot be written, ``OSError`` for a full disk."""
        from shardproof.report.ci.annotations import annotated
        from shardproof.report.ci.junit import junit
        from shardproof.report.ci.sarif import sarif

        if self.junit is not None:
            _put(self.junit, junit(result, self.subject))
        if self.sarif is not None:
            _put(self.sarif, sarif(result, self.subject, self.file))
        return annotated(result, self.subject) if self.annotate else []


def _put(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise unwritable(error, path) from error

"""The directory of a run: its default name, and that it is new or empty."""

from __future__ import annotations

import itertools
import os
import re
from datetime import datetime
from pathlib import Path
from typing import Final

from shardproof.engine.errors import InvalidInput
from shardproof.engine.storage.files import is_full

#: Where runs go that are not told where.
DEFAULT: Final = Path("shardproof-runs")

#: The result of a finished run, in its directory.
RESULT: Final = "result.json"

#: The verdicts of a run, finished or not (`cluster.verdicts.ledger`).
VERDICTS: Final = "verdicts.arrows"


def refuse_nameless(*paths: Path | None) -> None:
    """Raise `InvalidInput` for a path that is no text: what a run leaves are texts that name it.

    Example: a path with the byte ``ff``, which is no UTF-8.
    """
    for path in paths:
        whole = os.path.abspath(path) if path is not None else ""
        try:
            whole.encode()
        except UnicodeEncodeError:
            shown = repr(os.fsencode(whole)).removeprefix("b")
            raise InvalidInput("expected a path in UTF-8, found another", shown) from None


def is_run(path: Path) -> bool:
    """Whether a run has left something in ``path``.

    Example: a directory with ``verdicts.arrows``, though it has no ``result.json`` yet.
    """
    return (path / RESULT).is_file() or (path / VERDICTS).is_file()


def refuse_used(out: Path) -> None:
    """Raise `InvalidInput` unless ``out`` can become a run directory: it is missing, or empty.

    Example: a directory with a file of the user's in it; an empty one is not refused.
    """
    try:
        if out.is_symlink() or out.exists():
            if not out.is_dir():
                raise InvalidInput("expected a directory for the run, found a file", str(out))
            if any(out.iterdir()):
                raise InvalidInput(
                    "expected a new or empty directory for the run, found one with files in it",
                    str(out),
                )
    except OSError as error:
        raise _unusable(out, error) from error


def create(out: Path | None, name: str, now: datetime) -> Path:
    """A run directory: ``out``, or a new one named by the time and the plan.

    Example: ``shardproof-runs/20260314-150926-gpt-dp2-tp2``, with ``-2`` behind it for a second run
    in that second.

    Made in one step, so that of two runs one gets it.  Raises `InvalidInput`.
    """
    if out is not None:
        try:
            out.mkdir(parents=True)
        except FileExistsError:
            refuse_used(out)
        except OSError as error:
            raise _unusable(out, error) from error
        return out.resolve()
    stem = f"{now:%Y%m%d-%H%M%S}-{slug(name)}"
    for attempt in itertools.count(1):
        path = DEFAULT / (stem if attempt == 1 else f"{stem}-{attempt}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            if not path.exists() or not path.parent.is_dir():
                raise InvalidInput("expected a directory, found a file", str(DEFAULT)) from None
        except OSError as error:
            raise _unusable(path, error) from error
        else:
            return path.resolve()
    raise AssertionError("the attempts do not end")


def slug(name: str) -> str:
    """``name`` as part of a file name.

    Example: "gpt dp2 tp2" is ``gpt-dp2-tp2``.
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:100] or "plan"


def _unusable(path: Path, error: OSError) -> InvalidInput:
    if is_full(error):
        raise error
    return InvalidInput(f"cannot be the run directory: {error.strerror or error}", str(path))


def keep(run_dir: Path, name: str, text: str) -> None:
    """Write a file of the run directory, whole or not at all.

    Example: ``result.json`` is written as ``.result.json.draft`` and renamed.
    """
    draft = run_dir / f".{name}.draft"
    draft.write_text(text, encoding="utf-8")
    draft.rename(run_dir / name)

"""What a builder makes of how it is called: the caller's line, numbers as they are meant, names."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from difflib import get_close_matches
from fractions import Fraction
from pathlib import Path

from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.ir import Attr

#: Modules whose frames are passed over on the way to the caller.
_OURS = "shardproof.frontends.builder"


def caller() -> str:
    """The file and line that a plan is being written in ("": one of our own modules).

    The file is named with its folder, as in ``examples/gpt.py:30``: a plan does not depend on where
    a checkout lies, or on where one stands in it.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None:
        name = frame.f_globals.get("__name__", "")
        # A generator expression or a context manager may stand between.
        if not name.startswith(_OURS) and name != "contextlib":
            break
        frame = frame.f_back
    if frame.f_globals.get("__name__", "").startswith("shardproof."):
        return ""
    return f"{_shown(frame.f_code.co_filename)}:{frame.f_lineno}"


_FILES: dict[str, str] = {}


def _shown(file: str) -> str:
    if file not in _FILES:
        _FILES[file] = "/".join(Path(file).resolve().parts[-2:])
    return _FILES[file]


def exactly(key: str, value: Attr | float) -> Attr:
    """An attribute, a float among them taken for the decimal that it prints as, with a warning.

    Raises `InvalidInput` for what is no number.
    """
    if not isinstance(value, float):
        return value
    try:
        exact = Fraction(repr(value))
    except ValueError:
        raise InvalidInput(f"{key}={value!r}: expected a number", "builder") from None
    warnings.warn(f"{key}={value!r} is taken for {exact} exactly", stacklevel=_depth())
    return exact


def _depth() -> int:
    """How many frames the caller is above `exactly`, as `warnings.warn` counts."""
    depth, frame = 2, sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_OURS):
        depth, frame = depth + 1, frame.f_back
    return depth


def near(name: str, known: Iterable[str]) -> str:
    """A question about names like ``name``, or nothing."""
    found = get_close_matches(name, list(known), n=3)
    return f" (did you mean {', '.join(found)}?)" if found else ""

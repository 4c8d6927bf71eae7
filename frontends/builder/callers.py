"""What a builder makes of how it is called: the caller's line, numbers as they are meant, names."""

from __future__ import annotations

import sys
import warnings
from fractions import Fraction
from math import isqrt
from pathlib import Path
from typing import NamedTuple

from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.ir import Attr

#: Modules whose frames are passed over on the way to the caller.
_OURS = "shardproof.frontends.builder"


class Sqrt(NamedTuple):
    """The square root of a positive number, exactly: ``Sqrt(128)`` is no decimal.

    Example: ``Sqrt(64).rational()`` is 8, ``Sqrt(2).rational()`` None.

    ``body.div_constant(scores, Sqrt(head_dim))`` divides by it on both sides alike; the root of a
    square is the number itself.
    """

    of: Fraction | int

    def rational(self) -> Fraction | None:
        """The root, where it is a fraction; raises `InvalidInput` for what has no root."""
        if isinstance(self.of, float) or self.of <= 0:
            raise InvalidInput(f"{self}: expected a positive integer or fraction", "builder")
        root = Fraction(isqrt(self.of.numerator), isqrt(self.of.denominator))
        return root if root * root == self.of else None


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


def exactly(key: str, value: Attr | float | Sqrt) -> Attr:
    """An attribute, a float among them taken for the decimal that it prints as, with a warning; the
    root of a square is a number.

    Example: ``eps=1e-05`` is 1/100000, ``Sqrt(64)`` is 8; ``Sqrt(2)`` as an attribute is refused.

    Raises `InvalidInput` for what is no number, or no exact one.
    """
    if isinstance(value, Sqrt):
        root = value.rational()
        if root is None:
            raise InvalidInput(
                f"{key}=Sqrt({value.of}): an attribute is a fraction; a value is multiplied by a "
                f"root with mul_constant(x, Sqrt({value.of})), and divided with div_constant",
                "builder",
            )
        return root
    if not isinstance(value, float):
        return value
    try:
        exact = Fraction(repr(value))
    except ValueError:
        raise InvalidInput(f"{key}={value!r}: expected a number", "builder") from None
    warnings.warn(f"{key}={value!r} is taken for {exact} exactly", stacklevel=depth())
    return exact


def depth() -> int:
    """How many frames the caller is above what warns, as `warnings.warn` counts.

    Example: the warning of ``body.rms_norm(x, w, 1e-5)`` is about the line of the user's file, not
    one of the builder's.
    """
    frames, frame = 2, sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_OURS):
        frames, frame = frames + 1, frame.f_back
    return frames

"""Names that somebody may have meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def near(name: str, known: Iterable[str]) -> str:
    """A question about known names like ``name``, to put behind a message; or nothing.

    Example: ``near("allreduce", ["all_reduce", "add"])`` is `` (did you mean all_reduce?)``.
    """
    matches = get_close_matches(name, list(known), n=3)
    return f" (did you mean {', '.join(matches)}?)" if matches else ""

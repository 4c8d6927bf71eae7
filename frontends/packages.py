"""Formats that installed packages read: the entry points ``shardproof.frontends``.

Each names a `frontends.frontend.Frontend`, for example
``tiny-graph = "my_package.reader:FRONTEND"``.
Packages are looked for when no frontend of ours recognises a path, and once in a process; what a
path or a file says is never imported.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import Any, Final, NamedTuple

GROUP: Final = "shardproof.frontends"


class Installed(NamedTuple):
    """``frontends``: what entry points name; ``problems``: what is wrong with packages that cannot
    be imported.

    Example: ``Installed((FRONTEND,), ("broken (my_package.reader:NAME): AttributeError: ...",))``.
    """

    frontends: tuple[Any, ...]
    problems: tuple[str, ...]


@cache
def load() -> Installed:
    """The frontends of packages, imported.

    Example: of the package in ``examples/package``, its frontend; without any package,
    ``Installed((), ())``.
    """
    loaded, problems = [], []
    for point in sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value)):
        try:
            loaded.append(point.load())
        except Exception as error:  # noqa: BLE001
            # Somebody else's code: whatever it raises, its format is not known, which says so
            # where a path is of no known format.
            problems.append(f"{point.name} ({point.value}): {type(error).__name__}: {error}")
    return Installed(tuple(loaded), tuple(problems))

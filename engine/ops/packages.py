"""Operators that installed packages declare: the entry points ``shardproof.operators``.

A package names a module that declares operators when it is imported, as
`engine.ops.declare.operator` has it.  Packages are looked for when a name is asked for that is not
declared here, and once in a process; what a plan or a file says is never imported.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import Final

GROUP: Final = "shardproof.operators"


@cache
def load() -> tuple[str, ...]:
    """Import what packages declare; returns what is wrong with those that cannot be imported.

    Example: ``("mine (my_kernels.ops): ModuleNotFoundError: No module named 'my_kernels'",)``, and
    empty where all can be imported.
    """
    problems = []
    for point in sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value)):
        try:
            point.load()
        except Exception as error:  # noqa: BLE001
            # Somebody else's code: whatever it raises, its operators are not declared, which says
            # so where one of them is asked for.
            problems.append(f"{point.name} ({point.value}): {type(error).__name__}: {error}")
    return tuple(problems)

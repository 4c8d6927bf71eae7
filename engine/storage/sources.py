"""Where this code lies on disk: what child processes and nodes of a cluster need on their path.

Example: in a checkout `import_root` is the checkout, and the folder of the floor ``engine`` is
``engine/`` in it; installed it is ``site-packages``, and the folder ``shardproof/engine/``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import shardproof

#: The floors below the face, lowest first.
FLOORS: Final = (
    "engine",
    "solvers",
    "partition",
    "frontends",
    "checker",
    "cluster",
    "diagnosis",
    "mutation",
)
_FACE: Final = Path(shardproof.__path__[0]).resolve()


def import_root() -> Path:
    """The folder that has to be on ``sys.path`` for ``import shardproof``.

    Example: ``/home/me/shardproof`` of a checkout there.
    """
    return _FACE.parent


def python_path() -> str:
    """PYTHONPATH for a child process: this code, then what this process was given.

    Example: ``/home/me/shardproof:/home/me/lib``, where this process was given ``/home/me/lib``.
    """
    inherited = os.environ.get("PYTHONPATH")
    root = str(import_root())
    return f"{root}{os.pathsep}{inherited}" if inherited else root


def sources() -> Iterator[tuple[str, Path]]:
    """Every source file with its name, the same for a checkout and an installation
    (``engine/plan/ir.py``, ``shardproof/cli.py``), in order of names within a floor.

    Example: the first one is ``("engine/__init__.py", .../engine/__init__.py)``.
    """
    for floor in FLOORS:
        folder = next(
            place for base in shardproof.__path__ if (place := Path(base) / floor).is_dir()
        )
        for path in sorted(folder.rglob("*.py")):
            yield f"{floor}/{path.relative_to(folder).as_posix()}", path
    for path in sorted(_FACE.rglob("*.py")):
        inside = path.relative_to(_FACE)
        if inside.parts[0] not in FLOORS:
            yield f"shardproof/{inside.as_posix()}", path

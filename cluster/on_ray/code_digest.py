"""Which code this is: nodes that do a part of a run must have that of its driver."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent

#: What a verdict depends on, and what carries it.
FOLDERS: Final = ("checker", "cluster", "engine", "frontends", "partition", "shardproof", "solvers")


@functools.cache
def digest(root: Path = ROOT) -> str:
    """SHA-256 of all sources, names included."""
    found = hashlib.sha256()
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            source = path.read_bytes()
            found.update(f"{path.relative_to(root).as_posix()} {len(source)}\n".encode())
            found.update(source)
    return found.hexdigest()

"""Which code this is: nodes that do a part of a run must have that of its driver."""

from __future__ import annotations

import functools
import hashlib

from shardproof.engine.storage.sources import sources


@functools.cache
def digest() -> str:
    """SHA-256 of all sources, names included.

    Example: a node with an older checkout has another one, and its tasks raise ClusterError.
    """
    sha = hashlib.sha256()
    for name, path in sources():
        source = path.read_bytes()
        sha.update(f"{name} {len(source)}\n".encode())
        sha.update(source)
    return sha.hexdigest()

"""What a worker reserves, and where workers fit: arithmetic over nodes, without Ray.

A *level* is the memory that one solver child may have; a worker reserves one level per child.
Levels double from :data:`LEAST_BYTES` to the user's limit, or to what the roomiest node has. Beside
its children a worker is a process itself (:data:`WORKER_BYTES`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

MIB = 1 << 20

LEAST_BYTES = 256 * MIB
"""The smallest level: below it a solver that keeps some memory is replaced all the time."""

WORKER_BYTES = 160 * MIB
"""What a worker holds besides its children: Python, Ray, Arrow and a table of texts."""

MAPPED_BYTES = 32 * MIB
"""What a child maps and never holds resident (its limit is on address space)."""


class Node(NamedTuple):
    """A node that is alive: CPUs, and bytes that workers may reserve.

    Example: ``Node("a", 8, 16 << 30)``, eight CPUs and 16 GiB.
    """

    name: str
    cpus: int
    memory_bytes: int


def reservation(level: int, children: int) -> int:
    """The bytes that a worker reserves.

    Example: 672 MiB for a worker with two children of 256 MiB.
    """
    return WORKER_BYTES + level * children


def levels(limit_bytes: int | None, room_bytes: int, children: int) -> tuple[int, ...]:
    """The levels below a limit, rising; the last is the limit itself, or what a worker that has
    the ``room_bytes`` of a node to itself can give each of its children.

    Example: two children on a node of 4 GiB: 256, 512, 1024 and 1968 MiB; on one of 500 MiB, none.

    Empty where there is less room than the first level takes.
    """
    share = (room_bytes - WORKER_BYTES) // children
    most = share if limit_bytes is None else min(limit_bytes, share)
    if most < min(LEAST_BYTES, limit_bytes or LEAST_BYTES):
        return ()
    result = []
    level = LEAST_BYTES
    while level < most:
        result.append(level)
        level *= 2
    return (*result, most)


def level_for(ladder: Sequence[int], need_mib: float) -> int:
    """The lowest level that holds a peak of so many MiB; the last one if none does.

    Example: of 256, 512 and 1024 MiB, a peak of 230 MiB needs 512: 32 MiB of a child's limit are
    address space only.
    """
    need = need_mib * MIB + MAPPED_BYTES
    return next((level for level in ladder if level >= need), ladder[-1])


def fits(node: Node, reservation: int) -> int:
    """How many workers of one CPU and so many bytes a node has room for.

    Example: a node of 8 CPUs and 16 GiB has room for four workers of 4 GiB, one of 2 CPUs and 64
    GiB for two.
    """
    return min(node.cpus, node.memory_bytes // reservation)


def places(nodes: Sequence[Node], reservation: int, workers: int | None) -> list[str]:
    """The node of each worker: one by one over the nodes that have room left, emptiest first.

    Example: those two nodes, ``a`` and ``b``: ``a``, ``b``, ``a``, ``b``, ``a``, ``a``; with
    ``workers`` 3 the first three.
    """
    room = {node.name: fits(node, reservation) for node in nodes}
    wanted = sum(room.values()) if workers is None else min(workers, sum(room.values()))
    chosen: list[str] = []
    while len(chosen) < wanted:
        for name in sorted(room, key=lambda name: (-room[name], name)):
            if room[name] and len(chosen) < wanted:
                room[name] -= 1
                chosen.append(name)
    return chosen


def widest(ladder: Sequence[int], nodes: Sequence[Node], children: int, workers: int | None) -> int:
    """The highest level that takes no worker from the pool: one at the first level has as many.

    Example: on 8 CPUs and 16 GiB with two children per worker, 512 MiB: eight workers fit, with 1
    GiB only seven.
    """
    most = len(places(nodes, reservation(ladder[0], children), workers))
    full = [x for x in ladder if len(places(nodes, reservation(x, children), workers)) == most]
    return full[-1]

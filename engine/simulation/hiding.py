"""Which inputs hide scores by a large number: a mask whose 1 is a position that counts.

``(1 - mask) * -1e9`` is added to scores.  Of a mask of any numbers one key has all the weight, and
nothing else is seen of the scores; of ones and zeros the others count.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Final

import numpy as np

from shardproof.engine.plan.ir import Body, Op, Program

#: From which magnitude on a factor hides scores.
LARGE: Final = 10**3
#: Operators that move numbers, or add to them.
THROUGH: Final = frozenset(
    {"add", "broadcast_to", "expand", "permute", "slice", "sub", "transpose", "view"}
)
#: Functions of scores of which a large one is all or nothing.
ENDS: Final = frozenset({"amax", "exp", "log_softmax", "logsumexp", "softmax"})


def hiding(program: Program) -> frozenset[str]:
    """Names of what is multiplied by a large number, alone or less one, and added to scores of a
    softmax, and of which nothing else is made.

    Example: the mask of ``softmax(scores + (1 - mask) * -1e9)``; not the scores.
    """
    names: set[str] = set()
    for body in program.bodies:
        behind = _behind(body)
        names |= {program.shards[n].name for value, n in body.shards if value in behind}
    return frozenset(names)


def zeros_and_ones(program: Program, seed: int) -> dict[str, Any]:
    """Random zeros and ones for what hides scores, where it may be these.

    Example: {"mask": [[1, 0, 1, 1]]} of an input ``mask`` [1, 4].
    """
    random, names = np.random.default_rng(seed), hiding(program)
    return {
        shard.name: np.rint(random.uniform(0.2, 1.0, shard.full_shape))
        for shard in program.shards
        if shard.name in names
        and (shard.domain is None or shard.domain[0] <= 0 < 1 < shard.domain[1])
    }


def _behind(body: Body) -> set[int]:
    """The values of which nothing is read but what a large factor hides scores by."""
    readers: dict[int, list[Op]] = {}
    for op in body.ops:
        for value in op.inputs:
            readers.setdefault(value, []).append(op)
    #: What is a score in the end; and what hides scores.
    scores, behind = set[int](), set[int]()

    def place(value: int) -> None:
        own = readers.get(value, [])
        if own and all(op.name in ENDS or _all_in(op, THROUGH, scores) for op in own):
            scores.add(value)
        if own and all(
            (_is_large(op) and scores.issuperset(op.outputs))
            or _all_in(op, THROUGH | {"mul"}, behind)
            for op in own
        ):
            behind.add(value)

    for op in reversed(body.ops):
        for value in op.outputs:
            place(value)
    for value, _ in body.shards:
        place(value)
    return behind


def _all_in(op: Op, names: frozenset[str], values: set[int]) -> bool:
    return op.name in names and values.issuperset(op.outputs)


def _is_large(op: Op) -> bool:
    factor = op.attrs.get("other")
    return op.name == "mul" and isinstance(factor, Fraction) and abs(factor) >= LARGE

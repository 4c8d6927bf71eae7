"""Products with infinity, which nothing reads but a choice that leaves them out, and what is minus
infinity on some ranks.

XLA's inverse of the error function is ``select(abs(x) == 1, x * inf, ...)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shardproof.frontends.graphs.graph import Shape

#: What stands for infinity once a choice reads it.
LARGE: Final = 10**30
ASSUMED: Final = (
    "infinity by which a number is multiplied is taken for 1e30: that no choice takes it is not "
    "shown"
)


@dataclass(frozen=True, slots=True)
class Endless:
    """A value of the body times plus (``sign`` 1) or minus infinity.

    Example: ``multiply(x, inf)`` of ``f32[4]`` is ``Endless(0, 1, (4,))``.
    """

    value: int
    sign: int
    shape: Shape


@dataclass(frozen=True, slots=True)
class Lowest:
    """A value of the body on the ranks of which ``shown`` is true, minus infinity on the others.

    Example: the scores of a block of a causal ring, which hides all of it from earlier ranks:
    ``Lowest(5, (False, True), (4, 4))`` on two ranks.
    """

    value: int
    shown: tuple[bool, ...]
    shape: Shape

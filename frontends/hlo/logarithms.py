"""The logarithm of a sum of two exponentials (``jnp.logaddexp``), as that.

JAX writes ``max(a, b) + log1p(exp(-|a - b|))``, by which nothing overflows: ``log(exp(a) +
exp(b))``, over the reals; with ``b`` 0 it is ``jax.nn.softplus``.  Where ``a`` or ``b`` is a
logarithm itself (a ring of attention, whose blocks are merged by the logarithms of their sums), the
sums of blocks are parts of one sum so.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Final

from shardproof.frontends.graphs.graph import Node
from shardproof.frontends.hlo import elementwise
from shardproof.frontends.hlo.items import Item, Tensor
from shardproof.frontends.hlo.state import Lowering

#: ``log(1 + exp(-|a - b|))``, from the outside to the inside.
_FORM: Final = ("log-plus-one", "exponential", "negate", "abs")
#: Operators that move what they are given, or choose.
_MOVES: Final = (
    *("reshape", "broadcast", "transpose", "slice", "select"),
    *("all-gather", "collective-permute"),
)


def add(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """x + y (`elementwise.add`); of a maximum and what a logarithm adds to it, the logarithm of the
    sum of both exponentials.

    Example: ``max(a, b) + log1p(exp(-abs(a - b)))``, ``a`` being ``log(s)``, is ``log(exp(a) +
    exp(b))``.
    """
    softened = _softened(low, node)
    if softened is not None:
        power = low.op("exp", low.tensor(low.items[softened]))
        return low.op("log", low.op("add", power.value, other=Fraction(1)).value)
    both = _merged(low, node)
    if both is None:
        return elementwise.add(low, node, xs)
    first, second = (low.op("exp", low.tensor(low.items[v])).value for v in both)
    return low.op("log", low.op("add", first, second).value)


def _softened(low: Lowering, node: Node) -> int | None:
    """The number of which a sum is the logarithm of 1 and its exponential (``jax.nn.softplus``):
    the larger one of it and 0, and what is added to that; None: it is another sum."""
    for largest, rest in (node.operands, node.operands[::-1]):
        top, inside = low.maker(largest), _inside(low, rest)
        if top is None or top.target != "maximum" or inside is None:
            continue
        of, zero = top.operands
        less = low.maker(inside)
        if inside != of and less is not None and less.target == "subtract":
            inside, zero_too = less.operands
        else:
            zero_too = zero
        zeros = (elementwise.finite(low.items[v]) == 0 for v in (zero, zero_too))
        if of == inside and all(zeros) and isinstance(low.items[of], Tensor):
            return of
    return None


def _merged(low: Lowering, node: Node) -> tuple[int, int] | None:
    """The two numbers of which a sum is the logarithm of the sum of exponentials; None: it is
    another sum."""
    for largest, rest in (node.operands, node.operands[::-1]):
        top, inside = low.maker(largest), _inside(low, rest)
        less = None if inside is None else low.maker(inside)
        if top is None or top.target != "maximum" or less is None or less.target != "subtract":
            continue
        first, second = top.operands
        tensors = all(isinstance(low.items[v], Tensor) for v in top.operands)
        if sorted(less.operands) == sorted(top.operands) and tensors:
            return (first, second) if any(_is_logarithm(low, v) for v in top.operands) else None
    return None


def _inside(low: Lowering, value: int) -> int | None:
    """The number whose magnitude makes what is added to a maximum; None: it is something else."""
    for target in _FORM:
        made = low.maker(value)
        if made is None or made.target != target:
            return None
        value = made.operands[0]
    return value


def _is_logarithm(low: Lowering, value: int) -> bool:
    """Whether a value is a logarithm, or something added to one, however it was moved."""
    made = low.maker(value)
    while made is not None and made.target in _MOVES:
        made = low.maker(made.operands[-1])
    if made is not None and made.target == "add":
        parts = [low.maker(v) for v in made.operands]
        return any(p is not None and p.target in ("log", "log-plus-one") for p in parts)
    return made is not None and made.target == "log"

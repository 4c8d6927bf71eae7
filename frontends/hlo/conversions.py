"""Casts: what an element type makes of a number that it does not have.

Between floats a cast is the identity over the reals.  XLA's conversion of a float to an integer
cuts what follows the point, and gives the nearest number of the type where that is none of it: -1
as ``u8`` is 0.  One of an integer to an integer keeps its lowest bits: -1 as ``u8`` is 255.  Both
are written out where numbers leave a type early: where it has few bits, or, of floats, no negative
numbers.  That others fit their type is an assumption (`overflow`).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from shardproof.frontends.graphs.graph import Node
from shardproof.frontends.hlo import gates, indices, overflow
from shardproof.frontends.hlo.elementwise import compare, maximum
from shardproof.frontends.hlo.expressions import Interval, interval_of
from shardproof.frontends.hlo.functions import Number
from shardproof.frontends.hlo.items import Ids, Item, Tensor
from shardproof.frontends.hlo.known import Known
from shardproof.frontends.hlo.state import Lowering, integral


def convert(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """A cast: between floats the identity over the reals; to integers a truncation; to predicates,
    whether it is not zero.  Example: ``f32`` to ``bf16`` is the operand; ``f32`` to ``s32`` is
    ``trunc``, under a printed assumption; to ``u8`` it lies between 0 and 255."""
    source = low.graph.values[node.operands[0]].dtype
    target = low.dtype(node)
    if isinstance(xs[0], Ids):
        if integral(target) or target == "bool":
            return indices.cast(xs[0], source, target)
        if source == "bool" and gates.is_predicate(xs[0]):
            return gates.number(low, xs[0])
        return Tensor(low.tensor(xs[0]))
    if source == target or source == "bool":
        # A predicate is 0 or 1, whatever type it has.
        if isinstance(xs[0], Known) and target != "bool":
            return Tensor(low.tensor(xs[0]))
        return xs[0]
    if target == "bool":
        zero = low.values.full(low.shape(node), Fraction(0))
        different = Node(node.name, "compare", (), node.results, {"direction": "NE"})
        return compare(low, different, [xs[0], Tensor(zero)])
    if not integral(target):
        return xs[0]
    return _wrapped(low, xs[0], source, target) if integral(source) else _cut(low, node, xs[0])


def _cut(low: Lowering, node: Node, x: Item) -> Item:
    """A float as an integer.  Example: 300.5 is 300 as ``s32``, 127 as ``s8``."""
    dtype = low.dtype(node)
    least, beyond = _interval(dtype)
    whole: Item = low.op("trunc", low.tensor(x))
    few = overflow.bits(dtype) < overflow.FEWEST_BITS
    if few or least == 0:
        whole = maximum(low, _as(node, "maximum"), [whole, _number(low, node, least)])
    if few:
        return maximum(low, _as(node, "minimum"), [whole, _number(low, node, beyond - 1)])
    overflow.assume_small(low)
    return whole


def _wrapped(low: Lowering, x: Item, source: str, target: str) -> Item:
    """An integer as one of another type.  Example: 300 is 44 as ``u8`` and as ``s8``."""
    (first, last), (least, beyond) = _interval(source), _interval(target)
    if least <= first and last <= beyond:
        return x
    if overflow.bits(target) >= overflow.FEWEST_BITS:
        overflow.assume_small(low)
        return x
    number, count = Number(low, low.tensor(x)), beyond - least
    turns = ((number + -least) * Fraction(1, count)).of("floor")
    return Tensor((number - turns * count).value)


def _interval(dtype: str) -> Interval:
    interval = interval_of(dtype)
    assert interval is not None
    return interval


def _as(node: Node, target: str) -> Node:
    return Node(node.name, target, (), node.results)


def _number(low: Lowering, node: Node, number: int) -> Item:
    value = np.array(number, low.dtype(node))
    return Known((np.broadcast_to(value, low.shape(node)),), low.dtype(node))

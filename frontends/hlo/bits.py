"""Bits of random numbers: what is computed of keys is known by its expression, not by its value.

Every element is the number of an expression (`Expressions`): an element of an input, a number, or
an operator of others.  Equal numbers are equal expressions, on whichever side and rank they stand,
so a rank that draws its part of a tensor draws just these elements of the single side's.  Bits that
become a number are a named input of both sides, by their expressions: a proof holds for any.  For
example, ``bernoulli(key, 0.9, (4, 8))`` is ``u < 0.9`` where every element of ``u`` is another
expression of ``key[0]``, ``key[1]`` and its position.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Final

import numpy as np

from shardproof.engine.errors import Unsupported
from shardproof.frontends.graphs.graph import Node, PerRank, Placement, Shape
from shardproof.frontends.graphs.recorder import everywhere
from shardproof.frontends.hlo import semantics
from shardproof.frontends.hlo.expressions import Expressions
from shardproof.frontends.hlo.items import Bits, Item
from shardproof.frontends.hlo.known import Known, compact
from shardproof.frontends.hlo.opcodes import ELEMENTWISE, MOVEMENT
from shardproof.frontends.hlo.state import Lowering, integral

#: Tensors of bits have at most so many different elements on all ranks.
MOST_BITS: Final = 1 << 17
#: One, as the bits of a float: with any fraction behind it, a number in [1, 2).
ONE: Final = 0x3F800000
#: How many bits of a float are not its fraction.
AHEAD: Final = 9
#: Types of the bits that keys are made of.
UNSIGNED: Final = ("uint32", "uint64")
#: So many operators of integers are looked back through for the inputs that a key is made of.
DEEPEST: Final = 16


def given(low: Lowering, position: int, shape: Shape, dtype: str, placed: Placement) -> Bits:
    """An input of random bits: for every element of every rank's part, its expression.

    Example: element [1, 0] of a key ``u32[2,2]`` is the expression ``("input", (0,), (2,))``:
    position 2 of input 0; on a rank whose part begins at row 1 it is element [0, 0].
    """
    strides = np.cumprod([1, *placed.full[:0:-1]])[::-1].astype(np.int64)
    arrays = []
    for start in placed.starts:
        at = np.indices(shape).reshape(len(shape), prod(shape))
        flat = ((at + np.array(start, dtype=np.int64).reshape(-1, 1)).T * strides).sum(axis=1)
        elements = low.expressions.many("input", (position,), [flat.astype(np.int64)])
        arrays.append(elements.reshape(shape))
    return _made(low, arrays, shape, dtype)


def _made(low: Lowering, arrays: Sequence[Any], shape: Shape, dtype: str) -> Bits:
    """Bits of these expressions; floats have to be of a fraction of random bits."""
    if dtype == "float32" and not all(
        _is_fraction(low.expressions, int(n)) for a in arrays for n in np.unique(a)
    ):
        raise Unsupported("random bits as a float that is not between 1 and 2")
    same = all(np.array_equal(a, arrays[0]) for a in arrays)
    kept = arrays[:1] if same else arrays
    if sum(compact(a).size for a in kept) > MOST_BITS:
        raise Unsupported(f"random bits of {sum(compact(a).size for a in kept)} numbers")
    return Bits(tuple(kept), shape, dtype)


def _numbers(low: Lowering, x: Item, rank: int) -> Any:
    """Expressions of an operand on a rank."""
    if isinstance(x, Bits):
        return x.arrays[rank if len(x.arrays) > 1 else 0]
    assert isinstance(x, Known)
    array = x.at(rank)
    core = compact(array)
    if not integral(x.dtype) and x.dtype != "bool":
        raise Unsupported("bits together with numbers that are no integers")
    flat = core.astype(np.int64).reshape(-1)
    elements = low.expressions.many("number", (x.dtype,), [flat]).reshape(core.shape)
    return np.broadcast_to(elements, array.shape)


def beside(low: Lowering, value: int) -> Item:
    """What a value is beside bits: integers without a sign that are computed of inputs are bits,
    too, such as the number of a step that is folded into a key.

    Example: ``convert(n)`` to u32 of an input ``n`` of s32 is the expression of its element; an
    integer that was looked up, or one of s32, is what it is.
    """
    unsigned = low.graph.values[value].dtype in UNSIGNED
    return (_bits(low, value, DEEPEST) if unsigned else None) or low.items[value]


def mixed(low: Lowering, node: Node) -> bool:
    """Whether the bits of a seed are mixed: an exclusive "or" of integers without a sign, which has
    no rule as a number, is bits then.

    Example: ``xor(convert(n), 7)`` of an input ``n``; one of integers that were looked up is
    refused.
    """
    if node.target != "xor" or low.dtype(node) not in UNSIGNED:
        return False
    try:
        item = apply(low, node, [beside(low, v) for v in node.operands])
    except Unsupported:
        return False
    if item is not None:
        low.items[node.results[0]] = item
    return item is not None


def _bits(low: Lowering, value: int, depth: int) -> Item | None:
    """Integers that are computed of inputs and known ones, as bits; None: of something else."""
    item = low.items[value]
    of_value = low.graph.values[value]
    if isinstance(item, Bits | Known):
        return item
    if depth == 0 or not integral(of_value.dtype):
        return None
    node = low.maker(value)
    if node is None:
        numbers = [n for n, x in enumerate(low.graph.inputs) if x.value == value]
        placed = low.graph.inputs[numbers[0]].placement
        placed = placed or everywhere(of_value.shape, low.graph.ranks)
        return given(low, numbers[0], of_value.shape, of_value.dtype, placed)
    operands = [_bits(low, v, depth - 1) for v in node.operands]
    known = [x for x in operands if x is not None]
    if len(node.results) != 1 or len(known) < len(operands):
        return None
    return apply(low, node, known)


def apply(low: Lowering, node: Node, xs: Sequence[Item]) -> Bits | None:
    """The result of an operator that only bits and known integers go into; None: it makes numbers
    of them.

    Example: ``xor(k[0:1], k[1:2])`` is one element, the expression of ``xor`` of elements 0 and 1
    of the key; ``convert`` of it to f32 is None: there the bits become a number.
    """
    dtype, shape = low.dtype(node), low.shape(node)
    if node.groups or node.pairs or not all(isinstance(x, Bits | Known) for x in xs):
        return None
    floats = [x for x in xs if not integral(x.dtype) and x.dtype != "bool"]  # type: ignore[union-attr]
    if node.target in MOVEMENT and all(isinstance(x, Bits) or not floats for x in xs):
        compute = _movement
    elif (node.target in ELEMENTWISE or node.target == "compare") and not floats:
        if node.target == "convert" and not integral(dtype) and dtype != "bool":
            return None
        compute = _computed
    else:
        return None
    by_rank = any(isinstance(s, PerRank) for s in node.attrs.get("starts", ()))
    count = low.graph.ranks if by_rank else max(len(x.arrays) for x in xs)  # type: ignore[union-attr]
    arrays = [
        compute(low, node, [_numbers(low, x, rank) for x in xs], rank) for rank in range(count)
    ]
    return _made(low, arrays, shape, dtype)


def _movement(low: Lowering, node: Node, xs: Sequence[Any], rank: int) -> Any:
    at = [
        np.array(s.values[rank] if isinstance(s, PerRank) else s)
        for s in node.attrs.get("starts", ())
    ]
    return semantics.apply(node.target, node.attrs, [*xs, *at], low.shape(node))


def _computed(low: Lowering, node: Node, xs: Sequence[Any], rank: int) -> Any:
    cores = np.broadcast_arrays(*(compact(x) for x in xs))
    shape = cores[0].shape
    attrs = tuple(sorted((k, str(v)) for k, v in node.attrs.items()))
    key = (node.target, attrs, low.dtype(node))
    elements = low.expressions.many(*key[:1], key[1:], [c.reshape(-1) for c in cores])
    return np.broadcast_to(elements.reshape(shape), low.shape(node))


def _is_fraction(known: Expressions, number: int) -> bool:
    """Whether an expression is a float of which the fraction is bits that were shifted there."""
    name, _, operands = known.at(number)
    if name != "bitcast-convert":
        return False
    name, _, operands = known.at(operands[0])
    parts = [known.at(n) for n in operands] if name == "or" else []
    ones = any(p[0] == "number" and p[2] == (ONE,) for p in parts)
    for part in parts:
        if part[0] == "shift-right-logical":
            by = known.at(part[2][1])
            if by[0] == "number" and AHEAD <= by[2][0] < 32:
                return ones
    return False

"""Floats that constants alone make, beside the operators that they are lowered to.

A float that is computed stays an operator on both sides, since float32 rounds and our numbers do
not. Its number is kept beside it for two uses: where it is exact, what becomes an integer of it is
known (rows of a picture that is made larger: ``floor((iota + 0.5) * 2 / 4)``); and what no rule
says (a running product of a schedule) is a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from shardproof.engine.errors import InvalidInput, Unsupported
from shardproof.engine.plan.assumption import Assumption
from shardproof.frontends.graphs.graph import Node
from shardproof.frontends.hlo import semantics
from shardproof.frontends.hlo.known import Known, compact
from shardproof.frontends.hlo.module import Array
from shardproof.frontends.hlo.opcodes import MOVEMENT
from shardproof.frontends.hlo.state import Lowering, Numbers, integral

#: Numbers are kept of tensors of up to this many elements.
MOST_KEPT: Final = 1 << 16
#: Sums and products of multiples of the smaller one, up to the larger one, are exact in float64.
_FINEST, _LARGEST = 2.0**-8, 2.0**16
_ARITHMETIC: Final = frozenset({"add", "subtract", "multiply", "divide"})
_NEVER_ROUNDED: Final = frozenset(
    {"negate", "abs", "maximum", "minimum", "floor", "ceil", *MOVEMENT}
)
#: How many binary digits a number of the type has.
_DIGITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}
TABLE = "of constants alone; a table of its numbers in double precision"
FOLDED = "what constants alone make is the table that the single device has of these numbers"
ROUNDED = (
    "integers that are made of rounded numbers, of constants alone, are those that double and "
    "single precision both give"
)


def keep(low: Lowering, node: Node) -> None:
    """Keep the numbers of a node that is lowered, where constants alone make it; where they are
    those of a table that the other side has, it is that table.

    Example: of ``add(iota, 0.5)`` of ``f32[3]`` the numbers 0.5, 1.5 and 2.5 beside the operator.
    """
    if len(node.results) != 1 or low.dtype(node) not in _DIGITS:
        return
    made = _made(low, node)
    if made is None:
        return
    low.numbers[node.results[0]] = made
    if node.target not in MOVEMENT and (table := _of_other(low, made)) is not None:
        low.items[node.results[0]] = Known((table,), low.dtype(node))
        low.recorder.notes.append(Assumption("inferred", "numbers of constants", "", FOLDED))


def _of_other(low: Lowering, made: Numbers) -> Array | None:
    """A table of the other side with these numbers, in single precision, in their shape; None: it
    has none, or they are one number, or zeros and ones (a mask).

    Example: ``q - 1`` of a constant ``q``, which JAX computes by itself outside of ``shard_map``.
    """
    numbers = compact(made.single[0])
    if len(made.single) > 1 or np.unique(numbers).size < 2 or np.isin(numbers, (0, 1)).all():
        return None
    line = numbers.reshape([n for n in numbers.shape if n > 1])
    if not any(np.array_equal(line, table.astype(np.float32)) for table in low.other.tables):
        return None
    return np.broadcast_to(numbers, made.single[0].shape)


def whole(low: Lowering, node: Node) -> Known | None:
    """What a conversion to integers makes of a float that constants alone make, where it is known
    exactly, or where double and single precision give the same integers, which is printed then;
    None: it is another one.

    Example: of ``floor([0.25, 0.75, 1.25])`` the integers ``[0, 0, 1]``, of buckets of relative
    positions by a logarithm theirs.
    """
    if node.target != "convert" or not integral(low.dtype(node)):
        return None
    given = low.numbers.get(node.operands[0])
    if given is None or any(a.size and np.abs(a).max() >= _LARGEST for a in given.arrays):
        return None
    if not given.exact and not _agree(given):
        return None
    if not given.exact:
        low.recorder.notes.append(Assumption("inferred", "rounded integers", "", ROUNDED))
    whole = (np.trunc(_rounded(a)) for a in given.arrays)
    return Known(tuple(a.astype(low.dtype(node)) for a in whole), low.dtype(node))


def _rounded(numbers: Array) -> Array:
    """Numbers as single precision has them: 1 for what is 1 but for the rounding of a literal."""
    return numbers.astype(np.float32)


def _agree(given: Numbers) -> bool:
    """Whether double and single precision give the same integers.

    Example: ``8 * log(2) / log(16)`` is 2 in both; what is 2 in one and 1.9999999 in the other is
    not known.
    """
    pairs = zip(given.arrays, given.single, strict=True)
    return all(np.array_equal(np.trunc(_rounded(a)), np.trunc(b)) for a, b in pairs)


def table(low: Lowering, node: Node) -> bool:
    """Whether a node without a rule is a table, since constants alone make it; it is one then.

    Example: ``jnp.cumprod(1 - betas)`` of constants, a window that multiplies, is a constant.
    """
    if len(node.results) != 1 or low.dtype(node) not in _DIGITS:
        return False
    made = _made(low, node)
    if made is None:
        return False
    low.items[node.results[0]] = Known(made.arrays, low.dtype(node))
    low.recorder.notes.append(Assumption("inferred", node.target, "", f"{node.target} {TABLE}"))
    return True


def _made(low: Lowering, node: Node) -> Numbers | None:
    if node.groups or node.pairs or "starts" in node.attrs or not node.operands:
        return None
    operands = [_numbers(low, v) for v in node.operands]
    given = [x for x in operands if x is not None]
    shape = low.shape(node)
    if len(given) < len(operands) or int(np.prod(shape)) > MOST_KEPT:
        return None
    ranks = max(len(x.arrays) for x in given)
    exact, arrays, single = all(x.exact for x in given), [], []
    for rank in range(ranks):
        xs = [x.arrays[rank if len(x.arrays) > 1 else 0] for x in given]
        narrow = [x.single[rank if len(x.single) > 1 else 0] for x in given]
        try:
            with np.errstate(all="ignore"):
                made = semantics.apply(node.target, node.attrs, xs, shape).astype(np.float64)
                own = semantics.apply(node.target, node.attrs, narrow, shape)
        except (Unsupported, InvalidInput, OverflowError):
            return None
        if made.shape != shape or not np.all(np.isfinite(made)):
            return None
        exact = exact and _exact(node.target, xs, made, _DIGITS[low.dtype(node)])
        arrays.append(made)
        single.append(own.astype(np.float32))
    return Numbers(tuple(arrays), exact, tuple(single))


def _numbers(low: Lowering, value: int) -> Numbers | None:
    item = low.items[value]
    if not isinstance(item, Known):
        return low.numbers.get(value)
    if any(compact(a).size > MOST_KEPT or a.size > MOST_KEPT for a in item.arrays):
        return None
    kinds = (np.float64, np.float32) if item.dtype in _DIGITS else (None, None)
    double, single = (
        item.arrays if kind is None else tuple(a.astype(kind) for a in item.arrays)
        for kind in kinds
    )
    return Numbers(double, True, single)


def _exact(opcode: str, xs: Sequence[Array], made: Array, digits: int) -> bool:
    """Whether neither float64 nor the type rounds what an operator makes of exact numbers."""
    if opcode in _NEVER_ROUNDED:
        return True
    if opcode not in _ARITHMETIC or not all(_coarse(x) for x in xs):
        return False
    if opcode == "divide" and not np.array_equal(np.multiply(made, xs[1]), xs[0]):
        return False
    return bool(np.all(np.frexp(made)[0] * 2.0**digits % 1 == 0))


def _coarse(x: Array) -> bool:
    return bool(np.all(np.abs(x) <= _LARGEST) and np.all(np.divide(x, _FINEST) % 1 == 0))

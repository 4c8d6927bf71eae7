"""Integers that wrap around: what is computed of them is what it is over all whole numbers only
where it fits their type.

Functions of an id are exact, and are refused where a value of theirs is none of the type.  Of other
integers nothing says how large they are: of 32 bits or more it is an assumption that none wraps
around; of fewer, sums and products are refused, since they do so early.
"""

from __future__ import annotations

from typing import Any, Final

from shardproof.engine.errors import Unsupported
from shardproof.engine.plan.assumption import Assumption
from shardproof.frontends.graphs.graph import Node
from shardproof.frontends.hlo.expressions import interval_of
from shardproof.frontends.hlo.items import Ids, Item
from shardproof.frontends.hlo.known import Known
from shardproof.frontends.hlo.state import Lowering, integral

#: Integers of fewer bits are not computed with.
FEWEST_BITS: Final = 32
_ARITHMETIC: Final = frozenset(
    {"add", "subtract", "multiply", "negate", "abs", "power", "dot", "shift-left"}
)
_ASSUMED: Final = "integers that are computed of numbers do not overflow"


def assume_small(low: Lowering) -> None:
    """Assume that integers do not overflow.  Example: how many labels count, as ``s32``."""
    low.recorder.notes.append(Assumption("inferred", "overflow", "", _ASSUMED))


def bits(dtype: str) -> int:
    """How many bits an integer of a type has.  Example: 8 for ``uint8``."""
    return int("".join(c for c in dtype if c.isdigit()))


def checked(low: Lowering, node: Node, item: Item) -> Item:
    """The result of an operator, where it fits its type, or is assumed to; raises `Unsupported`
    where it may wrap around.

    Example: ``ids - 200`` of ids ``u8`` in [0, 256) is refused, and so is the sum of two tensors of
    ``s8``; of ``s32`` the sum prints an assumption.
    """
    dtype = low.dtype(node)
    if not integral(dtype) or not _computes(node) or isinstance(item, Known):
        return item
    few = bits(dtype) < FEWEST_BITS
    if isinstance(item, Ids):
        if few or dtype.startswith("uint"):
            _fits(item, dtype)
        return item
    if few:
        raise Unsupported(f"arithmetic of {dtype}, which may wrap around")
    assume_small(low)
    return item


def _computes(node: Node) -> bool:
    """Whether results may be larger than operands: arithmetic, and sums and products of many."""
    how: Any = node.attrs.get("to_apply", "")
    return node.target in _ARITHMETIC or how in ("add", "multiply")


def _fits(item: Ids, dtype: str) -> None:
    interval = interval_of(dtype)
    assert interval is not None
    for function in item.functions:
        for piece in function:
            if not all(
                interval[0] <= piece.at(i) < interval[1] for i in (piece.low, piece.high - 1)
            ):
                raise Unsupported(f"index arithmetic of {dtype} that wraps around")

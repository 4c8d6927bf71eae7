"""Whole numbers that an operator computes: whether they are whole, or PyTorch cuts a fraction off.

A rule computes with real numbers.  Where PyTorch's result is of a type of whole numbers, what is
computed has to be whole, too: ``avg_pool1d`` of whole numbers is none, since it divides their sum
and cuts off the fraction, and neither is ``index_fill(labels, 0, rows, 1.5)``, which writes 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Final

import numpy as np

from shardproof.engine.plan.ir import Op
from shardproof.frontends.aten.lowering import Lowering, floating

#: What gives whole numbers of any numbers.
_ROUNDS: Final = frozenset({"floor", "ceil", "round", "trunc"})
#: Operators whose result is not whole where their operands are.
_DIVIDES: Final = frozenset({"div"})
#: Operators whose derivatives are entries of the gradient that arrives, or zero, or minus these.
_CHOOSES: Final = frozenset({"abs", "embedding", "pick", "relu"})
#: Operators that move numbers, or choose some of them.
MOVES: Final = frozenset(
    {
        *("view", "permute", "expand", "slice", "concat", "embedding", "pick", "amax", "relu"),
        *("all_gather", "all_to_all", "broadcast", "recv"),
    }
)


def whole(lo: Lowering, number: int) -> bool:
    """Whether a value is whole where all whole numbers that it is computed of are.

    Example: the sum of ids, and their product with 2, but not with 1.5; of a float it is not.
    """
    todo = {number}
    for op in reversed(lo.ops):
        made = todo.intersection(op.outputs)
        if made:
            read = _read(op, made)
            if read is None:
                return False
            todo -= made
            todo.update(v for v in read if v not in lo.integral)
        if not todo:
            break
    return all(_is_whole_input(lo, v) for v in todo)


def keeps_type(lo: Lowering, number: int, dtype: str) -> bool:
    """Whether a value has numbers of ``dtype`` alone, computed by nothing that may leave that type.

    Example: a slice of a tensor of uint8, but not the sum of two, which wraps around.
    """
    todo = {number}
    for op in reversed(lo.ops):
        if todo.isdisjoint(op.outputs):
            continue
        if op.name not in MOVES or op.backward:
            return False
        todo.difference_update(op.outputs)
        todo.update(v for v in op.inputs[:1] if op.name in {"embedding", "pick"})
        todo.update(v for v in op.inputs if op.name not in {"embedding", "pick"})
    return all(lo.values[v].dtype == dtype for v in todo)


def _read(op: Op, made: set[int]) -> Sequence[int] | None:
    """The operands that have to be whole for these results to be; None: they are not."""
    zero = op.name == "mul" and op.attrs.get("other") == 0
    places = op.name == "topk" and made == {op.outputs[1]}
    if (zero or places or op.name in _ROUNDS) and not op.backward:
        return ()
    if op.name in _DIVIDES or any(map(_is_fraction, op.attrs.values())):
        return None
    arity = op.attrs.get("arity") if op.backward and op.name in _CHOOSES else 0
    return [v for v in op.inputs[arity:] if v >= 0] if isinstance(arity, int) else None


def _is_fraction(value: Any) -> bool:
    return isinstance(value, Fraction) and value.denominator != 1


def _is_whole_input(lo: Lowering, number: int) -> bool:
    """Whether an input is of whole numbers, or of truth values; or a table of constants that are
    whole."""
    if not floating(lo.values[number].dtype):
        return True
    names = {v: lo.shards[shard].name for v, shard in lo.bound}
    entries = lo.contents.get(names.get(number, ""))
    return entries is not None and bool((np.asarray(entries) % 1 == 0).all())

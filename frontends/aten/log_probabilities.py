"""Entries of log-probabilities: what they are picked of, what is taken off it, and how losses are
read beside what a program picks itself."""

from __future__ import annotations

from typing import Any

from shardproof.engine.plan.ir import Op
from shardproof.frontends.aten.lowering import Lowered, Lowering, Real
from shardproof.frontends.aten.readings import Reading
from shardproof.frontends.aten.roots import VIEWS, maker, origin


def taken_apart(lo: Lowering, table: Real) -> tuple[Real, Lowered] | None:
    """Of a log-softmax [..., n], or a view of it with as long rows, what an entry of each row is
    picked of and the number [...] that is taken off the entry, as losses are read (`Reading`); None
    of any other value.

    Example: of ``F.log_softmax(z, -1)``, ``z - z.amax(-1)`` and the logarithm of the sum of its
    exponentials, beside scores that the other side picks ``z`` and that plus the maximum.
    """
    number = table.number
    while (known := lo.exponentials.get(number)) is None:
        op = maker(lo, number)
        if op is None or not (op.name == "view" or _cast(lo, op)):
            return None
        number = op.inputs[0]
    rows, _, total, scores, most = known
    if rows.shape[-1:] != table.shape[-1:]:
        return None
    log: Any = lo.unary("log", total)
    if lo.reading is Reading.SCORES:
        rows, log = scores, lo.add(log, most)
    return lo.real(lo.reshape(rows, table.shape)), lo.reshape(log, table.shape[:-1])


def picks(lo: Lowering) -> Reading:
    """How losses are read beside what a program picks by ids.

    Example: of ``logits.gather(-1, ids)``, where ``logits.amax(-1)`` is read too, `Reading.SCORES`;
    of ``log_softmax(z, -1) * one_hot(ids, n)``, `Reading.LOGARITHMS`.
    """
    tables = [table.number for table in lo.picked] + _times_one_hot(lo)
    if any(_of_logarithms(lo, table) for table in tables):
        return Reading.LOGARITHMS
    largest = [origin(lo, op.inputs[0]) for op in lo.ops if op.name == "amax"]
    scores = [origin(lo, table) for table in tables]
    every = any(one is not None and one is other for one in scores for other in largest)
    return Reading.SCORES if every else Reading.SHIFTED


def _times_one_hot(lo: Lowering) -> list[int]:
    """Values that a one-hot of ids multiplies, or one that is scaled and shifted (smoothed labels):
    it picks of them."""
    hot, tables = set[int](), list[int]()
    for op in lo.ops:
        numbers = op.name in ("mul", "add", "to") and len(op.inputs) == 1
        moved = numbers or op.name in VIEWS
        if (op.name == "pick" and op.backward) or (moved and op.inputs[0] in hot):
            hot.update(op.outputs)
        elif op.name == "mul" and not hot.isdisjoint(op.inputs):
            tables += [n for n in op.inputs if n not in hot]
    return tables


def _of_logarithms(lo: Lowering, table: int) -> bool:
    """Whether a value is the difference of something and a logarithm."""
    op = _behind_casts(lo, table)
    if op is None or op.name != "sub" or op.backward:
        return False
    less = _behind_casts(lo, op.inputs[1]) if len(op.inputs) == 2 else None
    return less is not None and less.name == "log"


def _behind_casts(lo: Lowering, number: int) -> Op | None:
    """The operator that made what a value is a view of, of whatever floating type."""
    op = origin(lo, number)
    while op is not None and _cast(lo, op):
        op = origin(lo, op.inputs[0])
    return op


def _cast(lo: Lowering, op: Op) -> bool:
    """Whether an operator changes nothing but the floating type: its numbers are the same."""
    types = [lo.values[n].dtype for n in (*op.inputs, *op.outputs)]
    return op.name == "to" and all("float" in dtype for dtype in types)

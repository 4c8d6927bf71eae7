"""Blocks of a softmax that are merged by the logarithms of their sums.

Flash attention in a ring writes ``out - sigmoid(b - a) (out - part)`` and ``a - logsigmoid(a -
b)``, where ``a`` and ``b`` are the logarithms of the sums of two blocks.  By what sigmoid is, with
``m = log(exp(a) + exp(b))`` the first is ``out exp(a - m) + part exp(b - m)``, and the second is
``m``, for all real numbers.  Written so, sums of blocks are parts of one sum.

Flash decoding gathers the logarithms of all ranks' sums, and weighs what the ranks give by their
softmax.  By what it is, that of ``a`` is ``exp(a - log(sum(exp(a))))``.
"""

from __future__ import annotations

from typing import Any

from shardproof.engine.plan.ir import Op
from shardproof.frontends.aten.lowering import Lowered, Lowering, Operand, Real
from shardproof.frontends.aten.roots import VIEWS, maker, origin, value


def merged(lo: Lowering, x: Lowered, y: Operand) -> Any:
    """``x - y``, where that is one of the two merges; None: it is another difference.

    Example: of ``x``, and ``sigmoid(b - a) * (x - part)`` with ``a = scores.logsumexp(-1)`` and
    ``b`` that of other scores, it is ``x exp(a - m) + part exp(b - m)``.
    """
    if not isinstance(x, Real) or not isinstance(y, Real):
        return None
    op = _op(lo, y.number, "mul", "log_sigmoid")
    if op is None:
        return None
    if op.name == "log_sigmoid":
        gap = _logarithms(lo, op.inputs[0])
        return _total(lo, *gap) if gap is not None and gap[0].number == x.number else None
    for gate, rest in (op.inputs, op.inputs[::-1]) if len(op.inputs) == 2 else ():
        opened, other = _op(lo, gate, "sigmoid"), _op(lo, rest, "sub")
        gap = None if opened is None else _logarithms(lo, opened.inputs[0])
        if gap is None or other is None or len(other.inputs) != 2 or other.inputs[0] != x.number:
            continue
        of_part, of_x = gap
        total = _total(lo, of_x, of_part)
        part = value(lo, other.inputs[1])
        return lo.add(_share(lo, x, of_x, total), _share(lo, part, of_part, total))
    return None


def gathered_logarithms(lo: Lowering, x: Real) -> bool:
    """Whether ranks have gathered a value of logarithms of sums.

    Example: ``all_gather(scores.logsumexp(-1))``; not the scores themselves, gathered or not.
    """
    op, gathered = maker(lo, x.number), False
    while op is not None and (op.name in VIEWS or op.name == "all_gather"):
        gathered |= op.name == "all_gather"
        x = value(lo, op.inputs[0])
        op = maker(lo, x.number)
    return gathered and _is_logarithm(lo, x.number)


def _share(lo: Lowering, x: Real, own: Real, total: Any) -> Any:
    return lo.mul(x, lo.unary("exp", lo.sub(own, total)))


def _total(lo: Lowering, one: Real, other: Real) -> Any:
    """The logarithm of the sum of two sums, of their logarithms."""
    return lo.unary("log", lo.add(lo.unary("exp", one), lo.unary("exp", other)))


def _logarithms(lo: Lowering, number: int) -> tuple[Real, Real] | None:
    """The two logarithms of sums that a value is the difference of; None: it is another value."""
    op = _op(lo, number, "sub")
    if op is None or len(op.inputs) != 2 or not all(_is_logarithm(lo, n) for n in op.inputs):
        return None
    first, second = (value(lo, n) for n in op.inputs)
    return first, second


def _is_logarithm(lo: Lowering, number: int) -> bool:
    """Whether a value is a logarithm, or a maximum added to one, as ``logsumexp`` gives it."""
    op = origin(lo, number)
    if op is None or op.backward:
        return False
    return op.name == "log" or (op.name == "add" and any(_is_log(lo, n) for n in op.inputs))


def _is_log(lo: Lowering, number: int) -> bool:
    op = origin(lo, number)
    return op is not None and op.name == "log"


def _op(lo: Lowering, number: int, *names: str) -> Op | None:
    """The operator of one of these names that made a value in the forward part; None: it is
    another."""
    op = maker(lo, number)
    return op if op is not None and op.name in names and not op.backward else None

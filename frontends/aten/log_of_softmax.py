"""Logarithms of a softmax: a log-softmax, and its derivative.

``F.nll_loss(z.softmax(-1).log(), y)``, and a loss that picks a probability first and then takes its
logarithm, are ``F.cross_entropy(z, y)``: a softmax of finite scores is positive, so the logarithm
is defined everywhere, and a gradient that was divided by it is multiplied by it again.
"""

from __future__ import annotations

from typing import Any

from shardproof.frontends.aten.choices import _picked, _spread
from shardproof.frontends.aten.lowering import Lowered, Lowering, Real, dimensions
from shardproof.frontends.aten.roots import maker, value
from shardproof.frontends.aten.rows import _log_softmax, _log_softmax_backward, _softmax_backward
from shardproof.frontends.aten.rules import lowers


@lowers("aten.log.default", "aten.log.out")
def _log(lo: Lowering, x: Lowered) -> Any:
    """Of a softmax along the last dimension, or of entries that ids pick of one, by its scores."""
    real = lo.real(x)
    if (logs := _logs_of(lo, real)) is not None:
        return logs
    if (entries := _entries(lo, real)) is not None:
        probabilities, chosen = entries
        logs = _logs_of(lo, probabilities)
        if logs is not None:
            return lo.reshape(_picked(lo, lo.real(logs), chosen), real.shape)
    return lo.unary("log", real)


def _logs_of(lo: Lowering, y: Real) -> Any:
    """The log-softmax of which ``y`` is the exponential: None where ``y`` is no softmax along its
    last dimension, or one of scores that a mask hides."""
    scores = _scores_of(lo, y)
    return None if scores is None else _log_softmax(lo, scores, -1)


def _scores_of(lo: Lowering, y: Real) -> Real | None:
    """What ``y`` is the softmax of along its last dimension; None where it is none."""
    op = maker(lo, y.number)
    if op is None or op.name != "softmax" or op.backward or op.inputs[0] in lo.hides:
        return None
    last = dimensions(y.shape, op.attrs["dim"]) == (len(y.shape) - 1,)
    return value(lo, op.inputs[0]) if last else None


def _entries(lo: Lowering, x: Real) -> tuple[Real, Real] | None:
    """A softmax, and the ids [..., 1] that pick ``x`` of it."""
    op = maker(lo, _whole(lo, x))
    if op is None or op.name != "pick" or op.backward:
        return None
    rows, chosen = (value(lo, n) for n in op.inputs)
    return rows, lo.real(lo.reshape(chosen, (*chosen.shape, 1)))


@lowers("aten._softmax_backward_data.default")
def _backward(lo: Lowering, gradient: Lowered, y: Lowered, dim: int, dtype: str = "") -> Any:
    """Of a gradient by the softmax itself, as that of the log-softmax."""
    if isinstance(gradient, Real) and isinstance(y, Real) and _scores_of(lo, y) is not None:
        own = _times(lo, gradient, y)
        if own is not None:
            return _log_softmax_backward(lo, own, _logs_of(lo, y), dim)
    return _softmax_backward(lo, gradient, y, dim, dtype)


def _times(lo: Lowering, gradient: Real, y: Real) -> Real | None:
    """A gradient times the softmax that it was divided by; None where it was not."""
    op = maker(lo, gradient.number)
    if op is not None and op.name == "div" and op.inputs[1] == y.number:
        return lo.real(lo.expand(value(lo, op.inputs[0]), gradient.shape))
    spread = lo.spread.get(gradient.number)
    if spread is None or spread[2] is not None:
        return None
    ids, each, _ = spread
    op = maker(lo, _whole(lo, each))
    picked = None if op is None or op.name != "div" else _entries(lo, value(lo, op.inputs[1]))
    if op is None or picked is None or picked[0].number != y.number:
        return None
    # What another id picks is another entry of the row.
    if _whole(lo, picked[1]) != _whole(lo, ids) or picked[1].shape[:-1] != ids.shape:
        return None
    above = lo.expand(value(lo, op.inputs[0]), lo.values[op.outputs[0]].shape)
    chosen = lo.real(lo.reshape(ids, (*ids.shape, 1)))
    return lo.real(_spread(lo, lo.reshape(above, chosen.shape), chosen, gradient.shape))


def _whole(lo: Lowering, x: Real) -> int:
    """The value of which ``x`` has all entries, in their order."""
    number = x.number
    while (op := maker(lo, number)) is not None and op.name == "view" and not op.backward:
        number = op.inputs[0]
    return number

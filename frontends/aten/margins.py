"""Losses of several classes with a margin: how far the scores of all others are above that of the
label, less a margin."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten.losses import MEAN, NONE, classes
from shardproof.frontends.aten.lowering import Lowered, Lowering, Real, fraction
from shardproof.frontends.aten.masks import step
from shardproof.frontends.aten.rules import lowers


class _Gaps(NamedTuple):
    """Scores [rows, classes], labels [rows], and by how much each score is above the label's less
    the margin, as a power has it; ``own``: that of the label itself, a number."""

    scores: Real
    labels: Real
    each: Lowered
    own: Fraction


def _gaps(
    lo: Lowering, x: Lowered, target: Lowered, power: float, margin: float, weight: Lowered | None
) -> _Gaps:
    if weight is not None or power not in (1, 2):
        raise Unsupported("a loss of several classes with a margin and weights, or of that power")
    scores = lo.real(lo.reshape(x, (_rows(x), x.shape[-1])))
    labels = lo.real(lo.reshape(classes(lo, target), (scores.shape[0],)))
    label = lo.reshape(lo.emit("pick", scores, labels), (scores.shape[0], 1))
    each = lo.shift(lo.sub(scores, lo.real(lo.expand(label, scores.shape))), fraction(margin))
    return _Gaps(scores, labels, each, max(fraction(margin), Fraction(0)))


def _rows(x: Lowered) -> int:
    return x.shape[0] if len(x.shape) == 2 else 1


@lowers("aten.multi_margin_loss.default")
def _multi_margin(
    lo: Lowering,
    x: Lowered,
    target: Lowered,
    p: float = 1,
    margin: float = 1,
    weight: Lowered | None = None,
    reduction: int = MEAN,
) -> Any:
    """The sum over all classes but the label, by how many classes there are."""
    gaps = _gaps(lo, x, target, p, margin, weight)
    above = lo.unary("relu", gaps.each)
    above, own = (above, gaps.own) if p == 1 else (lo.mul(above, above), gaps.own**2)
    row = lo.shift(lo.sum(above, (1,)), -own)
    row = lo.scale(row, Fraction(1, gaps.scores.shape[1]))
    if reduction == NONE:
        return lo.reshape(row, target.shape)
    return lo.mean(row, (0,)) if reduction == MEAN else lo.sum(row, (0,))


@lowers("aten.multi_margin_loss_backward.default")
def _multi_margin_backward(
    lo: Lowering,
    gradient: Lowered,
    x: Lowered,
    target: Lowered,
    p: float = 1,
    margin: float = 1,
    weight: Lowered | None = None,
    reduction: int = MEAN,
) -> Any:
    """Each class has its own slope, and the label less the sum of all: its own cancels."""
    gaps = _gaps(lo, x, target, p, margin, weight)
    slopes = step(lo, gaps.each) if p == 1 else lo.scale(lo.unary("relu", gaps.each), Fraction(2))
    rows, count = gaps.scores.shape
    many = count * (rows if reduction == MEAN else 1)
    given = lo.reshape(gradient, (rows, 1) if reduction == NONE and x.shape[1:] else (1, 1))
    slopes = lo.mul(lo.scale(slopes, Fraction(1, many)), lo.expand(given, gaps.scores.shape))
    of_labels = lo.derivative("pick", [gaps.scores, gaps.labels], lo.real(lo.sum(slopes, (1,))))
    return lo.reshape(lo.sub(slopes, of_labels), x.shape)

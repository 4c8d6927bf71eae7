"""Lookups by ids, and losses over classes.

Classes that are no ids (``ignore_index``) are counted as they are: by the values of the labels,
unless the domain of the labels, which the user states, does not have them.  Labels of graphs that
may be such a number are ids with a mark (`shardproof.frontends.aten.ids.marked`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce
from math import prod
from typing import Any, TypeAlias

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten.constants import in_turn, numbered
from shardproof.frontends.aten.filled import Filled, flags_of
from shardproof.frontends.aten.ids import Ids, Marked, compared
from shardproof.frontends.aten.joined import Joined
from shardproof.frontends.aten.known import added_by, entries_of, rows_by
from shardproof.frontends.aten.lookups import Kept, added_rows, rows_of
from shardproof.frontends.aten.lowering import (
    Const,
    Lowered,
    Lowering,
    Operand,
    Real,
    Shape,
    Unviewed,
)
from shardproof.frontends.aten.padded import added_beside, rows_beside
from shardproof.frontends.aten.positions import Positions, added_at, rows_at, whole
from shardproof.frontends.aten.readings import Reading
from shardproof.frontends.aten.rules import lowers
from shardproof.frontends.aten.scores import Hidden
from shardproof.frontends.aten.shifted import parted, shifted
from shardproof.frontends.builder import piecewise

#: Of a log-softmax: the shifted operand, its exponentials, their sum, what was shifted, by what.
Exponentials: TypeAlias = tuple[Real, ...]

#: How `nll_loss` reduces, as ATen numbers it.
NONE, MEAN, SUM = 0, 1, 2


@lowers("aten.mse_loss.default")
def _mse_loss(lo: Lowering, x: Lowered, y: Lowered, reduction: int = MEAN) -> Any:
    gap = lo.sub(x, y)
    square = lo.mul(gap, gap)
    if reduction == NONE:
        return square
    every = tuple(range(len(square.shape)))
    return lo.mean(square, every) if reduction == MEAN else lo.sum(square, every)


@lowers("aten.mse_loss_backward.default")
def _mse_loss_backward(
    lo: Lowering, gradient: Lowered, x: Lowered, y: Lowered, reduction: int
) -> Any:
    gap = lo.sub(x, y)
    count = prod(gap.shape) if reduction == MEAN else 1
    return lo.mul(lo.scale(gap, Fraction(2, count)), gradient)


@lowers("aten.embedding.default")
def _embedding(
    lo: Lowering,
    table: Lowered,
    ids: Lowered,
    padding: int = -1,
    by_frequency: bool = False,
    sparse: bool = False,
) -> Any:
    if isinstance(ids, Joined):
        each = [_embedding(lo, table, p, padding, by_frequency, sparse) for p in ids.parts]
        return lo.reshape(lo.concat(each, ids.dim), (*ids.shape, table.shape[1]))
    ids = in_turn(lo, ids, table.shape[0])
    if isinstance(ids, Positions):
        return rows_at(lo, table, ids)
    if isinstance(ids, Filled):
        return rows_beside(lo, table, ids)
    entries = entries_of(lo, ids)
    joined = None if entries is None else rows_by(lo, table, entries)
    if joined is not None:
        return joined
    if not lo.narrows and isinstance(ids, Real):
        return lo.emits("embedding", [ids, lo.real(table)], {}, table.dtype)[0]
    return rows_of(lo, table, ids)


@lowers("aten.embedding_dense_backward.default")
def _embedding_backward(
    lo: Lowering, gradient: Lowered, ids: Lowered, rows: int, padding: int, by_frequency: bool
) -> Any:
    if by_frequency:
        raise Unsupported("a gradient of an embedding that is scaled by frequency")
    if isinstance(ids, Joined):
        flat = lo.reshape(gradient, (prod(ids.base), gradient.shape[-1]))
        cuts = [(p, ids.cut(flat, n)) for n, p in enumerate(ids.parts)]
        own = [
            _embedding_backward(
                lo, lo.reshape(x, (*p.shape, flat.shape[1])), p, rows, padding, by_frequency
            )
            for p, x in cuts
        ]
        return reduce(lo.add, own)
    ids = in_turn(lo, ids, rows) if padding < 0 else ids
    if isinstance(ids, Positions) and padding < 0:
        return added_at(lo, gradient, ids, rows)
    if isinstance(ids, Filled) and padding < 0:
        return added_beside(lo, gradient, ids, rows)
    entries = entries_of(lo, ids)
    added = None if entries is None or padding >= 0 else added_by(lo, gradient, entries, rows)
    if added is not None:
        return added
    if padding < 0 and (lo.narrows or isinstance(ids, Ids) or isinstance(gradient, Kept)):
        return added_rows(lo, gradient, ids, rows)
    real = lo.real(ids)
    if padding >= 0:
        kept = _valid(lo, real, padding)
        gradient = lo.mul(gradient, lo.reshape(kept, (*real.shape, 1)))
    given = lo.real(gradient)
    table = lo.real(Const(Fraction(0), (rows, given.shape[-1]), given.dtype))
    return lo.derivative("embedding", [real, table], given, 1)


def classes(lo: Lowering, target: Lowered) -> Real:
    """Labels as a value; those that are positions are a table of whole numbers.

    Example: labels ``torch.arange(4)`` are the table [0, 1, 2, 3] with the domain [0, 4); labels
    that are an input are that.
    """
    known = whole(target) if isinstance(target, Const) else target
    return numbered(lo, known) if isinstance(known, Positions) else lo.real(target)


def labels_of(lo: Lowering, target: Lowered, ignored: int, count: int) -> tuple[Real, Lowered]:
    """Labels of ``count`` classes as a value, and 1 for each that is not the ignored one.

    Example: labels with the domain [0, 16) and the ignored class -100: themselves, and ones.
    """
    if isinstance(target, Ids):
        known = _marked_labels(lo, target, ignored, count)
        if known is not None:
            return known
    ids = classes(lo, target)
    unknown = ids.domain is None or ids.domain[0] == ignored < 0
    if unknown and ids.number in lo.origins and not 0 <= ignored < count:
        _note(lo, ids, ignored, count)
    return ids, _valid(lo, ids, ignored)


def _note(lo: Lowering, ids: Real, ignored: int, count: int) -> None:
    """That an input's integers are classes, or the ignored one; of an input that is another one,
    moved, the other one's."""
    shard = lo.shards[lo.origins[ids.number]]
    if lo.asks and shard.name not in lo.derived:
        raise Marked(ids.number, ignored, count)
    if shard.kind != "constant":
        name = lo.derived[shard.name].base if shard.name in lo.derived else shard.name
        lo.labels.marked(name, ignored)
        lo.labels.choosing(name, count)


def _marked_labels(
    lo: Lowering, target: Ids, ignored: int, count: int
) -> tuple[Real, Lowered] | None:
    """The same of labels that are ids, of which every one is a class or the ignored one; None:
    there may be others."""
    rule = target.function
    live = piecewise.compare("NE", rule, piecewise.constant(rule, ignored))
    for low, high, piece in piecewise.counted(rule, live):
        if (piece.slope, piece.offset) != (1, 0) or not 0 <= low < high <= count:
            return None
    number = piecewise.value(live)
    if number is not None:
        valid: Lowered = Const(Fraction(number), target.shape, "float32")
    else:
        valid = replace(target, function=live, dtype="bool").indicated(lo)
    return target.moved_input(lo), valid


def told_apart(lo: Lowering, x: Joined, number: int) -> Real | None:
    """1 where labels of which some are the constant ``number`` are another one; None: they are no
    such labels.

    Example: ``F.pad(labels, (0, 1), value=-100)[:, 1:] != -100`` is 0 in the last column.
    """
    labels = shifted(lo, x, number)
    if labels is None:
        return None
    name = lo.shards[lo.origins[labels.origin.number]].name
    if number < 0 and name in lo.derived:
        lo.labels.marked(lo.derived[name].base, number)
    if isinstance(labels.ids, Ids):
        other = compared(lo, "NE", labels.ids, number)
        valid: Lowered = labels.live if other is None else flags_of(lo, other)
    else:
        valid = _valid(lo, labels.ids, number)
    return lo.real(lo.reshape(lo.mul(valid, labels.live), x.shape))


def _outside(ids: Real, number: int) -> bool:
    return ids.domain is not None and not ids.domain[0] <= number < ids.domain[1]


def _valid(lo: Lowering, ids: Real, ignored: int) -> Lowered:
    """1 for every label but the ignored one."""
    if _outside(ids, ignored):
        return Const(Fraction(1), ids.shape, "float32")
    ones = lo.real(Const(Fraction(1), (*ids.shape, 1), "float32"))
    chosen = lo.emit("pick", ones, ids, start=ignored)
    return lo.real(lo.shift(lo.scale(chosen, Fraction(-1)), Fraction(1)))


def _two_dimensions(logs: Lowered) -> None:
    if len(logs.shape) != 2:
        raise Unsupported("nll_loss of other than two dimensions")


def _unweighted(weight: Lowered | None) -> None:
    if weight is not None:
        raise Unsupported("nll_loss with weights, with labels of which some are constants")


def weighted(
    lo: Lowering, valid: Lowered, weight: Lowered | None, ids: Real, shape: Shape
) -> Lowered:
    """How much each row counts: the weight of its class, nothing where its label is ignored.

    Example: with the weights [1, 3] labels [1, 0, -100] of two classes count [3, 1, 0].
    """
    if weight is None:
        return valid
    table = lo.real(lo.expand(lo.reshape(weight, (1, shape[1])), shape))
    weights: Lowered = lo.mul(lo.emit("pick", table, ids), valid)
    return weights


@lowers("aten.nll_loss_forward.default")
def _nll_loss(
    lo: Lowering,
    logs: Lowered,
    target: Lowered,
    weight: Lowered | None,
    reduction: int,
    ignored: int,
) -> Any:
    _two_dimensions(logs)
    hidden = logs if isinstance(logs, Hidden) else None
    logs, kept = (logs, None) if hidden is None else (hidden.scores, hidden.kept)
    labels = parted(lo, target, ignored)
    if isinstance(target, Joined) and labels is None:
        _unweighted(weight)
        if kept is not None:
            raise Unsupported("masked scores, with labels of which some are constants")
        return _joined_loss(lo, logs, target, reduction, ignored)
    ids, valid = labels_of(lo, labels.ids if labels else target, ignored, logs.shape[-1])
    seen = hidden is None or not hidden.may_hide(ids.domain)
    shown = None if seen or kept is None else _shown(lo, lo.real(kept), ids, valid)
    valid = weighted(lo, valid, weight, ids, logs.shape)
    each = each_loss(lo, lo.real(logs), exponentials_of(lo, logs), ids, valid)
    each = each if shown is None else lo.sub(each, shown)
    count = lo.sum(valid, (0,))
    if labels is not None:
        each = lo.mul(each, labels.live)
        count = labels.number(lo, valid)
    if reduction == NONE:
        return each, Const(Fraction(0), (), logs.dtype)
    if reduction == SUM:
        return lo.sum(each, (0,)), count
    return lo.div(lo.sum(each, (0,)), count), count


def exponentials_of(lo: Lowering, logs: Lowered) -> Exponentials | None:
    """Of a log-softmax that was taken here its exponentials; None: it is none.

    Example: of ``F.log_softmax(x, -1)`` they are those of x less its maxima, and their sums.
    """
    return lo.exponentials.get(lo.real(logs).number)


def each_loss(
    lo: Lowering, logs: Real, known: Exponentials | None, ids: Real, valid: Lowered
) -> Any:
    """Every row's loss, 0 where its label is not ``valid``: the ignored one.

    How it is read, is the same for a label that is a class, as PyTorch wants it (`Reading`).

    Example: of 4 rows of 12 classes it is [4].
    """
    if known is None or lo.reading is Reading.LOGARITHMS:
        each: Any = lo.scale(lo.emit("pick", logs, ids), Fraction(-1))
    else:
        shifted, _, total, scores, most = known
        log: Any = lo.unary("log", total)
        if lo.reading is Reading.SCORES:
            shifted, log = scores, lo.add(log, most)
        each = lo.sub(log, lo.emit("pick", shifted, ids))
    return lo.mul(each, valid)


def _shown(lo: Lowering, kept: Real, ids: Real, valid: Lowered) -> Any:
    """The logarithm of what is kept at every label: 0, or minus infinity where a mask hides the
    class; 0 for labels that are ignored."""
    at_label: Lowered = lo.emit("pick", kept, ids)
    if not isinstance(valid, Const):
        rest = lo.shift(lo.scale(valid, Fraction(-1)), Fraction(1))
        at_label = lo.add(lo.mul(at_label, valid), rest)
    return lo.unary("log", at_label)


def _parts(target: Joined, ignored: int) -> list[int]:
    """Parts of labels that are not the ignored one alone."""
    return [
        n
        for n, part in enumerate(target.parts)
        if not (isinstance(part, Const) and part.value == ignored)
    ]


def _joined_loss(lo: Lowering, logs: Lowered, target: Joined, reduction: int, ignored: int) -> Any:
    """The same of labels of which some are constants: part by part."""
    if reduction == NONE:
        raise Unsupported("nll_loss of every row, with labels of which some are constants")
    known = exponentials_of(lo, logs)
    total: Any = Const(Fraction(0), (), logs.dtype)
    count: Any = Const(Fraction(0), (), logs.dtype)
    for n in _parts(target, ignored):
        own = None if known is None else [lo.real(target.cut(x, n)) for x in known]
        real = lo.real(target.cut(logs, n)) if own is None else lo.real(logs)
        ids = lo.real(lo.reshape(target.parts[n], (prod(target.parts[n].shape),)))
        exponentials = None if own is None else tuple(own)
        valid = _valid(lo, ids, ignored)
        each = each_loss(lo, real, exponentials, ids, valid)
        total = lo.add(total, lo.sum(each, (0,)))
        count = lo.add(count, lo.sum(valid, (0,)))
    return (total if reduction == SUM else lo.div(total, count)), count


class Unmoved(Unviewed, ABC):
    """A gradient of log-probabilities: its only reader is the derivative of log-softmax.

    Example: what ``nll_loss_backward`` gives for labels that are one input is `Picked`, for labels
    of several parts `PickedParts`.
    """

    about = "the gradient of log-probabilities"

    shape: tuple[int, ...]
    dtype: str

    @abstractmethod
    def through_log_softmax(self, lo: Lowering, y: Lowered) -> Any:
        """The gradient of what the log-softmax ``y`` was taken of: (softmax - onehot) * each."""


@dataclass(frozen=True)
class Picked(Unmoved):
    """Minus ``each`` at every row's label, 0 elsewhere.

    Example: with ``F.cross_entropy`` of 4 rows, ``each`` is 1/4 for every row and the gradient is
    -1/4 at its label.
    """

    each: Lowered
    ids: Real
    shape: tuple[int, ...]
    dtype: str

    def through_log_softmax(self, lo: Lowering, y: Lowered) -> Any:
        """The gradient at the logits: softmax times the row's gradient, minus it at the label."""
        known = exponentials_of(lo, y)
        if known is None:
            each = lo.reshape(lo.real(self.each), (*self.shape[:-1], 1))
            return lo.add(self.real(lo), lo.mul(lo.unary("exp", y), each))
        e, total = known[1:3]
        return lo.emit("cross_entropy_grad", e, total, self.ids, lo.real(self.each))

    def real(self, lo: Lowering) -> Real:
        """As a value: the derivative of picking."""
        rows = lo.real(Const(Fraction(0), self.shape, self.dtype))
        minus = lo.real(lo.scale(self.each, Fraction(-1)))
        return lo.derivative("pick", [rows, self.ids], minus)


@dataclass(frozen=True)
class Plus(Unmoved):
    """Such a gradient and another one, where the mean of all log-probabilities counts too.

    Example: with ``label_smoothing`` 0.1 over 12 classes and 4 rows, -0.9/4 at every row's label
    and -0.1/48 at each class.
    """

    picked: Picked
    other: Lowered
    shape: tuple[int, ...]
    dtype: str

    def through_log_softmax(self, lo: Lowering, y: Lowered) -> Any:
        """The gradient at the logits: this one, less the softmax times its sum over the classes,
        which at a label that is one of them is minus the row's ``each``."""
        last = len(self.shape) - 1
        each = lo.reshape(lo.real(self.picked.each), (*self.shape[:-1], 1))
        total = lo.sub(lo.sum(self.other, (last,), True), each)
        known = exponentials_of(lo, y)
        if known is None:
            weighted = lo.mul(lo.unary("exp", y), total)
        else:
            e, sums = known[1:3]
            weighted = lo.mul(e, lo.div(total, lo.reshape(sums, total.shape)))
        return lo.sub(self.real(lo), weighted)

    def real(self, lo: Lowering) -> Real:
        """As a value: the sum."""
        return lo.real(lo.add(self.picked.real(lo), self.other))


def plus(x: Operand, y: Operand, factor: Fraction) -> Plus | None:
    """x + factor * y, where one is the gradient of picked log-probabilities and the other is a
    value of its shape; None: it is another sum.

    Example: what ``nll_loss_backward`` gives, plus -1/480 for each class of each row, is `Plus`.
    """
    for picked, other in ((x, y), (y, x)):
        if isinstance(picked, Picked) and isinstance(other, (Real, Const)):
            if factor != 1 or other.shape != picked.shape:
                return None
            return Plus(picked, other, picked.shape, picked.dtype)
    return None


@dataclass(frozen=True)
class PickedParts(Unmoved):
    """The same where labels are several parts; ``scale`` is one number for all rows.

    Example: labels that are an input but not of the batch, padded by -100 and shifted: rows of the
    padding have the gradient 0.
    """

    scale: Lowered
    ids: Joined
    ignored: int
    shape: tuple[int, ...]
    dtype: str

    def through_log_softmax(self, lo: Lowering, y: Lowered) -> Any:
        """The gradient at the logits, part by part of a batch whose labels are partly ignored."""
        known = exponentials_of(lo, y)
        if known is None:
            raise Unsupported("the gradient of a loss without its log-softmax")
        rows: list[Lowered] = []
        live = set(_parts(self.ids, self.ignored))
        for n, part in enumerate(self.ids.parts):
            count = prod(part.shape)
            if n not in live:
                rows.append(Const(Fraction(0), (count, self.shape[-1]), self.dtype))
                continue
            ids = lo.real(lo.reshape(part, (count,)))
            each = lo.mul(lo.expand(self.scale, ids.shape), _valid(lo, ids, self.ignored))
            e, total = (lo.real(self.ids.cut(x, n)) for x in known[1:3])
            rows.append(lo.emit("cross_entropy_grad", e, total, ids, lo.real(each)))
        return self.ids.together(rows)

    def real(self, lo: Lowering) -> Real:
        """Refused: it is only read by the derivative of log-softmax."""
        raise Unsupported("the gradient of log-probabilities as a value")


@lowers("aten.nll_loss_backward.default")
def _nll_loss_backward(
    lo: Lowering,
    gradient: Lowered,
    logs: Lowered,
    target: Lowered,
    weight: Lowered | None,
    reduction: int,
    ignored: int,
    count: Lowered,
) -> Any:
    _two_dimensions(logs)
    each = gradient
    if reduction == MEAN:
        each = lo.div(gradient, count)
    labels = parted(lo, target, ignored)
    if isinstance(target, Joined) and labels is None:
        _unweighted(weight)
        return PickedParts(each, target, ignored, logs.shape, logs.dtype)
    ids, valid = labels_of(lo, labels.ids if labels else target, ignored, logs.shape[-1])
    valid = weighted(lo, valid, weight, ids, logs.shape)
    each = lo.mul(lo.expand(each, ids.shape), valid)
    if labels is not None:
        each = lo.mul(each, labels.live)
    return Picked(each, ids, logs.shape, logs.dtype)

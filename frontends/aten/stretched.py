"""The largest, exponentials and softmaxes of scores of which constants show one stretch
(`shown.Stretch`): those of the stretch, and zeros elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Final, NamedTuple

from shardproof.frontends.aten.bits import mask_along_one
from shardproof.frontends.aten.hidden import masked, opened
from shardproof.frontends.aten.lowering import Lowered, Lowering, Real, reduced
from shardproof.frontends.aten.masks import inverse
from shardproof.frontends.aten.roots import VIEWS, maker
from shardproof.frontends.aten.scores import Hidden, nothing
from shardproof.frontends.aten.shown import Stretch, stretch

#: Operators behind which scores are hidden as they were (`hidden.opened`).
_BEHIND = VIEWS | {"mul", "add", "sub"}
#: What functions are at minus infinity.
_LIMITS: Final[Mapping[str, Fraction]] = {
    "sigmoid": Fraction(0),
    "relu": Fraction(0),
    "tanh": Fraction(-1),
}


class Shown(NamedTuple):
    """Scores, of which ``part`` is all that is shown.

    Example: of ``z.masked_fill(torch.arange(16) >= 12, -inf)`` they are ``z`` and its first 12
    columns.
    """

    scores: Any
    part: Stretch


def shown(lo: Lowering, x: Lowered) -> Shown | None:
    """Scores of which constants show one stretch; None of others.

    Example: of ``z.masked_fill(torch.arange(16) >= 12, -inf)`` that are viewed, too.
    """
    if isinstance(x, Real):
        x = opened(lo, x) if lo.hides and _along_one(lo, x.number) else x
    part = stretch(x) if isinstance(x, Hidden) else None
    return Shown(x.scores, part) if part is not None and isinstance(x, Hidden) else None


def _along_one(lo: Lowering, number: int) -> bool:
    """Whether the scores that a value is made of are hidden along one dimension: what hides others
    may be a large table, which nobody reads."""
    if number in lo.hides:
        return mask_along_one(lo.hides[number][1]) is not None
    op = maker(lo, number)
    if op is None or op.backward or op.name not in _BEHIND:
        return False
    return any(_along_one(lo, n) for n in op.inputs)


def largest(lo: Lowering, x: Lowered, dims: Sequence[int], keepdim: bool) -> Any:
    """The largest along dimensions: of nothing but minus infinity, that; of scores of which
    constants show one stretch, that of the stretch.  Raises `Unsupported` for other masked scores.

    Example: of ``z.masked_fill(torch.arange(16) >= 12, -inf)`` it is that of ``z[:, :12]``, as it
    is on ranks that have 8 of the 16.
    """
    if isinstance(x, Hidden) and x.keeps_nothing:
        return nothing(lo, reduced(x.shape, dims, keepdim), x.dtype)
    own = shown(lo, x)
    real = lo.real(x) if own is None or own.part.dim not in dims else own.part.of(lo, own.scores)
    return lo.emit("amax", real, dim=tuple(dims), keepdim=keepdim)


def exponential(lo: Lowering, x: Lowered) -> Any:
    """The exponential of every entry, 0 of minus infinity.

    Example: of ``z.masked_fill(torch.arange(16) >= 12, -inf)`` it is that of ``z[:, :12]``, and
    four columns of zeros.
    """
    if (own := shown(lo, x)) is not None:
        return own.part.among(lo, lo.unary("exp", own.part.of(lo, own.scores)), 0, x.shape)
    if (given := masked(lo, x)) is not None:
        return lo.mul(lo.unary("exp", given.scores), given.kept)
    return lo.unary("exp", x)


def limited(lo: Lowering, function: str, x: Lowered) -> Any:
    """A function of every entry that has a limit at minus infinity: that, where a mask hides
    scores; None where none does.

    Example: ``scores.masked_fill(mask, -inf).sigmoid()`` is 0 where the mask is true, ``tanh`` -1.
    """
    given = masked(lo, opened(lo, x)) if lo.hides or not isinstance(x, Real) else None
    if given is None:
        return None
    made = lo.mul(lo.unary(function, given.scores), given.kept)
    limit = _LIMITS[function]
    return lo.add(made, lo.scale(inverse(lo, given.kept), limit)) if limit else made


def softmax(lo: Lowering, x: Lowered, dim: int) -> Any:
    """The softmax of scores of which constants show one stretch along a dimension, 0 elsewhere;
    None of others.

    Example: of ``z.masked_fill(torch.arange(16) >= 12, -inf)`` that of ``z[:, :12]``, and zeros.
    """
    own = shown(lo, x)
    if own is None or own.part.dim != dim:
        return None
    return own.part.among(lo, lo.emit("softmax", own.part.of(lo, own.scores), dim=dim), 0, x.shape)

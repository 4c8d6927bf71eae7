"""What runs along a dimension, the largest entry so far, and norms that are bounded.

Source: PyTorch's documentation of `cummax`, `cummin` and `renorm`.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from shardproof.frontends.aten.lowering import Lowered, Lowering, dimensions, fraction
from shardproof.frontends.aten.masks import _vector_norm, step
from shardproof.frontends.aten.rules import lowers, scratch

ONE = Fraction(1)


def _extremes(lo: Lowering, x: Lowered, dim: int, sign: int) -> Any:
    """The largest entries (of ``sign`` -1: the smallest) up to each place along a dimension."""
    if not x.shape:
        return x
    (at,) = dimensions(x.shape, dim)
    signed = lo.real(lo.scale(x, Fraction(sign)))
    so_far = [lo.slice(signed, at, 0, 1)]
    for end in range(2, x.shape[at] + 1):
        before = lo.real(lo.slice(signed, at, 0, end))
        so_far.append(lo.emit("amax", before, dim=(at,), keepdim=True))
    return lo.scale(lo.concat(so_far, at), Fraction(sign))


@lowers("aten.cummax.default")
def _cummax(lo: Lowering, x: Lowered, dim: int) -> Any:
    return _extremes(lo, x, dim, 1), scratch(lo, 1)


@lowers("aten.cummin.default")
def _cummin(lo: Lowering, x: Lowered, dim: int) -> Any:
    return _extremes(lo, x, dim, -1), scratch(lo, 1)


@lowers("aten.renorm.default")
def _renorm(lo: Lowering, x: Lowered, p: float, dim: int, maxnorm: float) -> Any:
    """Each slice, made as short as ``maxnorm`` where it is longer."""
    (at,) = dimensions(x.shape, dim)
    over = [d for d in range(len(x.shape)) if d != at]
    norms = _vector_norm(lo, x, p, over, True)
    limit = fraction(maxnorm)
    shorter = lo.div(maxnorm, lo.shift(norms, fraction(1e-7)))
    longer = step(lo, lo.shift(norms, -limit))
    return lo.mul(x, lo.shift(lo.mul(longer, lo.shift(shorter, -ONE)), ONE))

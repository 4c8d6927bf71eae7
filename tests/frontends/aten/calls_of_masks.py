"""Random calls by masks of which every row shows an interval, and by any others."""

from __future__ import annotations

import numpy as np
import torch

from shardproof.frontends.aten.bits import Additive, Bits
from tests.frontends.aten.calls import Both, Call, Draw, call


def _ends(d: Draw, rows: int, columns: int) -> list[int]:
    """Numbers from 0 to columns that stand still, or move with the row."""
    ends, at = [], d.below(columns + 1)
    for _ in range(rows):
        ends.append(at)
        at = min(columns, at + 1) if d.below(4) else d.below(columns + 1)
    return ends


def intervals(d: Draw) -> torch.Tensor:
    """True where a key is hidden: before the beginning of its row's interval, and from its end on."""
    rows, columns = 1 + d.below(7), 1 + d.below(6)
    first, last = _ends(d, rows, columns - 1), _ends(d, rows, columns - 1)
    hidden = torch.ones(rows, columns, dtype=torch.bool)
    for row, (one, other) in enumerate(zip(first, last, strict=True)):
        hidden[row, min(one, other) : max(one, other) + 1] = False
    return hidden


def as_bits(mask: torch.Tensor) -> Both:
    return Both(Bits(mask.numpy()), mask)


@call("aten.masked_fill.Scalar")
def _(d: Draw) -> Call:
    mask = intervals(d)
    value = float("-inf") if d.below(2) else d.number()
    return (d.real(*d.sizes(d.below(3)), *mask.shape), as_bits(mask), value), {}


@call("aten.masked_fill.Scalar")
def _(d: Draw) -> Call:
    """A number by any mask, which may differ between leading indices."""
    mask = torch.tensor(d.rng.integers(0, 2, size=d.sizes(3)) > 0)
    return (d.real(*mask.shape), as_bits(mask), d.number()), {}


@call("aten.where.self")
def _(d: Draw) -> Call:
    mask = intervals(d)
    shape = (*d.sizes(1), *mask.shape)
    return (as_bits(~mask if d.below(2) else mask), d.real(*shape), d.real(*shape)), {}


@call("aten.add.Tensor")
def _(d: Draw) -> Call:
    mask = intervals(d)
    added = torch.zeros(mask.shape, dtype=torch.float64).masked_fill(mask, -np.inf)
    additive = Both(Additive(Bits(mask.numpy()), "float64"), added)
    return (d.real(*d.sizes(1 + d.below(2)), *mask.shape), additive), {}


@call("aten.index_put.default")
def _(d: Draw) -> Call:
    """One row, or one number for each of some columns, written wherever a mask is true."""
    a, b, c, e = d.sizes(4)
    row = [(e,), (c, e), (1, c, e), (1, 1), (1,), (c, 1)][d.below(6)]
    return (d.real(a, b, c, e), [d.real(a, b) > 0], d.real(*row)), {}


def windows(d: Draw) -> torch.Tensor:
    """True where a key is hidden: outside of a window of several keys, and of the first columns."""
    i, j = torch.arange(20)[:, None], torch.arange(20 + (none := d.below(3)))[None] - none
    return ~((j <= i) & (i - j < 2 + d.below(6)) & (j >= 0))


@call("aten.masked_fill.Scalar")
def _(d: Draw) -> Call:
    mask = windows(d)
    value = float("-inf") if d.below(2) else d.number()
    return (d.real(2, *mask.shape), as_bits(mask), value), {}


@call("aten.add.Tensor")
def _(d: Draw) -> Call:
    mask = windows(d)
    added = torch.zeros(mask.shape, dtype=torch.float64).masked_fill(mask, -np.inf)
    additive = Both(Additive(Bits(mask.numpy()), "float64"), added)
    return (d.real(2, *mask.shape), additive), {}

"""Optimizers of which every rank updates an interval of the entries of a parameter, in their order
(ZeRO over one buffer of all parameters, as Megatron's distributed optimizer has it)."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from msgspec import structs

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.torch.geometry import boxes
from shardproof.frontends.torch.trace import Box


class Interval(NamedTuple):
    """Entries [start, stop) of a parameter, and the tensor whose states the optimizer keeps.

    Example: rank 1 of two updates the entries 32 to 64 of ``up.weight`` [8, 8].
    """

    start: int
    stop: int
    shard: torch.Tensor


@runtime_checkable
class Sharded(Protocol):
    """An optimizer whose ranks have intervals of parameters; gradients are compared there alone,
    since it reduces no others.

    Example: an adapter's wrapper of a distributed optimizer.
    """

    def interval(self, parameter: torch.Tensor) -> Interval | None:
        """The entries that this rank updates; None: it updates none of them."""


class Cell(NamedTuple):
    """A box of a full parameter that an interval covers: its ``place`` in the tensor of the
    parameter's box, and where its entries begin in the interval.

    Example: of the entries 4 to 8 of [5, 3] the boxes [1, 2] at (1, 1), from 0 on, and [1, 3] at
    (2, 0), from 2 on.
    """

    box: Box
    place: tuple[slice, ...]
    at: int

    def of(self, x: torch.Tensor) -> torch.Tensor:
        """This part of a tensor that is shaped as the parameter's box."""
        return x[self.place]

    def state(self, x: torch.Tensor) -> torch.Tensor:
        """This part of a state, which is flat."""
        return x.detach()[self.at : self.at + prod(self.box.shape)].view(self.box.shape)


def cells(
    box: Box, cut: tuple[int, int, int] | None, shape: tuple[int, ...], interval: Interval
) -> Iterator[Cell]:
    """What an interval has of a parameter's box; ``cut`` (dimension, start, size) says which piece
    of the parameter, of ``shape``, the box is.

    Example: of the lower half of a gated [8, 4] the interval 0 to 16 has nothing.
    """
    first, size = 0, prod(shape)
    if cut is not None:
        dim, start, count = cut
        if prod(shape[:dim]) != 1:
            raise InvalidInput(
                f"{box.name} is a piece along dimension {dim}, and an optimizer has intervals of it"
            )
        row = prod(shape[dim + 1 :])
        first, size = start * row, count * row
    low, high = max(interval.start, first), min(interval.stop, first + size)
    at = low - interval.start
    for offset, own in boxes(box.shape, low - first, high - first):
        index = tuple(slice(o, o + n) for o, n in zip(offset, own, strict=True))
        start = tuple(a + b for a, b in zip(box.offset, offset, strict=True))
        yield Cell(structs.replace(box, offset=start, shape=own), index, at)
        at += prod(own)

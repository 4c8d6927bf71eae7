"""Images read at places that a network gives: ``grid_sample``.

Between two neighbours a place takes a share of each, which falls by its distance to it: along each
dimension the weights are ``max(0, 1 - |place - position|)``, and the result is the sum of entries
times the weights of all dimensions.  Positions beside the image have no weight there, as padding
with zeros has it; with its border places are first brought inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten.lowering import Const, Lowered, Lowering, Shape
from shardproof.frontends.aten.masks import clamped
from shardproof.frontends.aten.rules import lowers

ONE = Fraction(1)
#: Letters of an image's dimensions, and of the dimensions of places.
_SPACE, _PLACES = "hwd", "pqr"


@lowers(
    *(f"aten.{name}.default" for name in ("grid_sampler", "grid_sampler_2d", "grid_sampler_3d"))
)
def _grid_sampler(
    lo: Lowering, x: Lowered, grid: Lowered, mode: int, padding: int, aligned: bool
) -> Any:
    if mode != 0 or padding not in (0, 1):
        raise Unsupported(f"grid_sample with mode {mode} and padding {padding}")
    sizes = x.shape[2:]
    weights = []
    for dim, size in enumerate(sizes):
        last = len(grid.shape) - 1
        place = lo.reshape(lo.slice(grid, last, len(sizes) - 1 - dim, 1), grid.shape[:-1])
        whole = Fraction(size - 1 if aligned else size, 2)
        middle = Fraction(size - 1, 2)
        place = lo.shift(lo.scale(place, whole), middle)
        if padding == 1:
            place = clamped(lo, place, 0, size - 1)
        weights.append(lo.real(_shares(lo, place, size)))
    space, places = _SPACE[: len(sizes)], _PLACES[: len(sizes)]
    reads = ",".join(f"n{places}{letter}" for letter in space)
    return lo.emit("einsum", lo.real(x), *weights, equation=f"nc{space},{reads}->nc{places}")


def _shares(lo: Lowering, place: Lowered, size: int) -> Any:
    """[..., size]: how much of each position a place takes."""
    shape = (*place.shape, size)
    wide = lo.expand(lo.reshape(place, (*place.shape, 1)), shape)
    gap = lo.sub(wide, lo.expand(_counted(lo, size), shape))
    far = lo.add(lo.unary("relu", gap), lo.unary("relu", lo.scale(gap, -ONE)))
    return lo.unary("relu", lo.shift(lo.scale(far, -ONE), ONE))


@lowers("aten.affine_grid_generator.default")
def _affine_grid(lo: Lowering, theta: Lowered, size: Sequence[int], aligned: bool) -> Any:
    """[n, ..., r]: the positions of an image of r dimensions, the last one first, and 1, times a
    matrix [r, r + 1] for each row."""
    space = tuple(size[2:])
    count, rank = size[0], len(space)
    lines = [_from_minus_one(lo, space, dim, aligned) for dim in reversed(range(rank))]
    coordinates = []
    for place in range(rank):
        row = lo.slice(theta, 1, place, 1)
        total: Any = _wide(lo, lo.slice(row, 2, rank, 1), count, space)
        for number, line in enumerate(lines):
            factor = _wide(lo, lo.slice(row, 2, number, 1), count, space)
            total = lo.add(total, lo.mul(factor, lo.expand(line, (count, *space))))
        coordinates.append(lo.real(lo.reshape(total, (count, *space, 1))))
    return lo.emit("concat", *coordinates, dim=rank + 1)


def _wide(lo: Lowering, entry: Lowered, count: int, space: Shape) -> Any:
    return lo.expand(lo.reshape(entry, (count, *(1 for _ in space))), (count, *space))


def _from_minus_one(lo: Lowering, space: Shape, dim: int, aligned: bool) -> Any:
    """[1, ...]: places along a dimension between -1 and 1, of corners or of the middle of each."""
    size = space[dim]
    shape = (1, *(n if d == dim else 1 for d, n in enumerate(space)))
    if aligned:
        step, first = (Fraction(2, size - 1), -ONE) if size > 1 else (Fraction(0), Fraction(0))
    else:
        step, first = Fraction(2, size), Fraction(1, size) - 1
    return lo.shift(lo.scale(lo.reshape(_counted(lo, size), shape), step), first)


def _counted(lo: Lowering, size: int) -> Any:
    """The numbers 0, 1, ... of positions: how many ones a triangle has in each row, less 1."""
    ones = lo.real(Const(ONE, (1, 1, size, size), "float32"))
    rows = lo.sum(lo.emit("tril", ones), (3,))
    return lo.reshape(lo.shift(rows, -ONE), (size,))

"""Rearrangements that `torch.export` leaves whole: repeated entries, stacks, parts, paddings.

Source: PyTorch's documentation of each function.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import prod
from typing import Any

from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.frontends.aten.joined import catenation
from shardproof.frontends.aten.lowering import Lowered, Lowering, broadcast, dimensions
from shardproof.frontends.aten.movement import _expand
from shardproof.frontends.aten.pointwise import _pad
from shardproof.frontends.aten.rules import NARROW, lowers, rule_of
from shardproof.frontends.aten.turned import flip, repeat

# -- shapes ----------------------------------------------------------------------------------------


@lowers("aten.broadcast_to.default")
def _broadcast_to(lo: Lowering, x: Lowered, size: Sequence[int]) -> Any:
    return _expand(lo, x, size)


@lowers("aten.broadcast_tensors.default")
def _broadcast_all(lo: Lowering, xs: Sequence[Lowered]) -> Any:
    shape: tuple[int, ...] = ()
    for x in xs:
        shape = broadcast(shape, x.shape)
    return tuple(lo.expand(x, shape) for x in xs)


@lowers("aten.ravel.default")
def _ravel(lo: Lowering, x: Lowered) -> Any:
    return lo.reshape(x, (prod(x.shape),))


@lowers("aten.squeeze.default")
def _squeeze_all(lo: Lowering, x: Lowered) -> Any:
    return lo.reshape(x, tuple(n for n in x.shape if n != 1))


@lowers("aten.positive.default", "aten.resolve_conj.default", "aten.resolve_neg.default")
def _as_it_is(lo: Lowering, x: Lowered) -> Any:
    return x


@lowers("aten.movedim.intlist", "aten.moveaxis.intlist")
def _move_dims(lo: Lowering, x: Lowered, sources: Sequence[int], targets: Sequence[int]) -> Any:
    old, new = dimensions(x.shape, sources), dimensions(x.shape, targets)
    rest = iter(d for d in range(len(x.shape)) if d not in old)
    at = dict(zip(new, old, strict=True))
    return lo.permute(x, tuple(at[d] if d in at else next(rest) for d in range(len(x.shape))))


def _at_least(count: int) -> None:
    @lowers(f"aten.atleast_{count}d.default")
    def rule(lo: Lowering, x: Lowered) -> Any:
        """Dimensions of one position: [n] becomes [1, n] or [1, n, 1], [a, b] becomes [a, b, 1]."""
        shape = x.shape
        if count == 3 and len(shape) == 2:
            return lo.reshape(x, (*shape, 1))
        if count == 3 and len(shape) == 1:
            return lo.reshape(x, (1, *shape, 1))
        return lo.reshape(x, (*(1,) * max(0, count - len(shape)), *shape))


for _count in (1, 2, 3):
    _at_least(_count)


# -- copies ----------------------------------------------------------------------------------------


@lowers("aten.tile.default")
def _tile(lo: Lowering, x: Lowered, repeats: Sequence[int]) -> Any:
    return repeat(lo, x, (*(1,) * max(0, len(x.shape) - len(repeats)), *repeats))


@lowers("aten.repeat_interleave.self_int")
def repeat_each(
    lo: Lowering, x: Lowered, repeats: int, dim: int | None = None, output_size: int | None = None
) -> Any:
    """Every entry ``repeats`` times, one after the other.

    Example: [a, b], each twice, is [a, a, b, b].
    """
    if dim is None:
        x, dim = lo.reshape(x, (prod(x.shape),)), 0
    (at,) = dimensions(x.shape, dim)
    before, size, after = x.shape[:at], x.shape[at], x.shape[at + 1 :]
    each = lo.expand(lo.reshape(x, (*before, size, 1, *after)), (*before, size, repeats, *after))
    return lo.reshape(each, (*before, size * repeats, *after))


# -- side by side ----------------------------------------------------------------------------------


def _stacked(name: str, least: int, dim: int) -> None:
    @lowers(f"aten.{name}.default")
    def rule(lo: Lowering, xs: Sequence[Lowered]) -> Any:
        grown = [rule_of(f"aten.atleast_{least}d.default")(lo, x) for x in xs]  # type: ignore[misc]
        return catenation(lo, grown, 0 if len(grown[0].shape) == 1 else dim)


_stacked("hstack", 1, 1)
_stacked("vstack", 2, 0)
_stacked("row_stack", 2, 0)
_stacked("dstack", 3, 2)


@lowers("aten.column_stack.default")
def _columns(lo: Lowering, xs: Sequence[Lowered]) -> Any:
    grown = [lo.reshape(x, (prod(x.shape), 1)) if len(x.shape) < 2 else x for x in xs]
    return catenation(lo, grown, 1)


@lowers("aten.meshgrid.default", "aten.meshgrid.indexing")
def _grid(lo: Lowering, xs: Sequence[Lowered], indexing: str = "ij") -> Any:
    """Every coordinate at all places of a grid; "xy" has the first two dimensions exchanged."""
    sizes = tuple(prod(x.shape) for x in xs)
    rank, turned = len(xs), indexing == "xy" and len(xs) > 1
    grids = []
    for place, x in enumerate(xs):
        shape = tuple(sizes[d] if d == place else 1 for d in range(rank))
        grid = lo.expand(lo.reshape(x, shape), sizes)
        grids.append(lo.transpose(grid, 0, 1) if turned else grid)
    return tuple(grids)


# -- parts -----------------------------------------------------------------------------------------


def _cut(lo: Lowering, x: Lowered, at: int, ends: Sequence[int]) -> Any:
    """Parts of a dimension that end before some positions, and what is left; ends as Python counts
    them."""
    size = x.shape[at]
    places = [min(max(end + size if end < 0 else end, 0), size) for end in ends]
    bounds = zip([0, *places], [*places, size], strict=True)
    return tuple(lo.slice(x, at, start, max(0, stop - start)) for start, stop in bounds)


def _sections(lo: Lowering, x: Lowered, at: int, count: int) -> Any:
    """Parts of sizes that differ by one at most, larger ones first."""
    if count < 1:
        raise ShapeMismatch(f"{count} parts")
    size, more = divmod(x.shape[at], count)
    ends = [(n + 1) * size + min(n + 1, more) for n in range(count - 1)]
    return _cut(lo, x, at, ends)


@lowers("aten.tensor_split.sections")
def _in_sections(lo: Lowering, x: Lowered, sections: int, dim: int = 0) -> Any:
    return _sections(lo, x, dimensions(x.shape, dim)[0], sections)


@lowers("aten.tensor_split.indices")
def _at_indices(lo: Lowering, x: Lowered, indices: Sequence[int], dim: int = 0) -> Any:
    return _cut(lo, x, dimensions(x.shape, dim)[0], indices)


def _split_along(name: str, dim: int) -> None:
    @lowers(f"aten.{name}.int")
    def by_count(lo: Lowering, x: Lowered, sections: int) -> Any:
        return _sections(lo, x, 0 if len(x.shape) == 1 else dim, sections)

    @lowers(f"aten.{name}.array")
    def by_indices(lo: Lowering, x: Lowered, indices: Sequence[int]) -> Any:
        return _cut(lo, x, 0 if len(x.shape) == 1 else dim, indices)


_split_along("hsplit", 1)
_split_along("vsplit", 0)
_split_along("dsplit", 2)


@lowers("aten.fliplr.default")
def _left_to_right(lo: Lowering, x: Lowered) -> Any:
    return flip(lo, x, (1,))


@lowers("aten.flipud.default")
def _upside_down(lo: Lowering, x: Lowered) -> Any:
    return flip(lo, x, (0,))


@lowers("aten.diff.default")
def _differences(
    lo: Lowering,
    x: Lowered,
    n: int = 1,
    dim: int = -1,
    prepend: Lowered | None = None,
    append: Lowered | None = None,
) -> Any:
    """Each position less the one before, ``n`` times."""
    (at,) = dimensions(x.shape, dim)
    if x.dtype in NARROW:
        raise Unsupported(f"differences of {x.dtype}")
    parts = [part for part in (prepend, x, append) if part is not None]
    x = lo.concat(parts, at) if len(parts) > 1 else x
    for _ in range(n):
        count = x.shape[at] - 1
        if count < 1:
            raise Unsupported("differences of fewer than two positions")
        x = lo.sub(lo.slice(x, at, 1, count), lo.slice(x, at, 0, count))
    return x


# -- around ----------------------------------------------------------------------------------------

_EDGES = {"reflect": "reflection", "replicate": "replication"}


@lowers("aten.pad.default")
def _padded_by(
    lo: Lowering,
    x: Lowered,
    pad: Sequence[int],
    mode: str = "constant",
    value: float | None = None,
) -> Any:
    if mode == "constant":
        return _pad(lo, x, pad, value or 0)
    rule = rule_of(f"aten.{_EDGES.get(mode, mode)}_pad{len(pad) // 2}d.default")
    if rule is None or len(x.shape) not in (len(pad) // 2 + 1, len(pad) // 2 + 2):
        raise Unsupported(f"padding of {list(x.shape)} by {list(pad)}, {mode}")
    return rule(lo, x, pad)


@lowers("aten.sum_to_size.default")
def _summed_to(lo: Lowering, x: Lowered, size: Sequence[int]) -> Any:
    """The sum over dimensions that a tensor of this size would be repeated along."""
    lead = len(x.shape) - len(size)
    dims = [d for d, n in enumerate(x.shape) if d < lead or (size[d - lead] == 1 and n != 1)]
    return lo.reshape(lo.sum(x, dims) if dims else x, tuple(size))


@lowers("aten.trapezoid.dx", "aten.trapz.dx")
def _trapezoid(lo: Lowering, y: Lowered, dx: float = 1, dim: int = -1) -> Any:
    """The area under straight lines from position to position, ``dx`` apart."""
    (at,) = dimensions(y.shape, dim)
    count = y.shape[at] - 1
    if count < 1:
        raise Unsupported("an area under fewer than two positions")
    both = lo.add(lo.slice(y, at, 1, count), lo.slice(y, at, 0, count))
    return lo.scale(lo.sum(both, (at,)), Fraction(str(dx)) / 2)

"""Where the positions begin of which known numbers are made, on every rank.

A mask of positions on a rank is a part of the mask of one device, ``rows >= columns`` of its own
rows and columns.  Its numbers may lie at many places there, or be the same all over (the block of
a causal ring that is visible altogether); where its positions begin says which place is meant.
Positions that ranks are dealt, early and late ones (a zigzag), are stretches that begin each where
they say: the mask is of one part for each of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import numpy as np

from shardproof.frontends.graphs.recorder import Recorder, holds, inside
from shardproof.frontends.hlo.module import Array
from shardproof.frontends.hlo.opcodes import ELEMENTWISE

#: For every rank (or once for all), where positions begin along each dimension, or, where they do
#: not follow each other, which ones they are; None: numbers do not depend on positions along it.
Begins: TypeAlias = tuple[tuple[int | tuple[int, ...] | None, ...], ...]
#: Positions that ranks are dealt lie in up to so many stretches along a dimension.
MOST_STRETCHES: Final = 16


class _Numbers(Protocol):
    """What is read of known numbers (`known.Known`)."""

    @property
    def arrays(self) -> tuple[Array, ...]: ...
    @property
    def begins(self) -> Begins: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    def number(self) -> Any: ...


#: What computes entry by entry.
_ENTRYWISE: Final = frozenset({*ELEMENTWISE, "compare", "copy"})


def begins(
    opcode: str, attrs: Mapping[str, Any], operands: Sequence[_Numbers], result: _Numbers
) -> Begins:
    """Where the positions of a result begin; empty: it says so itself, or nothing is known of it,
    or it is one number, which has none.

    Example: of ``compare([[4], [5]], [[0, 1]])``, rows 4 and 5 beside columns 0 and 1, ((4, 0),).
    """
    shape = result.shape
    if not shape or _own(result):
        return ()
    if opcode in _ENTRYWISE:
        return _together([_own(x) for x in operands if x.begins or x.number() is None])
    own = _own(operands[0]) if len(operands) == 1 else ()
    if opcode == "broadcast" and own:
        places = attrs.get("dimensions", ())
        return _along(own, {d: i for i, d in enumerate(places)}, len(shape))
    if opcode == "transpose" and own:
        return _along(own, dict(enumerate(attrs["dimensions"])), len(shape))
    if opcode == "reshape" and own:
        return _reshaped(own, operands[0].shape, shape)
    return ()


class Block(NamedTuple):
    """A part of a table on every rank (or one for all): its numbers, and where they begin there.

    Example: rows 4 to 7 of a causal mask of 8 by 8, which begin at (4, 0).
    """

    arrays: tuple[Array, ...]
    begins: tuple[tuple[int, ...], ...]


class Parts(NamedTuple):
    """What a tensor has of a table: along which dimensions of the tensor its numbers differ, into
    stretches of which sizes each of these is cut, and the blocks in between, the last dimension
    first.

    Example: of rows 0, 1, 6 and 7 of a causal mask of 8 by 8, two blocks of two rows.
    """

    dims: tuple[int, ...]
    sizes: tuple[tuple[int, ...], ...]
    blocks: tuple[Block, ...]

    def joined(self, recorder: Recorder, values: Sequence[int]) -> int:
        """One value of a value for each block.

        Example: of two blocks of rows, ``concat`` of both along dimension 0.
        """
        own = list(values)
        for dim, sizes in reversed(list(enumerate(self.sizes))):
            groups = [own[n : n + len(sizes)] for n in range(0, len(own), len(sizes))]
            own = [recorder.op("concat", *g, dim=dim) if len(g) > 1 else g[0] for g in groups]
        return own[0]


def parts(item: _Numbers, tables: Sequence[Array]) -> Parts | None:
    """The parts of one of these tables that a tensor is by its positions and its numbers; None: of
    none.

    Example: ones on rank 1 and zeros on rank 0, from (1, 0) and (0, 1) on, of a lower triangle.
    """
    if not item.begins or not tables:
        return None
    dims = tuple(d for d, n in enumerate(item.begins[0]) if n is not None)
    if any(tuple(d for d, n in enumerate(row) if n is not None) != dims for row in item.begins):
        return None
    at = tuple(slice(None) if d in dims else slice(0, 1) for d in range(len(item.shape)))
    if any(not np.array_equal(np.broadcast_to(a[at], a.shape), a) for a in item.arrays):
        return None
    line = tuple(item.shape[d] for d in dims)
    arrays = tuple(a[at].reshape(line) for a in item.arrays)
    places = [
        [_positions(n, size) for n, size in zip(_of_positions(row), line, strict=True)]
        for row in item.begins
    ]
    cuts = [_stretches([row[d] for row in places]) for d in range(len(dims))]
    blocks = tuple(_block(arrays, places, box) for box in product(*cuts))
    if any(all(holds(table, b.begins, b.arrays) for b in blocks) for table in tables):
        return Parts(dims, tuple(tuple(b - a for a, b in cut) for cut in cuts), blocks)
    return None


def _of_positions(row: Sequence[int | tuple[int, ...] | None]) -> list[int | tuple[int, ...]]:
    return [n for n in row if n is not None]


def _positions(begin: int | tuple[int, ...], size: int) -> tuple[int, ...]:
    return tuple(range(begin, begin + size)) if isinstance(begin, int) else begin


def _stretches(lines: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """From where to where positions follow each other on all ranks.

    Example: of (0, 1, 6, 7) and (2, 3, 4, 5), (0, 2) and (2, 4).
    """
    size = len(lines[0])
    inner = {n for line in lines for n in range(1, size) if line[n] != line[n - 1] + 1}
    return list(pairwise([0, *sorted(inner), size]))


def _block(
    arrays: Sequence[Array],
    places: Sequence[Sequence[Sequence[int]]],
    box: Sequence[tuple[int, int]],
) -> Block:
    cut = tuple(slice(a, b) for a, b in box)
    begins = tuple(tuple(line[a] for line, (a, _) in zip(row, box, strict=True)) for row in places)
    return Block(tuple(a[cut] for a in arrays), begins)


def row(
    arrays: Sequence[Array], line: tuple[int, ...], tables: Sequence[Array]
) -> tuple[int, ...] | None:
    """The shape in which numbers of ``line``, others on each rank, are rows or columns of one of
    these tables, which has one more dimension; None: of none, or they are a part as they are.

    Example: ``[0, 0]`` on rank 0 and ``[1, 0]`` on rank 1 are rows, (1, 2), of what is below the
    diagonal of a triangle of 2 by 2.
    """
    if len(arrays) == 1 or not line or lie(arrays, line, tables):
        return None
    shapes = ((*line[:d], 1, *line[d:]) for d in range(len(line) + 1))
    return next((shape for shape in shapes if lie(arrays, shape, tables)), None)


def lie(arrays: Sequence[Array], shape: tuple[int, ...], tables: Sequence[Array]) -> bool:
    """Whether one table has the numbers of every rank, in this shape.

    Example: the marks ``[1, 1, 1, 0]`` of the single device have ``[1, 1]`` and ``[1, 0]``.
    """
    own = [array.reshape(shape) for array in arrays]
    return any(all(inside(a, table) is not None for a in own) for table in tables)


def _own(x: _Numbers) -> Begins:
    """Where positions begin of which a tensor is made: as is kept of it, or it is positions."""
    if x.begins:
        return x.begins
    if not np.issubdtype(x.arrays[0].dtype, np.integer):
        return ()
    rows = []
    for array in x.arrays:
        moving = [d for d, n in enumerate(array.shape) if n > 1 and array.strides[d]]
        moving = [0] if array.ndim == 1 else moving
        if len(moving) != 1:
            return ()
        (dim,) = moving
        line = array[tuple(slice(None) if d == dim else 0 for d in range(array.ndim))]
        if not line.size or line.min() < 0:
            return ()
        inner = np.count_nonzero(np.diff(line.astype(np.int64)) != 1)
        if inner >= MOST_STRETCHES:
            return ()
        own = tuple(map(int, line)) if inner else int(line[0])
        rows.append(tuple(own if d == dim else None for d in range(array.ndim)))
    return tuple(rows)


def _together(operands: Sequence[Begins]) -> Begins:
    """Where the positions begin of which several operands are made; empty: they do not meet."""
    dims = {len(row) for own in operands for row in own}
    if not operands or not all(operands) or len(dims) > 1:
        return ()
    rows = []
    for rank in range(max(map(len, operands))):
        own = [o[rank if len(o) > 1 else 0] for o in operands]
        columns = [{n for n in column if n is not None} for column in zip(*own, strict=True)]
        if any(len(column) > 1 for column in columns):
            return ()
        rows.append(tuple(next(iter(column), None) for column in columns))
    return tuple(rows)


def _along(own: Begins, source: Mapping[int, int], dims: int) -> Begins:
    """Where positions begin once dimension d is what was dimension ``source[d]``."""
    return tuple(tuple(row[source[d]] if d in source else None for d in range(dims)) for row in own)


def _reshaped(own: Begins, before: Sequence[int], after: Sequence[int]) -> Begins:
    """The same between shapes that differ in dimensions of size 1."""
    kept = [d for d, n in enumerate(before) if n > 1]
    places = [d for d, n in enumerate(after) if n > 1]
    if [before[d] for d in kept] != [after[d] for d in places]:
        return ()
    return _along(own, dict(zip(places, kept, strict=True)), len(after))

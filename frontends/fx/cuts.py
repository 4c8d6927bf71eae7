"""Where a graph cuts an axis into parts that it uses apart: fused projections (q, k, v; gate, up).

A weight whose parts are interleaved has the shape of a contiguous shard and is none.  Where the
single side cuts an axis of the full extent, and the ranks cut theirs in the same proportions, both
placements fit, and only the user can say which one it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Final

from shardproof.frontends.fx.place import Piece
from shardproof.frontends.fx.records import Graph, Node, operand

Cut = tuple[int, ...]
Shapes = Mapping[str, list[int] | None]
#: How the names of types of 8 bits begin.
_SHORT: Final = ("int8", "uint8", "float8")
#: Operators that cut an axis into parts of one size.
CHUNK: Final = "aten.chunk.default"
PARTS: Final = frozenset({CHUNK, "aten.split.Tensor"})
#: Operators that give their operand in another shape.
VIEWS: Final = frozenset(
    f"aten.{name}"
    for name in ("view.default", "_unsafe_view.default", "reshape.default", "unflatten.int")
)
#: Operators that cut their operand in two halves, and the operand.
HALVES: Final[Mapping[str, str]] = {"_C.silu_and_mul.default": "input"}


def cuts(graph: Graph) -> dict[int, set[Cut]]:
    """By extent: sizes of the parts in which some tensor's axis of that extent is cut.

    Example: ``split_with_sizes(x, [8, 2, 2], 1)`` of x [2, 12] gives {12: {(8, 2, 2)}}, as do its
    three slices; ``chunk(x, 3, 1)``, and a view of x as [2, 3, 4], give {12: {(4, 4, 4)}}.
    """
    shapes = {node.name: node.shape for node in graph.nodes}
    cuts_of: dict[int, set[Cut]] = {}
    slices: dict[tuple[str, int], set[tuple[int, int]]] = {}

    def add(parts: Sequence[int]) -> None:
        if len(parts) > 1:
            cuts_of.setdefault(sum(parts), set()).add(tuple(parts))

    for node in graph.nodes:
        for sizes in _parts(node, shapes):
            add(sizes)
        if node.target == "aten.slice.Tensor" and len(node.args) >= 4:
            _slice(node, slices)
        for x in (node.kwargs.get(key) for op, key in HALVES.items() if op in node.args):
            shape = shapes.get(operand(x) or "")
            if shape:
                add([shape[-1] // 2] * 2)
    for (name, dim), parts in slices.items():
        shape = shapes.get(name)
        if shape and -len(shape) <= dim < len(shape):
            whole = {(0, shape[dim])}
            ends = sorted({(low, min(high, shape[dim])) for low, high in parts} - whole)
            joined = [low for low, _ in ends] == [0, *(high for _, high in ends[:-1])]
            if ends and joined and ends[-1][1] == shape[dim]:
                add([high - low for low, high in ends])
    return cuts_of


def _parts(node: Node, shapes: Shapes) -> Iterator[list[int]]:
    """Sizes of the parts into which one node cuts axes of its operand."""
    if node.target.startswith("aten.split_with_sizes.") and isinstance(node.args[1], list):
        yield node.args[1]
    elif node.target in PARTS:
        yield _equal_parts(node, shapes)
    elif node.target in VIEWS and node.shape is not None:
        yield from _split_axes(shapes.get(operand(node.args[0]) or "") or [], node.shape)


def _equal_parts(node: Node, shapes: Shapes) -> list[int]:
    """Sizes of the parts that ``chunk`` and ``split`` give; none: it cannot be told."""
    shape = shapes.get(operand(node.args[0]) or "")
    dim = node.args[2] if len(node.args) > 2 else node.kwargs.get("dim", 0)
    number = node.args[1] if len(node.args) > 1 else None
    known = isinstance(number, int) and number > 0 and isinstance(dim, int)
    if not shape or not known or not -len(shape) <= dim < len(shape):
        return []
    total = shape[dim]
    size = -(-total // number) if node.target == CHUNK else number
    return [min(size, total - at) for at in range(0, total, size or 1)]


def _split_axes(shape: Sequence[int], view: Sequence[int]) -> Iterator[list[int]]:
    """Of every axis that a view splits: equal parts, as many as its first factor says.

    Example: [2, 12] as [2, 3, 4] splits 12 into (4, 4, 4); as [4, 6] it splits none.
    """
    axes = list(view)
    for size in shape:
        factors: list[int] = []
        while axes and (not factors or prod(factors) < size):
            factors.append(axes.pop(0))
        if prod(factors) != size:
            return
        first = next((n for n in factors if n != 1), 1)
        if 1 < first < size:
            yield [size // first] * first


def _slice(node: Node, slices: dict[tuple[str, int], set[tuple[int, int]]]) -> None:
    name, (dim, low, high) = operand(node.args[0]), node.args[1:4]
    if name is not None and all(isinstance(n, int) for n in (dim, low, high)):
        slices.setdefault((name, dim), set()).add((low, high))


def interleaved(single: Graph, own: Graph, full: int, part: int, ranks: int) -> list[Piece]:
    """The pieces of an axis of the single side of which the ranks, who hold ``part`` of ``full``
    positions, have shares in the same order; none: there are none, or all of it is held.  Where
    there are fewer shares of a piece than ranks, ranks one after the other have the same.

    Example: 12 positions that the single side cuts into 8, 2, 2 and each of two ranks into 4, 1, 1:
    three pieces from 0, 8 and 10 with ``copies`` 1; where the ranks have 4, 2, 2, the last two have
    ``copies`` 2, as key heads that are on both ranks.
    """
    if full == part:
        return []
    splits = cuts(own).get(part, set())
    for cut in sorted(cuts(single).get(full, set())):
        for shares in sorted(splits):
            if len(shares) == len(cut) and all(
                n % share == 0 and ranks % (n // share) == 0
                for n, share in zip(cut, shares, strict=True)
            ):
                starts = [sum(cut[:i]) for i in range(len(cut))]
                return [
                    Piece(start, n, ranks * share // n)
                    for start, n, share in zip(starts, cut, shares, strict=True)
                ]
    return []


def in_blocks(single: Graph, own: Graph, full: int, part: int, ranks: int) -> list[Piece]:
    """The pieces of an axis of which every position stands for a block of positions of an axis that
    both sides cut (`interleaved`); none: there are none.

    Example: of 6 scales, one for each block of 8 rows of a fused weight [48, 64] of which the
    product is cut into 24 and 24: two pieces of 3.
    """
    for block in sorted({c // full for c in cuts(single) if c > full and c % full == 0}):
        pieces = interleaved(single, own, full * block, part * block, ranks)
        shares = [p.size * p.copies // ranks for p in pieces]
        if pieces and not any(n % block for n in (*shares, *(p.start for p in pieces))):
            return [Piece(p.start // block, p.size // block, p.copies) for p in pieces]
    return []


def stands_for_blocks(graph: Graph, shape: Sequence[int]) -> bool:
    """Whether an input of this shape may be scales of blocks of a weight of 8 bits: of as many
    dimensions, each of which divides the weight's, with a number for four entries or more.

    Example: [6, 2] beside a weight [48, 64] of "int8" or "float8_e4m3fn"; not [24, 64].
    """
    weights = [node for node in graph.inputs if (node.dtype or "").startswith(_SHORT)]
    return prod(shape) > 0 and any(
        len(weight.shape or ()) == len(shape)
        and not any(n % m for n, m in zip(weight.shape or (), shape, strict=True))
        and prod(weight.shape or ()) >= 4 * prod(shape)
        for weight in weights
    )

"""Windows whose positions the ranks divide: read by slices, which lie within each other.

What the taps of a window read is a table of 0 and 1 on both sides (`windows`), of which nothing is
known but that both have it.  Ranks that have some of the positions, and their neighbours' edges,
have another table: there both sides read by slices side by side instead, one for each tap (or for
each result, if there are fewer).  For example, a convolution of three taps over 16 positions, and
over 4 on each of four ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from shardproof.frontends.graphs.graph import Graph
from shardproof.frontends.hlo.opcodes import Taps
from shardproof.frontends.hlo.semantics import labels

#: Windows of more slices stay tables.
MOST_SLICES = 32


class Pattern(NamedTuple):
    """A window without how many positions there are: ``slices`` of ``taps``, or of steps; ``dim``:
    which of the dimensions that it moves along.

    Example: of a convolution of three taps over 16 positions, three taps, 1 apart.
    """

    dim: int
    taps: bool
    slices: int
    apart: int
    stride: int
    mirrored: bool


class Over(NamedTuple):
    """A pattern, and over how many positions it is.

    Example: of the gradient of a kernel with three taps, three slices of steps over 14 positions.
    """

    pattern: Pattern
    positions: int


def patterns(taps: Taps, steps: int, dim: int) -> list[Over]:
    """The patterns of a window along dimension ``dim`` of those that it moves along, that gives
    ``steps`` results, by taps and by steps; none: it stays a table.

    Example: three taps that give 14 results are three slices of 14; 14 taps that give three results
    (the gradient of a kernel with three taps) are 14 slices of three, or three of 14.
    """
    if taps.spread != 1 or taps.size == 1:
        return []
    both = [(True, taps.size, steps)]
    both += [] if taps.mirrored else [(False, steps, taps.size)]
    made = [Over(Pattern(dim, t, n, taps.apart, taps.stride, taps.mirrored), m) for t, n, m in both]
    return [over for over in made if over.pattern.slices <= MOST_SLICES]


def divided(single: Graph, parallel: Graph) -> frozenset[Over]:
    """Windows of either side that the other has over other numbers of positions alone.

    Example: of the convolution above, its pattern over 16 and over 4 positions; none where only
    rows of the batch are divided.
    """
    own, other = set(_windows(single)), set(_windows(parallel))
    common = {over.pattern for over in own} & {over.pattern for over in other}
    return frozenset(over for over in own ^ other if over.pattern in common)


def _windows(graph: Graph) -> Iterator[Over]:
    """Of all convolutions."""
    for node in graph.nodes:
        if node.target != "convolution" or "dim_labels" not in node.attrs:
            continue
        shape = graph.values[node.results[0]].shape
        at = labels(node.attrs["dim_labels"])
        if len(node.attrs.get("window", ())) == len(at.result[2]) == len(shape) - 2:
            for number, (taps, dim) in enumerate(
                zip(node.attrs["window"], at.result[2], strict=True)
            ):
                yield from patterns(taps, shape[dim], number)

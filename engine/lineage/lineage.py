"""Lineages: how a parallel tensor is made of single-device values, and the values themselves.

A `Term` says: this local tensor is ``factor`` times a strided view of a *reference node*, possibly
of the node's sum taken over part of its range only (its parts).  A `Lineage` is a sum of
terms.  All positions are at true size and affine in the mesh coordinates, so that one lineage
stands for a family of ranks and microbatches.

A reference node is a tensor-valued expression in hash-consed canonical form: two computations
that are the same up to movement of data, names and the order of sums and products are one node.
The single-device program defines its nodes; a parallel program that computes the same arrives at
the same nodes.  (Nodes that only the parallel program has are what it computes differently.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any, NamedTuple

from shardproof.engine.algebra.affine import ZERO, Affine

#: The axis number of an atom along which the tensor is constant.
BROADCAST = -1
#: The extent of an axis that counts absolute positions (classes of a one-hot, mask positions).
ABSOLUTE = 0


class Atom(NamedTuple):
    """A strided interval of a node's axis: index = stride * (start + i), 0 <= i < size.

    ``extent`` is the number of positions at this stride in the full axis (`ABSOLUTE`: unbounded).
    For ``axis == BROADCAST`` only ``size`` counts.
    """

    axis: int
    stride: int
    extent: int
    start: Affine
    size: int

    @property
    def full(self) -> bool:
        return self.size == self.extent and self.start == ZERO


Dim = tuple[Atom, ...]


class Layout(NamedTuple):
    """A view of a node: for each local dimension its atoms, outermost first (their sizes multiply
    to the dimension; none: size 1), and atoms of size 1 that belong to no dimension."""

    dims: tuple[Dim, ...]
    fixed: tuple[Atom, ...] = ()


class Part(NamedTuple):
    """The node's sum (or maximum) named by ``token`` runs over the positions i for which
    i mod ``extent`` is in [start, start + size); ``extent`` divides the range.

    Several parts of one token hold together (`engine.lineage.positions`): each takes whole periods
    of the ones of smaller extent.
    """

    token: int
    start: Affine
    size: int
    extent: int


class Place(NamedTuple):
    """Where a view lies in a local dimension: at the positions i for which i mod ``extent`` is in
    [start, start + size); ``extent`` divides the dimension.  Elsewhere the term is zero.

    Several places of one dimension hold together, as parts of one token do.
    """

    dim: int
    start: int
    size: int
    extent: int


class Term(NamedTuple):
    """``layout`` is of the positions that ``places`` leave: all, if there are none."""

    factor: Fraction
    node: int
    layout: Layout
    parts: tuple[Part, ...] = ()
    places: tuple[Place, ...] = ()


class Lineage(NamedTuple):
    """A local tensor of ``shape`` as a sum of terms (none: all zero).

    More than one term at one position only while at least one of them is partial: a complete sum
    is a node.  A concatenation of different values is a sum of terms that lie side by side.
    """

    shape: tuple[int, ...]
    terms: tuple[Term, ...]


class Operand(NamedTuple):
    """How a node's definition reads another node: atoms (axis, stride, extent, label)."""

    node: int
    atoms: tuple[tuple[int, int, int, int], ...]
    fixed: tuple[tuple[int, int, int, Affine], ...] = ()


class Token(NamedTuple):
    """What is partial.  ``kind``: "sum" or "max": the reduction of ``node`` over its definition's
    label ``where``; "via": ``node`` is linear in its operand ``where``, which is partial in
    ``inner``."""

    kind: str
    node: int
    where: int
    inner: int = -1


class Node(NamedTuple):
    """A reference node: its definition, the extents of its axes, and the mesh coordinates that its
    value depends on (none for a single-device value).

    Definitions (``kind``: ``payload``):

    - "input": (name,): a parameter, buffer, batch tensor or loss gradient;
    - "one": (): the constant 1;
    - "constant": (name,): a table of `engine.ops.primitives.CONSTANTS`;
    - "causal": (): axes (query, key), absolute positions;
    - "order": (): the same axes; 1, or 0 where the key comes after the query;
    - "einsum": (operands, output labels): axis i is output label i, other labels are summed;
    - "combine": (factors, operands, output labels): a sum of broadcast operands;
    - "most": (factors, operands, output labels): the maximum of broadcast operands;
    - "unary": (function, factor, node): same axes as the node;
    - "amax": (sign, operand, output labels);
    - "block": (node, blocks): the node without what is outside of `engine.lineage.blocks.Block`s of
    its
      axes;
    - "onehot": (factor, node): the node's axes, then the class;
    - "select": (factor, operand, row label, selection): axes of the operand but for the row, then
      the position among the chosen;
    - "stack": (dimension, terms): local tensors concatenated; axes are the local dimensions;
    - "piece": (terms,): a local tensor taken as it is; axes are the local dimensions;
    - "maximum": (terms,): elementwise maximum of local tensors;
    - "over": (axis name, extent, "sum" or "max", node): over the ranks along a mesh axis;
    - "at": (axis name, position, node): the value at one coordinate.
    """

    kind: str
    payload: tuple[object, ...]
    extents: tuple[int, ...]
    coordinates: frozenset[str] = frozenset()

    def payload_items(self) -> list[tuple[str, Any]]:
        """The payload with what each item is: "node", "operand", "operands" or "value"."""
        kinds = PAYLOAD.get(self.kind, ())
        return [
            (kinds[i] if i < len(kinds) else "value", item) for i, item in enumerate(self.payload)
        ]


#: Where definitions name other nodes.
PAYLOAD: dict[str, tuple[str, ...]] = {
    "einsum": ("operands",),
    "combine": ("value", "operands"),
    "most": ("value", "operands"),
    "unary": ("value", "value", "node"),
    "amax": ("value", "operand"),
    "onehot": ("value", "node"),
    "block": ("node", "value"),
    "select": ("value", "operand"),
}


def with_nodes(
    kind: str, payload: tuple[object, ...], rename: Callable[[int], int]
) -> tuple[object, ...]:
    """A definition's payload, its nodes named otherwise."""

    def renamed(what: str, item: Any) -> object:
        if what == "node":
            return rename(item)
        if what == "operand":
            return Operand(rename(item[0]), item[1], item[2])
        if what == "operands":
            return tuple(Operand(rename(o[0]), o[1], o[2]) for o in item)
        return item

    kinds = PAYLOAD.get(kind, ())
    return tuple(
        renamed(kinds[i], item) if i < len(kinds) else item for i, item in enumerate(payload)
    )


class NodeTable:
    """Hash-consed nodes and tokens, numbered in order of creation (operands first)."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.tokens: list[Token] = []
        self._masked: set[int] = set()
        #: Blocks that definitions are about: (node, axis, extent) -> (start, size).
        self.blocks: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
        self._met: list[tuple[str, int]] | None = None
        self._node_numbers: dict[tuple[str, tuple[object, ...]], int] = {}
        self._token_numbers: dict[Token, int] = {}
        self.one = self.node("one", (), ())

    def node(
        self,
        kind: str,
        payload: tuple[object, ...],
        extents: tuple[int, ...],
        coordinates: frozenset[str] = frozenset(),
    ) -> int:
        key = (kind, payload)
        number = self._node_numbers.get(key)
        if number is None:
            number = len(self.nodes)
            self._node_numbers[key] = number
            self.nodes.append(Node(kind, payload, extents, coordinates))
            if kind == "causal" or self._reads_masked(kind, payload):
                self._masked.add(number)
        if self._met is not None:
            self._met.append(("node", number))
        return number

    def _reads_masked(self, kind: str, payload: tuple[Any, ...]) -> bool:
        if kind == "combine":
            return any(o.node in self._masked for o in payload[1])
        return kind == "block" and payload[0] in self._masked

    def is_masked(self, number: int) -> bool:
        """Whether entries may be minus infinity: such a node is never taken as a symbol."""
        return number in self._masked

    def find(self, kind: str, payload: tuple[object, ...]) -> int | None:
        return self._node_numbers.get((kind, payload))

    def token(self, token: Token) -> int:
        number = self._token_numbers.get(token)
        if number is None:
            number = len(self.tokens)
            self._token_numbers[token] = number
            self.tokens.append(token)
        if self._met is not None:
            self._met.append(("token", number))
        return number

    @contextmanager
    def watched(self) -> Iterator[list[tuple[str, int]]]:
        """Lists what is asked for meanwhile, new or not: ("node" or "token", number)."""
        self._met = []
        try:
            yield self._met
        finally:
            self._met = None

    def __getitem__(self, number: int) -> Node:
        return self.nodes[number]

    def __len__(self) -> int:
        return len(self.nodes)


def box_view(
    node: int,
    full_shape: tuple[int, ...],
    shape: tuple[int, ...],
    offset: tuple[Affine, ...],
) -> Lineage:
    """The lineage of the box of ``shape`` at ``offset`` of a node whose axes are the dimensions of
    ``full_shape`` that exceed 1."""
    dims: list[Dim] = []
    axis = 0
    for full, size, start in zip(full_shape, shape, offset, strict=True):
        if full == 1:
            dims.append(())
        else:
            dims.append((Atom(axis, 1, full, start, size),))
            axis += 1
    return Lineage(shape, (Term(Fraction(1), node, Layout(tuple(dims))),))

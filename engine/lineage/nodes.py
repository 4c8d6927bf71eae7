"""Reference nodes: the single-device values that lineages are made of, each defined once.

A node is a tensor-valued expression in hash-consed canonical form: two computations that are the
same up to movement of data, names and the order of sums and products are one node. The
single-device program defines its nodes; a parallel program that computes the same arrives at the
same nodes. (Nodes that only the parallel program has are what it computes differently.)

Example: ``table.define(Input("w"), (8, 4))`` is the number of the parameter ``w`` of 8 x 4 entries,
however often it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from shardproof.engine.lineage.expressions import (
    Causal,
    Combine,
    Expression,
    Input,
    One,
    Restrict,
    Select,
    label_name,
)


class Reduction(NamedTuple):
    """What a value is partial in: the sum or the maximum that a node is, or that of one of its
    operands.

    Example: ``Reduction("sum", 3, 1)``, ``sum over b in n3``: of a matrix product ``n3 =
    einsum(n1[a:4, b:16], n2[c:8, b:16] -> a c)`` the sum over ``b``.

    ``kind``: "sum" or "max": the reduction of ``node`` over its definition's
    label ``where``; "via": ``node`` is linear in its operand ``where``, which is partial in
    ``inner``.
    """

    kind: str
    node: int
    where: int
    inner: int = -1

    def __str__(self) -> str:
        if self.kind == "via":
            return f"#{self.inner} in operand {self.where} of n{self.node}"
        return f"{self.kind} over {label_name(self.where)} in n{self.node}"


class Node(NamedTuple):
    """A reference node: its definition, the extents of its axes, and the mesh coordinates that its
    value depends on (none for a single-device value).

    Example: ``[4, 8] = einsum(n1[a:4, b:16], n2[c:8, b:16] -> a c)``.
    """

    definition: Expression
    extents: tuple[int, ...]
    coordinates: frozenset[str] = frozenset()

    @property
    def kind(self) -> str:
        """The name of the kind of its definition."""
        return self.definition.kind

    def __str__(self) -> str:
        extents = [n or "*" for n in self.extents]
        shape = f"[{', '.join(map(str, extents))}]"
        by = f" by {' '.join(sorted(self.coordinates))}" if self.coordinates else ""
        return f"{shape}{by} = {self.definition}"


class NodeTable:
    """Hash-consed nodes and reductions, numbered in order of creation (operands first).

    Example: in a new table node 0 is the constant 1, and ``define(Input("x"), (4, 16))`` is 1, also
    when it is defined again.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.reductions: list[Reduction] = []
        self._masked: set[int] = set()
        #: Blocks that definitions are about: (node, axis, extent) -> (start, size).
        self.blocks: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
        #: The integers that inputs are among, by name: from, to (exclusive).
        self.domains: dict[str, tuple[int, int]] = {}
        self._met: list[tuple[str, int]] | None = None
        self._node_numbers: dict[Expression, int] = {}
        self._reduction_numbers: dict[Reduction, int] = {}
        self.one = self.define(One())

    def define(
        self,
        definition: Expression,
        extents: tuple[int, ...] = (),
        coordinates: frozenset[str] = frozenset(),
    ) -> int:
        """The number of the node that is defined so, which is made if there is none."""
        number = self._node_numbers.get(definition)
        if number is None:
            number = len(self.nodes)
            self._node_numbers[definition] = number
            self.nodes.append(Node(definition, extents, coordinates))
            if self._masks(definition):
                self._masked.add(number)
        if self._met is not None:
            self._met.append(("node", number))
        return number

    def _masks(self, definition: Expression) -> bool:
        """Whether entries may be minus infinity."""
        match definition:
            case Causal():
                return True
            case Combine(operands=operands):
                return any(o.node in self._masked for o in operands)
            case Restrict(node=node):
                return node in self._masked
        return False

    def is_masked(self, number: int) -> bool:
        """Whether entries may be minus infinity: such a node is never taken as a symbol."""
        return number in self._masked

    def domain(self, number: int) -> tuple[int, int] | None:
        """The integers that all entries of a node are among, as the plan says of its inputs: from,
        to (exclusive); None where nothing says it.

        Example: of labels that the plan has with a domain of (0, 24), and of those behind the
        first, (0, 24); of the places that a choice from 8 scores gives, (0, 8).
        """
        match self.nodes[number].definition:
            case Input(name=name):
                return self.domains.get(name)
            case Restrict(node=node):
                return self.domain(node)
            case Select(operand=operand, row=row):
                return 0, next(n for *_, n, label in operand.intervals if label == row)
        return None

    def find(self, definition: Expression) -> int | None:
        """The number of the node that is defined so, if there is one."""
        return self._node_numbers.get(definition)

    def reduction(self, reduction: Reduction) -> int:
        """The number of a reduction, which is given one if it has none."""
        number = self._reduction_numbers.get(reduction)
        if number is None:
            number = len(self.reductions)
            self._reduction_numbers[reduction] = number
            self.reductions.append(reduction)
        if self._met is not None:
            self._met.append(("token", number))
        return number

    @contextmanager
    def watched(self) -> Iterator[list[tuple[str, int]]]:
        """Lists what is asked for meanwhile, new or not: ("node" or "reduction", number)."""
        self._met = []
        try:
            yield self._met
        finally:
            self._met = None

    def __getitem__(self, number: int) -> Node:
        return self.nodes[number]

    def __len__(self) -> int:
        return len(self.nodes)

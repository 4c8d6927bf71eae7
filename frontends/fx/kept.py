"""Rows that a mask makes zero before a function of each row, and once more behind it.

An expert of a rank computes on what is sent to it: rows of other experts are zero, and what it
makes of these is multiplied by zero as well.  For m = 0 or 1 and a function f of each row that
gives numbers for all numbers, ``m f(m x)`` is ``m f(x)``: where m is 0 both are 0, where it is 1
f reads the same row.  So such a product is written over the rows as they are, on both sides:

    y = f(x * m); y * (m * share)        is        f(x) * (m * share)

This is of real numbers: f has no quotient, root or logarithm that might give none.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from itertools import permutations
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from shardproof.frontends.fx.records import CALL, GETITEM, Graph, Node, named, operand, operands

#: What stands in the names of new nodes before their number.
MARK: Final = "~m"
#: Operators that are looked through, one inside the other.
DEEPEST: Final = 64
Rows: TypeAlias = tuple[int, ...]
_AND: Final = frozenset(
    {"aten.logical_and.default", "aten.bitwise_and.Tensor", "aten.__and__.Tensor"}
)
_NOT: Final = frozenset({"aten.logical_not.default", "aten.bitwise_not.default"})
#: Casts, and other shapes: of the same rows, where the first dimensions are the same.
_CASTS: Final = frozenset(
    {
        *("aten.to.dtype", "aten._to_copy.default", "aten.alias.default", "aten.clone.default"),
        *("aten.contiguous.default", "aten.type_as.default"),
    }
)
_MOVES: Final = frozenset(
    {
        *("aten.view.default", "aten.reshape.default", "aten.unsqueeze.default"),
        *("aten.squeeze.dim", "aten.expand.default"),
    }
)
#: Functions of single entries of all their operands, which give numbers for all numbers.
_BY_ENTRY: Final = frozenset(
    f"aten.{name}"
    for name in (
        *("silu.default", "gelu.default", "relu.default", "sigmoid.default", "tanh.default"),
        *("exp.default", "neg.default", "abs.default", "sin.default", "cos.default"),
        *("erf.default", "leaky_relu.default", "hardswish.default", "square.default"),
        *("mul.Tensor", "add.Tensor", "sub.Tensor", "mul.Scalar", "add.Scalar", "sub.Scalar"),
    )
)
#: Functions of each row of one operand, by its place; other operands are the same for all rows.
_BY_ROW: Final[Mapping[str, int]] = {
    "aten.linear.default": 0,
    "aten.matmul.default": 0,
    "aten.mm.default": 0,
    "aten.addmm.default": 1,
    "aten.layer_norm.default": 0,
    "aten.rms_norm.default": 0,
    "aten.slice.Tensor": 0,
}
#: Norms, and which operand is added to what a root is taken of: without it a row of zeros has none.
_NORMS: Final[Mapping[str, int]] = {"aten.layer_norm.default": 4, "aten.rms_norm.default": 3}
_PARTS: Final = frozenset(
    {"aten.chunk.default", "aten.split.Tensor", "aten.split_with_sizes.default"}
)
_PRODUCT: Final = "aten.mul.Tensor"
#: Choices by a mask, by the places of the mask, of what is kept where it is 1, and of the number.
_CHOICES: Final = {
    "aten.where.ScalarOther": (0, 1, 2),
    "aten.masked_fill.Scalar": (1, 0, 2),
}


def kept_rows(graph: Graph) -> Graph:
    """The graph with what a mask keeps of a function of each row over these rows as they are.

    Example: ``gelu((x * m) @ w) * m`` of a column m of 0 and 1 is ``gelu(x @ w) * m``.
    """
    if any(MARK in node.name for node in graph.nodes):
        return graph  # New nodes would not have names of their own.
    return _Reading(graph).graph()


class _Reading:
    """A graph while it is read: ``known``: its nodes, and new ones; ``copied``: what was written
    anew; ``masks``: without which a node is zero; ``same``: what is the same under masks."""

    def __init__(self, graph: Graph) -> None:
        self.before = graph
        self.nodes: list[Node] = []
        self.known: dict[str, Node] = {}
        self.copied: set[str] = set()
        self.depth = 0
        self.masks: dict[tuple[str, Rows | None], frozenset[str]] = {}
        self.same: dict[tuple[str, Rows, frozenset[str]], str] = {}

    def graph(self) -> Graph:
        for node in self.before.nodes:
            self.known[node.name] = node
            written = self.written(node) if node.op == CALL else node
            self.nodes.append(written)
            self.known[node.name] = written
        if not self.copied:
            return self.before
        return replace(self.before, nodes=self._read_nodes())

    def _read_nodes(self) -> list[Node]:
        """The nodes without those that were written anew and that nobody reads any more."""
        read: set[str] = set()
        kept: list[Node] = []
        for node in reversed(self.nodes):
            if node.name not in self.copied or node.name in read:
                read.update(operands([node.args, node.kwargs]))
                kept.append(node)
        return kept[::-1]

    def of(self, x: Any) -> Node | None:
        """The node that an argument names."""
        return self.known.get(operand(x) or "")

    # -- what a mask keeps ------------------------------------------------------------------------

    def written(self, node: Node) -> Node:
        """A product with what is zero without a mask, over rows as they are under it."""
        if node.target == _PRODUCT and len(node.args) == 2:
            for place in (0, 1):
                x, factor = self.of(node.args[place]), self.of(node.args[1 - place])
                if x is None or factor is None or _rank(x) != _rank(factor):
                    continue
                for rows in sorted({_rows(self.known[m]) for m in self._masks(factor)}):
                    changed = self._changed(node, x, place, rows, self._masks(factor, rows))
                    if changed is not None:
                        return changed
        choice = self._choice(node)
        if choice is None or node.args[_CHOICES[node.target][2]] != 0:
            return node
        place = _CHOICES[node.target][1]
        masks = self._masks(choice[0], _rows(choice[0]))
        return self._changed(node, choice[1], place, _rows(choice[0]), masks) or node

    def _changed(
        self, node: Node, x: Node, place: int, rows: Rows, masks: frozenset[str]
    ) -> Node | None:
        """The node with another operand, which is the same under the masks; None: there is none."""
        if not masks or not _has_rows(x, rows) or not _has_rows(node, rows):
            return None
        name = self.under(x.name, rows, masks)
        if name == x.name:
            return None
        args = [named(name) if n == place else a for n, a in enumerate(node.args)]
        return replace(node, args=args)

    def _masks(self, node: Node, rows: Rows | None = None) -> frozenset[str]:
        """The truth values without which a node is zero; those of these rows alone."""
        key = (node.name, rows)
        if key not in self.masks and self.depth < DEEPEST:
            self.depth += 1
            self.masks[key] = self._masks_of(node, rows)
            self.depth -= 1
        return self.masks.get(key, _NONE)

    def _masks_of(self, node: Node, rows: Rows | None) -> frozenset[str]:
        if node.dtype == "bool":
            root = self._root(node)
            own = frozenset({root.name}) if rows in (None, _rows(root)) else _NONE
            return own.union(*(self._masks(n, rows) for n in self._alike(root, _AND)))
        if node.target in _CASTS or node.target in _MOVES:
            of = self.of(node.args[0])
            return self._masks(of, rows) if of is not None and _moves_rows(node, of) else _NONE
        return _NONE.union(*(self._masks(n, rows) for n in self._alike(node, {_PRODUCT})))

    def _alike(self, node: Node, targets: Set[str]) -> list[Node]:
        """The operands of one of some operators that have as many dimensions as its result."""
        given = map(self.of, node.args) if node.target in targets else ()
        return [n for n in given if n is not None and _rank(n) == _rank(node)]

    def _root(self, mask: Node) -> Node:
        """The truth values that others are in another shape."""
        while mask.target in _CASTS or mask.target in _MOVES:
            of = self.of(mask.args[0])
            if of is None or of.dtype != "bool" or not _moves_rows(mask, of):
                break
            mask = of
        return mask

    def _choice(self, node: Node) -> tuple[Node, Node] | None:
        """The mask of truth values by which a node chooses, and what it keeps of; None: it does
        not."""
        places = _CHOICES.get(node.target)
        if places is None or len(node.args) != 3:
            return None
        mask, x = self.of(node.args[places[0]]), self.of(node.args[places[1]])
        if mask is not None and node.target == "aten.masked_fill.Scalar":
            mask = self._inverse(mask)
        if mask is None or x is None or not _rank(mask) == _rank(x) == _rank(node):
            return None
        base = self._base(mask)
        return None if base is None else (base, x)

    def _inverse(self, mask: Node) -> Node | None:
        """What a mask is the inverse of."""
        return self.of(mask.args[0]) if mask.target in _NOT else None

    def _base(self, mask: Node) -> Node | None:
        """The truth values that a mask of other shape, or of numbers, has for each row."""
        while mask.dtype != "bool" and (mask.target in _CASTS or mask.target in _MOVES):
            of = self.of(mask.args[0])
            if of is None or not _moves_rows(mask, of):
                return None
            mask = of
        return self._root(mask) if mask.dtype == "bool" else None

    # -- what is the same under masks -------------------------------------------------------------

    def under(self, name: str, rows: Rows, masks: frozenset[str]) -> str:
        """A node that has the same rows wherever all masks are 1."""
        key = (name, rows, masks)
        if key not in self.same and self.depth < DEEPEST:
            self.depth += 1
            self.same[key] = self._under(self.known[name], rows, masks)
            self.depth -= 1
        return self.same.get(key, name)

    def _under(self, node: Node, rows: Rows, masks: frozenset[str]) -> str:
        if node.op != CALL or not _has_rows(node, rows) or "float" not in (node.dtype or ""):
            return node.name
        shown = self._shown(node, masks)
        if shown is not None:
            self.copied.add(node.name)
            return self.under(shown.name, rows, masks)
        if node.target == GETITEM:
            return self._part(node, rows, masks)
        places = self._places(node, rows)
        args = [
            named(self.under(operand(x) or "", rows, masks)) if n in places else x
            for n, x in enumerate(node.args)
        ]
        return node.name if args == node.args else self._emit(node, args)

    def _shown(self, node: Node, masks: frozenset[str]) -> Node | None:
        """What a node is where masks are 1, of those by which it is multiplied, or chosen; None:
        it is by no such mask."""
        for x, factor in permutations(self._alike(node, {_PRODUCT}), 2):
            base = self._base(factor)
            if base is not None and base.name in masks and x.shape == node.shape:
                return x
        mask, x = self._choice(node) or (node, node)
        return x if mask.name in masks and x.shape == node.shape else None

    def _part(self, node: Node, rows: Rows, masks: frozenset[str]) -> str:
        """A part of each row, of what is the same under masks."""
        whole = self.of(node.args[0])
        x = None if whole is None else self.of(whole.args[0])
        if whole is None or x is None or whole.target not in _PARTS or not _has_rows(x, rows):
            return node.name
        dim = whole.args[2] if len(whole.args) > 2 else whole.kwargs.get("dim", 0)
        name = self.under(x.name, rows, masks)
        if dim not in (-1, len(rows)) or name == x.name:
            return node.name
        parts = self._emit(whole, [named(name), *whole.args[1:]])
        return self._emit(node, [named(parts), *node.args[1:]])

    def _places(self, node: Node, rows: Rows) -> list[int]:
        """Which operands have the rows of which a node has a function each."""
        places = range(len(node.args))
        if node.target in _BY_ROW:
            place = _BY_ROW[node.target]
            places = range(place, place + self._is_of_rows(node, rows))
        elif node.target not in _BY_ENTRY and node.target not in _CASTS:
            return []
        given = [(n, self.of(node.args[n])) for n in places if n < len(node.args)]
        return [n for n, x in given if x is not None and _has_rows(x, rows)]

    def _is_of_rows(self, node: Node, rows: Rows) -> bool:
        """Whether a product, a norm or a slice is of each row by itself: of the last dimension."""
        if node.target in ("aten.matmul.default", "aten.mm.default"):
            other = self.of(node.args[1])
            return other is not None and _rank(other) == 2
        if node.target == "aten.slice.Tensor":
            return len(node.args) > 1 and node.args[1] in (-1, len(rows))
        if node.target in _NORMS:
            place = _NORMS[node.target]
            own = isinstance(node.args[1], list) and len(node.args[1]) == 1
            return own and (len(node.args) <= place or node.args[place] != 0)
        return True

    def _emit(self, like: Node, args: list[Any]) -> str:
        name = f"{like.name}{MARK}{len(self.nodes)}"
        made = replace(like, name=name, args=args)
        self.nodes.append(made)
        self.known[name] = made
        self.copied.add(like.name)
        return name


_NONE: Final[frozenset[str]] = frozenset()


def _rank(node: Node) -> int:
    return len(node.shape or ())


def _rows(mask: Node) -> Rows:
    """The dimensions of a mask, without one of one position at the end."""
    shape = tuple(mask.shape or ())
    return shape[:-1] if len(shape) > 1 and shape[-1] == 1 else shape


def _has_rows(node: Node, rows: Rows) -> bool:
    """Whether a node's first dimensions are rows, and it has one more."""
    return bool(rows) and tuple(node.shape or ())[:-1] == rows


def _moves_rows(node: Node, of: Node) -> bool:
    """Whether a movement, or a cast, leaves rows where they are: its first dimensions are those."""
    if not node.shape or not of.shape:
        return False
    if node.target == "aten.expand.default" and _rank(node) != _rank(of):
        return False
    rows = _rows(of)
    return node.target in _CASTS or tuple(node.shape)[: len(rows)] == rows

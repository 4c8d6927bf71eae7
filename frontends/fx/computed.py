"""Numbers that a graph computes of none of its inputs: positions, masks, rotary tables.

``cos(outer(arange(4, dtype=float32), 1 / 10000 ** (arange(0, 8, 2) / 8)))`` is a table [4, 4] of
known numbers.  They are computed by NumPy in the element types that the graph has (half precisions
in single precision), as the documentation of `torch` says of every operator; an operator that is
not listed here, or an argument that is not understood, gives no numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardproof.frontends.aten.levels import constant
from shardproof.frontends.aten.lowering import Lowering
from shardproof.frontends.aten.rules import typed
from shardproof.frontends.fx import arranged
from shardproof.frontends.fx.arrays import IRRELEVANT, RULES, SHAPE_ALONE, TYPES
from shardproof.frontends.fx.records import CALL, GETITEM, Graph, Node, operand, operands

Array = NDArray[Any]
#: What integers of a type numbers are, where nothing says what those that it does not have are.
Cast = Callable[[Array, np.dtype[Any]], Array]
#: Importing it registers its rules.
OTHERS: Final = arranged
#: Tables of more entries are not computed, and no more when all of a graph have so many.
MOST_ELEMENTS: Final = 1 << 21
MOST_OF_ALL: Final = 1 << 25
#: What a rule raises for arguments that are not those of its operator.
_MALFORMED: Final = (
    *(TypeError, ValueError, AttributeError, IndexError, KeyError),
    *(ArithmeticError, MemoryError),
)


class Undefined(Exception):
    """Numbers that an integer type does not have become integers: nothing says which."""


class Computed:
    """The numbers of a graph's nodes; ``known``: those of inputs of which the file has them.

    Numbers that an integer type does not have are known where they change nothing: T5's buckets
    take the logarithm of a distance of 0, and then choose another number there.  They are computed
    as each processor does it (``cast``), and have to be the same.

    Example: of ``y = arange(4); z = mul(y, 2); w = add(z, x)`` with an input ``x``, ``array("z")``
    is [0, 2, 4, 6], and ``array("w")`` is None.
    """

    def __init__(self, graph: Graph, known: Mapping[str, Array], cast: Cast | None = None) -> None:
        self._graph, self._known, self._cast = graph, known, cast
        self._nodes = {node.name: node for node in graph.nodes}
        self._order = {node.name: n for n, node in enumerate(graph.nodes)}
        self._made: dict[str, Any] = dict(known)
        self._left = MOST_OF_ALL
        self._ways: list[Computed] | None = None

    def array(self, name: str) -> Array | None:
        """The numbers of a node, in its shape; None: they depend on an input, or are not known."""
        for node in self._needed(name):
            self._made[node.name] = self._evaluated(node)
        if self._made[name] is None and self._ways:
            self._made[name] = self._agreed(self._ways, name)
        made = self._made[name]
        return made if isinstance(made, np.ndarray) else None

    def is_known(self, name: str) -> bool:
        """Whether a node gives known numbers: a tensor's, or those of several.

        Example: ``split(arange(4), 2)`` does, whose numbers `array` has of its two parts.
        """
        self.array(name)
        return self._made[name] is not None

    def _agreed(self, ways: Sequence[Computed], name: str) -> Array | None:
        """The numbers of a node that are the same in all ways."""
        first, *others = (way.array(name) for way in ways)
        if first is None or any(other is None for other in others):
            return None
        same = all(
            np.array_equal(first, other, equal_nan=True) for other in others if other is not None
        )
        return first if same else None

    def _needed(self, name: str) -> list[Node]:
        """The nodes that have to be computed for one, in the order of the graph."""
        names, left = set[str](), [name]
        while left:
            one = left.pop()
            if one in self._made or one in names:
                continue
            names.add(one)
            left += _operands(self._nodes[one])
        return [self._nodes[one] for one in sorted(names, key=self._order.__getitem__)]

    def _evaluated(self, node: Node) -> Any:
        size = prod(node.shape or ())
        if node.op != CALL or not 0 <= size <= min(MOST_ELEMENTS, self._left):
            return None
        if any(self._made[name] is None for name in _operands(node)):
            return None
        unread = 1 if node.target in SHAPE_ALONE else 0
        args = [*[None] * unread, *(self._argument(x) for x in node.args[unread:])]
        named = {k: self._argument(x) for k, x in node.kwargs.items() if k not in IRRELEVANT}
        if node.target == GETITEM:
            return self._fitting(args[0][args[1]], node) if _is_part(args) else None
        rule = RULES.get(node.target)
        if rule is None:
            return None
        try:
            with np.errstate(all="ignore"):
                made = rule(node, *args, **named)
                self._left -= size
                return made if isinstance(made, list) else self._fitting(made, node)
        except _MALFORMED:
            return None

    def _fitting(self, made: Any, node: Node) -> Array | None:
        try:
            return fitting(made, node, self._cast)
        except Undefined:
            if self._ways is None:
                casts = (_least, _nearest)
                self._ways = [Computed(self._graph, self._known, cast) for cast in casts]
            return None

    def _argument(self, x: Any) -> Any:
        name = operand(x)
        if name is not None:
            return self._made[name]
        if isinstance(x, (list, tuple)):
            return [self._argument(item) for item in x]
        return x


def fitting(made: Any, node: Node, cast: Cast | None = None) -> Array | None:
    """Numbers in the shape and element type of a node; None: they have another shape.  Raises
    `Undefined` where the type has no such integers, and ``cast`` does not say what they become.

    Example: 0 and 1 of int64 for a node of bool [2] are False and True.
    """
    dtype = TYPES.get(node.dtype or "")
    array = np.asarray(made)
    if dtype is None or node.shape is None or array.shape != tuple(node.shape):
        return None
    if array.dtype.kind == "c" and "complex" not in (node.dtype or ""):
        return None
    kind = np.dtype(dtype)
    if kind.kind in "iu" and array.dtype.kind == "f" and not _inside(array, kind).all():
        if cast is None:
            raise Undefined
        array = cast(array, kind)
    return np.ascontiguousarray(array.astype(dtype, copy=False)).reshape(node.shape)


def _inside(array: Array, kind: np.dtype[Any]) -> NDArray[np.bool_]:
    """Which numbers, without what is behind the point, an integer type has."""
    info = np.iinfo(kind)
    whole = np.trunc(array)
    return np.asarray((whole >= float(info.min)) & (whole < float(info.max) + 1))


def _least(array: Array, kind: np.dtype[Any]) -> Array:
    """What x86 makes of other numbers: the least integer."""
    inside = _inside(array, kind)
    return np.where(inside, np.where(inside, array, 0).astype(kind), np.iinfo(kind).min)


def _nearest(array: Array, kind: np.dtype[Any]) -> Array:
    """What ARM and CUDA make of other numbers: the nearest integer, and 0 of what is no number."""
    inside, info = _inside(array, kind), np.iinfo(kind)
    end = np.where(array > 0, info.max, np.where(array < 0, info.min, 0))
    return np.where(inside, np.where(inside, array, 0).astype(kind), end)


def known_numbers(lo: Lowering, array: Array, dtype: str) -> Any:
    """Known numbers as the constant, positions, mask or table that they are.

    Example: [0, 1, 2, 3] of int8 are positions, [0.1, 0.3] of bfloat16 a table of float32.
    """
    wide = array if array.dtype.kind in "bf" else array.astype(np.int64)
    return typed(lo, constant(lo, wide.tobytes(), wide.shape, wide.dtype.name), dtype)


def _operands(node: Node) -> list[str]:
    """What a node's numbers are computed of: ``x.new_full((4, 4), -1.0)`` of no number of x."""
    args = node.args[1:] if node.target in SHAPE_ALONE else node.args
    return [*operands(args), *operands(node.kwargs)]


def _is_part(args: Sequence[Any]) -> bool:
    return len(args) == 2 and isinstance(args[0], list) and args[1] in range(len(args[0]))

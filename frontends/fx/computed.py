"""Numbers that a graph computes of none of its inputs: positions, masks, rotary tables.

``cos(outer(arange(4, dtype=float32), 1 / 10000 ** (arange(0, 8, 2) / 8)))`` is a table [4, 4] of
known numbers.  They are computed by NumPy in the element types that the graph has (half precisions
in single precision), as the documentation of `torch` says of every operator; an operator that is
not listed here, or an argument that is not understood, gives no numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardproof.frontends.aten.levels import constant
from shardproof.frontends.aten.lowering import Lowering
from shardproof.frontends.aten.rules import typed
from shardproof.frontends.fx import arranged
from shardproof.frontends.fx.arrays import IRRELEVANT, RULES
from shardproof.frontends.fx.records import CALL, Graph, Node, operand, operands

Array = NDArray[Any]
#: Importing it registers its rules.
OTHERS: Final = arranged
#: Tables of more entries are not computed, and no more when all of a graph have so many.
MOST_ELEMENTS: Final = 1 << 21
MOST_OF_ALL: Final = 1 << 25
#: Element types in which numbers are computed, by torch's names.
TYPES: Final[Mapping[str, type[np.generic]]] = {
    "bool": np.bool_,
    "uint8": np.uint8,
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int64,
    "float16": np.float32,
    "bfloat16": np.float32,
    "float32": np.float32,
    "float64": np.float64,
    "complex64": np.complex64,
    "complex128": np.complex128,
}
GETITEM: Final = "<built-in function getitem>"
#: What a rule raises for arguments that are not those of its operator.
_MALFORMED: Final = (
    *(TypeError, ValueError, AttributeError, IndexError, KeyError),
    *(ArithmeticError, MemoryError),
)


class Computed:
    """The numbers of a graph's nodes; ``known``: those of inputs of which the file has them.

    Example: of ``y = arange(4); z = mul(y, 2); w = add(z, x)`` with an input ``x``, ``array("z")``
    is [0, 2, 4, 6], and ``array("w")`` is None.
    """

    def __init__(self, graph: Graph, known: Mapping[str, Array]) -> None:
        self._nodes = {node.name: node for node in graph.nodes}
        self._order = {node.name: n for n, node in enumerate(graph.nodes)}
        self._made: dict[str, Any] = dict(known)
        self._left = MOST_OF_ALL

    def array(self, name: str) -> Array | None:
        """The numbers of a node, in its shape; None: they depend on an input, or are not known."""
        for node in self._needed(name):
            self._made[node.name] = self._evaluated(node)
        made = self._made[name]
        return made if isinstance(made, np.ndarray) else None

    def is_known(self, name: str) -> bool:
        """Whether a node gives known numbers: a tensor's, or those of several.

        Example: ``split(arange(4), 2)`` does, whose numbers `array` has of its two parts.
        """
        self.array(name)
        return self._made[name] is not None

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
        args = [self._argument(x) for x in node.args]
        named = {k: self._argument(x) for k, x in node.kwargs.items() if k not in IRRELEVANT}
        if node.target == GETITEM:
            return fitting(args[0][args[1]], node) if _is_part(args) else None
        rule = RULES.get(node.target)
        if rule is None:
            return None
        try:
            with np.errstate(all="ignore"):
                made = rule(node, *args, **named)
                self._left -= size
                return made if isinstance(made, list) else fitting(made, node)
        except _MALFORMED:
            return None

    def _argument(self, x: Any) -> Any:
        name = operand(x)
        if name is not None:
            return self._made[name]
        if isinstance(x, (list, tuple)):
            return [self._argument(item) for item in x]
        return x


def fitting(made: Any, node: Node) -> Array | None:
    """Numbers in the shape and element type of a node; None: they have another shape.

    Example: 0 and 1 of int64 for a node of bool [2] are False and True.
    """
    dtype = TYPES.get(node.dtype or "")
    array = np.asarray(made)
    if dtype is None or node.shape is None or array.shape != tuple(node.shape):
        return None
    if array.dtype.kind == "c" and "complex" not in (node.dtype or ""):
        return None
    if dtype(0).dtype.kind in "iu" and array.dtype.kind == "f" and not np.isfinite(array).all():
        return None
    return np.ascontiguousarray(array.astype(dtype, copy=False)).reshape(node.shape)


def known_numbers(lo: Lowering, array: Array, dtype: str) -> Any:
    """Known numbers as the constant, positions, mask or table that they are.

    Example: [0, 1, 2, 3] of int8 are positions, [0.1, 0.3] of bfloat16 a table of float32.
    """
    wide = array if array.dtype.kind in "bf" else array.astype(np.int64)
    return typed(constant(lo, wide.tobytes(), wide.shape, wide.dtype.name), dtype)


def _operands(node: Node) -> list[str]:
    return [*operands(node.args), *operands(node.kwargs)]


def _is_part(args: Sequence[Any]) -> bool:
    return len(args) == 2 and isinstance(args[0], list) and args[1] in range(len(args[0]))

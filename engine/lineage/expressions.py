"""Expressions: what a reference node is defined as, one class for each kind of definition.

`Expression` is their union: a function over it is a `match` that mypy checks to be complete. An
expression names other nodes by their numbers in an `engine.lineage.nodes.NodeTable`, so that two
definitions are equal if and only if they are the same function of the same nodes.

Example: the product of nodes 3 and 4 over the label 1,
``Einsum((Operand(3, ((0, 1, 8, 0), (1, 1, 4, 1))), Operand(4, ((0, 1, 4, 1),))), (0,))``.

Invariants: expressions are immutable and hashable; `children` and `rename` speak of the same nodes
in the same order. Definitions of local tensors (`Concatenated`, `Opaque`, `Maximum`) and of values
along a mesh axis (`AcrossRanks`, `AtCoordinate`) are names: no claim reads them, so they have no
children and are not renamed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Literal, NamedTuple, Self, TypeAlias

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.algebra.selection import Selection
from shardproof.engine.lineage.blocks import Block
from shardproof.engine.lineage.lineage import Addend, start_text

#: From the number of a node to another one.
Renaming: TypeAlias = Callable[[int], int]


class Operand(NamedTuple):
    """How a node's definition reads another node: intervals (axis, stride, extent, label), and
    positions (axis, stride, extent, start) that are fixed.

    Example: ``n5[a0/4=a:2, a1=<2*tp + 1> of 8]``: every fourth position of axis 0, two of them, is
    label ``a``; of axis 1 one position is read.
    """

    node: int
    intervals: tuple[tuple[int, int, int, int], ...]
    fixed: tuple[tuple[int, int, int, Affine], ...] = ()

    def rename(self, number_of: Renaming) -> Operand:
        """The same way of reading another node."""
        return Operand(number_of(self.node), self.intervals, self.fixed)

    def __str__(self) -> str:
        read = [
            f"{_axis(axis, stride, place)}{label_name(label)}:{extent or '*'}"
            for place, (axis, stride, extent, label) in enumerate(self.intervals)
        ]
        fixed = [
            f"{_axis(axis, stride)}{start_text(start)} of {extent or '*'}"
            for axis, stride, extent, start in self.fixed
        ]
        return f"n{self.node}[{', '.join((*read, *fixed))}]"


def label_name(label: int) -> str:
    """A label as a letter; beyond the alphabet by its number.

    Example: label 2 is ``c``.
    """
    return chr(ord("a") + label) if 0 <= label < 26 else f"l{label}"


def _axis(axis: int, stride: int, place: int = -1) -> str:
    """Which axis is read, where that is not the one whose turn it is."""
    name = "" if stride == 1 else f"/{stride}"
    return "" if axis == place and not name else f"a{axis}{name}="


def _reading(reads: Sequence[object], outputs: Sequence[int]) -> str:
    """Operands, and the labels that are left."""
    return f"{', '.join(map(str, reads))} -> {' '.join(map(label_name, outputs)) or '1'}"


def _scaled(factor: Fraction | int, what: str) -> str:
    return what if factor == 1 else f"{factor}*{what}"


class _Definition:
    """What all expressions have; a definition that reads no node has these."""

    __slots__ = ()

    #: The name of the definition in tables and reports.
    kind: ClassVar[str]

    def reads(self) -> tuple[Operand, ...]:
        """The operands that are read by labels."""
        return ()

    def children(self) -> tuple[int, ...]:
        """The nodes that the definition is made of, one for each time that it names one."""
        return tuple(operand.node for operand in self.reads())

    def rename(self, number_of: Renaming) -> Self:
        """The same definition over other nodes."""
        return self


@dataclass(frozen=True, slots=True)
class Input(_Definition):
    """A parameter, buffer, batch tensor or loss gradient of the plan.

    Example: ``Input("layers.0.wq")``, written ``input 'layers.0.wq'``.
    """

    kind: ClassVar[Literal["input"]] = "input"
    name: str

    def __str__(self) -> str:
        return f"input {self.name!r}"


@dataclass(frozen=True, slots=True)
class One(_Definition):
    """The constant 1.

    Example: node 0 of every table, written ``n0: [] = 1``.
    """

    kind: ClassVar[Literal["one"]] = "one"

    def __str__(self) -> str:
        return "1"


@dataclass(frozen=True, slots=True)
class Constant(_Definition):
    """A table of `engine.ops.primitives.CONSTANTS`.

    Example: ``constant complex_product``, with which two complex numbers, as pairs, are multiplied.
    """

    kind: ClassVar[Literal["constant"]] = "constant"
    name: str

    def __str__(self) -> str:
        return f"constant {self.name}"


@dataclass(frozen=True, slots=True)
class Causal(_Definition):
    """The causal mask, axes (query, key) of absolute positions: 0, or minus infinity where the key
    comes after the query.

    Example: at (2, 1) 0, at (1, 2) minus infinity.
    """

    kind: ClassVar[Literal["causal"]] = "causal"

    def __str__(self) -> str:
        return "causal mask"


@dataclass(frozen=True, slots=True)
class Order(_Definition):
    """The causal mask as numbers, over the same axes: 1, or 0 where the key comes after the
    query.

    Example: at (2, 1) 1, at (1, 2) 0.
    """

    kind: ClassVar[Literal["order"]] = "order"

    def __str__(self) -> str:
        return "causal order"


@dataclass(frozen=True, slots=True)
class Einsum(_Definition):
    """The product of operands: axis i is label ``outputs[i]``, all other labels are summed.

    Example: ``einsum(n3[a:4, b:8], n4[b:8] -> a)``, a matrix times a vector.
    """

    kind: ClassVar[Literal["einsum"]] = "einsum"
    operands: tuple[Operand, ...]
    outputs: tuple[int, ...]

    def reads(self) -> tuple[Operand, ...]:
        """The factors of the product."""
        return self.operands

    def rename(self, number_of: Renaming) -> Einsum:
        """The same product of nodes with other numbers."""
        return Einsum(tuple(o.rename(number_of) for o in self.operands), self.outputs)

    def __str__(self) -> str:
        return f"einsum({_reading(self.operands, self.outputs)})"


@dataclass(frozen=True, slots=True)
class Combine(_Definition):
    """The sum of broadcast operands, each times its factor; no label is summed.

    Example: ``sum(n3[a:4, b:8], -1/2*n4[b:8] -> a b)``: from every row half of a vector is
    subtracted.
    """

    kind: ClassVar[Literal["combine"]] = "combine"
    factors: tuple[Fraction, ...]
    operands: tuple[Operand, ...]
    outputs: tuple[int, ...]

    def reads(self) -> tuple[Operand, ...]:
        """The addends of the sum."""
        return self.operands

    def rename(self, number_of: Renaming) -> Combine:
        """The same sum of nodes with other numbers."""
        renamed = tuple(o.rename(number_of) for o in self.operands)
        return Combine(self.factors, renamed, self.outputs)

    def __str__(self) -> str:
        addends = [_scaled(f, str(o)) for f, o in zip(self.factors, self.operands, strict=True)]
        return f"sum({_reading(addends, self.outputs)})"


@dataclass(frozen=True, slots=True)
class Most(_Definition):
    """The maximum, entry by entry, of broadcast operands, each times its factor; no label is
    summed.

    Example: ``most(-2*n3[a:4, b:8], n4[b:8] -> a b)``.
    """

    kind: ClassVar[Literal["most"]] = "most"
    factors: tuple[Fraction, ...]
    operands: tuple[Operand, ...]
    outputs: tuple[int, ...]

    def reads(self) -> tuple[Operand, ...]:
        """The values of which the entry-wise maximum is taken."""
        return self.operands

    def rename(self, number_of: Renaming) -> Most:
        """The same maximum of nodes with other numbers."""
        renamed = tuple(o.rename(number_of) for o in self.operands)
        return Most(self.factors, renamed, self.outputs)

    def __str__(self) -> str:
        several = [_scaled(f, str(o)) for f, o in zip(self.factors, self.operands, strict=True)]
        return f"most({_reading(several, self.outputs)})"


@dataclass(frozen=True, slots=True)
class Unary(_Definition):
    """A function of ``factor`` times a node, entry by entry.

    Example: ``exp(-1*n7)``.
    """

    kind: ClassVar[Literal["unary"]] = "unary"
    function: str
    factor: Fraction
    node: int

    def children(self) -> tuple[int, ...]:
        """The node that the function is applied to."""
        return (self.node,)

    def rename(self, number_of: Renaming) -> Unary:
        """The same function of a node with another number."""
        return Unary(self.function, self.factor, number_of(self.node))

    def __str__(self) -> str:
        return f"{self.function}({_scaled(self.factor, f'n{self.node}')})"


@dataclass(frozen=True, slots=True)
class Amax(_Definition):
    """The maximum of ``sign`` times an operand over the labels that are not ``outputs``.

    Example: ``max(n3[a:4, b:8] -> a)``, the largest entry of every row.
    """

    kind: ClassVar[Literal["amax"]] = "amax"
    sign: int
    operand: Operand
    outputs: tuple[int, ...]

    def reads(self) -> tuple[Operand, ...]:
        """The tensor along whose axis the maximum is taken."""
        return (self.operand,)

    def rename(self, number_of: Renaming) -> Amax:
        """The same maximum along an axis of a node with another number."""
        return Amax(self.sign, self.operand.rename(number_of), self.outputs)

    def __str__(self) -> str:
        return f"max({_reading([_scaled(self.sign, str(self.operand))], self.outputs)})"


@dataclass(frozen=True, slots=True)
class Restrict(_Definition):
    """A node without what is outside of blocks of its axes.

    Example: ``n3 where a1[0 +6 of 8]``, without the last two columns of 8.
    """

    kind: ClassVar[Literal["block"]] = "block"
    node: int
    blocks: tuple[Block, ...]

    def children(self) -> tuple[int, ...]:
        """The node of which this is the part inside of blocks."""
        return (self.node,)

    def rename(self, number_of: Renaming) -> Restrict:
        """The same blocks of a node with another number."""
        return Restrict(number_of(self.node), self.blocks)

    def __str__(self) -> str:
        blocks = ", ".join(
            f"a{axis}[{start} +{size} of {extent or '*'}]"
            for axis, start, size, extent in self.blocks
        )
        return f"n{self.node} where {blocks}"


@dataclass(frozen=True, slots=True)
class Onehot(_Definition):
    """The classes that ``factor`` times a node names: the node's axes, then the class.

    Example: ``onehot(n7)`` of ids [4] has axes [4, classes], a 1 at the class of each id and else
    0.
    """

    kind: ClassVar[Literal["onehot"]] = "onehot"
    factor: Fraction
    node: int

    def children(self) -> tuple[int, ...]:
        """The node of ids."""
        return (self.node,)

    def rename(self, number_of: Renaming) -> Onehot:
        """The one-hot of a node of ids with another number."""
        return Onehot(self.factor, number_of(self.node))

    def __str__(self) -> str:
        return f"onehot({_scaled(self.factor, f'n{self.node}')})"


@dataclass(frozen=True, slots=True)
class Select(_Definition):
    """The choice among the entries of ``factor`` times an operand along the label ``row``: its
    other axes, then the position among the chosen.

    Example: of scores [4, 8] with ``Selection(2)``, along ``b``: for each of 4 tokens its 2
    experts.
    """

    kind: ClassVar[Literal["select"]] = "select"
    factor: Fraction
    operand: Operand
    row: int
    selection: Selection
    outputs: tuple[int, ...]

    def reads(self) -> tuple[Operand, ...]:
        """The scores among which is chosen."""
        return (self.operand,)

    def rename(self, number_of: Renaming) -> Select:
        """The same choice among scores with another number."""
        operand = self.operand.rename(number_of)
        return Select(self.factor, operand, self.row, self.selection, self.outputs)

    def __str__(self) -> str:
        read = _reading([_scaled(self.factor, str(self.operand))], self.outputs)
        return f"select({read} along {label_name(self.row)}, {self.selection})"


@dataclass(frozen=True, slots=True)
class Concatenated(_Definition):
    """Local tensors concatenated along ``dim``; axes are the local dimensions.

    Example: ``stack(n6[a0[4]], n7[a0[4]] along 0)``, 8 positions.
    """

    kind: ClassVar[Literal["stack"]] = "stack"
    dim: int
    addends: tuple[Addend, ...]

    def __str__(self) -> str:
        return f"stack({', '.join(map(str, self.addends))} along {self.dim})"


@dataclass(frozen=True, slots=True)
class Opaque(_Definition):
    """A local tensor, the sum of ``addends``, taken as it is; axes are the local dimensions.

    Example: ``piece(n6[a0[4]] + n7[a0[4]])``.
    """

    kind: ClassVar[Literal["piece"]] = "piece"
    addends: tuple[Addend, ...]

    def __str__(self) -> str:
        return f"piece({' + '.join(map(str, self.addends))})"


@dataclass(frozen=True, slots=True)
class Maximum(_Definition):
    """The maximum, entry by entry, of local tensors.

    Example: ``maximum(n6[a0[4]], n7[a0[4]])``.
    """

    kind: ClassVar[Literal["maximum"]] = "maximum"
    addends: tuple[Addend, ...]

    def __str__(self) -> str:
        return f"maximum({', '.join(map(str, self.addends))})"


@dataclass(frozen=True, slots=True)
class AcrossRanks(_Definition):
    """The sum or the maximum (``reduction``: "sum", "max") of a local tensor over the ``extent``
    ranks along a mesh axis.

    Example: ``sum of n7 over tp=4``.
    """

    kind: ClassVar[Literal["over"]] = "over"
    axis: str
    extent: int
    reduction: str
    node: int

    def __str__(self) -> str:
        return f"{self.reduction} of n{self.node} over {self.axis}={self.extent}"


@dataclass(frozen=True, slots=True)
class AtCoordinate(_Definition):
    """The value of a node at one coordinate of a mesh axis.

    Example: ``n7 at tp=1``.
    """

    kind: ClassVar[Literal["at"]] = "at"
    axis: str
    position: int
    node: int

    def __str__(self) -> str:
        return f"n{self.node} at {self.axis}={self.position}"


Expression: TypeAlias = (
    Input
    | One
    | Constant
    | Causal
    | Order
    | Einsum
    | Combine
    | Most
    | Unary
    | Amax
    | Restrict
    | Onehot
    | Select
    | Concatenated
    | Opaque
    | Maximum
    | AcrossRanks
    | AtCoordinate
)
#: Local tensors and values along a mesh axis: names of what only the parallel program has.
Local: TypeAlias = Concatenated | Opaque | Maximum | AcrossRanks | AtCoordinate
#: Definitions that compare positions.
Comparison: TypeAlias = Causal | Order
#: Definitions with labels: axis i is ``outputs[i]``.
Labelled: TypeAlias = Einsum | Combine | Most | Amax | Select

#: The classes of expressions by the names of their kinds.
KINDS: Mapping[str, type[Expression]] = {
    cls.kind: cls
    for cls in (
        *(Input, One, Constant, Causal, Order, Einsum, Combine, Most, Unary, Amax, Restrict),
        *(Onehot, Select, Concatenated, Opaque, Maximum, AcrossRanks, AtCoordinate),
    )
}

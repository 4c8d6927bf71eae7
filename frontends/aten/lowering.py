"""The tape that ATen operators are written onto, as declared operators of the engine.

A lowered tensor is a value of the body (`Real`), a tensor of one number (`Const`), which becomes a
value only where an operator needs one, or memory that nothing has written (`Undefined`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from fractions import Fraction
from math import isfinite, prod, ulp
from typing import Any, ClassVar, Final, Protocol, TypeAlias, TypeGuard

from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.engine.plan.ir import Attr, Op, Shard, Source, Value
from shardproof.frontends.aten.irrational import quotient, rooted
from shardproof.frontends.aten.labels import Labels
from shardproof.frontends.aten.patterns import Windows
from shardproof.frontends.aten.readings import Reading
from shardproof.frontends.builder.shapes import Inference

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Real:
    """Value ``number`` of the body; ``domain``: [low, high), such as (0, 64), of known integers."""

    number: int
    shape: Shape
    dtype: str
    domain: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Const:
    """A tensor whose entries are all ``value``, such as ``torch.full((2, 3), 0.5)``."""

    value: Fraction
    shape: Shape
    dtype: str


UNWRITTEN: Final = "memory that nothing has written"


@dataclass(frozen=True, slots=True)
class Undefined:
    """What has no value here, such as ``torch.empty(2)``: unwritten memory, or as ``why`` says."""

    shape: Shape
    dtype: str
    why: str = UNWRITTEN


@dataclass(frozen=True, slots=True)
class Derived:
    """A named input that is another one, moved, such as ``labels`` by 1: entry i along ``dim`` is
    entry i + ``by`` of ``base``, where there is one."""

    base: str
    dim: int
    by: int


class Symbolic(Protocol):
    """A tensor that is no value yet, as shifted ids, and can be moved without becoming one."""

    @property
    def shape(self) -> Shape:
        """The tensor's shape."""

    @property
    def dtype(self) -> str:
        """Its element type, as PyTorch names it."""

    def reshape(self, shape: Shape) -> Symbolic:
        """The same entries, in their order, in another shape."""

    def expand(self, shape: Shape) -> Symbolic:
        """The tensor repeated along dimensions of size 1 and new leading ones."""

    def permute(self, order: Sequence[int]) -> Symbolic:
        """The tensor with its dimensions in another order."""

    def slice(self, dim: int, start: int, size: int) -> Symbolic:
        """``size`` positions of a dimension, from ``start`` on."""

    def real(self, lo: Lowering) -> Real:
        """The value that it is, once an operator computes with it."""


class Unviewed:
    """A tensor, such as `lookups.Kept`, that is no value yet and has no views; ``about``: which."""

    about: ClassVar[str]

    def reshape(self, shape: Shape) -> Any:
        """Refused: which entry would lie where is not known."""
        raise Unsupported(f"a view of {self.about}")

    def expand(self, shape: Shape) -> Any:
        """Refused as any view is."""
        raise Unsupported(f"a view of {self.about}")

    def permute(self, order: Sequence[int]) -> Any:
        """Refused as any view is."""
        raise Unsupported(f"a view of {self.about}")

    def slice(self, dim: int, start: int, size: int) -> Any:
        """Refused: a part would need entries that are not there yet."""
        raise Unsupported(f"a part of {self.about}")


Lowered: TypeAlias = "Real | Const | Undefined | Symbolic"
#: A tensor or a number of Python.
Operand: TypeAlias = "Lowered | int | float | bool"


def is_symbolic(x: object) -> TypeGuard[Symbolic]:
    """Whether an operand is a tensor that is no value yet, such as a mask of `Compared`."""
    return not isinstance(x, (Real, Const, Undefined, int, float))


def fraction(number: float | int | Fraction) -> Fraction:
    """A number of Python's as an exact one, by its shortest decimal (`irrational.quotient`); what
    rounding in a sum with 1 leaves of one of six digits is that.  Raises `Unsupported` for nan.

    Example: ``fraction(0.1)`` is ``Fraction(1, 10)``, and so is ``fraction(1 - 0.9)``.
    """
    if isinstance(number, (int, Fraction)):
        return Fraction(number)
    if not isfinite(number):
        raise Unsupported(f"the constant {number}")
    short = f"{number:.5e}"
    gap = abs(float(short) - number)
    rounded = gap <= 4 * ulp(max(1.0, abs(number))) and gap <= 1e-11 * abs(number)
    return Fraction(short) if rounded else quotient(number)


def floating(dtype: str) -> bool:
    """Whether an element type is of floats, such as "bfloat16"."""
    return "float" in dtype


def broadcast(*shapes: Shape) -> Shape:
    """The common shape, by NumPy's rules; raises `ShapeMismatch`.

    Example: ``broadcast((2, 1), (3,))`` is ``(2, 3)``.
    """
    padded = [(1,) * (max(map(len, shapes)) - len(s)) + s for s in shapes]
    common = []
    for sizes in zip(*padded, strict=True):
        wide = {n for n in sizes if n != 1}
        if len(wide) > 1:
            raise ShapeMismatch(f"shapes {[list(s) for s in shapes]} have no common one")
        common.append(wide.pop() if wide else 1)
    return tuple(common)


class Lowering:
    """A body under construction; ``expected``: ``((2, 3), "int64")`` of an output, for example."""

    def __init__(self, inference: Inference | None = None) -> None:
        self.inference, self.bound = inference or Inference(), list[tuple[int, int]]()
        self.values, self.ops, self.shards = list[Value](), list[Op](), list[Shard]()
        self.source, self.labels, self.moved = Source(), Labels(), frozenset[str]()  # inputs moved
        self.expected: Sequence[tuple[Shape, str]] = ()
        # Of every log-softmax: the shifted operand, its exponentials, their sum; what was shifted.
        self.exponentials: dict[int, tuple[Real, ...]] = {}
        # Of every relu what it was taken of; of what one id of each row spreads, ids and numbers.
        self.rectified, self.spread = dict[int, Lowered](), dict[int, tuple[Real, Real, Any]]()
        self.reading, self.picked = Reading.SHIFTED, list[Real]()  # of losses; by ids, of what
        #: Tables of constants by name, and their entries; those of the other side (None: any).
        self.tables, self.contents = dict[str, Real](), dict[str, Any]()
        self.shared: Mapping[str, Any] | None = None
        self.whole_tables: dict[int, Any] = {}  # entries of values: whole numbers that are known
        self._constants, self.origins = dict[Fraction, Real](), dict[int, int]()
        self.derived, self.notes = dict[str, Derived](), dict[str, None]()  # (notes are printed)
        # Ids that differ along a dimension, and it; of hidden scores, all of them and what hides.
        self.distinct, self.hides = dict[int, int](), dict[int, tuple[Real, Any]]()
        self.zeros = dict[int, Any]()  # of what is zero where a mask of positions is true, the mask
        self.reordered = dict[int, tuple[Any, int]]()  # entries as before an order, along what
        self.shifts, self.orders = set[int](), list[Any]()  # what no result depends on; of ids
        self.hot, self.integral = set[int](), set[int]()  # floats in {0, 1}; what is whole numbers
        self.cuts: Set[tuple[int, int]] = frozenset()  # rows of parameters, and those of a rank
        self.narrows = self.asks = self.alike = False  # known ids (labels) are needed; rows alike
        self.groups: Mapping[str, tuple[int, ...]] = {}  # ranks by the program's name of a group
        self.standins: dict[str, str] | None = None  # what stands for something else: of graphs
        self.functions: dict[str, str] | None = None  # numbers of unknown functions: of graphs
        self.agreed: list[Any] | None = None  # constants that are gathered, unless others differ
        self.unwritten: Callable[[Undefined], Real] | None = None  # memory that has no value
        self.mask: Callable[[Shape], Shard] | None = None  # of the next random operator, by shape
        self.wheres, self.windows, self.signs = dict[int, Any](), Windows(), list[Any]()

    # -- values -----------------------------------------------------------------------------

    def value(self, shape: Shape, dtype: str, name: str) -> Real:
        """A new value of the body."""
        self.values.append(Value(shape, dtype, name))
        return Real(len(self.values) - 1, shape, dtype)

    def hold(self, shard: Shard) -> Real:
        """A named input."""
        self.shards.append(shard)
        value = self.value(shard.shape, shard.dtype, shard.name)
        self.bound.append((value.number, len(self.shards) - 1))
        self.origins[value.number] = len(self.shards) - 1
        return replace(value, domain=shard.domain)

    def real(self, x: Operand) -> Real:
        """A tensor as a value; raises `Unsupported` for what has none."""
        if isinstance(x, Real):
            return x
        if isinstance(x, Undefined):
            if self.unwritten is not None and x.why == UNWRITTEN:
                return self.unwritten(x)
            raise Unsupported(f"it reads {x.why}")
        if isinstance(x, Const):
            return self._filled(x)
        if isinstance(x, (int, float)):
            return self._filled(Const(fraction(x), (), "float32"))
        return x.real(self)

    def _filled(self, x: Const) -> Real:
        """A constant tensor: an input times zero, plus the number."""
        if x.value not in self._constants:
            if not self.bound:
                raise Unsupported("a constant in a step that reads no input")
            numbers = [v for v, _ in self.bound]
            number = next((v for v in numbers if floating(self.values[v].dtype)), numbers[0])
            real = Real(number, self.values[number].shape, self.values[number].dtype)
            for dim, size in enumerate(real.shape):
                if size > 1:
                    real = self.emit("slice", real, dim=dim, start=0, size=1)
            zero = self.emit("mul", self.reshape(real, ()), other=Fraction(0))
            self._constants[x.value] = self.emit("add", zero, other=x.value)
        made = self.real(self.expand(self._constants[x.value], x.shape))
        if x.dtype == "bool":
            return replace(made, domain=(int(x.value), int(x.value) + 1))
        return made if x.dtype not in ("int64", "int32") else replace(made, dtype=x.dtype)

    def read(self, name: str) -> bool:
        """Whether an operator that does more than move it reads the named input."""
        shards = {n for n, s in enumerate(self.shards) if s.name == name}
        values = {v for v, s in self.origins.items() if s in shards}
        return any(
            v in values and op.outputs[0] not in values
            for op in self.ops
            for v in op.inputs
            if op.outputs
        )

    # -- operators --------------------------------------------------------------------------

    def emits(
        self, name: str, inputs: Sequence[Real], attrs: Mapping[str, Attr], dtype: str = ""
    ) -> tuple[Real, ...]:
        """Append a declared operator; raises `ShapeMismatch`, `Unsupported`."""
        shapes = self.inference.forward(name, [x.shape for x in inputs], attrs)
        dtype = dtype or (inputs[0].dtype if inputs else "float32")
        outputs = tuple(self.value(shape, dtype, name) for shape in shapes)
        self.append(name, [x.number for x in inputs], [x.number for x in outputs], attrs)
        return outputs

    def emit(self, name: str, *inputs: Real, **attrs: Attr) -> Real:
        """An operator with one output, whose shape and type the operator's declaration gives."""
        (output,) = self.emits(name, inputs, attrs)
        return output

    def derivative(
        self, name: str, inputs: Sequence[Real], gradient: Real, wrt: int = 0, **attrs: Attr
    ) -> Real:
        """Append the reverse derivative of a declared operator for its input ``wrt``."""
        full = {**attrs, "wrt": (wrt,), "arity": len(inputs)}
        (shape,) = self.inference.backward(
            name, [x.shape for x in inputs], [gradient.shape], attrs, (wrt,)
        )
        output = self.value(shape, gradient.dtype, f"gradient of {name}")
        read = [*(x.number for x in inputs), gradient.number]
        self.append(name, read, [output.number], full, backward=True)
        return output

    def append(
        self,
        name: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        attrs: Mapping[str, Attr],
        *,
        backward: bool = False,
    ) -> None:
        """An operator on values that are there already, with the current source line."""
        self.ops.append(Op(name, tuple(inputs), tuple(outputs), attrs, backward, self.source))

    def whole(self, x: Real, domain: tuple[int, int], dtype: str) -> Real:
        """``x``, of which it is known that it has whole numbers of [low, high)."""
        self.values[x.number] = replace(self.values[x.number], dtype=dtype)
        return replace(x, dtype=dtype, domain=domain)

    def _symbolic(self, x: Symbolic, move: str, *given: Any) -> Any:
        """What is no value yet, moved; None where only its value can be moved (which a lookup of
        rows may have only once it `is_settled` which ids count)."""
        try:
            return getattr(x, move)(*given)
        except Unsupported:
            if self.narrows and not getattr(x, "is_settled", False):
                raise
            return None

    # -- movement ---------------------------------------------------------------------------

    def _movement(self, name: str, x: Lowered, **attrs: Attr) -> Real:
        """Append an operator whose entries are those of ``x``, elsewhere."""
        return self.holding(self.emit(name, real := self.real(x), **attrs), real)

    def holding(self, moved: Real, x: Real) -> Real:
        """``moved``, whose entries are entries of ``x``."""
        if x.number in self.origins:
            self.origins[moved.number] = self.origins[x.number]
        return replace(moved, domain=x.domain)

    def reshape(self, x: Lowered, shape: Shape) -> Any:
        """The same entries, in their order, in another shape; a constant or symbolic tensor stays
        one."""
        if x.shape == shape:
            return x
        if prod(x.shape) != prod(shape):
            raise ShapeMismatch(f"view of {list(x.shape)} as {list(shape)}")
        if isinstance(x, (Const, Undefined)):
            return replace(x, shape=shape)
        if is_symbolic(x):
            symbolic = self._symbolic(x, "reshape", shape)
            if symbolic is not None:
                return symbolic
            x = x.real(self)
        return self._movement("view", x, size=shape)

    def expand(self, x: Lowered, shape: Shape) -> Any:
        """The tensor broadcast to a shape; a constant stays one."""
        if x.shape == shape:
            return x
        if isinstance(x, Const):
            broadcast(x.shape, shape)
            return Const(x.value, shape, x.dtype)
        if is_symbolic(x):
            symbolic = self._symbolic(x, "expand", shape)
            if symbolic is not None:
                return symbolic
            x = x.real(self)
        lead = (1,) * (len(shape) - len(x.shape))
        return self._movement("expand", self.reshape(x, (*lead, *x.shape)), size=shape)

    def permute(self, x: Lowered, order: Sequence[int]) -> Any:
        """The tensor with its dimensions in another order; a constant stays one."""
        if isinstance(x, Const):
            return Const(x.value, tuple(x.shape[i] for i in order), x.dtype)
        if tuple(order) == tuple(range(len(order))):
            return x
        if is_symbolic(x):
            symbolic = self._symbolic(x, "permute", order)
            if symbolic is not None:
                return symbolic
            x = x.real(self)
        return self._movement("permute", x, dims=tuple(order))

    def transpose(self, x: Lowered, i: int, j: int) -> Any:
        """The tensor with two dimensions exchanged."""
        order = list(range(len(x.shape)))
        order[i], order[j] = order[j], order[i]
        return self.permute(x, order)

    def slice(self, x: Lowered, dim: int, start: int, size: int) -> Any:
        """``size`` positions of a dimension, from ``start`` on; a constant stays one."""
        shape = (*x.shape[:dim], size, *x.shape[dim + 1 :])
        if x.shape == shape:
            return x
        if isinstance(x, Const):
            return Const(x.value, shape, x.dtype)
        if is_symbolic(x):
            symbolic = self._symbolic(x, "slice", dim, start, size)
            if symbolic is not None:
                return symbolic
            x = x.real(self)
        return self._movement("slice", x, dim=dim, start=start, size=size)

    def concat(self, xs: Sequence[Lowered], dim: int) -> Any:
        """Tensors one after the other; empty ones are left out, as ATen does."""
        xs = [x for x in xs if 0 not in x.shape] or list(xs[:1])
        if len(xs) == 1:
            return xs[0]
        numbers = {x.value for x in xs if isinstance(x, Const)}
        if all(isinstance(x, Const) for x in xs) and len(numbers) == 1:
            shape = list(xs[0].shape)
            shape[dim] = sum(x.shape[dim] for x in xs)
            return Const(numbers.pop(), tuple(shape), xs[0].dtype)
        reals = [self.real(x) for x in xs]
        ends = [x.domain for x in reals if x.domain is not None]
        domain = (min(ends)[0], max(n for _, n in ends)) if len(ends) == len(reals) else None
        return replace(self.emit("concat", *reals, dim=dim), domain=domain)

    # -- arithmetic -------------------------------------------------------------------------

    def scale(self, x: Lowered, factor: Fraction) -> Any:
        """The tensor times an exact number."""
        if isinstance(x, Const):
            return Const(x.value * factor, x.shape, x.dtype)
        return x if factor == 1 else self.emit("mul", self.real(x), other=rooted(factor))

    def shift(self, x: Lowered, by: Fraction) -> Any:
        """The tensor plus an exact number."""
        if isinstance(x, Const):
            return Const(x.value + by, x.shape, x.dtype)
        return self.emit("add", self.real(x), other=by) if by else x

    def operands(self, x: Operand, y: Operand) -> tuple[Lowered, Lowered, Shape]:
        """Both as tensors, and their common shape."""
        a = Const(fraction(x), (), "") if isinstance(x, (int, float)) else x
        b = Const(fraction(y), (), "") if isinstance(y, (int, float)) else y
        return a, b, broadcast(a.shape, b.shape)

    def add(self, x: Operand, y: Operand, alpha: Fraction = Fraction(1)) -> Any:
        """x + alpha y, broadcast to the common shape."""
        a, b, shape = self.operands(x, y)
        if isinstance(b, Const):
            return self.shift(self.expand(a, shape), b.value * alpha)
        if isinstance(a, Const):
            return self.shift(self.scale(self.expand(b, shape), alpha), a.value)
        a, b = self.real(a), self.real(b)
        if alpha == 1:
            return self.emit("add", a, b)
        if alpha == -1:
            return self.emit("sub", a, b)
        return self.emit("add", a, b, alpha=alpha)

    def sub(self, x: Operand, y: Operand) -> Any:
        """x - y, broadcast to the common shape."""
        return self.add(x, y, Fraction(-1))

    def mul(self, x: Operand, y: Operand) -> Any:
        """x y, entry by entry, broadcast to the common shape."""
        a, b, shape = self.operands(x, y)
        if isinstance(b, Const):
            return self.scale(self.expand(a, shape), b.value)
        if isinstance(a, Const):
            return self.scale(self.expand(b, shape), a.value)
        return self.emit("mul", self.real(a), self.real(b))

    def div(self, x: Operand, y: Operand) -> Any:
        """x / y, entry by entry; raises `Unsupported` for the constant zero."""
        a, b, shape = self.operands(x, y)
        if isinstance(b, Const):
            if b.value == 0:
                raise Unsupported("a division by the constant zero")
            return self.scale(self.expand(a, shape), 1 / b.value)
        return self.emit("div", self.real(a), self.real(b))

    def unary(self, name: str, x: Operand, **attrs: Attr) -> Any:
        """A declared function of every entry, with its attributes."""
        return self.emit(name, self.real(x), **attrs)

    def sum(self, x: Lowered, dims: Sequence[int], keepdim: bool = False) -> Any:
        """Sum over dimensions."""
        after = reduced(x.shape, dims, keepdim)
        if isinstance(x, Const):
            return Const(x.value * prod(x.shape[d] for d in set(dims)), after, x.dtype)
        kept = [d for d in dims if x.shape[d] != 1]
        if not kept:
            return self.reshape(x, after)
        total = self.emit("sum", self.real(x), dim=tuple(kept), keepdim=False)
        return self.reshape(total, after)

    def mean(self, x: Lowered, dims: Sequence[int], keepdim: bool = False) -> Any:
        """The sum over dimensions divided by how many entries it has."""
        count = prod(x.shape[d] for d in set(dims))
        return self.scale(self.sum(x, dims, keepdim), Fraction(1, count))


def reduced(shape: Shape, dims: Sequence[int], keepdim: bool) -> Shape:
    """The shape after a reduction over ``dims``, such as (2, 4) for (2, 3, 4) over dimension 1."""
    if keepdim:
        return tuple(1 if i in dims else n for i, n in enumerate(shape))
    return tuple(n for i, n in enumerate(shape) if i not in dims)


def dimensions(shape: Shape, dim: object) -> tuple[int, ...]:
    """Dimensions as ATen names them (None or an empty list: all), counted from the front.

    Example: of ``(2, 3, 4)``, -1 is ``(2,)`` and None ``(0, 1, 2)``.
    """
    if dim is None or dim == () or dim == []:
        return tuple(range(len(shape)))
    given = dim if isinstance(dim, (list, tuple)) else (dim,)
    dims = []
    for d in given:
        if not isinstance(d, int) or not -max(1, len(shape)) <= d < max(1, len(shape)):
            raise ShapeMismatch(f"dimension {d!r} of a tensor of shape {list(shape)}")
        dims.append(d % len(shape) if shape else 0)
    return tuple(dims) if shape else ()

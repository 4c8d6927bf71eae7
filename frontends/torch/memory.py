"""Memory while a recorded step is replayed: storages as pieces, and the values that they hold.

Every storage is a list of *pieces*: intervals, each with the value that was written there last.  A
tensor that is read is the value of its interval, cut, reshaped and permuted as its strides say; a
tensor that is written replaces the interval, or the part of it that its strides name.  So flat
buffers, of which many tensors are parts, never become concatenations that nobody reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import prod
from typing import NamedTuple

from shardproof.engine.errors import InvalidInput
from shardproof.engine.findings import Finding
from shardproof.frontends.torch import geometry, trace
from shardproof.frontends.torch.pieces import Copied, Cut, Piece, Storage
from shardproof.frontends.torch.stepped import entries, scattered, sliced, viewed
from shardproof.frontends.torch.trace import Arg, Box, Items, Named, StridedTensor, Tensor, Trace
from shardproof.frontends.torch.ways import READING, Group, Messages, Reading, Shapes

#: Operators that only move data, made here.
RESHAPE, SLICE, PERMUTE, EXPAND, CONCAT, CAST = (
    "move.reshape",
    "move.slice",
    "move.permute",
    "move.expand",
    "move.concat",
    "move.cast",
)
UNDEFINED, CONSTANT, INPUT = "move.undefined", "move.constant", "move.input"
#: Its operand, to which no gradient goes from here.
STILL = "move.still"


class Op(NamedTuple):
    """One operator over values, such as ``comm.all_reduce``; tensors in ``args`` are numbers."""

    name: str
    args: tuple[Arg, ...]
    kwargs: dict[str, Arg]
    outputs: tuple[int, ...]
    event: int = -1


class Value(NamedTuple):
    """A tensor without memory, such as float32 [16, 8]: its shape and element type."""

    shape: tuple[int, ...]
    dtype: str


class Input(NamedTuple):
    """A named input, such as batch ``x``; ``kind``: "parameter", "batch" or "full"; ``mark``: the
    number that -1 stands for, which counts for nothing (None: -1 is a number like others)."""

    kind: str
    name: str
    value: int
    trainable: bool = False
    box: Box | None = None
    low: int | None = None
    high: int | None = None
    mark: int | None = None

    @property
    def shard(self) -> str:
        """The name that both sides know the input by, such as "batch x"."""
        name = self.name if self.box is None else self.box.name
        return f"batch {name}" if self.kind == "batch" else name


class Compared(NamedTuple):
    """What is compared, such as the gradient of ``w``; ``kind``: "loss", "gradient", "output",
    "updated" (a parameter) or "state" (``state``: which of the optimizer's); ``value``: -1 where
    there is none."""

    kind: str
    name: str
    value: int
    box: Box | None
    event: int
    state: str = ""

    @property
    def row(self) -> tuple[str, str]:
        """What it is about: kind and name, as the table of expectations has them."""
        about = self.name if self.box is None or self.kind in ("loss", "output") else self.box.name
        kind = "updated parameter" if self.kind == "updated" else self.kind
        return kind, f"{about}: {self.state}" if self.state else about


@dataclass(slots=True)
class Functional:
    """One rank's step as straight-line code, such as ``aten.addmm``, ``comm.all_reduce``, ...

    ``reading``: how it was read; ``divided``: how it divides the flat messages that it gathers;
    ``boxes``: of parameters, by their local names (one of several pieces: "name[0]", ...);
    ``made``: of parameters that the step makes itself, where their pieces lie (None: there is one);
    ``copied``: what was copied of parameters before the step; ``drawn``: parameters and states that
    began with what is drawn.
    """

    trace: Trace
    reading: Reading = READING
    divided: dict[Group, list[Shapes]] = field(default_factory=dict)
    values: list[Value] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    inputs: list[Input] = field(default_factory=list)
    compared: list[Compared] = field(default_factory=list)
    constants: dict[int, bytes] = field(default_factory=dict)
    boxes: dict[str, Box] = field(default_factory=dict)
    made: dict[str, tuple[Cut | None, ...]] = field(default_factory=dict)
    copied: list[Copied] = field(default_factory=list)
    drawn: set[str] = field(default_factory=set)
    findings: list[Finding] = field(default_factory=list)


#: Rows of a tensor over several pieces of memory that are read one by one.
MOST_ROWS = 4096


class Memory:
    """Storages, such as a bucket, while a trace is replayed; makes the values of `Functional`."""

    def __init__(self, out: Functional) -> None:
        self.out = out
        self.storages: dict[int, Storage] = {}
        self.made: dict[int, Op] = {}
        self.partial: set[int] = set()  # concatenations of which nothing has written some part
        self.event = -1

    def value(self, shape: Sequence[int], dtype: str) -> int:
        """A new value of the program, by number."""
        self.out.values.append(Value(tuple(shape), dtype))
        return len(self.out.values) - 1

    def emit(
        self, name: str, args: Sequence[Arg], shape: Sequence[int], dtype: str, **kwargs: Arg
    ) -> int:
        """An operator with one result, whose number is given back."""
        output = self.value(shape, dtype)
        self.append(Op(name, tuple(args), kwargs, (output,), self.event))
        return output

    def emits(self, name: str, args: Sequence[Arg], outputs: Sequence[int]) -> None:
        """Append an operator with the given outputs."""
        self.append(Op(name, tuple(args), {}, tuple(outputs), self.event))

    def append(self, op: Op) -> None:
        """Append an operator, and know it by what it makes."""
        self.out.ops.append(op)
        self.made.update((output, op) for output in op.outputs if output >= 0)

    # -- moving -----------------------------------------------------------------------------

    def shape_of(self, value: int) -> tuple[int, ...]:
        """The shape of a value, by number."""
        return self.out.values[value].shape

    def unwritten(self, value: int) -> bool:
        """Whether nothing has written any of a value."""
        return value in self.made and self.made[value].name == UNDEFINED

    def reshape(self, value: int, shape: Sequence[int]) -> int:
        """The same entries in another shape; where the value, or what it was reshaped of, has that
        shape, that itself."""
        tensor = self.out.values[value]
        before: int | None = value
        while before is not None:
            if self.shape_of(before) == tuple(shape):
                return before
            op = self.made.get(before)
            is_view = op is not None and op.name == RESHAPE
            before = next(trace.tensors_of(*op.args)) if op is not None and is_view else None
        if self.unwritten(value):
            return self.emit(UNDEFINED, (), shape, tensor.dtype)
        return self.emit(RESHAPE, (Tensor(value), _ints(shape)), shape, tensor.dtype)

    def slice(self, value: int, dim: int, start: int, size: int) -> int:
        """``size`` positions of a dimension from ``start`` on; of all positions, the value
        itself."""
        tensor = self.out.values[value]
        if tensor.shape[dim] == size:
            return value
        if value in self.partial:
            items, joined, *_ = self.made[value].args
            parts = list(trace.tensors_of(items))
            return sliced(self, parts, number(joined), dim, start, size)
        shape = (*tensor.shape[:dim], size, *tensor.shape[dim + 1 :])
        if self.unwritten(value):
            return self.emit(UNDEFINED, (), shape, tensor.dtype)
        op = self.made.get(value)
        flat = len(shape) == 1
        if op is not None and op.name == SLICE and flat:
            return self.slice(next(trace.tensors_of(*op.args)), 0, start + number(op.args[2]), size)
        if op is not None and op.name == CONCAT and op.args[1] == dim:
            parts = list(trace.tensors_of(op.args[0]))
            if flat or self._between(parts, dim, start, start + size):
                return sliced(self, parts, dim, dim, start, size)
        return self.emit(SLICE, (Tensor(value), dim, start, size), shape, tensor.dtype)

    def _between(self, parts: Sequence[int], dim: int, start: int, stop: int) -> bool:
        """Whether positions [start, stop) of values one after the other are in one of them, or
        several of them as a whole."""
        ends = [0, *accumulate(self.shape_of(part)[dim] for part in parts)]
        inside = any(a <= start and stop <= b for a, b in pairwise(ends))
        return inside or (start in ends and stop in ends)

    def permute(self, value: int, order: Sequence[int]) -> int:
        """The value with its dimensions in another order; a reshape where only sizes of 1 move."""
        tensor = self.out.values[value]
        if tuple(order) == tuple(range(len(order))):
            return value
        shape = tuple(tensor.shape[i] for i in order)
        real = [i for i in order if tensor.shape[i] != 1]
        if real == sorted(real):
            return self.reshape(value, shape)
        return self.emit(PERMUTE, (Tensor(value), _ints(order)), shape, tensor.dtype)

    def expand(self, value: int, shape: Sequence[int]) -> int:
        """The value broadcast to a shape."""
        tensor = self.out.values[value]
        if tensor.shape == tuple(shape):
            return value
        return self.emit(EXPAND, (Tensor(value), _ints(shape)), shape, tensor.dtype)

    def concat(self, values: Sequence[int], dim: int) -> int:
        """Values one after the other; consecutive rows of one value are a slice of it."""
        if len(values) == 1:
            return values[0]
        tensors = [self.out.values[v] for v in values]
        if len(types := {t.dtype for t in tensors}) > 1:
            raise InvalidInput(f"memory written as {' and as '.join(sorted(types))} is used as one")
        if prod(tensors[0].shape[:dim]) == 1:
            whole = self._rejoined(values, dim)
            if whole >= 0:
                return whole
        shape = list(tensors[0].shape)
        shape[dim] = sum(h.shape[dim] for h in tensors)
        if all(self.unwritten(v) for v in values):
            return self.emit(UNDEFINED, (), shape, tensors[0].dtype)
        items = Items(tuple(Tensor(v) for v in values))
        result = self.emit(CONCAT, (items, dim), shape, tensors[0].dtype)
        if any(self.unwritten(v) or v in self.partial for v in values):
            self.partial.add(result)
        return result

    def _rejoined(self, values: Sequence[int], dim: int) -> int:
        """Rows of one value that follow each other, however they were reshaped, are a slice of it
        (-1: they are none)."""
        first = self._rows_of(values[0])
        if first is None:
            return -1
        source, start, stop = first
        for value in values[1:]:
            rows = self._rows_of(value)
            if rows is None or rows[0] != source or rows[1] != stop:
                return -1
            stop = rows[2]
        shape = list(self.out.values[values[0]].shape)
        shape[dim] = sum(self.out.values[v].shape[dim] for v in values)
        return self.reshape(self.slice(source, 0, start, stop - start), shape)

    def structured(self, value: int) -> int:
        """A value before it was flattened: what its rows are is then still seen."""
        if not self.out.reading.messages.shaped:
            return value
        op = self.made.get(value)
        while op is not None and op.name == RESHAPE and len(self.out.values[value].shape) <= 1:
            source = next(trace.tensors_of(*op.args))
            if not self.out.values[source].shape:
                break
            value = source
            op = self.made.get(value)
        return value

    def _rows_of(self, value: int) -> tuple[int, int, int] | None:
        """(source, start, stop) if a value is rows [start, stop) of another one, reshaped."""
        op = self.made.get(value)
        while op is not None and op.name == RESHAPE:
            op = self.made.get(next(trace.tensors_of(*op.args)))
        if op is None or op.name != SLICE or op.args[1] != 0:
            return None
        _, _, start, size = op.args
        first = number(start)
        return next(trace.tensors_of(*op.args)), first, first + number(size)

    def cast(self, value: int, dtype: str) -> int:
        """The value in another element type."""
        tensor = self.out.values[value]
        if tensor.dtype == dtype:
            return value
        return self.emit(CAST, (Tensor(value), Named("dtype", dtype)), tensor.shape, dtype)

    # -- reading ----------------------------------------------------------------------------

    def _storage(self, tensor: StridedTensor) -> Storage:
        storage = self.storages.setdefault(tensor.storage, Storage())
        storage.measured(tensor)
        return storage

    def read(self, tensor: StridedTensor) -> int:
        """The value of a tensor as it is in memory now."""
        storage = self._storage(tensor)
        known = storage.views.get(tensor)
        if known is not None:
            return known
        value = self._resolve(storage, tensor)
        if self.out.values[value].dtype != tensor.dtype:
            raise InvalidInput(
                f"memory written as {self.out.values[value].dtype} is read as {tensor.dtype} "
                "(a view of another type)",
            )
        storage.views[tensor] = value
        return value

    def _resolve(self, storage: Storage, tensor: StridedTensor) -> int:
        if 0 in tensor.shape:
            return self.emit(UNDEFINED, (), tensor.shape, tensor.dtype)
        first = tensor.offset
        last = first + geometry.extent(tensor.shape, tensor.strides)
        if not any(p.start < last and first < p.stop for p in storage.pieces):
            return self.emit(UNDEFINED, (), tensor.shape, tensor.dtype)
        if not self._inside(storage, first, last):
            rows = self._by_rows(tensor)
            if rows is not None:
                return rows
        base = self._covering(storage, first, last, tensor.dtype)
        shape = self.out.values[base.value].shape
        in_a_row = base.value in self.made and self.made[base.value].name == CONCAT
        if in_a_row and len(shape) == 1 and geometry.in_order(tensor.shape, tensor.strides):
            # What lies in one of the parts is read from it.
            flat = self.slice(base.value, 0, first - base.start, last - first)
            return self.reshape(flat, tensor.shape)
        made = geometry.recipe(shape, first - base.start, tensor.shape, tensor.strides)
        if made is None:
            dim = geometry.unrolled(shape, first - base.start, tensor.shape, tensor.strides)
            if dim is not None:
                return self.concat([self.read(one) for one in entries(tensor, dim)], dim)
            raise InvalidInput(
                f"a tensor of shape {list(tensor.shape)} and strides "
                f"{list(tensor.strides)} has no rule: it is no part of what was written"
            )
        whole = prod(tensor.shape) == base.stop - base.start
        as_written = self.out.values[base.value].shape == tensor.shape
        if whole and as_written and geometry.in_order(tensor.shape, tensor.strides):
            return base.value
        return viewed(self, base.value, made)

    @staticmethod
    def _inside(storage: Storage, first: int, last: int) -> bool:
        """Whether one piece has all of [first, last)."""
        return any(p.start <= first and last <= p.stop for p in storage.pieces)

    def _by_rows(self, tensor: StridedTensor) -> int | None:
        """A tensor over several pieces, row by row, if its rows are apart in memory."""
        dims = [i for i, n in enumerate(tensor.shape) if n > 1]
        if not dims or tensor.shape[dims[0]] > MOST_ROWS:
            return None
        outer = dims[0]
        row = entries(tensor, outer)[0]
        if geometry.extent(row.shape, row.strides) >= tensor.strides[outer]:
            return None
        return self.concat([self.read(row) for row in entries(tensor, outer)], outer)

    def parts(self, tensor: StridedTensor) -> list[StridedTensor]:
        """The tensor as the pieces of memory that it is made of, if it is exactly several of them
        (a flat buffer); otherwise itself."""
        storage = self.storages.get(tensor.storage)
        whole = self.out.reading.messages is Messages.WHOLE
        if whole or storage is None or not geometry.in_order(tensor.shape, tensor.strides):
            return [tensor]
        last = tensor.offset + prod(tensor.shape)
        pieces = [p for p in storage.pieces if p.start < last and tensor.offset < p.stop]
        at = tensor.offset
        for piece in pieces:
            if piece.start != at:
                return [tensor]
            at = piece.stop
        if at != last or not pieces:
            return [tensor]
        result = []
        for piece in pieces:
            shape = self.out.values[piece.value].shape
            if self.out.reading.messages is Messages.FLAT:
                shape = (prod(shape),)
            strides = geometry.contiguous(shape)
            result.append(StridedTensor(tensor.storage, piece.start, shape, strides, tensor.dtype))
        return result

    def _covering(self, storage: Storage, first: int, last: int, dtype: str) -> Piece:
        """One piece that has [first, last), joined of several if need be."""
        pieces = [p for p in storage.pieces if p.start < last and first < p.stop]
        if len(pieces) == 1 and pieces[0].start <= first and last <= pieces[0].stop:
            return pieces[0]
        parts: list[int] = []
        at = min([first, *(p.start for p in pieces)])
        begin = at
        for piece in pieces:
            if piece.start > at:
                parts.append(self.emit(UNDEFINED, (), (piece.start - at,), dtype))
            parts.append(self.reshape(piece.value, (piece.stop - piece.start,)))
            at = piece.stop
        if at < last:
            parts.append(self.emit(UNDEFINED, (), (last - at,), dtype))
            at = last
        return Piece(begin, at, self.concat(parts, 0))

    def assume(self, tensor: StridedTensor, value: int) -> None:
        """A tensor is known to have this value, until its memory is written again."""
        self.storages.setdefault(tensor.storage, Storage()).views[tensor] = value

    # -- writing ----------------------------------------------------------------------------

    def write(self, tensor: StridedTensor, value: int) -> None:
        """Give a tensor in memory a new value."""
        storage = self._storage(tensor)
        storage.views.clear()
        if 0 in tensor.shape:
            return
        order = geometry.dense_order(tensor.shape, tensor.strides)
        first = tensor.offset
        last = first + geometry.extent(tensor.shape, tensor.strides)
        if order is not None:
            self._replace(storage, first, last, self.permute(value, order), tensor.dtype)
        elif not geometry.distinct(tensor.shape, tensor.strides):
            raise InvalidInput(
                f"a write to shape {list(tensor.shape)} with strides {list(tensor.strides)}, "
                "which overlaps itself in memory"
            )
        else:
            self._write_part(storage, tensor, value)
        storage.views[tensor] = value

    def _write_part(self, storage: Storage, tensor: StridedTensor, value: int) -> None:
        """Write entries between which there are others."""
        first = tensor.offset
        last = first + geometry.extent(tensor.shape, tensor.strides)
        if not any(p.start < last and first < p.stop for p in storage.pieces):
            # Of memory that nothing has written whole rows, for those who write the rest of them.
            first, last = geometry.aligned(first, tensor.shape, tensor.strides)
        base = self._covering(storage, first, last, tensor.dtype)
        shape, at = self.out.values[base.value].shape, tensor.offset - base.start
        made = geometry.recipe(shape, at, tensor.shape, tensor.strides)
        if made is not None:
            old = base.value
            if self.unwritten(old):  # In the shape in which its parts are written.
                old = self.reshape(old, made.factors)
            whole = scattered(self, old, made, value)
            self._replace(storage, base.start, base.stop, whole, tensor.dtype)
            return
        dim = geometry.unrolled(shape, at, tensor.shape, tensor.strides)
        if dim is None:
            raise InvalidInput(
                f"a write to shape {list(tensor.shape)} with strides {list(tensor.strides)} has no "
                "rule: it is no part of what was written"
            )
        for number, one in enumerate(entries(tensor, dim)):
            self.write(one, self.slice(value, dim, number, 1))

    def _replace(self, storage: Storage, first: int, last: int, value: int, dtype: str) -> None:
        pieces: list[Piece] = []
        for piece in storage.pieces:
            if piece.stop <= first or last <= piece.start:
                pieces.append(piece)
                continue
            for start, stop in ((piece.start, first), (last, piece.stop)):
                if start < stop:
                    flat = self.reshape(piece.value, (piece.stop - piece.start,))
                    cut = self.slice(flat, 0, start - piece.start, stop - start)
                    pieces.append(Piece(start, stop, cut))
        pieces.append(Piece(first, last, value))
        storage.pieces = sorted(pieces)


def number(arg: Arg) -> int:
    """An argument that is a whole number, such as 2; raises `InvalidInput` for any other."""
    if isinstance(arg, bool) or not isinstance(arg, int):
        raise InvalidInput(f"expected a whole number, found {arg!r}"[:200])
    return arg


def _ints(items: Sequence[int]) -> Items:
    return Items(tuple(int(i) for i in items))

"""A recorded step without memory: values that are written once, views resolved, dead code removed.

Every storage is a list of *pieces*: intervals, each with the value that was written there last.  A
tensor that is read is the value of its interval, cut, reshaped and permuted as its strides say; a
tensor that is written replaces the interval, or the part of it that its strides name.  So flat
buffers, of which many tensors are parts, never become concatenations that nobody reads.

Collectives are operators like others here (``comm.*``); what they write in place is written back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

from engine.errors import InvalidInput
from engine.findings import Finding
from frontends.torch import geometry, trace
from frontends.torch.trace import Arg, Box, Event, Held, Items, Named, Tensor, Trace

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

#: Operators whose result is their first operand, elsewhere in memory.
COPIES = frozenset(
    {
        "aten.clone.default",
        "aten.lift_fresh_copy.default",
        "aten.alias_copy.default",
        "aten.detach_copy.default",
        "_c10d_functional.wait_tensor.default",
    }
)
#: Operators that change every element of their first operand alike.
SCALED = frozenset(
    {
        "aten.div_.Scalar",
        "aten.mul_.Scalar",
        "aten.div_.Tensor",
        "aten.mul_.Tensor",
        "aten.zero_.default",
        "aten.fill_.Scalar",
    }
)
#: Operators that allocate and write nothing.
ALLOCATES = ("aten.empty", "aten.new_empty")


class Op(NamedTuple):
    """One operator over values: tensors in ``args`` are numbers of values."""

    name: str
    args: tuple[Arg, ...]
    kwargs: dict[str, Arg]
    outputs: tuple[int, ...]
    event: int = -1


class Value(NamedTuple):
    shape: tuple[int, ...]
    dtype: str


class Input(NamedTuple):
    """``kind``: "parameter", "batch" or "full"."""

    kind: str
    name: str
    value: int
    trainable: bool = False
    box: Box | None = None
    low: int | None = None
    high: int | None = None


class Compared(NamedTuple):
    """``kind``: "loss", "gradient" or "output"; ``value``: -1 where there is none."""

    kind: str
    name: str
    value: int
    box: Box | None
    event: int


@dataclass(slots=True)
class Functional:
    """One rank's step as straight-line code; ``boxes``: of parameters, by their local names."""

    trace: Trace
    values: list[Value] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    inputs: list[Input] = field(default_factory=list)
    compared: list[Compared] = field(default_factory=list)
    constants: dict[int, bytes] = field(default_factory=dict)
    boxes: dict[str, Box] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


#: Rows of a tensor over several pieces of memory that are read one by one.
MOST_ROWS = 4096


class _Piece(NamedTuple):
    """``value`` fills [start, stop) of a storage, its elements in order."""

    start: int
    stop: int
    value: int


@dataclass(slots=True)
class _Storage:
    pieces: list[_Piece] = field(default_factory=list)
    views: dict[Held, int] = field(default_factory=dict)


class Memory:
    """Storages while a trace is replayed; makes the values of `Functional`."""

    def __init__(self, out: Functional) -> None:
        self.out = out
        self.storages: dict[int, _Storage] = {}
        self.made: dict[int, Op] = {}
        self.event = -1

    def value(self, shape: Sequence[int], dtype: str) -> int:
        self.out.values.append(Value(tuple(shape), dtype))
        return len(self.out.values) - 1

    def emit(
        self, name: str, args: Sequence[Arg], shape: Sequence[int], dtype: str, **kwargs: Arg
    ) -> int:
        output = self.value(shape, dtype)
        op = Op(name, tuple(args), kwargs, (output,), self.event)
        self.out.ops.append(op)
        self.made[output] = op
        return output

    def emits(self, name: str, args: Sequence[Arg], outputs: Sequence[int]) -> None:
        """Append an operator with the given outputs."""
        self.out.ops.append(Op(name, tuple(args), {}, tuple(outputs), self.event))

    # -- moving -----------------------------------------------------------------------------

    def reshape(self, value: int, shape: Sequence[int]) -> int:
        held = self.out.values[value]
        if held.shape == tuple(shape):
            return value
        return self.emit(RESHAPE, (Tensor(value), _ints(shape)), shape, held.dtype)

    def slice(self, value: int, dim: int, start: int, size: int) -> int:
        held = self.out.values[value]
        if held.shape[dim] == size:
            return value
        shape = (*held.shape[:dim], size, *held.shape[dim + 1 :])
        return self.emit(SLICE, (Tensor(value), dim, start, size), shape, held.dtype)

    def permute(self, value: int, order: Sequence[int]) -> int:
        held = self.out.values[value]
        if tuple(order) == tuple(range(len(order))):
            return value
        shape = tuple(held.shape[i] for i in order)
        real = [i for i in order if held.shape[i] != 1]
        if real == sorted(real):
            return self.reshape(value, shape)
        return self.emit(PERMUTE, (Tensor(value), _ints(order)), shape, held.dtype)

    def expand(self, value: int, shape: Sequence[int]) -> int:
        held = self.out.values[value]
        if held.shape == tuple(shape):
            return value
        return self.emit(EXPAND, (Tensor(value), _ints(shape)), shape, held.dtype)

    def concat(self, values: Sequence[int], dim: int) -> int:
        if len(values) == 1:
            return values[0]
        held = [self.out.values[v] for v in values]
        if prod(held[0].shape[:dim]) == 1:
            whole = self._rejoined(values, dim)
            if whole >= 0:
                return whole
        shape = list(held[0].shape)
        shape[dim] = sum(h.shape[dim] for h in held)
        items = Items(tuple(Tensor(v) for v in values))
        return self.emit(CONCAT, (items, dim), shape, held[0].dtype)

    def _rejoined(self, values: Sequence[int], dim: int) -> int:
        """Rows of one value that follow each other, however they were reshaped, are a slice of it
        (-1: they are none)."""
        first = self._rows_of(values[0])
        if first is None:
            return -1
        source, start, stop = first
        for value in values[1:]:
            found = self._rows_of(value)
            if found is None or found[0] != source or found[1] != stop:
                return -1
            stop = found[2]
        shape = list(self.out.values[values[0]].shape)
        shape[dim] = sum(self.out.values[v].shape[dim] for v in values)
        return self.reshape(self.slice(source, 0, start, stop - start), shape)

    def _rows_of(self, value: int) -> tuple[int, int, int] | None:
        """(source, start, stop) if a value is rows [start, stop) of another one, reshaped."""
        op = self.made.get(value)
        while op is not None and op.name == RESHAPE:
            op = self.made.get(next(trace.tensors_of(*op.args)))
        if op is None or op.name != SLICE or op.args[1] != 0:
            return None
        _, _, start, size = op.args
        assert isinstance(start, int) and isinstance(size, int)
        return next(trace.tensors_of(*op.args)), start, start + size

    def cast(self, value: int, dtype: str) -> int:
        held = self.out.values[value]
        if held.dtype == dtype:
            return value
        return self.emit(CAST, (Tensor(value), Named("dtype", dtype)), held.shape, dtype)

    # -- reading ----------------------------------------------------------------------------

    def read(self, held: Held) -> int:
        """The value of a tensor as it is in memory now."""
        storage = self.storages.setdefault(held.storage, _Storage())
        known = storage.views.get(held)
        if known is not None:
            return known
        value = self._resolve(storage, held)
        if self.out.values[value].dtype != held.dtype:
            raise InvalidInput(
                f"memory written as {self.out.values[value].dtype} is read as {held.dtype} "
                "(a view of another type)",
            )
        storage.views[held] = value
        return value

    def _resolve(self, storage: _Storage, held: Held) -> int:
        if 0 in held.shape:
            return self.emit(UNDEFINED, (), held.shape, held.dtype)
        first = held.offset
        last = first + geometry.extent(held.shape, held.strides)
        if not self._inside(storage, first, last):
            rows = self._by_rows(held)
            if rows is not None:
                return rows
        base = self._covering(storage, first, last, held.dtype)
        made = geometry.recipe(base.stop - base.start, first - base.start, held.shape, held.strides)
        if made is None:
            raise InvalidInput(
                f"a tensor of shape {list(held.shape)} and strides {list(held.strides)} overlaps "
                "itself in memory"
            )
        if self.out.values[base.value].shape == held.shape and prod(held.shape) == (
            base.stop - base.start
        ):
            if geometry.contiguous(held.shape) == _normal(held):
                return base.value
        return self._made(base.value, made)

    @staticmethod
    def _inside(storage: _Storage, first: int, last: int) -> bool:
        """Whether one piece has all of [first, last)."""
        return any(p.start <= first and last <= p.stop for p in storage.pieces)

    def _by_rows(self, held: Held) -> int | None:
        """A tensor over several pieces, row by row, if its rows are apart in memory."""
        dims = [i for i, n in enumerate(held.shape) if n > 1]
        if len(dims) < 2 or held.shape[dims[0]] > MOST_ROWS:
            return None
        outer = dims[0]
        row = Held(
            held.storage,
            held.offset,
            (*held.shape[:outer], 1, *held.shape[outer + 1 :]),
            held.strides,
            held.dtype,
        )
        if geometry.extent(row.shape, row.strides) >= held.strides[outer]:
            return None
        rows = [
            self.read(
                Held(
                    row.storage,
                    row.offset + i * held.strides[outer],
                    row.shape,
                    row.strides,
                    row.dtype,
                )
            )
            for i in range(held.shape[outer])
        ]
        return self.concat(rows, outer)

    def _made(self, value: int, made: geometry.Recipe) -> int:
        value = self.reshape(value, made.factors)
        for dim, (start, size) in enumerate(made.slices):
            value = self.slice(value, dim, start, size)
        value = self.permute(self.reshape(value, made.merged), made.order)
        return self.expand(value, made.shape)

    def blocks(self, held: Held, count: int) -> list[list[Held]]:
        """A contiguous tensor as ``count`` equal blocks, each as the same pieces: for each piece,
        where it is in every block.  One piece if memory is not divided so."""
        size = prod(held.shape) // count
        step = [
            Held(held.storage, held.offset + i * size, (size,), (1,), held.dtype)
            for i in range(count)
        ]
        if geometry.contiguous(held.shape) != _normal(held):
            return [step]
        parts = [self.parts(block) for block in step]
        shapes = [[p.shape for p in block] for block in parts]
        if any(s != shapes[0] for s in shapes):
            return [step]
        return [list(column) for column in zip(*parts, strict=True)]

    def parts(self, held: Held) -> list[Held]:
        """The tensor as the pieces of memory that it is made of, if it is exactly several of them
        (a flat buffer); otherwise itself."""
        storage = self.storages.get(held.storage)
        if storage is None or geometry.contiguous(held.shape) != _normal(held):
            return [held]
        last = held.offset + prod(held.shape)
        found = [p for p in storage.pieces if p.start < last and held.offset < p.stop]
        at = held.offset
        for piece in found:
            if piece.start != at:
                return [held]
            at = piece.stop
        if at != last or not found:
            return [held]
        result = []
        for piece in found:
            shape = self.out.values[piece.value].shape
            strides = geometry.contiguous(shape)
            result.append(Held(held.storage, piece.start, shape, strides, held.dtype))
        return result

    def _covering(self, storage: _Storage, first: int, last: int, dtype: str) -> _Piece:
        """One piece that has [first, last), joined of several if need be."""
        found = [p for p in storage.pieces if p.start < last and first < p.stop]
        if len(found) == 1 and found[0].start <= first and last <= found[0].stop:
            return found[0]
        parts: list[int] = []
        at = min([first, *(p.start for p in found)])
        begin = at
        for piece in found:
            if piece.start > at:
                parts.append(self.emit(UNDEFINED, (), (piece.start - at,), dtype))
            parts.append(self.reshape(piece.value, (piece.stop - piece.start,)))
            at = piece.stop
        if at < last:
            parts.append(self.emit(UNDEFINED, (), (last - at,), dtype))
            at = last
        return _Piece(begin, at, self.concat(parts, 0))

    # -- writing ----------------------------------------------------------------------------

    def write(self, held: Held, value: int) -> None:
        """Give a tensor in memory a new value."""
        storage = self.storages.setdefault(held.storage, _Storage())
        storage.views.clear()
        if 0 in held.shape:
            return
        order = geometry.dense_order(held.shape, held.strides)
        first = held.offset
        last = first + geometry.extent(held.shape, held.strides)
        if order is not None:
            self._replace(storage, first, last, self.permute(value, order), held.dtype)
        else:
            base = self._covering(storage, first, last, held.dtype)
            made = geometry.recipe(
                base.stop - base.start, first - base.start, held.shape, held.strides
            )
            if made is None or 0 in held.strides:
                raise InvalidInput(
                    f"a write to shape {list(held.shape)} with strides {list(held.strides)}, "
                    "which overlaps itself in memory"
                )
            whole = self._scattered(base, made, value)
            self._replace(storage, base.start, base.stop, whole, held.dtype)
        storage.views[held] = value

    def _scattered(self, base: _Piece, made: geometry.Recipe, value: int) -> int:
        """The piece with the part that ``made`` reads replaced by ``value``."""
        inverse = [0] * len(made.order)
        for position, source in enumerate(made.order):
            inverse[source] = position
        new = self.reshape(self.permute(value, inverse), tuple(n for _, n in made.slices))
        shape = self.out.values[base.value].shape

        def put(old: int, dim: int) -> int:
            """``old`` with dimensions from ``dim`` on still whole."""
            if dim == len(made.slices):
                return new
            start, size = made.slices[dim]
            if size == made.factors[dim]:
                return put(old, dim + 1)
            rest = made.factors[dim] - start - size
            parts = [self.slice(old, dim, 0, start)] if start else []
            parts.append(put(self.slice(old, dim, start, size), dim + 1))
            parts += [self.slice(old, dim, start + size, rest)] if rest else []
            return self.concat(parts, dim)

        return self.reshape(put(self.reshape(base.value, made.factors), 0), shape)

    def _replace(self, storage: _Storage, first: int, last: int, value: int, dtype: str) -> None:
        pieces: list[_Piece] = []
        for piece in storage.pieces:
            if piece.stop <= first or last <= piece.start:
                pieces.append(piece)
                continue
            for start, stop in ((piece.start, first), (last, piece.stop)):
                if start < stop:
                    flat = self.reshape(piece.value, (piece.stop - piece.start,))
                    cut = self.slice(flat, 0, start - piece.start, stop - start)
                    pieces.append(_Piece(start, stop, cut))
        pieces.append(_Piece(first, last, value))
        storage.pieces = sorted(pieces)


def _normal(held: Held) -> tuple[int, ...]:
    """Strides, with those of dimensions of size 1 as a contiguous tensor has them."""
    plain = geometry.contiguous(held.shape)
    return tuple(
        p if n == 1 else s for n, s, p in zip(held.shape, held.strides, plain, strict=True)
    )


def _ints(items: Sequence[int]) -> Items:
    return Items(tuple(int(i) for i in items))


Handler = Callable[["Replay", Event], bool]


class Pending(NamedTuple):
    """An asynchronous operator before its wait, with what it writes and reads."""

    event: Event
    written: list[Held]
    read: list[Held]


def _meet(a: Held, b: Held) -> bool:
    """Whether two tensors may share memory: the intervals that they span do."""
    if a.storage != b.storage or 0 in a.shape or 0 in b.shape:
        return False
    ends = [h.offset + geometry.extent(h.shape, h.strides) for h in (a, b)]
    return a.offset < ends[1] and b.offset < ends[0]


class Replay:
    """Replays the events of a trace over `Memory`."""

    def __init__(self, recorded: Trace) -> None:
        self.trace = recorded
        self.out = Functional(recorded)
        self.memory = Memory(self.out)
        self.started = False
        self.pending: dict[int, Pending] = {}

    def held(self, arg: Arg) -> Held:
        if not isinstance(arg, Tensor):
            raise InvalidInput(f"expected a tensor, found {arg!r}"[:200])
        return self.trace.tensors[arg.number]

    def read(self, arg: Arg) -> int:
        return self.memory.read(self.held(arg))

    # -- time -------------------------------------------------------------------------------

    def issued(self, event: Event, written: Sequence[int], read: Sequence[int]) -> None:
        """An asynchronous operator was issued: until its wait, what it writes must not be touched,
        and what it reads must not be written."""
        if event.work:
            tensors = self.trace.tensors
            self.pending[event.work] = Pending(
                event, [tensors[n] for n in written], [tensors[n] for n in read]
            )

    def in_time(self, event: Event) -> None:
        """Append a finding for what an event touches too early."""
        if not self.pending or self.looks(event):
            return
        touched = list(trace.tensors_of(*event.args, *event.kwargs.values()))
        written = set(event.writes)
        if event.name.startswith("c10d."):
            written.update(touched)
        for pending in list(self.pending.values()):
            for number in touched:
                held = self.trace.tensors[number]
                early = any(_meet(held, other) for other in pending.written)
                spoiled = number in written and any(_meet(held, o) for o in pending.read)
                if (early or spoiled) and pending.event is not event:
                    self.too_early(event, pending.event, early)
                    return

    def looks(self, event: Event) -> bool:
        """Whether an event makes views only."""
        if event.writes or event.name.startswith(("c10d.", "job.", "fsdp.")):
            return False
        read = {self.trace.tensors[n].storage for n in trace.tensors_of(*event.args)}
        made = [self.trace.tensors[n].storage for n in trace.tensors_of(*event.outputs)]
        return bool(made) and all(storage in read for storage in made)

    def too_early(self, event: Event, pending: Event, early: bool) -> None:
        sources = self.trace.sources
        what = "reads or writes the result of" if early else "writes what is still read by"
        issued = pending.name.split(".")[1].strip("_")
        self.out.findings.append(
            Finding(
                "read before wait",
                f"rank {self.trace.rank}: {event.name} at {sources[event.source]} {what} "
                f"{issued}, issued at {sources[pending.source]}, before its wait",
                operator=event.name,
                layer=self.trace.modules[event.module],
                source=sources[event.source],
                ranks=(self.trace.rank,),
            )
        )

    def write(self, arg: Arg, value: int) -> None:
        self.memory.write(self.held(arg), value)

    def values(self, arg: Arg) -> Arg:
        """An argument with the numbers of values in place of those of tensors."""
        if isinstance(arg, Tensor):
            return Tensor(self.read(arg))
        if isinstance(arg, Items):
            return Items(tuple(self.values(a) for a in arg.items))
        return arg

    def fresh(self, held: Held) -> int:
        return self.memory.value(held.shape, held.dtype)

    # -- events -----------------------------------------------------------------------------

    def run(self) -> Functional:
        from frontends.torch import fsdp  # noqa: F401 - fills the table of handlers
        from frontends.torch.collectives import HANDLERS as COLLECTIVES
        from frontends.torch.collectives import unknown

        for number, event in enumerate(self.trace.events):
            self.memory.event = number
            if event.name == trace.WAIT:
                work = event.kwargs.get("work")
                self.pending.pop(work if isinstance(work, int) else 0, None)
                continue
            self.in_time(event)
            try:
                if event.name.startswith("job."):
                    self.mark(event)
                elif event.name in COLLECTIVES:
                    COLLECTIVES[event.name](self, event)
                elif event.name.startswith(("c10d.", "_c10d_functional.")) and (
                    event.name not in COPIES
                ):
                    unknown(self, event)
                else:
                    self.operator(event)
            except InvalidInput as error:
                where = self.trace.sources[event.source]
                raise error.within(f"{event.name} at {where}" if where else event.name) from error
        return self.out

    def operator(self, event: Event) -> None:
        """Any other operator: views move nothing, what is written gets new values."""
        written = [Tensor(n) for n in event.writes]
        results = [Tensor(n) for n in trace.tensors_of(*event.outputs)]
        if not written and event.name.startswith(ALLOCATES):
            for result in results:
                self.memory.storages[self.held(result).storage] = _Storage()
            return
        if event.name == "aten.copy_.default":
            self.copy(event)
            return
        if not written and event.name in COPIES:
            source, target = self.read(event.args[0]), self.held(results[0])
            if self.held(event.args[0]).storage != target.storage:
                self.memory.write(target, self.memory.cast(source, target.dtype))
            return
        if event.name in SCALED and self.scaled(event):
            return
        read = {
            self.held(Tensor(n)).storage for n in trace.tensors_of(*event.args, *event.kwargs.values())
        }
        new = [r for r in results if self.held(r).storage not in read]
        if not written and not new:
            return
        args = tuple(self.values(a) for a in event.args)
        kwargs = {k: self.values(v) for k, v in event.kwargs.items() if k != "out"}
        targets = written or new
        outputs = tuple(self.fresh(self.held(t)) for t in targets)
        named = outputs
        if not written:
            # An output that there is not (None) keeps its place.
            flat = list(_flat(event.outputs))
            by_number = dict(zip((t.number for t in new), outputs, strict=True))
            named = tuple(
                by_number.get(x.number, -1) if isinstance(x, Tensor) else -1 for x in flat
            )
        self.out.ops.append(Op(event.name, args, kwargs, named, self.memory.event))
        for target, value in zip(targets, outputs, strict=True):
            self.write(target, value)

    def scaled(self, event: Event) -> bool:
        """An operator with a number, in place on a flat buffer: piece by piece."""
        parts = self.memory.parts(self.held(event.args[0]))
        numbers = event.args[1:]
        if len(parts) < 2 or any(isinstance(a, (Tensor, Items)) for a in numbers):
            return False
        for part in parts:
            value = self.memory.read(part)
            new = self.memory.emit(
                event.name, (Tensor(value), *numbers), part.shape, part.dtype, **event.kwargs
            )
            self.memory.write(part, new)
        return True

    def copy(self, event: Event) -> None:
        target = self.held(event.args[0])
        value = self.memory.cast(self.read(event.args[1]), target.dtype)
        self.memory.write(target, self.memory.expand(value, target.shape))

    # -- marks ------------------------------------------------------------------------------

    def mark(self, event: Event) -> None:
        name = str(event.kwargs.get("name", ""))
        if event.name in (trace.BATCH, trace.FULL):
            held = self.held(event.outputs[0])
            low, high = event.kwargs.get("low"), event.kwargs.get("high")
            kind = "batch" if event.name == trace.BATCH else "full"
            value = self.input(kind, name, held)
            self.out.inputs.append(
                Input(
                    kind,
                    name,
                    value,
                    low=low if isinstance(low, int) else None,
                    high=high if isinstance(high, int) else None,
                )
            )
        elif event.name == trace.CONSTANT:
            held = self.held(event.outputs[0])
            data = self.trace.constants[_number(event.outputs[0])]
            value = self.memory.emit(CONSTANT, (), held.shape, held.dtype)
            self.out.constants[value] = data
            self.memory.write(held, value)
        elif event.name == trace.PARAMETER:
            self.parameter(event, name)
        elif event.name in (LOSS, GRADIENT, OUTPUT):
            self.compare(event, name)
        elif event.name == trace.START:
            self.started = True

    def input(self, kind: str, name: str, held: Held) -> int:
        value = self.memory.emit(INPUT, (kind, name), held.shape, held.dtype)
        self.memory.write(held, value)
        return value

    def parameter(self, event: Event, name: str) -> None:
        """A parameter becomes an input, unless the program made it from full ones."""
        held = self.held(event.outputs[0])
        box = event.boxes[0]
        trainable = event.kwargs.get("trainable") is True
        before = self.memory.storages.get(held.storage)
        if before is not None and before.pieces:
            found = computed(self.out, self.memory.read(held))
            if found is not None:
                if box.said != "same name" and (box.name, box.offset, box.shape) != found[:3]:
                    raise InvalidInput(
                        f"{name} is computed as {list(found.shape)} from {list(found.offset)} of "
                        f"{found.name}, {box.said} says {list(box.shape)} from "
                        f"{list(box.offset)} of {box.name}"
                    )
                full = self.out.values[found.input]
                box = Box(found.name, full.shape, found.offset, found.shape, "computed")
                self.out.boxes[name] = box
                return
        value = self.input("parameter", name, held)
        self.out.boxes[name] = box
        self.out.inputs.append(Input("parameter", name, value, trainable, box))

    def compare(self, event: Event, name: str) -> None:
        kind = event.name.removeprefix("job.")
        value = self.read(event.args[0]) if event.args else -1
        box = event.boxes[0] if event.boxes else None
        if kind == "gradient":
            own = self.out.boxes[name]
            if box is None or box.said != "DTensor" or own.said == "computed":
                box = own
        self.out.compared.append(Compared(kind, name, value, box, self.memory.event))


LOSS, GRADIENT, OUTPUT = "job.loss", "job.gradient", "job.output"


class Computed(NamedTuple):
    name: str
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    input: int


def computed(out: Functional, value: int) -> Computed | None:
    """The box of a full parameter that a value is, where the program cut it from one; None if it
    depends on no full parameter.  Raises `InvalidInput` if it is anything but a box of one."""
    made = {v: op for op in out.ops for v in op.outputs if v >= 0}
    chain: list[Op] = []
    while value in made and made[value].name in (SLICE, CAST):
        chain.append(made[value])
        value = next(trace.tensors_of(*made[value].args))
    if value not in made:
        return None
    if made[value].name != INPUT or made[value].args[0] != "full":
        if _depends(made, value):
            raise InvalidInput(
                "a parameter is computed from full ones, and is not a box of one "
                f"(by {made[value].name})"
            )
        return None
    shape = list(out.values[value].shape)
    offset = [0] * len(shape)
    for op in reversed(chain):
        if op.name == SLICE:
            _, dim, start, size = op.args
            assert isinstance(dim, int) and isinstance(start, int) and isinstance(size, int)
            offset[dim] += start
            shape[dim] = size
    return Computed(str(made[value].args[1]), tuple(offset), tuple(shape), value)


def _depends(made: dict[int, Op], value: int) -> bool:
    """Whether a value is made of full parameters."""
    seen: set[int] = set()
    open_values = [value]
    while open_values:
        at = open_values.pop()
        if at in seen or at not in made:
            continue
        seen.add(at)
        op = made[at]
        if op.name == INPUT and op.args[0] == "full":
            return True
        open_values += trace.tensors_of(*op.args, *op.kwargs.values())
    return False


def _flat(args: Sequence[Arg]) -> list[Arg]:
    found: list[Arg] = []
    for arg in args:
        found += _flat(arg.items) if isinstance(arg, Items) else [arg]
    return found


def _number(arg: Arg) -> int:
    if not isinstance(arg, Tensor):
        raise InvalidInput(f"expected a tensor, found {arg!r}"[:200])
    return arg.number


def functional(recorded: Trace) -> Functional:
    """The step as values; raises `InvalidInput` where memory is used in a way that has no value."""
    return alive(Replay(recorded).run())


def alive(step: Functional) -> Functional:
    """The step without what nothing compared, and no communication, depends on."""
    start = next(
        (n for n, e in enumerate(step.trace.events) if e.name == trace.START),
        len(step.trace.events),
    )
    needed = {c.value for c in step.compared if c.value >= 0}
    kept: list[Op] = []
    for op in reversed(step.ops):
        communicates = op.name.startswith("comm.") and op.event > start
        if communicates or op.name == INPUT or any(v in needed for v in op.outputs):
            kept.append(op)
            needed.update(trace.tensors_of(*op.args, *op.kwargs.values()))
    step.ops = kept[::-1]
    return step

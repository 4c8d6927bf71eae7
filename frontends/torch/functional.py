"""A recorded step without memory: values that are written once, views resolved, dead code removed.

Operators that write get new values for what they write; views move nothing.  Collectives are
operators like others here (``comm.*``); what they write in place is written back.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.torch import draws, exchanges, fsdp, geometry, trace
from shardproof.frontends.torch.buffers import strung
from shardproof.frontends.torch.collectives import HANDLERS, unknown
from shardproof.frontends.torch.computed import Computed, computed, part_of, rewritten
from shardproof.frontends.torch.earlier import Earlier
from shardproof.frontends.torch.memory import (
    CONSTANT,
    INPUT,
    UNDEFINED,
    Compared,
    Functional,
    Input,
    Op,
    number,
)
from shardproof.frontends.torch.pieces import Storage
from shardproof.frontends.torch.state import WAIT_TENSOR, State
from shardproof.frontends.torch.trace import Arg, Box, Event, Items, StridedTensor, Tensor, Trace
from shardproof.frontends.torch.ways import READING, Reading

#: Operators whose result is their first operand, elsewhere in memory.
COPIES = frozenset(
    {
        "aten.clone.default",
        "aten.lift_fresh_copy.default",
        "aten.lift_fresh.default",
        "aten.alias_copy.default",
        "aten.detach_copy.default",
        WAIT_TENSOR,
    }
)
#: Operators that change every element of their first operand alike.
SCALED = frozenset(
    {
        *("aten.div_.Scalar", "aten.mul_.Scalar", "aten.div_.Tensor", "aten.mul_.Tensor"),
        *("aten.div.Scalar", "aten.mul.Scalar", "aten.div.Tensor", "aten.mul.Tensor"),
        "aten.zero_.default",
        "aten.fill_.Scalar",
    }
)
#: Batch norm, and the same with the running statistics that it writes as results.
BATCH_NORM = "aten.native_batch_norm.default"
BATCH_NORM_WRITTEN = "aten._native_batch_norm_legit_functional.default"
#: Operators that allocate and write nothing.
ALLOCATES = ("aten.empty", "aten.new_empty")


LOSS, GRADIENT, OUTPUT = "job.loss", "job.gradient", "job.output"
UPDATED, STATE = "job.updated", "job.state"

#: Products that are added to their first operand times ``beta``: times 0 it is not read, whatever
#: lies there (Megatron's scores of attention are written so, into a buffer that others used).
ADDING = frozenset(f"aten.{name}.default" for name in ("addmm", "baddbmm", "addmm_", "baddbmm_"))
#: Operators whose results are one number in all places, whatever their first operand has.  That of
#: ``ones_like`` counts: a backward pass begins with ones like the loss.
FILLS = frozenset(
    {
        *("aten.zeros_like.default", "aten.full_like.default"),
        *("aten.new_zeros.default", "aten.new_ones.default", "aten.new_full.default"),
        *("aten.zero_.default", "aten.fill_.Scalar"),
    }
)
#: What is not an operator of ATen, by name.
SPECIAL = {**HANDLERS, **exchanges.HANDLERS, **fsdp.HANDLERS}


class Replay(State):
    """Replays the events of a trace.

    Example: of ``y = x.t(); y.add_(1)`` the memory of ``x`` gets a new value: ``move.permute`` of
    the result of ``aten.add_.Tensor``, which read ``move.permute`` of the old one.
    """

    def __init__(self, recorded: Trace, reading: Reading = READING) -> None:
        super().__init__(recorded, reading)
        self.earlier = Earlier(self.memory)

    # -- events -----------------------------------------------------------------------------

    def run(self) -> Functional:
        """Replay every event in its order; the program without memory that results."""
        for index, event in enumerate(self.trace.events):
            self.memory.event = index
            if event.name == trace.WAIT:
                work = event.kwargs.get("work")
                self.waited(work if isinstance(work, int) else 0)
                continue
            self.in_time(event)
            try:
                if event.name.startswith("job."):
                    self.mark(event)
                elif event.name in SPECIAL:
                    SPECIAL[event.name](self, event)
                elif event.name.startswith(("c10d.", "_c10d_functional.")) and (
                    event.name not in COPIES
                ):
                    unknown(self, event)
                else:
                    self.operator(event)
            except InvalidInput as error:
                where = self.trace.sources[event.source]
                raise error.within(f"{event.name} at {where}" if where else event.name) from error
            except (IndexError, KeyError, ValueError) as error:
                where = f"{event.name} at {self.trace.sources[event.source]}"
                message = f"its arguments are not those of such an event ({error})"
                raise InvalidInput(message, where) from error
        return self.out

    def of_rows(self, results: Sequence[Tensor]) -> bool:
        """Whether results have rows of which data say how many there are: what has them tells by
        which mask they are chosen.

        Example: ``torch.zeros_like(x[mask])``.
        """
        counts = self.trace.counts
        return any(n in counts for t in results for n in self.location(t).shape)

    def operator(self, event: Event) -> None:
        """Any other operator: views move nothing, what is written gets new values."""
        written = [Tensor(n) for n in event.writes]
        results = [Tensor(n) for n in trace.tensors_of(*event.outputs)]
        if not written and event.name.startswith(ALLOCATES):
            for result in results:
                self.memory.storages[self.location(result).storage] = Storage()
            return
        if event.name == "aten.copy_.default":
            self.copy(event)
            return
        if not written and event.name in COPIES:
            source, target = self.read(event.args[0]), self.location(results[0])
            if self.location(event.args[0]).storage != target.storage:
                self.memory.write(target, self.memory.cast(source, target.dtype))
            return
        if event.name in SCALED and self.scaled(event):
            return
        if event.name == BATCH_NORM and self.normed(event):
            return
        if self.drawn(event) or strung(self, event):
            return
        read = {
            self.location(Tensor(n)).storage
            for n in trace.tensors_of(*event.args, *event.kwargs.values())
        }
        new = [r for r in results if self.location(r).storage not in read]
        if not written and not new:
            return
        self.apart(event)
        self.still = frozenset(event.still)
        fills = event.name in FILLS and not self.of_rows(results)
        unread = fills or (event.name in ADDING and event.kwargs.get("beta") == 0)
        first = (self.ignored(a) if unread else self.values(a) for a in event.args[:1])
        args = (*first, *(self.values(a) for a in event.args[1:]))
        kwargs = {k: self.values(v) for k, v in event.kwargs.items() if k != "out"}
        self.still = frozenset()
        targets = written or new
        outputs = tuple(self.fresh(self.location(t)) for t in targets)
        named = outputs
        if not written:
            # An output that there is not (None) keeps its place.
            flat = list(_flat(event.outputs))
            by_number = dict(zip((t.number for t in new), outputs, strict=True))
            named = tuple(
                by_number.get(x.number, -1) if isinstance(x, Tensor) else -1 for x in flat
            )
        self.memory.append(Op(event.name, args, kwargs, named, self.memory.event))
        for written_to, value in zip(targets, outputs, strict=True):
            self.write(written_to, value)

    def ignored(self, arg: Arg) -> Arg:
        """An operand of which nothing is read, in place of the value that its memory holds."""
        at = self.location(arg)
        return Tensor(self.memory.emit(UNDEFINED, (), at.shape, at.dtype))

    def apart(self, event: Event) -> None:
        """Raises `InvalidInput` where one operator writes several tensors (lists of them) of which
        one meets another, or what is read for another: which is written first, decides."""
        if len(event.writes) < 2:
            return
        lying: dict[int, list[tuple[geometry.Place, int, bool]]] = {}
        for argument in (*event.args, *event.kwargs.values()):
            items = argument.items if isinstance(argument, Items) else (argument,)
            for index, item in enumerate(items):
                for tensor in trace.tensors_of(item):
                    at = self.location(Tensor(tensor))
                    place = at.offset, at.shape, at.strides
                    here = place, index, tensor in event.writes
                    lying.setdefault(at.storage, []).append(here)
        if any(map(geometry.collide, lying.values())):
            raise InvalidInput("tensors that lie in the same memory are written together")

    def drawn(self, event: Event) -> bool:
        """A random operator that is understood: nothing of what it writes is read."""
        drawing = draws.drawing(event)
        if drawing is None:
            return False
        given = tuple(self.values(a) for a in drawing.given)
        (number,) = event.writes or tuple(trace.tensors_of(*event.outputs))
        target = self.location(Tensor(number))
        drawn = draws.draw(self.memory, str(event.kwargs[trace.DRAW]), drawing, target, given)
        self.memory.write(target, drawn)
        return True

    def normed(self, event: Event) -> bool:
        """Batch norm in training writes its running statistics, which its schema does not say."""
        running = event.args[3:5]
        if event.args[5] is not True or not all(isinstance(a, Tensor) for a in running):
            return False
        targets = [*(a for a in event.outputs if isinstance(a, Tensor)), *running]
        outputs = tuple(self.fresh(self.location(t)) for t in targets)
        args = tuple(self.values(a) for a in event.args)
        self.memory.append(Op(BATCH_NORM_WRITTEN, args, {}, outputs, self.memory.event))
        for target, value in zip(targets, outputs, strict=True):
            self.write(target, value)
        return True

    def scaled(self, event: Event) -> bool:
        """An operator with a number on a flat buffer, in place or not: piece by piece."""
        source, numbers = event.args[0], event.args[1:]
        if any(isinstance(a, (Tensor, Items)) for a in numbers) or not isinstance(source, Tensor):
            return False
        flat = self.location(source)
        target = flat if event.writes else self.location(event.outputs[0])
        parts = self.memory.parts(flat)
        if len(parts) < 2 or (target.shape, target.strides) != (flat.shape, flat.strides):
            return False
        for part in parts:
            value = self.memory.read(part)
            new = self.memory.emit(
                event.name, (Tensor(value), *numbers), part.shape, target.dtype, **event.kwargs
            )
            at = target.offset + part.offset - flat.offset
            into = StridedTensor(target.storage, at, part.shape, part.strides, target.dtype)
            self.memory.write(into, new)
        return True

    def copy(self, event: Event) -> None:
        """A copy between tensors: cast to the target's element type, broadcast to its shape."""
        target = self.location(event.args[0])
        value = self.memory.cast(self.read(event.args[1]), target.dtype)
        self.memory.write(target, self.memory.expand(value, target.shape))

    # -- marks ------------------------------------------------------------------------------

    def mark(self, event: Event) -> None:
        """What the job notes: an input, a parameter, a loss, or a tensor that is compared."""
        name = str(event.kwargs.get("name", ""))
        if event.name in (trace.BATCH, trace.FULL):
            tensor = self.location(event.outputs[0])
            low, high = event.kwargs.get("low"), event.kwargs.get("high")
            kind = "batch" if event.name == trace.BATCH else "full"
            value = self.input(kind, name, tensor)
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
            tensor = self.location(event.outputs[0])
            data = self.trace.constants[number(event.kwargs["data"])]
            value = self.memory.emit(CONSTANT, (), tensor.shape, tensor.dtype)
            self.out.constants[value] = data
            if event.kwargs.get("whole") is True:
                self.memory.write(tensor, value)
            else:
                self.memory.assume(tensor, value)
        elif event.name == trace.PARAMETER:
            self.parameter(event, name)
        elif event.name == trace.START:
            self.out.copied += self.earlier.copies()
        elif event.name == trace.BUFFER:
            self.buffer(event, name)
        elif event.name in (LOSS, GRADIENT, OUTPUT, UPDATED, STATE):
            self.compare(event, name)
        elif event.name == trace.END:
            for work in list(self.posted):
                self.waited(work)

    def input(self, kind: str, name: str, tensor: StridedTensor) -> int:
        """A named input of the program, written to the memory of a tensor."""
        value = self.memory.emit(INPUT, (kind, name), tensor.shape, tensor.dtype)
        self.memory.write(tensor, value)
        if tensor.strides == geometry.contiguous(tensor.shape):
            self.laid.setdefault(tensor.storage, []).append(tensor)
        return value

    def parameter(self, event: Event, name: str) -> None:
        """A parameter becomes an input, unless the program made it from full ones."""
        tensor = self.location(event.outputs[0])
        box = event.boxes[0]
        trainable = event.kwargs.get("trainable") is True
        before = self.memory.storages.get(tensor.storage)
        if before is not None and before.pieces:
            pieces = computed(self.memory, self.memory.read(tensor))
            if pieces:
                if any(c.cut is not None and c.cut.box is not None for c in pieces):
                    rewritten(self.memory, tensor, pieces)
                self.made(name, box, pieces)
                return
        began = self.earlier.piece(tensor)
        if began is not None and self.earlier.is_drawn(began.value):
            self.out.drawn.add(box.name)
        value = self.input("parameter", name, tensor)
        if began is not None:
            self.earlier.begins(tensor, began)
        self.out.boxes[name] = box
        self.out.inputs.append(Input("parameter", name, value, trainable, box))

    def buffer(self, event: Event, name: str) -> None:
        """A buffer that was drawn before the start is an input, as a parameter is; one that was
        computed keeps what it is made of."""
        tensor = self.location(event.outputs[0])
        began = self.earlier.piece(tensor)
        if began is not None and self.earlier.is_alone(began.value):
            value = self.input("parameter", name, tensor)
            self.out.boxes[name] = event.boxes[0]
            self.out.inputs.append(Input("parameter", name, value, False, event.boxes[0]))

    def made(self, name: str, box: Box, pieces: Sequence[Computed]) -> None:
        """A parameter that the program cut from full ones, or put together of pieces of them."""
        if box.said not in trace.BY_NAME and [(box.name, box.offset, box.shape)] != [
            (c.name, c.offset, c.shape) for c in pieces
        ]:
            made = ", ".join(f"{list(c.shape)} from {list(c.offset)} of {c.name}" for c in pieces)
            raise InvalidInput(
                f"{name} is computed as {made}, {box.said} says {list(box.shape)} from "
                f"{list(box.offset)} of {box.name}"
            )
        for at, c in enumerate(pieces):
            own = name if c.cut is None else f"{name}[{at}]"
            full = self.out.values[c.input].shape
            self.out.boxes[own] = Box(c.name, full, c.offset, c.shape, "computed")
        self.out.made[name] = tuple(c.cut for c in pieces)

    def compare(self, event: Event, name: str) -> None:
        """A tensor that is compared, piece by piece where its parameter is several boxes."""
        kind = event.name.removeprefix("job.")
        value = self.read(event.args[0]) if event.args else -1
        box = event.boxes[0] if event.boxes else None
        cuts = self.out.made.get(name, ()) if kind in ("gradient", "updated", "state") else ()
        count = box is not None and box.full_shape == () and kind == "state"
        if any(cuts):
            state = str(event.kwargs.get("state", ""))
            if box is not None and box.text == trace.OWN_SHAPE:
                raise InvalidInput(trace.unlike(str(event.kwargs.get("state")), name))
            for at, cut in enumerate(cuts):
                piece = f"{name}[{at}]"
                part = -1 if value < 0 or cut is None else value
                described = self.out.boxes[piece]
                if part >= 0 and not count and cut is not None:
                    part = part_of(self.memory, value, cut)
                if count:
                    described = Box(described.name, (), (), (), described.said)
                compared = Compared(kind, piece, part, described, self.memory.event, state)
                self.out.compared.append(compared)
            return
        if kind in ("gradient", "updated", "state") and not count:
            own = self.out.boxes[name]
            if box is not None and box.text == trace.OWN_SHAPE:
                if own.shape != own.full_shape:
                    raise InvalidInput(trace.unlike(str(event.kwargs.get("state")), name))
            elif box is None or box.said != "DTensor" or own.said == "computed":
                box = own
        state = str(event.kwargs.get("state", ""))
        self.out.compared.append(Compared(kind, name, value, box, self.memory.event, state))


def _flat(args: Sequence[Arg]) -> list[Arg]:
    flat: list[Arg] = []
    for arg in args:
        flat += _flat(arg.items) if isinstance(arg, Items) else [arg]
    return flat


def functional(
    recorded: Trace,
    reading: Reading = READING,
) -> Functional:
    """The step as values; raises `InvalidInput` where memory is used in a way that has no value.

    Example: of an MLP's step, ``aten.t`` is ``move.permute``, ``_c10d_functional.all_reduce`` is
    ``comm.all_reduce``, and the ``aten.uniform_`` that drew its weights is gone.
    """
    return alive(Replay(recorded, reading).run())


def alive(step: Functional) -> Functional:
    """The step without what nothing compared, and no communication, depends on.

    Example: an accuracy that is computed beside the loss is gone; an all-reduce of it stays, and
    what it reads.
    """
    start = next(
        (n for n, e in enumerate(step.trace.events) if e.name == trace.START),
        len(step.trace.events),
    )
    needed = {c.value for c in step.compared if c.value >= 0}
    kept: list[Op] = []
    # A rank may cut its rows of what the step does not read.
    batch = {i.value for i in step.inputs if i.kind == "batch" and step.trace.world_size > 1}
    for op in reversed(step.ops):
        communicates = op.name.startswith("comm.") and op.event > start
        named = op.name == INPUT and batch.isdisjoint(op.outputs)
        if communicates or named or any(v in needed for v in op.outputs):
            kept.append(op)
            needed.update(trace.tensors_of(*op.args, *op.kwargs.values()))
    step.ops = kept[::-1]
    step.inputs = [i for i in step.inputs if i.value in needed or i.value not in batch]
    return step

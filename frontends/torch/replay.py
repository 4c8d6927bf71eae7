"""Recorded events of all ranks, run again by PyTorch itself on small real values, in lock-step.

This is the other eye on the translation: it knows nothing of values, pieces or rules.  Storages are
real memory, tensors are strided views of it, operators are ATen's own, and collectives are done by
hand once every member of the group is there.

Only operators whose rule the table has are run, and a few that allocate, copy and view: names in
a trace file are not trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.aten.ordered import is_read
from shardproof.frontends.torch import draws, grouped, trace
from shardproof.frontends.torch.collectives import group_of, listed
from shardproof.frontends.torch.complexes import PAIRS, called
from shardproof.frontends.torch.functional import (
    ALLOCATES,
    COPIES,
    GRADIENT,
    LOSS,
    OUTPUT,
    STATE,
    UPDATED,
)
from shardproof.frontends.torch.in_memory import in_memory
from shardproof.frontends.torch.joined import TooLarge, joined, parts_of, viewed
from shardproof.frontends.torch.memory import Functional
from shardproof.frontends.torch.trace import (
    Arg,
    Box,
    Event,
    Items,
    Named,
    StridedTensor,
    Tensor,
    Trace,
)

#: What changes no memory, and what PyTorch refuses of views outside of its dispatch.
DETACHES = "aten.detach_.default"
#: Elements over all storages of a rank.
MOST_NUMBERS = 1 << 24

#: The tensors that are compared, in the order of their marks (None: there is none).
Results = list[torch.Tensor | None]


@dataclass
class Meeting:
    """What members of a group bring to one collective.

    Example: an all-reduce over ranks 0 and 1 to which rank 0 alone has come: ``brought`` has {0:
    [x]}.
    """

    brought: dict[int, list[torch.Tensor]] = field(default_factory=dict)


@dataclass
class World:
    """What ranks share: who has come to which collective, messages on their way, whether anything
    moved.

    Example: ``mail`` {(0, 1): [x]}: rank 0 has sent ``x``, which rank 1 has not received yet.
    """

    meetings: dict[tuple[tuple[int, ...], int], Meeting] = field(default_factory=dict)
    mail: dict[tuple[int, int], list[torch.Tensor]] = field(default_factory=dict)
    moved: bool = False


def real(dtype: str) -> torch.dtype:
    """The element type in which a replay computes: float64 for all floating types, complex128 for
    complex ones, since rounding is no matter here.

    Example: "bfloat16" is ``torch.float64``, "int64" stays; "nn" is refused.
    """
    if dtype in ("complex64", "complex128"):
        return torch.complex128
    kind = torch.float64 if "float" in dtype else getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype):
        raise TooLarge(f"{dtype[:40]} is no element type")
    return kind


class Rank:
    """One rank: its storages, and how far it is.

    Example: rank 1, waiting at its second collective over (0, 1) until rank 0 comes.
    """

    def __init__(
        self,
        recorded: Trace,
        world: World,
        inputs: Callable[[str, str, Sequence[int], str], torch.Tensor],
        step: Functional,
        parts: draws.Parts,
    ) -> None:
        self.computed, self.copied, self.parts = step.made, step.copied, parts
        self.inputs_by_name = frozenset(step.boxes)
        self.started = False
        self.trace, self.world, self.inputs = recorded, world, inputs
        if recorded.counts:
            raise TooLarge("rows of which data says how many there are are not replayed")
        sizes: dict[int, tuple[int, str]] = {}
        for tensor in recorded.tensors:
            if tensor.shape and min(tensor.shape) == 0:
                end = tensor.offset
            else:
                steps = zip(tensor.shape, tensor.strides, strict=True)
                end = tensor.offset + 1 + sum((n - 1) * s for n, s in steps)
            before = sizes.get(tensor.storage, (0, tensor.dtype))
            sizes[tensor.storage] = (max(before[0], end), tensor.dtype)
        if sum(n for n, _ in sizes.values()) > MOST_NUMBERS:
            raise TooLarge(f"rank {recorded.rank} has too many numbers to replay the translation")
        self.memory = {s: torch.zeros(n, dtype=real(t)) for s, (n, t) in sizes.items()}
        self.boxes: dict[str, Box] = {}
        self.results: Results = []
        self.issued: dict[tuple[int, ...], int] = {}
        self.posted: dict[int, list[tuple[int, int, torch.Tensor]]] = {}
        #: How many messages of each sender receives were posted for.
        self.expected: dict[int, int] = {}
        #: Integers that operators without a rule wrote.
        self.spoiled: set[int] = set()

    def view(self, arg: Arg, *, sent: bool = False) -> torch.Tensor:
        """The tensor on this rank's memory, as a strided view of real numbers; ``sent``: as it lies
        there."""
        assert isinstance(arg, Tensor)
        tensor: StridedTensor = self.trace.tensors[arg.number]
        return self.at(in_memory(tensor) if sent else tensor)

    def at(self, tensor: StridedTensor) -> torch.Tensor:
        """What lies there in this rank's memory."""
        return self.memory[tensor.storage].as_strided(tensor.shape, tensor.strides, tensor.offset)

    def value(self, arg: Arg) -> Any:
        """An argument as PyTorch takes it, tensors as views of this rank's memory."""
        if isinstance(arg, Tensor):
            return self.view(arg)
        if isinstance(arg, Items):
            return [self.value(a) for a in arg.items]
        if isinstance(arg, Named) and arg.kind == "device":
            return torch.device("cpu")
        if isinstance(arg, Named):
            return real(arg.text) if arg.kind == "dtype" else None
        return arg

    # -- events -----------------------------------------------------------------------------

    def run(self) -> Generator[None, None, None]:
        """Every event in its order, by PyTorch; it yields while it waits for other ranks."""
        for event in self.trace.events:
            if event.name == trace.WAIT:
                yield from self.arrived(event.kwargs.get("work"))
            elif event.name.startswith("job."):
                self.mark(event)
            elif event.name in COPIES:
                (target,) = trace.tensors_of(*event.outputs)
                self.view(Tensor(target)).copy_(self.view(event.args[0]).clone())
            elif event.name.startswith(("c10d.", "_c10d_functional.")):
                yield from self.collective(event)
            elif event.name.startswith("fsdp."):
                self.fsdp(event)
            else:
                self.operator(event)

    def operator(self, event: Event) -> None:
        """One ATen operator, run by PyTorch on this rank's memory."""
        results = [Tensor(n) for n in trace.tensors_of(*event.outputs)]
        if event.name.startswith(ALLOCATES) and not event.writes:
            return
        if event.name == DETACHES:
            return
        read = {self.trace.tensors[n].storage for n in trace.tensors_of(*event.args)}
        new = [r for r in results if self.trace.tensors[r.number].storage not in read]
        if not event.writes and not new:
            return
        if event.name == "aten.copy_.default":
            self.view(event.args[0]).copy_(self.view(event.args[1]))
            return
        targets = [Tensor(n) for n in event.writes] or new
        if trace.DRAW in event.kwargs:
            self.draw(event, targets)
            return
        if not is_read(event.name) or read & self.spoiled:
            self.spoil(targets)
            return
        self.spoiled -= {self.trace.tensors[t.number].storage for t in targets}
        args = [self.value(a) for a in event.args]
        kwargs = {k: self.value(v) for k, v in event.kwargs.items()}
        if PAIRS in kwargs:
            pairs = kwargs.pop(PAIRS)
            result: Any = called(event.name, args, pairs, kwargs)
        else:
            result = grouped.called(event.name, args, kwargs)
        if event.writes:
            return
        flat = result if isinstance(result, (list, tuple)) else (result,)
        for output, value in zip(event.outputs, flat, strict=True):
            if isinstance(output, Tensor) and value.shape == self.view(output).shape:
                self.view(output).copy_(value)
            elif isinstance(output, Tensor):
                self.spoil([output])

    def draw(self, event: Event, targets: Sequence[Tensor]) -> None:
        """What a random operator draws: numbers that are given, of its part of the input."""
        drawing = draws.drawing(event)
        part = self.parts.get(str(event.kwargs[trace.DRAW]))
        if drawing is None or part is None:
            if self.started:
                raise TooLarge(f"{event.name} draws what is only compared, or has no part")
            self.spoil(targets)  # weights before the step, which are inputs then
            return
        (target,) = (self.view(t) for t in targets)
        values = self.inputs("random", part.name, part.full, "float32")
        for dim, (start, size) in enumerate(zip(part.offset, target.shape, strict=True)):
            values = values.narrow(dim, start, size)
        if drawing.kind == draws.UNIFORM:
            values = values.sigmoid()
        if drawing.logarithm:
            values = values.log()
        target.copy_(values * drawing.scale + drawing.shift)

    def spoil(self, tensors: Sequence[Tensor]) -> None:
        """What an operator that is not run would write is no number from here on."""
        for tensor in tensors:
            target = self.view(tensor)
            if target.dtype.is_floating_point:
                target.fill_(torch.nan)
            else:
                self.spoiled.add(self.trace.tensors[tensor.number].storage)

    def start(self) -> None:
        """The step begins: what was copied of parameters has their numbers."""
        self.started = True
        for parameter, copied in self.copied:
            self.at(copied).copy_(self.at(parameter))

    def mark(self, event: Event) -> None:
        """What the job noted: inputs are filled with the drawn numbers, compared tensors are
        kept."""
        name = str(event.kwargs.get("name", ""))
        if event.name == trace.START:
            self.start()
        elif event.name in (trace.BATCH, trace.FULL):
            (number,) = trace.tensors_of(*event.outputs)
            tensor = self.trace.tensors[number]
            kind = "batch" if event.name == trace.BATCH else "full"
            self.view(Tensor(number)).copy_(self.inputs(kind, name, tensor.shape, tensor.dtype))
        elif event.name == trace.CONSTANT:
            (number,) = trace.tensors_of(*event.outputs)
            tensor = self.trace.tensors[number]
            key = event.kwargs["data"]
            raw = bytearray(self.trace.constants[key if isinstance(key, int) else -1])
            if raw:
                values = torch.frombuffer(raw, dtype=getattr(torch, tensor.dtype))
                target = self.view(Tensor(number))
                if event.kwargs.get("whole") is True or target.dtype.is_floating_point:
                    target.copy_(values.view(target.shape))
                elif self.trace.tensors[number].storage in self.spoiled:
                    target.copy_(values.view(target.shape))
                    self.spoiled.discard(self.trace.tensors[number].storage)
        elif (event.name == trace.PARAMETER and name not in self.computed) or (
            event.name == trace.BUFFER and name in self.inputs_by_name
        ):
            box = event.boxes[0]
            target = self.view(event.outputs[0])
            full = self.inputs("parameter", box.name, box.full_shape, "float32")
            target.copy_(boxed(full, box))
        elif event.name in (LOSS, GRADIENT, OUTPUT, UPDATED, STATE):
            value = self.view(event.args[0]).clone() if event.args else None
            cuts = self.computed.get(name, ()) if event.name in (GRADIENT, UPDATED, STATE) else ()
            for cut in cuts or (None,):
                if cut is None or value is None or not value.dim():  # a count has no pieces
                    self.results.append(value)
                elif cut.box is not None:
                    entries = value.reshape(-1).narrow(0, cut.start, cut.size)
                    self.results.append(entries.view(cut.box))
                else:
                    self.results.append(value.narrow(cut.dim, cut.start, cut.size))

    # -- collectives ------------------------------------------------------------------------

    def collective(self, event: Event) -> Generator[None, None, None]:
        """One collective or message, by what it is to do; it yields until all members have come."""
        name = event.name.split(".")[1].strip("_")
        if name in ("send", "recv"):
            yield from self.message(event, name)
            return
        group = group_of(event).ranks
        if event.name.startswith("_c10d_functional."):
            sources = [self.view(t) for t in listed(event.args[0])]
            targets = [self.view(Tensor(n)) for n in trace.tensors_of(*event.outputs)]
        else:
            sources, targets = self.in_place(event, name)
        if name in ("alltoall_base", "all_to_all_single"):
            sources = parts_of(sources, event, len(group))
        yield from self.meet(event, name, group, sources, targets)

    def in_place(self, event: Event, name: str) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The tensors that a collective reads, and those that it writes."""
        sent = name in ("allreduce", "broadcast", "reduce")
        first = [self.view(Tensor(n), sent=sent) for n in trace.tensors_of(event.args[0])]
        if name in ("allreduce", "allreduce_coalesced", "broadcast", "reduce"):
            return first, first
        second = [self.view(Tensor(n)) for n in trace.tensors_of(*event.args[1:2])]
        return second, first

    def meet(
        self,
        event: Event,
        name: str,
        group: Sequence[int],
        sources: Sequence[torch.Tensor],
        targets: Sequence[torch.Tensor],
    ) -> Generator[None, None, None]:
        """Wait until all of a group have come to their next collective; then write what it gives
        this rank."""
        number = self.issued.get(tuple(group), 0)
        self.issued[tuple(group)] = number + 1
        meeting = self.world.meetings.setdefault((tuple(group), number), Meeting())
        meeting.brought[self.trace.rank] = [s.clone() for s in sources]
        self.world.moved = True
        while len(meeting.brought) < len(group):
            yield
        self.world.moved = True
        members = [meeting.brought[r] for r in group]
        own = group.index(self.trace.rank)
        results = joined(name, event, members, own)
        for target, value in zip(targets, results, strict=True):
            target.copy_(viewed(value, target))

    def message(self, event: Event, name: str) -> Generator[None, None, None]:
        """A send, which does not wait, or a receive, which yields until the message is there."""
        ranks = group_of(event).ranks
        (peer,) = [a for a in event.args[:3] if isinstance(a, int) and not isinstance(a, bool)][:1]
        other = ranks[peer]
        for number in trace.tensors_of(event.args[0]):
            tensor = self.view(Tensor(number), sent=True)
            if name == "send":
                self.world.mail.setdefault((self.trace.rank, other), []).append(tensor.clone())
                self.world.moved = True
                continue
            number = self.expected.get(other, 0)
            self.expected[other] = number + 1
            self.posted.setdefault(event.work, []).append((other, number, tensor))
        if name == "recv" and not event.work:
            yield from self.arrived(0)

    def arrived(self, work: Arg) -> Generator[None, None, None]:
        """Wait for what was posted under a handle."""
        for other, number, tensor in self.posted.pop(work if isinstance(work, int) else 0, ()):
            box = self.world.mail.setdefault((other, self.trace.rank), [])
            while len(box) <= number:
                yield
            tensor.copy_(viewed(box[number], tensor))
            self.world.moved = True

    def fsdp(self, event: Event) -> None:
        """FSDP2's copies into and out of flat buffers, as torch's own implementation has them."""
        name = event.name.split(".")[1]
        if name == "all_gather_copy_in":
            inputs, output, _, count, rank = (self.value(a) for a in event.args)
            torch.cat([x.flatten() for x in inputs], out=output.narrow(0, count * rank, count))
        elif name == "split_with_sizes_copy":
            source, sizes = self.value(event.args[0]), self.value(event.args[1])
            dim = self.value(event.args[2] if len(event.args) > 2 else event.kwargs.get("dim", 0))
            for target, part in zip(
                self.value(event.kwargs["out"]), source.split(sizes, dim), strict=True
            ):
                target.copy_(part)
        elif name == "chunk_cat":
            tensors, dim, count = (self.value(a) for a in event.args)
            torch._chunk_cat(tensors, dim, count, out=self.value(event.kwargs["out"]))
        else:
            raise TooLarge(f"{event.name} is not replayed")


def boxed(full: torch.Tensor, box: Box) -> torch.Tensor:
    """The part of a full tensor that a box names.

    Example: the box at (8, 0) of shape (8, 8) of ``up.weight`` [16, 8] is its rows 8 to 15.
    """
    for dim, (start, size) in enumerate(zip(box.offset, box.shape, strict=True)):
        full = full.narrow(dim, start, size)
    return full


def replay(
    traces: Sequence[Trace],
    values: Mapping[str, torch.Tensor],
    steps: Sequence[Functional],
    parts: Sequence[draws.Parts],
) -> list[Results]:
    """What every rank compares, computed by PyTorch from ``values``: full parameters by name, and
    batch tensors as ``batch NAME``; ``steps``: for each rank the step without memory, which says
    what parameters it makes itself, and what was copied of others; ``parts``: what each rank draws.
    Raises `TooLarge` for what cannot be replayed, and `InvalidInput` where ranks wait for each
    other for ever.

    Example: of two ranks of an MLP, the loss and four gradients of each.
    """

    def inputs(kind: str, name: str, shape: Sequence[int], dtype: str) -> torch.Tensor:
        if kind != "batch":
            return values[name]
        # What no operator of the plan reads is any number.
        unread = torch.zeros(tuple(shape))
        return values.get(f"batch {name}", unread)

    world = World()
    given = zip(traces, steps, parts, strict=True)
    ranks = [Rank(t, world, inputs, own, drawn) for t, own, drawn in given]
    running: dict[int, Iterator[None]] = {i: r.run() for i, r in enumerate(ranks)}
    with torch.no_grad():
        while running:
            world.moved = False
            for i in list(running):
                if next(running[i], StopIteration) is StopIteration:
                    del running[i]
                    world.moved = True
            if not world.moved:
                raise InvalidInput(f"ranks {sorted(running)} wait for each other")
    return [r.results for r in ranks]

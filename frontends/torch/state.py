"""Where the replay of a trace is: its memory, and what was issued and not waited for."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import NamedTuple

from shardproof.engine.errors import InvalidInput
from shardproof.engine.findings import Finding
from shardproof.frontends.torch import geometry, trace
from shardproof.frontends.torch.memory import STILL, Functional, Memory
from shardproof.frontends.torch.trace import Arg, Event, Items, StridedTensor, Tensor, Trace
from shardproof.frontends.torch.ways import READING, Reading

#: What waits for the result of a functional collective.
WAIT_TENSOR = "_c10d_functional.wait_tensor.default"
#: Types of elements that have gradients.
FLOATING = ("float", "bfloat", "complex")


class Pending(NamedTuple):
    """An asynchronous operator before its wait, with what it writes and reads.

    Example: ``dist.all_reduce(x, async_op=True)`` before its wait, with ``x`` as ``written``.
    """

    event: Event
    written: list[StridedTensor]
    read: list[StridedTensor]


def meet(a: StridedTensor, b: StridedTensor) -> bool:
    """Whether two tensors share memory.

    Example: ``x[:2]`` and ``x[1:]`` do, ``x[:2]`` and ``x[2:]`` do not, nor ``x[1]`` and
    ``x[::2]``.
    """
    places = ((h.offset, h.shape, h.strides) for h in (a, b))
    return a.storage == b.storage and geometry.meet(*places)


class State:
    """The state of a replay, over `Memory`; collectives and operators change it.

    Example: between ``work = dist.all_reduce(x, async_op=True)`` and ``work.wait()``, ``x + 1`` is
    a finding.
    """

    def __init__(
        self,
        recorded: Trace,
        reading: Reading = READING,
    ) -> None:
        self.trace = recorded
        self.out = Functional(recorded, reading)
        #: Tensors of the event at hand that no gradient goes to.
        self.still: frozenset[int] = frozenset()
        self.memory = Memory(self.out)
        #: Where inputs lay when the step started, by storage.
        self.laid: dict[int, list[StridedTensor]] = {}
        self.pending: dict[int, Pending] = {}
        #: What wrote the operand of a functional collective before its wait, by its key there.
        self.spoiled: dict[int, Event] = {}
        #: Receives that were posted, by their handle: from whom, and where to.
        self.posted: dict[int, list[tuple[int, StridedTensor]]] = {}
        #: What has arrived and is not waited for yet, by the handle.
        self.arrived: dict[int, list[int]] = {}

    def location(self, arg: Arg) -> StridedTensor:
        """Where a tensor argument lies: storage, offset, shape and strides."""
        if not isinstance(arg, Tensor):
            raise InvalidInput(f"expected a tensor, found {arg!r}"[:200])
        return self.trace.tensors[arg.number]

    def read(self, arg: Arg) -> int:
        """The value that the memory of a tensor holds now."""
        return self.memory.read(self.location(arg))

    # -- time -------------------------------------------------------------------------------

    def issued(self, event: Event, written: Sequence[int], read: Sequence[int]) -> None:
        """An asynchronous operator was issued: until its wait, what it writes must not be touched,
        and what it reads must not be written."""
        if event.work:
            tensors = self.trace.tensors
            self.pending[event.work] = Pending(
                event, [tensors[n] for n in written], [tensors[n] for n in read]
            )

    def promised(self, event: Event, result: int) -> None:
        """A functional collective was issued, whose result must not be touched until
        ``wait_tensor`` is asked for it, or for another tensor of its memory.  Its key is none of a
        handle.  All but those that copy their operands first read these until then."""
        copies = "all_reduce" in event.name or "broadcast" in event.name
        read = [] if copies else [self.trace.tensors[n] for n in trace.tensors_of(*event.args)]
        self.pending[-1 - result] = Pending(event, [self.trace.tensors[result]], read)

    def kept(self, result: int) -> None:
        """``wait_tensor`` was asked for the memory of a tensor; where what it is made of was
        written before, that is found now: a result that nobody asks for is none."""
        storage = self.trace.tensors[result].storage
        for key, pending in list(self.pending.items()):
            if key < 0 and pending.written[0].storage == storage:
                del self.pending[key]
                if key in self.spoiled:
                    self.too_early(self.spoiled[key], pending.event, early=False)

    def waited(self, work: int) -> None:
        """A handle was waited for: what was received is there.

        Messages of a sender arrive in the order in which their receives were posted, so those that
        were posted before this one have arrived too; nobody sees them before their own wait.
        """
        self.pending.pop(work, None)
        own = self.posted.get(work, [])
        self.arrive({peer for peer, _ in own}, work)
        for (_, tensor), value in zip(own, self.arrived.pop(work, []), strict=True):
            self.memory.write(tensor, value)
        self.posted.pop(work, None)

    def arrive(self, senders: Set[int], last: int | None = None) -> None:
        """What these ranks send to receives that were posted so far, up to that of the handle
        ``last``, has arrived, in the order in which they were posted."""
        for handle, receives in self.posted.items():
            if handle not in self.arrived and any(peer in senders for peer, _ in receives):
                self.arrived[handle] = [
                    self.memory.emit("comm.recv", (peer,), tensor.shape, tensor.dtype)
                    for peer, tensor in receives
                ]
            if handle == last:
                break

    def in_time(self, event: Event) -> None:
        """Append a finding for what an event touches too early."""
        if event.name == WAIT_TENSOR:
            self.kept(*trace.tensors_of(*event.args))
        if not self.pending or event.name == WAIT_TENSOR or self.looks(event):
            return
        touched = list(trace.tensors_of(*event.args, *event.kwargs.values()))
        written = set(event.writes)
        if event.name.startswith("c10d.") and event.name != "c10d.send.default":
            written.update(trace.tensors_of(*event.args[:1]))
        for key, pending in list(self.pending.items()):
            for number in touched:
                tensor = self.trace.tensors[number]
                early = any(meet(tensor, other) for other in pending.written)
                spoiled = number in written and any(meet(tensor, o) for o in pending.read)
                if spoiled and key < 0:
                    self.spoiled.setdefault(key, event)
                elif (early or spoiled) and pending.event is not event:
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
        """A finding: memory is read or written while a collective on it is under way."""
        sources = self.trace.sources
        what = "reads or writes the result of" if early else "writes what is still read by"
        issued = pending.name.split(".")[1].strip("_")
        self.out.findings.append(
            Finding(
                "read before wait",
                f"{event.name} at {sources[event.source]} {what} {issued}, issued at "
                f"{sources[pending.source]}, before its wait",
                operator=event.name,
                layer=self.trace.modules[event.module],
                source=sources[event.source],
                ranks=(self.trace.rank,),
            )
        )

    def write(self, arg: Arg, value: int) -> None:
        """Write a value to the memory of a tensor."""
        self.memory.write(self.location(arg), value)

    def values(self, arg: Arg) -> Arg:
        """An argument with the numbers of values in place of those of tensors."""
        if isinstance(arg, Tensor):
            value = self.read(arg)
            return Tensor(self.stilled(value) if arg.number in self.still else value)
        if isinstance(arg, Items):
            return Items(tuple(self.values(a) for a in arg.items))
        return arg

    def stilled(self, value: int) -> int:
        """A value as an operand to which no gradient goes."""
        shape, dtype = self.out.values[value]
        if not dtype.startswith(FLOATING):
            return value
        return self.memory.emit(STILL, (Tensor(value),), shape, dtype)

    def fresh(self, tensor: StridedTensor) -> int:
        """A value of the shape and type of a tensor, with nothing written to memory."""
        return self.memory.value(tensor.shape, tensor.dtype)

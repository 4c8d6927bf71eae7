"""Tensors of one collective, or message, that ranks view unlike: [4, 4] on one, [16] on another.

Backends are given where a tensor begins and how many elements it has, so every view of the same
memory is as good.  Collectives are read in one shape; where ranks have several with as many
elements, all take the one with the most dimensions, which says most of the value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod
from typing import TypeAlias

import msgspec

from shardproof.frontends.torch import geometry
from shardproof.frontends.torch.communicators import Meeting, meeting_of, name_of
from shardproof.frontends.torch.in_memory import in_memory_order
from shardproof.frontends.torch.trace import (
    Arg,
    Event,
    Items,
    StridedTensor,
    Tensor,
    Trace,
    tensors_of,
)

Shape: TypeAlias = tuple[int, ...]
#: Shapes in place of those that tensors have, by the event that reads or writes them.
Views: TypeAlias = dict[tuple[int, int], Shape]

#: What takes a tensor as it lies in memory, whatever the order of its dimensions; of a reduction of
#: several tensors at once gloo does not: it copies them in the order of their dimensions.
_AS_IT_LIES = frozenset({"allreduce", "broadcast", "reduce", "send", "recv"})
_MESSAGE = frozenset({"send", "recv"})


def viewed_alike(traces: Sequence[Trace]) -> list[Trace]:
    """The steps of ranks, with one shape for what they exchange; those that have it already as
    they are.

    Example: where rank 0 sends [16] and rank 1 receives it into [4, 4], rank 0 sends [4, 4].
    """
    recorded = {trace.rank: trace for trace in traces}
    views: dict[int, Views] = {rank: {} for rank in recorded}
    for events in _met(traces):
        for column in _columns(recorded, events):
            shapes = [shape for _, _, shape in column]
            best = max(shapes, key=len)
            if len(set(shapes)) < 2 or {prod(shape) for shape in shapes} != {prod(best)}:
                continue
            for rank, tensor, shape in column:
                if shape != best:
                    views[rank][events[rank], tensor] = best
    return [_with(trace, views[trace.rank]) for trace in traces]


def _met(traces: Sequence[Trace]) -> list[Mapping[int, int]]:
    """Of everything that several ranks issue together the number of its event, by rank."""
    met: dict[Meeting, list[dict[int, int]]] = {}
    for trace in traces:
        issued: Counter[Meeting] = Counter()
        for number, event in enumerate(trace.events):
            meeting = meeting_of(trace.rank, event)
            if meeting is None:
                continue
            known = met.setdefault(meeting, [])
            if issued[meeting] == len(known):
                known.append({})
            known[issued[meeting]][trace.rank] = number
            issued[meeting] += 1
    return [events for known in met.values() for events in known if len(events) > 1]


def _columns(
    recorded: Mapping[int, Trace], events: Mapping[int, int]
) -> list[list[tuple[int, int, Shape]]]:
    """The tensors that stand in one place of an event, each by its rank, its number and the shape
    of its memory; none where ranks do unlike things, or a tensor has gaps."""
    issued = {rank: recorded[rank].events[number] for rank, number in events.items()}
    names = {name_of(event) for event in issued.values()}
    if (len(names) > 1 and names != _MESSAGE) or any(map(_divided, issued.values())):
        return []
    places: dict[tuple[int, int, int], list[tuple[int, int, Shape]]] = {}
    for rank, event in issued.items():
        for place, argument in enumerate(event.args):
            numbers = list(tensors_of(argument))
            for item, number in enumerate(numbers):
                shape = _shape(recorded[rank].tensors[number], name_of(event))
                if shape is None:
                    return []
                key = place, item, len(numbers)
                places.setdefault(key, []).append((rank, number, shape))
    return list(places.values())


def _divided(event: Event) -> bool:
    """Whether an all-to-all says how many rows go where: they are rows of its own shape."""
    numbers = (a.items for a in event.args if isinstance(a, Items))
    return any(isinstance(x, int) for items in numbers for x in items)


def _shape(tensor: StridedTensor, name: str) -> Shape | None:
    """The shape of the memory that a collective takes; None where it takes no memory in order."""
    lying = in_memory_order(tensor) if name in _AS_IT_LIES else tensor
    return lying.shape if geometry.in_order(lying.shape, lying.strides) else None


def _with(trace: Trace, views: Views) -> Trace:
    """A step with other views of tensors in some of its events."""
    if not views:
        return trace
    tensors, events = list(trace.tensors), list(trace.events)
    for (number, tensor), shape in views.items():
        at = tensors[tensor]
        strides = geometry.contiguous(shape)
        new = Tensor(len(tensors))
        tensors.append(StridedTensor(at.storage, at.offset, shape, strides, at.dtype))
        args = tuple(_exchanged(a, tensor, new) for a in events[number].args)
        events[number] = msgspec.structs.replace(events[number], args=args)
    return msgspec.structs.replace(trace, tensors=tuple(tensors), events=tuple(events))


def _exchanged(argument: Arg, tensor: int, new: Tensor) -> Arg:
    if isinstance(argument, Items):
        return Items(tuple(_exchanged(a, tensor, new) for a in argument.items))
    if isinstance(argument, Tensor) and argument.number == tensor:
        return new
    return argument

"""All-to-alls: of equal parts they are collectives, of parts of different sizes messages.

How large the parts are that other ranks exchange, no rank knows; that it sends so many rows to one
and gets so many of another it does. So a rank's all-to-all of unlike parts is one message to each
rank that it sends something to, and one from each that sends it something. Whether a group has
such an all-to-all, one rank cannot tell either (its own parts may be equal): all ranks are looked
at (`parted`), and those of the group are messages on every rank then.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, product
from typing import NamedTuple, TypeAlias

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.torch.collectives import Handler, group_of, listed, results, rows_of
from shardproof.frontends.torch.in_memory import apart, contiguous
from shardproof.frontends.torch.state import State
from shardproof.frontends.torch.trace import (
    Arg,
    Event,
    Items,
    Ranks,
    Tensor,
    Trace,
    tensors_of,
)
from shardproof.frontends.torch.ways import Group

Shape: TypeAlias = tuple[int, ...]
#: In place of a value: what has no entries is no message.
NOTHING = -1

#: Into a tensor, into a list of tensors, and as a functional collective.
INTO, LISTS, RESULT = (
    "c10d.alltoall_base_.default",
    "c10d.alltoall_.default",
    "_c10d_functional.all_to_all_single.default",
)


class Parts(NamedTuple):
    """Shapes of what an all-to-all sends to each rank of the group, and of what comes from each.

    Example: ``Parts(((1, 8), (3, 8)), ((1, 8), (2, 8)))`` on rank 0 of two: it keeps one row, sends
    three and gets two.
    """

    sent: tuple[Shape, ...]
    received: tuple[Shape, ...]

    @property
    def equal(self) -> bool:
        """Whether all of them are as large."""
        return len({*self.sent, *self.received}) == 1


def parted(traces: Sequence[Trace]) -> frozenset[Group]:
    """Groups in which a rank issues an all-to-all of parts of different sizes.

    Example: {(0, 1)}, where rank 0 calls ``all_to_all_single(out, x, [1, 2], [1, 3])``.
    """
    return frozenset(
        group.ranks
        for trace in traces
        for event in trace.events
        if event.name in HANDLERS
        for group, parts in [_parts(trace, event)]
        if trace.rank in group.ranks and not parts.equal
    )


def parted_in(trace: Trace, event: Event, groups: frozenset[Group]) -> Group:
    """The ranks of an event that is an all-to-all of one of these groups; no ranks for others.

    Example: (0, 1) of ``all_to_all_single(out, x, [1, 2], [1, 3])`` among two ranks.
    """
    if event.name not in HANDLERS or not groups:
        return ()
    ranks = group_of(event).ranks
    return ranks if ranks in groups and trace.rank in ranks else ()


def _parts(trace: Trace, event: Event) -> tuple[Ranks, Parts]:
    """The group of an all-to-all, and its parts."""
    group = group_of(event)
    count = len(group.ranks)
    if event.name == LISTS:
        received, sent = (
            tuple(trace.tensors[n].shape for n in tensors_of(a)) for a in event.args[:2]
        )
    else:
        into = event.args[0] if event.name == INTO else event.outputs[0]
        given = event.args[1] if event.name == INTO else event.args[0]
        splits = [a for a in event.args if isinstance(a, Items)]
        if len(splits) != 2 or not (splits[0].items or splits[1].items):
            return group, Parts(*(_rows(trace, given, Items(()), count),) * 2)
        received = _rows(trace, into, splits[0], count)
        sent = _rows(trace, given, splits[1], count)
    if {len(sent), len(received)} != {count}:
        raise InvalidInput(f"an all-to-all of {len(sent)} parts among {count} ranks")
    return group, Parts(sent, received)


def _rows(trace: Trace, tensor: Arg, splits: Items, count: int) -> tuple[Shape, ...]:
    """How the rows of a tensor are divided: as ``splits`` say, or into parts alike."""
    (number,) = tensors_of(tensor)
    rows, *rest = rows_of(trace.tensors[number].shape)
    sizes = tuple(n for n in splits.items if isinstance(n, int)) or (rows // count,) * count
    if sum(sizes) != rows or min(sizes) < 0:
        raise InvalidInput(f"an all-to-all of {rows} rows in parts of {list(sizes)}")
    return tuple((size, *rest) for size in sizes)


# -- of equal parts, and as messages ---------------------------------------------------------------


def _exchanged(replay: State, event: Event, value: int) -> int:
    """Each rank's part of every other rank's tensor, along the first dimension."""
    group, parts = _parts(replay.trace, event)
    shape, dtype = replay.out.values[value]
    if group.ranks not in replay.out.reading.parted:
        return replay.memory.emit("comm.all_to_all", (Tensor(value), group), shape, dtype)
    starts = accumulate((rows for rows, *_ in parts.sent), initial=0)
    sent = [
        NOTHING if 0 in part else replay.memory.slice(value, 0, start, part[0])
        for start, part in zip(starts, parts.sent, strict=False)
    ]
    received = [v for v in _messages(replay, group, sent, parts.received, dtype) if v != NOTHING]
    if not received:
        return replay.memory.slice(value, 0, 0, 0)
    return replay.memory.concat(received, 0)


def _messages(
    replay: State, group: Ranks, sent: Sequence[int], shapes: Sequence[Shape], dtype: str
) -> list[int]:
    """What comes from each rank of a group, of these shapes, where ``sent`` goes to each; of what
    has no entries there is no message.  Receives are posted first, so nobody waits for ever."""
    own = replay.trace.rank
    others = [i for i, rank in enumerate(group.ranks) if rank != own]
    senders = [i for i in others if 0 not in shapes[i]]
    replay.arrive({group.ranks[i] for i in senders})
    for i in senders:
        replay.memory.emits("comm.post_recv", (group.ranks[i],), ())
    for i in others:
        if sent[i] != NOTHING:
            replay.memory.emits("comm.send", (Tensor(sent[i]), group.ranks[i]), ())
    received = [NOTHING if i in others else value for i, value in enumerate(sent)]
    for i in senders:
        peer = (group.ranks[i],)
        received[i] = replay.memory.emit("comm.recv", peer, shapes[i], dtype)
    return received


def _into(replay: State, event: Event) -> None:
    target, own = (contiguous(replay.location(arg)) for arg in event.args[:2])
    apart(target, own)
    received = _exchanged(replay, event, replay.memory.read(own))
    replay.write(event.args[0], replay.memory.reshape(received, target.shape))
    replay.issued(event, [*tensors_of(event.args[0])], [*tensors_of(event.args[1])])


def _lists(replay: State, event: Event) -> None:
    """Lists of tensors: one to every rank, and one from it."""
    group, parts = _parts(replay.trace, event)
    targets, sources = (listed(a) for a in event.args[:2])
    for target, source in product(targets, sources):
        apart(replay.location(target), replay.location(source))
    if group.ranks in replay.out.reading.parted:
        sent = [
            NOTHING if 0 in shape else replay.read(s)
            for s, shape in zip(sources, parts.sent, strict=True)
        ]
        dtype = replay.location(targets[0]).dtype
        received = _messages(replay, group, sent, parts.received, dtype)
    else:
        rows = rows_of(parts.received[0])
        given = [replay.memory.reshape(replay.read(s), rows) for s in sources]
        whole = replay.memory.concat(given, 0)
        shape, dtype = replay.out.values[whole]
        joined = replay.memory.emit("comm.all_to_all", (Tensor(whole), group), shape, dtype)
        received = [
            replay.memory.slice(joined, 0, i * rows[0], rows[0]) for i in range(len(targets))
        ]
    for target, shape, value in zip(targets, parts.received, received, strict=True):
        if value != NOTHING:
            replay.write(target, replay.memory.reshape(value, shape))
    replay.issued(event, [*tensors_of(event.args[0])], [*tensors_of(event.args[1])])


def _result(replay: State, event: Event) -> None:
    results(replay, event, [_exchanged(replay, event, replay.read(event.args[0]))])


HANDLERS: dict[str, Handler] = {INTO: _into, LISTS: _lists, RESULT: _result}

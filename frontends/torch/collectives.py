"""Collectives and messages of c10d as operators over values.

The schemas of c10d do not say what an operator writes; this table does.  Handles of asynchronous
operators are kept: reading what one writes, or writing what it reads, before its ``wait`` is a
finding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.torch import divisions, geometry
from shardproof.frontends.torch.buffers import gather_pieces, scatter_pieces
from shardproof.frontends.torch.in_memory import apart, contiguous, copied, in_memory
from shardproof.frontends.torch.memory import UNDEFINED
from shardproof.frontends.torch.state import State
from shardproof.frontends.torch.trace import (
    Arg,
    Event,
    Items,
    Named,
    Ranks,
    StridedTensor,
    Tensor,
    tensors_of,
)

Handler = Callable[["State", Event], None]

HANDLERS: dict[str, Handler] = {}


def handles(*names: str) -> Callable[[Handler], Handler]:
    """Decorator: the function replays the collectives ``names``.

    Example: ``@handles("c10d.alltoall_.default")`` above ``_alltoall``.
    """

    def register(handler: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = handler
        return handler

    return register


# -- arguments ---------------------------------------------------------------------------------


def group_of(event: Event) -> Ranks:
    """The process group of an event.

    Example: of ``_c10d_functional.all_reduce(x, "sum", group)`` with the ranks 0 and 1 it is
    ``Ranks((0, 1))``; without a group it is refused.
    """
    for arg in (*event.args, *event.kwargs.values()):
        if isinstance(arg, Ranks):
            if not arg.ranks or len(set(arg.ranks)) < len(arg.ranks):
                raise InvalidInput(f"a process group of ranks {list(arg.ranks)}")
            return arg
    raise InvalidInput("a collective without its process group")


def reduction(event: Event) -> str:
    """How values are reduced: an object of c10d, or a name of the functional form.

    Example: "avg" of ``_c10d_functional.all_reduce(x, "avg", group)``; "sum" where nothing says it.
    """
    for arg in event.args:
        if isinstance(arg, Named) and arg.kind == "reduce":
            return arg.text
    return next((arg for arg in event.args if isinstance(arg, str)), "sum")


def listed(arg: Arg) -> list[Arg]:
    """The items of a list argument; a single argument as a list of one.

    Example: ``Items((a, b))`` is [a, b], a tensor ``a`` is [a].
    """
    return list(arg.items) if isinstance(arg, Items) else [arg]


# -- shapes ------------------------------------------------------------------------------------


def rows_of(shape: Sequence[int]) -> tuple[int, ...]:
    """A shape as that of a tensor that can be divided by its first dimension.

    Example: [] is [1], and [4, 8] stays.
    """
    return tuple(shape) or (1,)


def _reduced(replay: State, value: int, group: Ranks, op: str) -> int:
    tensor = replay.out.values[value]
    return replay.memory.emit(
        "comm.all_reduce", (Tensor(value), group, op), tensor.shape, tensor.dtype
    )


def gathered(replay: State, value: int, group: Ranks) -> int:
    """All ranks' values, one after the other along the first dimension.

    Example: [8, 8] of each of two ranks is [16, 8], by ``comm.all_gather`` along dimension 0.
    """
    tensor = replay.out.values[value]
    shape = rows_of(tensor.shape)
    value = replay.memory.reshape(value, shape)
    full = (shape[0] * len(group.ranks), *shape[1:])
    return replay.memory.emit("comm.all_gather", (Tensor(value), group, 0), full, tensor.dtype)


def scattered(replay: State, value: int, group: Ranks, op: str) -> int:
    """This rank's part of the sum along the first dimension.

    Example: [16, 8] over two ranks is [8, 8]; [15, 8] is refused.
    """
    tensor = replay.out.values[value]
    if not tensor.shape or tensor.shape[0] % len(group.ranks):
        raise InvalidInput(
            f"a reduce-scatter of {list(tensor.shape)} over {len(group.ranks)} ranks"
        )
    part = (tensor.shape[0] // len(group.ranks), *tensor.shape[1:])
    args = (Tensor(value), group, op, 0)
    return replay.memory.emit("comm.reduce_scatter", args, part, tensor.dtype)


def _divided(replay: State, value: int, part: Sequence[int], count: int) -> int:
    """A value of ``count`` parts of shape ``part``, one after the other along the first."""
    rows = rows_of(part)
    full = (rows[0] * count, *rows[1:])
    if prod(full) != prod(replay.out.values[value].shape):
        raise InvalidInput(
            f"{count} parts of {list(part)} in {list(replay.out.values[value].shape)}"
        )
    return replay.memory.reshape(value, full)


# -- c10d, in place ----------------------------------------------------------------------------


@handles("c10d.allreduce_.default", "c10d.allreduce_coalesced_.default")
def _allreduce(replay: State, event: Event) -> None:
    group, op = group_of(event), reduction(event)
    for tensor in listed(event.args[0]):
        own = replay.location(tensor)
        for part in replay.memory.parts(own if "coalesced" in event.name else in_memory(own)):
            replay.memory.write(part, _reduced(replay, replay.memory.read(part), group, op))
    replay.issued(event, [*tensors_of(event.args[0])], [])


@handles("c10d.reduce_.default")
def _reduce(replay: State, event: Event) -> None:
    """The sum is at the root; what other ranks have afterwards is undefined."""
    group, op = group_of(event), reduction(event)
    own = _member(group, event) == replay.trace.rank
    for tensor in map(in_memory, map(replay.location, listed(event.args[0]))):
        value = _reduced(replay, replay.memory.read(tensor), group, op)
        replay.memory.write(tensor, value if own else _undefined(replay, tensor))
    replay.issued(event, [*tensors_of(event.args[0])], [])


@handles("c10d.gather_.default")
def _gather(replay: State, event: Event) -> None:
    """All ranks' tensors, in the list of the root."""
    group = group_of(event)
    own = _member(group, event) == replay.trace.rank
    (source,) = listed(event.args[1])
    rows = rows_of(replay.location(source).shape)
    joined = gathered(replay, replay.read(source), group)
    targets = [t for items in listed(event.args[0]) for t in listed(items)] if own else []
    for i, target in enumerate(targets):
        part = replay.memory.slice(joined, 0, i * rows[0], rows[0])
        replay.write(target, replay.memory.reshape(part, replay.location(target).shape))
    replay.issued(event, [*tensors_of(*targets)], [*tensors_of(source)])


def _member(group: Ranks, event: Event) -> int:
    """The rank of the root of a collective, which names it by its number in the group.

    Example: member 1 of a group of ranks 2 and 3 is rank 3.
    """
    numbers = [a for a in event.args if isinstance(a, int) and not isinstance(a, bool)]
    if not numbers or not 0 <= numbers[0] < len(group.ranks):
        raise InvalidInput(f"root {numbers[:1]} of {len(group.ranks)} ranks")
    return group.ranks[numbers[0]]


def _place_in(replay: State, group: Ranks) -> int | None:
    """The number of this rank in a group (None: it is no member).

    Example: rank 3 is member 1 of a group of ranks 2 and 3.
    """
    rank = replay.trace.rank
    return group.ranks.index(rank) if rank in group.ranks else None


def _undefined(replay: State, tensor: StridedTensor) -> int:
    return replay.memory.emit(UNDEFINED, (), tensor.shape, tensor.dtype)


@handles("c10d._allgather_base_.default")
def _allgather_base(replay: State, event: Event) -> None:
    _gather_into(replay, event.args[0], event.args[1], group_of(event))
    replay.issued(event, [*tensors_of(event.args[0])], [*tensors_of(event.args[1])])


def _gather_into(replay: State, target: Arg, source: Arg, group: Ranks) -> None:
    """What was copied into one flat message is gathered piece by piece."""
    into, own = replay.location(target), replay.location(source)
    count = len(group.ranks)
    if prod(into.shape) != prod(own.shape) * count:
        raise InvalidInput(f"an all-gather of {list(own.shape)} into {list(into.shape)}")
    apart(into, own, _place_in(replay, group))
    parts, values = _alike(replay, own, group)
    if gather_pieces(replay, into, own, group):
        return
    if len(parts) < 2 or geometry.contiguous(into.shape) != into.strides:
        gathered_ = gathered(replay, replay.read(source), group)
        replay.write(target, replay.memory.reshape(gathered_, into.shape))
        return
    start, stride = into.offset, prod(own.shape)
    columns: dict[StridedTensor, int] = {}
    for part, value in zip(parts, values, strict=True):
        rows = rows_of(replay.out.values[value].shape)
        gathered_ = gathered(replay, value, group)
        for i in range(count):
            piece = replay.memory.slice(gathered_, 0, i * rows[0], rows[0])
            at, strides = start + i * stride, geometry.contiguous(rows)
            replay.memory.write(StridedTensor(into.storage, at, rows, strides, into.dtype), piece)
        column = StridedTensor(into.storage, start, (count, prod(rows)), (stride, 1), into.dtype)
        columns[column] = replay.memory.reshape(gathered_, column.shape)
        start += prod(part.shape)
    # FSDP copies a piece of all ranks out at once: what has just been taken apart.
    for column, value in columns.items():
        replay.memory.assume(column, value)


def _alike(
    replay: State, own: StridedTensor, group: Ranks
) -> tuple[list[StridedTensor], list[int]]:
    """The pieces of a flat message, as all ranks divide theirs if they agreed on that, and what is
    there."""
    parts = replay.memory.parts(own)
    values = [replay.memory.structured(replay.memory.read(part)) for part in parts]
    shapes = tuple(replay.out.values[value].shape for value in values)
    sent = replay.out.divided.setdefault(group.ranks, [])
    agreed = replay.out.reading.agreed.get(group.ranks, ())
    sent.append(shapes)
    if len(agreed) < len(sent) or agreed[len(sent) - 1] == shapes:
        return parts, values
    parts = divisions.laid(own, agreed[len(sent) - 1])
    return parts, [replay.memory.structured(divisions.rows(replay.memory, p)) for p in parts]


@handles("c10d.allgather_into_tensor_coalesced_.default")
def _allgather_coalesced(replay: State, event: Event) -> None:
    for target, source in zip(listed(event.args[0]), listed(event.args[1]), strict=True):
        _gather_into(replay, target, source, group_of(event))
    replay.issued(event, [*tensors_of(event.args[0])], [*tensors_of(event.args[1])])


@handles("c10d.allgather_.default")
def _allgather(replay: State, event: Event) -> None:
    group = group_of(event)
    for targets, source in zip(listed(event.args[0]), listed(event.args[1]), strict=True):
        value = replay.read(source)
        rows = rows_of(replay.out.values[value].shape)
        joined = gathered(replay, value, group)
        for i, target in enumerate(listed(targets)):
            part = replay.memory.slice(joined, 0, i * rows[0], rows[0])
            replay.write(target, replay.memory.reshape(part, replay.location(target).shape))
    replay.issued(event, [*tensors_of(event.args[0])], [*tensors_of(event.args[1])])


@handles("c10d._reduce_scatter_base_.default")
def _reduce_scatter_base(replay: State, event: Event) -> None:
    _scatter_into(replay, event, event.args[0], event.args[1])
    replay.issued(event, [*tensors_of(event.args[0])], [*tensors_of(event.args[1])])


@handles("c10d.reduce_scatter_tensor_coalesced_.default")
def _reduce_scatter_coalesced(replay: State, event: Event) -> None:
    for target, source in zip(listed(event.args[0]), listed(event.args[1]), strict=True):
        _scatter_into(replay, event, target, source)
    replay.issued(event, [*tensors_of(event.args[0])], [*tensors_of(event.args[1])])


def _scatter_into(replay: State, event: Event, target: Arg, source: Arg) -> None:
    """What was copied into one flat message is reduced piece by piece."""
    group, into, own = group_of(event), replay.location(target), replay.location(source)
    apart(into, own, _place_in(replay, group))
    count = len(group.ranks)
    pieces = divisions.blocks(replay.memory, own, count)
    parts = replay.memory.parts(own)
    tensors = replay.out.reading.messages.shaped and replay.trace.rank in group.ranks
    if len(pieces) < 2 <= len(parts) and tensors and len(into.shape) == 1:
        scatter_pieces(replay, into, parts, group, reduction(event))
        return
    if len(pieces) < 2 or geometry.contiguous(into.shape) != into.strides:
        whole = _divided(replay, replay.read(source), into.shape, count)
        reduced = scattered(replay, whole, group, reduction(event))
        replay.write(target, replay.memory.reshape(reduced, into.shape))
        return
    wholes = [
        replay.memory.concat([divisions.rows(replay.memory, p) for p in column], 0)
        for column in pieces
    ]
    at = into.offset
    for column, whole in zip(pieces, wholes, strict=True):
        value = replay.memory.structured(whole)
        if replay.out.values[value].shape[0] % count:
            value = whole
        reduced = scattered(replay, value, group, reduction(event))
        shape = replay.out.values[reduced].shape
        strides = geometry.contiguous(shape)
        replay.memory.write(StridedTensor(into.storage, at, shape, strides, into.dtype), reduced)
        at += prod(column[0].shape)


def unknown(replay: State, event: Event) -> None:
    """A collective without a rule: what it may write has no meaning from here on.

    Example: after ``c10d.recv_any_source_`` into ``x``, ``x`` is what ``comm.recv_any_source_``
    gives, which no rule lowers.
    """
    for number in tensors_of(*event.args):
        tensor = replay.trace.tensors[number]
        name = event.name.replace("c10d", "comm", 1)
        replay.memory.write(tensor, replay.memory.emit(name, (), tensor.shape, tensor.dtype))
    for number in tensors_of(*event.outputs):
        tensor = replay.trace.tensors[number]
        replay.memory.write(tensor, replay.memory.emit(event.name, (), tensor.shape, tensor.dtype))


@handles("c10d.scatter_.default")
def _scatter(replay: State, event: Event) -> None:
    """The root's tensors, one for each rank: its list is broadcast, and each takes its own."""
    group = group_of(event)
    numbers = [a for a in event.args if isinstance(a, int) and not isinstance(a, bool)]
    root = numbers[0] if numbers else 0
    if not 0 <= root < len(group.ranks) or replay.trace.rank not in group.ranks:
        raise InvalidInput(f"a scatter from member {root} of {len(group.ranks)}")
    own = group.ranks[root] == replay.trace.rank
    (target,) = listed(event.args[0])
    tensor = contiguous(replay.location(target))
    rows = rows_of(tensor.shape)
    full = (rows[0] * len(group.ranks), *rows[1:])
    whole: Arg = None
    if own:
        (sources,) = listed(event.args[1])
        given = [contiguous(replay.location(s)) for s in listed(sources)]
        parts = [replay.memory.reshape(replay.memory.read(s), rows) for s in given]
        whole = Tensor(replay.memory.concat(parts, 0))
    chosen = replay.memory.emit(
        "comm.broadcast", (whole, group, group.ranks[root]), full, tensor.dtype
    )
    place = group.ranks.index(replay.trace.rank)
    part = replay.memory.slice(chosen, 0, place * rows[0], rows[0])
    replay.write(target, replay.memory.reshape(part, tensor.shape))
    replay.issued(event, [*tensors_of(event.args[0])], [])


@handles("c10d.reduce_scatter_.default")
def _reduce_scatter(replay: State, event: Event) -> None:
    group = group_of(event)
    for target, sources in zip(listed(event.args[0]), listed(event.args[1]), strict=True):
        shape = contiguous(replay.location(target)).shape
        rows = rows_of(shape)
        given = [copied(replay.location(s)) for s in listed(sources)]
        parts = [replay.memory.reshape(replay.memory.read(s), rows) for s in given]
        reduced = scattered(replay, replay.memory.concat(parts, 0), group, reduction(event))
        replay.write(target, replay.memory.reshape(reduced, shape))
    replay.issued(event, [*tensors_of(event.args[0])], [*tensors_of(event.args[1])])


@handles("c10d.broadcast_.default")
def _broadcast(replay: State, event: Event) -> None:
    group, root = group_of(event), _member(group_of(event), event)
    own = root == replay.trace.rank
    for spec in map(in_memory, map(replay.location, listed(event.args[0]))):
        args: tuple[Arg, ...] = (Tensor(replay.memory.read(spec)) if own else None, group, root)
        sent = replay.memory.emit("comm.broadcast", args, spec.shape, spec.dtype)
        replay.memory.write(spec, sent)
    replay.issued(event, [*tensors_of(event.args[0])], [])


def _peer(event: Event, group: Ranks) -> int:
    numbers = [a for a in event.args if isinstance(a, int) and not isinstance(a, bool)]
    if not numbers or not 0 <= numbers[0] < len(group.ranks):
        raise InvalidInput(f"a message to or from member {numbers[:1]} of {len(group.ranks)}")
    return group.ranks[numbers[0]]


@handles("c10d.send.default")
def _send(replay: State, event: Event) -> None:
    peer = _peer(event, group_of(event))
    for tensor in map(contiguous, map(replay.location, listed(event.args[0]))):
        value = replay.memory.read(tensor)
        replay.memory.emits("comm.send", (Tensor(value), peer), ())
    replay.issued(event, [], [*tensors_of(event.args[0])])


@handles("c10d.recv_.default")
def _recv(replay: State, event: Event) -> None:
    """A receive is posted here; what arrives is there from its wait on."""
    peer = _peer(event, group_of(event))
    replay.memory.emits("comm.post_recv", (peer,), ())
    tensors = [contiguous(replay.location(tensor)) for tensor in listed(event.args[0])]
    replay.issued(event, [*tensors_of(event.args[0])], [])
    replay.posted[event.work] = [(peer, target) for target in tensors]
    if not event.work:
        replay.waited(0)


@handles("c10d.barrier.default")
def _barrier(replay: State, event: Event) -> None:
    """Moves no values."""


# -- functional collectives ---------------------------------------------------------------------


def results(replay: State, event: Event, values: Sequence[int]) -> None:
    """Write the new tensors of a functional collective; an in-place form writes its operands.

    Example: of ``_c10d_functional.all_reduce(x, "sum", group)`` the sum becomes the new tensor.
    """
    targets = [Tensor(n) for n in tensors_of(*event.outputs)]
    if len(targets) != len(values):
        raise InvalidInput(f"{len(targets)} results, expected {len(values)}")
    for target, value in zip(targets, values, strict=True):
        tensor: StridedTensor = replay.location(target)
        if geometry.extent(tensor.shape, tensor.strides) < prod(tensor.shape):
            raise InvalidInput("a result that overlaps itself")
        replay.memory.write(tensor, replay.memory.reshape(value, tensor.shape))
        replay.promised(event, target.number)


@handles(
    "_c10d_functional.all_reduce.default",
    "_c10d_functional.all_reduce_.default",
    "_c10d_functional.all_reduce_coalesced.default",
    "_c10d_functional.all_reduce_coalesced_.default",
)
def _f_all_reduce(replay: State, event: Event) -> None:
    group, op = group_of(event), reduction(event)
    values = [replay.read(t) for t in listed(event.args[0])]
    results(replay, event, [_reduced(replay, v, group, op) for v in values])


@handles(
    "_c10d_functional.all_gather_into_tensor.default",
    "_c10d_functional.all_gather_into_tensor_coalesced.default",
)
def _f_all_gather(replay: State, event: Event) -> None:
    group = group_of(event)
    values = [replay.read(t) for t in listed(event.args[0])]
    results(replay, event, [gathered(replay, v, group) for v in values])


@handles(
    "_c10d_functional.reduce_scatter_tensor.default",
    "_c10d_functional.reduce_scatter_tensor_coalesced.default",
)
def _f_reduce_scatter(replay: State, event: Event) -> None:
    group, op = group_of(event), reduction(event)
    values = [replay.read(t) for t in listed(event.args[0])]
    results(replay, event, [scattered(replay, v, group, op) for v in values])


@handles("_c10d_functional.broadcast.default", "_c10d_functional.broadcast_.default")
def _f_broadcast(replay: State, event: Event) -> None:
    """The root is a member of the group by its number there, and no rank of the world."""
    group, root = group_of(event), _member(group_of(event), event)
    value = replay.read(event.args[0])
    tensor = replay.out.values[value]
    args: tuple[Arg, ...] = (Tensor(value) if root == replay.trace.rank else None, group, root)
    results(replay, event, [replay.memory.emit("comm.broadcast", args, tensor.shape, tensor.dtype)])

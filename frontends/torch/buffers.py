"""Flat buffers of several tensors: written piece by piece, reduced and gathered where shards cut
pieces.

FSDP1, and optimizers that shard by hand, put tensors one after the other into one flat tensor, pad
it, and cut it into equal shards.  As pieces of memory the tensors stay what they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod

from shardproof.frontends.torch.geometry import boxes, contiguous
from shardproof.frontends.torch.state import State
from shardproof.frontends.torch.trace import (
    Event,
    Items,
    Ranks,
    StridedTensor,
    Tensor,
    tensors_of,
)
from shardproof.frontends.torch.ways import Messages

#: One after the other, and with constants before and behind.
JOINED, PADDED = "aten.cat.default", "aten.constant_pad_nd.default"


def strung(replay: State, event: Event) -> bool:
    """Write flat tensors that are put together, or padded, one after the other, as into a buffer;
    False where an operator does something else.

    Example: ``torch.cat([w.flatten(), b.flatten()])`` has the pieces ``w`` and ``b``.
    """
    if event.name not in (JOINED, PADDED) or event.writes or len(event.outputs) != 1:
        return False
    whole = replay.location(event.outputs[0])
    sources = list(tensors_of(event.args[0]))
    if len(whole.shape) != 1 or not sources:
        return False
    before = after = 0
    if event.name == PADDED:
        pads = event.args[1].items if isinstance(event.args[1], Items) else ()
        if list(event.args[2:]) not in ([], [0]) or [type(n) for n in pads] != [int, int]:
            return False
        before, after = (int(str(n)) for n in pads)
    elif len(sources) == 1:
        return False
    if min(before, after) < 0:
        return False
    values = []
    for number in sources:
        value = replay.read(Tensor(number))
        value = replay.stilled(value) if number in event.still else value
        values.append(replay.memory.cast(value, whole.dtype))
    sizes = [before, *(prod(replay.out.values[v].shape) for v in values)]
    for start, value, size in zip(accumulate(sizes), values, sizes[1:], strict=False):
        if size:
            replay.memory.write(_piece(whole, start, (size,)), value)
    for start, size in ((0, before), (whole.shape[0] - after, after)):
        if size:
            given = (Items((size,)), 0.0)
            zeros = replay.memory.emit("aten.full.default", given, (size,), whole.dtype)
            replay.memory.write(_piece(whole, start, (size,)), zeros)
    return True


def _piece(whole: StridedTensor, start: int, shape: tuple[int, ...]) -> StridedTensor:
    """The entries of a flat tensor from ``start`` on, in a shape."""
    at = whole.offset + start
    return StridedTensor(whole.storage, at, shape, contiguous(shape), whole.dtype)


def scatter_pieces(
    replay: State, into: StridedTensor, parts: Sequence[StridedTensor], group: Ranks, op: str
) -> None:
    """Reduce-scatter a flat buffer whose shards cut its pieces in unlike places: every piece is
    reduced as a whole, of which a rank takes the boxes that its shard has.

    Example: of gradients [5, 3] and [5] over two ranks, the first has rows 0 to 2 of one and its
    entry (3, 0); that is what ``comm.all_reduce`` of both, cut, is too.
    """
    size = prod(into.shape)
    first = group.ranks.index(replay.trace.rank) * size
    at = 0
    for part in parts:
        value = replay.memory.structured(replay.memory.read(part))
        shape, dtype = replay.out.values[value]
        reduced = replay.memory.emit("comm.all_reduce", (Tensor(value), group, op), shape, dtype)
        low, high = max(0, first - at), min(prod(shape), first + size - at)
        start = at + low - first
        for offset, own in boxes(shape, low, high):
            box = reduced
            for dim, (begin, count) in enumerate(zip(offset, own, strict=True)):
                box = replay.memory.slice(box, dim, begin, count)
            replay.memory.write(_piece(into, start, own), box)
            start += prod(own)
        at += prod(shape)


def gather_pieces(replay: State, into: StridedTensor, own: StridedTensor, group: Ranks) -> bool:
    """Gather shards of a flat buffer into that buffer, where they cut its pieces in unlike places:
    every rank sends the boxes that its shard has of what is there; False where the buffer is not
    gathered in place, is no such buffer, or is read another way.

    Example: new parameters [5, 3] and [5] over two ranks, which were updated in place: the first
    sends rows 0 to 2 of one and its entry (3, 0), the other one the rest.
    """
    size, count = prod(own.shape), len(group.ranks)
    if (
        replay.out.reading.messages is not Messages.OWNERS
        or replay.trace.rank not in group.ranks
        or own.storage != into.storage
        or own.offset != into.offset + group.ranks.index(replay.trace.rank) * size
    ):
        return False
    parts = _laid(replay, into)
    for start, shape in parts:
        for member in range(count):
            low, high = max(start, member * size) - start, (member + 1) * size - start
            at = start + low
            for _, own_shape in boxes(shape, low, min(prod(shape), high)):
                _sent(replay, _piece(into, at, own_shape), group, group.ranks[member])
                at += prod(own_shape)
    return bool(parts)


def _sent(replay: State, piece: StridedTensor, group: Ranks, root: int) -> None:
    own = Tensor(replay.memory.read(piece)) if root == replay.trace.rank else None
    given = (own, group, root)
    value = replay.memory.emit("comm.broadcast", given, piece.shape, piece.dtype)
    replay.memory.write(piece, value)


def _laid(replay: State, into: StridedTensor) -> list[tuple[int, tuple[int, ...]]]:
    """A flat buffer as the parameters that lie in it, and what is between them: where each begins,
    and its shape; nothing, where there are none, or they lie across its ends or each other.

    Example: parameters [5, 3] and [5], of which the second begins at a multiple of 16, are at 0 and
    16, with a tensor [1] between them.
    """
    last = into.offset + prod(into.shape)
    parts: list[tuple[int, tuple[int, ...]]] = []
    at = into.offset
    for tensor in sorted(replay.laid.get(into.storage, ()), key=lambda t: t.offset):
        stop = tensor.offset + prod(tensor.shape)
        if stop <= into.offset or last <= tensor.offset:
            continue
        if tensor.offset < at or last < stop:
            return []
        if at < tensor.offset:
            parts.append((at - into.offset, (tensor.offset - at,)))
        parts.append((tensor.offset - into.offset, tensor.shape))
        at = stop
    if parts and at < last:
        parts.append((at - into.offset, (last - at,)))
    return parts

"""Flat buffers of several tensors: written piece by piece, and reduced where shards cut pieces.

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

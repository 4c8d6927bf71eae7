"""Flat messages whose blocks, or ranks, divide them unlike: into what all of them can be divided.

FSDP2 pads the last rank's part of a parameter whose rows do not divide evenly: there the message
has the rows that there are and then zeros, where other ranks have rows alone.  Read between the
ends that all have in common, each has rows of one tensor there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from math import prod

from shardproof.frontends.torch import geometry
from shardproof.frontends.torch.memory import Memory
from shardproof.frontends.torch.trace import StridedTensor
from shardproof.frontends.torch.ways import Divided, Group, Messages, Shapes


def common(several: Sequence[Shapes]) -> Shapes | None:
    """The pieces into which all can be divided: between the ends that all have, in the shape of one
    that has one piece there; None where none has.

    Example: of ([3, 4], [6]) and ([2, 4], [4], [6]) it is ([3, 4], [6]); of ([6], [2]) and
    ([2], [6]) there is none.
    """
    ends = [list(accumulate(map(prod, shapes), initial=0)) for shapes in several]
    if len({own[-1] for own in ends}) != 1:
        return None
    every = set(ends[0]).intersection(*ends)
    pieces = [
        {(start, stop): shape for (start, stop), shape in zip(pairwise(own), shapes, strict=True)}
        for own, shapes in zip(ends, several, strict=True)
    ]
    made: list[tuple[int, ...]] = []
    for part in pairwise(sorted(every)):
        there = [own[part] for own in pieces if part in own]
        if not there:
            return None
        made.append(max(there, key=len))
    return tuple(made)


def agreed(ranks: Mapping[int, Divided]) -> dict[Group, list[Shapes]]:
    """How all ranks of each group can divide their messages to it, where they can and some divide
    them unlike.

    Example: of ranks 0 and 1 with ([3, 4], [6]) and ([2, 4], [4], [6]) it is ([3, 4], [6]).
    """
    every: dict[Group, list[Sequence[Shapes]]] = {}
    for rank, own in ranks.items():
        for group, messages in own.items():
            if rank in group:
                every.setdefault(group, []).append(messages)
    made: dict[Group, list[Shapes]] = {}
    for group, several in every.items():
        if len({len(own) for own in several}) > 1 or all(own == several[0] for own in several):
            continue
        pieces = [common(message) for message in zip(*several, strict=True)]
        if None not in pieces:
            made[group] = [shapes for shapes in pieces if shapes is not None]
    return made


def laid(own: StridedTensor, shapes: Shapes) -> list[StridedTensor]:
    """The pieces of these shapes in a contiguous tensor, one after the other.

    Example: of ([3, 4], [6]) in a tensor that begins at 2 the second begins at 14.
    """
    starts = accumulate(map(prod, shapes), initial=own.offset)
    return [
        StridedTensor(own.storage, start, shape, geometry.contiguous(shape), own.dtype)
        for start, shape in zip(starts, shapes, strict=False)
    ]


def blocks(memory: Memory, tensor: StridedTensor, count: int) -> list[list[StridedTensor]]:
    """A contiguous tensor as ``count`` equal blocks, each as the same pieces: for each piece,
    where it is in every block.  One piece if memory is not divided so.

    Example: of gradients [5, 4] and [6], padded for two ranks, the blocks have [3, 4] and [3] each.
    """
    size = prod(tensor.shape) // count
    flat = [
        StridedTensor(tensor.storage, tensor.offset + i * size, (size,), (1,), tensor.dtype)
        for i in range(count)
    ]
    whole = memory.out.reading.messages is Messages.WHOLE
    if whole or not geometry.in_order(tensor.shape, tensor.strides):
        return [flat]
    divided = [tuple(part.shape for part in memory.parts(block)) for block in flat]
    shapes = common(divided)
    if shapes is None:
        return [flat]
    return [list(column) for column in zip(*(laid(b, shapes) for b in flat), strict=True)]


def rows(memory: Memory, tensor: StridedTensor) -> int:
    """The value of a piece, with a first dimension; where several pieces of memory are whole rows
    of it, these one after the other.

    Example: two rows of a parameter and one of zeros are joined as [2, 4] and [1, 4], so that it
    is still seen which rows of the parameter they are.
    """
    shape = tensor.shape or (1,)
    width = prod(shape[1:])
    parts = memory.parts(tensor)
    if len(parts) < 2 or not width or any(prod(part.shape) % width for part in parts):
        return memory.reshape(memory.read(tensor), shape)
    own = [
        memory.reshape(memory.read(part), (prod(part.shape) // width, *shape[1:])) for part in parts
    ]
    return memory.concat(own, 0)

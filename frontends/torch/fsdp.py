"""Operators of FSDP2 that copy parameters into and out of flat buffers (torch 2.13).

``fsdp.all_gather_copy_in`` writes its second operand, which its schema does not say.
"""

from __future__ import annotations

from math import prod

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.torch.collectives import HANDLERS, handles, listed
from shardproof.frontends.torch.geometry import contiguous
from shardproof.frontends.torch.memory import number
from shardproof.frontends.torch.state import State
from shardproof.frontends.torch.trace import Event, StridedTensor, Tensor, tensors_of


def _flat(like: StridedTensor, offset: int, count: int) -> StridedTensor:
    return StridedTensor(like.storage, like.offset + offset, (count,), (1,), like.dtype)


@handles("fsdp.all_gather_copy_in.default")
def _copy_in(replay: State, event: Event) -> None:
    """Inputs, flat, one after the other, at this rank's place in the output."""
    output = replay.location(event.args[1])
    count, rank = number(event.args[3]), number(event.args[4])
    if len(output.shape) != 1 or output.strides != (1,):
        raise InvalidInput(f"an all-gather into {list(output.shape)}")
    at = rank * count
    for source in listed(event.args[0]):
        value = replay.memory.cast(replay.read(source), output.dtype)
        shape = replay.out.values[value].shape
        part = _flat(output, at, prod(shape))
        replay.memory.write(
            StridedTensor(part.storage, part.offset, shape, contiguous(shape), part.dtype), value
        )
        at += prod(shape)


def _put(replay: State, flat: StridedTensor, shape: tuple[int, ...], value: int) -> None:
    """A tensor of a shape, into a flat part of a buffer."""
    into = StridedTensor(flat.storage, flat.offset, shape, contiguous(shape), flat.dtype)
    replay.memory.write(into, value)


@handles("fsdp.split_with_sizes_copy.default")
def _split_copy(replay: State, event: Event) -> None:
    """Parts of a dimension of the first operand, each copied into an output."""
    source = replay.location(event.args[0])
    dim = number(event.args[2] if len(event.args) > 2 else event.kwargs.get("dim", 0))
    sizes = [number(n) for n in listed(event.args[1])]
    start = 0
    for size, target in zip(sizes, listed(event.kwargs["out"]), strict=True):
        shape = (*source.shape[:dim], size, *source.shape[dim + 1 :])
        part = StridedTensor(
            source.storage,
            source.offset + start * source.strides[dim],
            shape,
            source.strides,
            source.dtype,
        )
        tensor = replay.location(target)
        value = replay.memory.cast(replay.memory.read(part), tensor.dtype)
        replay.memory.write(tensor, replay.memory.reshape(value, tensor.shape))
        start += size


@handles("fsdp.chunk_cat.default")
def _chunk_cat(replay: State, event: Event) -> None:
    """Chunk i of every tensor, flat, one after the other, in row i of the output: as many positions
    of the first dimension in each, and zeros where there are no more."""
    dim, count = number(event.args[1]), number(event.args[2])
    (target,) = tensors_of(event.kwargs["out"])
    output = replay.location(Tensor(target))
    if dim != 0 or len(output.shape) != 2 or output.shape[0] != count:
        raise InvalidInput(f"a chunk_cat of dimension {dim} into {list(output.shape)}")
    if output.strides != contiguous(output.shape):
        raise InvalidInput("a chunk_cat into a tensor that is not contiguous")
    at = 0
    for source in listed(event.args[0]):
        value = replay.memory.cast(replay.read(source), output.dtype)
        shape = replay.out.values[value].shape
        if not shape:
            raise InvalidInput("a chunk_cat of a tensor without dimensions")
        rows = (-(-shape[0] // count), *shape[1:])
        for row in range(count):
            start = row * output.shape[1] + at
            size = max(0, min(rows[0], shape[0] - row * rows[0]))
            own = (size, *shape[1:])
            if size:
                part = replay.memory.slice(value, 0, row * rows[0], size)
                _put(replay, _flat(output, start, prod(own)), own, part)
            if size < rows[0]:
                rest = (rows[0] - size, *shape[1:])
                zeros = replay.memory.emit("aten.zeros.default", (), rest, output.dtype)
                _put(replay, _flat(output, start + prod(own), prod(rest)), rest, zeros)
        at += prod(rows)
    if at != output.shape[1]:
        raise InvalidInput(f"a chunk_cat of {at} columns into {list(output.shape)}")


__all__ = ["HANDLERS"]

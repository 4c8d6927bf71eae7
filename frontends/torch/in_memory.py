"""Which numbers a collective of c10d takes of a tensor: those of its memory, as they lie there.

Backends are given where a tensor begins and how many elements it has.  What lies without gaps, in
another order of its dimensions, is right if it does so on every rank: then positions meet that
belong together.  With gaps (columns of a matrix, every second row) gloo reduces and writes what is
beside them, and NCCL and MPI raise an error.  Of operators whose operands gloo copies into
a message of its own first (all-gathers, lists of an all-to-all) that is not so; those of a list
that is reduced and scattered it copies as they lie.  Messages between two ranks have to be
contiguous: gloo raises an error for others.  Seen with gloo of torch 2.13; NCCL's checks
are ``check_gpu_single_tensor`` of ProcessGroupNCCL.
"""

from __future__ import annotations

from math import prod

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.torch.geometry import in_order
from shardproof.frontends.torch.state import meet
from shardproof.frontends.torch.trace import StridedTensor


def in_memory(tensor: StridedTensor) -> StridedTensor:
    """A tensor with its dimensions in the order in which they lie in memory; raises `InvalidInput`
    where there are gaps between its elements.

    Example: shape (4, 2) with strides (1, 4) is shape (2, 4) with strides (4, 1); with strides
    (4, 1), two columns of four, it is refused.
    """
    turned = in_memory_order(tensor)
    if 0 not in turned.shape and not in_order(turned.shape, turned.strides):
        raise InvalidInput(
            f"a tensor of shape {list(tensor.shape)} that does not lie in one piece (strides "
            f"{list(tensor.strides)}): NCCL refuses it, gloo takes what is between its elements; "
            "communicate a copy (contiguous()), and write back what comes of it"
        )
    return turned


def in_memory_order(tensor: StridedTensor) -> StridedTensor:
    """A tensor with the dimensions first whose positions are farthest apart.

    Example: shape (4, 2) with strides (1, 6) is shape (2, 4) with strides (6, 1).
    """
    if 0 in tensor.shape or in_order(tensor.shape, tensor.strides):
        return tensor
    dims = range(len(tensor.shape))
    outer = sorted(dims, key=lambda d: (tensor.shape[d] > 1, -tensor.strides[d]))
    shape, strides = (tuple(sizes[d] for d in outer) for sizes in (tensor.shape, tensor.strides))
    return StridedTensor(tensor.storage, tensor.offset, shape, strides, tensor.dtype)


def contiguous(tensor: StridedTensor) -> StridedTensor:
    """A tensor whose elements follow each other in order; raises `InvalidInput` for others.

    Example: the transpose of a matrix is refused.
    """
    if in_memory(tensor) != tensor:
        raise InvalidInput(
            f"a tensor of shape {list(tensor.shape)} that is not contiguous (strides "
            f"{list(tensor.strides)}): NCCL refuses it, gloo mixes up its elements or refuses it; "
            "communicate a copy (contiguous())"
        )
    return tensor


def copied(tensor: StridedTensor) -> StridedTensor:
    """A tensor of which a copy in order is sent where there are gaps between its elements; raises
    `InvalidInput` for one without gaps whose elements lie in another order, which its copy keeps.

    Example: two columns of four are sent as they are read; the transpose of a matrix is refused.
    """
    turned = in_memory_order(tensor)
    return contiguous(tensor) if in_order(turned.shape, turned.strides) else tensor


def apart(into: StridedTensor, own: StridedTensor, member: int | None = None) -> None:
    """Raise `InvalidInput` where a collective writes memory that it still reads.  All-gathers and
    reduce-scatters may: at the place of the ``member``, where its own part is.

    Example: ``all_to_all_single(x, x)`` is refused: gloo and NCCL send what has just arrived.
    """
    small, large = sorted((into, own), key=lambda tensor: prod(tensor.shape))
    place = None if member is None else large.offset + member * prod(small.shape)
    if meet(into, own) and small.offset != place:
        raise InvalidInput(
            "what it writes shares memory with what it reads, which backends still send then"
        )

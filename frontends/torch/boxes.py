"""Which part of a full tensor a local one is, as the framework's own metadata says."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.distributed.tensor import DTensor, Partial
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.utils._python_dispatch import _disable_current_modes

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.torch.trace import Box


def local(x: torch.Tensor) -> torch.Tensor:
    """The plain tensor on this rank.

    Example: of a DTensor [16, 8] with ``Shard(0)`` on two ranks it is the plain tensor [8, 8].
    """
    tensor = x._local_tensor if isinstance(x, DTensor) else x
    wait = getattr(tensor, "trigger_wait", None)  # what a collective still computes
    return tensor if wait is None else wait()


def described(name: str, x: DTensor) -> Box:
    """The box of a DTensor's local tensor, by its mesh and placements; partial sums by the ranks
    along their mesh dimension.

    Example: ``up.weight`` [16, 8] with ``[Shard(0)]`` is on rank 1 of two the box at (8, 0) of
    shape (8, 8), with the text "S(0)"; ``[Partial()]`` has ``partial`` (("sum", (0, 1)),).
    """
    spec = x._spec
    mesh = spec.mesh
    with _disable_current_modes():  # No part of the step; it counts positions in tensors.
        shape, offset = compute_local_shape_and_global_offset(
            tuple(spec.shape), mesh, tuple(spec.placements)
        )
    partial = []
    for number, placement in enumerate(spec.placements):
        if isinstance(placement, Partial):
            ranks = torch.distributed.get_process_group_ranks(mesh.get_group(number))
            partial.append((str(placement.reduce_op), tuple(ranks)))
    own = tuple(x._local_tensor.shape)
    if tuple(shape) != own:
        raise InvalidInput(
            f"{name}: its placements {list(spec.placements)} of {list(spec.shape)} say that this "
            f"rank has {list(shape)}, it has {list(own)}"
        )
    return Box(
        name,
        tuple(spec.shape),
        tuple(int(n) for n in offset),
        tuple(int(n) for n in shape),
        "DTensor",
        tuple(partial),
        ", ".join(map(str, spec.placements)),
    )


def whole(name: str, shape: Sequence[int], source: str) -> Box:
    """The box that is all of a tensor; ``source``: who says so.

    Example: ``down.bias`` of shape (8,) is the box at (0,) of shape (8,).
    """
    full = tuple(int(n) for n in shape)
    return Box(name, full, (0,) * len(full), full, source)

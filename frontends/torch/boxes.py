"""Which part of a full tensor a local one is, as the framework's own metadata says."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor, Partial
from torch.distributed.tensor._dtensor_spec import DTensorSpec
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


class Held(NamedTuple):
    """A box of a full tensor, and where a local one has it: positions [start, start + size) along a
    dimension (None: the local tensor is that box).

    Example: of ``gate_up.weight`` [16, 8] with ``_StridedShard(0, split_factor=2)`` rank 1 of two
    has the boxes at (4, 0) and (12, 0) of shape (4, 8), in its rows 0 to 3 and 4 to 7.
    """

    box: Box
    cut: tuple[int, int, int] | None = None


def described(name: str, x: DTensor) -> list[Held]:
    """The boxes of a DTensor's local tensor, by its mesh and placements; raises `InvalidInput` for
    one whose local tensors are parts of a sum (Partial).

    Example: ``up.weight`` [16, 8] with ``[Shard(0)]`` is on rank 1 of two the box at (8, 0) of
    shape (8, 8), with the text "S(0)".
    """
    spec = x._spec
    mesh, full, own = spec.mesh, tuple(spec.shape), tuple(x._local_tensor.shape)
    coordinate = mesh.get_coordinate()
    if coordinate is None:  # This rank is not in the mesh, and has nothing.
        return [Held(Box(name, full, (), own, "DTensor"))]
    with _disable_current_modes():  # No part of the step; it counts positions in tensors.
        runs = [_runs(dim, size, spec, coordinate) for dim, size in enumerate(full)]
    if any(isinstance(placement, Partial) for placement in spec.placements):
        raise InvalidInput(
            f"{name} is a DTensor with {list(spec.placements)}: of what the step begins with ranks "
            "cannot have parts of a sum"
        )
    shape = tuple(sum(size for _, size in along) for along in runs)
    if shape != own:
        raise InvalidInput(
            f"{name}: its placements {list(spec.placements)} of {list(spec.shape)} say that this "
            f"rank has {list(shape)}, it has {list(own)}"
        )
    several = [dim for dim, along in enumerate(runs) if len(along) > 1]
    if len(several) > 1:
        raise InvalidInput(f"{name} is cut into pieces along dimensions {several}")
    pieces, at = [], 0
    for number in range(max((len(along) for along in runs), default=1)):
        part = [along[number if dim in several else 0] for dim, along in enumerate(runs)]
        offset, size = tuple(start for start, _ in part), tuple(count for _, count in part)
        text = ", ".join(map(str, spec.placements))
        box = Box(name, full, offset, size, "DTensor", text=text)
        cut = (several[0], at, size[several[0]]) if several else None
        pieces.append(Held(box, cut))
        at += size[several[0]] if several else 0
    return pieces


def _runs(
    dim: int, size: int, spec: DTensorSpec, coordinate: Sequence[int]
) -> list[tuple[int, int]]:
    """Which positions of a dimension are on this rank, in the order in which it has them: where
    consecutive ones begin, and how many there are.  Placements divide what those before them leave,
    as PyTorch's own functions divide a tensor."""
    placements: Sequence[Any] = spec.placements
    sharded = [(n, p) for n, p in enumerate(placements) if getattr(p, "dim", None) == dim]
    if not sharded:
        return [(0, size)]
    left = torch.arange(size).view(*[1] * dim, size)
    for number, placement in sharded:
        parts, _ = placement._split_tensor(left, spec.mesh.size(number), with_padding=False)
        left = parts[coordinate[number]]
    positions = left.flatten()
    if not len(positions):
        return [(size, 0)]
    ends = [*((positions.diff() != 1).nonzero().flatten() + 1).tolist(), len(positions)]
    return [(int(positions[a]), b - a) for a, b in pairwise((0, *ends))]


def whole(name: str, shape: Sequence[int], source: str) -> Box:
    """The box that is all of a tensor; ``source``: who says so.

    Example: ``down.bias`` of shape (8,) is the box at (0,) of shape (8,).
    """
    full = tuple(int(n) for n in shape)
    return Box(name, full, (0,) * len(full), full, source)

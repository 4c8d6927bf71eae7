"""What every member of a group has after a collective, by PyTorch on real numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from shardproof.frontends.torch.collectives import reduction
from shardproof.frontends.torch.trace import Event, Items


class TooLarge(Exception):
    """The step is too large to be replayed, or has what cannot be."""


def joined(
    name: str, event: Event, members: Sequence[Sequence[torch.Tensor]], own: int
) -> list[torch.Tensor]:
    """What the member at position ``own`` has after a collective, tensor by tensor.

    Example: "all_reduce" of [1] and [2] is [3] for both; "alltoall_base" of [1, 2] and [3, 4] is
    [1, 3] for the first member.
    """
    count = len(members)
    columns = list(zip(*members, strict=False))
    if name in ("allreduce", "allreduce_coalesced", "all_reduce", "all_reduce_coalesced"):
        return [_reduced(c, reduction(event)) for c in columns]
    if name in (
        "allgather_base",
        "allgather_into_tensor_coalesced",
        "all_gather_into_tensor",
        "all_gather_into_tensor_coalesced",
    ):
        return [torch.cat([viewed(x, c[0]).flatten() for x in c]) for c in columns]
    if name == "allgather":
        return [x for c in columns for x in c]
    if name in (
        "reduce_scatter_base",
        "reduce_scatter_tensor_coalesced",
        "reduce_scatter_tensor",
    ):
        return [_reduced(c, reduction(event)).flatten().chunk(count)[own] for c in columns]
    if name in ("alltoall_base", "all_to_all_single"):
        return [torch.cat([member[own].flatten() for member in members])]
    if name == "alltoall":
        return [member[own] for member in members]
    if name in ("broadcast", "scatter"):
        numbers = [a for a in event.args if isinstance(a, int) and not isinstance(a, bool)]
        root = members[numbers[0] if numbers else 0]
        return [root[own]] if name == "scatter" else list(root)
    if name in ("reduce", "gather"):
        rooted = own == next(a for a in event.args if type(a) is int)
        if name == "gather":
            return [x for c in columns for x in c] if rooted else []
        sums = [_reduced(c, reduction(event)) for c in columns]
        return sums if rooted else [torch.full_like(x, torch.nan) for x in sums]
    if name == "reduce_scatter":
        return [_reduced([m[own] for m in members], reduction(event))]
    raise TooLarge(f"{event.name} is not replayed")


def viewed(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The elements of a tensor in the shape of another: backends count elements only.

    Example: of 16 numbers in the shape [4, 4] of another tensor, these in rows of four.
    """
    if x.numel() != other.numel():
        raise TooLarge(f"{x.numel()} numbers that another rank takes for {other.numel()}")
    return x.reshape(other.shape)


def parts_of(sources: Sequence[torch.Tensor], event: Event, count: int) -> list[torch.Tensor]:
    """What one tensor has for each rank: as many rows as an event says, or equally many.

    Example: of six rows and the sizes [4, 2], the first four and the other two.
    """
    (source,) = sources
    rows = source.reshape(1) if source.dim() == 0 else source
    splits = [a.items for a in event.args if isinstance(a, Items)]
    given = [n for n in splits[1] if isinstance(n, int)] if len(splits) == 2 else []
    return list(torch.split(rows, given) if given else rows.chunk(count))


def _reduced(members: Sequence[torch.Tensor], op: str) -> torch.Tensor:
    stacked = torch.stack([viewed(x, members[0]) for x in members])
    if op in ("sum", "avg"):
        total = stacked.sum(0)
        return total / len(members) if op == "avg" else total
    if op in ("max", "min"):
        return stacked.amax(0) if op == "max" else stacked.amin(0)
    name, _, before = op.partition(" ")
    if name == "premul_sum" and before:
        return stacked.sum(0) * float(before)
    raise TooLarge(f"a reduction by {op} is not replayed")

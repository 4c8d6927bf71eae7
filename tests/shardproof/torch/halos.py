"""Edges of neighbouring ranks beside a rank's own positions, as sequence and spatial parallelism
hand them on, and what comes back to them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def _exchanged(first: torch.Tensor, last: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What the rank before sends of its last positions, and the rank behind of its first ones; zeros
    at both ends."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    before, behind = torch.zeros_like(last), torch.zeros_like(first)
    ops = []
    if rank + 1 < ranks:
        ops.append(dist.P2POp(dist.isend, last, rank + 1))
        ops += [dist.P2POp(dist.irecv, behind, rank + 1)] * (behind.numel() > 0)
    if rank:
        ops.append(dist.P2POp(dist.irecv, before, rank - 1))
        ops += [dist.P2POp(dist.isend, first, rank - 1)] * (first.numel() > 0)
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return before, behind


class Halo(torch.autograd.Function):
    """``before`` positions of the rank before and ``behind`` of the one behind, along ``dim``; a
    ``wrong`` one keeps for itself what comes back to them."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, dim: int, before: int, behind: int, wrong: bool
    ) -> torch.Tensor:
        ctx.given = dim, before, behind, wrong
        first, last = x.narrow(dim, 0, behind), x.narrow(dim, x.shape[dim] - before, before)
        edges = _exchanged(first.contiguous(), last.contiguous())
        return torch.cat([edges[0], x, edges[1]], dim)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None]:
        dim, before, behind, wrong = ctx.given
        size = g.shape[dim] - before - behind
        own = g.narrow(dim, before, size).clone()
        first, last = g.narrow(dim, 0, before), g.narrow(dim, before + size, behind)
        # What belongs to the rank before comes from the beginning.
        rank, ranks = dist.get_rank(), dist.get_world_size()
        to_own = first.new_zeros(first.shape), last.new_zeros(last.shape)
        ops = []
        if rank + 1 < ranks:
            ops.append(dist.P2POp(dist.irecv, to_own[0], rank + 1))
            ops += [dist.P2POp(dist.isend, last.contiguous(), rank + 1)] * (behind > 0)
        if rank:
            ops.append(dist.P2POp(dist.isend, first.contiguous(), rank - 1))
            ops += [dist.P2POp(dist.irecv, to_own[1], rank - 1)] * (behind > 0)
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        if not wrong:
            own.narrow(dim, size - before, before).add_(to_own[0])
            own.narrow(dim, 0, behind).add_(to_own[1])
        return own, None, None, None, None


def beside(
    x: torch.Tensor, dim: int, before: int, behind: int, how: str = "single"
) -> torch.Tensor:
    """Positions with ``before`` in front and ``behind`` them: of neighbouring ranks, or zeros on a
    single device (and on ranks of a wrong program, which has "no halo")."""
    if how in ("right", "kept"):
        return Halo.apply(x, dim, before, behind, how == "kept")
    front, back = (torch.zeros_like(x.narrow(dim, 0, n)) for n in (before, behind))
    return torch.cat([front, x, back], dim)

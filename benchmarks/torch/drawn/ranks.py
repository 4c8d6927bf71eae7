"""A rank's place in the mesh, and what ranks hand to each other: one differentiable function each.

On the single device every group has one member, and every function gives what it is given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from benchmarks.torch.drawn.draw import Drawn

Tensors = Callable[[torch.Tensor], torch.Tensor]


class Axis(NamedTuple):
    """An axis of the mesh: how many ranks, which one this is, and their process group."""

    size: int = 1
    rank: int = 0
    group: Any = None


class Ranks(NamedTuple):
    """Where a rank is along the three axes."""

    dp: Axis = Axis()
    cp: Axis = Axis()
    tp: Axis = Axis()


def ranks(drawn: Drawn) -> Ranks:
    """This rank's place in the mesh of the step."""
    mesh = init_device_mesh(
        "cpu", (drawn.dp, drawn.cp, drawn.tp), mesh_dim_names=("dp", "cp", "tp")
    )
    sizes = {"dp": drawn.dp, "cp": drawn.cp, "tp": drawn.tp}
    return Ranks(
        **{n: Axis(size, mesh.get_local_rank(n), mesh.get_group(n)) for n, size in sizes.items()}
    )


class _Both(torch.autograd.Function):
    """Applies one function forward and another one to the gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward: Tensors, backward: Tensors) -> torch.Tensor:
        ctx.way = backward
        return forward(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return ctx.way(grad), None, None


def _both(x: torch.Tensor, forward: Tensors, backward: Tensors) -> torch.Tensor:
    return _Both.apply(x, forward, backward)  # type: ignore[no-any-return]


def _same(x: torch.Tensor) -> torch.Tensor:
    return x.view_as(x)


def _summed(axis: Axis, times: int = 1) -> Tensors:
    def run(x: torch.Tensor) -> torch.Tensor:
        for _ in range(times):
            x = x.clone().contiguous()
            dist.all_reduce(x, group=axis.group)
        return x

    return run


def _gathered(axis: Axis, dim: int, *, turned: bool = False) -> Tensors:
    def run(x: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(x.contiguous()) for _ in range(axis.size)]
        dist.all_gather(parts, x.contiguous(), group=axis.group)
        return torch.cat(parts[::-1] if turned else parts, dim)

    return run


def _scattered(axis: Axis, dim: int, *, turned: bool = False) -> Tensors:
    """This rank's part along ``dim`` of the sum over ranks."""

    def run(x: torch.Tensor) -> torch.Tensor:
        parts = list(x.chunk(axis.size, dim))
        whole = torch.cat(parts[::-1] if turned else parts, dim).transpose(0, dim).contiguous()
        mine = whole.new_empty(whole.shape[0] // axis.size, *whole.shape[1:])
        dist.reduce_scatter_tensor(mine, whole, group=axis.group)
        return mine.transpose(0, dim)

    return run


def _cut(axis: Axis, dim: int) -> Tensors:
    return lambda x: x.chunk(axis.size, dim)[axis.rank].contiguous()


def copy(x: torch.Tensor, axis: Axis, times: int = 1) -> torch.Tensor:
    """x; its gradient is summed over the axis."""
    return x if axis.size == 1 else _both(x, _same, _summed(axis, times))


def reduce(x: torch.Tensor, axis: Axis) -> torch.Tensor:
    """The sum over the axis; its gradient goes to every rank."""
    return x if axis.size == 1 else _both(x, _summed(axis), _same)


def gather(x: torch.Tensor, axis: Axis, dim: int, *, turned: bool = False) -> torch.Tensor:
    """The parts of all ranks, one after the other; the gradient is summed and divided."""
    if axis.size == 1:
        return x
    return _both(x, _gathered(axis, dim, turned=turned), _scattered(axis, dim, turned=turned))


def join(x: torch.Tensor, axis: Axis, dim: int) -> torch.Tensor:
    """The parts of all ranks, of which every rank makes the same: the gradient is divided alone."""
    return x if axis.size == 1 else _both(x, _gathered(axis, dim), _cut(axis, dim))


def scatter(x: torch.Tensor, axis: Axis, dim: int) -> torch.Tensor:
    """This rank's part of the sum over the axis; gradients are put together."""
    return x if axis.size == 1 else _both(x, _scattered(axis, dim), _gathered(axis, dim))


def cut(x: torch.Tensor, axis: Axis, dim: int) -> torch.Tensor:
    """This rank's part of what all ranks have; gradients are put together."""
    return x if axis.size == 1 else _both(x, _cut(axis, dim), _gathered(axis, dim))


def greatest(x: torch.Tensor, axis: Axis) -> torch.Tensor:
    """The maximum over the axis, without a gradient."""
    x = x.detach().clone()
    if axis.size > 1:
        dist.all_reduce(x, op=dist.ReduceOp.MAX, group=axis.group)
    return x

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
    """Where a rank is along the four axes."""

    pp: Axis = Axis()
    dp: Axis = Axis()
    cp: Axis = Axis()
    tp: Axis = Axis()
    #: The group of the first and the last stage, where there are several.
    ends: Any = None


def ranks(drawn: Drawn) -> Ranks:
    """This rank's place in the mesh of the step."""
    sizes = {"pp": drawn.pp, "dp": drawn.dp, "cp": drawn.cp, "tp": drawn.tp}
    mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    axes = {n: Axis(s, mesh.get_local_rank(n), mesh.get_group(n)) for n, s in sizes.items()}
    return Ranks(**axes, ends=_ends(mesh.mesh) if drawn.pp > 1 else None)


def _ends(mesh: torch.Tensor) -> Any:
    """The group of a first stage and its last one; every rank makes all of them."""
    mine = None
    for pair in mesh[[0, -1]].flatten(1).t().tolist():
        group = dist.new_group(pair)
        mine = group if dist.get_rank() in pair else mine
    return mine


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


def _exchanged(axis: Axis, split: int, join: int, *, turned: bool = False) -> Tensors:
    """Parts along ``split`` go to the ranks; what comes from them is put together at ``join``."""

    def run(x: torch.Tensor) -> torch.Tensor:
        sent = torch.stack(x.chunk(axis.size, split)).contiguous()
        come = torch.empty_like(sent)
        dist.all_to_all_single(come, sent, group=axis.group)
        parts = list(come.unbind())
        return torch.cat(parts[::-1] if turned else parts, join).contiguous()

    return run


def _shifted(axis: Axis, by: int) -> Tensors:
    """What the rank that is ``by`` before this one has."""

    def run(x: torch.Tensor) -> torch.Tensor:
        sent, come = x.contiguous(), torch.empty_like(x.contiguous())
        to, source = (
            dist.get_global_rank(axis.group, (axis.rank + n) % axis.size) for n in (by, -by)
        )
        pair = [
            dist.P2POp(dist.isend, sent, to, axis.group),
            dist.P2POp(dist.irecv, come, source, axis.group),
        ]
        for work in dist.batch_isend_irecv(pair):
            work.wait()
        return come

    return run


def exchange(
    x: torch.Tensor, axis: Axis, split: int, join: int, *, turned: bool = False
) -> torch.Tensor:
    """Parts of one dimension for parts of another one; gradients go back the same way."""
    forward = _exchanged(axis, split, join, turned=turned)
    return _both(x, forward, _exchanged(axis, join, split))


def shift(x: torch.Tensor, axis: Axis) -> torch.Tensor:
    """What the rank before has; its gradient goes back there."""
    return _both(x, _shifted(axis, 1), _shifted(axis, -1))


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

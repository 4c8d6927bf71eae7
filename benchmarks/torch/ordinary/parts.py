"""What the programs share: a case, the operators that tensor parallelism is made of, batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

import shardproof.torch as sp

Step = Callable[[sp.Job], None]
WIDTH, CLASSES, ROWS, LENGTH = 8, 12, 4, 4


class Case(NamedTuple):
    """``wrong``: versions of ``right`` with one mistake each, by what it is."""

    name: str
    single: Step
    right: Step
    wrong: Mapping[str, Step]
    batch: Mapping[str, sp.TensorSpec]
    world_size: int = 2


def ids(*names: str, rows: int = ROWS, length: int = LENGTH) -> dict[str, sp.TensorSpec]:
    """Ids of a vocabulary of `CLASSES`."""
    return {n: sp.tensor((rows, length), torch.int64, low=0, high=CLASSES) for n in names}


def floats(**shapes: tuple[int, ...]) -> dict[str, sp.TensorSpec]:
    return {name: sp.tensor(shape) for name, shape in shapes.items()}


class _CopyTo(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        grad = grad.contiguous()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class _ReduceFrom(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        x = x.contiguous()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad, None


def copy_to(x: torch.Tensor, group: Any = None) -> torch.Tensor:
    """x; its gradients are summed over ranks (Megatron's f)."""
    return _CopyTo.apply(x, group)  # type: ignore[no-any-return]


def reduce_from(x: torch.Tensor, group: Any = None) -> torch.Tensor:
    """The sum over ranks; its gradient goes to each (Megatron's g)."""
    return _ReduceFrom.apply(x, group)  # type: ignore[no-any-return]


def averaged(model: torch.nn.Module, group: Any = None) -> None:
    """Gradients as their mean over ranks."""
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG, group=group)


def rows(job: sp.Job, *names: str, size: int = 0, at: int | None = None) -> list[torch.Tensor]:
    """This rank's rows of the batch."""
    where = job.rank if at is None else at
    return [job.batch[n].chunk(size or job.world_size)[where] for n in names]

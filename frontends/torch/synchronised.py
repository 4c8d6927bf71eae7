"""SyncBatchNorm, whose kernels there are for GPUs alone, with plain operators and all-reduces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import SyncBatchNorm
from torch.nn.parallel import DistributedDataParallel

from shardproof.frontends.torch.standins import replace

#: What is printed where a step has such a layer.
STATISTICS = (
    "stand-in: SyncBatchNorm's kernels for GPUs: mean and variance over the rows of all ranks, and "
    "the two sums of its gradient, by all-reduces"
)


def install(note: Callable[[str], None]) -> None:
    """Let a step train `SyncBatchNorm`, in this process, for good; ``note`` is told of it.

    Example: ``SyncBatchNorm.convert_sync_batchnorm(model)`` under DDP.
    """

    def forward(layer: SyncBatchNorm, x: torch.Tensor) -> torch.Tensor:
        if not layer.training:
            return torch.nn.modules.batchnorm._BatchNorm.forward(layer, x)
        note(STATISTICS)
        group = layer.process_group or dist.group.WORLD
        normalised: Any = _Normalised.apply
        y, mean, variance, count = normalised(x, layer.weight, layer.bias, layer.eps, group)
        if layer.track_running_stats:
            _track(layer, mean, variance * (count / (count - 1)))
        return y  # type: ignore[no-any-return]

    replace(SyncBatchNorm, "forward", forward)
    # DDP refuses such layers on a CPU.
    replace(DistributedDataParallel, "_passing_sync_batchnorm_handle", lambda *_: None)


@torch.no_grad()
def _track(layer: SyncBatchNorm, mean: torch.Tensor, variance: torch.Tensor) -> None:
    counted: Any = layer.num_batches_tracked
    counted.add_(1)
    part = 1 / counted.item() if layer.momentum is None else layer.momentum
    for own, new in ((layer.running_mean, mean), (layer.running_var, variance)):
        if own is not None:
            own.mul_(1 - part).add_(new.flatten(), alpha=part)


class _Normalised(torch.autograd.Function):
    """Forward and backward as torch's own (`torch.nn.modules._functions.SyncBatchNorm`): the
    gradients of weight and bias are those of the rank's own rows."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        eps: float,
        group: Any,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]:
        over = (0, *range(2, x.dim()))
        rows = torch.full((1,), x.numel() // x.shape[1])
        count = _over_ranks(rows, group).item()  # known where all ranks have as many
        mean = _over_ranks(x.float().sum(over, keepdim=True), group) / count
        centred = x.float() - mean
        variance = _over_ranks(centred.square().sum(over, keepdim=True), group) / count
        scale = torch.rsqrt(variance + eps)
        y = centred * scale
        ctx.save_for_backward(y, weight, scale)
        ctx.group, ctx.over, ctx.count = group, over, count
        wide = (-1, *(1,) * len(over[1:]))
        if weight is not None and bias is not None:
            y = y * weight.view(wide) + bias.view(wide)
        ctx.mark_non_differentiable(mean, variance)
        return y.to(x.dtype), mean, variance, count

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, *_: Any) -> tuple[Any, ...]:
        (y, weight, scale), count = ctx.saved_tensors, ctx.count
        of_bias = gradient.float().sum(ctx.over)
        of_weight = (gradient * y).sum(ctx.over)
        wide = (1, -1, *(1,) * len(ctx.over[1:]))
        inner = gradient if weight is None else gradient * weight.view(wide)
        mean = _over_ranks(inner.float().sum(ctx.over, keepdim=True), ctx.group) / count
        along = _over_ranks((inner * y).sum(ctx.over, keepdim=True), ctx.group) / count
        of_x = (inner - mean - y * along) * scale
        if weight is None:
            return of_x.to(gradient.dtype), None, None, None, None
        return of_x.to(gradient.dtype), of_weight, of_bias, None, None


def _over_ranks(x: torch.Tensor, group: Any) -> torch.Tensor:
    dist.all_reduce(x, group=group)
    return x

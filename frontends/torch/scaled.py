"""Scaled losses (``GradScaler``): gradients are finite, so every step is taken.

A scaler asks whether gradients are finite, and leaves the optimizer's step out where they are not.
That is a value, which nobody knows while a step is recorded; over the reals all numbers are finite.
What it computes of them stays as it is: the loss times the scale, gradients over it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler

from shardproof.frontends.torch.reading import FINITE
from shardproof.frontends.torch.standins import replace


def install(note: Callable[[str], None]) -> None:
    """Let scalers divide gradients by their scale and take every step, in this process, for good;
    ``note`` is told where one asks whether gradients are finite.

    Example: ``scaler.scale(loss).backward(); scaler.step(optimizer)``.
    """

    def unscaled(
        gradients: Sequence[torch.Tensor], infinite: torch.Tensor, inverse: torch.Tensor
    ) -> None:
        """They are of any kind, DTensors too, which a number divides."""
        factor = inverse.item()
        for gradient in gradients:
            gradient.mul_(factor)

    def stepped(
        self: Any, optimizer: torch.optim.Optimizer, state: Any, *args: Any, **kwargs: Any
    ) -> Any:
        note(FINITE)
        return optimizer.step(*args, **kwargs)

    def updated(
        scale: torch.Tensor,
        growth: torch.Tensor,
        infinite: torch.Tensor,
        factor: float,
        backoff: float,
        interval: int,
    ) -> torch.Tensor:
        """It grows after so many steps in a row, each with finite gradients."""
        growth.add_(1)
        if int(growth.item()) >= interval:
            scale.mul_(factor)
            growth.zero_()
        return scale

    replace(torch, "_amp_foreach_non_finite_check_and_unscale_", unscaled)
    replace(torch, "_amp_update_scale_", updated)
    replace(GradScaler, "_maybe_opt_step", stepped)
    # The GPUs that a step names are the CPU, where a scaler for them would switch itself off.
    replace(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)

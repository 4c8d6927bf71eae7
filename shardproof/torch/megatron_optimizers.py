"""Megatron's own optimizers (``get_megatron_optimizer``), with parameters in float32.

`standins_megatron.optimizers` replaces what reads values of tensors.  The distributed optimizer,
whose ranks have intervals of one buffer, is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from shardproof.engine.errors import InvalidInput
from shardproof.torch.stacks import needed
from shardproof.torch.standins_megatron import MADE_FOR

HOME = "megatron.core.optimizer"
REFUSED = ("use_distributed_optimizer", "fp16", "bf16", "optimizer_cpu_offload")


class Own:
    """An optimizer of Megatron's, with its states by parameter.

    Example: ``Own(models, {"lr": 0.01, "clip_grad": 0.0}).step()``.
    """

    def __init__(self, models: list[Any], fields: Mapping[str, Any]) -> None:
        config = _of("OptimizerConfig")(**{"optimizer": "adam", "lr": 0.01, **fields})
        self._own = _of("get_megatron_optimizer")(config, models, use_gloo_process_groups=False)

    @property
    def state(self) -> Mapping[torch.Tensor, Mapping[str, Any]]:
        """States by parameter."""
        return {
            parameter: state
            for each in self._own.chained_optimizers
            if not each.is_stub_optimizer
            for parameter, state in each.optimizer.state.items()
        }

    def step(self) -> None:
        """One step, with the norm of all gradients, and clipping if it is asked for."""
        self._own.step()


def understood(fields: Mapping[str, Any]) -> None:
    """Refuse optimizers that keep other parameters than the model's.

    Example: ``{"use_distributed_optimizer": True}`` is refused.
    """
    for name in REFUSED:
        if fields.get(name):
            raise InvalidInput(f"Megatron's optimizer with {name} is not understood")


def _of(name: str) -> Any:
    return needed("megatron-core", HOME, name, MADE_FOR)

"""Megatron's own optimizers (``get_megatron_optimizer``): Adam with parameters in float32, and the
distributed optimizer, of which every data-parallel rank updates an interval of one buffer.

`standins_megatron.optimizers` replaces what reads values of tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from shardproof.frontends.torch.sharded import Interval
from shardproof.torch.stacks import needed
from shardproof.torch.standins_megatron import MADE_FOR

HOME = "megatron.core.optimizer"
DISTRIBUTED = "use_distributed_optimizer"


class Own:
    """An optimizer of Megatron's, with its states by parameter.

    Example: ``Own(models, {"lr": 0.01, "clip_grad": 1.0}).step()``.
    """

    def __init__(self, models: list[Any], fields: Mapping[str, Any]) -> None:
        config = _of("OptimizerConfig")(**{"optimizer": "adam", "lr": 0.01, **fields})
        self._own = _of("get_megatron_optimizer")(config, models, use_gloo_process_groups=False)

    @property
    def state(self) -> Mapping[torch.Tensor, Mapping[str, Any]]:
        """States by parameter, or by the interval of one."""
        return {
            parameter: state
            for each in self._each()
            for parameter, state in each.optimizer.state.items()
        }

    def step(self) -> None:
        """One step, with the norm of all gradients, and clipping if it is asked for."""
        self._own.step()

    def _each(self) -> Iterator[Any]:
        return (o for o in self._own.chained_optimizers if not o.is_stub_optimizer)


class Distributed(Own):
    """Megatron's distributed optimizer.

    Example: ``Distributed(models, {"use_distributed_optimizer": True})``.
    """

    def interval(self, parameter: torch.Tensor) -> Interval | None:
        """The entries of a parameter that this rank updates, as the optimizer's ranges say."""
        for each in self._each():
            if parameter not in each.model_param_gbuf_map:
                continue
            group, order = each.model_param_group_index_map[parameter]
            own = each._get_model_param_range_map(parameter)["param"]
            shard = each.optimizer.param_groups[group]["params"][order]
            return Interval(own.start, own.end, shard)
        return None


def made(models: list[Any], fields: Mapping[str, Any]) -> Own:
    """The optimizer of an OptimizerConfig's fields.

    Example: `Distributed` for ``{"use_distributed_optimizer": True}``.
    """
    return (Distributed if fields.get(DISTRIBUTED) else Own)(models, fields)


def _of(name: str) -> Any:
    return needed("megatron-core", HOME, name, MADE_FOR)

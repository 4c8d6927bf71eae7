"""Megatron's own optimizers (``get_megatron_optimizer``), with parameters in float32.

`standins_megatron.optimizers` replaces what reads values of tensors.  Replicas of the distributed
optimizer have intervals of DDP's buffers, of which `owned` says which entries of parameters they
are.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

import torch

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.torch.job import named
from shardproof.torch.stacks import needed
from shardproof.torch.standins_megatron import MADE_FOR

HOME = "megatron.core.optimizer"
DISTRIBUTED = "use_distributed_optimizer"
REFUSED = ("fp16", "bf16", "optimizer_cpu_offload")


class Own:
    """An optimizer of Megatron's, with its states by parameter.

    Example: ``Own(models, {"lr": 0.01, "clip_grad": 0.0}).step()``.
    """

    def __init__(self, models: list[Any], fields: Mapping[str, Any]) -> None:
        config = _of("OptimizerConfig")(**{"optimizer": "adam", "lr": 0.01, **fields})
        self._models = models
        self._own = _of("get_megatron_optimizer")(config, models, use_gloo_process_groups=False)

    @property
    def state(self) -> Mapping[torch.Tensor, Mapping[str, Any]]:
        """States by parameter of the model; the distributed optimizer keeps those of intervals."""
        states: dict[torch.Tensor, Mapping[str, Any]] = {}
        for each in self._own.chained_optimizers:
            if each.is_stub_optimizer:
                continue
            states.update(each.optimizer.state)
            if each.config.use_distributed_optimizer:
                whole = chain.from_iterable(each.model_fp32_groups)
                shards = chain.from_iterable(each.shard_fp32_groups)
                for parameter, shard in zip(whole, shards, strict=True):
                    if shard in states:
                        states[parameter] = states.pop(shard)
        return states

    def step(self) -> None:
        """One step, with the norm of all gradients, and clipping if it is asked for; new parameters
        that would be gathered before the next forward call are gathered now."""
        self._own.step()
        for model in self._models:
            if model.ddp_config.overlap_param_gather:
                model.start_param_sync(force_sync=True)


def understood(fields: Mapping[str, Any], ddp: Mapping[str, Any]) -> None:
    """Refuse optimizers that keep other parameters than the model's, and one that divides what DDP
    does not.

    Example: ``{"bf16": True}`` is refused.
    """
    for name in REFUSED:
        if fields.get(name):
            raise InvalidInput(f"Megatron's optimizer with {name} is not understood")
    if bool(fields.get(DISTRIBUTED)) != bool(ddp.get(DISTRIBUTED)):
        raise InvalidInput(
            f"optimizer has {DISTRIBUTED} {bool(fields.get(DISTRIBUTED))}, ddp has "
            f"{bool(ddp.get(DISTRIBUTED))}: expected the same"
        )


def owned(models: list[Any]) -> dict[str, range]:
    """Which entries of its parameters a rank has the gradients and states of, where DDP divides
    them for the distributed optimizer: as that optimizer itself reads DDP's buffers.

    Example: rank 1 of dp 2 may have ``{"w": range(0), "v": range(128, 256)}``.
    """
    distributed = needed("megatron-core", HOME, "distrib_optimizer", MADE_FOR).DistributedOptimizer
    ranges: dict[int, range] = {}
    for model in models:
        if not model.ddp_config.use_distributed_optimizer:
            continue
        for buffer in (*model.buffers, *model.expert_parallel_buffers):
            for parameter in buffer.params:
                ranges[id(parameter)] = range(0)
            for buckets in distributed._build_gbuf_range_map(buffer).values():
                for bucket in buckets:
                    for parameter, at in bucket["param_map"].items():
                        ranges[id(parameter)] = range(at["param"].start, at["param"].end)
    return {name: ranges[id(p)] for name, p in named(models) if id(p) in ranges}


def _of(name: str) -> Any:
    return needed("megatron-core", HOME, name, MADE_FOR)

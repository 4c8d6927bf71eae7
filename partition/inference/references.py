"""What the single-device side defines for the other one, by name."""

from __future__ import annotations

import re
from typing import NamedTuple

from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.ir import Program
from shardproof.engine.schedule.instances import Instance, Unrolled

#: The name of the incoming gradient of the loss, among inputs; and those of batch tensors.
SEED = "loss gradient"
RESERVED = re.compile(r"batch\.[0-9]+")


class Reference(NamedTuple):
    """What the single-device side defines for the other one: the full shapes of parameters,
    buffers and batch tensors by name.

    Example: ``Reference({"wte.weight": (512, 64)}, {"batch.0": (16, 32)})``.
    """

    shards: dict[str, tuple[int, ...]]
    batch: dict[str, tuple[int, ...]]


def reference(program: Program, unrolled: Unrolled) -> Reference:
    """The names and full shapes that the single-device side defines; raises `InvalidInput` where
    two inputs would be one.

    Example: a single-device program that loads its batch twice is refused, as is one with a
    parameter called ``batch.0``.
    """
    loads = [instance for instance in unrolled.instances if instance.kind == "load"]
    if len(loads) > 1:
        raise InvalidInput(f"the single-device plan loads the batch {len(loads)} times, expected 1")
    batch = {
        name: unrolled.tensors[value].shape
        for instance in loads
        for name, value in zip(batch_names(instance), instance.outputs, strict=True)
    }
    for shard in program.shards:
        if shard.name == SEED or RESERVED.fullmatch(shard.name):
            raise InvalidInput(f"a parameter is called {shard.name}, which names another input")
    return Reference({s.name: s.full_shape for s in program.shards}, batch)


def batch_names(instance: Instance) -> list[str]:
    """The names of the batch tensors that a load gives, in order.

    Example: ``["batch.0", "batch.1"]`` for the tokens and the targets of a GPT.
    """
    return [f"batch.{position}" for position in range(len(instance.outputs))]

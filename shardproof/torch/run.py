"""A verdict on two steps of PyTorch: capture both, then decide about what was recorded."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.torch.capture import Limits, capture
from shardproof.frontends.torch.job import Job
from shardproof.frontends.torch.stated import TensorSpec
from shardproof.frontends.torch.trace import PARAMETER, Tensor, Trace
from shardproof.recorded import Combine, answered, measured
from shardproof.run.options import Options
from shardproof.run.progress import Progress
from shardproof.run.result import Result

Step: TypeAlias = Callable[[Job], Any]


def verify(
    single: Step,
    parallel: Step,
    world_size: int,
    batch: Mapping[str, TensorSpec],
    combine: Combine,
    validated: bool,
    limits: Limits,
    options: Options,
    progress: Progress,
) -> Result:
    """Capture both sides and decide; what is wrong with a step is a result too."""

    def work() -> Result:
        start = time.perf_counter()
        progress.phase("load")
        one, many = captured(single, parallel, world_size, batch, limits)
        return answered(one, many, combine, validated, options, progress, start)

    return measured(work, options, progress)


def captured(
    single: Step,
    parallel: Step,
    world_size: int,
    batch: Mapping[str, TensorSpec],
    limits: Limits,
) -> tuple[Trace, list[Trace]]:
    """The traces of the single side, and of all ranks."""
    try:
        (one,) = capture(single, 1, [0], batch, {}, limits)
    except InvalidInput as error:
        raise error.within("single") from error
    try:
        ranks = range(world_size)
        many = capture(parallel, world_size, ranks, batch, full_parameters(one), limits)
    except InvalidInput as error:
        raise error.within("parallel") from error
    return one, many


def full_parameters(single: Trace) -> dict[str, TensorSpec]:
    """The parameters of the single side, by name: what a rank may ask for in full."""
    found = {}
    for event in single.events:
        if event.name == PARAMETER and isinstance(event.outputs[0], Tensor):
            held = single.tensors[event.outputs[0].number]
            found[str(event.kwargs["name"])] = TensorSpec(held.shape, held.dtype)
    return found

"""A verdict on two steps of PyTorch: capture both, then decide about what was recorded."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from shardproof.cluster.settings import Settings
from shardproof.engine.errors import InvalidInput
from shardproof.frontends.torch.capture import Limits, capture
from shardproof.frontends.torch.choice import Chosen, captured
from shardproof.frontends.torch.job import Job
from shardproof.frontends.torch.sides import Known, uncaptured
from shardproof.frontends.torch.stated import TensorSpec
from shardproof.frontends.torch.trace import BUFFER, PARAMETER, Tensor, Trace
from shardproof.recorded import Combine, answered, measured
from shardproof.run.options import Options
from shardproof.run.progress import Progress
from shardproof.run.result import Result
from shardproof.torch import across

Step: TypeAlias = Callable[[Job], Any]


def verify(
    single: Step,
    parallel: Step,
    world_size: int,
    batch: Mapping[str, TensorSpec],
    ranks: Chosen,
    combine: Combine,
    validated: bool,
    limits: Limits,
    options: Options,
    progress: Progress,
) -> Result:
    """Capture both sides and decide; what is wrong with a step is a result too.

    Example: `shardproof.torch.verify` with its limits and options made: captures rank by rank, then
    decides.
    """

    def work() -> Result:
        start = time.perf_counter()
        progress.phase("load")
        one = alone(single, batch, limits)
        known: Known = {}
        settings = options.settings()
        cluster = settings if settings.executor == "ray" else None
        many = chosen(parallel, world_size, ranks, batch, one, limits, known, cluster)
        return answered(one, many, combine, validated, options, progress, start, known)

    return measured(work, options, progress)


def alone(single: Step, batch: Mapping[str, TensorSpec], limits: Limits) -> Trace:
    """The trace of the single side.

    Example: a step that calls ``.item()`` on a loss is refused: "single: ...".
    """
    try:
        (one,) = capture(single, 1, [0], batch, {}, limits)
    except InvalidInput as error:
        raise error.within("single") from error
    return one


def chosen(
    parallel: Step,
    world_size: int,
    ranks: Chosen,
    batch: Mapping[str, TensorSpec],
    one: Trace | None,
    limits: Limits,
    known: Known,
    cluster: Settings | None = None,
) -> list[Trace]:
    """The traces of the chosen ranks; without the single side, tables of constants are taken for
    its own.  ``cluster``: ranks are captured on Ray.

    Example: of a world of 64 and ``ranks="auto"``, as many as it takes to tell what the others do;
    of 16, all.
    """
    full = {} if one is None else full_parameters(one)

    def missing(traces: Sequence[Trace]) -> Sequence[int]:
        return uncaptured(one, traces, known)

    def record(wanted: Sequence[int]) -> list[Trace]:
        if cluster is not None:
            request = across.CaptureRequest(parallel, world_size, batch, full, limits)
            return across.record(request, wanted, cluster)
        return capture(parallel, world_size, wanted, batch, full, limits)

    try:
        return captured(ranks, world_size, record, missing)
    except InvalidInput as error:
        raise error.within("parallel") from error


def full_parameters(single: Trace) -> dict[str, TensorSpec]:
    """The parameters and buffers of the single side, by name: what a rank may ask for in full.

    Example: ``{"w": TensorSpec((16, 16), "float32")}``.
    """
    parameters = {}
    for event in single.events:
        if event.name in (PARAMETER, BUFFER) and isinstance(event.outputs[0], Tensor):
            tensor = single.tensors[event.outputs[0].number]
            parameters[str(event.kwargs["name"])] = TensorSpec(tensor.shape, tensor.dtype)
    return parameters

"""A training script as it stands: its step is recorded under ``shardproof capture``, and runs as
ever without.

::

    for x, y in batches:
        with sp.recording(model, optimizer, batch={"x": x, "y": y}) as job:
            loss = (model(job.batch["x"]) - job.batch["y"]).pow(2).mean()
            loss.backward()
            optimizer.step()
            job.end(loss=loss)

What is recorded is the first such step; the script ends with it.  Everything before runs on fake
tensors, once per rank.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import torch

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.torch.conversions import NAMES
from shardproof.frontends.torch.job import Inputs, Job
from shardproof.frontends.torch.stated import Statement, TensorSpec


class _Recorded(BaseException):
    """The step of a script is recorded: the rest of the script is not run."""


@dataclass(frozen=True, slots=True)
class Production:
    """A job that records nothing: the script runs as ever.  ``batch`` is what the script gave.

    Example: ``Production(0, 1, {"x": x})``: in ``python train.py``, ``job.batch["x"]`` is the
    tensor of the script.
    """

    rank: int
    world_size: int
    batch: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def end(self, loss: Any = None, outputs: Any = None, pieces: Any = None) -> None:
        """Nothing."""


#: The jobs that this process records; a process captures one rank.
_ACTIVE: list[Job] = []

Either: TypeAlias = Job | Production


@contextmanager
def recording(
    model: torch.nn.Module | Sequence[torch.nn.Module],
    optimizer: Any = None,
    *,
    batch: Mapping[str, torch.Tensor] | None = None,
    parameters: Mapping[str, Statement] | None = None,
) -> Iterator[Either]:
    """Around the step of a script: nothing in production; recorded under ``shardproof capture``.

    Example: under ``shardproof capture train.py`` the first
    ``with sp.recording(model, optimizer, batch={"x": x}) as job`` is the step.

    ``batch``: the full batch by name, which is `job.batch` inside (under capture: inputs of the
    same shapes).  ``model``, ``optimizer`` and ``parameters`` are those of `Job.start`; the step
    calls ``job.end`` itself.
    """
    if not _ACTIVE:
        rank, size = (int(os.environ.get(n, d)) for n, d in (("RANK", "0"), ("WORLD_SIZE", "1")))
        yield Production(rank, size, dict(batch or {}))
        return
    job = _ACTIVE[0]
    job.batch = _inputs(job.batch, batch or {})
    job.start(model, optimizer, parameters)
    yield job
    if not job.ended:
        raise InvalidInput("sp.recording ends without job.end")
    raise _Recorded


def _inputs(inputs: Inputs, given: Mapping[str, torch.Tensor]) -> Inputs:
    """What ``--batch`` states, and what the script gives; raises `InvalidInput` if they differ."""
    specs = {name: _spec(name, x) for name, x in given.items()}
    for name, spec in specs.items():
        tensor_spec = inputs.specs.get(name)
        if tensor_spec is not None and (tensor_spec.shape, tensor_spec.dtype) != (
            spec.shape,
            spec.dtype,
        ):
            raise InvalidInput(
                f"sp.recording is given {name} of shape {list(spec.shape)} and type {spec.dtype}, "
                f"--batch states {list(tensor_spec.shape)} and {tensor_spec.dtype}"
            )
    return inputs.extended({n: s for n, s in specs.items() if n not in inputs.specs})


def _spec(name: str, x: object) -> TensorSpec:
    if not isinstance(x, torch.Tensor):
        raise InvalidInput(f"sp.recording: {name} is {type(x).__name__}, expected a tensor")
    return TensorSpec(tuple(x.shape), str(x.dtype).removeprefix("torch."))


def step_of(path: Path, args: Sequence[str]) -> Callable[[Job], None]:
    """A script with its arguments as a step; it is executed, as ``python FILE ARGS`` would.

    Example: a script that ends without such a block is refused: "train.py ends without a step in
    sp.recording".
    """

    def step(job: Job) -> None:
        _ACTIVE.append(job)
        sys.argv = [str(path), *args]
        sys.path.insert(0, str(path.resolve().parent))
        try:
            runpy.run_path(str(path), dict(NAMES), "__main__")
        except _Recorded:
            return
        except SystemExit as error:
            message = f"{path} exits with {error.code!r} before a step is recorded"
            raise InvalidInput(message) from error
        raise InvalidInput(f"{path} ends without a step in sp.recording")

    return step

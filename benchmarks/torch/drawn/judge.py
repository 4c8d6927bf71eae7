"""Whether two steps compute the same, by running them: a process for each rank, over Gloo.

It shares nothing with the recorder or the engine: the steps are called with a job that gives the
parameters and the batch random values in double precision, and compares what they leave with the
single device's. What a proof promises has to be so here; what differs here must not be proved.
"""

from __future__ import annotations

import os
import socket
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from benchmarks.torch.ordinary.parts import Step
from shardproof.frontends.torch.stated import Piece, Same, TensorSpec

Values = dict[str, torch.Tensor]
#: Double precision leaves far less than this; random numbers that differ leave far more.
_NEAR = 1e-7


class RealJob:
    """The job of a step that is run; `found` is what it leaves."""

    def __init__(self, rank: int, size: int, batch: Values, full: Values | None) -> None:
        self.rank, self.world_size, self.batch = rank, size, batch
        self.full = full or {}
        self.alone = full is None
        self.found: dict[str, Any] = {}

    def start(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        self.model, self.optimizer, self.stated = model, optimizer, dict(parameters or {})
        generator = torch.Generator().manual_seed(17)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if self.alone:
                    drawn = torch.randn(parameter.shape, generator=generator)
                    self.full[name] = drawn * 0.5 + (1.0 if parameter.dim() == 1 else 0.0)
                parameter.copy_(self.part(name, self.full))

    def part(self, name: str, of: Values) -> torch.Tensor:
        """This rank's part of a full parameter, or of what has a parameter's shape."""
        said = self.stated.get(name)
        if said is None or isinstance(said, Same):
            return of[name if said is None else said.name]
        pieces: Sequence[Piece] = [said] if isinstance(said, Piece) else said
        cut = [of[p.name].narrow(p.dim, p.start, p.size) for p in pieces]
        return torch.cat(cut, pieces[0].dim)

    def end(self, loss: Any = None, outputs: Values | None = None) -> None:
        losses = [] if loss is None else loss if isinstance(loss, list) else [loss]
        self.found["loss"] = [float(x.detach()) for x in losses]
        kinds: dict[str, Values] = {"gradient": {}, "parameter": {}}
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                kinds["gradient"][name] = parameter.grad.detach().clone()
            kinds["parameter"][name] = parameter.detach().clone()
            for key, value in (self.optimizer.state[parameter] if self.optimizer else {}).items():
                if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                    kinds.setdefault(key, {})[name] = value.clone()
        self.found["kinds"] = kinds


def _values(batch: Mapping[str, TensorSpec], classes: int) -> Values:
    generator, found = torch.Generator().manual_seed(5), {}
    for name, spec in batch.items():
        if "int" not in spec.dtype:
            found[name] = torch.randn(spec.shape, generator=generator)
        elif spec.high is None:
            ids = torch.randint(0, classes, spec.shape, generator=generator)
            found[name] = torch.where(torch.rand(spec.shape, generator=generator) < 0.3, -100, ids)
        else:
            found[name] = torch.randint(spec.low or 0, spec.high, spec.shape, generator=generator)
    return found


def _rank(
    rank: int, size: int, port: int, step: Step, batch: Values, full: Values, to: str
) -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)}
    try:
        dist.init_process_group("gloo", rank=rank, world_size=size, timeout=timedelta(seconds=60))
        job = RealJob(rank, size, batch, full)
        step(job)  # type: ignore[arg-type]
        expected = _expected(job)
        torch.save((job.found, expected), Path(to) / str(rank))
        dist.barrier()  # A rank that is ahead does not leave before the others have its messages.
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        Path(to, f"{rank}.error").write_text(traceback.format_exc())
    os._exit(0)


def _expected(job: RealJob) -> dict[str, Values]:
    """The single device's values, cut as this rank's parameters are."""
    kinds: dict[str, Values] = job.full["\0kinds"]  # type: ignore[assignment]
    return {
        kind: {n: job.part(n, of) for n in job.found["kinds"].get(kind, {})}
        for kind, of in kinds.items()
    }


def differs(
    single: Step, parallel: Step, size: int, batch: Mapping[str, TensorSpec], classes: int
) -> str:
    """What differs first on a rank, or nothing.

    Example: "" for a right program, "gradient of last.weight on rank 1" for a wrong one.

    Raises:
        RuntimeError: a rank ended in an exception of the program's.
    """
    torch.set_num_threads(1)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        values = _values(batch, classes)
        one = RealJob(0, 1, values, None)
        single(one)  # type: ignore[arg-type]
    finally:
        torch.set_default_dtype(before)
    full: dict[str, Any] = {**one.full, "\0kinds": one.found["kinds"]}
    with tempfile.TemporaryDirectory() as folder:
        context, port = mp.get_context("fork"), _port()
        processes = [
            context.Process(target=_rank, args=(r, size, port, parallel, values, full, folder))
            for r in range(size)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(90)
            process.kill()
        errors = sorted(Path(folder).glob("*.error"))
        if errors:
            raise RuntimeError(errors[0].read_text())
        found = [torch.load(Path(folder) / str(r), weights_only=False) for r in range(size)]
    return _loss(one.found["loss"][0], [f["loss"] for f, _ in found]) or _first(found)


def _first(found: list[tuple[dict[str, Any], dict[str, Values]]]) -> str:
    for rank, (left, expected) in enumerate(found):
        for kind, wanted in expected.items():
            have = left["kinds"].get(kind, {})
            for name, value in wanted.items():
                if not torch.allclose(have[name], value, rtol=_NEAR, atol=_NEAR):
                    return f"{kind} of {name} on rank {rank}"
    return ""


def _loss(wanted: float, ranks: list[list[float]]) -> str:
    """Losses of ranks and microbatches are a mean, or a sum of which n ranks have copies."""
    every = [x for losses in ranks for x in losses]
    total = sum(every)
    ways = {n for n in range(1, len(every) + 1) if len(every) % n == 0}
    near = any(abs(total / n - wanted) <= _NEAR * max(1.0, abs(wanted)) for n in ways)
    return "" if near else "the loss"


def _port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])

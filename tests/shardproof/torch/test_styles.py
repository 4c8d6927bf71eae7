"""Programs in styles that people write (`benchmarks.torch.styles`), and a wrong twin."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import shardproof.torch as sp
from benchmarks.torch import style_models, styles, styles_divided

#: Importing them adds their programs.
STYLES = styles, styles_divided
PROGRAMS = {p.name: p for p in style_models.PROGRAMS}


def verify(folder: Path, program: style_models.Program, **options: Any) -> sp.Result:
    return sp.verify(
        program.single,
        program.parallel,
        world_size=program.world_size,
        batch=program.batch,
        executor="local",
        cache=False,
        out=folder / "run",
        **options,
    )


@pytest.mark.parametrize(
    "name",
    [
        # DDP broadcasts buffers and waits for that itself, in C++.
        pytest.param("nanoGPT, tied, DDP", marks=pytest.mark.slow),
        # Momentum that is there before the step is an input.
        "SGD with earlier momentum, DDP",
        # Losses in terms on both sides.
        "no_sync accumulation, DDP",
        # Its states are those of an optimizer of its own.
        pytest.param("ZeroRedundancyOptimizer", marks=pytest.mark.slow),
    ],
)
def test_programs_are_proved(tmp_path: Path, name: str) -> None:
    result = verify(tmp_path, PROGRAMS[name], validate=True)
    assert result.verdict == "proved", sp.told(result)
    assert any("tensors agree with PyTorch" in a for a in result.assumptions)


def test_accumulation_that_is_not_divided_is_refuted(tmp_path: Path) -> None:
    def wrong(job: sp.Job) -> None:
        model: Any = styles.DistributedDataParallel(style_models.Net())
        job.start(model)
        losses = []
        parts = zip(*(t.chunk(2) for t in style_models.own(job, "x", "y")), strict=True)
        for last, (x, y) in enumerate(parts):
            with nullcontext() if last else model.no_sync():
                loss = style_models.mse(model, x, y)
                loss.backward()
            losses.append(loss)
        job.end(loss=losses)

    program = PROGRAMS["no_sync accumulation, DDP"]._replace(parallel=wrong)
    assert verify(tmp_path, program).verdict == "refuted"

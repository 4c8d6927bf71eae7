"""A model exported on one device against captured ranks of a step: proved, refuted, refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import shardproof
import shardproof.torch as sp
from shardproof import sources
from shardproof.engine.errors import InvalidInput
from shardproof.frontends.torch.capture import Limits
from shardproof.inputs import traces
from shardproof.run.options import Options
from shardproof.run.progress import Progress
from shardproof.run.result import Result
from shardproof.torch.run import chosen
from tests.shardproof.torch.steps import MLP, NoAllReduce, Right

ROWS, WIDTH = 8, 4
BATCH = {"x": sp.tensor((ROWS, WIDTH)), "y": sp.tensor((ROWS, WIDTH))}


class Scored(nn.Module):
    """A model with a table of numbers, whose output layer shares the input layer's weight."""

    def __init__(self, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.mlp = MLP() if inner is None else inner
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.last.weight = self.first.weight
        self.register_buffer("scales", torch.tensor([1.0, 2.0, 4.0, 3.0]))

    def forward(self, x: Any, y: Any) -> dict[str, Any]:
        scores = self.last(torch.relu(self.mlp(self.first(x)))) * self.scales
        return {"scores": scores, "loss": (scores - y).pow(2).mean()}


def exported(folder: Path, model: nn.Module, names: tuple[str, ...] = ("x", "y")) -> Path:
    path = folder / "single.pt2"
    inputs = tuple(torch.zeros(ROWS, WIDTH) for _ in names)
    torch.export.save(torch.export.export(model, inputs), path)
    return path


def by_dtensor(job: sp.Job, scale: float = 1.0, rows: bool = False) -> None:
    mesh = init_device_mesh("cpu", (job.world_size,))
    model = Scored()
    plan = {"mlp.up": ColwiseParallel(), "mlp.down": RowwiseParallel()}
    parallelize_module(model, mesh, plan)
    job.start(model)
    out = model(job.batch["x"], job.batch["y"])
    (out["loss"] * scale).backward()
    scores = out["scores"] * scale
    if rows:
        scores = scores.chunk(job.world_size)[job.rank]
    job.end(loss=out["loss"], outputs={"scores": scores})


def by_fsdp(job: sp.Job) -> None:
    model = Scored()
    fully_shard(model, mesh=init_device_mesh("cpu", (job.world_size,)))
    job.start(model)
    x, y = (job.batch[name].chunk(job.world_size)[job.rank] for name in ("x", "y"))
    loss = model(x, y)["loss"]
    loss.backward()
    job.end(loss=loss)


def by_hand(kind: type[MLP]) -> Callable[[sp.Job], None]:
    def step(job: sp.Job) -> None:
        size = 12 // job.world_size
        part = {"start": job.rank * size, "size": size}
        model = kind(size)
        stated = {
            "up.weight": sp.piece("up.weight", dim=0, **part),
            "up.bias": sp.piece("up.bias", dim=0, **part),
            "down.weight": sp.piece("down.weight", dim=1, **part),
        }
        job.start(model, parameters=stated)
        y = model(job.batch["tokens"])
        y.sum().backward()
        job.end(outputs={"y": y})

    return step


def verified(
    folder: Path,
    single: Path,
    step: Callable[[sp.Job], None],
    batch: dict[str, Any] | None = None,
    relations: str = "",
) -> Result:
    """What the command line does: capture, then verify files."""
    ranks = chosen(step, 2, "all", batch or BATCH, traces.alone(single), Limits(), {})
    traces.keep(ranks, folder / "ranks")
    (folder / "relations.toml").write_text(relations)
    options = Options(
        out=folder / "run",
        cache=False,
        relations=folder / "relations.toml" if relations else None,
    )
    return sources.run(single, folder / "ranks", options, Progress(), validated=True)


@pytest.mark.parametrize(("scale", "verdict"), [(1.0, "proved"), (2.0, "refuted")])
def test_dtensor(tmp_path: Path, scale: float, verdict: str) -> None:
    """Of a model with a buffer, and one weight for two layers; by names alone."""
    step = lambda job: by_dtensor(job, scale)  # noqa: E731
    result = verified(tmp_path, exported(tmp_path, Scored()), step)
    assert result.verdict == verdict, result.reason
    assert any("was replayed: 6 tensors agree" in text for text in result.assumptions)
    assert {c.name for c in result.conclusions} == {"loss", "scores"}
    if verdict == "proved":
        assert shardproof.check(tmp_path / "run").ok
    else:
        assert [f.operator for f in result.findings] == ["output scores"]


def test_fsdp_compares_what_the_step_has(tmp_path: Path) -> None:
    result = verified(tmp_path, exported(tmp_path, Scored()), by_fsdp)
    assert result.verdict == "inconclusive"
    assert "what is compared is proved" in result.reason
    assert "scores" in result.reason
    (tmp_path / "stated").mkdir()
    stated = '[[outputs]]\nsingle = "loss"\nparallel = "loss"\n'
    result = verified(tmp_path / "stated", tmp_path / "single.pt2", by_fsdp, relations=stated)
    assert result.verdict == "proved", result.reason


@pytest.mark.parametrize(("kind", "verdict"), [(Right, "proved"), (NoAllReduce, "refuted")])
def test_by_hand(tmp_path: Path, kind: type[MLP], verdict: str) -> None:
    """Inputs of other names are paired by shape where that leaves no choice, outputs by position;
    both are printed."""
    single = exported(tmp_path, MLP(), ("x",))
    result = verified(tmp_path, single, by_hand(kind), {"tokens": sp.tensor((ROWS, WIDTH))})
    assert result.verdict == verdict, result.reason
    told = [d.text for d in result.assumption_details if d.kind == "inferred"]
    assert any("input x of the exported program is the step's tokens" in text for text in told)
    assert any("is the step's y (inferred by position)" in text for text in told)


def test_parts_of_outputs_are_stated(tmp_path: Path) -> None:
    stated = '[[outputs]]\nsingle = "scores"\nparallel = "scores"\nshard = 0\n'
    step = lambda job: by_dtensor(job, rows=True)  # noqa: E731
    result = verified(tmp_path, exported(tmp_path, Scored()), step, relations=stated)
    assert result.verdict == "proved", result.reason
    assert any(c.kind == "output coverage" and c.holds for c in result.conclusions)


REFUSED = {
    "shape": (lambda: Scored(), {**BATCH, "x": sp.tensor((4, WIDTH))}, "", "has shape [8, 4]"),
    "relation": (lambda: Scored(), BATCH, "[groups]\na = [[0, 1]]\n", "is about graphs"),
    "domain": (lambda: Scored(), BATCH, "[domains]\nz = [0, 4]\n", "the step has no such input"),
    "output": (
        lambda: Scored(),
        BATCH,
        '[[outputs]]\nsingle = "z"\nparallel = "loss"\n',
        "expected an output of the exported program",
    ),
    "input": (
        lambda: Scored(),
        BATCH,
        '[inputs.z]\nof = "x"\nreplicated = true\n',
        "the step has no such input",
    ),
    "parameter": (lambda: Scored(nn.Linear(4, 4)), BATCH, "", "mlp.weight"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_belong_together_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    model, batch, relations, message = REFUSED[name]

    def step(job: sp.Job) -> None:
        inner = Scored()
        job.start(inner)
        x, y = job.batch["x"], job.batch["y"][: job.batch["x"].shape[0]]
        job.end(loss=inner(x, y)["loss"])

    single = exported(tmp_path, model())
    result = verified(tmp_path, single, step, batch, relations)
    assert result.verdict == "invalid input"
    assert message in result.reason
    assert "\n" not in result.reason


def test_numbers_that_are_not_there_are_refused(tmp_path: Path) -> None:
    import zipfile

    single = exported(tmp_path, Scored())
    with (
        zipfile.ZipFile(single) as whole,
        zipfile.ZipFile(tmp_path / "cut.pt2", "w") as cut,
    ):
        for item in whole.infolist():
            if "/data/weights/weight" not in item.filename:
                cut.writestr(item, whole.read(item))
    with pytest.raises(InvalidInput, match="expected one"):
        traces.alone(tmp_path / "cut.pt2")

"""A rank or a microbatch with one row: its loss is a position of the sum over all rows."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from benchmarks.torch.ordinary.parts import copy_to, reduce_from  # noqa: E402
from shardproof.checker import check  # noqa: E402

WIDTH, CLASSES, RANKS = 4, 5, 2


def single(job: sp.Job) -> None:
    model = nn.Linear(WIDTH, CLASSES)
    job.start(model)
    loss = F.cross_entropy(model(job.batch["x"]), job.batch["t"])
    loss.backward()
    job.end(loss=loss)


def verify(
    folder: Path, microbatches: int, divisor: int, repeated: bool = False, combine: str = "mean"
) -> sp.Result:
    """One row in every microbatch of every rank; ``repeated``: all are of the first microbatch."""

    def parallel(job: sp.Job) -> None:
        model = nn.Linear(WIDTH, CLASSES)
        job.start(model)
        x, t = (job.batch[n].chunk(RANKS)[job.rank].chunk(microbatches) for n in ("x", "t"))
        losses = []
        for at in range(microbatches):
            at = 0 if repeated else at
            losses.append(F.cross_entropy(model(x[at]), t[at]))
            (losses[-1] / microbatches).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad.div_(divisor)
        job.end(loss=losses)

    count = RANKS * microbatches
    batch = {
        "x": sp.tensor((count, WIDTH)),
        "t": sp.tensor((count,), torch.int64, low=0, high=CLASSES),
    }
    out = folder / f"{microbatches} {divisor} {repeated} {combine}"
    options = {"out": out, "executor": "local", "combine": combine}
    return sp.verify(single, parallel, world_size=RANKS, batch=batch, **options)


@pytest.mark.parametrize("microbatches", [1, 2])
def test_one_row_each(tmp_path: Path, microbatches: int) -> None:
    result = verify(tmp_path, microbatches, RANKS)
    assert result.verdict == "proved", result.reason
    assert check(result.run_dir).ok
    assert verify(tmp_path, microbatches, 1).verdict == "refuted"
    assert verify(tmp_path, microbatches, RANKS, combine="sum").verdict == "refuted"


def test_a_row_twice_is_refuted(tmp_path: Path) -> None:
    assert verify(tmp_path, 2, RANKS, repeated=True).verdict == "refuted"


class Attention(nn.Module):
    """One head whose queries see the keys ``behind`` or further back."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, behind: int) -> torch.Tensor:
        scores = self.q(x) @ self.k(x).transpose(1, 2)
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1 - behind)
        return scores.masked_fill(mask, float("-inf")).softmax(-1) @ x


def attended(job: sp.Job, rows: int, behind: int = 0) -> None:
    """Gradients over four rows, so many at a time."""
    model = Attention()
    job.start(model)
    losses = []
    for x, y in zip(job.batch["x"].split(rows), job.batch["y"].split(rows), strict=True):
        losses.append(((model(x, behind) - y) ** 2).sum())
        losses[-1].backward()
    job.end(loss=torch.stack(losses).sum())


def test_masked_weights_of_one_row_at_a_time(tmp_path: Path) -> None:
    """Autograd masks the gradient of weights that the mask hides already: the product with the mask
    is the single device's value, at one of its rows."""
    batch = {name: sp.tensor((4, 3, WIDTH)) for name in ("x", "y")}

    def verify(name: str, behind: int) -> sp.Result:
        step = partial(attended, rows=1, behind=behind)
        whole = partial(attended, rows=4)
        out = tmp_path / name
        return sp.verify(whole, step, world_size=1, batch=batch, out=out, executor="local")

    result = verify("right", 0)
    assert result.verdict == "proved", result.reason
    assert check(result.run_dir).ok
    assert verify("wrong", -1).verdict == "refuted"


class Turned(nn.Module):
    """Attention of two heads whose queries and keys are turned by position, after a layer."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.Linear(WIDTH, WIDTH), nn.Linear(heads * 4, WIDTH, bias=False)
        self.q, self.k, self.v = (nn.Linear(WIDTH, heads * 4, bias=False) for _ in range(3))

    def forward(self, x: torch.Tensor, other: bool = False) -> torch.Tensor:
        x = copy_to(self.before(x)) if self.heads == 1 else self.before(x)
        q, k, v = (
            part(x).unflatten(-1, (self.heads, 4)).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        angles = torch.outer(torch.arange(x.shape[1]).float(), torch.tensor([1.0, 0.01]))
        cos, sin = (f(angles).repeat(1, 2) for f in (torch.cos, torch.sin))

        def turned(y: torch.Tensor) -> torch.Tensor:
            a, b = y.chunk(2, -1)
            return y * cos + torch.cat([b if other else -b, a], -1) * sin

        y = F.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True)
        y = self.after(y.transpose(1, 2).flatten(2))
        return reduce_from(y) if self.heads == 1 else y


@pytest.mark.parametrize("other", [False, True])
def test_one_head_of_a_rank_and_one_row_at_a_time(tmp_path: Path, other: bool) -> None:
    """Which half of which head of which row: digits as the single device reads them, and three
    gradients of one row that are added up in another order."""

    def whole(job: sp.Job) -> None:
        model = Turned(2)
        job.start(model)
        loss = ((model(job.batch["x"]) - job.batch["y"]) ** 2).sum()
        loss.backward()
        job.end(loss=loss)

    def parallel(job: sp.Job) -> None:
        model = Turned(1)
        at = 4 * job.rank
        names = {f"before.{n}": sp.same(f"before.{n}") for n in ("weight", "bias")}
        names |= {f"{n}.weight": sp.piece(f"{n}.weight", dim=0, start=at, size=4) for n in "qkv"}
        names["after.weight"] = sp.piece("after.weight", dim=1, start=at, size=4)
        job.start(model, parameters=names)
        losses = []
        for x, y in zip(job.batch["x"].split(1), job.batch["y"].split(1), strict=True):
            losses.append(((model(x, other) - y) ** 2).sum())
            losses[-1].backward()
        job.end(loss=torch.stack(losses).sum())

    batch = {name: sp.tensor((2, 3, WIDTH)) for name in ("x", "y")}
    options = {"out": tmp_path / "run", "executor": "local"}
    result = sp.verify(whole, parallel, world_size=RANKS, batch=batch, **options)
    assert result.verdict == ("refuted" if other else "proved"), result.reason
    assert other or check(result.run_dir).ok


def shifted(job: sp.Job, count: int, microbatches: int, factor: float, parallel: bool) -> None:
    """The next token is the label, and nothing behind the last: a mean over all but the last."""
    net = nn.ModuleList([nn.Embedding(CLASSES, WIDTH), nn.Linear(WIDTH, CLASSES, bias=False)])
    job.start(net)
    ids, labels = (job.batch[n].chunk(count)[job.rank] for n in ("ids", "labels"))
    losses = []
    for x, y in zip(ids.chunk(microbatches), labels.chunk(microbatches), strict=True):
        scores = net[1](torch.tanh(net[0](x)))
        target = F.pad(y, (0, 1), value=-100)[..., 1:].contiguous()
        losses.append(F.cross_entropy(scores.view(-1, CLASSES), target.view(-1)) / microbatches)
        (factor * losses[-1]).backward()
    for parameter in net.parameters() if parallel else ():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
    job.end(loss=losses)


@pytest.mark.parametrize(
    ("length", "microbatches", "factor", "verdict"),
    [
        (4, 1, 1, "proved"),
        (4, 2, 1, "proved"),
        (4, 1, 2, "refuted"),
        # One label of a row is a number, of which no view tells where it lies: nothing is refuted.
        (2, 1, 1, "inconclusive"),
    ],
)
def test_labels_of_one_row_are_shifted(
    tmp_path: Path, length: int, microbatches: int, factor: float, verdict: str
) -> None:
    ids = sp.tensor((RANKS * microbatches, length), torch.int64, low=0, high=CLASSES)
    result = sp.verify(
        partial(shifted, count=1, microbatches=1, factor=1, parallel=False),
        partial(shifted, count=RANKS, microbatches=microbatches, factor=factor, parallel=True),
        world_size=RANKS,
        batch={"ids": ids, "labels": ids},
        executor="local",
        cache=False,
        out=tmp_path / "run",
    )
    assert result.verdict == verdict, sp.told(result)
    if verdict == "proved":
        assert check(tmp_path / "run").ok


def typed(job: sp.Job, count: int, factor: float) -> None:
    """Every token is of the first type, which is a row of a table, and normed with it."""
    net = nn.ModuleList([nn.Embedding(CLASSES, WIDTH), nn.Embedding(2, WIDTH), nn.LayerNorm(WIDTH)])
    job.start(net)
    ids = job.batch["ids"].chunk(count)[job.rank]
    loss = net[2](net[0](ids) + net[1](torch.zeros_like(ids))).square().mean()
    (factor * loss).backward()
    for parameter in net.parameters() if count > 1 else ():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
    job.end(loss=loss)


@pytest.mark.parametrize("factor", [1, 2])
def test_one_row_beside_a_known_row_of_a_table(tmp_path: Path, factor: int) -> None:
    result = sp.verify(
        partial(typed, count=1, factor=1),
        partial(typed, count=RANKS, factor=factor),
        world_size=RANKS,
        batch={"ids": sp.tensor((RANKS, 3), torch.int64, low=0, high=CLASSES)},
        executor="local",
        cache=False,
        out=tmp_path / "run",
    )
    assert result.verdict == ("proved" if factor == 1 else "refuted"), sp.told(result)
    assert factor > 1 or check(tmp_path / "run").ok

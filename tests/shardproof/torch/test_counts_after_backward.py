"""Ranks that go backward from a sum of losses, add up gradients, and divide these by the count of
all labels, beside a single device that divides its loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from shardproof.engine.plan.expectations import GRADIENT  # noqa: E402
from shardproof.engine.plan.ir import Addend, Body, Expectation, Op, Plan, Program, Value  # noqa: E402
from shardproof.frontends.torch.late import Reading, divided_late  # noqa: E402

WORDS, WIDTH, IGNORED = 12, 8, 0
IDS = sp.tensor((4, 5), torch.long, low=0, high=WORDS)


class Model(nn.Module):
    """Layers between a table and its head, with a norm that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(WORDS, WIDTH), nn.LayerNorm(WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        for layer in self.layers:
            x = x + F.silu(layer(self.norm(x)))
        return self.head(x)  # type: ignore[no-any-return]


def begun(job: sp.Job, optimizes: bool) -> tuple[Model, torch.optim.Optimizer | None]:
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01) if optimizes else None
    job.start(model, optimizer)
    return model, optimizer


def summed(model: Model, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    logits = model(ids).flatten(0, 1)
    return F.cross_entropy(logits, labels.flatten(), ignore_index=IGNORED, reduction="sum")


def single(mean: bool, optimizes: bool) -> Callable[[sp.Job], None]:
    """``mean``: PyTorch's own, in place of a sum by the count of labels that count."""

    def run(job: sp.Job) -> None:
        model, optimizer = begun(job, optimizes)
        ids, labels = job.batch["ids"], job.batch["labels"]
        if mean:
            logits = model(ids).flatten(0, 1)
            loss = F.cross_entropy(logits, labels.flatten(), ignore_index=IGNORED)
        else:
            loss = summed(model, ids, labels) / (labels != IGNORED).sum()
        loss.backward()
        if optimizer is not None:
            optimizer.step()
        job.end(loss=loss)

    return run


def ranks(how: str, optimizes: bool, mistake: str = "") -> Callable[[sp.Job], None]:
    """``how``: "divided", "multiplied" or divided "before" they are added up; in "microbatches" of
    one row; ``mistake``: the count of a rank's "own" labels, or of "all" those that are ignored,
    too."""

    def run(job: sp.Job) -> None:
        model, optimizer = begun(job, optimizes)
        ids, labels = (job.batch[name].chunk(2)[job.rank] for name in ("ids", "labels"))
        count = (labels != IGNORED).sum()
        if mistake == "all":
            count = torch.tensor(labels.numel())
        if mistake != "own":
            dist.all_reduce(count)
        total = torch.zeros(())
        for rows in range(2) if how == "microbatches" else (slice(None),):
            part = summed(model, ids[rows].view(-1, 5), labels[rows].view(-1, 5))
            part.backward()
            total = total + part.detach()
        for parameter in model.parameters():
            assert parameter.grad is not None
            if how == "before":
                parameter.grad /= count
            dist.all_reduce(parameter.grad)
            if how == "multiplied":
                parameter.grad *= 1 / count
            elif how != "before":
                parameter.grad /= count
        if optimizer is not None:
            optimizer.step()
        job.end(loss=total / count)

    return run


@pytest.mark.parametrize(
    ("mean", "how", "optimizes", "mistake"),
    [
        (False, "divided", False, ""),
        (True, "multiplied", True, ""),
        (True, "before", False, ""),
        (False, "microbatches", True, ""),
        (True, "divided", False, "own"),
        (False, "divided", False, "all"),
    ],
)
def test_gradients_that_are_divided_once_they_are_added_up(
    mean: bool, how: str, optimizes: bool, mistake: str, tmp_path: Path
) -> None:
    result = sp.verify(
        single(mean, optimizes),
        ranks(how, optimizes, mistake),
        world_size=2,
        batch={"ids": IDS, "labels": IDS},
        validate=True,
        executor="local",
        cache=False,
        out=tmp_path / "run",
    )
    assert result.verdict == ("refuted" if mistake else "proved"), sp.told(result)


def sharded(mistake: bool) -> Callable[[sp.Job], None]:
    """Under FSDP2, whose gradients are means over ranks, clipped by their norm; ``mistake``: that
    they are means is left out."""

    def run(job: sp.Job) -> None:
        mesh = init_device_mesh("cpu", (2,))
        model = Model()
        for part in (*model.layers, model):
            fully_shard(part, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        job.start(model, optimizer)
        ids, labels = (job.batch[name].chunk(2)[job.rank] for name in ("ids", "labels"))
        count = (labels != IGNORED).sum()
        dist.all_reduce(count)
        total = summed(model, ids, labels)
        total.backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad *= (1 if mistake else 2) / count
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        job.end(loss=total.detach() / count)

    return run


def clipped(job: sp.Job) -> None:
    model, optimizer = begun(job, optimizes=True)
    logits = model(job.batch["ids"]).flatten(0, 1)
    loss = F.cross_entropy(logits, job.batch["labels"].flatten(), ignore_index=IGNORED)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    assert optimizer is not None
    optimizer.step()
    job.end(loss=loss)


@pytest.mark.parametrize("mistake", [False, True])
def test_means_of_shards_that_are_scaled_and_clipped(mistake: bool, tmp_path: Path) -> None:
    result = sp.verify(
        clipped,
        sharded(mistake),
        world_size=2,
        batch={"ids": IDS, "labels": IDS},
        executor="local",
        cache=False,
        out=tmp_path / "run",
    )
    assert result.verdict == ("refuted" if mistake else "proved"), sp.told(result)


def body(late: bool) -> Body:
    """The gradient of ``sum(w x) / sum(n)`` by ``w``; ``late``: divided at its end."""
    shape, one = (3,), ()
    values = [Value(s, name=n) for s, n in ((shape, "x"), (shape, "n"), (one, "zero"), (one, "1"))]
    values += [Value(one, name="count"), Value(one, name="quotient"), Value(shape), Value(shape)]
    ops = [
        Op("sum", (1,), (4,), {"dims": (0,)}),
        Op("mul", (4,), (2,), {"other": Fraction(0)}),
        Op("add", (2,), (3,), {"other": Fraction(1)}),
        Op("silu", (0, 0), (6,), {"arity": 1, "wrt": (0,)}, backward=True),
        Op("all_reduce", (6,), (7,)),
    ]
    if late:
        values.append(Value(shape))
        return Body("ranks", tuple(values), (*ops, Op("div", (7, 4), (8,))), results=(8,))
    ops[3:] = [
        Op("div", (3, 4), (5,)),
        Op("expand", (5,), (6,), {"size": shape}),
        Op("silu", (0, 6), (7,), {"arity": 1, "wrt": (0,)}, backward=True),
    ]
    return Body("single", tuple(values), tuple(ops), results=(7,))


def plan(single_side: Body, ranks_side: Body) -> Plan:
    one, many = single_side.results[0], ranks_side.results[0]
    row = Expectation(GRADIENT, "w", (Addend(0, 0, one),), (Addend(0, 0, many),))
    programs = [Program(b.name, (b,), ()) for b in (single_side, ranks_side)]
    return Plan("late", programs[0], (programs[1],), 1, expectations=(row,))


def test_only_what_is_linear_is_divided_late() -> None:
    """What squares the quotient reads it divided; ranks that divide early leave all as it is."""
    early, late = body(late=False), body(late=True)
    made = divided_late(plan(early, late)).single.bodies[0]
    assert made.results == early.results
    assert made.ops[-1] == Op("div", (len(early.values), 4), (7,))
    assert not any(op.outputs == (5,) for op in made.ops)
    assert divided_late(plan(early, early)) == plan(early, early)
    assert divided_late(plan(late, late)) == plan(late, late)
    squared = replace(
        early,
        values=(*early.values, Value((3,))),
        ops=(*early.ops, Op("mul", (7, 7), (8,))),
        results=(8,),
    )
    made = divided_late(plan(squared, late)).single.bodies[0]
    assert made.ops[-2:] == (Op("div", (9, 4), (7,)), Op("mul", (7, 7), (8,)))
    (_, linear), *_ = Reading(squared).divided()
    assert linear == {5, 6, 7}

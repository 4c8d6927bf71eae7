"""Random operators of recorded steps: dropout, noise, hand-written masks; each beside wrong ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from shardproof.frontends.torch import trace  # noqa: E402
from shardproof.frontends.torch.capture import capture  # noqa: E402
from tests.shardproof.torch.steps import CopyTo, ReduceFrom  # noqa: E402

BATCH = {"x": sp.tensor((4, 4))}
Forward = Callable[[nn.Module, torch.Tensor], torch.Tensor]
Step = Callable[[sp.Job], None]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.dropout(F.gelu(self.up(x)), 0.1)) + x


def alone(forward: Forward) -> Step:
    def step(job: sp.Job) -> None:
        model = Model()
        job.start(model)
        loss = forward(model, job.batch["x"]).pow(2).mean()
        loss.backward()
        job.end(loss=loss)

    return step


def replicas(forward: Forward, seed: Callable[[int], int] | None = None) -> Step:
    def step(job: sp.Job) -> None:
        model = DistributedDataParallel(Model())
        job.start(model)
        if seed is not None:
            torch.manual_seed(seed(job.rank))
        loss = forward(model, job.batch["x"].chunk(2)[job.rank]).pow(2).mean()
        loss.backward()
        job.end(loss=loss)

    return step


def verdict(tmp_path: Path, single: Step, parallel: Step, world: int = 2, **more: Any) -> sp.Result:
    return sp.verify(
        single,
        parallel,
        world_size=world,
        batch=more.pop("batch", BATCH),
        validate=True,
        executor="local",
        cache=False,
        out=str(tmp_path / "run"),
        **more,
    )


# -- what is drawn, under data parallelism ---------------------------------------------------------


def dropped(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return F.dropout(model(x), 0.3)


def noised(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    noise = torch.randn_like(x)
    return model(x + 0.3 * noise) - noise


def path(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    kept = (0.9 + torch.rand((x.shape[0], 1))).floor_()
    return x + model(x) / 0.9 * kept


def below(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x) * (torch.rand_like(x) < 0.8) / 0.8


def filled(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).masked_fill(torch.rand(x.shape) < 0.2, 0.0) / 0.8


def unscaled(model: nn.Module, x: torch.Tensor, kept: float = 0.9) -> torch.Tensor:
    return model(x) * torch.bernoulli(torch.full_like(x, kept))


def recomputed(model: nn.Module, x: torch.Tensor, restored: bool = True) -> torch.Tensor:
    return checkpoint(model, x, use_reentrant=False, preserve_rng_state=restored)


def attended(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    q = x.view(-1, 2, 2)
    hidden = F.scaled_dot_product_attention(q, q, q, dropout_p=0.2).reshape(x.shape)
    maps = F.dropout2d(model(x).view(-1, 2, 2, 1).expand(-1, 2, 2, 3), 0.2)
    return hidden + maps[..., 0].reshape(x.shape)


def distributions(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    counts = torch.randint(0, 10, (x.shape[0], 1))
    spread = torch.empty_like(x).uniform_(-1, 1) + torch.empty_like(x).normal_(1.0, 0.5)
    return F.gumbel_softmax(model(x)) * counts + F.alpha_dropout(model(x), 0.3) + x * spread


RIGHT = (
    dropped,
    noised,
    path,
    below,
    filled,
    unscaled,
    recomputed,
    attended,
    distributions,
)


@pytest.mark.parametrize("forward", RIGHT, ids=lambda f: f.__name__)
def test_draws_of_replicas_are_proved(tmp_path: Path, forward: Forward) -> None:
    result = verdict(tmp_path, alone(forward), replicas(forward))
    assert result.verdict == "proved", result
    assert any("draw the numbers that the single device draws" in a for a in result.assumptions)


@pytest.mark.parametrize("forward", RIGHT, ids=lambda f: f.__name__)
def test_draws_of_one_row_on_each_replica_are_proved(tmp_path: Path, forward: Forward) -> None:
    """Of a batch of one row there is no dimension."""
    rows = {"x": sp.tensor((2, 4))}
    result = verdict(tmp_path, alone(forward), replicas(forward), batch=rows)
    assert result.verdict == "proved", sp.told(result)


def test_one_row_that_is_dropped_by_another_chance_is_refuted(tmp_path: Path) -> None:
    rows = {"x": sp.tensor((2, 4))}
    other = replicas(lambda m, x: F.dropout(m(x), 0.2))
    assert verdict(tmp_path, alone(dropped), other, batch=rows).verdict == "refuted"


WRONG: dict[str, tuple[Forward, Forward, str]] = {
    "another chance": (dropped, lambda m, x: F.dropout(m(x), 0.2), "bernoulli(0.8)"),
    "another chance, not divided by it": (
        unscaled,
        lambda m, x: unscaled(m, x, 0.8),
        "bernoulli(0.8)",
    ),
    "dropped after it is doubled": (dropped, lambda m, x: F.dropout(2 * m(x), 0.3), ""),
    "nothing is dropped": (dropped, lambda m, x: m(x), ""),
    "drawn again where it is recomputed": (
        recomputed,
        lambda m, x: recomputed(m, x, restored=False),
        "",
    ),
    "noise of another size": (
        noised,
        lambda m, x: m(x + 0.6 * (n := torch.randn_like(x))) - n,
        "",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_other_draws_are_refuted(tmp_path: Path, name: str) -> None:
    right, wrong, words = WRONG[name]
    result = verdict(tmp_path, alone(right), replicas(wrong))
    assert result.verdict == "refuted", result
    assert words in str(result)


def test_noise_that_is_drawn_again_is_not_proved(tmp_path: Path) -> None:
    def again(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return model(x + 0.3 * torch.randn_like(x)) - torch.randn_like(x)

    result = verdict(tmp_path, alone(noised), replicas(again))
    assert result.verdict == "inconclusive", result
    assert "nothing says which part" in str(result)


def nested(model: nn.Module, x: torch.Tensor, once: bool = True) -> torch.Tensor:
    """Two masks of one uniform number, or of two."""
    y = model(x)
    first = torch.rand_like(y)
    second = first if once else torch.rand_like(y)
    return y * (first < 0.5) + y.sin() * (second < 0.9)


def test_masks_of_one_number_are_not_those_of_two(tmp_path: Path) -> None:
    right = verdict(tmp_path / "a", alone(nested), replicas(nested))
    assert right.verdict == "proved", right
    wrong = replicas(lambda m, x: nested(m, x, once=False))
    assert verdict(tmp_path / "b", alone(nested), wrong).verdict == "inconclusive"


def test_what_is_dropped_again_in_part_is_refuted(tmp_path: Path) -> None:
    def twice(model: nn.Module, x: torch.Tensor, again: bool = False) -> torch.Tensor:
        y = model(x)
        dropped = F.dropout(y, 0.3)
        part = F.dropout(y[:1], 0.3) if again else dropped[:1]
        return dropped + part.sum()

    right = verdict(tmp_path / "a", alone(twice), alone(twice), 1)
    assert right.verdict == "proved", right
    wrong = alone(lambda m, x: twice(m, x, again=True))
    assert verdict(tmp_path / "b", alone(twice), wrong, 1).verdict == "refuted"


def test_replicas_may_draw_from_unlike_seeds(tmp_path: Path) -> None:
    result = verdict(tmp_path, alone(dropped), replicas(dropped, seed=lambda rank: rank))
    assert result.verdict == "proved", result


# -- seeds where ranks hold the same ---------------------------------------------------------------


def tensor_parallel(
    parallel: bool, seed: Callable[[int], int] = lambda rank: 0, early: bool = False
) -> Step:
    """Two dropouts of what all ranks have alike; ``early``: the second of parts of a sum."""

    def step(job: sp.Job) -> None:
        torch.manual_seed(seed(job.rank))
        model = nn.Module()
        if parallel:
            model.a = nn.Parameter(job.full["a"].chunk(2)[job.rank])
            model.b = nn.Parameter(job.full["b"].chunk(2, 1)[job.rank])
        else:
            model.a, model.b = nn.Parameter(torch.randn(8, 4)), nn.Parameter(torch.randn(4, 8))
        job.start(model)
        x = job.batch["x"]
        h = F.dropout(x, 0.25)
        h = F.gelu((CopyTo.apply(h) if parallel else h) @ model.a.t()) @ model.b.t()
        h = F.dropout(h, 0.1) if early else h
        h = ReduceFrom.apply(h) if parallel else h
        h = h if early else F.dropout(h, 0.1)
        loss = (h + x).pow(2).mean()
        loss.backward()
        job.end(loss=loss)

    return step


@pytest.mark.parametrize("early", [False, True])
def test_ranks_of_one_seed_drop_alike(tmp_path: Path, early: bool) -> None:
    result = verdict(tmp_path, tensor_parallel(False), tensor_parallel(True, early=early))
    assert result.verdict == "proved", result
    assert any("same seed" in a for a in result.assumptions)
    strict = verdict(tmp_path / "s", tensor_parallel(False), tensor_parallel(True), strict=True)
    assert strict.verdict == "inconclusive", strict


def test_ranks_of_unlike_seeds_are_refuted(tmp_path: Path) -> None:
    parallel = tensor_parallel(True, seed=lambda rank: rank)
    result = verdict(tmp_path, tensor_parallel(False), parallel)
    assert result.verdict == "refuted", result
    assert "the states of their generators differ" in result.findings[0].message
    assert "test_draws.py" in result.findings[0].source


# -- other ways to be parallel ---------------------------------------------------------------------


def sharded(job: sp.Job) -> None:
    model = Model()
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    job.start(model)
    loss = dropped(model, job.batch["x"].chunk(2)[job.rank]).pow(2).mean()
    loss.backward()
    job.end(loss=loss)


def microbatches(job: sp.Job) -> None:
    model = Model()
    job.start(model)
    losses = [dropped(model, rows).pow(2).mean() / 2 for rows in job.batch["x"].chunk(2)]
    for loss in losses:
        loss.backward()
    job.end(loss=losses)


def stages(job: sp.Job) -> None:
    whole = Model()
    stage = nn.Module()
    if job.rank == 0:
        stage.up = whole.up
    else:
        stage.down = whole.down
    job.start(stage)
    losses = []
    for rows in job.batch["x"].chunk(2):
        if job.rank == 0:
            hidden = F.dropout(F.gelu(stage.up(rows)), 0.1)
            dist.send(hidden.detach(), 1)
            gradient = torch.empty_like(hidden)
            dist.recv(gradient, 1)
            hidden.backward(gradient)
            continue
        hidden = torch.empty(2, 8)
        dist.recv(hidden, 0)
        hidden.requires_grad_()
        loss = F.dropout(stage.down(hidden) + rows, 0.3).pow(2).mean() / 2
        loss.backward()
        dist.send(hidden.grad, 0)
        losses.append(loss)
    job.end(loss=losses or None)


@pytest.mark.parametrize("parallel", [sharded, microbatches, stages], ids=lambda f: f.__name__)
def test_shards_microbatches_and_stages_draw_their_parts(tmp_path: Path, parallel: Step) -> None:
    world = 1 if parallel is microbatches else 2
    result = verdict(tmp_path, alone(dropped), parallel, world)
    assert result.verdict == "proved", result


def test_a_microbatch_that_is_not_dropped_is_refuted(tmp_path: Path) -> None:
    def step(job: sp.Job) -> None:
        model = Model()
        job.start(model)
        first, second = job.batch["x"].chunk(2)
        losses = [dropped(model, first).pow(2).mean() / 2, model(second).pow(2).mean() / 2]
        for loss in losses:
            loss.backward()
        job.end(loss=losses)

    result = verdict(tmp_path, alone(dropped), step, 1)
    assert result.verdict == "refuted", result


# -- states ----------------------------------------------------------------------------------------


def test_a_state_that_is_restored_draws_the_same_again() -> None:
    def step(job: sp.Job) -> None:
        model = Model()
        job.start(model)
        state = torch.get_rng_state()
        first, second = (F.dropout(job.batch["x"], 0.5) for _ in range(2))
        torch.set_rng_state(state)
        again = F.dropout(job.batch["x"], 0.5)
        job.end(outputs={"y": first + second + again})

    (recorded,) = capture(step, 1, [0], BATCH, {})
    states = [e.kwargs[trace.DRAW] for e in recorded.events if e.name == "aten.bernoulli_.float"]
    assert len(states) == 3
    assert states[0] == states[2] != states[1]


@pytest.mark.parametrize("seeded", [False, True])
@pytest.mark.parametrize("owner", ["Python's", "NumPy's"])
def test_numbers_that_python_draws_are_named(owner: str, seeded: bool) -> None:
    def step(job: sp.Job) -> None:
        model = nn.Linear(4, 4)
        job.start(model)
        source: Any = random if owner == "Python's" else np.random
        if seeded:
            source.seed(3)
        loss = (model(job.batch["x"]) * float(source.random())).sum()
        loss.backward()
        job.end(loss=loss)

    (recorded,) = capture(step, 1, [0], BATCH, {})
    named = [note for note in recorded.notes if f"{owner} random numbers" in note]
    assert bool(named) == (not seeded)


def test_pytorch_numbers_its_operations_without_the_numbers_of_the_step() -> None:
    def step(job: sp.Job) -> None:
        model = nn.Linear(4, 4)
        job.start(model)
        loss = model(job.batch["x"]).sum()
        dist.all_reduce(loss.detach())
        loss.backward()
        job.end(loss=loss)

    (recorded,) = capture(step, 2, [0], BATCH, {})
    assert not [note for note in recorded.notes if "random numbers" in note]

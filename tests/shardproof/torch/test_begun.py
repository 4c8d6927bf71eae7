"""States that an optimizer has before the step are inputs: the same ones on both sides."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

import shardproof.torch as sp  # noqa: E402


def step(
    begins: float, *, divided: bool, zeros: bool = False, norm: bool = False
) -> Callable[[sp.Job], None]:
    """A layer and Adagrad; ``zeros``: the weight begins with ``begins``, and a copy of it is a
    state; ``norm``: the weight begins with ones, and there is no matrix."""

    def run(job: sp.Job) -> None:
        model = torch.nn.LayerNorm(4, bias=False) if norm else torch.nn.Linear(4, 4, bias=False)
        optimizer = torch.optim.Adagrad(
            model.parameters(), lr=0.1, initial_accumulator_value=begins
        )
        if zeros:
            torch.nn.init.constant_(model.weight, begins)
            copied = model.weight.detach().clone()
            optimizer.state[model.weight] = {**optimizer.state[model.weight], "sum": copied}
        job.start(model, optimizer)
        x = job.batch["x"]
        if divided:
            count = len(x) // job.world_size
            x = x[job.rank * count : (job.rank + 1) * count]
        loss = model(x).tanh().pow(2).mean()
        loss.backward()
        if divided:
            dist.all_reduce(model.weight.grad)
            model.weight.grad /= job.world_size
        optimizer.step()
        job.end(loss=loss)

    return run


def verified(single: Callable[[sp.Job], None], parallel: Callable[[sp.Job], None]) -> sp.Result:
    return sp.verify(single, parallel, world_size=2, batch={"x": sp.tensor((4, 4))})


@pytest.mark.parametrize(("begins", "verdict"), [(0.5, "proved"), (0.25, "invalid input")])
def test_sums_that_begin_with_another_number_are_named(begins: float, verdict: str) -> None:
    result = verified(step(0.5, divided=False), step(begins, divided=True))
    assert result.verdict == verdict, sp.told(result)
    told = "rank 0: the state weight: sum is 0.25 before the step, on the single side it is 0.5"
    assert (told in sp.told(result)) == (verdict != "proved")


@pytest.mark.parametrize(("single", "ranks"), [(1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.0, 0.0)])
def test_a_state_with_the_number_of_its_parameter_is_no_copy_on_one_side(
    single: float, ranks: float
) -> None:
    """Sums that begin with 1, as the weight of a norm does."""
    result = verified(step(single, divided=False, norm=True), step(ranks, divided=True, norm=True))
    assert result.verdict == ("proved" if single == ranks else "invalid input"), sp.told(result)


def averaged(begins: str, *, divided: bool) -> Callable[[sp.Job], None]:
    """A layer and an average of its gradients, which begins with zeros, or as a copy of it."""

    def run(job: sp.Job) -> None:
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for p in model.parameters():
            made = {"zeros": torch.zeros_like, "copy": torch.clone, "half": lambda p: p * 0.5}
            optimizer.state[p] = {"average": made[begins](p.detach())}
        job.start(model, optimizer)
        x = job.batch["x"].chunk(2)[job.rank] if divided else job.batch["x"]
        loss = model(x).tanh().pow(2).mean()
        loss.backward()
        for p in model.parameters():
            assert p.grad is not None
            if divided:
                dist.all_reduce(p.grad)
                p.grad /= 2
            p.data -= optimizer.state[p]["average"].lerp_(p.grad, 0.1)
        job.end(loss=loss)

    return run


@pytest.mark.parametrize("single", ["zeros", "copy", "half"])
@pytest.mark.parametrize("ranks", ["zeros", "copy"])
def test_a_state_that_begins_with_zeros_is_no_copy_of_weights(single: str, ranks: str) -> None:
    result = verified(averaged(single, divided=False), averaged(ranks, divided=True))
    same = (single == "zeros") == (ranks == "zeros")
    assert result.verdict == ("proved" if same else "invalid input"), sp.told(result)


def test_a_copy_of_a_parameter_begins_with_anything() -> None:
    """What weights begin with is nobody's business, nor is what a copy of them does."""
    result = verified(step(0.5, divided=False, zeros=True), step(0.25, divided=True, zeros=True))
    assert result.verdict == "proved", sp.told(result)

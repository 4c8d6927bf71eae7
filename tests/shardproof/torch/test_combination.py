"""How losses of ranks combine, where none of the ways is proved."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from benchmarks.torch.ordinary.parts import Step, ids, rows  # noqa: E402
from benchmarks.torch.unseen.heads import Model  # noqa: E402
from shardproof.engine.reference_runtime import compare  # noqa: E402


def entropy(job: sp.Job) -> None:
    model = Model()
    job.start(model)
    logits = model.head(model.norm(model.embed(job.batch["ids"])))
    loss = F.cross_entropy(logits.flatten(0, 1), job.batch["labels"].flatten())
    loss.backward()
    job.end(loss=loss)


def by_hand(factor: float) -> Step:
    """The mean of log-probabilities times a one-hot, over own rows."""

    def step(job: sp.Job) -> None:
        model = Model()
        job.start(model)
        tokens, labels = rows(job, "ids", "labels")
        logits = model.head(model.norm(model.embed(tokens)))
        chosen = F.log_softmax(logits, -1) * F.one_hot(labels, logits.shape[-1])
        loss = -factor * chosen.sum(-1).mean()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        job.end(loss=loss)

    return step


@pytest.mark.parametrize("steps", [compare.MOST_STEPS, 0])
@pytest.mark.parametrize("factor", [1, 3])
def test_a_mean_is_proved_for_losses_of_own_rows(
    factor: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where axes are smaller, rows of the batch are alike, and every rank's loss is the mean.
    ``steps``: how large a plan may be whose ranks are run one by one."""
    monkeypatch.setattr(compare, "MOST_STEPS", steps)
    result = sp.verify(
        entropy,
        by_hand(factor),
        world_size=2,
        batch=ids("ids", "labels"),
        executor="local",
        cache=False,
    )
    assert result.verdict == ("proved" if factor == 1 else "refuted"), result.reason


@pytest.mark.parametrize(("factor", "expected"), [(1, "inconclusive"), (2, "refuted")])
def test_losses_that_are_numbers_of_positive_inputs_only(factor: int, expected: str) -> None:
    """A mean over entries that are numbers, beside one over all: where all are, the mean of the
    ranks' losses is the single device's, and the loss of each rank is not."""

    def step(job: sp.Job, mean: Callable[[torch.Tensor], torch.Tensor]) -> None:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 3)
        job.start(model)
        count = 4 // job.world_size
        x = job.batch["x"][job.rank * count :][:count]
        job.end(loss=mean(x.relu().log() * model(x)))

    result = sp.verify(
        lambda job: step(job, torch.nanmean),
        lambda job: step(job, lambda y: factor * y.mean()),
        world_size=2,
        batch={"x": sp.tensor((4, 3))},
        cache=False,
    )
    assert result.verdict == expected, sp.told(result)

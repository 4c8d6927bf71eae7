"""A cross-entropy as the product of one-hot rows and log-probabilities, beside that of PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import shardproof.torch as sp

WIDTH, CLASSES, ROWS = 4, 6, 4

Loss = Callable[[Tensor, Tensor], Tensor]


def by_comparison(z: Tensor, y: Tensor) -> Tensor:
    hot = (y[:, None] == torch.arange(CLASSES)).float()
    return -(hot * z.log_softmax(-1)).sum(-1).mean()


#: The loss of logits and labels.
LOSSES: dict[str, Loss] = {
    "summed": lambda z, y: -(F.one_hot(y, CLASSES) * z.log_softmax(-1)).sum(-1).mean(),
    "probabilities": lambda z, y: F.cross_entropy(z, F.one_hot(y, CLASSES).float()),
    "weighed": lambda z, y: (
        -(F.one_hot(y, CLASSES) * z.log_softmax(-1) * torch.ones(len(y), 1)).sum() / len(y)
    ),
    "compared": by_comparison,
}


def step(loss_of: Loss, ranks: int = 1, mistake: bool = False):
    def one(job: sp.Job) -> None:
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, CLASSES))
        job.start(model)
        x, y = (job.batch[n].chunk(ranks)[job.rank % ranks] for n in "xy")
        loss = loss_of(model(x), y)
        loss.backward()
        if ranks > 1:
            for p in model.parameters():
                dist.all_reduce(p.grad)
                p.grad /= 1 if mistake else ranks
        job.end(loss=loss)

    return one


def batch(high: int = CLASSES) -> dict[str, sp.TensorSpec]:
    labels = sp.tensor((ROWS,), torch.long, low=0, high=high)
    return {"x": sp.tensor((ROWS, WIDTH)), "y": labels}


@pytest.mark.parametrize("loss_of", LOSSES.values(), ids=LOSSES)
def test_one_hot_rows_pick_as_labels_do(loss_of: Loss) -> None:
    single, parallel = step(F.cross_entropy), step(loss_of, 2)
    result = sp.verify(single, parallel, world_size=2, batch=batch())
    assert result.verdict == "proved", sp.told(result)


def test_gradients_that_are_not_divided_are_refuted() -> None:
    single, wrong = step(F.cross_entropy), step(LOSSES["summed"], 2, mistake=True)
    result = sp.verify(single, wrong, world_size=2, batch=batch())
    assert result.verdict == "refuted", sp.told(result)


def test_labels_beyond_the_classes_have_rows_of_zeros() -> None:
    """The single device ignores a label that is no class, a rank takes the last class for it."""
    single = step(by_comparison)
    wrong = step(lambda z, y: F.cross_entropy(z, y.clamp(max=CLASSES - 1)), 2)
    result = sp.verify(single, wrong, world_size=2, batch=batch(high=CLASSES + 1))
    assert result.verdict == "refuted", sp.told(result)


def smoothed(z: Tensor, y: Tensor) -> Tensor:
    """Smoothed labels, and a weight for each row behind the sum."""
    hot = F.one_hot(y, CLASSES).float() * 0.9 + 0.1 / CLASSES
    return -((hot * z.log_softmax(-1)).sum(-1) * z.detach()[:, 0]).mean()


def weighed_first(z: Tensor, y: Tensor) -> Tensor:
    weights = z.detach()[:, :1].expand(-1, CLASSES)
    hot = (F.one_hot(y, CLASSES).float() * 0.9 + 0.1 / CLASSES) * weights
    return -(hot * z.log_softmax(-1)).sum() / len(y)


def smoothed_by_pytorch(z: Tensor, y: Tensor) -> Tensor:
    each = F.cross_entropy(z, y, label_smoothing=0.1, reduction="none")
    return (each * z.detach()[:, 0]).mean()


def smoothed_without_weights(z: Tensor, y: Tensor) -> Tensor:
    """The right loss, with gradients in which what is added to the one-hot has no weight."""
    logs = z.log_softmax(-1)
    hot = F.one_hot(y, CLASSES).float() * 0.9 * z.detach()[:, :1] + 0.1 / CLASSES
    moves = -(hot * logs).sum() / len(y)
    return smoothed(z, y).detach() + moves - moves.detach()


@pytest.mark.parametrize(
    ("loss_of", "other", "verdict"),
    [
        (smoothed, smoothed_by_pytorch, "proved"),
        (weighed_first, smoothed, "proved"),
        (weighed_first, smoothed_without_weights, "refuted"),
    ],
    ids=("behind the sum", "before it", "not all"),
)
def test_weights_of_rows_are_those_of_what_is_added_too(
    loss_of: Loss, other: Loss, verdict: str
) -> None:
    result = sp.verify(step(loss_of), step(other, 2), world_size=2, batch=batch())
    assert result.verdict == verdict, sp.told(result)

"""Losses of a softmax whose logarithm a program takes itself, beside ``F.cross_entropy``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import shardproof.torch as sp

WIDTH, CLASSES, ROWS = 4, 6, 8
BATCH = {
    "x": sp.tensor((ROWS, WIDTH)),
    "y": sp.tensor((ROWS,), torch.long, low=0, high=CLASSES),
    "two": sp.tensor((ROWS, 2), torch.long, low=0, high=4),
}

Loss = Callable[[Tensor, Tensor], Tensor]
ALIKE: dict[str, Loss] = {
    "all logarithms": lambda z, y: F.nll_loss(z.softmax(-1).log(), y),
    "logarithms, then one": lambda z, y: -z.softmax(-1).log().gather(1, y[:, None]).mean(),
    "by rows and classes": lambda z, y: -z.softmax(-1)[torch.arange(len(y)), y].log().mean(),
    "one, then its logarithm": lambda z, y: -z.softmax(-1).gather(1, y[:, None]).log().mean(),
}
UNLIKE: dict[str, Loss] = {
    "over rows": lambda z, y: F.nll_loss(z.softmax(0).log(), y),
    "added up": lambda z, y: -z.softmax(-1).log().gather(1, y[:, None]).sum(),
    "another class": lambda z, y: -z.softmax(-1).flip(1).gather(1, y[:, None]).log().mean(),
}


def verify(single: Loss, ranks: Loss) -> sp.Result:
    def step(loss_of: Loss, size: int) -> Callable[[sp.Job], None]:
        def one(job: sp.Job) -> None:
            model = nn.Linear(WIDTH, CLASSES)
            job.start(model)
            two = single in (ratio, divided, hidden_and_not)
            named = ("x", "two" if two else "y")
            x, y = (job.batch[n].chunk(size)[job.rank % size] for n in named)
            loss = loss_of(model(x), y)
            loss.backward()
            for p in model.parameters() if size > 1 else ():
                dist.all_reduce(p.grad)
                p.grad /= size
            job.end(loss=loss)

        return one

    return sp.verify(step(single, 1), step(ranks, 2), world_size=2, batch=BATCH, validate=True)


@pytest.mark.parametrize("name", ALIKE)
def test_on_either_side_they_are_the_cross_entropy(name: str) -> None:
    assert verify(F.cross_entropy, ALIKE[name]).verdict == "proved"
    assert verify(ALIKE[name], F.cross_entropy).verdict == "proved"


@pytest.mark.parametrize("name", UNLIKE)
def test_others_are_refuted(name: str) -> None:
    assert verify(F.cross_entropy, UNLIKE[name]).verdict == "refuted"


def beside(value: Tensor, moves: Tensor) -> Tensor:
    """A value, with the derivative of another one."""
    return value.detach() + moves - moves.detach()


def entry(rows: Tensor, ids: Tensor) -> Tensor:
    return rows.gather(1, ids[:, None])[:, 0]


def ratio(z: Tensor, y: Tensor) -> Tensor:
    p = z.softmax(-1)
    return (entry(p, y[:, 0]) / entry(p, y[:, 1]).detach()).mean()


def logarithm_beside_ratio(z: Tensor, y: Tensor) -> Tensor:
    return beside(ratio(z, y), entry(z.log_softmax(-1), y[:, 0]).mean())


def divided(z: Tensor, y: Tensor) -> Tensor:
    p = z.softmax(-1)
    p.register_hook(lambda _: z.detach()[:, :1] / p.detach() / len(z))
    return p.mean()


def divided_by_logarithms(z: Tensor, y: Tensor, all_entries: bool = True) -> Tensor:
    each = z.log_softmax(-1) if all_entries else z - z.softmax(-1).detach() * z
    return beside(z.softmax(-1).mean(), (z.detach()[:, :1] * each).sum() / len(z))


def hidden_and_not(z: Tensor, y: Tensor) -> Tensor:
    of_some = (z + HIDES).log_softmax(-1)
    return (entry(of_some, y[:, 0]) + entry(z.softmax(-1), y[:, 0]).log()).mean()


def hidden_and_not_by_logarithms(z: Tensor, y: Tensor, hides_again: bool = False) -> Tensor:
    logs = [v.log_softmax(-1) for v in (z + HIDES, z + HIDES if hides_again else z)]
    return (entry(logs[0], y[:, 0]) + entry(logs[1], y[:, 0])).mean()


HIDES = torch.tensor([0.0] * 4 + [float("-inf")] * 2)
BY_LOGARITHMS: dict[str, tuple[Loss, Loss, Loss]] = {
    "of another id": (ratio, ratio, logarithm_beside_ratio),
    "of a number for each row": (
        divided,
        divided_by_logarithms,
        partial(divided_by_logarithms, all_entries=False),
    ),
    "of scores that are hidden elsewhere": (
        hidden_and_not,
        hidden_and_not_by_logarithms,
        partial(hidden_and_not_by_logarithms, hides_again=True),
    ),
}


@pytest.mark.parametrize("name", BY_LOGARITHMS)
def test_a_probability_is_divided_by_itself_alone(name: str) -> None:
    single, right, wrong = BY_LOGARITHMS[name]
    assert verify(single, right).verdict == "proved"
    assert verify(single, wrong).verdict == "refuted"


def test_terms_that_ranks_add_up_row_by_row_are_those_of_the_sums() -> None:
    """Smoothed labels by hand: each term's mean, beside the mean of both."""

    def apart(z: Tensor, y: Tensor) -> Tensor:
        logs = z.log_softmax(-1)
        return -0.9 * entry(logs, y).mean() - 0.1 * logs.mean()

    def together(z: Tensor, y: Tensor, share: float = 0.1) -> Tensor:
        logs = z.log_softmax(-1)
        return (-0.9 * entry(logs, y) - share * logs.mean(-1)).mean()

    assert verify(apart, together).verdict == "proved"
    assert verify(apart, partial(together, share=0.1 / CLASSES)).verdict == "refuted"

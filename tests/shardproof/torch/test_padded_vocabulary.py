"""A vocabulary that is padded: the words beyond the last one are minus infinity in the scores, however
these are moved then, and labels choose among the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from tests.shardproof.torch.locally import locally  # noqa: E402

PADDED, WORDS = 16, 12
BATCH = {
    "x": sp.tensor((4, 3, 4)),
    "y": sp.tensor((4, 3), torch.long, low=0, high=WORDS),
}

#: The loss of scores [rows, positions, words] and labels [rows, positions].
Loss = Callable[[Tensor, Tensor], Tensor]


def hidden(z: Tensor, words: int) -> Tensor:
    return z.masked_fill(torch.arange(PADDED) >= words, -torch.inf)


def picked(z: Tensor, y: Tensor) -> Tensor:
    return -z.log_softmax(-1).gather(-1, y[..., None]).mean()


def along_the_middle(z: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(z.transpose(1, 2), y)


def in_one(z: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(z.flatten(0, 1), y.flatten())


def heated(z: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy((z / 0.5 - z.detach().amax(-1, keepdim=True)).flatten(0, 1), y.flatten())


def by_hand(z: Tensor, y: Tensor) -> Tensor:
    z = z - z.detach().amax(-1, keepdim=True)
    return (z.exp().sum(-1).log() - z.gather(-1, y[..., None])[..., 0]).mean()


def entropy(z: Tensor, y: Tensor) -> Tensor:
    """Of all words but the last one, which is an end."""
    logs = z.log_softmax(-1).masked_fill(torch.arange(PADDED) >= WORDS - 1, 0.0)
    return -(z.softmax(-1) * logs).sum(-1).mean()


LOSSES: list[Loss] = [picked, along_the_middle, in_one, heated, entropy]


def step(loss: Loss, ranks: int, words: int = WORDS) -> Callable[[sp.Job], None]:
    def one(job: sp.Job) -> None:
        model = nn.Linear(4, PADDED)
        job.start(model)
        x, y = (job.batch[name].chunk(ranks)[job.rank] for name in ("x", "y"))
        value = loss(hidden(model(x), words), y)
        value.backward()
        for parameter in model.parameters() if ranks > 1 else ():
            dist.all_reduce(parameter.grad)
            parameter.grad /= ranks
        job.end(loss=value)

    return one


@pytest.mark.parametrize("loss", LOSSES)
def test_the_words_beyond_the_last_are_hidden(tmp_path: Path, loss: Loss) -> None:
    single = step(loss, 1)
    right = locally(tmp_path / "right", single, step(loss, 2), BATCH, validate=True)
    assert right.verdict == "proved", sp.told(right)
    wrong = locally(tmp_path / "wrong", single, step(loss, 2, WORDS - 1), BATCH)
    assert wrong.verdict == "refuted", sp.told(wrong)


def test_a_loss_by_hand_is_that_of_pytorch(tmp_path: Path) -> None:
    single = step(in_one, 1)
    right = locally(tmp_path / "right", single, step(by_hand, 2), BATCH)
    assert right.verdict == "proved", sp.told(right)
    wrong = locally(tmp_path / "wrong", single, step(by_hand, 2, WORDS - 1), BATCH)
    assert wrong.verdict == "refuted", sp.told(wrong)


class Sum(torch.autograd.Function):
    """An all-reduce of what all ranks go on with alike."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gradient


def largest(z: Tensor) -> Tensor:
    return z.amax(-1)


def largest_and_where(z: Tensor) -> Tensor:
    return z.max(-1)[0]


def filled(z: Tensor, shown: int) -> Tensor:
    return z.masked_fill(torch.arange(z.shape[1]) >= shown, -torch.inf)


def assigned(z: Tensor, shown: int) -> Tensor:
    z = z.clone()
    z[:, max(shown, 0) :] = -torch.inf
    return z


def assigned_on_one(job: sp.Job) -> None:
    model = nn.Linear(4, PADDED)
    job.start(model)
    z = assigned(model(job.batch["x"]).flatten(0, 1), WORDS)
    loss = F.cross_entropy(z, job.batch["y"].flatten())
    loss.backward()
    job.end(loss=loss)


def divided(
    words: int,
    most_of: Callable[[Tensor], Tensor],
    hides: Callable[[Tensor, int], Tensor] = filled,
) -> Callable[[sp.Job], None]:
    """Each of some ranks has as many words, of which those of the last one are padding in part."""

    def one(job: sp.Job) -> None:
        size = PADDED // job.world_size
        model, start = nn.Linear(4, size), size * job.rank
        job.start(
            model,
            parameters={
                name: sp.piece(name, dim=0, start=start, size=size) for name in ("weight", "bias")
            },
        )
        z, y = model(job.batch["x"]).flatten(0, 1), job.batch["y"].flatten()
        z = hides(z, words - start)
        most = most_of(z.detach())
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        z = z - most[:, None]
        own = (y >= start) & (y < start + size)
        at = torch.where(own, y - start, 0)[:, None]
        chosen = Sum.apply(torch.where(own, z.gather(1, at)[:, 0], 0.0))
        loss = (Sum.apply(z.exp().sum(-1)).log() - chosen).mean()
        loss.backward()
        job.end(loss=loss)

    return one


@pytest.mark.parametrize("words", [WORDS, WORDS - 1])
@pytest.mark.parametrize("most_of", [largest, largest_and_where])
def test_words_that_ranks_divide_are_read_as_pytorch_computes_them(
    tmp_path: Path, most_of: Callable[[Tensor], Tensor], words: int
) -> None:
    parallel = divided(words, most_of)
    result = locally(tmp_path, step(in_one, 1), parallel, BATCH, validate=True)
    assert result.verdict == ("proved" if words == WORDS else "refuted"), sp.told(result)


@pytest.mark.parametrize("words", [WORDS, WORDS - 1])
def test_padding_that_is_assigned(tmp_path: Path, words: int) -> None:
    parallel = divided(words, largest, assigned)
    result = locally(tmp_path, assigned_on_one, parallel, BATCH)
    assert result.verdict == ("proved" if words == WORDS else "refuted"), sp.told(result)

"""One row of each sequence: the last token, that of an id, a class token; and ids that are computed
of others.  Under data parallelism, each beside a twin that takes another one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from benchmarks.torch.ordinary.parts import CLASSES, WIDTH, Step, rows  # noqa: E402

ROWS, LENGTH = 4, 6


class Model(nn.Module):
    """A table of rows, attention among them, a head, and a codebook."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(32, WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.head = nn.Linear(WIDTH, CLASSES)
        self.codes = nn.Embedding(5, WIDTH)


#: Activations [rows, width] of a model, tokens [rows, length], flags (0 or 1) and lengths [rows].
Pooled = Callable[[Model, Tensor, Tensor, Tensor], Tensor]


def at(h: Tensor, places: Tensor) -> Tensor:
    return h[torch.arange(len(h)), places]


def attended(m: Model, t: Tensor) -> Tensor:
    h = m.table(t)
    result: Tensor = m.attention(h, h, h, need_weights=False)[0]
    return result


def quantised(m: Model, t: Tensor, sign: int) -> Tensor:
    """The nearest code of each row, or the farthest one."""
    h = m.table(t).mean(1)
    far = (h[:, None] - m.codes.weight[None]).square().sum(-1) * sign
    q: Tensor = m.codes(far.argmin(-1))
    return h + (q - h).detach() + (q - h.detach())


FORMS: dict[str, tuple[Pooled, Pooled]] = {
    "at a length": (
        lambda m, t, k, n: at(m.table(t), n),
        lambda m, t, k, n: at(m.table(t), n - 1),
    ),
    "the last that is not padding": (
        lambda m, t, k, n: at(m.table(t), (t != 0).sum(-1) - 1),
        lambda m, t, k, n: at(m.table(t), (t != 1).sum(-1) - 1),
    ),
    "the last by a mask": (
        lambda m, t, k, n: at(m.table(t), (k.sum(1) - 1).clamp(min=0)),
        lambda m, t, k, n: at(m.table(t), k.sum(1).clamp(max=LENGTH - 1)),
    ),
    "the largest id": (
        lambda m, t, k, n: at(m.table(t), t.argmax(-1)),
        lambda m, t, k, n: at(m.table(t), t.argmin(-1)),
    ),
    "the mean of a mask": (
        lambda m, t, k, n: (m.table(t) * k[..., None]).sum(1) / k.sum(1, True).clamp(min=1),
        lambda m, t, k, n: (m.table(t) * k[..., None]).mean(1),
    ),
    "a class token": (
        lambda m, t, k, n: attended(m, t)[:, 0],
        lambda m, t, k, n: attended(m, t)[:, -1],
    ),
    "ids of two": (
        lambda m, t, k, n: m.table(t * 2 + k).mean(1),
        lambda m, t, k, n: m.table(t * 2 - k + 1).mean(1),
    ),
    "ids of neighbours": (
        lambda m, t, k, n: m.table((t[:, 1:] * 5 + t[:, :-1]) % 32).mean(1),
        lambda m, t, k, n: m.table((t[:, 1:] * 5 + t[:, :-1]) % 31).mean(1),
    ),
    "the nearest code": (
        lambda m, t, k, n: quantised(m, t, 1),
        lambda m, t, k, n: quantised(m, t, -1),
    ),
}


@pytest.fixture(autouse=True)
def runs_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are kept in the working directory, which is none of the project's."""
    monkeypatch.chdir(tmp_path)


def step(pooled: Pooled, ranks: int) -> Step:
    def run(job: sp.Job) -> None:
        model = Model()
        job.start(model)
        names = ("t", "k", "n", "y")
        t, k, n, y = rows(job, *names) if ranks > 1 else [job.batch[name] for name in names]
        loss = F.cross_entropy(model.head(pooled(model, t, k, n)), y)
        loss.backward()
        for parameter in model.parameters() if ranks > 1 else ():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        job.end(loss=loss)

    return run


BATCH = {
    "t": sp.tensor((ROWS, LENGTH), torch.int64, low=0, high=CLASSES),
    "k": sp.tensor((ROWS, LENGTH), torch.int64, low=0, high=2),
    "n": sp.tensor((ROWS,), torch.int64, low=0, high=LENGTH),
    "y": sp.tensor((ROWS,), torch.int64, low=0, high=CLASSES),
}


@pytest.mark.parametrize("name", FORMS)
def test_the_same_row_is_proved_and_another_refuted(name: str) -> None:
    right, wrong = FORMS[name]
    single = step(right, 1)
    found = sp.verify(single, step(right, 2), world_size=2, batch=BATCH, validate=True)
    assert found.verdict == "proved", found
    assert sp.verify(single, step(wrong, 2), world_size=2, batch=BATCH).verdict == "refuted"

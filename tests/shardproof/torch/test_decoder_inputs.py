"""Inputs of a decoder as encoder-decoder models make them of labels: moved by a position behind a
first token, the ignored class replaced by the padding; queries that are chosen by known lists of
positions; weights that are drawn within bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402

ROWS, LENGTH, WIDTH, CLASSES = 4, 3, 4, 5


@pytest.fixture(autouse=True)
def runs_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are kept in the working directory, which is none of the project's."""
    monkeypatch.chdir(tmp_path)


def moved(labels: torch.Tensor, first: int, padding: int) -> torch.Tensor:
    tokens = labels.new_zeros(labels.shape)
    tokens[:, 1:] = labels[:, :-1].clone()
    tokens[:, 0] = first
    return tokens.masked_fill_(tokens == -100, padding)


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(CLASSES, WIDTH)
        self.out = nn.Linear(WIDTH, CLASSES)
        nn.init.trunc_normal_(self.out.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.out(F.gelu(self.tokens(tokens)))
        return logits.flatten(0, 1)


def verdict(low: int, first: int = 2, padding: int = 1) -> str:
    """Of a step under data parallelism whose ranks take other tokens than the single device."""

    def step(ranks: int, first: int, padding: int) -> sp.Step:
        def run(job: sp.Job) -> None:
            model = Decoder()
            parallel = nn.parallel.DistributedDataParallel(model) if ranks > 1 else model
            job.start(model)
            labels = job.batch["labels"].chunk(ranks)[job.rank]
            logits = parallel(moved(labels, first, padding))
            loss = F.cross_entropy(logits, labels.flatten(), reduction="sum")
            loss = loss * ranks / (ROWS * LENGTH)
            loss.backward()
            job.end(loss=loss)

        return run

    labels = sp.tensor((ROWS, LENGTH), torch.int64, low=low, high=CLASSES)
    result = sp.verify(
        step(1, 2, 1), step(2, first, padding), world_size=2, batch={"labels": labels}
    )
    return result.verdict


def test_moved_labels_are_read_part_by_part() -> None:
    assert verdict(0) == "proved"


def test_another_padding_is_refuted_where_labels_may_be_ignored() -> None:
    assert verdict(-100, padding=3) == "refuted"


def test_known_lists_choose_positions() -> None:
    """Keys and values of one head, behind the queries, in one weight (Falcon's)."""

    def step(ranks: int, key: int = -2) -> sp.Step:
        def run(job: sp.Job) -> None:
            model = nn.Linear(WIDTH, 4 * WIDTH)
            parallel = nn.parallel.DistributedDataParallel(model) if ranks > 1 else model
            job.start(model)
            fused = parallel(job.batch["x"].chunk(ranks)[job.rank]).unflatten(-1, (4, WIDTH))
            queries, keys, values = fused[..., :-2, :], fused[..., [key], :], fused[..., [-1], :]
            loss = (queries * keys + values.exp()).mean()
            loss.backward()
            job.end(loss=loss)

        return run

    def verify(key: int) -> str:
        batch = {"x": sp.tensor((ROWS, LENGTH, WIDTH))}
        return sp.verify(step(1), step(2, key), world_size=2, batch=batch).verdict

    assert verify(-2) == "proved"
    assert verify(-3) == "refuted"

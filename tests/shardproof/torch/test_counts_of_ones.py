"""How many rows each expert has, as the sum of rows with a 1 at each id, read by Python: DeepSeek's
``moe_infer``, which cuts the sorted rows by these counts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional
DistributedDataParallel = pytest.importorskip("torch.nn.parallel").DistributedDataParallel

import shardproof.torch as sp  # noqa: E402

EXPERTS, CHOSEN, WIDTH, ROWS = 3, 2, 2, 4
BATCH = {"x": sp.tensor((ROWS, WIDTH))}
Counts = Callable[[Any], Any]


def written(ids: Any) -> Any:
    counts = ids.new_zeros((len(ids), EXPERTS))
    counts.scatter_(1, ids, 1)
    return counts.sum(dim=0)


def converted(ids: Any) -> Any:
    return torch.zeros(len(ids), EXPERTS).scatter(1, ids, 1).long().sum(0)


def hot(ids: Any) -> Any:
    return F.one_hot(ids, EXPERTS).sum((0, 1))


def hot_in_a_row(ids: Any) -> Any:
    return F.one_hot(ids.view(-1), EXPERTS).sum(0)


def of_floats(ids: Any) -> Any:
    return F.one_hot(ids.view(-1), EXPERTS).sum(0, dtype=torch.float32).long()


def turned(ids: Any) -> Any:
    """How many ids each of the first rows has: no counts of ids."""
    return torch.zeros(EXPERTS, EXPERTS, dtype=torch.int64).scatter(1, ids[:EXPERTS], 1).t().sum(0)


def doubled(ids: Any) -> Any:
    return ids.new_zeros((len(ids), EXPERTS)).scatter(1, ids, 2).sum(0)


def beside_ones(ids: Any) -> Any:
    return ids.new_ones((len(ids), EXPERTS)).scatter(1, ids, 1).sum(0)


def perhaps_alike(ids: Any) -> Any:
    """Two ids of a row may be one, whose 1 is written once."""
    return ids.new_zeros((len(ids), EXPERTS)).scatter(1, ids % 2, 1).sum(0)


def of_some_classes(ids: Any) -> Any:
    """Ids beyond the classes are counted nowhere."""
    return (ids.view(-1, 1) == torch.arange(EXPERTS - 1)).sum(0)


class Experts(torch.nn.Module):  # type: ignore[misc]
    """Two of three experts for each row, whose rows are sorted by their experts."""

    def __init__(self, counts: Counts, moved: int = 0) -> None:
        super().__init__()
        self.counts, self.moved = counts, moved
        self.gate = torch.nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS))

    def forward(self, x: Any) -> Any:
        weights, ids = self.gate(x).softmax(-1).topk(CHOSEN, -1)
        counts = self.counts(ids).tolist()
        order = ids.view(-1).argsort(stable=True)
        rows = x[order // CHOSEN]
        parts, at = [], 0
        for expert, many in enumerate(counts):
            own = self.experts[(expert + self.moved) % EXPERTS]
            parts.append(own(rows[at : at + many]))
            at += many
        sorted_rows = torch.cat(parts)
        made = torch.empty_like(sorted_rows)
        made[order] = sorted_rows
        return (made.view(*ids.shape, -1) * weights.unsqueeze(-1)).sum(1)


def verdict(counts: Counts, folder: Path, moved: int = 0) -> sp.Result:
    def single(job: sp.Job) -> None:
        model = Experts(counts)
        job.start(model)
        loss = model(job.batch["x"]).square().mean()
        loss.backward()
        job.end(loss=loss)

    def parallel(job: sp.Job) -> None:
        model = DistributedDataParallel(Experts(counts, moved))
        job.start(model)
        loss = model(job.batch["x"].chunk(2)[job.rank]).square().mean()
        loss.backward()
        job.end(loss=loss)

    return sp.verify(single, parallel, world_size=2, batch=BATCH, cache=False, out=folder / "run")


@pytest.mark.parametrize("counts", [written, converted, hot, hot_in_a_row])
def test_counts_are_read(counts: Counts, tmp_path: Path) -> None:
    result = verdict(counts, tmp_path)
    assert result.verdict == "proved", sp.told(result)


def test_rows_of_the_next_expert_are_refuted(tmp_path: Path) -> None:
    assert verdict(written, tmp_path, moved=1).verdict == "refuted"


@pytest.mark.parametrize(
    "counts", [of_floats, turned, doubled, beside_ones, perhaps_alike, of_some_classes]
)
def test_other_sums_are_not_counts(counts: Counts, tmp_path: Path) -> None:
    result = verdict(counts, tmp_path)
    assert result.verdict == "invalid input", sp.told(result)
    assert "reads the value of a tensor" in result.reason

"""Rows sorted by expert that Python cuts by counts (``x.split(counts)``, slices up to running sums)
and joins again, with experts divided over ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from benchmarks.torch.ordinary.parts import Step  # noqa: E402
from shardproof.frontends.torch.stretches import Stretches  # noqa: E402
from shardproof.frontends.torch.tallies import Tallies, Tally  # noqa: E402
from tests.shardproof.torch.steps import ReduceFrom  # noqa: E402

TOKENS, WIDTH, EXPERTS = 8, 4, 2
Cut = Callable[[torch.Tensor, Sequence[int]], list[torch.Tensor]]
Joined = Callable[[list[torch.Tensor], torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def runs_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are kept in the working directory, which is none of the project's."""
    monkeypatch.chdir(tmp_path)


class Experts(nn.Module):
    """A matrix for each of its experts, of which the rest are on other ranks."""

    def __init__(self, own: range) -> None:
        super().__init__()
        self.own = own
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(len(own), WIDTH, WIDTH))

    def forward(self, x: torch.Tensor, cut: Cut, join: Joined) -> torch.Tensor:
        weights, ids = self.gate(x).softmax(-1).max(-1)
        order = ids.argsort(stable=True)
        parts = cut(x[order], torch.bincount(ids, minlength=EXPERTS).tolist())
        made = [self.expert(n, rows) for n, rows in enumerate(parts)]
        return join(made, order) * weights[:, None]

    def expert(self, number: int, rows: torch.Tensor) -> torch.Tensor:
        """What an expert makes of its rows: nothing, if it is another rank's."""
        if number not in self.own:
            return torch.zeros_like(rows)
        return F.silu(rows @ self.up[number - self.own.start])


def split(x: torch.Tensor, counts: Sequence[int]) -> list[torch.Tensor]:
    return list(x.split(counts))


def slices(x: torch.Tensor, counts: Sequence[int]) -> list[torch.Tensor]:
    """As DeepSeek's loop over experts."""
    parts, start = [], 0
    for count in counts:
        parts.append(x[start : start + count])
        start += count
    return parts


def inverse(parts: list[torch.Tensor], order: torch.Tensor) -> torch.Tensor:
    return torch.cat(parts)[order.argsort()]


def written(parts: list[torch.Tensor], order: torch.Tensor) -> torch.Tensor:
    rows = torch.cat(parts)
    back = torch.empty_like(rows)
    back[order] = rows
    return back


def experts(cut: Cut, join: Joined, ranks: int, gate: bool = True) -> Step:
    """A step with the experts over ranks; ``gate``: whether its gradient is added up."""

    def run(job: sp.Job) -> None:
        each = EXPERTS // ranks
        own = range(job.rank * each, (job.rank + 1) * each)
        model = Experts(own)
        parts = {"up": sp.piece("up", dim=0, start=own.start, size=each)}
        job.start(model, parameters=parts if ranks > 1 else None)
        y = model(job.batch["x"], cut, join)
        loss = (ReduceFrom.apply(y) if ranks > 1 else y).pow(2).mean()
        loss.backward()
        if ranks > 1 and gate:
            dist.all_reduce(model.gate.weight.grad)
        job.end(loss=loss)

    return run


@pytest.mark.parametrize(("cut", "join"), [(split, inverse), (slices, written)])
def test_experts_over_ranks(cut: Cut, join: Joined) -> None:
    batch = {"x": sp.tensor((TOKENS, WIDTH))}
    one = experts(cut, join, 1)
    right = sp.verify(one, experts(cut, join, 2), world_size=2, batch=batch)
    assert right.verdict == "proved", sp.told(right)
    wrong = sp.verify(one, experts(cut, join, 2, gate=False), world_size=2, batch=batch)
    assert wrong.verdict == "refuted"


def test_what_is_recorded_are_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever rows are cut, in PyTorch itself."""
    for name in ("split", "split_with_sizes", "__getitem__"):
        monkeypatch.setattr(torch.Tensor, name, getattr(torch.Tensor, name))
    for name in ("split_with_sizes", "cat", "concat", "concatenate"):
        monkeypatch.setattr(torch, name, getattr(torch, name))
    ids, x = torch.randint(0, 3, (20,)), torch.randn(20, 2)
    counts = torch.bincount(ids, minlength=3)
    plain, third = x.split(counts.tolist()), x[int(counts[:2].sum()) :]
    tallies = Tallies(None)  # type: ignore[arg-type]
    tallies.known[0] = Tally(ids, 0, 3, counts, counts.tolist())
    Stretches(tallies, lambda _: 0).install()
    parts = x.split(counts.tolist())
    assert all(map(torch.equal, parts, plain))
    named = x.split(split_size=counts.tolist(), dim=0)
    assert all(map(torch.equal, named, plain))
    assert all(map(torch.equal, torch.split_with_sizes(x, split_sizes=counts.tolist()), plain))
    assert [part.shape[1] for part in x.split(1, dim=1)] == [1, 1]
    assert torch.equal(x[int(counts[:2].sum()) :], third)
    assert torch.equal(torch.cat(parts), x)

"""Experts whose tokens are sorted, multiplied in groups and put back, as transformers, torchtitan
and people by hand write them; under data parallelism, held against PyTorch itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from benchmarks.torch.ordinary.parts import Step, floats, rows  # noqa: E402

TOKENS, WIDTH, INNER, EXPERTS, EACH = 8, 8, 8, 4, 2
Forward = Callable[["Experts", "torch.Tensor"], "torch.Tensor"]


@pytest.fixture(autouse=True)
def runs_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are kept in the working directory, which is none of the project's."""
    monkeypatch.chdir(tmp_path)


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, 2 * INNER))
        self.bias = nn.Parameter(torch.randn(EXPERTS, WIDTH))
        self.down = nn.Parameter(torch.randn(EXPERTS, INNER, WIDTH))

    def chosen(self, x: torch.Tensor, each: int = EACH) -> tuple[torch.Tensor, torch.Tensor]:
        weights, ids = self.gate(x).softmax(-1).topk(each, dim=-1)
        return weights, ids

    def groups(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        """Rows of each expert, one after the other, through it."""
        first, other = torch._grouped_mm(x, self.up, offs=ends).chunk(2, dim=-1)
        return torch._grouped_mm(F.silu(first) * other, self.down, offs=ends)


def inverse(model: Experts, x: torch.Tensor) -> torch.Tensor:
    """As transformers: a histogram, the inverse of the order, a bias for each expert."""
    weights, ids = model.chosen(x)
    own, order = torch.sort(ids.reshape(-1))
    counts = torch.histc(own.float(), bins=EXPERTS, min=0, max=EXPERTS - 1)
    ends = counts.cumsum(0, dtype=torch.int32)
    y = model.groups(x[order // EACH], ends) + model.bias[own]
    y = y * weights.reshape(-1)[order].unsqueeze(-1)
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order))
    return y[back].view(len(x), EACH, WIDTH).sum(1)


def scattered(model: Experts, x: torch.Tensor) -> torch.Tensor:
    """As torchtitan: a map of tokens and experts that is counted; rows that are added up."""
    weights, ids = model.chosen(x)
    scores = torch.zeros(len(x), EXPERTS)
    counts = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, ids, True).sum(0)
    order = torch.argsort(ids.view(-1), stable=True)
    token = order // EACH
    y = model.groups(x[token], counts.cumsum(0, dtype=torch.int32))
    y = y * weights.view(-1)[order].reshape(-1, 1)
    return torch.zeros_like(x).scatter_add(0, token.reshape(-1, 1).expand(-1, WIDTH), y)


def gathered(model: Experts, x: torch.Tensor) -> torch.Tensor:
    """By hand: rows by `gather`, counts of one-hot rows, the order of the order, `index_add`."""
    weights, ids = model.chosen(x)
    flat = ids.flatten()
    order = flat.argsort()
    ends = F.one_hot(flat, EXPERTS).sum(0).cumsum(0).int()
    taken = x.gather(0, (order // EACH)[:, None].expand(-1, WIDTH))
    y = F.rms_norm(model.groups(taken, ends), (WIDTH,))[order.argsort()]
    y = y * weights.reshape(-1, 1)
    return torch.zeros_like(x).index_add(0, torch.arange(len(flat)) // EACH, y)


def alone(model: Experts, x: torch.Tensor) -> torch.Tensor:
    """One expert for each token, the largest."""
    weights, ids = model.gate(x).sigmoid().max(-1)
    order = ids.argsort(stable=True)
    ends = F.one_hot(ids, EXPERTS).sum(0).cumsum(0).int()
    y = model.groups(x[order], ends)
    return torch.empty_like(y).index_put((order,), y) * weights[:, None]


def rows_by_expert(model: Experts, x: torch.Tensor) -> torch.Tensor:
    """Each row with a matrix of its own, without groups."""
    weights, ids = model.chosen(x)
    order = ids.view(-1).argsort(stable=True)
    own = ids.view(-1)[order]
    up, down = torch.bmm(x[order // EACH].unsqueeze(1), model.up[own]), model.down[own]
    y = torch.bmm(F.silu(up[..., :INNER]), down).squeeze(1)
    y = y * weights.view(-1)[order].unsqueeze(-1)
    return torch.zeros_like(x).index_add(0, order // EACH, y)


def biased(model: Experts, x: torch.Tensor) -> torch.Tensor:
    """As gpt-oss in torchtitan: a bias as often as its expert has rows, none behind the last."""
    weights, ids = model.chosen(x)
    order = ids.flatten().argsort(stable=True)
    counts = F.one_hot(ids, EXPERTS).sum((0, 1))
    ends = counts.cumsum(0).int()
    counts = torch.cat([counts, (len(order) - ends[-1]).unsqueeze(0).to(counts.dtype)])
    bias = torch.cat([model.bias, model.bias.new_zeros(1, WIDTH)])
    y = model.groups(x[order // EACH], ends)
    y = y + bias.repeat_interleave(counts, dim=0, output_size=len(order))
    y = y * weights.flatten()[order].unsqueeze(-1)
    return torch.zeros_like(x).index_add(0, order // EACH, y)


FORMS: dict[str, Forward] = {
    form.__name__: form for form in (inverse, scattered, gathered, alone, rows_by_expert, biased)
}


def descending(model: Experts, x: torch.Tensor) -> torch.Tensor:
    """The largest expert's rows first, in the groups of the smallest."""
    _, ids = model.chosen(x)
    order = ids.flatten().argsort(descending=True)
    ends = F.one_hot(ids.flatten(), EXPERTS).sum(0).cumsum(0).int()
    return model.groups(x[order // EACH], ends).mean(0, keepdim=True).expand(len(x), -1)


def others(model: Experts, x: torch.Tensor) -> torch.Tensor:
    """Groups as large as those of other ids."""
    _, ids = model.chosen(x)
    other = (-x @ model.gate.weight.T).topk(EACH, dim=-1).indices
    order = ids.flatten().argsort()
    ends = F.one_hot(other.flatten(), EXPERTS).sum(0).cumsum(0).int()
    return model.groups(x[order // EACH], ends).mean(0, keepdim=True).expand(len(x), -1)


def step(form: Forward, ranks: int, op: dist.ReduceOp.RedOpType | None = None) -> Step:
    """One step of a layer on the rank's rows; gradients are reduced over the ranks."""

    def run(job: sp.Job) -> None:
        model = Experts()
        job.start(model)
        x, y = rows(job, "x", "y") if ranks > 1 else (job.batch["x"], job.batch["y"])
        loss = F.mse_loss(x + form(model, x), y)
        loss.backward()
        for parameter in model.parameters() if op is not None else ():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad, op=op)
        job.end(loss=loss)

    return run


def verdict(form: Forward, op: dist.ReduceOp.RedOpType, **options: bool) -> sp.Result:
    return sp.verify(
        step(form, 1),
        step(form, 2, op),
        world_size=2,
        batch=floats(x=(TOKENS, WIDTH), y=(TOKENS, WIDTH)),
        cache=False,
        executor="local",
        **options,
    )


@pytest.mark.parametrize("name", FORMS)
def test_tokens_are_sorted_by_expert(name: str) -> None:
    """Proved, and what is proved is what PyTorch computes."""
    result = verdict(FORMS[name], dist.ReduceOp.AVG, validate=True)
    assert result.verdict == "proved", sp.told(result)
    assert any("the translation was replayed" in text for text in result.assumptions)


@pytest.mark.parametrize("name", ["inverse", "scattered"])
def test_gradients_of_experts_that_are_added_up_are_refuted(name: str) -> None:
    assert verdict(FORMS[name], dist.ReduceOp.SUM).verdict == "refuted"


@pytest.mark.parametrize("form", [descending, others])
def test_groups_of_other_ids_are_not_read(form: Forward) -> None:
    """Rows of a group are not those of its expert."""
    result = verdict(form, dist.ReduceOp.AVG)
    assert result.verdict == "inconclusive", sp.told(result)
    assert "_grouped_mm" in sp.told(result)

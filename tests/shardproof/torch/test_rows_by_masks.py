"""Rows whose number depends on data (`nonzero`, `torch.where(mask)`, `x[mask]`) in recorded steps:
what is computed of them is held against PyTorch itself, and steps are verified."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from shardproof.engine.errors import InvalidInput  # noqa: E402
from shardproof.frontends.graphs.replayed import drawn, run  # noqa: E402
from shardproof.frontends.torch.capture import capture  # noqa: E402
from shardproof.frontends.torch.plan import plan  # noqa: E402
from shardproof.frontends.torch.sides import sides  # noqa: E402
from tests.shardproof.torch.locally import locally  # noqa: E402
from tests.shardproof.torch.steps import CopyTo, ReduceFrom  # noqa: E402

ROWS, WIDTH, CHOICES, CLASSES, INNER = 6, 4, 3, 5, 8
BATCH = {
    "x": sp.tensor((ROWS, WIDTH)),
    "y": sp.tensor((ROWS, WIDTH)),
    "keep": sp.tensor((ROWS, CHOICES), torch.bool),
    "labels": sp.tensor((ROWS,), torch.long, low=0, high=CLASSES),
}

Tensor = torch.Tensor
Job = Any
#: A mask of one dimension, rows at it, what is made of rows, and a number made of all rows.
Mask = Callable[[Job, Tensor], Tensor]


class Model(nn.Module):
    """What programs use."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH, bias=False)
        self.norm = nn.LayerNorm(WIDTH)
        self.classes = nn.Linear(WIDTH, CLASSES)
        self.words = nn.Embedding(CLASSES, WIDTH)


MASKS: dict[str, Mask] = {
    "an input": lambda job, x: job.batch["keep"][:, 0],
    "a comparison": lambda job, x: x.sum(-1) > 0,
    "any of a row": lambda job, x: job.batch["keep"].any(-1),
    "labels": lambda job, x: job.batch["labels"] != 1,
}

READS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "by the mask": lambda x, mask: x[mask],
    "by where": lambda x, mask: x[torch.where(mask)[0]],
    "by nonzero": lambda x, mask: x.index_select(0, mask.nonzero().squeeze(-1)),
    "behind a dimension": lambda x, mask: x[None, mask].reshape(-1, x.shape[-1]),
    "turned": lambda x, mask: x.t()[:, mask].t(),
}

MADE: dict[str, Callable[[Model, Tensor], Tensor]] = {
    "linear": lambda model, x: model.second(F.silu(model.first(x))),
    "norm": lambda model, x: model.norm(x) * 2 + 1,
    "softmax": lambda model, x: F.softmax(model.second(x), -1) - x.mean(-1, keepdim=True),
    "heads": lambda model, x: x.view(-1, 2, WIDTH // 2).transpose(1, 2).reshape(-1, WIDTH).tanh(),
    "parts": lambda model, x: torch.cat([x[:, 1:] * x[:, :1], torch.sigmoid(x[:, :1])], -1),
    "choice": lambda model, x: torch.where(x > 0, x, torch.zeros_like(x)).clamp(max=2.0),
    "scores": lambda model, x: torch.einsum("nd,nd->n", x, model.first(x))[:, None] / x.shape[-1],
}

Ends = Callable[[Job, Model, Tensor, Tensor], Tensor]
ENDS: dict[str, Ends] = {
    "mean": lambda job, model, z, mask: z.mean(),
    "sum": lambda job, model, z, mask: (z * z).sum() / len(z),
    "columns": lambda job, model, z, mask: z.mean(0).pow(2).sum(),
    "distance": lambda job, model, z, mask: F.mse_loss(z, torch.ones_like(z) / 2),
    "absolute": lambda job, model, z, mask: F.l1_loss(z, torch.ones_like(z) / 2),
    "logits": lambda job, model, z, mask: F.binary_cross_entropy_with_logits(
        z, torch.full_like(z, 0.25)
    ),
    "labels": lambda job, model, z, mask: F.cross_entropy(
        model.classes(z.expand(-1, WIDTH)), job.batch["labels"][mask]
    ),
    "words": lambda job, model, z, mask: (z * model.words(job.batch["labels"][mask])).sum(),
    "written": lambda job, model, z, mask: _written(job, z, mask),
    "added": lambda job, model, z, mask: (
        job.batch["y"].index_add(0, torch.where(mask)[0], z.expand(-1, WIDTH)).pow(2).sum()
    ),
    "squared": lambda job, model, z, mask: (z.t() @ z).pow(2).sum(),
}


def _written(job: Job, z: Tensor, mask: Tensor) -> Tensor:
    y = job.batch["y"] * 1
    y[mask] = z.expand(-1, WIDTH)
    y[mask] += 2 * z
    return y.pow(2).sum()


def _experts(job: Job, model: Model, mask: Tensor, weights: Tensor, turned: bool) -> Tensor:
    """Rows by a mask of two dimensions, each with a weight, added up where they are from."""
    x = model.first(job.batch["x"])
    if turned:
        place, rows = torch.where(mask.t())
        weighted = weights.t()[place, rows, None]
    else:
        rows, place = torch.where(mask)
        weighted = weights[rows, place, None]
    made = model.second(F.silu(model.norm(x[rows]))) * weighted
    return torch.zeros_like(x).index_add(0, rows, made).pow(2).sum()


def _topk(job: Job, model: Model) -> tuple[Tensor, Tensor]:
    return torch.topk(F.softmax(model.classes(job.batch["x"]), -1), CHOICES, dim=-1)


def _written_by_experts(job: Job, model: Model) -> Tensor:
    """One expert after the other adds to rows that it reads: each token is once at most its own."""
    weights, chosen = _topk(job, model)
    y = model.first(job.batch["x"])
    for expert in range(2):
        rows, place = torch.where(chosen == expert)
        y[rows] += model.second(y[rows].tanh()) * weights[rows, place, None]
    return y.pow(2).mean()


#: Programs whose masks have two dimensions.
WIDE: dict[str, Callable[[Job, Model], Tensor]] = {
    "kept": lambda job, m: _experts(
        job, m, job.batch["keep"], m.first.weight[:CHOICES].repeat(2, 1)[:, :CHOICES], False
    ),
    "kept, turned": lambda job, m: _experts(
        job, m, job.batch["keep"], m.first.weight[:CHOICES].repeat(2, 1)[:, :CHOICES], True
    ),
    "an expert": lambda job, m: _experts(job, m, _topk(job, m)[1] == 1, _topk(job, m)[0], False),
    "an expert, turned": lambda job, m: _experts(
        job, m, _topk(job, m)[1] == 1, _topk(job, m)[0], True
    ),
    "one after the other": _written_by_experts,
    "entries": lambda job, m: m.first(job.batch["x"])[:, :CHOICES][job.batch["keep"]].exp().mean(),
    "rows of pairs": lambda job, m: F.normalize(
        (job.batch["x"][:, None] * m.first.weight[:CHOICES])[job.batch["keep"]], dim=-1
    ).mean(),
    "losses": lambda job, m: (
        F.cross_entropy(m.classes(job.batch["x"]), job.batch["labels"], reduction="none")
        .masked_select(job.batch["keep"].all(-1) | job.batch["keep"].any(-1))
        .mean()
    ),
}


def losses(job: Job, model: Model, programs: list[tuple[str, ...]]) -> list[Tensor]:
    """The loss of each program."""
    made = []
    for program in programs:
        if len(program) == 1:
            made.append(WIDE[program[0]](job, model))
            continue
        mask, read, rows, end = program
        x = model.first(job.batch["x"])
        chosen = MASKS[mask](job, x.detach() + 0)
        made.append(ENDS[end](job, model, MADE[rows](model, READS[read](x, chosen)), chosen))
    return made


class Run:
    """A job that runs the step by PyTorch itself, on these numbers."""

    def __init__(self, numbers: dict[str, Any]) -> None:
        self.batch = {}
        for name, spec in BATCH.items():
            kind = getattr(torch, spec.dtype)
            given = torch.tensor(numbers.get(f"batch {name}", np.zeros(spec.shape)))
            self.batch[name] = given.to(torch.float64 if kind.is_floating_point else kind)


def _programs(seed: int) -> list[tuple[str, ...]]:
    """What programs are made of: all of two dimensions, or drawn of the others."""
    if seed < 0:
        return [(name,) for name in WIDE]
    random = np.random.default_rng(seed)
    kinds: tuple[Any, ...] = (MASKS, READS, MADE, ENDS)
    return [tuple(str(random.choice(list(kind))) for kind in kinds) for _ in range(14)]


@pytest.mark.parametrize("seed", [-1, 0, *range(100, 130)])
def test_rows_are_what_pytorch_computes(seed: int) -> None:
    programs = _programs(seed)

    def step(job: Job) -> None:
        model = Model()
        job.start(model)
        each = losses(job, model, programs)
        torch.stack(each).sum().backward()
        job.end(outputs={str(i): loss for i, loss in enumerate(each)})

    (recorded,) = capture(step, 1, [0], BATCH, {})
    lowered = sides(recorded, [recorded])
    assert not lowered.single.gaps, (lowered.single.gaps, programs)
    whole = plan(lowered)
    numbers = drawn(whole, np.random.default_rng(abs(seed)))
    if "batch keep" in numbers:
        numbers["batch keep"][0] = True  # There is at least one row, which is assumed.
    values = run(whole, {**numbers, **lowered.single.contents})[-1]
    job, model = Run(numbers), Model().double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in numbers:
                parameter.copy_(torch.tensor(numbers[name]))
    each = losses(job, model, programs)
    torch.stack(each).sum().backward()
    compared = 0
    for result in lowered.single.results:
        kind, name = result.compared.kind, result.compared.name
        own = each[int(name)] if kind == "output" else model.get_parameter(name).grad
        if result.value < 0 or own is None:
            continue
        told = f"{name}: {programs[int(name)] if kind == 'output' else programs}"
        actual = np.asarray(values[result.value], float)
        np.testing.assert_allclose(actual, own.detach().numpy(), 1e-6, 1e-9, err_msg=told)
        compared += 1
    assert compared > len(programs)


# -- steps ---------------------------------------------------------------------------------------


class Experts(nn.Module):
    """Of two experts for each token, each with its weight; their inner dimension is divided over
    ``ranks``, or each rank has some of them (``own``)."""

    def __init__(self, style: str, ranks: int = 1, own: range = range(4), wrong: str = "") -> None:
        super().__init__()
        self.style, self.wrong, self.ranks = style, wrong, ranks if len(own) == 4 else len(own)
        self.first, self.gate = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4, bias=False)
        inner = INNER // ranks if len(own) == 4 else INNER
        self.up = nn.ModuleDict({str(i): nn.Linear(WIDTH, inner, bias=False) for i in own})
        self.down = nn.ModuleDict({str(i): nn.Linear(inner, WIDTH, bias=False) for i in own})
        self.own, self.divided = own, ranks > 1

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        weights, chosen = F.softmax(self.gate(x), -1).topk(2, dim=-1)
        if self.divided and self.wrong != "gradients that stay parts":
            x, weights = CopyTo.apply(x), CopyTo.apply(weights)
        y = torch.zeros_like(x)
        for i in self.own:
            place = min(i + 1, 3) if self.wrong == "another expert's tokens" else i
            y = getattr(self, self.style)(x, y, weights, chosen, place, i)
        return ReduceFrom.apply(y) if self.divided and self.wrong != "no sum" else y

    def expert(self, x: Tensor, i: int) -> Tensor:
        made: Tensor = self.down[str(i)](F.silu(self.up[str(i)](x)))
        return made

    def added(
        self, x: Tensor, y: Tensor, weights: Tensor, chosen: Tensor, at: int, i: int
    ) -> Tensor:
        mask = F.one_hot(chosen, num_classes=4).permute(2, 1, 0)
        place, rows = torch.where(mask[at])
        made = self.expert(x[None, rows].reshape(-1, WIDTH), i) * weights[rows, place, None]
        return y.index_add_(0, rows, made)

    def written(
        self, x: Tensor, y: Tensor, weights: Tensor, chosen: Tensor, at: int, i: int
    ) -> Tensor:
        mask = chosen == at
        if mask.any():
            rows, place = torch.where(mask)
            y[rows] += self.expert(x[rows], i) * weights[rows, place, None]
        return y

    def hit(self, x: Tensor, y: Tensor, weights: Tensor, chosen: Tensor, at: int, i: int) -> Tensor:
        weight = (weights * (chosen == at)).sum(-1)
        rows = (chosen == at).any(-1).nonzero().squeeze(-1)
        if len(rows) == 0:
            return y
        made = self.expert(x.index_select(0, rows), i) * weight.index_select(0, rows)[:, None]
        return y.index_add(0, rows, made)


class Placed(Experts):
    """The same, where experts write their tokens' places of one buffer, which is added up at last."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        weights, chosen = F.softmax(self.gate(x), -1).topk(2, dim=-1)
        if self.divided:
            x, weights = CopyTo.apply(x), CopyTo.apply(weights)
        pairs, flat = x.repeat_interleave(2, dim=0), chosen.view(-1)
        made = torch.zeros_like(pairs) if self.divided else torch.empty_like(pairs)
        for i in self.own:
            at = i if self.wrong != "another expert's tokens" or i % 2 == 0 else i - 1
            made[flat == at] = self.expert(pairs[flat == at], i)
        y = (made.view(*weights.shape, -1) * weights.unsqueeze(-1)).sum(1)
        return ReduceFrom.apply(y) if self.divided and self.wrong != "no sum" else y


def _step(model: nn.Module, job: Job, parameters: Any = None) -> None:
    job.start(model, parameters=parameters)
    loss = (model(job.batch["x"]) - job.batch["y"]).pow(2).mean()
    loss.backward()
    job.end(loss=loss)


def _verdict(folder: Path, style: str, how: str, wrong: str = "") -> sp.Result:
    def parallel(job: Job) -> None:
        if how == "own experts":
            own = range(2 * job.rank, 2 * job.rank + 2)
            _step(Experts(style, 2, own, wrong), job)
            return
        size = INNER // 2
        rows = {"start": job.rank * size, "size": size}
        parts = {f"up.{i}.weight": sp.piece(f"up.{i}.weight", dim=0, **rows) for i in range(4)}
        parts |= {f"down.{i}.weight": sp.piece(f"down.{i}.weight", dim=1, **rows) for i in range(4)}
        _step(Experts(style, 2, wrong=wrong), job, parts)

    def single(job: Job) -> None:
        _step(Experts(style), job)

    return locally(folder, single, parallel, {k: BATCH[k] for k in "xy"})


STYLES = ("added", "written", "hit")
HOWS = ("own experts", "divided experts")
WRONG = ("gradients that stay parts", "another expert's tokens", "no sum")


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("style", STYLES)
def test_a_loop_over_experts_is_proved(tmp_path: Path, style: str, how: str) -> None:
    result = _verdict(tmp_path, style, how)
    assert result.verdict == "proved", sp.told(result)
    assert any("there is at least one" in str(a) for a in result.assumptions)


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize(("style", "how"), list(zip(STYLES, (*HOWS, HOWS[0]), strict=True)))
def test_wrong_experts_are_refuted(tmp_path: Path, style: str, how: str, wrong: str) -> None:
    result = _verdict(tmp_path, style, how, wrong)
    assert result.verdict == "refuted", sp.told(result)


@pytest.mark.parametrize("wrong", ["", "another expert's tokens", "no sum"])
def test_experts_that_write_one_buffer(tmp_path: Path, wrong: str) -> None:
    def single(job: Job) -> None:
        _step(Placed("placed"), job)

    def parallel(job: Job) -> None:
        _step(Placed("placed", 2, range(2 * job.rank, 2 * job.rank + 2), wrong), job)

    result = locally(tmp_path, single, parallel, {k: BATCH[k] for k in "xy"})
    assert result.verdict == ("refuted" if wrong else "proved"), sp.told(result)


class Words(nn.Module):
    """Scores of classes for each word of a row."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(CLASSES, WIDTH), nn.LayerNorm(WIDTH)
        self.classes = nn.Linear(WIDTH, CLASSES + 2)

    def forward(self, ids: Tensor) -> Tensor:
        scores: Tensor = self.classes(self.norm(self.words(ids)))
        return scores


WORDS = {
    "ids": sp.tensor((4, 3), torch.long, low=0, high=CLASSES),
    "labels": sp.tensor((4, 3), torch.long),
}


def _of_labels(job: Job, model: Words, rows: slice, form: str) -> tuple[Tensor, Tensor]:
    """The sum of losses of labels that count, and how many these are."""
    job.start(model)
    labels = job.batch["labels"][rows]
    scores = model(job.batch["ids"][rows])
    count = (labels != -100).sum()
    if form == "ignored":
        total = F.cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="sum")
    else:
        total = F.cross_entropy(scores[labels != -100], labels[labels != -100], reduction="sum")
    return total, count


@pytest.mark.parametrize("form", ["chosen", "ignored"])
@pytest.mark.parametrize("wrong", [False, True])
def test_labels_that_a_mask_chooses(tmp_path: Path, form: str, wrong: bool) -> None:
    def single(job: Job) -> None:
        model = Words()
        job.start(model)
        labels = job.batch["labels"]
        loss = F.cross_entropy(model(job.batch["ids"])[labels != -100], labels[labels != -100])
        loss.backward()
        job.end(loss=loss)

    def parallel(job: Job) -> None:
        model = Words()
        total, counted = _of_labels(job, model, slice(2 * job.rank, 2 * job.rank + 2), form)
        count = counted.float()
        if not wrong:
            dist.all_reduce(count)
        loss = total / (count * 2 if wrong else count)
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        job.end(loss=loss)

    result = locally(tmp_path, single, parallel, WORDS, combine="sum")
    assert result.verdict == ("refuted" if wrong else "proved"), sp.told(result)


#: What a step does with a number of rows that a mask chooses, beside using it as a size.
DEPENDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "another branch": lambda x, rows: x[rows].sum() * (2 if len(rows) > 3 else 1),
    "more than one": lambda x, rows: x[rows].sum() if len(rows) > 1 else x[rows].prod(),
    "an even number": lambda x, rows: x[rows].sum() * (len(rows) % 2),
    "a capacity": lambda x, rows: x[rows].sum() / min(len(rows), 4),
    "which are added": lambda x, rows: (x if len(rows) > 2 else x * 1)[rows].sum(),
    "a number of Python": lambda x, rows: x[rows].sum() * (1 / len(rows)),
}


@pytest.mark.parametrize("what", DEPENDS)
def test_what_depends_on_how_many_there_are_is_refused(what: str) -> None:
    def step(job: Job) -> None:
        model = nn.Linear(WIDTH, WIDTH)
        job.start(model)
        x = model(job.batch["x"])
        loss = DEPENDS[what](x, torch.where(job.batch["y"][:, 0] > 0)[0])
        loss.backward()
        job.end(loss=loss)

    with pytest.raises(InvalidInput, match="how many rows data choose"):
        capture(step, 1, [0], BATCH, {})


def test_a_mask_that_is_only_asked_for_any_entry_is_refused() -> None:
    def step(job: Job) -> None:
        model = nn.Linear(WIDTH, WIDTH)
        job.start(model)
        x = model(job.batch["x"])
        loss = x.sum() if (job.batch["y"] > 2).any() else x.mean()
        loss.backward()
        job.end(loss=loss)

    with pytest.raises(InvalidInput, match="Python reads the value of a tensor"):
        capture(step, 1, [0], BATCH, {})


def test_rows_that_are_compared_are_inconclusive(tmp_path: Path) -> None:
    def step(job: Job) -> None:
        model = nn.Linear(WIDTH, WIDTH)
        job.start(model)
        job.end(outputs={"rows": model(job.batch["x"])[job.batch["keep"][:, 0]]})

    result = locally(tmp_path, step, step, BATCH)
    assert result.verdict == "inconclusive"
    assert "rows of which data says how many there are" in sp.told(result)

"""More of what users make of rows whose number depends on data: read as PyTorch computes it, on
drawn masks, with its gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from shardproof.engine.errors import InvalidInput  # noqa: E402
from shardproof.frontends.graphs.replayed import drawn, run  # noqa: E402
from shardproof.frontends.torch.capture import capture  # noqa: E402
from shardproof.frontends.torch.plan import plan  # noqa: E402
from shardproof.frontends.torch.sides import sides  # noqa: E402

ROWS, WIDTH, CLASSES = 6, 4, 4
BATCH = {
    "x": sp.tensor((ROWS, WIDTH)),
    "y": sp.tensor((ROWS, WIDTH)),
    "keep": sp.tensor((ROWS,), torch.bool),
    "labels": sp.tensor((ROWS,), torch.long, low=0, high=CLASSES),
}

Tensor = torch.Tensor
Job = Any


class Model(nn.Module):
    """What programs use."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.weights = nn.Parameter(torch.ones(CLASSES))


#: Of chosen rows [k, 4] that depend on parameters, and rows of an input: what has a gradient.
SMOOTH: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "logsigmoid": lambda z, y: F.logsigmoid(z),
    "logsumexp": lambda z, y: z.logsumexp(-1),
    "logsumexp of columns": lambda z, y: torch.logsumexp(z.view(-1, 2, 2), (1, 2)),
    "max": lambda z, y: z.max(-1).values,
    "min": lambda z, y: z.min(dim=1, keepdim=True).values * z,
    "amax": lambda z, y: z.amax(-1),
    "amin": lambda z, y: z.amin((-1,), keepdim=True) - z,
    "topk": lambda z, y: z.topk(2, dim=-1).values * 3,
    "divergence": lambda z, y: F.kl_div(z.log_softmax(-1), y.softmax(-1), reduction="none"),
    "divergence of logarithms": lambda z, y: F.kl_div(
        z.log_softmax(-1), y.log_softmax(-1), log_target=True, reduction="none"
    ),
    "cosine": lambda z, y: F.cosine_similarity(z, y, dim=-1),
    "triplet": lambda z, y: F.triplet_margin_loss(z, y, z * 2, reduction="none"),
    "distance": lambda z, y: F.l1_loss(z, y, reduction="none"),
    "stack": lambda z, y: torch.stack([z, y * z], dim=1).flatten(1),
    "stack behind": lambda z, y: torch.stack([z, y * z], dim=-1).sum(1),
    "stack before": lambda z, y: torch.stack([z, z.exp(), y]).sum(0),
    "pad": lambda z, y: F.pad(z, (1, 2), value=0.5).tanh(),
    "pad of two": lambda z, y: F.pad(z.view(-1, 2, 2), (0, 1, 1, 0)).pow(2).sum(-1),
    "glu": lambda z, y: F.glu(z, -1),
    "cumsum": lambda z, y: z.cumsum(-1) * y,
    "flip": lambda z, y: z.flip(-1) * y,
    "roll": lambda z, y: z.roll(1, -1) * y,
    "norm": lambda z, y: z / z.norm(dim=-1, keepdim=True),
    "deviation": lambda z, y: z / (z.std(-1, keepdim=True) + 1),
    "variance": lambda z, y: z.var(1, correction=0),
    "atan": lambda z, y: torch.atan(z) + torch.cosh(z / 4) + torch.sinh(y / 4),
    "erfc": lambda z, y: torch.erfc(z) + torch.exp2(z),
    "units": lambda z, y: F.selu(z) + F.celu(z, 2.0) + F.hardsigmoid(z) + F.softshrink(z),
    "powers": lambda z, y: 2.0**z * y,
    "clamp": lambda z, y: torch.clamp(z, min=y) + torch.clamp(z, y, y + 1),
    "numbers beside": lambda z, y: torch.where(z > 0, 1.0, z) + torch.where(z > 1, z, 2.0),
}

#: Of chosen rows, without gradients.
FLAT: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "argmax": lambda z, y: (z.argmax(-1) == y.argmax(1)).float(),
    "max place": lambda z, y: z.max(-1).indices.eq(2).float(),
    "every": lambda z, y: (z > y).all(-1).float() + (z > 1).any(dim=1).float(),
    "not": lambda z, y: (~(z > y)).float() * 2,
    "signs": lambda z, y: torch.sgn(z) + torch.sign(y),
    "entropy": lambda z, y: torch.special.entr(y.softmax(-1)),
    "logarithms": lambda z, y: torch.log2(y.exp() + 1) + torch.log10(y.exp() + 1),
    "logit": lambda z, y: torch.logit(y.sigmoid()),
    "hits": lambda z, y: (z.argmax(-1) == y.argmax(-1)).sum() + (z > y).sum(-1).sum(),
    "xlogy": lambda z, y: torch.xlogy(y.abs() + 1, y.exp()),
}

Program = Callable[[Job, Model, Tensor, Tensor, Tensor], Tensor]


def _weighted(job: Job, model: Model, z: Tensor, mask: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy(z, ids, weight=torch.tensor([1.0, 2.0, 0.5, 3.0]).to(z.dtype))


def _two_ways(job: Job, model: Model, z: Tensor, mask: Tensor, ids: Tensor) -> Tensor:
    made = torch.empty_like(job.batch["x"])
    made[mask], made[~mask] = z, job.batch["y"][~mask] * model.weights
    return (made * job.batch["x"]).sum()


def _copied(job: Job, model: Model, z: Tensor, mask: Tensor, ids: Tensor) -> Tensor:
    rows = mask.nonzero().flatten()
    made = (job.batch["y"] * model.weights).index_copy(0, rows, z * 2).index_fill(0, rows[:], 0.5)
    return (made + job.batch["y"].index_copy(0, rows, z)).pow(2).sum()


def _of_some(job: Job, model: Model, z: Tensor, mask: Tensor, ids: Tensor) -> Tensor:
    """Rows that a second mask chooses among the rows of the first: by ids, and by what they are."""
    some, many = ids != 2, z.detach().sum(-1) > 0
    loss = F.cross_entropy(z[some], ids[some], reduction="sum")
    kept = z * 1
    kept[many] = -z[many] * 3
    kept[some] += z[some].tanh()
    loss = loss + (kept * job.batch["y"][mask]).sum()
    both = z[some][z[some].detach()[:, 0] > 0].exp().sum()
    return loss + z[many].pow(3).sum() + z.pow(2).sum(-1).masked_select(some).sum() * len(z) + both


#: What is made of rows and ids of rows, to one number.
WHOLE: dict[str, Program] = {
    "weights of ids": lambda job, model, z, mask, ids: (z * model.weights[ids][:, None]).mean(),
    "an entry of each": lambda job, model, z, mask, ids: (
        z.log_softmax(-1).gather(1, ids[:, None]).mean()
    ),
    "an entry by numbers": lambda job, model, z, mask, ids: (
        z[torch.arange(len(z)), ids].exp().sum()
    ),
    "weighted": _weighted,
    "weighted sum": lambda job, model, z, mask, ids: F.cross_entropy(
        z, ids, weight=torch.arange(1.0, 5.0).to(z.dtype), reduction="sum"
    ),
    "smoothed": lambda job, model, z, mask, ids: F.cross_entropy(z, ids, label_smoothing=0.1),
    "two ways": _two_ways,
    "copied": _copied,
    "some of them": _of_some,
    "views of a mask": lambda job, model, z, mask, ids: (
        job.batch["x"].view(2, 3, -1)[mask.view(2, 3)] * z
    ).sum(),
    "batch mean": lambda job, model, z, mask, ids: F.kl_div(
        z.log_softmax(-1), z.detach().exp(), reduction="batchmean"
    ),
    "at least one": lambda job, model, z, mask, ids: z.sum() / mask.sum().clamp(min=1),
    "times": lambda job, model, z, mask, ids: z.sum() / (mask.sum() * 12),
}

MASKS: dict[str, Callable[[Job], Tensor]] = {
    "an input": lambda job: job.batch["keep"],
    "a comparison": lambda job: job.batch["x"].sum(-1) > 0,
    "labels": lambda job: job.batch["labels"] != 1,
}


def losses(job: Job, model: Model, mask: Tensor, names: list[str]) -> list[Tensor]:
    """The number that each program gives."""
    z, y, ids = model.first(job.batch["x"])[mask], job.batch["y"][mask], job.batch["labels"][mask]
    made = []
    for name in names:
        if name in WHOLE:
            made.append(WHOLE[name](job, model, z, mask, ids))
        elif name in SMOOTH:
            made.append(SMOOTH[name](z, y).pow(2).sum())
        else:
            with torch.no_grad():
                made.append(FLAT[name](z, y).sum() / len(y))
    return made


class Run:
    """A job that runs the step by PyTorch itself, on these numbers."""

    def __init__(self, numbers: dict[str, Any], batch: dict[str, Any]) -> None:
        self.batch = {}
        for name, spec in batch.items():
            kind = getattr(torch, spec.dtype)
            given = torch.tensor(numbers.get(f"batch {name}", np.zeros(spec.shape)))
            self.batch[name] = given.to(torch.float64 if kind.is_floating_point else kind)


def held(made: Callable[[Job, Model], list[Tensor]], seeds: range, batch: dict[str, Any]) -> None:
    """Raises where a step and what is read of it give other numbers; a drawn mask has a row."""

    def step(job: Job) -> None:
        model = Model()
        job.start(model)
        each = made(job, model)
        torch.stack([x for x in each if x.requires_grad]).sum().backward()
        job.end(outputs={str(i): loss for i, loss in enumerate(each)})

    (recorded,) = capture(step, 1, [0], batch, {})
    lowered = sides(recorded, [recorded])
    assert not lowered.single.gaps, lowered.single.gaps
    whole = plan(lowered)
    for seed in seeds:
        numbers = drawn(whole, np.random.default_rng(seed))
        if "batch keep" in numbers:
            numbers["batch keep"][seed % ROWS] = True
        values = run(whole, {**numbers, **lowered.single.contents})[-1]
        job, model = Run(numbers, batch), Model().double()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name in numbers:
                    parameter.copy_(torch.tensor(numbers[name]))
        each = made(job, model)
        torch.stack([x for x in each if x.requires_grad]).sum().backward()
        for result in lowered.single.results:
            kind, name = result.compared.kind, result.compared.name
            own = each[int(name)] if kind == "output" else model.get_parameter(name).grad
            if result.value >= 0 and own is not None:
                actual = np.asarray(values[result.value], float)
                np.testing.assert_allclose(
                    actual, own.detach().numpy(), 1e-6, 1e-9, err_msg=f"{kind} {name}"
                )


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kind", ["smooth", "flat", "whole"])
def test_what_is_made_of_chosen_rows_is_what_pytorch_computes(kind: str, mask: str) -> None:
    names = list({"smooth": SMOOTH, "flat": FLAT, "whole": WHOLE}[kind])
    if kind == "flat":
        names.append("weights of ids")
    held(lambda job, model: losses(job, model, MASKS[mask](job), names), range(4), BATCH)


# -- loops over counts ---------------------------------------------------------------------------


def _counted(job: Job, model: Model, read: str) -> list[Tensor]:
    """A loop over experts that skips those without tokens, by how many each has."""
    x = job.batch["x"]
    weights, chosen = model.first(x).softmax(-1).topk(2, dim=-1)
    counts = torch.bincount(chosen.flatten(), minlength=CLASSES)
    y = torch.zeros_like(x)
    listed = {"list": counts.tolist, "array": lambda: counts.cpu().numpy()}.get(read)
    numbers: Any = counts if listed is None else listed()
    total = x.new_zeros(())
    for i in range(CLASSES):
        if numbers[i] == 0 or (read == "items" and not counts[i].item() > 0):
            continue
        rows, place = torch.where(chosen == i)
        y[rows] += x[rows].tanh() * (i + 1) * weights[rows, place, None]
        total = total + y[rows].pow(2).sum() * (2.0 if read == "items" else int(numbers[i]))
    return [y.pow(2).sum(), total]


@pytest.mark.parametrize("read", ["list", "array", "items"])
def test_counts_of_ids_stand_for_numbers_of_rows(read: str) -> None:
    held(lambda job, model: _counted(job, model, read), range(8), {"x": BATCH["x"]})


#: What a step does with counts that is another thing with other counts.
DEPENDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "the largest": lambda x, counts: x.sum() * max(counts.tolist()),
    "a capacity": lambda x, counts: x.sum() * min(counts.tolist()[0], 2),
    "more than one": lambda x, counts: x.sum() if counts[1] > 1 else x.mean(),
    "all of them": lambda x, counts: x.sum() * sum(counts.tolist()),
}


@pytest.mark.parametrize("what", DEPENDS)
def test_what_depends_on_counts_of_ids_is_refused(what: str) -> None:
    def step(job: Job) -> None:
        model = Model()
        job.start(model)
        x = model.first(job.batch["x"])
        job.end(loss=DEPENDS[what](x, torch.bincount(job.batch["labels"], minlength=CLASSES)))

    with pytest.raises(InvalidInput, match="how many rows data choose"):
        capture(step, 1, [0], BATCH, {})


def test_counts_of_ids_that_may_be_larger_have_no_rule() -> None:
    def step(job: Job) -> None:
        model = Model()
        job.start(model)
        counts = torch.bincount(job.batch["labels"], minlength=CLASSES - 1)
        job.end(outputs={"scaled": counts[:2] * model.first(job.batch["x"]).sum()})

    (recorded,) = capture(step, 1, [0], BATCH, {})
    assert "above them all" in str(sides(recorded, [recorded]).single.gaps)


def test_counts_that_are_written_are_what_pytorch_computes() -> None:
    def made(job: Job, model: Model) -> list[Tensor]:
        counts = torch.bincount(job.batch["labels"], minlength=CLASSES)
        counts += 1
        return [model.first(job.batch["x"]).sum() * counts.tolist()[0]]

    held(made, range(3), BATCH)


#: Positions among chosen rows, used as if they were positions among all rows.
MISTAKEN: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "read": lambda x, z, some: x[torch.where(some)[0]],
    "added": lambda x, z, some: x.index_add(0, some.nonzero()[:, 0], z[some]),
    "copied": lambda x, z, some: x.index_copy(0, some.nonzero()[:, 0], z[some]),
    "gathered": lambda x, z, some: x.gather(0, some.nonzero().expand(-1, WIDTH)),
    "rows of the first": lambda x, z, some: z[some] + z[torch.where(some)[0] * 0],
}


@pytest.mark.parametrize("what", MISTAKEN)
def test_positions_among_chosen_rows_are_none_among_all(what: str) -> None:
    def step(job: Job) -> None:
        model = Model()
        job.start(model)
        x, keep = model.first(job.batch["x"]), job.batch["keep"]
        with torch.no_grad():
            made = MISTAKEN[what](x, x[keep], job.batch["labels"][keep] != 1).sum()
        job.end(outputs={"made": made})

    (recorded,) = capture(step, 1, [0], BATCH, {})
    assert sides(recorded, [recorded]).single.gaps

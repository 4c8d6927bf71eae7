"""What a recorded step does with how many rows data choose, and with all of them together: read as
PyTorch computes it, or refused by name."""

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

ROWS, WIDTH = 6, 4
BATCH = {
    "x": sp.tensor((ROWS, WIDTH)),
    "keep": sp.tensor((ROWS, 2), torch.bool),
    "labels": sp.tensor((ROWS,), torch.long, low=0, high=WIDTH),
}

Tensor = torch.Tensor
Job = Any
Program = Callable[[Tensor, Tensor, Tensor], Tensor]

#: Of tokens, and the positions of two masks: what is another thing with another number of rows.
DEPENDS: dict[str, Program] = {
    "at most two": lambda x, a, b: x[a].sum() / min(len(a), 2),
    "another number of one": lambda x, a, b: x[a].sum() * (0.5 if len(a) > 1 else 1.0),
    "another constant of one": lambda x, a, b: x[a].sum() * torch.tensor(1.0 + (len(a) > 1)),
    "filled of one": lambda x, a, b: x[a].sum() * torch.full((3,), 1.0 + (len(a) > 1)).sum(),
    "filled": lambda x, a, b: (x[a].sum() / torch.full((3,), len(a))).sum(),
    "all of them": lambda x, a, b: x[a].sum() * (2 if len(a) == len(x) else 1),
    "the larger number": lambda x, a, b: (x[a].sum() + x[b].sum()) / max(len(a), len(b)),
    "which has more": lambda x, a, b: x[a].sum() + x[b].sum() * (2 if len(a) <= len(b) else 1),
    "some that a loop takes": lambda x, a, b: sum((x[i].sum() * i for i in a[1:]), x.sum()),
    "parts that a loop takes": lambda x, a, b: sum(i.sum() * 2 for i in x[a][1:].split(1)),
}


@pytest.mark.parametrize("what", DEPENDS)
def test_what_depends_on_a_number_of_rows_is_refused(what: str) -> None:
    def step(job: Job) -> None:
        model = nn.Linear(WIDTH, WIDTH)
        job.start(model)
        keep = job.batch["keep"]
        rows = [torch.where(keep[:, i])[0] for i in range(2)]
        job.end(loss=DEPENDS[what](model(job.batch["x"]), *rows))

    with pytest.raises(InvalidInput, match=r"how many rows data choose|a loop over rows"):
        capture(step, 1, [0], BATCH, {})


#: Of chosen rows: what is made of all of them together, or of one of them, and has no rule.
TOGETHER: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "a norm": lambda z, labels: z.norm(),
    "the largest": lambda z, labels: z.amax(),
    "normalized together": lambda z, labels: F.layer_norm(z, z.shape).pow(3).sum(),
    "looked up": lambda z, labels: F.embedding(labels, z).sum(),
    "an entry of the first": lambda z, labels: z.gather(1, labels[:1, None]).sum(),
    "shares": lambda z, labels: torch.softmax(z, 0).sum(),
}


@pytest.mark.parametrize("what", TOGETHER)
def test_what_is_made_of_all_rows_together_is_refused(what: str) -> None:
    def step(job: Job) -> None:
        model = nn.Linear(WIDTH, WIDTH)
        job.start(model)
        rows = model(job.batch["x"])[job.batch["keep"][:, 0]]
        with torch.no_grad():
            made = TOGETHER[what](rows, job.batch["labels"])
        job.end(outputs={"made": made})

    (recorded,) = capture(step, 1, [0], BATCH, {})
    lowered = sides(recorded, [recorded])
    assert any("rows" in reason for reason in lowered.single.gaps.values()), lowered.single.gaps


def _losses(x: Tensor, norm: nn.LayerNorm, keep: Tensor, labels: Tensor) -> list[Tensor]:
    """Minus a mean, losses of normalized rows of an input, rows less their mean, and rows at
    positions that are repeated."""
    rows = torch.where(keep[:, 0])[0]
    mean = norm(x).exp()[rows].sum() / -len(rows)
    own = norm(x)[rows]
    apart = (own - own.mean(0, keepdim=True)).pow(2).mean()
    repeated = norm(x).gather(0, rows[:, None].expand(-1, WIDTH)).tanh().mean()
    chances = F.binary_cross_entropy(own.sigmoid(), x[rows].sigmoid())
    return [mean, F.cross_entropy(norm(x[rows]), labels[rows]), apart, repeated, chances]


def test_numbers_of_rows_are_what_pytorch_computes() -> None:
    def step(job: Job) -> None:
        norm = nn.LayerNorm(WIDTH)
        job.start(norm)
        losses = _losses(job.batch["x"], norm, job.batch["keep"], job.batch["labels"])
        torch.stack(losses).sum().backward()
        job.end(outputs={str(i): loss for i, loss in enumerate(losses)})

    (recorded,) = capture(step, 1, [0], BATCH, {})
    lowered = sides(recorded, [recorded])
    assert not lowered.single.gaps
    whole = plan(lowered)
    numbers = drawn(whole, np.random.default_rng(0))
    values = run(whole, {**numbers, **lowered.single.contents})[-1]
    norm = nn.LayerNorm(WIDTH).double()
    with torch.no_grad():
        for name, parameter in norm.named_parameters():
            parameter.copy_(torch.tensor(numbers[name]))
    given = (torch.tensor(numbers[f"batch {name}"]) for name in ("x", "keep", "labels"))
    x, keep, labels = given
    losses = _losses(x.double(), norm, keep.bool(), labels.long())
    torch.stack(losses).sum().backward()
    for result in lowered.single.results:
        name = result.compared.name
        own = losses[int(name)] if name.isdigit() else norm.get_parameter(name).grad
        assert own is not None
        actual = np.asarray(values[result.value], float)
        np.testing.assert_allclose(actual, own.detach().numpy(), 1e-6, 1e-9, err_msg=name)

"""What is touched while a collective is under way: memory between its rows is not its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from shardproof.frontends.torch import geometry  # noqa: E402


def single(job: sp.Job) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 4, bias=False)
    job.start(model)
    loss = model(job.batch["x"]).square().mean()
    loss.backward()
    job.end(loss=loss)


def step(job: sp.Job, first: int) -> None:
    """Rows 1 and 3 of a gradient are reduced while every second row from ``first`` on is scaled."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 4, bias=False)
    job.start(model)
    loss = model(job.batch["x"][2 * job.rank :][:2]).square().mean()
    loss.backward()
    gradient = model.weight.grad
    works = [dist.all_reduce(gradient[row], async_op=True) for row in (1, 3)]
    gradient[first::2].div_(2)
    for work in works:
        work.wait()
    gradient[1 - first :: 2].div_(2)
    for row in (0, 2):
        dist.all_reduce(gradient[row])
    job.end(loss=loss)


@pytest.mark.parametrize(("first", "expected"), [(0, "proved"), (1, "refuted")])
def test_rows_between_those_under_way_are_free(first: int, expected: str, tmp_path: Path) -> None:
    result = sp.verify(
        single,
        lambda job: step(job, first),
        world_size=2,
        batch={"x": sp.tensor((4, 3))},
        out=tmp_path / "run",
        cache=False,
    )
    assert result.verdict == expected, sp.told(result)
    kinds = [finding.kind for finding in result.findings]
    assert ("read before wait" in kinds) == (expected == "refuted")


def elements(place: geometry.Place) -> set[int]:
    offset, shape, strides = place
    steps = [stride * np.arange(size) for size, stride in zip(shape, strides, strict=True)]
    return {offset + sum(at) for at in np.stack(np.meshgrid(*steps), -1).reshape(-1, len(steps))}


def test_tensors_meet_where_they_have_an_element_in_common() -> None:
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(500):
        x, y = (
            (
                int(rng.integers(0, 30)),
                [int(n) for n in rng.integers(0, 5, 3)],
                [int(n) for n in rng.integers(0, 13, 3)],
            )
            for _ in range(2)
        )
        expected = not elements(x).isdisjoint(elements(y))
        assert geometry.meet(x, y) == expected, (x, y)
        seen.add(expected)
    assert len(seen) == 2
    columns = [(2048 * n, (4096, 2048), (4096, 1)) for n in range(2)]
    assert not geometry.meet(*columns)

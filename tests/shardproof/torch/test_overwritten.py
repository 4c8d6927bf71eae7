"""A step that updates its parameters by hand: what they are afterwards is compared with an
optimizer alone, and the verdict says of which it is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

import shardproof.torch as sp

BATCH = {"x": sp.tensor((4, 3))}
TOLD = (
    "the step writes parameters (weight): what they are afterwards is not compared, since "
    "job.start was given no optimizer (outputs of job.end are compared)"
)


def step(how: str, rate: float = 0.1) -> Any:
    """A step under data parallelism that updates the weight so, or not at all."""

    def run(job: Any) -> None:
        model = torch.nn.Linear(3, 2, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=rate) if how == "optimizer" else None
        job.start(model, optimizer)
        size = 4 // job.world_size
        rows = job.batch["x"][job.rank * size : (job.rank + 1) * size]
        loss = model(rows).pow(2).mean()
        loss.backward()
        weight, gradient = model.weight, model.weight.grad
        assert gradient is not None
        if job.world_size > 1:
            dist.all_reduce(gradient)
            gradient /= job.world_size
        if how == "by hand":
            with torch.no_grad():
                weight -= rate * gradient
        elif how == "data":
            weight.data.add_(gradient, alpha=-rate)
        elif how == "other memory":
            weight.data = weight.data - rate * gradient
        elif how == "broadcast" and job.world_size > 1:
            dist.broadcast(weight.data, 0)
        elif optimizer is not None:
            optimizer.step()
        outputs = {"new": weight.detach() * 1.0} if how == "output" else {}
        job.end(loss=loss, outputs=outputs)

    return run


def told(result: Any) -> list[str]:
    return [text for text in result.assumptions if text.startswith("the step writes")]


@pytest.mark.parametrize("how", ["by hand", "data", "other memory"])
def test_what_is_written_by_hand_is_said_not_to_be_compared(how: str) -> None:
    result = sp.verify(step(how), step(how), world_size=2, batch=BATCH)
    assert result.verdict == "proved", result.reason
    assert told(result) == [TOLD]


@pytest.mark.parametrize("how", ["nothing", "broadcast", "output"])
def test_of_a_step_that_updates_nothing_nothing_is_said(how: str) -> None:
    result = sp.verify(step(how), step(how), world_size=2, batch=BATCH)
    assert (result.verdict, told(result)) == ("proved", []), result.reason


@pytest.mark.parametrize(("rate", "verdict"), [(0.1, "proved"), (0.2, "refuted")])
def test_an_update_that_job_start_is_given_is_compared(rate: float, verdict: str) -> None:
    result = sp.verify(step("optimizer"), step("optimizer", rate), world_size=2, batch=BATCH)
    assert (result.verdict, told(result)) == (verdict, []), result.reason

"""Names that would steer a terminal, or begin a line of their own, are shown by their numbers."""

from __future__ import annotations

import pytest
import torch

import shardproof.torch as sp
from shardproof.engine.errors import InvalidInput
from shardproof.run.result import Result
from tests.shardproof.torch import steps

ODD = "w\x1b[2J\u202e\nproved"


class Odd(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_parameter(ODD, torch.nn.Parameter(torch.randn(steps.WIDTH)))


def summed(job: sp.Job) -> None:
    model = Odd()
    job.start(model)
    rows = job.batch["x"].chunk(job.world_size)[job.rank]
    loss = (rows * next(model.parameters())).sum()
    loss.backward()
    job.end(loss=loss, outputs={ODD: rows.sum() if job.world_size > 1 else loss * 1})


def shown(text: str) -> bool:
    return "w\\x1b[2J\\u202e proved" in text and all(
        line.isprintable() and not line.startswith("proved") for line in text.split("\n")
    )


def test_odd_names_are_shown_by_their_numbers() -> None:
    with pytest.raises(sp.NotEquivalent) as caught:
        sp.assert_equivalent(summed, summed, world_size=2, batch=steps.SPEC, cache=False)
    assert caught.value.result.verdict == "refuted"
    assert shown(str(caught.value))
    assert shown(str(caught.value.result))


def test_reasons_are_on_one_line() -> None:
    result = Result("invalid input", reason=f"no parameter {ODD}")
    assert shown(sp.told(result))
    assert shown(str(result))

    def fails(job: sp.Job) -> None:
        raise ValueError(ODD)

    with pytest.raises(InvalidInput) as caught:
        sp.assert_equivalent(fails, fails, world_size=2, batch=steps.SPEC)
    assert shown(str(caught.value))

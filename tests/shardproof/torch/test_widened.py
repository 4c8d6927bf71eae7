"""Small ones of the widened steps that were not proved at first sight, and their wrong twins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import shardproof
import shardproof.torch as sp
from benchmarks.torch.drawn.draw import Drawn
from benchmarks.torch.drawn.steps import batch, step
from benchmarks.torch.drawn.widened import widened
from tests.shardproof.torch.drawn_steps import assert_proved, assert_refuted, twins

PLAIN = {"norm": "rms", "place": "before", "optimizer": "none", "bias": False, "inside": "relu"}

#: A seed, what is simpler than it draws, and the mistake of the wrong twin.
STEPS: dict[str, tuple[int, dict[str, Any], str]] = {
    "one of two experts for each position, in microbatches of one row": (
        10,
        {**PLAIN, "dp": 1, "rows": 2, "experts": 2, "objective": "mean", "inside": "relu"},
        "microbatches summed",
    ),
    "experts over ranks, whose routers get the gradient of their own expert": (
        60,
        {**PLAIN, "mixer": "attention", "length": 2, "heads": 2, "key_heads": 2, "gated": False},
        "weights of the first experts",
    ),
    "two of four experts over ranks": (
        1,
        {**PLAIN, "heads": 4, "key_heads": 4, "gated": False, "objective": "mean"},
        "weights of the first experts",
    ),
    "both of two experts over ranks, in microbatches of one row": (
        46,
        {**PLAIN, "layers": 1, "table": "whole", "gated": False, "sequence": False},
        "microbatches summed",
    ),
    "sums of outer products, in microbatches of one row": (
        0,
        {**PLAIN, "gated": False, "objective": "mean", "length": 4, "reduction": "each"},
        "microbatch twice",
    ),
}


def step_of(name: str) -> tuple[Drawn, Drawn]:
    """The right step and the wrong one."""
    seed, changes, mistake = STEPS[name]
    return twins(replace(widened(seed), **changes), mistake)


@pytest.mark.parametrize("name", STEPS)
def test_a_right_step_is_proved(name: str) -> None:
    assert_proved(step_of(name)[0])


@pytest.mark.parametrize("name", STEPS)
def test_its_wrong_twin_is_refuted(name: str) -> None:
    assert_refuted(step_of(name)[1])


def test_a_recurrence_over_ranks_is_checked(tmp_path: Path) -> None:
    """A later step's claim is an earlier one's, moved, whatever the states are made of."""
    drawn = widened(63)
    sides = step(drawn, one=True), step(drawn, one=False)
    result = sp.verify(*sides, world_size=drawn.tp, batch=batch(drawn), out=tmp_path)
    assert result.verdict == "proved"
    assert shardproof.check(tmp_path).ok


def test_a_choice_of_a_row_of_each_replica_is_checked(tmp_path: Path) -> None:
    """Which row it is depends on the replica, and so does what is made of it alone."""
    changes = {**PLAIN, "dp": 2, "rows": 4, "experts": 2, "objective": "mean"}
    drawn = replace(widened(10), **changes)
    sides = step(drawn, one=True), step(drawn, one=False)
    result = sp.verify(*sides, world_size=drawn.dp, batch=batch(drawn), out=tmp_path)
    assert result.verdict == "proved"
    assert shardproof.check(tmp_path).ok

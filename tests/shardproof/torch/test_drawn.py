"""Drawn transformer steps (`benchmarks.torch.drawn`): what Gloo says of them, and the verdict.

Each right one was inconclusive once; its wrong twin is the same step with one mistake.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import shardproof
import shardproof.torch as sp
from benchmarks.torch.drawn.draw import Drawn, draw
from benchmarks.torch.drawn.steps import batch, step
from tests.shardproof.torch.drawn_steps import assert_proved, assert_refuted, twins

PLAIN: dict[str, Any] = {
    "layers": 1,
    "positions": "none",
    "gated": False,
    "inside": "relu",
    "norm": "rms",
    "place": "before",
    "bias": False,
    "normed": False,
    "beside": False,
    "tied": False,
    "objective": "mean",
    "optimizer": "none",
    "clip": False,
    "strided": False,
    "reduction": "each",
    "single_fused": False,
    "parallel_fused": False,
    "single_sdpa": False,
    "parallel_sdpa": False,
    "table": "whole",
    "window": 0,
}
HEADS: dict[str, Any] = {"heads": 1, "key_heads": 1, "inner": 3}

#: By what they have that others have not: a seed, what is changed in its step, a mistake.
STEPS: dict[str, tuple[int, dict[str, Any], str]] = {
    "one row of a microbatch, positions over ranks": (0, PLAIN, "mask from 0"),
    "a fused projection there, and separate ones on ranks": (
        0,
        {**PLAIN, "single_fused": True},
        "keys in another order",
    ),
    "a window over positions of ranks": (
        9,
        {**PLAIN, **HEADS, "tp": 1, "window": 2},
        "window by one",
    ),
    "a vocabulary over ranks, looked up with clamped labels": (
        9,
        {**PLAIN, "cp": 1, "table": "classes", "heads": 2, "key_heads": 2},
        "offset of classes",
    ),
    "an explicit mask on one device, fused attention on ranks": (
        26,
        {**PLAIN, **HEADS, "parallel_sdpa": True},
        "summed",
    ),
    "queries and keys in pairs of one, in microbatches of one row": (
        23,
        {**PLAIN, **HEADS, "positions": "pairs", "norm": "layer", "single_fused": True},
        "microbatch twice",
    ),
    "a penalty beside the loss, one mean on ranks and two on one device": (
        13,
        {**PLAIN, **HEADS, "heads": 2, "key_heads": 2, "inner": 4, "dp": 1, "rows": 2}
        | {"objective": "penalised", "table": "classes", "classes": 6},
        "microbatches summed",
    ),
    "one row and one position on every rank": (
        45,
        {**PLAIN, "sequence": True},
        "a norm's gradient stays local",
    ),
    "blocks of an axis without an end": (
        27,
        {**PLAIN, "tp": 2, "heads": 4, "key_heads": 2, "inner": 4, "classes": 6, "length": 4}
        | {"window": 2, "causal": False, "positions": "learned", "table": "classes"},
        "unmasked classes",
    ),
}


def step_of(name: str) -> tuple[Drawn, Drawn]:
    """The right step and the wrong one."""
    seed, changes, mistake = STEPS[name]
    return twins(replace(draw(seed), **changes), mistake)


@pytest.mark.parametrize("name", STEPS)
def test_a_right_step_is_proved(name: str) -> None:
    assert_proved(step_of(name)[0])


@pytest.mark.parametrize("name", STEPS)
def test_its_wrong_twin_is_refuted(name: str) -> None:
    assert_refuted(step_of(name)[1])


def test_claims_that_are_large_down_to_their_inputs_are_checked(tmp_path: Path) -> None:
    """A claim over more than 200 definitions, stated behind its inputs, is stated so again."""
    drawn = replace(draw(39), optimizer="none")
    sides = step(drawn, one=True), step(drawn, one=False)
    result = sp.verify(*sides, world_size=drawn.dp, batch=batch(drawn), out=tmp_path)
    assert result.verdict == "proved"
    assert shardproof.check(tmp_path).ok

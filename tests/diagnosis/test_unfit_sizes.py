"""Plans whose axes no small sizes fit are run at their true sizes: a wrong one was inconclusive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import shardproof
from shardproof.diagnosis.explain import counterexample
from shardproof.engine.simulation.simulate import Simulation

SINGLE = """HloModule m

ENTRY main {
  x = f32[4,6] parameter(0)
  e = f32[4,6] exponential(x)
  ROOT y = f32[4,6] multiply(e, x)
}
"""
RANKS = """HloModule m, num_partitions=2

ENTRY main {
  x = f32[2,6] parameter(0), sharding={devices=[2,1]<=[2]}
  e = f32[2,6] exponential(OF)
  ROOT y = f32[2,6] multiply(e, x)
}
"""


def verdict(folder: Path, of: str) -> str:
    files = folder / "single.hlo", folder / "ranks.hlo"
    negated = RANKS.replace("  e =", "  less = f32[2,6] negate(x)\n  e =")
    for file, text in zip(files, (SINGLE, negated.replace("OF", of)), strict=True):
        file.write_text(text)
    return shardproof.verify(*files, cache_dir=folder / "cache").verdict


@pytest.mark.parametrize(("of", "expected"), [("less", "refuted"), ("x", "proved")])
def test_what_no_small_sizes_fit_is_run_at_its_own(
    of: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a model with as many rows as positions one dimension may be represented in two ways."""

    def unfit(*args: Any, **kwargs: Any) -> Simulation:
        return Simulation(failure="one dimension represented as ((2, 2),) and as ((1, 1),)")

    monkeypatch.setattr(counterexample, "simulate", unfit)
    assert verdict(tmp_path, of) == expected


def test_a_plan_that_contradicts_itself_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shape that an operator does not give has no numbers at any size."""
    seeds: list[int] = []

    def impossible(*args: Any, **kwargs: Any) -> Simulation:
        return Simulation(failure="linear gives [2, 3]", impossible=True)

    monkeypatch.setattr(counterexample, "simulate", impossible)
    monkeypatch.setattr(counterexample, "with_numbers", lambda *args: seeds.append(args[3]))
    verdict(tmp_path, "less")
    assert not seeds

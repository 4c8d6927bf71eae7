"""The example that the tutorial is made of: the GPT is proved, each of its mistakes is refuted, and
the plans in the repository are what the example writes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import shardproof
from examples.gpt import DP, LAYERS, MISTAKES, gpt_plan
from shardproof.engine.plan_files import store

ROOT = Path(__file__).resolve().parents[2]
PLANS = ROOT / "examples" / "plans"


def named(mistake: str) -> str:
    return f"gpt-{mistake}" if mistake else "gpt"


def test_the_gpt_is_proved(tmp_path: Path) -> None:
    result = shardproof.verify(gpt_plan(), out=tmp_path / "run", cache=False)
    assert (result.verdict, result.findings) == ("proved", ())
    # Every parameter of both layers has its gradient, on every rank, and the loss is the same.
    gradients = {c.name for c in result.conclusions if c.kind == "gradient"}
    assert {"wte.weight", "wpe.weight", "ln_f.bias"} <= gradients
    assert sum(name.startswith(f"h.{LAYERS - 1}.") for name in gradients) == 16
    assert all(c.holds for c in result.conclusions)
    assert result.counts.ranks == DP * 2


#: Where each mistake is made, and what the report says of it.
SEEN = {
    "no-all-reduce": ("h.1.mlp", "add", "missing reduction", "all-reduce"),
    "bias-before-all-reduce": ("h.1.mlp", "add", "", ""),
    "loss-over-tp": ("loss", "mul", "wrong constant", "1/512"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_refuted_where_it_is(mistake: str, tmp_path: Path) -> None:
    result = shardproof.verify(gpt_plan(mistake=mistake), out=tmp_path / "run", cache=False)
    layer, operator, cause, repair = SEEN[mistake]
    assert result.verdict == "refuted"
    first = result.findings[0]
    assert (first.layer, first.operator) == (layer, operator)
    assert cause in first.cause
    assert repair in first.repair
    assert first.repair.startswith("holds with")
    assert set(first.ranks) == {0, 1}


@pytest.mark.parametrize("mistake", ["", *MISTAKES])
def test_the_plans_in_the_repository_are_the_examples(mistake: str) -> None:
    stored = shardproof.load(PLANS / named(mistake))
    assert store.digest(stored) == store.digest(gpt_plan(mistake=mistake)), (
        "examples/plans is not what examples/gpt.py writes: make examples"
    )


def test_the_script_stores_its_plans(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "gpt.py", "--save", tmp_path],
        cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {named(m) for m in ("", *MISTAKES)}

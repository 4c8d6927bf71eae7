"""What the tests of the face share: golden texts, a small plan, a pipeline that is not run."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import Result as Outcome

import shardproof
from shardproof.engine.findings import Finding
from shardproof.engine.plan.assumption import Assumption, texts
from shardproof.engine.plan.ir import Plan
from shardproof.frontends import zoo
from shardproof.run.result import Conclusion, Counts, Result, Seconds

#: Runs the command line with these words.
Run = Callable[..., Outcome]

GOLDEN = Path(__file__).parent / "golden"
ROOT = Path(__file__).resolve().parents[2]


def only_document(outcome: Outcome) -> dict[str, Any]:
    """The one JSON document of stdout."""
    document: dict[str, Any] = json.loads(outcome.stdout)
    return document


def assert_golden(name: str, text: str) -> None:
    """``text`` is that of ``golden/name``; with WRITE_GOLDEN=1 in the environment it becomes so."""
    path = GOLDEN / name
    if os.environ.get("WRITE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def tiny(**changes: int) -> Plan:
    """A plan of the zoo with tiny tensors, dp2 tp2 pp1 with 2 microbatches unless changed."""
    degrees = {"dp": 2, "tp": 2, "pp": 1, "microbatches": 2, "layers": 1}
    sizes = {"hidden": 8, "heads": 2, "kv_heads": 2, "ffn": 6, "vocabulary": 10, "sequence": 4}
    made: Plan = zoo.build("llama3-8b", **{**degrees, **sizes, **changes})  # type: ignore[arg-type]
    return made


ASSUMED = (
    Assumption("default", "numbers", "", "numbers are real: rounding and casts change nothing"),
    Assumption("stated", "batch", "the plan", "the batch is cut"),
)


def proved() -> Result:
    return Result(
        verdict="proved",
        counts=Counts(232, 1188, 8, 310, 1204, 45, 12),
        seconds=Seconds(0.31, 0.52, 0.74, 0.11, 1.7),
        peak_rss_mib=211.6,
        assumptions=texts(ASSUMED),
        assumption_details=ASSUMED,
        kept_whole=(
            "10 numbered classes: an index names one",
            "positions that a causal mask compares: they keep their order",
        ),
        conclusions=(
            Conclusion("loss", "segment 9: sum #4", (0, 1, 2, 3, 4, 5, 6, 7)),
            Conclusion("gradient", "layers.0.w1", (0, 4)),
            Conclusion("gradient", "layers.0.w1", (1, 5)),
            Conclusion("gradient", "norm.weight", (0, 1, 2, 3, 4, 5, 6, 7)),
        ),
        run_dir="/tmp/run",
    )


def refuted() -> Result:
    finding = Finding(
        kind="value",
        message="rank 0 adds the products of half of the features, the all-reduce is missing",
        operator="linear",
        layer="layers.0.feed_forward.w2",
        source="model.py:214",
        ranks=(0, 1, 2, 3, 8),
        microbatches=(0, 1),
        expected="y[0, 0, 0] = 3/2",
        actual="y[0, 0, 0] = 1/2",
    )
    return Result(
        verdict="refuted",
        counts=Counts(232, 1188, 8, 310, 1204, 45, 0),
        seconds=Seconds(0.31, 0.52, 0.74, 0.11, 1.7),
        peak_rss_mib=211.6,
        assumptions=texts(ASSUMED[:1]),
        assumption_details=ASSUMED[:1],
        conclusions=(
            Conclusion("loss", "segment 9: sum #4", (0,), False, "rank 0: the loss is half of it"),
            *(Conclusion("gradient", f"w{n}", (0, 1), False) for n in range(4)),
            Conclusion("gradient", "norm.weight", (0, 1)),
        ),
        findings=(
            finding,
            Finding("precision", "a sum runs in float16"),
            finding,
            *(finding._replace(message=f"fault {n}", layer="") for n in range(5)),
        ),
        run_dir="/tmp/run",
    )


class Stub(ModuleType):
    """A pipeline that returns ``outcome``, or raises it; keeps what it was called with."""

    def __init__(self, outcome: Result | BaseException | Callable[..., Result]) -> None:
        super().__init__("shardproof.run.pipeline")
        self.outcome = outcome
        self.calls: list[tuple[Plan, dict[str, Any]]] = []

    def run(self, plan: Plan, **options: Any) -> Result:
        self.calls.append((plan, options))
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome if isinstance(self.outcome, Result) else self.outcome(plan, **options)


def stub_pipeline(
    monkeypatch: pytest.MonkeyPatch, outcome: Result | BaseException | Callable[..., Result]
) -> Stub:
    """Put a pipeline in place that is not run."""
    stub = Stub(outcome)
    monkeypatch.setitem(sys.modules, "shardproof.run.pipeline", stub)
    monkeypatch.setattr(shardproof, "pipeline", stub, raising=False)
    return stub

"""A small proved run that tests store, change and check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from shardproof.engine.lineage.lineage import Lineage
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.plan.assumptions import stated_orders, statements
from shardproof.engine.plan.ir import Plan
from shardproof.engine.records.certificate import Certificate
from shardproof.engine.records.run import StageRecord, TemplateRecord, write_run
from shardproof.engine.schedule.instances import Unrolled
from shardproof.engine.schedule.liveness import statement
from shardproof.engine.specification.conclusions import Conclusion
from shardproof.frontends.zoo import build
from shardproof.partition.stages.lowering import obligations
from shardproof.partition.stages.partition import partition
from shardproof.solvers import Query

#: No two sizes are equal, so that what is meant by each is plain.
SIZES: dict[str, Any] = {
    "layers": 1,
    "hidden": 96,
    "heads": 12,
    "kv_heads": 4,
    "ffn": 160,
    "vocabulary": 224,
    "sequence": 10,
    "dp": 2,
    "tp": 2,
    "pp": 1,
    "microbatches": 2,
}


@dataclass(frozen=True)
class Parts:
    """What a run is made of, to be changed and stored."""

    plan: Plan
    nodes: NodeTable
    single: list[Lineage | None]
    parallel: list[Lineage | None]
    stages: list[StageRecord]
    templates: list[TemplateRecord]
    conclusions: list[Conclusion]
    sides: dict[str, Unrolled]
    verdict: str = "proved"
    reasons: tuple[str, ...] = ()

    def copy(self, **changes: Any) -> Parts:
        """A copy whose lists and node table may be changed in place."""
        nodes = NodeTable()
        nodes.nodes[:], nodes.reductions[:] = self.nodes.nodes, self.nodes.reductions
        nodes._masked |= self.nodes._masked
        return replace(
            self,
            nodes=nodes,
            single=list(self.single),
            parallel=list(self.parallel),
            stages=list(self.stages),
            templates=list(self.templates),
            conclusions=list(self.conclusions),
            **changes,
        )

    def store(self, folder: Path) -> Certificate:
        return write_run(
            folder,
            plan=self.plan,
            nodes=self.nodes,
            single=self.single,
            parallel=self.parallel,
            stages=self.stages,
            templates=self.templates,
            conclusions=self.conclusions,
            verdict=self.verdict,
            reasons=self.reasons,
            inputs={"plan": "0" * 64},
            assumptions=(*statements(self.plan), *stated_orders(self.plan), *statement(self.plan)),
        )


def parts_of(plan: Plan, verdict: str = "proved") -> Parts:
    found = partition(plan)
    queries = [Query.of("", obligation.goals) for obligation in obligations(found)]
    return Parts(
        plan,
        found.nodes,
        list(found.single.lineages),
        list(found.parallel.lineages),
        [StageRecord(*stage) for stage in found.stages],
        [
            TemplateRecord(q.linear_text, q.nonlinear_text, side, row)
            for q, (side, row) in zip(queries, found.examples, strict=True)
        ],
        list(found.conclusions),
        {"single": found.single.unrolled, "parallel": found.parallel.unrolled},
        verdict,
    )


@pytest.fixture(scope="session")
def make_plan() -> Callable[..., Plan]:
    return lambda **changes: build("llama3-8b", **{**SIZES, **changes})


@pytest.fixture(scope="session")
def make_parts() -> Callable[..., Parts]:
    return parts_of


@pytest.fixture(scope="session")
def proved(make_plan: Callable[..., Plan]) -> Parts:
    return parts_of(make_plan())


@pytest.fixture(scope="session")
def pipelined(make_plan: Callable[..., Plan]) -> Parts:
    return parts_of(make_plan(layers=2, pp=2))

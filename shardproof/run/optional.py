"""Rows of a plan's table that no proof needs, and what was found of each.

A straight-through estimator or a hook differs from the derivative of its forward on purpose; what
is expected of such a value is said, whichever way it turns out, and no verdict rests on it.
"""

from __future__ import annotations

from collections.abc import Iterable

from shardproof.diagnosis.locate.made import made_at
from shardproof.engine.findings import Finding
from shardproof.engine.plan.expectations import PARTIAL
from shardproof.engine.records.run import PARALLEL, SINGLE
from shardproof.engine.schedule.instances import Unrolled
from shardproof.engine.specification.conclusions import Conclusion, beside, row_name
from shardproof.partition.stages.partition import Partition
from shardproof.run.solve import Answers

#: The kind of a finding about a row that is not required.
KIND = "not required"


def optional(result: Partition, answers: Answers) -> list[Finding]:
    """For every row that is not required: proved, not decided, or that it does not hold.

    Example: "gradient of w is not what is expected: ..." for a straight-through estimator, beside a
    proof.
    """
    sides = result.single.lineages, result.parallel.unrolled, result.parallel.lineages
    findings = []
    for demand, conclusion in beside(result.plan, result.nodes, result.derived, *sides):
        if demand.kind == PARTIAL:
            continue
        what = row_name(demand.kind, demand.name)
        values = [v for term in demand.sums for v in term.tensors]
        if not conclusion.holds:
            message = f"{what} is not what is expected: {conclusion.message}"
        elif _proved(result, answers, [demand.expected], values):
            message = f"{what} is what is expected"
        else:
            message = f"{what} is not decided: a claim that it depends on is not proved"
        findings.append(Finding(KIND, message, what, demand.name, ranks=conclusion.ranks))
    return findings


def partials(result: Partition) -> list[Finding]:
    """Of every output that is not the single device's, but is once somebody sums it over the ranks:
    that it is.

    Example: "output y is a partial sum: the single device's is its sum over the ranks, which
    somebody must still take ...".
    """
    sides = result.single.lineages, result.parallel.unrolled, result.parallel.lineages
    failed: dict[str, list[Conclusion]] = {}
    for conclusion in result.conclusions:
        if conclusion.kind == "output" and not conclusion.holds:
            failed.setdefault(conclusion.name, []).append(conclusion)
    if not failed:
        return []
    findings: list[Finding] = []
    for demand, summed in beside(result.plan, result.nodes, result.derived, *sides):
        name = demand.name
        if demand.kind != PARTIAL or not summed.holds or name not in failed:
            continue
        message = (
            f"output {name} is a partial sum: the single device's is its sum over the ranks, which "
            "somebody must still take (if that is meant, a relations file says so: partial)"
        )
        source = made_at(result.parallel.unrolled.instances, failed[name][0].value)
        ranks = tuple(sorted({rank for c in failed[name] for rank in c.ranks}))
        number = len(findings) + 1
        findings.append(
            Finding(PARTIAL, message, f"output {name}", name, source, ranks, group=number)
        )
    return findings


def is_all(result: Partition, findings: Iterable[Finding]) -> bool:
    """Whether nothing else is wrong with a plan than that outputs are partial sums.

    Example: false where the loss differs too.
    """
    names = {finding.layer for finding in findings}
    return all(c.holds or c.name in names for c in result.conclusions)


def _proved(
    result: Partition, answers: Answers, single: Iterable[int], parallel: Iterable[int]
) -> bool:
    """Whether everything is proved that values of both sides depend on."""
    cones = {
        SINGLE: _cone(result.single.unrolled, single),
        PARALLEL: _cone(result.parallel.unrolled, parallel),
    }
    return not any(
        stage.problem or (stage.template >= 0 and not answers.proved(stage.template))
        for stage in result.stages
        if stage.row in cones[stage.side]
    )


def _cone(unrolled: Unrolled, values: Iterable[int]) -> set[int]:
    """The rows that values depend on."""
    needed, rows = set(values), set()
    for number in range(len(unrolled.instances) - 1, -1, -1):
        instance = unrolled.instances[number]
        if not needed.isdisjoint(instance.outputs):
            needed.update(instance.inputs)
            rows.add(number)
    return rows

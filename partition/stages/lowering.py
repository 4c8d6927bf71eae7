"""Templates to obligations: what each says at small size, or why it cannot be stated.

A template is stated by itself, from its claim and the table of nodes, so that any process can do it
that has these (`cluster.lower_claims`).
"""

from __future__ import annotations

from collections.abc import Mapping

from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.obligations.obligation import Claim, Obligation
from shardproof.engine.records.run import StageRecord
from shardproof.partition.stages.partition import Partition
from shardproof.partition.templates.memo import Memo, built


def lowered(
    nodes: NodeTable, claim: Claim, more: int, memo: Memo | None = None
) -> Obligation | str:
    """The obligation of a claim, or why there is none.

    Example: a linear layer over 64 inputs is an `Obligation` of eight equalities; a sum that
    subtracts a causal mask is "the negative of masked entries, which are minus infinity".
    """
    try:
        return built(nodes, claim, more, memo)
    except (Unsupported, ShapeMismatch) as error:
        return str(error)


def obligations(result: Partition) -> list[Obligation]:
    """The obligations of all templates, stated here; those that cannot be stated are dropped from
    the partition (`settle`).

    Example: 204, one per template, for the GPT of examples/gpt.py.
    """
    results = [
        lowered(result.nodes, template.claim, result.more, result.memo)
        if template.obligation is None
        else template.obligation
        for template in result.templates
    ]
    settle(result, {n: why for n, why in enumerate(results) if isinstance(why, str)})
    return [one for one in results if isinstance(one, Obligation)]


def settle(result: Partition, problems: Mapping[int, str]) -> None:
    """Drop templates that cannot be stated: their stages have the problem in place of a template,
    and the others are numbered anew.

    Example: without template 2 of five, a stage of template 4 is one of template 3, and one of
    template 2 has -1 and the problem.
    """
    if not problems:
        return
    kept = [n for n in range(len(result.templates)) if n not in problems]
    number = {old: new for new, old in enumerate(kept)}

    def settled(stage: StageRecord) -> StageRecord:
        if stage.template in problems:
            return stage._replace(template=-1, problem=problems[stage.template])
        return stage._replace(template=number.get(stage.template, -1))

    result.stages = [settled(stage) for stage in result.stages]
    result.templates = [result.templates[n] for n in kept]
    result.examples = [result.examples[n] for n in kept]
    result.wider = {number[n]: steps for n, steps in result.wider.items() if n in number}

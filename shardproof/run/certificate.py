"""What a run leaves behind for the second eye: its claims, its texts and its certificate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import msgspec

from shardproof.cluster.settings import Settings
from shardproof.engine.plan.assumption import Assumption
from shardproof.engine.records.certificate import (
    NAME,
    SHAPES,
    read_certificate,
    write_certificate,
)
from shardproof.engine.records.run import StageRecord, TemplateRecord, write_run, write_tables
from shardproof.partition.stages.partition import Partition
from shardproof.run.proofs import Proof
from shardproof.run.result import Counts
from shardproof.run.solve import Answers
from shardproof.run.verdict import Decision


def write(
    out: Path,
    result: Partition,
    answers: Answers,
    decision: Decision,
    assumptions: Sequence[Assumption],
    counts: Counts,
    settings: Settings,
    inputs: Mapping[str, str],
    proofs: Sequence[Proof] = (),
    saved: str = "",
    written: Mapping[str, str] | None = None,
) -> None:
    """Write the tables and the certificate of a run to its directory; ``saved``: the digest of the
    plan that is there already; ``written``: what `tables` gave, if they are.

    Example: ``certificate.json`` beside ``templates.arrow``, ``stages.arrow``, ``nodes.arrow`` and
    the other tables.
    """
    options = settings.options
    write_run(
        out,
        plan=result.plan,
        nodes=result.nodes,
        single=result.single.lineages,
        parallel=result.parallel.lineages,
        stages=_stages(result, answers),
        templates=_templates(result, answers),
        conclusions=result.conclusions,
        verdict=decision.verdict,
        inputs=inputs,
        assumptions=assumptions,
        reasons=[decision.reason] if decision.reason else [f.message for f in decision.findings],
        counts=asdict(counts),
        solvers={"z3": options.z3, "cvc5": options.cvc5},
        settings={
            "mode": options.mode,
            "seed": options.seed,
            "timeout": options.timeout,
            "memory_limit_bytes": options.memory_limit_bytes,
            SHAPES: result.more,
        },
        proofs=proofs,
        saved=saved,
        written=written,
    )


def reworded(out: Path, text: Callable[[str], str]) -> None:
    """Say the reasons of the certificate in ``out``, if there is one, in other words, as the result
    does.

    Example: "operator aten.foo is not declared" as "aten.foo is not lowered: ...".
    """
    if not (out / NAME).exists():
        return
    written = read_certificate(out)
    reasons = tuple(map(text, written.reasons))
    if reasons != written.reasons:
        write_certificate(out, msgspec.structs.replace(written, reasons=reasons))


def tables(out: Path, result: Partition, answers: Answers) -> dict[str, str]:
    """Write the tables of a run, which no verdict changes; their digests by the names of their
    files, such as ``lineages.arrow``."""
    return write_tables(
        out,
        result.nodes,
        result.single.lineages,
        result.parallel.lineages,
        _stages(result, answers),
        _templates(result, answers),
        result.conclusions,
    )


def _stages(result: Partition, answers: Answers) -> list[StageRecord]:
    return [
        s._replace(template=answers.text_of[s.template]) if s.template >= 0 else s
        for s in result.stages
    ]


def _templates(result: Partition, answers: Answers) -> list[TemplateRecord]:
    examples: dict[int, tuple[str, int]] = {}
    for template, example in enumerate(result.examples):
        examples.setdefault(answers.text_of[template], example)
    return [TemplateRecord(*texts, *examples[number]) for number, texts in enumerate(answers.texts)]

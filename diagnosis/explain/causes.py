"""Causes of a refutation; the same cause in several layers is one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from shardproof.diagnosis.locate.divergences import Divergence
from shardproof.diagnosis.locate.sentences import fault_sentence, ranks_of
from shardproof.diagnosis.repair.elsewhere import numbered, pattern, places_of, spoken_layers
from shardproof.diagnosis.repair.origins import Candidate
from shardproof.engine.findings import Finding
from shardproof.partition.stages.partition import Partition

#: What is another number in another layer or on other ranks.
_PLACE: Final = re.compile(r"#\d+|\b(?:cell|adapter|segment) \d+")
_RANKS: Final = re.compile(r"\[[\d, ]*\]")


class Cause(NamedTuple):
    """What is wrong with a plan in one place, or alike in several. ``divergence``: None for what
    has no rows (a plan that contradicts itself); ``state``: the plan in which it was seen;
    ``repairs``: what puts it right, before it is known whether the whole plan holds then, in one
    place or in several; ``name``: what was wrong then; ``after``: the plan with the repair;
    ``assuming``: which causes before it had to be put right before it was seen.

    Example: "missing reduction", put right by "an all-reduce over ranks [0, 1] (axis tp) after
    linear in `h.1.mlp`".
    """

    findings: tuple[Finding, ...]
    divergence: Divergence | None
    state: Partition
    repairs: tuple[str, ...]
    name: str
    after: Partition | None
    assuming: tuple[int, ...]


def in_layers(
    state: Partition, finding: Finding, divergence: Divergence, done: Candidate
) -> Finding:
    """A finding with the other layers and ranks that the same repair put right too.

    Example: an epsilon put right in ``layers.0.attention_norm`` and in that of ``layers.1`` makes
    the finding one about "layers.0.attention_norm, layers.1.attention_norm".
    """
    layers = numbered(finding.layers, places_of(state.plan, done.edits))
    if len(layers) < 2:
        return finding
    touched = {x for edit in done.edits for x in ranks_of(state, edit.site.program)}
    ranks = tuple(sorted({*finding.ranks, *touched}))
    return _located(state, finding, divergence, layers, ranks)


def _located(
    state: Partition,
    finding: Finding,
    divergence: Divergence,
    layers: Sequence[str],
    ranks: tuple[int, ...],
) -> Finding:
    words = spoken_layers(layers)
    message = fault_sentence(state, finding.operator, words, ranks, divergence.cause)
    agreeing = tuple(rank for rank in finding.agreeing_ranks if rank not in ranks)
    return finding._replace(
        message=message, layer=words, layers=tuple(layers), ranks=ranks, agreeing_ranks=agreeing
    )


def is_same(cause: Cause, finding: Finding, best: tuple[Candidate, Partition] | None) -> bool:
    """Whether a finding is a cause again, in another layer.

    Example: the same wrong constant in ``layers.0`` and in ``layers.1`` is one cause; another
    constant, or more ranks, is another.
    """
    first = cause.findings[0]
    if not first.layers or not finding.layers or first.kind != finding.kind:
        return False
    same = (first.operator, first.source, pattern(first.layers[0])) == (
        finding.operator,
        finding.source,
        pattern(finding.layers[0]),
    )
    if not same or finding.layers[0] in first.layers or bool(best) != bool(cause.repairs):
        return False
    return not best or _elsewhere(best[0].sentence) == _elsewhere(cause.repairs[0])


def _elsewhere(sentence: str) -> str:
    """A sentence without what is another number in another layer; as many ranks stay as many."""
    return _PLACE.sub("#", _RANKS.sub(lambda m: "#" * (1 + m[0].count(",")), pattern(sentence)))


def joined(
    state: Partition,
    cause: Cause,
    divergence: Divergence,
    finding: Finding,
    best: tuple[Candidate, Partition] | None,
) -> Cause:
    """A cause with one more layer.

    Example: that cause then has both layers and both repairs.
    """
    first = cause.findings[0]
    assert cause.divergence is not None
    layers = [*first.layers, *finding.layers]
    ranks = tuple(sorted({*first.ranks, *finding.ranks}))
    moved = _located(state, first, cause.divergence, layers, ranks)
    return cause._replace(
        findings=(moved, *cause.findings[1:]),
        repairs=(*cause.repairs, best[0].sentence) if best else (),
        after=best[1] if best else None,
    )

"""The verdict, as a function of what was found; nothing here acts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from shardproof.diagnosis.locate.divergences import divergences
from shardproof.diagnosis.locate.made import made_at
from shardproof.diagnosis.locate.sentences import explain
from shardproof.engine.findings import UNDECIDED, Finding
from shardproof.engine.plan.assumption import Assumption, beyond_strict, left_out
from shardproof.engine.plan.expectations import LOSS
from shardproof.engine.records.run import StageRecord
from shardproof.engine.simulation.comparisons import Comparison
from shardproof.engine.simulation.simulate import Simulation
from shardproof.engine.specification import conclusions
from shardproof.engine.specification.conclusions import row_name
from shardproof.partition.stages.partition import Partition, Side
from shardproof.run.excuse import stand_in
from shardproof.run.result import Conclusion, Verdict
from shardproof.run.solve import Answers

#: Findings that are listed one by one; more of a kind are counted.
MOST = 20
#: The kind of a finding about an operator that leaves the single device's values where nobody has
#: seen the two sides differ.
PARTED: Final = "where the sides part"
#: Characters of a lineage that are shown.
MOST_TEXT: Final = 160


#: Why no run of both programs says anything.
UNDEFINED = "the single-device program is undefined on all inputs that were tried"
#: A kind of assumption that is beyond ``--strict``, in a sentence.
_KINDS: Final[Mapping[str, str]] = {
    "inferred": "inferred",
    "stand-in": "a stand-in",
    "not captured": "not captured",
    "user's word": "the user's word",
    "not compared": "not compared",
    "unwritten": "memory that nothing has written",
}


class Decision(NamedTuple):
    """The verdict, its reason and its findings.

    Example: ``Decision("inconclusive", "linear in h.0.mlp on rank 0 is not proved (timeout: 30 s)",
    ())``.

    ``agreeing``: rows (kind, name, program) that are not concluded, and agree where others were
    seen to differ.
    """

    verdict: Verdict
    reason: str
    findings: tuple[Finding, ...]
    agreeing: frozenset[tuple[str, str, int]] = frozenset()


def unproved(result: Partition, answers: Answers) -> list[tuple[StageRecord, str]]:
    """Live stages whose obligation is not proved, each with why.

    Example: ``[(stage, "timeout: 30 s")]``; a stage that no conclusion depends on is left out.
    """
    unproved_stages = []
    for stage in result.stages:
        if not stage.live:
            continue
        if stage.problem:
            unproved_stages.append((stage, stage.problem))
        elif stage.template >= 0 and not answers.proved(stage.template):
            solved = answers.of(stage.template)
            unproved_stages.append(
                (stage, f"{solved.verdict}" + (f": {solved.reason}" if solved.reason else ""))
            )
    return unproved_stages


def name_stage(result: Partition, stage: StageRecord) -> str:
    """A stage in words: operator, layer, rank.

    Example: "linear in h.0.mlp on rank 0", "backward of gelu in h.0.mlp of the single-device plan".
    """
    side = result.side(stage.side)
    instance = side.unrolled.instances[stage.row]
    name = f"backward of {instance.name}" if instance.backward else instance.name
    layer = f" in {instance.source.module}" if instance.source.module else ""
    if stage.side == "single":
        return f"{name}{layer} of the single-device plan"
    return f"{name}{layer} on rank {side.programs[instance.programs[0]].base}"


def is_proved(result: Partition, open_stages: list[tuple[StageRecord, str]]) -> bool:
    """Whether everything that a proof needs is there.

    Example: false for a plan without conclusions.
    """
    return (
        not result.faults
        and not result.unsupported
        and not open_stages
        and bool(result.conclusions)
        and all(c.holds for c in result.conclusions)
        and not any(f.kind == "definedness" for f in result.findings)
    )


def decide(
    result: Partition,
    open_stages: list[tuple[StageRecord, str]],
    diagnosis: Sequence[Finding],
    simulation: Simulation | None,
) -> Decision:
    """The verdict and its findings; ``simulation``: of a plan that is not proved, if it was run;
    ``diagnosis``: what is wrong with one that contradicts itself or differs in the simulation, and
    which findings beside the verdict follow from it.

    Example: a conclusion fails, and the simulation differs: "refuted"; it does not differ:
    "inconclusive".
    """
    known = {(f.kind, f.message) for f in diagnosis}
    notes = listed([f for f in result.findings if (f.kind, f.message) not in known])
    if is_proved(result, open_stages):
        if simulation is not None and simulation.undefined:
            return Decision("inconclusive", UNDEFINED, notes)
        if left := left_out(result.plan.assumed):
            reason = f"what is compared is proved; {left[0].text}"
            return Decision("inconclusive", reason, notes)
        return Decision("proved", "", notes)
    if result.faults:
        return Decision("refuted", "", (*listed(diagnosis or result.faults), *notes))
    excuse = None
    if simulation is not None and simulation.differs:
        excuse = stand_in(result, simulation)
    if excuse is not None:
        # The values are those of what stands there; the program's own may not differ.
        reason = f"the sides differ where {excuse.text}; what it stands for may make them equal"
        return Decision("inconclusive", reason, (*listed(diagnosis), *notes))
    if simulation is not None and simulation.differs:
        other = tuple(f for f in notes if f.kind != "definedness")
        first = listed(diagnosis) or confirmed(result, simulation)
        return Decision("refuted", "", (*first, *other))
    return Decision(
        "inconclusive",
        why(result, open_stages, simulation),
        (*(result.unsupported[:MOST] or parted(result)), *listed(diagnosis), *notes),
    )


def strictly(decision: Decision, assumptions: Sequence[Assumption]) -> Decision:
    """The decision, or that a proof is none where it rests on more than ``--strict`` allows.

    Example: "--strict: the proof rests on what is inferred: parameters of ranks are ...".
    """
    beyond = beyond_strict(assumptions)
    if decision.verdict != "proved" or not beyond:
        return decision
    first = beyond[0]
    more = f", and {len(beyond) - 1} more" if len(beyond) > 1 else ""
    where = f" ({first.where})" if first.where else ""
    reason = f"--strict: the proof rests on what is {_KINDS[first.kind]}: {first.text}{where}{more}"
    return Decision("inconclusive", reason, decision.findings)


def listed(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The first findings of each kind and cause, and how many more of it there are.

    Example: 25 findings "precision" are 20 and "and 5 more findings of this kind".
    """
    alike: dict[tuple[int, str], list[Finding]] = {}
    for finding in findings:
        alike.setdefault((finding.group, finding.kind), []).append(finding)
    result: list[Finding] = []
    for (group, kind), same in alike.items():
        result += same[:MOST]
        if len(same) > MOST:
            more = f"and {len(same) - MOST} more findings of this kind"
            result.append(Finding(kind, more, group=group))
    return tuple(result)


def _without_rule(result: Partition) -> str:
    """The first operator that has no meaning, and what its reader says of it."""
    first = result.unsupported[0]
    begin = f"{first.operator} is not understood ("
    notes = (note for note in result.plan.notes if note.startswith(begin))
    note = next(notes, "") if first.operator else ""
    return f"{first.message}; {note}" if note else first.message


def why(
    result: Partition,
    open_stages: list[tuple[StageRecord, str]],
    simulation: Simulation | None,
) -> str:
    """Why a plan is neither proved nor refuted.

    Example: "local mismatch that no conclusion confirms: rank 0: the gradient of w is not the
    single-device gradient ...".
    """
    if result.unsupported:
        return _without_rule(result)
    failed = [c for c in result.conclusions if not c.holds]
    if failed:
        reason = failed[0].message
        if simulation is not None and simulation.undefined:
            return f"{UNDEFINED}, and this is not concluded: {reason}"
        if simulation is not None and simulation.failure:
            return f"local mismatch that could not be confirmed ({simulation.failure}): {reason}"
        return f"local mismatch that no conclusion confirms: {reason}"
    if open_stages:
        stage, problem = open_stages[0]
        return f"{name_stage(result, stage)} is not proved ({problem})"
    for finding in (f for f in result.findings if f.kind == "definedness"):
        return (
            f"{finding.message}: of {finding.actual}. Take it of the same values on both sides, or "
            "of what cannot be outside of its domain"
        )
    return "there is nothing to conclude"


def told_of(conclusion: conclusions.Conclusion, decision: Decision) -> Conclusion:
    """A conclusion as a result has it; one that does not hold, and was seen to agree where others
    differ, says that it is not decided.

    Example: "rank 0: the gradient of w is not the single-device gradient (not decided: it agrees
    where it was run)".
    """
    row = conclusion.kind, conclusion.name, conclusion.program
    undecided = not conclusion.holds and row in decision.agreeing
    message = conclusion.message + UNDECIDED * undecided
    return Conclusion(*row[:2], conclusion.ranks, conclusion.holds, message)


def parted(result: Partition) -> tuple[Finding, ...]:
    """The operator that first gives what is no value of the single device, of a plan that is
    neither proved nor seen to differ; none, if no operator is found that does.

    Example: "add in layers.2.input_layernorm on ranks 0 to 7: its result is not the single-device
    operator's", of kind "where the sides part", with the source line on both sides.
    """
    begun = [] if all(c.holds for c in result.conclusions) else divergences(result)
    if not begun:
        return ()
    first, there = begun[0], begun[0].counterpart
    given = _value_text(result.parallel, first.instances[0])
    wanted = "" if there < 0 else _value_text(result.single, there)
    return (explain(result, first)._replace(kind=PARTED, expected=wanted, actual=given, group=1),)


def _value_text(side: Side, instance: int) -> str:
    """What an operator gives, in the values of the single device."""
    made = (side.lineages[v] for v in side.unrolled.instances[instance].outputs)
    given = next((lineage for lineage in made if lineage is not None), None)
    return "" if given is None else _shortened(str(given))


def _shortened(text: str) -> str:
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}..."


def confirmed(result: Partition, simulation: Simulation) -> tuple[Finding, ...]:
    """The conclusions that differ, where no operator is found to begin it: of one unknown cause.

    Example: "rank 0: gradient of w differs", with the values 0.0533250525 and 0.000273565655 that
    were expected and came out.
    """
    return tuple(_conclusion(result, c) for c in simulation.comparisons if c.differs)[:MOST]


def _conclusion(result: Partition, comparison: Comparison) -> Finding:
    name = (
        "loss"
        if comparison.demand.kind == LOSS
        else row_name(comparison.demand.kind, comparison.name)
    )
    ranks: tuple[int, ...] = ()
    if comparison.program >= 0:
        ranks = (result.plan.programs[comparison.program].base,)
    message = f"{f'rank {ranks[0]}' if ranks else 'every rank'}: {name} differs"
    for c in result.conclusions:
        same = (c.kind, c.program, c.name) == (
            comparison.demand.kind,
            comparison.program,
            comparison.name,
        )
        if same and not c.holds:
            message, ranks = c.message, c.ranks
            break
    return Finding(
        "conclusion",
        message,
        operator=name,
        layer=comparison.name,
        source=made_at(result.parallel.unrolled.instances, comparison.demand.value),
        ranks=ranks,
        expected=f"{comparison.worst.expected:.9g}",
        actual=f"{comparison.worst.actual:.9g}",
        group=1,
    )

"""What a search found wrong with a plan, as findings: cause by cause, with repairs and values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from shardproof.diagnosis.explain.causes import Cause
from shardproof.diagnosis.explain.counterexample import Examples
from shardproof.diagnosis.repair.trial import holds
from shardproof.diagnosis.search import CHUNK_POSITION, ORDER, Diagnosis
from shardproof.engine.findings import Finding
from shardproof.engine.plan.expectations import LOSS
from shardproof.engine.plan.ir import Plan
from shardproof.engine.simulation.simulate import Simulation
from shardproof.partition.stages.partition import Partition

#: Rows of a plan that is run again with its repairs, for values inside it.
MOST_AGAIN: Final = 20_000
#: Sentences about one cause in several layers; more are counted.
MOST_SENTENCES: Final = 3

#: Operators that are defined in fewer places: nothing by itself in a plan that is wrong.
DEFINEDNESS: Final = "definedness"


def diagnosed(
    result: Partition,
    simulation: Simulation | None,
    otherwise: Callable[[], Plan | None] | None = None,
    tell: Callable[[int, int], None] = lambda done, total: None,
    search: Diagnosis | None = None,
) -> tuple[Finding, ...]:
    """What is wrong with a refuted plan: cause by cause, the first one first, then those findings
    beside the verdict that go away with a cause; nothing if no operator is found to begin it.

    Example: "add in h.1.mlp on ranks [0, 1] of the first replica: its input h.1.mlp.linear is still
    a partial sum ...", with the repair "holds with an all-reduce over ranks [0, 1] (axis tp) after
    linear in `h.1.mlp`".

    ``simulation``: of the plan, if it could be run; ``otherwise``, ``tell``: see `Diagnosis`;
    ``search``: that of the plan, if it was begun.
    """
    search = search or Diagnosis(result, otherwise, tell)
    repaired = search.run()
    # A large plan is not run again: values are held against the single-device operator's there.
    again = repaired and len(result.parallel.unrolled.instances) <= MOST_AGAIN
    examples = Examples(result, simulation, search.state if again else None)
    causes = [
        finding
        for number in range(len(search.causes))
        for finding in _findings_of(search, number, examples)
    ]
    return (*causes, *followers(search))


def _findings_of(search: Diagnosis, number: int, examples: Examples) -> Iterator[Finding]:
    cause = search.causes[number]
    first, *rest = cause.findings
    message = first.message
    if cause.name == ORDER:
        chunks = sum(f.kind == CHUNK_POSITION for f in search.result.findings)
        message = f"{message}; {chunks} chunks before it and elsewhere are cut at other positions "
        message += "than the plan records, as if its groups were in another order than by rank"
    if cause.assuming:
        earlier = ", ".join(_place(search.causes[n].findings[0]) for n in cause.assuming)
        message = f"{message} (assuming that {earlier} is put right)"
    repair = ""
    # Without the repair of one cause, those of others help if it is assumed to be put right.
    if cause.repairs and holds(search.state):
        others = sum(1 for c in search.causes if c.repairs) - 1
        together = f", together with the {_other(others)} named here" if others else ""
        left = [_place(c.findings[0]) for c in search.causes if not c.repairs]
        if left:
            together += f", assuming that {', '.join(left)} is put right"
        repair = f"holds with {_listed(cause.repairs)}{together}"
    elif (search.exhausted or search.ended) and number == len(search.causes) - 1:
        message = f"{message} (repairs were tried up to the bound on work)"
    alone = not cause.assuming and not number
    expected, actual = examples.extremes() if alone else ("", "")
    differences = examples.at(cause.state, cause.divergence) if cause.divergence is not None else ()
    yield first._replace(
        message=message,
        repair=repair,
        cause=cause.name if repair or not cause.repairs else first.cause or _likely(cause),
        group=number + 1,
        expected=first.expected or expected,
        actual=first.actual or actual,
        counterexample=(*differences, *(examples.of_conclusion() if alone else ())),
    )
    for finding in rest:
        yield finding._replace(group=number + 1, cause="")


def followers(search: Diagnosis) -> list[Finding]:
    """Findings beside the verdict that go away with the repair of a cause, with its number.

    Example: a finding "metadata" of a value that is recorded as complete, gone with the all-reduce
    of group 1.
    """
    left = [f for f in search.result.findings if f.kind != DEFINEDNESS]
    result: list[Finding] = []
    for number, cause in enumerate(search.causes, 1):
        if cause.after is None or not left or cause.after.parallel.unrolled.faults:
            continue
        still = search.still(cause.after)
        gone = [f for f in left if f.message not in still]
        result += [f._replace(group=number) for f in gone]
        left = [f for f in left if f.message in still]
    return result


def _listed(repairs: Sequence[str]) -> str:
    rest = len(repairs) - MOST_SENTENCES
    more = f"; and so in {rest} more places" if rest > 0 else ""
    return "; ".join(repairs[:MOST_SENTENCES]) + more


def _likely(cause: Cause) -> str:
    """What is likely wrong where a repair put the losses right, but not all gradients."""

    def wrong(state: Partition) -> bool:
        return any(c.kind == LOSS and not c.holds for c in state.conclusions)

    put_right = cause.after is not None and wrong(cause.state) and not wrong(cause.after)
    return cause.name if put_right else ""


def _other(count: int) -> str:
    return "other repair" if count == 1 else f"{count} other repairs"


def _place(finding: Finding) -> str:
    where = f" in {finding.layer}" if finding.layer else ""
    return f"{finding.operator}{where}" if finding.operator else finding.kind

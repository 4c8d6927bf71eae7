"""What is wrong with a refuted plan, cause by cause, with repairs that were seen to help.

A repair is shown if the plan holds with it: all conclusions follow then.  Past a cause one goes on
with the repair that puts it right, or assuming that its result is what it should be; so independent
causes are all found in one run, and what was found under an assumption says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from engine.errors import Unsupported
from engine.findings import Difference, Finding
from engine.simulate import Simulation
from partition import attempt as attempts
from partition.attempt import Assumed, attempt, failing, holds
from partition.diagnose import Culprit, between, culprits, explain
from partition.edits import peer
from partition.partition import Partition
from partition.repair import candidates, missing_reducers
from partition.repair_faults import FAULTS, omitted, unwritten
from partition.spot import Candidate, origins

#: Candidates that are tried for one plan, and the rows that these tries may read together.
MOST_TRIES: Final = 40
MOST_ROWS: Final = 30_000
#: Causes that are looked for, and elements of a counterexample.
MOST_CAUSES: Final = 5
MOST_ELEMENTS: Final = 8


class Cause(NamedTuple):
    """``culprit``: None for what has no rows (a plan that contradicts itself); ``repair``: what
    puts it right, before it is known whether the whole plan holds then; ``assuming``: which causes
    before it had to be put right before it was seen."""

    findings: tuple[Finding, ...]
    culprit: Culprit | None
    repair: str
    assuming: tuple[int, ...]


class Diagnosis:
    """One plan being diagnosed: what it was, what has been tried, what was found."""

    def __init__(self, result: Partition) -> None:
        self.result = result
        self.state = result
        self.tries = 0
        self.rows = 0
        self.causes: list[Cause] = []
        self.exhausted = False

    def tried(self, plan: Candidate, state: Partition) -> Partition | None:
        """The outcome of a candidate; None if it cannot even be read, or no work is left."""
        size = max(len(state.parallel.unrolled.rows), len(self.result.single.unrolled.rows))
        if self.tries >= MOST_TRIES or self.rows + size > MOST_ROWS:
            self.exhausted = True
            return None
        self.tries += 1
        self.rows += size
        try:
            return attempt(self.result, plan.plan)
        except Unsupported:
            return None

    def best(
        self, state: Partition, proposed: Iterator[Candidate], resolved: Resolved
    ) -> tuple[Candidate, Partition] | None:
        """The first candidate with which everything holds, else the first that resolves the cause
        and breaks nothing."""
        found: tuple[Candidate, Partition] | None = None
        for candidate in proposed:
            outcome = self.tried(candidate, state)
            if self.exhausted:
                break
            if outcome is None:
                continue
            if holds(outcome):
                return candidate, outcome
            if found is None and resolved.by(outcome):
                found = candidate, outcome
        return found

    def run(self) -> bool:
        """Find causes until nothing is wrong any more (``state`` is the plan then); whether that
        point was reached with repairs alone."""
        repaired = True
        for _ in range(2 * MOST_CAUSES):
            if len(self.causes) == MOST_CAUSES or holds(self.state):
                break
            at_odds = bool(self.state.parallel.unrolled.faults)
            step = self._fault(self.state) if at_odds else self._culprit(self.state)
            if step is None:
                return False
            self.state, by_repair = step
            repaired = repaired and by_repair
        return repaired and holds(self.state)

    def _fault(self, state: Partition) -> tuple[Partition, bool] | None:
        """The next contradiction of the plan with itself."""
        resolved = Resolved(state, None)
        proposed = (c for propose in FAULTS for c in propose(state.plan))
        best = self.best(state, proposed, resolved)
        found = tuple(faults(state))
        repair = best[0].sentence if best else ""
        self.causes.append(Cause(found, None, repair, tuple(range(len(self.causes)))))
        return (best[1], True) if best else None

    def _culprit(self, state: Partition) -> tuple[Partition, bool] | None:
        """The first operator that does something else."""
        misfits = attempts.failed_rows(state) if state.faults else []
        wrong = misfits or culprits(state)
        made = origins(state)
        if not wrong:
            return self._conclusion(state)
        culprit = wrong[0]
        best = self.best(state, candidates(state, culprit, made), Resolved(state, culprit))
        finding = _placed(state, misfits) if misfits else (explain(state, culprit, "", ""),)
        if best or not self._is_told(finding):
            self._add(state, culprit, finding, best[0].sentence if best else "")
        if best:
            return best[1], True
        assumed: Assumed | None = None if misfits else attempts.ought(state, culprit)
        if assumed is None:
            return None
        after = attempt(self.result, state.plan, assumed)
        if after is None or not Resolved(state, culprit).by(after):
            return None
        return after, False

    def _is_told(self, found: tuple[Finding, ...]) -> bool:
        """Whether this is the other direction of an operator that was reported without repair."""
        return any(
            not cause.repair
            and cause.findings[0].layer == found[0].layer
            and _forward(cause.findings[0].operator) == _forward(found[0].operator)
            for cause in self.causes
        )

    def _conclusion(self, state: Partition) -> tuple[Partition, bool] | None:
        """A gradient that no operator before it makes wrong: its reduction."""
        makers = {v: n for n, r in enumerate(state.parallel.unrolled.rows) for v in r.outputs}
        for found in state.conclusions:
            if found.holds or found.value not in makers or found.kind != "gradient":
                continue
            culprit = Culprit((makers[found.value],), -1, found.message)
            proposed = iter(
                [*missing_reducers(state, found), *candidates(state, culprit, origins(state))]
            )
            best = self.best(state, proposed, Resolved(state, None))
            finding = Finding(
                "conclusion",
                found.message,
                f"gradient of {found.name}",
                found.name,
                ranks=found.ranks,
            )
            self._add(state, culprit, (finding,), best[0].sentence if best else "")
            return (best[1], True) if best else None
        return None

    def _add(
        self, state: Partition, culprit: Culprit, found: tuple[Finding, ...], repair: str
    ) -> None:
        """A cause; it depends on those before it unless it is seen in the plan as it is."""
        alone = state is self.result or _key(culprit, state) in {
            _key(c, self.result) for c in culprits(self.result)
        }
        assuming = () if alone else tuple(range(len(self.causes)))
        self.causes.append(Cause(found, culprit, repair, assuming))


class Resolved:
    """When a cause counts as put right: it is gone, no conclusion fails that held, and no operator
    before it does anything else than before."""

    def __init__(self, before: Partition, culprit: Culprit | None) -> None:
        self.before = before
        self.culprit = culprit
        self.keys = {_key(c, before) for c in culprits(before)}
        self.failed = failing(before)

    def by(self, after: Partition) -> bool:
        if after.parallel.unrolled.faults:
            return False
        old = {f.message for f in self.before.faults}
        if any(f.message not in old for f in after.faults):
            return False
        if self.before.parallel.unrolled.faults:
            return True
        now = failing(after)
        if not now <= self.failed:
            return False
        if self.culprit is None or self.before.faults:
            return now < self.failed or len(after.faults) < len(self.before.faults)
        wrong = {_key(c, after): c for c in culprits(after)}
        if _key(self.culprit, self.before)[0] in {key[0] for key in wrong}:
            return False
        new = [c.counterpart for key, c in wrong.items() if key not in self.keys]
        return not any(0 <= n < self.culprit.counterpart for n in new)


def _key(culprit: Culprit, result: Partition) -> tuple[object, str]:
    row = result.parallel.unrolled.rows[culprit.rows[0]]
    place: object = culprit.counterpart
    if culprit.counterpart < 0:
        place = (row.kind, row.source)
    return place, culprit.cause


# -- findings --------------------------------------------------------------------------------------


def diagnosed(result: Partition, simulation: Simulation | None) -> tuple[Finding, ...]:
    """What is wrong with a refuted plan: cause by cause, the first one first; nothing if no
    operator is found to begin it."""
    found = Diagnosis(result)
    repaired = found.run()
    # Without the repair of one cause, those of others are known to help only where fewer fail.
    findings: list[Finding] = []
    examples = counterexample(result, simulation) if simulation is not None else ()
    expected, actual = extremes(simulation) if simulation is not None else ("", "")
    for number, cause in enumerate(found.causes):
        first, *rest = cause.findings
        message = first.message
        if cause.assuming:
            earlier = ", ".join(_place(found.causes[n].findings[0]) for n in cause.assuming)
            message = f"{message} (assuming that {earlier} is put right)"
        repair = ""
        if repaired and cause.repair:
            others = len(found.causes) - 1
            together = f", together with the {_other(others)} named here" if others else ""
            repair = f"holds with {cause.repair}{together}"
        elif found.exhausted and number == len(found.causes) - 1:
            message = f"{message} (repairs were tried up to the bound on work)"
        alone = not cause.assuming and not number
        first = first._replace(
            message=message,
            repair=repair,
            expected=first.expected or (expected if alone else ""),
            actual=first.actual or (actual if alone else ""),
            counterexample=examples if alone else (),
        )
        findings += [first, *rest]
    return tuple(findings)


def _forward(operator: str) -> str:
    return operator.removeprefix("backward of ")


def _other(count: int) -> str:
    return "other repair" if count == 1 else f"{count} other repairs"


def _place(finding: Finding) -> str:
    where = f" in {finding.layer}" if finding.layer else ""
    return f"{finding.operator}{where}" if finding.operator else finding.kind


def faults(state: Partition) -> Iterator[Finding]:
    """The contradictions of a plan with itself: with every rank that has them."""
    plan = state.plan
    for gap in omitted(plan):
        program = plan.programs[gap.program]
        body = program.bodies[gap.body]
        layers = list(dict.fromkeys(op.source.module for op in body.ops if op.source.module))
        yield Finding(
            "missing call",
            f"rank {program.base}: the backward {body.name} is not called for microbatch "
            f"{gap.microbatch}, though its forward was: the gradients lack that microbatch",
            body.name,
            f"{layers[0]} to {layers[-1]}" if layers else "",
            body.name,
            (program.base,),
            (gap.microbatch,),
        )
    gaps = unwritten(plan)
    for fault in state.faults:
        if fault.kind == "read before write":
            fault = _with_ranks(state, fault, [g.site for g in gaps])
        yield fault


def _with_ranks(state: Partition, fault: Finding, where: Sequence[object]) -> Finding:
    plan = state.plan
    gaps = unwritten(plan)
    for gap in gaps:
        base = plan.programs[gap.site.program].base
        name = plan.programs[gap.site.program].bodies[gap.site.body].values[gap.value].name
        if base not in fault.ranks or f"reads {name}," not in fault.message:
            continue
        alike = [g for g in gaps if peer(plan, gap.site, g.site.program) == g.site]
        ranks = tuple(sorted({plan.programs[g.site.program].base for g in alike}))
        if len(ranks) < 2:
            return fault
        message = fault.message.replace(f"rank {base}:", f"ranks {list(ranks)}:", 1)
        return fault._replace(ranks=ranks, message=message)
    return fault


def _placed(state: Partition, misfits: Sequence[Culprit]) -> tuple[Finding, ...]:
    """Faults of operators that do not fit: one for the same operator on several ranks, with where
    in the model it is."""
    alike: dict[tuple[str, str, str], Finding] = {}
    for fault in state.faults:
        key = (fault.kind, fault.operator, fault.source)
        known = alike.setdefault(key, fault)
        if known is not fault:
            ranks = tuple(sorted({*known.ranks, *fault.ranks}))
            alike[key] = known._replace(ranks=ranks)
    rows = state.parallel.unrolled.rows
    found = []
    for (_, _, source), fault in alike.items():
        here = [
            rows[n]
            for c in misfits
            for n in c.rows
            if source == (rows[n].source.location or rows[n].source.cell)
        ]
        layer = fault.layer or (between(state, here) if here else "")
        message = fault.message
        if len(fault.ranks) > 1:
            message = f"ranks {list(fault.ranks)}:{message.partition(':')[2]}"
        found.append(fault._replace(layer=layer, message=message))
    return tuple(found)


def extremes(simulation: Simulation) -> tuple[str, str]:
    """The values of the conclusion that shows the difference most, in words."""
    worst = simulation.worst
    if worst is None:
        return "", ""
    place = list(worst.worst.index)
    what = f"{'loss' if worst.shard < 0 else 'gradient of ' + worst.name}{place or ''}"
    return f"{what} = {worst.worst.expected:.9g}", f"{what} = {worst.worst.actual:.9g}"


def counterexample(result: Partition, simulation: Simulation) -> tuple[Difference, ...]:
    """Of the conclusion that is furthest off, an element of every rank's shard: where it is
    furthest off there, or where it agrees."""
    worst = simulation.worst
    if worst is None or not worst.differs:
        return ()
    alike = [
        c for c in simulation.comparisons if (c.name, c.shard < 0) == (worst.name, worst.shard < 0)
    ]
    found = []
    for held in sorted(alike, key=lambda c: not c.differs)[:MOST_ELEMENTS]:
        ranks: tuple[int, ...] = ()
        if held.program >= 0:
            program = result.plan.programs[held.program]
            at = dict(held.at)
            rank = program.base + sum(stride * at.get(axis, 0) for axis, _, stride in program.axes)
            ranks = (rank,)
        found.append(Difference(ranks, held.worst.index, held.worst.expected, held.worst.actual))
    return tuple(found)

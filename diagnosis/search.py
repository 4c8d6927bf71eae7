"""What is wrong with a refuted plan, cause by cause, with repairs that were seen to help.

A repair is shown if the plan holds with it: all conclusions follow then.  Past a cause one goes on
with the repair that puts it right, or assuming that its result is what it should be; so independent
causes are all found in one run, and what was found under an assumption says so.  The same in other
layers is one cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Final

from shardproof.diagnosis.explain.causes import Cause, in_layers, is_same, joined
from shardproof.diagnosis.explain.contradictions import faults, misfits
from shardproof.diagnosis.locate.divergences import OWN, Divergence, begun, divergences
from shardproof.diagnosis.locate.made import made_at
from shardproof.diagnosis.locate.sentences import explain
from shardproof.diagnosis.repair import trial as attempts
from shardproof.diagnosis.repair.addends import OF_THE_LOSS
from shardproof.diagnosis.repair.candidates import candidates
from shardproof.diagnosis.repair.communication import missing_reducers, partial_gradients
from shardproof.diagnosis.repair.edits import applied
from shardproof.diagnosis.repair.elsewhere import elsewhere, places_of, spoken_layers
from shardproof.diagnosis.repair.origins import (
    Candidate,
    FaultContext,
    divergence_at,
    loss_maker,
    origins,
)
from shardproof.diagnosis.repair.positions import other_shards
from shardproof.diagnosis.repair.structure import FAULTS
from shardproof.diagnosis.repair.trial import (
    Assumed,
    Called,
    OutOfWork,
    Resolved,
    Trials,
    failing,
    holds,
    key,
    reached,
)
from shardproof.engine.errors import Unsupported
from shardproof.engine.findings import Finding
from shardproof.engine.lineage.lineage import Lineage
from shardproof.engine.plan.expectations import GRADIENT, LOSS
from shardproof.engine.plan.ir import Plan
from shardproof.engine.specification.conclusions import Conclusion, row_name
from shardproof.partition.evidence.recorded import metadata
from shardproof.partition.stages.partition import Partition

#: Candidates that are tried for one plan, and the rows that these tries may read together (the
#: first one is free: a large plan has one try, which is also how it goes on).
MOST_TRIES: Final = 40
MOST_ROWS: Final = 150_000
#: Causes that are looked for, and steps of the search (a cause in several layers may take some).
MOST_CAUSES: Final = 5
MOST_STEPS: Final = 20

#: A chunk that is not where the plan records it: evidence that the order of groups is another one.
CHUNK_POSITION: Final = "chunk position"
#: A gradient that arrives for another value than the plan records it for: evidence likewise.
GRADIENT_NAME: Final = "gradient name"


#: The cause and the repair where another order of groups is what it takes.
ORDER: Final = "order of process groups"
AS_RECORDED: Final = (
    'the assumption groups = "as recorded" (`--nnscaler-groups as-recorded`) and no other change: '
    "that is, if the runtime cuts and joins in the order of the plan's index maps, not by rank"
)
#: The same, where it takes gradients to be of what the plan names them for.
NAMES: Final = "whose gradient arrives"
AS_NAMED: Final = (
    'the assumption groups = "as recorded" (`--nnscaler-groups as-recorded`) and no other change: '
    "that is, if the runtime takes a gradient that arrives as that of the value that the plan "
    "names it for, not of the adapter's result that has its name"
)


class Diagnosis:
    """One plan being diagnosed: what it was, what has been tried, what was found.

    Example: of a GPT without its last all-reduce: one cause, found and put right with the first
    candidate.

    ``otherwise``: the plan as it is under another order of its groups, if there is one; ``tell`` is
    told how many repairs were tried, of at most how many.
    """

    def __init__(
        self,
        result: Partition,
        otherwise: Callable[[], Plan | None] | None = None,
        tell: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        self.result = result
        self.tell = tell
        self.state = result
        self.trials = Trials(result)
        self.otherwise = otherwise
        self.tries = 0
        self.rows = 0
        self.causes: list[Cause] = []
        #: Whether repairs are left that were not tried, and whether a trial was ended.
        self.exhausted = False
        self.ended = False
        self.repaired = True
        #: Rows that are not concluded, and were seen to agree where others differ: no cause is
        #: sought for these alone.
        self.agreeing: frozenset[tuple[str, str, int]] = frozenset()
        self.stuck: list[Divergence] = []
        self.assumed: dict[Called, Lineage] = {}
        self._ended: bool | None = None
        self._recorded: tuple[Candidate, Partition | None] | None = None
        self._still: dict[Partition, frozenset[str]] = {}

    def tried(self, plan: Candidate, state: Partition) -> Partition | None:
        """The outcome of a candidate; None if it cannot even be read, or no work is left."""
        free = plan.cause in (ORDER, NAMES)
        if free and self._recorded is not None:
            return self._recorded[1]
        outcome = self._tried(plan, state, free=free)
        if free:
            self._recorded = plan, outcome
        return outcome

    def _tried(self, plan: Candidate, state: Partition, *, free: bool) -> Partition | None:
        size = max(
            len(state.parallel.unrolled.instances), len(self.result.single.unrolled.instances)
        )
        spent = self.tries >= MOST_TRIES or self.rows + size > MOST_ROWS or self.trials.spent
        if not free and self.tries and spent:
            self.exhausted = True
            return None
        self.tell(self.tries, MOST_TRIES)
        self.tries += 1
        self.rows += 0 if free else size
        return self._trial(plan.plan, self.assumed)

    def _trial(self, plan: Plan, assumed: Assumed) -> Partition | None:
        """What a trial gives; None, too, if it cannot be read in the work that it may take."""
        try:
            return self.trials.trial(plan, assumed)
        except Unsupported:
            return None
        except OutOfWork:
            self.ended = True
            return None

    def best(
        self, state: Partition, proposed: Iterator[Candidate], resolved: Resolved
    ) -> tuple[Candidate, Partition] | None:
        """The first candidate with which everything holds, else the first that resolves the cause
        and breaks nothing."""
        first: tuple[Candidate, Partition] | None = None
        for candidate in chain(self._as_recorded(state), proposed):
            outcome = self.tried(candidate, state)
            if self.exhausted:
                break
            if outcome is None:
                continue
            if holds(outcome):
                return candidate, outcome
            if first is None and resolved.by(outcome):
                first = candidate, outcome
                if not candidate.edits or (more := self._everywhere(*first, resolved)) is None:
                    continue
                if holds(more[1]):
                    return more
                first = more
        return first

    def _as_recorded(self, state: Partition) -> Iterator[Candidate]:
        """The plan as its records have it, if they tell of another order of its groups, or of
        another owner of a gradient."""
        if self.otherwise is None or state is not self.result:
            return
        if self._recorded is not None:
            yield self._recorded[0]
            return
        kinds = recorded_otherwise(state)
        if kinds:
            plan = self.otherwise()
            if plan is not None:
                order = CHUNK_POSITION in kinds
                yield Candidate(ORDER if order else NAMES, AS_RECORDED if order else AS_NAMED, plan)

    def _everywhere(
        self, candidate: Candidate, outcome: Partition, resolved: Resolved
    ) -> tuple[Candidate, Partition] | None:
        """The same repair in all layers that have the same there, if it helps more."""
        plan = resolved.before.plan
        more = elsewhere(plan, candidate.edits)
        if not more:
            return None
        edits = (*candidate.edits, *more)
        where = spoken_layers(places_of(plan, more))
        sentence = f"{candidate.sentence}, and the same in {where}"
        wider = Candidate(candidate.cause, sentence, applied(plan, edits), edits)
        after = self.tried(wider, resolved.before)
        if after is None or not resolved.by(after) or not failing(after) <= failing(outcome):
            return None
        return (
            (wider, after) if holds(after) or divergences(after) != divergences(outcome) else None
        )

    def run(self) -> bool:
        """Find causes until nothing is wrong any more (``state`` is the plan then); whether that
        point was reached with repairs alone.  Whoever asks again is told the same."""
        if self._ended is None:
            self._ended = self._run()
        return self._ended

    def as_recorded(self) -> None:
        """Try the plan as its records have it, which takes no look at what is wrong."""
        for candidate in self._as_recorded(self.result):
            outcome = self.tried(candidate, self.result)
            if outcome is not None and holds(outcome):
                self.still(outcome)

    def ahead(self) -> None:
        """Find what can be found before any value is known."""
        self.run()
        for cause in self.causes:
            if cause.after is not None and not cause.after.parallel.unrolled.faults:
                self.still(cause.after)

    def still(self, after: Partition) -> frozenset[str]:
        """What is found beside the verdict in the plan as it is with a repair."""
        if after not in self._still:
            messages = {f.message for f in (*after.findings, *metadata(after))}
            self._still[after] = frozenset(messages)
        return self._still[after]

    def _run(self) -> bool:
        for _ in range(MOST_STEPS):
            if len(self.causes) == MOST_CAUSES or holds(self.state):
                break
            at_odds = bool(self.state.parallel.unrolled.faults)
            after = self._fault(self.state) if at_odds else self._divergence(self.state)
            if after is None:
                self.repaired = False
                break
            self.state = after
        return self.repaired and holds(self.state)

    def _fault(self, state: Partition) -> Partition | None:
        """The next contradiction of the plan with itself, and what goes away with it."""
        proposed = (c for propose in FAULTS for c in propose(state.plan))
        best = self.best(state, proposed, Resolved(state, None))
        findings = tuple(faults(state))
        if best is not None:
            left = {f.message for f in faults(best[1])}
            findings = tuple(f for f in findings if f.message not in left) or findings
        earlier = tuple(range(len(self.causes)))
        self._cause(findings, None, state, best, earlier)
        return best[1] if best else None

    def _divergence(self, state: Partition) -> Partition | None:
        """The first operator that does something else, and that was not looked at in vain."""
        wrong = attempts.failed_instances(state) if state.faults else []
        at_odds = bool(wrong)
        every = wrong or divergences(state)
        right = all(c.holds for c in state.conclusions if c.kind == LOSS)
        if right and every and not at_odds and not self.causes:
            # What no divergence leads to has a cause of its own, and comes first, but for gradients
            # behind a forward pass that is wrong itself.
            after = self._conclusion(state, begun(state).lone)
            if after is not None:
                return after
        fresh = [c for c in every if c not in self.stuck and self._explains(state, c)]
        if not fresh:
            looked = every and (self.causes or self.stuck or not self.agreeing)
            return None if looked else self._conclusion(state, None)
        divergence = fresh[0]
        findings = misfits(state, [divergence]) if at_odds else (explain(state, divergence),)
        best = self.best(state, _proposed(state, divergence), Resolved(state, divergence))
        if best is not None and best[0].cause == OF_THE_LOSS:
            # No operator of the forward pass does anything else: the loss lacks one.
            divergence = loss_maker(state, divergence)
            findings = (explain(state, divergence),)
        if findings and not (best is None and self._is_told(findings[0])):
            self._add(state, divergence, findings, best)
        if best is not None:
            return best[1]
        self.repaired = False
        ought = None if at_odds else attempts.ought(state, divergence)
        if ought is not None and not self.trials.spent:
            assumed = {**self.assumed, **ought}
            after = self._trial(state.plan, assumed)
            if after is not None and Resolved(state, divergence).by(after):
                self.assumed = assumed
                return after
        self.stuck.append(divergence)
        return state

    def _explains(self, state: Partition, divergence: Divergence) -> bool:
        """Whether a conclusion fails after a divergence that does not after those looked at."""
        if not (self.stuck or self.agreeing) or state.faults:
            return True
        known = reached(state, [n for c in self.stuck for n in c.instances])
        new = reached(state, divergence.instances) - known
        return any(c.value in new for c in self._wrong(state))

    def _wrong(self, state: Partition) -> list[Conclusion]:
        """The conclusions that do not hold, but for those that were seen to agree."""
        return [
            c
            for c in state.conclusions
            if not c.holds and (c.kind, c.name, c.program) not in self.agreeing
        ]

    def _is_told(self, finding: Finding) -> bool:
        """Whether this is the other direction of an operator that was reported without repair."""
        return any(
            not cause.repairs
            and (
                finding.layer == cause.findings[0].layer
                or finding.layer in cause.findings[0].layers
            )
            and _forward(cause.findings[0].operator) == _forward(finding.operator)
            for cause in self.causes
        )

    def _conclusion(self, state: Partition, among: frozenset[int] | None) -> Partition | None:
        """A gradient or output that no operator before it makes wrong: its reduction, or what did
        no harm to other values.  ``among``: the values that are looked at, if not all."""
        makers = {v: n for n, r in enumerate(state.parallel.unrolled.instances) for v in r.outputs}
        for conclusion in self._wrong(state):
            if conclusion.value not in makers or conclusion.kind in (OWN, LOSS):
                continue
            if among is not None and conclusion.value not in among:
                continue
            divergence = Divergence((makers[conclusion.value],), -1, conclusion.message)
            made = origins(state)
            proposed = iter(
                [
                    *_other_shards(state.plan, conclusion),
                    *missing_reducers(state, conclusion),
                    *partial_gradients(FaultContext(state, divergence, made)),
                    *candidates(state, divergence, made),
                ]
            )
            best = self.best(state, proposed, Resolved(state, None))
            finding = _of_conclusion(state, conclusion)
            if best is not None and best[0].edits:
                # It begins before its reduction: where the repair is.
                begins = divergence_at(state, best[0].edits[0].site, conclusion.message)
                divergence, finding = begins, explain(state, begins)
            elif best is None:
                other = self._in_harmless(state)
                if other is not None:
                    divergence, best = other
                    finding = explain(state, divergence)
            self._add(state, divergence, (finding,), best)
            return best[1] if best else None
        return None

    def _in_harmless(
        self, state: Partition
    ) -> tuple[Divergence, tuple[Candidate, Partition]] | None:
        """A divergence that did no harm to the values that are compared, if the plan holds once it
        is put right: a parameter that is gathered in another way, forward and backward."""
        for divergence in begun(state).harmless:
            best = self.best(state, _proposed(state, divergence), Resolved(state, divergence))
            if best is not None and holds(best[1]):
                return divergence, best
        return None

    def _add(
        self,
        state: Partition,
        divergence: Divergence,
        findings: tuple[Finding, ...],
        best: tuple[Candidate, Partition] | None,
    ) -> None:
        """A cause, or one more place of a cause; it depends on those before it unless it is seen
        in the plan as it is."""
        if best is not None and best[0].edits:
            findings = (in_layers(state, findings[0], divergence, best[0]), *findings[1:])
        for number, cause in enumerate(self.causes):
            if is_same(cause, findings[0], best):
                self.causes[number] = joined(state, cause, divergence, findings[0], best)
                return
        alone = state is self.result or key(divergence, state) in {
            key(c, self.result) for c in divergences(self.result)
        }
        earlier = () if alone else tuple(range(len(self.causes)))
        self._cause(findings, divergence, state, best, earlier)

    def _cause(
        self,
        findings: tuple[Finding, ...],
        divergence: Divergence | None,
        state: Partition,
        best: tuple[Candidate, Partition] | None,
        assuming: tuple[int, ...],
    ) -> None:
        repairs = (best[0].sentence,) if best else ()
        name = best[0].cause if best else findings[0].cause
        after = best[1] if best else None
        self.causes.append(Cause(findings, divergence, state, repairs, name, after, assuming))


# -- findings --------------------------------------------------------------------------------------


def recorded_otherwise(state: Partition) -> set[str]:
    """The kinds of findings that tell of another order of groups, or of another owner of a
    gradient: the plan as its records have it is the first repair that is tried.

    Example: ``{"chunk position"}`` of a plan whose chunks lie elsewhere than the position of their
    ranks says.
    """
    kinds = {f.kind for f in (*state.findings, *state.plan.recorded)}
    return kinds & {CHUNK_POSITION, GRADIENT_NAME}


def _of_conclusion(state: Partition, conclusion: Conclusion) -> Finding:
    return Finding(
        "conclusion",
        conclusion.message,
        row_name(conclusion.kind, conclusion.name),
        conclusion.name,
        made_at(state.parallel.unrolled.instances, conclusion.value),
        conclusion.ranks,
    )


def _proposed(state: Partition, divergence: Divergence) -> Iterator[Candidate]:
    """Repairs of a divergence; where its values begin is looked up once one is asked for."""
    yield from candidates(state, divergence, origins(state))


def _other_shards(plan: Plan, conclusion: Conclusion) -> Iterator[Candidate]:
    """The parameter of a gradient, held in another part."""
    if conclusion.kind == GRADIENT and conclusion.program >= 0:
        yield from other_shards(plan, conclusion.name, [conclusion.program])


def _forward(operator: str) -> str:
    return operator.removeprefix("backward of ")

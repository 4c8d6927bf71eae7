"""Derive mutants from a plan, label each, verify each, and compare.

A mutant is known by the plan, the seed and its number: the same three give the same mutant.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any, Final, TypeAlias

from shardproof.engine.plan.ir import Plan
from shardproof.mutation.bodies import BODIES
from shardproof.mutation.dimensions import SHAPES
from shardproof.mutation.equivalent import EQUIVALENT
from shardproof.mutation.label import LABELS, Labelled, label
from shardproof.mutation.operators import OPERATORS
from shardproof.mutation.order import ORDER
from shardproof.mutation.shards import SHARDS
from shardproof.mutation.table import Mutation, Mutator
from shardproof.mutation.wiring import WIRING
from shardproof.partition.templates.memo import Memo

MUTATORS: Final[tuple[Mutator, ...]] = (
    *OPERATORS,
    *SHAPES,
    *WIRING,
    *SHARDS,
    *ORDER,
    *BODIES,
    *EQUIVALENT,
)

#: Comes to the verdict on a plan in memory, and its reason: ``verify(plan, cache, memo)``.
Verifier: TypeAlias = "Callable[[Plan, Path | None, Memo], tuple[str, str]]"

#: In the order of the report; "rejected" is what the command line calls invalid input.
VERDICTS: Final = ("proved", "refuted", "inconclusive", "rejected", "internal error")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One mutant: what was changed (``what``), what it is (``label``), what was said of it.

    Example: mutator "collective dropped" of the kind "missing", labelled "different", verdict
    "refuted": no ``disagreement``; a verdict "proved" would be one.
    """

    number: int
    mutator: str
    kind: str
    what: str
    label: Labelled
    verdict: str
    reason: str
    seconds: float

    @property
    def disagreement(self) -> str:
        """What is wrong with the verdict, or ""."""
        label = self.label.label
        if self.verdict == "internal error":
            return "it ended in an internal error"
        if self.verdict == "proved" and label in ("different", "invalid"):
            return f"proved, and it is {label}"
        if self.verdict in ("refuted", "rejected") and label == "equivalent":
            return f"{self.verdict}, and it is equivalent"
        return ""

    def to_dict(self) -> dict[str, Any]:
        """The outcome as plain data."""
        return {**asdict(self), "disagreement": self.disagreement}


def derive(plan: Plan, seed: int, number: int) -> tuple[Mutator, Mutation] | None:
    """Mutant ``number``; None where its mutator finds nothing in this plan to change.

    Example: mutant 0 of seed 0 of a GPT with tp 2: the mutator "another operator", "backward of mul
    in loss (rank 0, body backward, operator 0): becomes add".

    Mutators take turns, so that every kind gets its share of any number of mutants.
    """
    mutator = MUTATORS[number % len(MUTATORS)]
    made = mutator.apply(plan, Random(f"{seed}/{number}"))
    return None if made is None else (mutator, made)


def run(
    plan: Plan,
    seed: int,
    numbers: Iterable[int],
    verify: Verifier,
    keep: Callable[[Outcome, Plan], None] = lambda outcome, plan: None,
    cache: Path | None = None,
) -> Iterator[Outcome]:
    """The outcomes of mutants, one by one; ``verify`` is what is tested, ``keep`` is given each
    with its plan.

    Example: ``run(plan, 0, range(100), verify)``, of which a mutator that finds nothing to change
    gives no outcome.

    ``cache``: where proofs of texts are kept across mutants; the user's folder if it is None.
    """
    memo = Memo()
    for number in numbers:
        derived = derive(plan, seed, number)
        if derived is None:
            continue
        mutator, made = derived
        start = time.perf_counter()
        labelled = label(made.plan)
        verdict, reason = verify(made.plan, cache, memo)
        seconds = time.perf_counter() - start
        judged = Outcome(
            number, mutator.name, mutator.kind, made.what, labelled, verdict, reason, seconds
        )
        keep(judged, made.plan)
        yield judged


# -- counting ------------------------------------------------------------------------------------


def table(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """How many mutants there are by verdict, for each kind of mutation and label.

    Example: the row ``{"kind": "missing", "label": "different", "proved": 0, "refuted": 31, ...}``.
    """
    counts: dict[tuple[str, str], Counter[str]] = {}
    for outcome in outcomes:
        key = (outcome.kind, outcome.label.label)
        counts.setdefault(key, Counter())[outcome.verdict] += 1
    kinds = sorted({kind for kind, _ in counts})
    return [
        {"kind": kind, "label": label, **{v: counts[kind, label][v] for v in VERDICTS}}
        for kind in kinds
        for label in LABELS
        if (kind, label) in counts
    ]


def totals(outcomes: Sequence[Outcome]) -> dict[str, dict[str, int]]:
    """How many mutants there are by label and verdict, over all kinds.

    Example: ``{"equivalent": {"proved": 40, "refuted": 0, ...}, "different": {...}, ...}``.
    """
    counts = Counter((outcome.label.label, outcome.verdict) for outcome in outcomes)
    return {label: {v: counts[label, v] for v in VERDICTS} for label in LABELS}

"""What a mutant is, by evaluation alone: equivalent, different, invalid or undecided.

Nothing of `partition` is used.  *Invalid*: the program contradicts itself (a deadlock, a message
that nobody sends, a shape that an operator cannot take) or is no plan.  *Different*: a loss or a
gradient differs in float64, or, by less than float64 can show, in the finite field.  *Rounded*: it
is different, and no more once constants that round to one are equal, which is what a proof then
assumes in so many words.  *Equivalent*: float64 agrees to rounding, and the field agrees or cannot
be asked.

A small plan is run a second time, by `engine.reference_runtime`, which shares nothing with the
prover but what single operators compute.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from shardproof.engine.errors import InvalidInput, ShapeMismatch, Unsupported
from shardproof.engine.plan import same_model as pairing
from shardproof.engine.plan.ir import Plan
from shardproof.engine.plan_files import wellformed
from shardproof.engine.reference_runtime import compare as runtime
from shardproof.engine.reference_runtime.exchange import Stuck
from shardproof.engine.schedule.instances import Unrolled
from shardproof.engine.schedule.unroll import unroll
from shardproof.mutation.evaluate import Difference, run
from shardproof.partition.evidence.rounding import rounded

Label: TypeAlias = Literal["equivalent", "different", "rounded", "invalid", "undecided"]
LABELS: Final[tuple[Label, ...]] = (
    "equivalent",
    "different",
    "rounded",
    "invalid",
    "undecided",
)

#: Relative errors above this are a difference, below the other one rounding.
DIFFERENT: Final = 1e-6
ROUNDING: Final = 1e-11
#: Inputs that are tried where float64 alone decides; where the field agrees, one of each will do.
SEEDS: Final = 3


@dataclass(frozen=True, slots=True)
class Labelled:
    """What a mutant is, and how that is known. ``why``: what differs or is wrong, in words;
    ``error``: the largest relative one, in float64; ``field``: "same", "differs", or why the finite
    field could not be asked; ``ranks``: the same of running every rank by itself.

    Example: ``Labelled("different", "gradient wte.weight on stage 0 {'tp': 1}", 19.0, "not
    asked")``.
    """

    label: Label
    why: str = ""
    error: float = 0.0
    field: str = ""
    ranks: str = ""


def label(plan: Plan) -> Labelled:
    """What a plan is by evaluation: both of its programs are run and compared.

    Example: a correct GPT with tp 2 is "equivalent" with an error of 1.4e-13, and "same" in the
    field and rank by rank.
    """
    labelled = _evaluated(plan)
    if labelled.label in ("equivalent", "undecided"):
        labelled = _run_by_ranks(plan, labelled)
    if labelled.label == "different" and labelled.error <= DIFFERENT:
        equal = rounded(plan)
        if equal is not plan and label(equal).label == "equivalent":
            return replace(labelled, label="rounded")
    return labelled


def _run_by_ranks(plan: Plan, labelled: Labelled) -> Labelled:
    """The label with a second opinion: a difference that it sees is one."""
    if not runtime.fits(plan):
        return replace(labelled, ranks="not run: too large")
    try:
        error, where = runtime.worst(plan, 0)
    except (Unsupported, runtime.Undefined) as problem:
        return replace(labelled, ranks=str(problem))
    except (Stuck, ShapeMismatch, InvalidInput) as problem:
        return Labelled("invalid", str(problem), labelled.error, labelled.field, "stuck")
    if error > DIFFERENT:
        return Labelled("different", where, error, labelled.field, "differs")
    return replace(labelled, ranks="same")


def _evaluated(plan: Plan) -> Labelled:
    try:
        wellformed.check(plan)
        pairing.check(plan)
    except InvalidInput as error:
        return Labelled("invalid", str(error))
    single, parallel = unroll([plan.single], 1), unroll(plan.programs, plan.microbatches)
    faults = [*single.faults, *parallel.faults]
    if faults:
        return Labelled("invalid", f"{faults[0].kind}: {faults[0].message}")
    for finding in (*single.unsupported, *parallel.unsupported):
        return Labelled("undecided", finding.message)
    try:
        worst = run(plan, single, parallel, 0, field=False)
    except (ShapeMismatch, InvalidInput) as error:
        return Labelled("invalid", str(error))
    except Unsupported as error:
        return Labelled("undecided", str(error))
    if worst.error > DIFFERENT:
        return Labelled("different", worst.where, worst.error, "not asked")
    try:
        algebraic = run(plan, single, parallel, 0, field=True)
    except (ShapeMismatch, InvalidInput, Unsupported) as error:
        return _by_floats(_worst(plan, single, parallel), str(error))
    if not algebraic.error:
        return Labelled("equivalent", "", worst.error, "same")
    if worst.error > ROUNDING:
        return Labelled("different", algebraic.where, worst.error, "differs")
    why = f"{algebraic.where} differs in the field and agrees to rounding in float64"
    return Labelled("undecided", why, worst.error, "differs")


def _by_floats(worst: Difference, why: str) -> Labelled:
    """The label where the field cannot be asked."""
    if worst.error > DIFFERENT:
        return Labelled("different", worst.where, worst.error, why)
    if worst.error > ROUNDING:
        return Labelled("undecided", f"{worst.where} is off by {worst.error:.1e}", worst.error, why)
    return Labelled("equivalent", "", worst.error, why)


def _worst(plan: Plan, single: Unrolled, parallel: Unrolled) -> Difference:
    """The largest difference over a few random inputs, in float64."""
    differences = (run(plan, single, parallel, seed, field=False) for seed in range(SEEDS))
    return max(differences, key=lambda d: d.error)

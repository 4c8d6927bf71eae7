"""Whether the backward of a recorded single-device step is the derivative of its forward.

Gradients are held against those that the single-device step computes.  A custom function with a
wrong backward is wrong on both sides; a straight-through estimator, a hook, or clipping, differs on
purpose.  So no proof needs this, and what was found is said with every verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from shardproof import api
from shardproof.engine.errors import InvalidInput, Unsupported
from shardproof.engine.findings import Finding
from shardproof.engine.plan.assumption import Assumption
from shardproof.engine.plan.expectations import GRADIENT, LOSS
from shardproof.engine.plan.ir import Plan
from shardproof.engine.plan_files import store
from shardproof.engine.plan_files.wellformed import check
from shardproof.engine.records.run import PLAN
from shardproof.frontends.torch.derivative import (
    before_changes,
    lowered_again,
    own_places,
    question,
)
from shardproof.frontends.torch.plan import derived_stand_ins
from shardproof.frontends.torch.sides import Sides
from shardproof.inputs import rundir
from shardproof.inputs.assume import Assumptions
from shardproof.run import request
from shardproof.run.optional import KIND
from shardproof.run.options import Options
from shardproof.run.progress import Progress
from shardproof.run.result import Result

#: The run that decides it, in the directory of the run that it is asked for.
FOLDER = "derivative"
#: Operators of the single side beyond which only ``--strict`` asks.
MOST_OPERATORS = 2000
#: What the assumption is about.
ABOUT = "backward"
WHAT = "the single side's recorded backward"
OWN = f"{WHAT} is autograd's own: no code of the program's takes part in it"


class Answer(NamedTuple):
    """What is known of a recorded backward. ``plan``: the plan with what was found, as a note where
    nothing is left to be assumed.

    Example: ``Answer(plan)`` with the note "the single side's recorded backward is autograd's own:
    ...".
    """

    plan: Plan
    findings: tuple[Finding, ...] = ()


def answered(made: Plan, sides: Sides, out: Path, options: Options) -> Answer:
    """The plan with what is known of the single side's backward.

    Example: a custom function whose backward forgets a factor gives the finding "... is not the
    derivative of its forward: the gradient of w differs ...".

    Where autograd alone makes the gradients, nothing is run, unless ``--strict`` is given.
    """
    gradients = {
        row.name: row.single[0].value
        for row in made.expectations
        if row.kind == GRADIENT and row.single
    }
    losses = next((row.single for row in made.expectations if row.kind == LOSS), ())
    if not gradients or not losses:
        return Answer(made)
    step = before_changes(sides.single_step)
    places = own_places(step)
    if not places and not options.strict:
        return Answer(replace(made, notes=(*made.notes, OWN)))
    (body,) = sides.single.program.bodies
    if len(body.ops) > MOST_OPERATORS and not options.strict:
        size = f"{len(body.ops)} operators: --strict asks"
        return _believed(made, f"is not asked to be the derivative of its forward ({size})")
    try:
        side = sides.single
        if step.compared != sides.single_step.compared:
            side, losses, gradients = lowered_again(side, step, losses, gradients)
        plan = question(side, step, losses, gradients)
        check(plan)
        plan = replace(plan, assumed=derived_stand_ins(sides), tables=side.contents)
        result = _run(plan, out / FOLDER, options)
    except (Unsupported, InvalidInput) as error:
        return _believed(made, f"is not decided to be the derivative of its forward ({error})")
    if result.verdict == "proved":
        text = f"{WHAT} is the derivative of its forward: proved for {len(gradients)} parameters"
        return Answer(replace(made, notes=(*made.notes, text)))
    if result.verdict == "refuted":
        return _differs(made, result, places)
    return _believed(made, f"is not decided to be the derivative of its forward ({result.reason})")


def _differs(made: Plan, result: Result, places: Sequence[str]) -> Answer:
    """The gradients that differ, and where in the program's own code it begins, if clear."""
    names = [c.name for c in result.conclusions if c.kind == GRADIENT and not c.holds]
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    message = (
        f"is not the derivative of its forward: the gradient of {names[0]}{more} differs, as where "
        "a custom function's backward is wrong, or on purpose (straight-through estimators, hooks)"
    )
    own = [f.source for f in result.findings if f.source in places]
    any_of = [f.source for f in result.findings if f.source]
    source = next(iter([*own, *(places if len(places) == 1 else any_of), *places]), "")
    finding = Finding(KIND, f"{WHAT} {message}", operator="backward", source=source)
    return _believed(made, message, source)._replace(findings=(finding,))


def _believed(made: Plan, message: str, source: str = "") -> Answer:
    """The plan with the assumption that the recorded backward is what is meant."""
    text = f"{WHAT} {message}; it is taken as it is"
    assumed = Assumption("user's word", ABOUT, source, text)
    return Answer(replace(made, assumed=(*made.assumed, assumed)))


def _run(plan: Plan, out: Path, options: Options) -> Result:
    """Decide the question in a run directory of its own, which can be checked like any other."""
    own = replace(options, strict=False, exhaustive=False, proofs=False, assume=None, out=out)
    rundir.create(out, plan.name, datetime.now())
    settings = own.settings()
    kept = request.Request(
        plan=store.save(plan, out / PLAN),
        settings=replace(settings, pool="", address=own.address),
        assumptions=Assumptions(),
        inputs={},
        files=(),
        options=own.given(),
    )
    request.write(out, kept)
    return api.prove(plan, out, kept, settings, Progress(), 0.0)

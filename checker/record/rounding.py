"""Whether a run says which constants it takes as equal, and whether only rounding tells them
apart."""

from __future__ import annotations

from shardproof.checker.result import Problems
from shardproof.engine.plan.assumption import texts
from shardproof.engine.plan.constants import attribute, is_rounding, statement
from shardproof.engine.records.run import Run


def check_rounding(run: Run, problems: Problems) -> bool:
    """Whether every constant that was replaced differs by rounding alone from what stands there,
    and the certificate names the pair; what is wrong goes to ``problems``.

    Example: 0.1 in place of 0.10000000149 is a rounding, and has to be named; 0.125 in place of 0.2
    is a problem.
    """
    sound = True
    for place in run.plan.rounded:
        constant = attribute(run.plan, place)
        if not is_rounding(place.value, constant):
            sound = False
            problems.add(
                "assumption",
                f"{place.key} of operator {place.op} in body {place.body} of program "
                f"{place.program} was {place.value}, which is no rounding of {constant}",
            )
    for line in texts(statement(run.plan)) if sound else ():
        if line not in run.certificate.assumptions:
            sound = False
            problems.add("assumption", f"the certificate does not name the assumption that {line}")
    return sound

"""What a certificate says beside its verdict: under which assumptions, and how much there was.

A reader goes by both, so that neither may say anything else than the plan and the tables do.
"""

from __future__ import annotations

from checker.result import Problems
from engine.assumed import EXPECTED, stated_orders, statements
from engine.liveness import statement as of_sends
from engine.records import Run
from engine.rounding import statement
from engine.rows import Unrolled


def check_assumptions(run: Run, problems: Problems) -> None:
    """Every assumption of the plan is named, each once, and no other; what the user expected to be
    concluded may stand among them."""
    said = list(run.certificate.assumptions)
    plain, chosen = statements(run.plan), statements(run.plan, chosen=True)
    # How the losses combine is the plan's word or the user's: the sentence says whose.
    due = [*(chosen if set(chosen) - set(plain) <= set(said) else plain)]
    due += [*stated_orders(run.plan), *of_sends(run.plan), *statement(run.plan)]
    for line in due:
        if line not in said:
            problems.add("assumption", f"the certificate does not name the assumption that {line}")
    for number, line in enumerate(said):
        if line in said[:number]:
            problems.add("assumption", f"the certificate names twice: {line[:200]}")
        elif line not in due and not line.startswith(EXPECTED):
            problems.add("assumption", f"the plan does not assume what is named: {line[:200]}")


def check_counts(run: Run, single: Unrolled, parallel: Unrolled, problems: Problems) -> None:
    """Every count that the certificate gives is what is counted; how many verdicts came from a
    cache, no file tells."""
    counted = {
        "single_operators": single.instances,
        "parallel_operators": parallel.instances,
        "ranks": run.plan.ranks,
        "stages": len(run.stages),
        "obligations": sum(1 for s in run.stages if s.template >= 0 or s.problem),
        "templates": len(run.templates),
    }
    for name, count in run.certificate.counts.items():
        expected = counted.get(name, count if name == "cached" else None)
        if count != expected:
            problems.add("verdict", f"the certificate counts {count} {name}, there are {expected}")

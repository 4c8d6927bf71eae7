"""What a certificate says beside its verdict: under which assumptions, and how much there was.

A reader goes by both, so that neither may say anything else than the plan and the tables do.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardproof.checker.result import Problems
from shardproof.engine.ops.listing import foreign
from shardproof.engine.plan.assumption import Assumption, left_out, texts
from shardproof.engine.plan.assumptions import (
    ASSUME,
    CONCLUSIONS,
    EXPECTED,
    stated_orders,
    statements,
)
from shardproof.engine.plan.constants import statement
from shardproof.engine.records.run import Run
from shardproof.engine.schedule.instances import Unrolled
from shardproof.engine.schedule.liveness import statement as of_sends


def check_assumptions(run: Run, problems: Problems) -> None:
    """Every assumption of the plan is named, each once and as what it is, and no other; what the
    user expected to be concluded may stand among them.

    Example: a certificate without "numbers are real: rounding and casts change nothing" is a
    problem, and so is one that names anything that the plan does not assume.
    """
    named = list(run.certificate.assumptions)
    plain, chosen = statements(run.plan), statements(run.plan, chosen=True)
    # How the losses combine is the plan's word or the user's: the sentence says whose.
    due = [*(chosen if set(texts(chosen)) - set(texts(plain)) <= set(named) else plain)]
    due += [*stated_orders(run.plan), *of_sends(run.plan), *statement(run.plan)]
    due += foreign(run.plan)
    names = texts(due)
    sound = True

    def wrong(message: str) -> None:
        nonlocal sound
        sound = False
        problems.add("assumption", message)

    if run.certificate.verdict == "proved":
        for left in left_out(due):
            wrong(f"a proof of a plan of which something is left out: {left.text[:200]}")
    for line in names:
        if line not in named:
            wrong(f"the certificate does not name the assumption that {line}")
    for number, line in enumerate(named):
        if line in named[:number]:
            wrong(f"the certificate names twice: {line[:200]}")
        elif line not in names and not line.startswith(EXPECTED):
            wrong(f"the plan does not assume what is named: {line[:200]}")
    if sound:
        _check_details(run, due, problems)


def _check_details(run: Run, due: Sequence[Assumption], problems: Problems) -> None:
    """Every assumption that is named is described as what it is, in the same order."""
    details = run.certificate.assumption_details
    if texts(details) != run.certificate.assumptions:
        problems.add("assumption", "the certificate describes other assumptions than it names")
        return
    for assumed in details:
        expected = (assumed.kind, assumed.about, assumed.where) == ("stated", CONCLUSIONS, ASSUME)
        if assumed not in due and not (expected and assumed.text.startswith(EXPECTED)):
            problems.add(
                "assumption",
                f"the certificate calls {assumed.kind}, about {assumed.about!r}, what the plan "
                f"does not: {assumed.text[:200]}",
            )


def check_counts(run: Run, single: Unrolled, parallel: Unrolled, problems: Problems) -> None:
    """Every count that the certificate gives is what is counted; how many verdicts came from a
    cache, no file tells.

    Example: "the certificate counts 5 ranks, there are 4".
    """
    counted = {
        "single_operators": single.total,
        "parallel_operators": parallel.total,
        "ranks": run.plan.ranks,
        "stages": len(run.stages),
        "obligations": sum(1 for s in run.stages if s.template >= 0 or s.problem),
        "templates": len(run.templates),
    }
    for name, count in run.certificate.counts.items():
        expected = counted.get(name, count if name == "cached" else None)
        if count != expected:
            problems.add("verdict", f"the certificate counts {count} {name}, there are {expected}")

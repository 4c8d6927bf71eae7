"""`shardproof mutate`: how much is caught, and whether anything is proved that is not right."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardproof.commands.options import PATH

if TYPE_CHECKING:
    from shardproof.engine.plan.ir import Plan
    from shardproof.mutation.campaign import Outcome


@click.command(short_help="Derive mutants of a plan, and verify each.")
@click.argument("plan", type=PATH)
@click.argument("parallel", type=PATH, required=False)
@click.option("--count", type=click.IntRange(1), default=100, show_default=True, metavar="N")
@click.option("--seed", type=int, default=1, show_default=True, help="Which mutants.")
@click.option(
    "--only", type=click.IntRange(0), multiple=True, metavar="NUMBER", help="Only this mutant."
)
@click.option(
    "--out",
    type=PATH,
    metavar="DIR",
    help="Keep the outcomes there, and the plans of disagreements and of --only mutants.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def mutate(
    plan: Path,
    parallel: Path | None,
    count: int,
    seed: int,
    only: tuple[int, ...],
    out: Path | None,
    as_json: bool,
) -> int:
    """Change PLAN (a folder, or two files of one format) in N ways; label each by evaluation in
    float64 and in a finite field, independently of the prover; verify each.

    Exits with 1 if a mutant that computes something else was proved, or an equivalent one refuted.
    """
    from shardproof.inputs.assume import Assumptions
    from shardproof.inputs.load import load_plan
    from shardproof.mutation import campaign
    from shardproof.run.mutant import verify

    original = load_plan(plan, parallel, Assumptions())
    outcomes: list[Outcome] = []
    start = time.perf_counter()
    keep = _keeper(out, bool(only))
    numbers = only or range(count)
    for outcome in campaign.run(original, seed, numbers, verify, keep):
        outcomes.append(outcome)
        if outcome.disagreement:
            click.echo(_line(outcome), err=True)
    document = _document(original, seed, outcomes, time.perf_counter() - start)
    if out is not None:
        (out / "mutants.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
    if as_json:
        click.echo(json.dumps(document, indent=2))
    else:
        _show(document, outcomes)
    return 1 if any(outcome.disagreement for outcome in outcomes) else 0


def _keeper(out: Path | None, every: bool) -> Any:
    """Saves the plans that are to be kept."""
    from shardproof.engine.plan_files import store
    from shardproof.engine.storage.files import unwritable

    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(error, out) from error

    def keep(outcome: Outcome, plan: Plan) -> None:
        if out is not None and (every or outcome.disagreement):
            store.save(plan, out / f"mutant-{outcome.number}")

    return keep


def _line(outcome: Outcome) -> str:
    from shardproof.run.plain import plain

    return plain(
        f"mutant {outcome.number}: {outcome.disagreement}: {outcome.mutator}: {outcome.what}"
    )


def _document(plan: Plan, seed: int, outcomes: Sequence[Outcome], seconds: float) -> dict[str, Any]:
    from shardproof.mutation import campaign

    return {
        "plan": plan.name,
        "seed": seed,
        "mutants": len(outcomes),
        "seconds": round(seconds, 3),
        "totals": campaign.totals(outcomes),
        "table": campaign.table(outcomes),
        "disagreements": [o.to_dict() for o in outcomes if o.disagreement],
        "outcomes": [o.to_dict() for o in outcomes],
    }


def _show(document: dict[str, Any], outcomes: Sequence[Outcome]) -> None:
    """The table, the inconclusive ones by reason, and disagreements one by one."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from shardproof.mutation.campaign import VERDICTS
    from shardproof.report import terminal as report
    from shardproof.run.plain import plain

    def draw(to: Console) -> None:
        grid = Table(box=None, pad_edge=False)
        for name in ("kind", "label"):
            grid.add_column(name)
        for name in VERDICTS:
            grid.add_column(name, justify="right")
        for row in document["table"]:
            cells = (row["kind"], row["label"], *(str(row[v] or "") for v in VERDICTS))
            grid.add_row(*(Text(cell) for cell in cells))
        for label, row in document["totals"].items():
            grid.add_row(*map(Text, ("all", label, *(str(row[v] or "") for v in VERDICTS))))
        to.print(grid)
        wrong = [o for o in outcomes if o.disagreement]
        to.print(Text(f"\n{len(outcomes)} mutants, {len(wrong)} disagreements"))
        for outcome in wrong:
            to.print(Text(f"\n{_line(outcome)}"))
            to.print(Text(f"  label:   {outcome.label.label} {plain(outcome.label.why)}"))
            to.print(Text(f"  verdict: {outcome.verdict} {plain(outcome.reason)[-400:]}"))
            to.print(
                Text(f"  again:   --seed {document['seed']} --only {outcome.number} --out DIR")
            )

    report.show(draw, sys.stdout)

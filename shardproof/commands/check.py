"""``shardproof check``: the second eye over a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardproof.commands.options import PATH

if TYPE_CHECKING:
    from shardproof.checker import CheckResult


@click.command(short_help="Check a finished run anew.")
@click.argument("run_dir", type=PATH)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.option(
    "--inputs",
    type=PATH,
    multiple=True,
    metavar="FILE",
    help="What the run was made from, as given to verify; once per file."
    "  [default: where it was then, if it is still there]",
)
@click.option("--proofs", is_flag=True, help="Check the stored proofs too (docs/proofs.md).")
@click.option("--ethos", type=PATH, metavar="PROGRAM", help="The external checker of proofs.")
@click.option(
    "--cpc", type=PATH, metavar="FILE", help="cvc5's proofs/eo/cpc/Cpc.eo, which ethos needs."
)
@click.option(
    "--executor",
    type=click.Choice(("local", "ray")),
    default="local",
    show_default=True,
    help="Here, or a proof in parts on a Ray cluster.",
)
@click.option("--address", metavar="ADDR", help="The Ray cluster to join.")
@click.option("--workers", type=int, metavar="N", help="How many parts at a time.")
def check(
    run_dir: Path,
    as_json: bool,
    inputs: tuple[Path, ...],
    proofs: bool,
    ethos: Path | None,
    cpc: Path | None,
    executor: str,
    address: str | None,
    workers: int | None,
) -> int:
    """Check a finished run with the second eye: build and solve again what it claims.

    Exit codes: 0 it holds, 1 it does not, 3 this is no run, 4 internal error.
    """
    if (ethos is not None or cpc is not None) and not proofs:
        raise click.UsageError("--ethos and --cpc are of use with --proofs only")
    if len(inputs) > 3:
        raise click.UsageError(f"--inputs takes one to three files, not {len(inputs)}")
    from shardproof import api
    from shardproof.run.plain import plain

    options: dict[str, Any] = {"proofs": proofs, "ethos": ethos, "cpc": cpc}
    if executor == "ray":
        from shardproof.cluster.settings import Settings

        try:
            options["cluster"] = Settings("ray", address, workers)
        except ValueError as error:
            raise click.UsageError(str(error)) from error
    elif address is not None or workers is not None:
        raise click.UsageError("--address and --workers are of use with --executor ray only")
    checked = api.check(run_dir, inputs, **options)
    problems = [str(problem) for problem in checked.problems]
    if as_json:
        import json

        document = {
            "ok": bool(checked.ok),
            "problems": problems,
            "notes": list(checked.notes),
            "counts": checked.counts,
            "compared": list(checked.compared),
            "run_dir": str(run_dir.resolve()),
        }
        click.echo(json.dumps(document, indent=2))
        return 0 if checked.ok else 1
    # Of a run that holds, that is what it says itself: one line is enough.
    lines = [] if checked.ok else problems
    for line in (*lines, *(f"note: {note}" for note in checked.notes)):
        click.echo(plain(line))
    for name in checked.compared:
        click.echo(plain(f"compared with {name}"))
    if proofs:
        click.echo(_of_proofs(checked.counts))
    click.echo(plain(_in_a_line(checked)))
    return 0 if checked.ok else 1


def _in_a_line(result: CheckResult) -> str:
    """What a check comes to."""
    if not result.ok:
        return "the run does not hold"
    if result.verdict == "proved":
        return "the run holds: proved, and every template was proved again"
    first = f" ({result.problems[0].message}; all with --json)" if result.problems else ""
    if result.verdict == "refuted":
        return f"the run holds: refuted, and this check finds no proof either{first}"
    if result.problems:
        return f"the run holds: inconclusive, and no proof where the run itself ends{first}"
    return "the run holds: inconclusive, though every template was proved again"


def _of_proofs(counts: dict[str, int]) -> str:
    """What was found out about proofs, in a line."""
    if "proofs" not in counts:
        return "proofs were not looked at"
    return (
        f"{counts['proofs']:,} proofs ({counts['proof_bytes']:,} bytes): "
        f"{counts['proofs_followed']:,} followed step by step ({counts['proof_steps']:,} steps), "
        f"{counts['proofs_by_ethos']:,} by ethos; "
        f"{counts['single_solver']:,} templates that one solver alone proves"
    )

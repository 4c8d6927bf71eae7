"""``shardproof resume``: go on with a run that was killed."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from shardproof.commands.ci import of_ci, wanted
from shardproof.commands.options import PATH
from shardproof.run.options import EXECUTORS


@click.command(short_help="Go on with a run that was killed.")
@click.argument("run_dir", type=PATH)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.option(
    "--executor",
    type=click.Choice(EXECUTORS),
    help="Go on elsewhere than the run began; also --address and --workers.",
)
@click.option("--address", metavar="ADDR", help="The Ray cluster to join.")
@click.option("--workers", type=int, metavar="N", help="How many solve.")
@of_ci
def resume(
    run_dir: Path,
    as_json: bool,
    executor: str | None,
    address: str | None,
    workers: int | None,
    junit: Path | None,
    sarif: Path | None,
) -> int:
    """Go on with a run that was killed, and end as it would have: same verdict, same certificate.

    Verdicts on record are kept, nothing is solved twice. Of a finished run the result is shown, if
    its tables and verdicts bear it out; else it is found again.
    Exit codes are those of verify.
    """
    from shardproof.resume import resume as go_on
    from shardproof.run.progress import on_stderr

    ci = wanted(run_dir, junit, sarif)
    with on_stderr() as progress:
        result = go_on(run_dir, progress, executor=executor, address=address, workers=workers)
    for line in ci.write(result):
        click.echo(line, err=True)
    if as_json:
        click.echo(result.to_json())
    else:
        from shardproof.report import terminal as report

        report.show(lambda to: report.write(result, to), sys.stdout)
    return result.exit_code

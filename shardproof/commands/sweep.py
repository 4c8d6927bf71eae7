"""``shardproof sweep``: many plans made and verified, as one table, plots and a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shardproof.commands.options import PATH, by_name, jobs_here, of_many

if TYPE_CHECKING:
    from shardproof.campaigns.sweep.spec import Sweep
    from shardproof.cluster.settings import Settings


@click.command(short_help="Verify many plans, as a table and plots.")
@click.argument("files", type=by_name("sweeps"), nargs=-1, required=True, metavar="SWEEP.yaml...")
@click.option(
    "-o",
    "--out",
    type=PATH,
    metavar="DIR",
    help="Where tables, plots and page go, and what a sweep resumes from."
    "  [default: shardproof-sweeps/NAME]",
)
@click.option(
    "--compare",
    type=PATH,
    metavar="FILE.csv",
    help="Somebody else's seconds for the same plans, drawn beside ours.",
)
@of_many(
    "runs",
    "files",
    "Runs at once: on Ray all over the cluster, with one pool of workers."
    " Their times then include each other's work.",
)
def sweep(
    files: tuple[Path, ...],
    out: Path | None,
    compare: Path | None,
    executor: str | None,
    address: str | None,
    jobs: int,
    as_json: bool,
) -> int:
    """Verify every point of some sweeps (docs/sweeps.md), each in processes of its own.

    What the folder holds already is not run again.  The exit code is that of the worst verdict.
    """
    from shardproof.campaigns.sweep import compare as figures
    from shardproof.campaigns.sweep import page, run, spec
    from shardproof.engine.errors import InvalidInput
    from shardproof.inputs.rundir import slug

    sweeps = [spec.read(path).on(executor, address) for path in files]
    names = [one.name for one in sweeps]
    if len(set(names)) < len(names):
        raise InvalidInput(f"expected sweeps of different names, found {', '.join(names)}")
    others = [] if compare is None else figures.read(compare)
    folder = Path("shardproof-sweeps") / slug("+".join(names)) if out is None else out
    cluster = _cluster(sweeps)
    jobs = jobs_here(jobs) if cluster is None else jobs
    swept = run.run(sweeps, folder.resolve(), others, _tell, jobs=jobs, cluster=cluster)
    path = page.write(swept)
    if as_json:
        import json

        click.echo(json.dumps(swept.to_dict(), indent=2, allow_nan=False))
    else:
        for grown in (one for growths in swept.growth for one in growths):
            bound = ""
            if grown.bound is not None:
                bound = f" (at most {grown.bound:.4g}: {'holds' if grown.holds else 'fails'})"
            click.echo(
                f"{grown.sweep}: {grown.axis} {grown.first} to {grown.last}: "
                f"{grown.ratios['cpu']:.2f} times the processor time{bound}"
            )
        click.echo(f"{swept.verdict}; {path}")
    return swept.exit_code


def _cluster(sweeps: Sequence[Sweep]) -> Settings | None:
    """The cluster that all runs of some sweeps are made on; None for this machine."""
    from shardproof.cluster.settings import Settings
    from shardproof.engine.errors import InvalidInput

    places = {(one.options.get("executor", "auto"), one.options.get("address")) for one in sweeps}
    if not any(executor == "ray" for executor, _ in places):
        return None
    if len(places) > 1:
        raise InvalidInput(f"expected one cluster for all sweeps, found {len(places)} places")
    ((_, address),) = places
    return Settings("ray", None if address is None else str(address))


def _tell(what: str, done: int, total: int) -> None:
    from shardproof.run.plain import plain

    click.echo(f"shardproof: {done} of {total}, {plain(what)}", err=True)

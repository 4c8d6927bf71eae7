"""``shardproof sweep``: many plans made and verified, as one table, plots and a page."""

from __future__ import annotations

from pathlib import Path

import click

_PATH = click.Path(path_type=Path)


@click.command(short_help="Verify many plans, as a table and plots.")
@click.argument("files", type=_PATH, nargs=-1, required=True, metavar="SWEEP.yaml...")
@click.option(
    "-o",
    "--out",
    type=_PATH,
    metavar="DIR",
    help="Where tables, plots and page go, and what a sweep resumes from."
    "  [default: shardproof-sweeps/NAME]",
)
@click.option(
    "--compare",
    type=_PATH,
    metavar="FILE.csv",
    help="Somebody else's seconds for the same plans, drawn beside ours.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def sweep(files: tuple[Path, ...], out: Path | None, compare: Path | None, as_json: bool) -> int:
    """Verify every point of some sweeps (docs/sweeps.md), each in processes of its own.

    What the folder holds already is not run again.  The exit code is that of the worst verdict.
    """
    from engine.errors import InvalidInput
    from shardproof.rundir import slug
    from shardproof.sweep import compare as figures
    from shardproof.sweep import page, run, spec

    sweeps = [spec.read(path) for path in files]
    names = [one.name for one in sweeps]
    if len(set(names)) < len(names):
        raise InvalidInput(f"expected sweeps of different names, found {', '.join(names)}")
    others = [] if compare is None else figures.read(compare)
    folder = Path("shardproof-sweeps") / slug("+".join(names)) if out is None else out
    swept = run.run(sweeps, folder.resolve(), others, _tell)
    path = page.write(swept)
    if as_json:
        import json

        click.echo(json.dumps(swept.to_dict(), indent=2, allow_nan=False))
    else:
        for grown in (one for held in swept.growth for one in held):
            asked = ""
            if grown.bound is not None:
                asked = f" (at most {grown.bound:.4g}: {'holds' if grown.holds else 'fails'})"
            click.echo(
                f"{grown.sweep}: {grown.axis} {grown.first} to {grown.last}: "
                f"{grown.ratios['cpu']:.2f} times the processor time{asked}"
            )
        click.echo(f"{swept.verdict}; {path}")
    return swept.exit_code


def _tell(what: str, done: int, total: int) -> None:
    from shardproof.words import plain

    click.echo(f"shardproof: {done} of {total}, {plain(what)}", err=True)

"""`shardproof report`: a run as one HTML file."""

from __future__ import annotations

from pathlib import Path

import click

from shardproof.commands.options import PATH


@click.command(short_help="Write a run as one HTML file.")
@click.argument("run_dir", type=PATH)
@click.option(
    "-o",
    "--out",
    type=PATH,
    metavar="FILE",
    help="The file to write.  [default: RUN_DIR/report.html]",
)
def report(run_dir: Path, out: Path | None) -> int:
    """Write the report of the run in RUN_DIR: verdict, findings with their values, the plan as a
    picture, stages by layer, time and memory.  The file needs no other file and no network."""
    from engine.files import unwritable
    from shardproof.html.collect import collect
    from shardproof.html.page import render

    data = collect(run_dir)
    path = run_dir / "report.html" if out is None else out
    try:
        path.write_text(render(data), encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise unwritable(error, path) from error
    click.echo(str(path))
    return 0

"""``shardproof status``: where a run is."""

from __future__ import annotations

from pathlib import Path

import click

from shardproof.commands.options import PATH


@click.command(short_help="Show where a run is.")
@click.argument("run_dir", type=PATH)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def status(run_dir: Path, as_json: bool) -> int:
    """Show where a run is, while it works or after: phase, templates, verdicts on record.

    Exit codes: 0 finished or running, 2 stopped before its end, 3 this is no run.
    """
    from shardproof import status as found

    data = found.look(run_dir)
    if as_json:
        import json

        click.echo(json.dumps(data, indent=2))
    else:
        for line in found.lines(data):
            click.echo(line)
    return 2 if data["state"] == "stopped" else 0

"""``shardproof nightly``: suites of plans, compared with the night before."""

from __future__ import annotations

from pathlib import Path

import click

from shardproof.commands.options import PATH, by_name, jobs_here, of_many


@click.command(short_help="Verify suites of plans, compared with the night before.")
@click.argument("suites", type=by_name("nightly"), nargs=-1, required=True, metavar="SUITE.yaml...")
@click.option(
    "-o",
    "--out",
    type=PATH,
    default=Path("shardproof-nightly"),
    show_default=True,
    metavar="DIR",
    help="Where nights are kept, a folder for each suite; what is in it is the night before.",
)
@of_many("plans", "suites", "Plans at once; their times then include each other's work.")
def nightly(
    suites: tuple[Path, ...],
    out: Path,
    executor: str | None,
    address: str | None,
    jobs: int,
    as_json: bool,
) -> int:
    """Verify suites of plans and say what changed since the night before (docs/nightly.md).

    Exit codes: 0 as expected and as before; 1 a verdict is not the expected one or changed; 2 new
    inconclusives, regressions or instability; 3 a suite is invalid; 4 internal error.
    """
    from datetime import datetime

    from shardproof.campaigns.nightly import changes, night, page, suite
    from shardproof.engine.errors import InvalidInput
    from shardproof.inputs.rundir import slug

    read = [suite.read(path).on(executor, address) for path in suites]
    names = [slug(one.name) for one in read]
    if len(set(names)) < len(names):
        raise InvalidInput(f"expected suites of different names, found {', '.join(names)}")
    documents = []
    jobs = jobs_here(jobs)
    for one, name in zip(read, names, strict=True):
        folder = out / name
        now = night.run(one, folder, datetime.now(), _tell, jobs)
        before = night.previous(folder, one.name, now.began)
        changed = changes.changes(now, before, one.limits)
        data = page.document(now, before, changed)
        path = page.write(folder / now.began, data)
        documents.append(data | {"report": str(path.resolve())})
        click.echo(f"{one.name}: {data['headline']}; {path}", err=as_json)
    codes = [data["exit_code"] for data in documents]
    worst = next((code for code in (4, 1, 2) if code in codes), 0)
    if as_json:
        import json

        click.echo(json.dumps({"exit_code": worst, "suites": documents}, indent=2))
    return worst


def _tell(line: str) -> None:
    click.echo(f"shardproof: {line}", err=True)

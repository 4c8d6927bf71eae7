"""``shardproof submit``: a command of ours as a job of a Ray cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from shardproof.commands.options import FILE_THERE, FOLDER_THERE

#: The pinned packages of a checkout, in its folder.
LOCK: Final = Path("requirements/runtime.lock")
#: A file that goes along from a checkout: what the job runs.
SOURCES: Final = Path("shardproof/__main__.py")


def lock_of(folder: Path) -> Path:
    """The pinned packages of a checkout; raises `InvalidInput` for a folder that is none.

    Example: ``requirements/runtime.lock`` of this repository.

    In a folder without Shardproof's sources the nodes would have packages, and no Shardproof.
    """
    from shardproof.engine.errors import InvalidInput

    if not (folder / LOCK).is_file() or not (folder / SOURCES).is_file():
        raise InvalidInput(
            "is no checkout of Shardproof, so the nodes have to have it: install it there "
            "(the wheel of this version) and say so with --installed; or name a list of pinned "
            "packages in which it is (--requirements)",
            str(folder.resolve()),
        )
    return folder / LOCK


@click.command(
    short_help="Run a command as a job of a Ray cluster.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--address",
    default="http://127.0.0.1:8265",
    show_default=True,
    metavar="URL",
    envvar="RAY_API_SERVER_ADDRESS",
    help="The job API: the dashboard of the head.",
)
@click.option(
    "--working-dir",
    type=FOLDER_THERE,
    default=Path(),
    metavar="DIR",
    help="Goes with the job: a checkout with plans, or any folder (--installed).  "
    "[default: this folder]",
)
@click.option(
    "--requirements",
    type=FILE_THERE,
    metavar="FILE",
    help=f"Pinned packages that the nodes install first.  [default: {LOCK} of DIR]",
)
@click.option("--installed", is_flag=True, help="The nodes have Shardproof: install nothing.")
@click.option("--name", metavar="ID", help="The job's own name.  [default: Ray makes one]")
@click.option("--no-wait", is_flag=True, help="Return when it is submitted.")
def submit(
    command: tuple[str, ...],
    address: str,
    working_dir: Path,
    requirements: Path | None,
    installed: bool,
    name: str | None,
    no_wait: bool,
) -> int:
    """Run COMMAND (verify PLAN ..., nightly SUITE ..., after --) as a job of a Ray cluster.

    The log is followed on stderr; with --json in COMMAND its document goes to stdout. The exit
    code is the command's own: that of the verdict.  Authentication is Ray's (docs/cluster.md).
    """
    if installed and requirements is not None:
        raise click.UsageError("--installed and --requirements exclude each other")
    if requirements is None and not installed:
        requirements = lock_of(working_dir)
    from shardproof.cluster.on_ray import jobs as submission
    from shardproof.cluster.on_ray.pool import ClusterError
    from shardproof.engine.errors import InvalidInput

    arguments = submission.arguments_of(command)
    job = submission.Job(arguments, working_dir.resolve(), requirements, name)
    try:
        running = submission.submit(address, job)
    except (ClusterError, ValueError) as error:
        raise InvalidInput(str(error), address) from error
    click.echo(f"shardproof: job {running.number} at {address}", err=True)
    if no_wait:
        return 0
    log: list[str] = []

    def tell(text: str) -> None:
        log.append(text)
        click.echo(text, err=True, nl=False)

    code = running.follow(tell)
    if "--json" in arguments:
        import json

        document = submission.document_in("".join(log))
        if document is None:
            click.echo("shardproof: the job wrote no JSON document", err=True)
            return code or submission.NO_CODE
        click.echo(json.dumps(document, indent=2))
    return code

"""Options that several commands have in common."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from shardproof.engine import errors
from shardproof.run import options

F = TypeVar("F", bound=Callable[..., Any])


class _Path(click.Path):
    """A path that is a text: what a run leaves, and says, names it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not os.fspath(value):
            # As a path it would be this folder: what a variable that is not set says.
            self.fail("expected a path, found an empty text", param, ctx)
        try:
            os.path.abspath(value).encode()
        except UnicodeEncodeError:
            shown = repr(os.fsencode(value)).removeprefix("b")
            self.fail(f"expected a path in UTF-8, found {shown}", param, ctx)
        return super().convert(value, param, ctx)


#: What comes with us, in a checkout and installed.
CONFIGS: Final = Path(errors.__file__).resolve().parents[1] / "configs"

PATH: Final = _Path(path_type=Path)
FOLDER_THERE: Final = _Path(path_type=Path, file_okay=False, exists=True)
FILE_THERE: Final = _Path(path_type=Path, dir_okay=False, exists=True)

#: How the command line reads a value of the types that it has in a file.
_TYPES: Final[Mapping[tuple[type, ...], Any]] = {
    (Path,): PATH,
    (str,): str,
    (int,): int,
    (int, float): float,
}


def by_name(kind: str) -> PathOrName:
    """The type of a file of settings: its path, or the name of one that comes with us, for example
    ``growth`` in ``shardproof sweep growth``.
    """
    return PathOrName(kind)


class PathOrName(_Path):
    """A path, or where there is no such file a name in a folder of ours.

    Example: ``growth`` is ``configs/sweeps/growth.yaml`` where there is no file of that name.
    """

    def __init__(self, kind: str) -> None:
        super().__init__(path_type=Path)
        self.folder = CONFIGS / kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path, or that of the file of ours which has this name; refuses a name that is
        neither."""
        path = super().convert(value, param, ctx)
        if path.name != str(path) or path.suffix or path.exists():
            return path
        names = sorted(ours.stem for ours in self.folder.glob("*.yaml"))
        if path.name in names:
            return self.folder / f"{path}.yaml"
        from shardproof.engine.system.names import near

        self.fail(
            f"there is no file {path}, and none of ours{near(path.name, names)}; "
            f"those that come with us are {', '.join(names)}",
            param,
            ctx,
        )


def of_many(what: str, source: str, jobs: str) -> Callable[[F], F]:
    """The options of a command that verifies many plans: where, and how many at once.

    Example: ``shardproof sweep`` and ``shardproof nightly`` get ``--executor``, ``--address``,
    ``--jobs`` and ``--json`` of it.

    ``what``: the plural of what it runs, ``source``: what else says where they are solved,
    ``jobs``: the help of ``--jobs``.
    """
    shared = (
        click.option(
            "--executor",
            type=click.Choice(options.EXECUTORS),
            help=f"Where {what} are solved, in place of what the {source} say.",
        ),
        click.option("--address", metavar="ADDR", help="The Ray cluster to join."),
        click.option(
            "--jobs",
            type=click.IntRange(1),
            default=1,
            show_default=True,
            metavar="N",
            help=jobs,
        ),
        click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout."),
    )

    def decorate(command: F) -> F:
        for option in reversed(shared):
            command = option(command)
        return command

    return decorate


def jobs_here(jobs: int) -> int:
    """How many runs go on at once on this machine, of as many as asked for; says it if it is
    fewer.

    Example: 64 on a machine with two CPUs are 8, with a line about it on stderr.
    """
    from shardproof.cluster.machine import most_workers

    here = min(jobs, most_workers())
    if here < jobs:
        note = f"{jobs} runs at once are more than this machine has use for: {here} go on at once"
        click.echo(f"shardproof: {note}", err=True)
    return here


def of_verify(command: F) -> F:
    """The options of `shardproof.run.options.Options`, in their order, with ``--json`` after the
    first; ``command`` gets them by the names that they have there.

    Example: ``shardproof verify plan --no-cache --timeout 60`` calls the command with
    ``cache=False`` and ``timeout=60.0``.
    """
    as_json = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
    first, *others = options.names()
    for decorate in reversed([_declared(first), as_json, *map(_declared, others)]):
        command = decorate(command)
    return command


def _declared(name: str) -> Callable[[F], F]:
    """One option of ``verify``."""
    shown, default = options.shown(name), options.defaults()[name]
    flag = shown.flag or f"--{name.replace('_', '-')}"
    if shown.kinds == (bool,):
        value = not default if shown.turned else True
        return click.option(flag, name, flag_value=value, default=default, help=shown.help)
    return click.option(
        *filter(None, (flag, shown.alias)),
        name,
        type=click.Choice(shown.choices) if shown.choices else _TYPES[shown.kinds],
        default=default,
        show_default=shown.shows_default,
        metavar=shown.metavar,
        help=shown.help,
    )

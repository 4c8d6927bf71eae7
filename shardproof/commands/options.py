"""Options that several commands have in common."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


class _Path(click.Path):
    """A path that is a text: what a run leaves, and says, names it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            os.path.abspath(value).encode()
        except UnicodeEncodeError:
            shown = repr(os.fsencode(value)).removeprefix("b")
            self.fail(f"expected a path in UTF-8, found {shown}", param, ctx)
        return super().convert(value, param, ctx)


PATH: Final = _Path(path_type=Path)
FOLDER_THERE: Final = _Path(path_type=Path, file_okay=False, exists=True)
FILE_THERE: Final = _Path(path_type=Path, dir_okay=False, exists=True)


def of_many(what: str, said: str, jobs: str) -> Callable[[F], F]:
    """The options of a command that verifies many plans: where, and how many at once.

    ``what``: the plural of what it runs, ``said``: what else says where they are solved, ``jobs``:
    the help of ``--jobs``.
    """
    options = (
        click.option(
            "--executor",
            type=click.Choice(("auto", "local", "ray")),
            help=f"Where {what} are solved, in place of what the {said} say.",
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
        for option in reversed(options):
            command = option(command)
        return command

    return decorate

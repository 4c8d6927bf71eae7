"""Options that several commands have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


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

"""Options of commands that come to a verdict, for continuous integration."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from shardproof.commands.options import PATH

if TYPE_CHECKING:
    from shardproof.report.ci.files import Wanted

F = TypeVar("F", bound=Callable[..., Any])

#: Options that are about files of CI, and none of `shardproof.run.options.Options`.
NAMES: Final = ("junit", "sarif")


def of_ci(command: F) -> F:
    """The options for files of CI, for example ``--junit out.xml`` and ``--sarif out.sarif``."""
    sarif = click.option(
        "--sarif", type=PATH, metavar="FILE", help="Write SARIF for code scanning."
    )
    junit = click.option("--junit", type=PATH, metavar="FILE", help="Write JUnit XML for CI.")
    return junit(sarif(command))


def wanted(subject: Path, junit: Path | None, sarif: Path | None) -> Wanted:
    """What CI wants of a run; raises ``UsageError`` where a file cannot be written.  A step of
    GitHub Actions gets annotations without being asked.

    Example: ``--junit missing/out.xml`` is a usage error: "expected a folder that can be written
    to, found none: missing".
    """
    from shardproof.inputs.load import plan_name
    from shardproof.report.ci.files import Wanted

    annotate = os.environ.get("GITHUB_ACTIONS") == "true"
    outputs = Wanted(plan_name(subject), str(subject), junit, sarif, annotate)
    reason = outputs.refused()
    if reason:
        raise click.UsageError(reason)
    return outputs

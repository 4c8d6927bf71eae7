"""A result as workflow commands of GitHub Actions, which become annotations of a pull request."""

from __future__ import annotations

from typing import Final

from shardproof.report.ci.subject import Problem, place, problems
from shardproof.run.plain import plain
from shardproof.run.result import Result

#: GitHub shows so many of one step.
MOST: Final = 10
_COMMANDS: Final = {"error": "error", "warning": "warning", "note": "notice"}


def annotated(result: Result, subject: str) -> list[str]:
    """One command per line: each problem, or that the plan is proved.

    Example: ``::error title=gpt%3A refuted,file=examples/gpt.py,line=98::add in h.1.mlp on ranks
    [0, 1] ...``.
    """
    title = f"{plain(subject)}: {result.verdict}"
    if result.verdict == "proved":
        text = f"{len(result.conclusions)} conclusions on {result.counts.ranks} ranks"
        shown = [Problem("proved", "note", text), *problems(result)]
    else:
        shown = problems(result)
    return [_command(problem, title) for problem in shown[:MOST]]


def _command(problem: Problem, title: str) -> str:
    properties = {"title": title}
    at = place(problem.source)
    if at is not None:
        properties |= {"file": at[0], "line": str(at[1])}
    given = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    where = f" ({problem.where})" if problem.where else ""
    return f"::{_COMMANDS[problem.level]} {given}::{_data(problem.message + where)}"


def _data(text: str) -> str:
    """A text as the message of a command: nothing in it begins another one."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")

"""A page as a user reads it: files are written, commands run, outputs compared.

A block ``python title="NAME"`` is the file NAME; a block ``console`` is a session: after each line
``$ COMMAND`` come the lines that it prints. ``...`` stands for any text, also over several lines;
``$ echo $?`` prints the exit code of the command before it. Any other block is not run.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

_BLOCK = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TITLE = re.compile(r'title="([^"]+)"')


class Block(NamedTuple):
    """``kind``: the language; ``name``: the file that it is, if it is one."""

    kind: str
    name: str
    text: str


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page."""
    found = []
    for kind, rest, text in _BLOCK.findall(page.read_text(encoding="utf-8")):
        title = _TITLE.search(rest)
        found.append(Block(kind, title[1] if title else "", text))
    return found


class Step(NamedTuple):
    """A command and what it should print."""

    command: str
    expected: str


def steps(session: str) -> list[Step]:
    """The commands of a session."""
    first, *rest = re.split(r"^\$ ", session, flags=re.MULTILINE)
    assert not first, f"a session begins with a command, not with {first!r}"
    return [Step(*part.partition("\n")[::2]) for part in rest]


def matches(expected: str, actual: str) -> bool:
    """Whether a command printed what the page says."""
    parts = map(re.escape, expected.strip().split("..."))
    return re.fullmatch(r"(?:.|\n)*?".join(parts), actual.strip()) is not None


def run_page(page: Path, folder: Path) -> int:
    """Do what a page says in ``folder``; returns how many commands were run.  A command that is not
    followed by ``echo $?`` ends with 0 or the verdict that it prints."""
    (folder / "examples").symlink_to(ROOT / "examples")
    code, count = 0, 0
    for block in blocks(page):
        if block.name:
            (folder / block.name).write_text(block.text, encoding="utf-8")
        if block.kind != "console":
            continue
        for step in steps(block.text):
            if step.command == "echo $?":
                assert step.expected.strip() == str(code), f"{page.name}: exit code {code}"
                continue
            done = _run(step.command, folder)
            code, count = done.returncode, count + 1
            assert matches(step.expected, done.stdout), (
                f"{page.name}: $ {step.command}\n{done.stdout}{done.stderr}"
            )
            assert code in (0, 1), f"{page.name}: $ {step.command}\n{done.stderr}"
    return count


def _run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    words = shlex.split(command)
    if words[0] == "shardproof":
        words = [sys.executable, "-m", *words]
    elif words[0] == "python":
        words[0] = sys.executable
    home = {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder / "cache"), "GITHUB_ACTIONS": ""}
    return subprocess.run(
        words, cwd=folder, env={**os.environ, **home}, capture_output=True, text=True, check=False
    )

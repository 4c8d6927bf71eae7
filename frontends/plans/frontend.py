"""Plan folders and text plans as frontends: one path holds both sides."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.assumption import Assumption
from shardproof.engine.plan.ir import Plan
from shardproof.engine.plan_files import store
from shardproof.engine.plan_files.text_parser import MOST_CHARACTERS, parse_plan
from shardproof.engine.plan_files.wellformed import check
from shardproof.engine.storage import files
from shardproof.frontends.untrusted.child import run_bounded
from shardproof.frontends.untrusted.inert import printable


class _Whole:
    """What both have: nothing is said of how they are read, and no second path is."""

    files: str
    sides = 1
    table = ""
    options: Mapping[str, Mapping[str, str]] = {}

    def read_pair(self, single: Path, parallel: Path, options: Mapping[str, str]) -> Plan:
        raise InvalidInput(f"expected {self.files} alone, it holds both sides", str(parallel))

    def assumed(self, options: Mapping[str, str]) -> tuple[Assumption, ...]:
        return ()


class Folder(_Whole):
    """A plan folder, as `shardproof.save` writes it (see `frontends.frontend.Frontend`).

    Example: ``shardproof verify plan``, after ``shardproof plan llama3-8b --tp 2 -o plan``.
    """

    name = "stored"
    files = "a plan folder"
    suffixes: tuple[str, ...] = ()

    def accepts(self, path: Path, head: bytes) -> bool:
        """Whether it is a folder with the tables of a plan."""
        return path.is_dir() and (path / f"programs{store.SUFFIX}").exists()

    def read_side(self, path: Path) -> Plan:
        """The plan of a folder as it was saved."""
        return store.load(path)


class Text(_Whole):
    """A plan as text (see `frontends.frontend.Frontend`).

    Example: ``shardproof verify small.plan.txt``, whose first line is ``plan "small"``.
    """

    name = "text"
    files = "a plan as text (.plan.txt)"
    suffixes = (".plan.txt",)

    def accepts(self, path: Path, head: bytes) -> bool:
        """The first line that is no comment begins a plan."""
        lines = (line.strip() for line in head.splitlines())
        first = next((line for line in lines if line and not line.startswith(b"#")), b"")
        return first.startswith(b'plan "')

    def read_side(self, path: Path) -> Plan:
        """The plan of a text, parsed in a bounded child."""
        function = "shardproof.frontends.plans.frontend:read_text"
        return store.from_bytes(run_bounded(function, [str(path)]))


def read_text(path: str) -> bytes:
    """The plan that a text writes down, as bytes.  Made to be called in a bounded child.

    Example: a text that begins with ``plan "small"`` and breaks off is refused with its line.
    """
    where = printable(path, 400)
    try:
        text = files.contents(Path(path), 4 * MOST_CHARACTERS).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"expected a readable text, found: {error}", where) from error
    plan = parse_plan(text, where)
    check(plan)
    return store.to_bytes(plan)


FOLDER = Folder()
TEXT = Text()

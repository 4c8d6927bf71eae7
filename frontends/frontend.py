"""What every source of plans is to the rest of the house: one protocol, and the list of all.

A frontend says which files it reads (by their content), and makes a plan of two of them, or of one
that holds both sides.  The face asks `of` and `of_pair` which one files belong to and never names
any.  A frontend of one's own is
an object with these members: ours are named in `FRONTENDS`, those of installed packages in entry
points (`frontends.packages`), which are looked at only for a path that none of ours recognises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.assumption import Assumption
from shardproof.engine.plan.ir import Plan, Program
from shardproof.frontends import packages
from shardproof.frontends.graphs.replayed import Validation

#: How many bytes of a file a frontend may look at to recognise it.
HEAD_BYTES: Final = 1 << 12


class Frontend(Protocol):
    """A source of plans.

    ``name``: of its format, for people; ``files``: what one of its files is, with its suffixes;
    ``suffixes``: of file names, without which a plan is named; ``sides``: how many paths make a
    plan, 1 or 2; ``options``: what of the user's assumptions it understands, with the allowed
    values and what each of them assumes (none: any text); ``table``: where a file of assumptions
    has those that have a choice of values (empty: nowhere).
    """

    name: str
    files: str
    suffixes: tuple[str, ...]
    sides: int
    options: Mapping[str, Mapping[str, str]]
    table: str

    def accepts(self, path: Path, head: bytes) -> bool:
        """Whether ``path``, which begins with ``head``, looks like one of its files.  For a folder
        ``head`` is empty."""
        ...

    def read_pair(self, single: Path, parallel: Path, options: Mapping[str, str]) -> Plan:
        """The plan of both sides, read in a bounded child; raises `InvalidInput` naming the file
        and the place in it."""
        ...

    def read_side(self, path: Path) -> Plan:
        """One file by itself: the whole plan if it holds both sides, else the parallel side of a
        plan without a single-device one."""
        ...

    def assumed(self, options: Mapping[str, str]) -> tuple[Assumption, ...]:
        """What its ``options``, or their defaults, assume of every plan that it reads."""
        ...


@runtime_checkable
class Replays(Protocol):
    """A frontend that can evaluate what it reads by other means than its translation."""

    def replay(self, single: Path, parallel: Path, options: Mapping[str, str]) -> Validation:
        """Whether the plan of both sides, run rank by rank, gives what the files say."""
        ...


@runtime_checkable
class HoldsTables(Protocol):
    """A frontend whose files have numbers that their plan takes for any (masks, positions)."""

    def tables(self, single: Path, parallel: Path, options: Mapping[str, str]) -> Mapping[str, Any]:
        """These numbers, by the names of the inputs that the plan has for them, as arrays."""
        ...


@runtime_checkable
class ReadsAhead(Protocol):
    """A frontend that has the single-device side of a pair while it still reads the other one."""

    def read_pair_ahead(
        self,
        single: Path,
        parallel: Path,
        options: Mapping[str, str],
        ahead: Callable[[Program, str], None],
    ) -> Plan:
        """As `Frontend.read_pair`; ``ahead`` is given the single-device program, and how its loss
        is reduced, as soon as they are there."""
        ...


#: All frontends, ``module:name``; the first one reads what none recognises, and says what is wrong.
FRONTENDS: Final = (
    "shardproof.frontends.nnscaler.frontend:FRONTEND",
    "shardproof.frontends.plans.frontend:FOLDER",
    "shardproof.frontends.plans.frontend:TEXT",
    "shardproof.frontends.hlo.frontend:FRONTEND",
    "shardproof.frontends.fx.frontend:FRONTEND",
)


def frontends() -> tuple[Frontend, ...]:
    """All of them, imported.

    Example: five of ours; the third and fourth have the names "text" and "HLO text".
    """
    modules = []
    for name in FRONTENDS:
        module, _, member = name.partition(":")
        modules.append(getattr(import_module(module), member))
    return tuple(modules)


def of(path: Path) -> Frontend:
    """The frontend that reads ``path``, ours before those of packages; the first one if nobody
    recognises it.  Raises `InvalidInput` if nobody does and a package could not be asked.

    Example: ``mlp.single.hlo``, which begins with ``HloModule``, is read by "HLO text";
    ``README.md``, which nobody recognises, by the first of `FRONTENDS`.
    """
    known = frontends()
    try:
        head = _head(path)
    except OSError:
        return known[0]
    reader: Frontend | None = next((f for f in known if f.accepts(path, head)), None)
    if reader is not None or not path.exists():
        return reader or known[0]
    installed = packages.load()
    reader = next((f for f in installed.frontends if f.accepts(path, head)), None)
    if reader is None and installed.problems:
        failed = "; ".join(installed.problems)
        raise InvalidInput(f"is of no known format; frontends not loaded: {failed}", str(path))
    return reader or known[0]


def _head(path: Path) -> bytes:
    """What a file begins with; of a folder, and of nothing, no bytes."""
    if not path.is_file():
        return b""
    with path.open("rb") as file:
        return file.read(HEAD_BYTES)


def foreign(frontend: Frontend) -> tuple[Assumption, ...]:
    """What is believed of a frontend of a package: what it reads is what the file means.

    Example: none of "HLO text"; of the example package, "the frontend tiny-graph of the module
    my_package.reader reads what the file means".
    """
    if frontend in frontends():
        return ()
    module = type(frontend).__module__
    text = f"the frontend {frontend.name} of the module {module} reads what the file means"
    return (Assumption("user's word", frontend.name, module, text),)


def of_pair(single: Path, parallel: Path) -> Frontend:
    """The frontend that reads both; raises `InvalidInput` if they are of two formats.

    Example: ``mlp.single.hlo`` and ``plan.txt``, which begins with ``plan "small"``, are of two
    formats: "expected HLO or StableHLO text (.hlo, .txt, .mlir) as the single side is, found a plan
    as text (.plan.txt)".  Beside a file that there is not: "expected HLO or StableHLO text (.hlo,
    .txt, .mlir) as the other side is, found nothing".
    """
    one, other = of(single), of(parallel)
    if one is other:
        return one
    for path, reader, beside in ((single, one, other), (parallel, other, one)):
        there = _unknown(path, reader)
        if there:
            raise InvalidInput(
                f"expected {beside.files} as the other side is, found {there}", str(path)
            )
    raise InvalidInput(
        f"expected {one.files} as the single side is, found {other.files}", str(parallel)
    )


def _unknown(path: Path, reader: Frontend) -> str:
    """What is at a path that nobody recognises, in words; empty: it is one of ``reader``'s.

    Example: "a folder of no known format" of one without files of ranks; "nothing" where there is
    no such file.
    """
    if not path.exists():
        return "nothing"
    try:
        head = _head(path)
    except OSError as error:
        return f"what cannot be read: {error.strerror}"
    if reader.accepts(path, head):
        return ""
    kind = "folder" if path.is_dir() else "file"
    return f"a {kind} of no known format" if head or path.is_dir() else "an empty file"

"""What a suite asks for: plans, with which settings, over which seeds, and what counts as worse.

Everything is checked before anything runs; a mistake is an `InvalidInput` that names file and key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

from shardproof.engine.errors import InvalidInput
from shardproof.engine.storage.settings import Natural, Text, decoded, given, read_yaml
from shardproof.run.options import settable
from shardproof.run.result import Verdict

Scalar: TypeAlias = int | float | str | bool

#: Options of ``verify`` that a suite may set.
VERIFY: Final = settable(
    ("solver", "timeout", "memory_limit", "executor", "address", "workers", "exhaustive", "cache")
)

_Factor: TypeAlias = Annotated[float, Meta(ge=1)]
_Least: TypeAlias = Annotated[float, Meta(ge=0)]


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """What a night may be worse by: factors, and the least differences (s, MiB) that count.

    Example: with the defaults 9.8 s after 5 s is slower, and 2.8 s after 1 s is not: it is less
    than 2 s more.

    ``unstable``: the factor between two seeds' seconds for one template.
    """

    time: _Factor = 1.5
    seconds: _Least = 2.0
    memory: _Factor = 1.3
    mib: _Least = 64.0
    unstable: _Factor = 10.0


@dataclass(frozen=True, slots=True)
class Entry:
    """A plan of a suite: of the zoo (``model`` with ``parameters``), or from files (``single``, and
    ``parallel`` unless that is a plan folder). ``expect``: its verdict, "" if nobody says.

    Example: ``Entry("llama3-8b dp=2", "llama3-8b", {"dp": 2}, None, None, None, "proved")``.
    """

    name: str
    model: str
    parameters: Mapping[str, Scalar]
    single: Path | None
    parallel: Path | None
    assume: Path | None
    expect: str


@dataclass(frozen=True, slots=True)
class Suite:
    """A suite as its file gives it.

    Example: ``Suite("zoo", {"timeout": 60}, (1, 2), Limits(), (entry,))``, whose two seeds are two
    runs of each entry.
    """

    name: str
    options: Mapping[str, Scalar]
    seeds: tuple[int, ...]
    limits: Limits
    entries: tuple[Entry, ...]

    def on(self, executor: str | None, address: str | None) -> Suite:
        """The same suite solved elsewhere, where somewhere is given."""
        given = {"executor": executor, "address": address}
        chosen = {name: value for name, value in given.items() if value is not None}
        return replace(self, options={**self.options, **chosen})


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    """A suite's file."""

    plans: Annotated[list[_Plan], Meta(min_length=1, description="a list of plans")]
    name: Text | None = None
    verify: dict[str, Scalar] = {}
    seeds: Annotated[tuple[Natural, ...], Meta(min_length=1)] = (1,)
    limits: Limits = Limits()


class _Plan(Struct, frozen=True, forbid_unknown_fields=True):
    name: Text | None = None
    model: Text | None = None
    parameters: dict[str, Scalar] | UnsetType = UNSET
    single: Text | None = None
    parallel: Text | None = None
    assume: Text | None = None
    expect: Verdict | None = None

    def __post_init__(self) -> None:
        if (self.model is None) == (self.single is None):
            raise ValueError("expected either a model of the zoo or files (single, parallel)")
        if self.model is not None and (self.parallel is not None or self.assume is not None):
            raise ValueError("expected parallel and assume beside single only")
        if self.single is not None and self.parameters is not UNSET:
            raise ValueError("expected parameters beside a model only")

    def entry(self, folder: Path) -> Entry:
        """With its paths as they are seen from here, and a name."""
        parameters = {} if self.parameters is UNSET else self.parameters
        settled = " ".join(f"{name}={value}" for name, value in parameters.items())
        default = f"{self.model} {settled}".strip() if self.model else self.parallel or self.single
        single, parallel, assume = (
            None if path is None else folder / path
            for path in (self.single, self.parallel, self.assume)
        )
        name = self.name or default or ""
        return Entry(
            name, self.model or "", parameters, single, parallel, assume, self.expect or ""
        )


def read(path: Path) -> Suite:
    """The suite in a YAML file; raises `InvalidInput`.

    Example: a file with two plans of one name is refused: "expected different names, found 'llama'
    twice".
    """
    file = decoded(read_yaml(path), _File, str(path))
    options = given(decoded(file.verify, VERIFY, str(path), "verify"))
    if len(set(file.seeds)) < len(file.seeds):
        raise InvalidInput(f"expected different seeds, found {list(file.seeds)}", f"{path}, seeds")
    entries = tuple(plan.entry(path.parent) for plan in file.plans)
    names = [entry.name for entry in entries]
    if twice := sorted({n for n in names if names.count(n) > 1}):
        raise InvalidInput(f"expected different names, found {twice[0]!r} twice", f"{path}, plans")
    return Suite(file.name or path.stem, options, file.seeds, file.limits, entries)

"""The user's own assumptions and expectations: one small TOML file, read strictly.

`docs/assumptions.md` describes it.  What is in force, defaults included, is printed and is part of
the result: a proof is worth what it assumes.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.assumption import Assumption, Kind
from shardproof.engine.plan.assumptions import ASSUME, expectation, statements
from shardproof.engine.plan.ir import Plan
from shardproof.engine.storage import files

Groups: TypeAlias = Literal["by rank", "as recorded"]

_GROUPS: Final[Mapping[Groups, str]] = {
    "by rank": "process groups are ordered by rank, as nnScaler's runtime makes them: a chunk is "
    "the one at the rank's position in its group",
    "as recorded": "process groups are ordered as the plan's index maps say: a chunk is the one "
    "that its output's index map names (--nnscaler-groups as-recorded)",
}


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What the user states.

    ``groups``: how members of nnScaler's process groups are ordered.  ``loss``: how the losses of
    microbatches and replicas combine, "sum" or "mean"; None: as the single-device plan reduces
    its loss over the batch.  ``expected``: parameters whose gradients must be concluded.
    ``relations``: the file that says where inputs and outputs of graphs lie (empty: none).
    """

    groups: Groups = "by rank"
    loss: str | None = None
    expected: tuple[str, ...] = ()
    relations: str = ""

    def with_groups(self, flag: str | None) -> Assumptions:
        """As ``--nnscaler-groups`` says, which comes before a file's word."""
        if flag is None:
            return self
        return replace(self, groups="as recorded" if flag == "as-recorded" else "by rank")

    @property
    def as_recorded(self) -> bool:
        return self.groups == "as recorded"

    def of_groups(self) -> Assumption:
        """The assumption in force about process groups."""
        kind: Kind = "stated" if self.as_recorded else "framework"
        where = ASSUME if self.as_recorded else ""
        return Assumption(kind, "groups", where, _GROUPS[self.groups])

    def describe(self, plan: Plan) -> tuple[Assumption, ...]:
        """Every assumption under which a verdict on ``plan`` holds, defaults and notes of the plan
        included; and what was expected."""
        found = statements(plan, chosen=self.loss is not None)
        return (*found, expectation(self.expected)) if self.expected else found

    def unmet(self, concluded: Iterable[str]) -> tuple[str, ...]:
        """The expected parameters that are not among ``concluded``."""
        known = set(concluded)
        return tuple(name for name in self.expected if name not in known)


# -- the file ------------------------------------------------------------------------------------


def read(path: Path) -> Assumptions:
    """The assumptions in ``path``; raises `InvalidInput` naming the key, and what is allowed."""
    try:
        data = tomllib.loads(files.contents(path, files.SETTINGS_BYTES).decode())
    except OSError as error:
        raise InvalidInput(f"cannot be read: {error.strerror}", str(path)) from error
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"is no TOML: {error}", str(path)) from error
    try:
        return _assumptions(data)
    except InvalidInput as error:
        raise error.within(str(path)) from None


def _assumptions(data: Mapping[str, Any]) -> Assumptions:
    _known(data, "table", _TABLES)
    fields: dict[str, Any] = {}
    for table, keys in _TABLES.items():
        values = data.get(table, {})
        if not isinstance(values, dict):
            raise InvalidInput(f"expected a table [{table}], found {values!r}")
        try:
            _known(values, "key", keys)
            for key, value in values.items():
                field, convert = keys[key]
                fields[field] = convert(key, value)
        except InvalidInput as error:
            raise error.within(f"[{table}]") from None
    return Assumptions(**fields)


def _known(values: Mapping[str, Any], what: str, allowed: Mapping[str, object]) -> None:
    for key in values:
        if key not in allowed:
            raise InvalidInput(f"unknown {what} {key!r}; allowed are {_quoted(allowed)}")


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)


def _one_of(*allowed: str) -> Callable[[str, object], str]:
    def convert(key: str, value: object) -> str:
        if not isinstance(value, str) or value not in allowed:
            raise InvalidInput(f"{key} is {value!r}; allowed are {_quoted(allowed)}")
        return value

    return convert


def _names(key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        raise InvalidInput(f"{key} is {value!r}; expected a list of parameter names")
    repeated = [name for i, name in enumerate(value) if name in value[:i]]
    if repeated:
        raise InvalidInput(f"{key} names {repeated[0]!r} twice")
    return tuple(value)


#: Table -> key -> (field of `Assumptions`, what makes its value).
_TABLES: Final[Mapping[str, Mapping[str, tuple[str, Callable[[str, object], object]]]]] = {
    "nnscaler": {"groups": ("groups", _one_of("by rank", "as recorded"))},
    "loss": {"combine": ("loss", _one_of("sum", "mean"))},
    "expect": {"parameters": ("expected", _names)},
}

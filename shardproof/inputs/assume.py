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
from shardproof.engine.plan.assumption import Assumption
from shardproof.engine.plan.assumptions import expectation, statements
from shardproof.engine.plan.ir import Plan
from shardproof.engine.storage import files
from shardproof.frontends.frontend import frontends

Groups: TypeAlias = Literal["by rank", "as recorded"]


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What the user states.

    ``groups``: how members of a plan's process groups are ordered.  ``loss``: how the losses of
    microbatches and replicas combine, "sum" or "mean"; None: as the single-device plan reduces
    its loss over the batch.  ``expected``: parameters whose gradients must be concluded.
    ``relations``: the file that says where inputs and outputs of graphs lie (empty: none).
    """

    groups: Groups = "by rank"
    loss: str | None = None
    expected: tuple[str, ...] = ()
    relations: str = ""

    def with_groups(self, flag: str | None) -> Assumptions:
        """As the command line says, which comes before a file's word."""
        if flag is None:
            return self
        return replace(self, groups="as recorded" if flag == "as-recorded" else "by rank")

    @property
    def as_recorded(self) -> bool:
        return self.groups == "as recorded"

    def of_frontends(self) -> dict[str, str]:
        """What is stated about how plans are read, by the names of frontends' options."""
        stated = {"groups": str(self.groups)} if self.as_recorded else {}
        return stated | ({"relations": self.relations} if self.relations else {})

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
    tables = {**_of_frontends(), **_TABLES}
    _known(data, "table", tables)
    fields: dict[str, Any] = {}
    for table, keys in tables.items():
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


def _of_frontends() -> dict[str, _Keys]:
    """The tables of frontends: their options that have a choice of values."""
    return {
        frontend.table: {
            key: (key, _one_of(*values)) for key, values in frontend.options.items() if values
        }
        for frontend in frontends()
        if frontend.table
    }


#: Table -> key -> (field of `Assumptions`, what makes its value).
_Keys: TypeAlias = Mapping[str, tuple[str, Callable[[str, object], object]]]
_TABLES: Final[Mapping[str, _Keys]] = {
    "loss": {"combine": ("loss", _one_of("sum", "mean"))},
    "expect": {"parameters": ("expected", _names)},
}

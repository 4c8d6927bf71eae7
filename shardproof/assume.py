"""The user's own assumptions and expectations: one small TOML file, read strictly.

`docs/assumptions.md` describes it.  What is in force, defaults included, is printed and is part of
the result: a proof is worth what it assumes.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from engine import files
from engine.errors import InvalidInput
from engine.ir import Plan

Groups: TypeAlias = Literal["by rank", "as recorded"]

_GROUPS: Final[Mapping[Groups, str]] = {
    "by rank": "process groups are ordered by rank, as nnScaler's runtime makes them: a chunk is "
    "the one at the rank's position in its group",
    "as recorded": "process groups are ordered as the plan's index maps say: a chunk is the one "
    "that its output's index map names (--assume)",
}


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What the user states.

    ``groups``: how members of nnScaler's process groups are ordered.  ``loss``: how the losses of
    microbatches and replicas combine, "sum" or "mean"; None: as the single-device plan reduces
    its loss over the batch.  ``expected``: parameters whose gradients must be concluded.
    """

    groups: Groups = "by rank"
    loss: str | None = None
    expected: tuple[str, ...] = ()

    @property
    def as_recorded(self) -> bool:
        return self.groups == "as recorded"

    def of_groups(self) -> str:
        """The assumption in force about process groups, in words."""
        return _GROUPS[self.groups]

    def describe(self, plan: Plan) -> tuple[str, ...]:
        """Every assumption under which a verdict on ``plan`` holds, defaults and notes of the plan
        included, each a sentence."""
        parameters = {s.name for s in plan.single.shards if s.trainable}
        buffers = sorted({s.name for s in plan.single.shards if not s.trainable})
        replicas = _replicas(plan)
        slices = replicas * plan.microbatches
        lines = [
            "numbers are real: rounding and casts change nothing",
            f"the {len(parameters)} parameters are equal on both sides by full name and shape; "
            "every rank holds the part that its shard says",
        ]
        if buffers:
            lines.append(f"buffers and tables are equal on both sides by name: {_some(buffers)}")
        if slices > 1:
            place = _place(replicas, plan.microbatches)
            lines.append(f"the batch is cut into {slices} slices of equal size; {place}")
        else:
            lines.append("both sides read the same batch")
        stated = " (--assume)" if self.loss is not None else ""
        lines.append(
            f"the single-device loss is the {plan.loss} of the losses of all replicas and "
            f"microbatches{stated}; the incoming gradient of each is {_share(plan, slices)}"
        )
        lines.extend(plan.notes)
        if self.expected:
            lines.append(f"expected among the conclusions (--assume): {_some(self.expected)}")
        return tuple(lines)

    def unmet(self, concluded: Iterable[str]) -> tuple[str, ...]:
        """The expected parameters that are not among ``concluded``."""
        known = set(concluded)
        return tuple(name for name in self.expected if name not in known)


def _replicas(plan: Plan) -> int:
    """Along the replica axes, as the program with the most of them has it."""
    return max(prod(p.extents.get(a, 1) for a in plan.replica_axes) for p in plan.programs)


def _share(plan: Plan, slices: int) -> str:
    if plan.loss == "mean" and slices > 1:
        return f"1/{slices} of the single-device one"
    return "the single-device one"


def _place(replicas: int, microbatches: int) -> str:
    """Which slice is read where."""
    if replicas == 1:
        return "microbatch m reads slice m"
    if microbatches == 1:
        return "replica r reads slice r"
    return f"microbatch m of replica r reads slice {microbatches}r + m"


def _some(names: Iterable[str], most: int = 4) -> str:
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


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

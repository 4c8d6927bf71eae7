"""The user's own assumptions and expectations: one small TOML file, read strictly.

`docs/assumptions.md` describes it.  What is in force, defaults included, is printed and is part of
the result: a proof is worth what it assumes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType, defstruct, field

from shardproof.engine.plan.assumption import Assumption
from shardproof.engine.plan.assumptions import expectation, statements
from shardproof.engine.plan.ir import Plan
from shardproof.engine.storage.settings import Text, decoded, given, read_toml
from shardproof.frontends.frontend import Frontend, frontends

Groups: TypeAlias = Literal["by rank", "as recorded"]


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What the user states.

    Example: ``Assumptions(loss="mean", expected=("norm.weight",))``.

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
        """Whether groups are taken in the order that the plan records."""
        return self.groups == "as recorded"

    def of_frontends(self) -> dict[str, str]:
        """What is stated about how plans are read, by the names of frontends' options."""
        options = {"groups": str(self.groups)} if self.as_recorded else {}
        return options | ({"relations": self.relations} if self.relations else {})

    @property
    def chosen(self) -> bool:
        """Whether the user states how the losses combine."""
        return self.loss is not None

    def describe(self, plan: Plan) -> tuple[Assumption, ...]:
        """Every assumption under which a verdict on ``plan`` holds, defaults and notes of the plan
        included; and what was expected."""
        assumptions = statements(plan, chosen=self.chosen)
        return (*assumptions, expectation(self.expected)) if self.expected else assumptions

    def unmet(self, concluded: Iterable[str]) -> tuple[str, ...]:
        """The expected parameters that are not among ``concluded``."""
        known = set(concluded)
        return tuple(name for name in self.expected if name not in known)


# -- the file ------------------------------------------------------------------------------------


class _Loss(Struct, frozen=True, forbid_unknown_fields=True):
    combine: Literal["sum", "mean"] | None = None


class _Expect(Struct, frozen=True, forbid_unknown_fields=True):
    parameters: Annotated[list[Text], Meta(description="a list of parameter names")] = []

    def __post_init__(self) -> None:
        repeated = [name for i, name in enumerate(self.parameters) if name in self.parameters[:i]]
        if repeated:
            raise ValueError(f"parameters names {repeated[0]!r} twice")


def read(path: Path) -> Assumptions:
    """The assumptions in ``path``; raises `InvalidInput` naming the key, and what is allowed.

    Example: a file with ``[loss]`` and ``combine = "mean"`` is ``Assumptions(loss="mean")``;
    ``combine = "max"`` is refused.
    """
    data = read_toml(path)
    named = {f.table: _options_of(f) for f in frontends() if f.table}
    tables: dict[str, type[Struct]] = {**named, "loss": _Loss, "expect": _Expect}
    file = defstruct(
        "Tables",
        [(name, kind, field(default_factory=kind)) for name, kind in tables.items()],
        frozen=True,
        forbid_unknown_fields=True,
    )
    settings = decoded(data, file, str(path))
    fields = {k: v for name in named for k, v in given(getattr(settings, name)).items()}
    loss: _Loss = getattr(settings, "loss")  # noqa: B009
    expect: _Expect = getattr(settings, "expect")  # noqa: B009
    return Assumptions(**fields, loss=loss.combine, expected=tuple(expect.parameters))


def _options_of(frontend: Frontend) -> type[Struct]:
    """The table of a frontend: its options that have a choice of values."""
    return defstruct(
        frontend.table,
        [(k, Literal[tuple(v)] | UnsetType, UNSET) for k, v in frontend.options.items() if v],
        frozen=True,
        forbid_unknown_fields=True,
    )

"""What a sweep file asks for: points, the axes they lie on, and how to verify them.

Everything is checked here, before anything runs; a mistake is an `InvalidInput` that names the
file and the key.  What a model of the zoo makes of a parameter is the zoo's to say: a point that it
refuses is a row of the table with that verdict.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta, Struct, field

from shardproof.engine.errors import InvalidInput
from shardproof.engine.storage.settings import Count, Text, decoded, given, read_yaml
from shardproof.run.options import settable

Scalar: TypeAlias = int | float | str | bool

#: The parameter that names a model, and that of a plan from files.
MODEL: Final = "model"
PLAN: Final = "plan"

#: Options of ``verify`` that a sweep may set.
VERIFY: Final = settable(
    ("solver", "timeout", "memory_limit", "memory_budget", "executor", "address", "workers",
     "seed", "shapes", "exhaustive", "cache")
)  # fmt: skip

#: What a parameter begins with that is an option of ``verify`` for its point alone.
OWN: Final = "verify."

#: Options that say where runs are made, which is no part of what they are.
_WHERE: Final = ("address",)

#: A bound on growth that says: less than proportional to the axis.
LINEAR: Final = "linear"

_Value: TypeAlias = Annotated[Scalar, Meta(description="a number or a word")]
_Items: TypeAlias = Annotated[list[_Value | dict[str, _Value]], Meta(min_length=1)]
_Bound: TypeAlias = Annotated[
    Literal["linear"] | Annotated[float, Meta(gt=0)],
    Meta(description="a positive number or linear"),
]


@dataclass(frozen=True, slots=True)
class Files:
    """A plan that is there already; ``parallel`` is None for a plan folder.

    Example: ``Files(Path("one.pkl"), Path("many.pkl"), None)``.
    """

    single: Path
    parallel: Path | None
    assume: Path | None

    def digest(self) -> list[str]:
        """What is in the files: a point whose files have changed is another point."""
        return [_digest(p) for p in (self.single, self.parallel, self.assume) if p is not None]


@dataclass(frozen=True, slots=True)
class Point:
    """One plan to verify: ``parameters`` of a model of the zoo, or ``files``; and options of
    ``verify`` for this point alone, as parameters that begin with `OWN`.

    Example: ``Point({"model": "llama", "tp": 2, "verify.seed": 3})``, printed "llama tp=2
    verify.seed=3".
    """

    parameters: Mapping[str, Scalar]
    files: Files | None = None

    def key(self, options: Mapping[str, Scalar]) -> str:
        """The identity of a measurement of this point under these options of ``verify``."""
        content = [] if self.files is None else self.files.digest()
        chosen = {name: value for name, value in options.items() if name not in _WHERE}
        text = json.dumps([dict(self.parameters), content, chosen], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    @property
    def made_of(self) -> dict[str, Scalar]:
        """The parameters of its model."""
        return {n: value for n, value in self.parameters.items() if not n.startswith(OWN)}

    def options(self, common: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """The options of ``verify`` for this point."""
        own = {n[len(OWN) :]: v for n, v in self.parameters.items() if n.startswith(OWN)}
        return {**common, **own}

    def __str__(self) -> str:
        return " ".join(
            str(value) if name in (MODEL, PLAN) else f"{name}={value}"
            for name, value in self.parameters.items()
        )


@dataclass(frozen=True, slots=True)
class Axis:
    """Points (by number) along one parameter, with its value at each.

    Example: ``Axis("tp", (1, 2, 4), (0, 1, 2))``, the first three points of the sweep.
    """

    name: str
    values: tuple[Scalar, ...]
    points: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep as its file gives it. ``points``: distinct, in the order of the file; ``repeat``:
    runs of each; ``options`` of ``verify``; ``bounds``: the growth that an axis may show, from its
    first value to its last.

    Example: ``bounds`` of ``{"layers": "linear"}`` for an axis from 2 to 126 layers allows 63 times
    the time.
    """

    name: str
    points: tuple[Point, ...]
    axes: tuple[Axis, ...]
    repeat: int
    options: Mapping[str, Scalar]
    bounds: Mapping[str, float | str]

    def on(self, executor: str | None, address: str | None) -> Sweep:
        """The same sweep with runs that solve elsewhere, where one is given."""
        given = {"executor": executor, "address": address}
        chosen = {name: value for name, value in given.items() if value is not None}
        return replace(self, options={**self.options, **chosen})


class _Around(Struct, frozen=True, forbid_unknown_fields=True):
    """Values of an axis, with what else is changed there."""

    values: _Items
    around: dict[str, _Value] = field(default_factory=dict, name="with")


class _Plan(Struct, frozen=True, forbid_unknown_fields=True):
    single: Annotated[str, Meta(min_length=1, description="a file or a plan folder")]
    parallel: Text | None = None
    assume: Text | None = None
    name: Text | None = None


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    """A sweep's file."""

    name: Text | None = None
    base: dict[str, _Value] = {}
    axes: dict[str, _Items | _Around] = {}
    grid: dict[str, Annotated[list[_Value], Meta(min_length=1)]] = {}
    points: list[dict[str, _Value]] = []
    plans: list[_Plan] = []
    repeat: Count = 1
    verify: dict[str, _Value] = {}
    bounds: dict[str, _Bound] = {}


def read(path: Path) -> Sweep:
    """The sweep in a YAML file; raises `InvalidInput`.

    Example: ``axes: {tp: [1, 2, 4]}`` with ``base: {model: llama}`` is three points on one axis.
    """
    file = decoded(read_yaml(path), _File, str(path))
    try:
        return _Reader(path.parent).sweep(file, path.stem)
    except InvalidInput as error:
        raise error.within(str(path)) from None


class _Reader:
    """Collects the ``points`` of one file, each once; paths are relative to its ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.points: list[Point] = []

    def sweep(self, file: _File, name: str) -> Sweep:
        axes = tuple(self.axis(name, given, file.base) for name, given in file.axes.items())
        if file.grid:
            for chosen in itertools.product(*file.grid.values()):
                self.add("grid", {**file.base, **dict(zip(file.grid, chosen, strict=True))})
        for number, item in enumerate(file.points):
            self.add(f"points[{number}]", {**file.base, **item})
        for number, plan in enumerate(file.plans):
            self.plan(f"plans[{number}]", plan)
        if not self.points:
            raise InvalidInput("expected points: axes, grid, points or plans")
        options = given(decoded(file.verify, VERIFY, key="verify"))
        names = [axis.name for axis in axes]
        for bounded in file.bounds:
            if bounded not in names:
                known = ", ".join(sorted(names)) or "none"
                raise InvalidInput(f"expected an axis of this sweep: {known}", f"bounds.{bounded}")
        return Sweep(file.name or name, tuple(self.points), axes, file.repeat, options, file.bounds)

    def add(self, key: str, parameters: Mapping[str, Scalar], files: Files | None = None) -> int:
        """The number of a point, which may be there already."""
        point = Point(parameters, files)
        decoded(point.options({}), VERIFY, key=f"{key}.verify")
        if files is None and not isinstance(parameters.get(MODEL), str):
            raise InvalidInput("expected a model for every point, in base or beside it", key)
        if point not in self.points:
            self.points.append(point)
        return self.points.index(point)

    def axis(self, name: str, given: _Items | _Around, base: Mapping[str, Scalar]) -> Axis:
        key = f"axes.{name}"
        if isinstance(given, _Around):
            base, given = {**base, **given.around}, given.values
        values, points = [], []
        for number, item in enumerate(given):
            here = item if isinstance(item, dict) else {name: item}
            where = f"{key}[{number}]"
            if name not in here:
                raise InvalidInput(f"expected a value of {name} among {list(here)}", where)
            values.append(here[name])
            points.append(self.add(where, {**base, **here}))
        return Axis(name, tuple(values), tuple(points))

    def plan(self, key: str, plan: _Plan) -> None:
        paths = {name: getattr(plan, name) for name in ("single", "parallel", "assume")}
        given = {
            name: self.folder / Path(text).expanduser() if text else None
            for name, text in paths.items()
        }
        for name, file in given.items():
            if file is not None and not file.exists():
                raise InvalidInput(
                    f"expected a file or a plan folder, found nothing at {file}", f"{key}.{name}"
                )
        files = Files(**given)  # type: ignore[arg-type]  # a single side is required
        self.add(key, {PLAN: plan.name or (files.parallel or files.single).name}, files)


def _digest(path: Path) -> str:
    """SHA-256 of a file, or of all files of a plan folder in the order of their names."""
    sha = hashlib.sha256()
    for part in sorted(path.iterdir()) if path.is_dir() else [path]:
        with part.open("rb") as file:
            sha.update(hashlib.file_digest(file, "sha256").digest())
    return sha.hexdigest()

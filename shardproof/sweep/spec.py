"""What a sweep file asks for: points, the axes they lie on, and how to verify them.

Everything is checked here, before anything runs; a mistake is an `InvalidInput` that names the
file and the key.  What a model of the zoo makes of a parameter is the zoo's to say: a point that it
refuses is a row of the table with that verdict.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from engine import files
from engine.errors import InvalidInput
from shardproof.options import kinds

Scalar: TypeAlias = int | float | str | bool

#: The parameter that names a model, and that of a plan from files.
MODEL: Final = "model"
PLAN: Final = "plan"

#: Options of ``verify`` that a sweep may set, and the types of their values.
OPTIONS: Final[Mapping[str, tuple[type, ...]]] = kinds(
    ("solver", "timeout", "memory_limit", "memory_budget", "executor", "address", "workers",
     "seed", "shapes", "exhaustive", "cache")
)  # fmt: skip

#: What a parameter begins with that is an option of ``verify`` for its point alone.
OWN: Final = "verify."

#: Options that say where runs are made, which is no part of what they are.
_WHERE: Final = ("address",)

#: A bound on growth that says: less than proportional to the axis.
LINEAR: Final = "linear"

_KEYS: Final = ("name", "base", "axes", "grid", "points", "plans", "repeat", "verify", "bounds")
_PLAN_KEYS: Final = ("name", "single", "parallel", "assume")


@dataclass(frozen=True, slots=True)
class Files:
    """A plan that is there already; ``parallel`` is None for a plan folder."""

    single: Path
    parallel: Path | None
    assume: Path | None

    def digest(self) -> list[str]:
        """What is in the files: a point whose files have changed is another point."""
        return [_digest(p) for p in (self.single, self.parallel, self.assume) if p is not None]


@dataclass(frozen=True, slots=True)
class Point:
    """One plan to verify: ``parameters`` of a model of the zoo, or ``files``; and options of
    ``verify`` for this point alone, as parameters that begin with `OWN`."""

    parameters: Mapping[str, Scalar]
    files: Files | None = None

    def key(self, options: Mapping[str, Scalar]) -> str:
        """The identity of a measurement of this point under these options of ``verify``."""
        held = [] if self.files is None else self.files.digest()
        asked = {name: value for name, value in options.items() if name not in _WHERE}
        text = json.dumps([dict(self.parameters), held, asked], sort_keys=True)
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
    """Points (by number) along one parameter, with its value at each."""

    name: str
    values: tuple[Scalar, ...]
    points: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sweep:
    """``points``: distinct, in the order of the file; ``repeat``: runs of each; ``options`` of
    ``verify``; ``bounds``: the growth that an axis may show, from its first value to its last."""

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


def read(path: Path) -> Sweep:
    """The sweep in a YAML file; raises `InvalidInput`."""
    import yaml

    try:
        data = yaml.safe_load(files.contents(path, files.SETTINGS_BYTES).decode())
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot be read: {error}", str(path)) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        said = " ".join(str(error).split())
        raise InvalidInput(f"expected YAML: {said}", str(path)) from error
    return _Reader(path).sweep(data)


class _Reader:
    """Checks one file; ``points`` collects what it asks for, each once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.points: list[Point] = []

    def wrong(self, key: str, message: str) -> InvalidInput:
        return InvalidInput(message, f"{self.path}: {key}" if key else str(self.path))

    def sweep(self, data: Any) -> Sweep:
        given = self.mapping("", data)
        self.known("", given, _KEYS)
        name = given.get("name", self.path.stem)
        if not isinstance(name, str) or not name:
            raise self.wrong("name", f"expected a name, found {name!r}")
        base = self.scalars("base", given.get("base", {}))
        axes = tuple(self.axes(given.get("axes", {}), base))
        for point in self.grid(given.get("grid", {}), base):
            self.add("grid", point)
        for where, point in self.listed(given.get("points", []), base):
            self.add(where, point)
        self.plans(given.get("plans", []))
        if not self.points:
            raise self.wrong("", "expected points: axes, grid, points or plans")
        repeat = given.get("repeat", 1)
        if isinstance(repeat, bool) or not isinstance(repeat, int) or repeat < 1:
            raise self.wrong("repeat", f"expected a number of at least 1, found {repeat!r}")
        return Sweep(
            name,
            tuple(self.points),
            axes,
            repeat,
            self.options(given.get("verify", {})),
            self.bounds(given.get("bounds", {}), {axis.name for axis in axes}),
        )

    def add(self, key: str, parameters: Mapping[str, Scalar], files: Files | None = None) -> int:
        """The number of a point, which may be there already."""
        point = Point(parameters, files)
        self.typed(key, point.options({}))
        if files is None and not isinstance(parameters.get(MODEL), str):
            raise self.wrong(key, "expected a model for every point, in base or beside it")
        if point not in self.points:
            self.points.append(point)
        return self.points.index(point)

    def axes(self, data: Any, base: Mapping[str, Scalar]) -> Iterator[Axis]:
        for name, given in self.mapping("axes", data).items():
            key = f"axes.{name}"
            around = dict(base)
            if isinstance(given, dict):
                self.known(key, given, ("with", "values"))
                around |= self.scalars(f"{key}.with", given.get("with", {}))
                given = given.get("values")
            values, points = [], []
            for number, item in enumerate(self.items(key, given)):
                where = f"{key}[{number}]"
                here = self.scalars(where, item if isinstance(item, dict) else {name: item})
                if name not in here:
                    raise self.wrong(where, f"expected a value of {name} among {list(here)}")
                values.append(here[name])
                points.append(self.add(where, {**around, **here}))
            yield Axis(name, tuple(values), tuple(points))

    def grid(self, data: Any, base: Mapping[str, Scalar]) -> Iterator[Mapping[str, Scalar]]:
        given = self.mapping("grid", data)
        lists = {}
        for name, values in given.items():
            items = self.items(f"grid.{name}", values)
            lists[name] = [self.scalar(f"grid.{name}[{n}]", v) for n, v in enumerate(items)]
        if lists:
            for chosen in itertools.product(*lists.values()):
                yield {**base, **dict(zip(lists, chosen, strict=True))}

    def listed(
        self, data: Any, base: Mapping[str, Scalar]
    ) -> Iterator[tuple[str, Mapping[str, Scalar]]]:
        if data:
            for number, item in enumerate(self.items("points", data)):
                where = f"points[{number}]"
                yield where, {**base, **self.scalars(where, item)}

    def plans(self, data: Any) -> None:
        for number, item in enumerate(self.items("plans", data) if data else ()):
            key = f"plans[{number}]"
            given = self.mapping(key, item)
            self.known(key, given, _PLAN_KEYS)
            paths = {name: self.file(f"{key}.{name}", given.get(name)) for name in _PLAN_KEYS[1:]}
            single, parallel = paths["single"], paths["parallel"]
            if single is None:
                raise self.wrong(f"{key}.single", "expected a file or a plan folder")
            name = given.get("name", (parallel or single).name)
            if not isinstance(name, str) or not name:
                raise self.wrong(f"{key}.name", f"expected a name, found {name!r}")
            self.add(key, {PLAN: name}, Files(single, parallel, paths["assume"]))

    def file(self, key: str, value: Any) -> Path | None:
        """A path, relative to the sweep's file."""
        if value is None:
            return None
        if not isinstance(value, str) or not value:
            raise self.wrong(key, f"expected a path, found {value!r}")
        found = self.path.parent / Path(value).expanduser()
        if not found.exists():
            raise self.wrong(key, f"expected a file or a plan folder, found nothing at {found}")
        return found

    def options(self, data: Any) -> Mapping[str, Scalar]:
        given = self.scalars("verify", data)
        self.typed("", given)
        return given

    def typed(self, key: str, given: Mapping[str, Scalar]) -> None:
        """Options of ``verify``, under ``key`` where they are of one point."""
        before = f"{key}.{OWN}" if key else OWN
        self.known(before.removesuffix("."), given, OPTIONS)
        for name, value in given.items():
            known = OPTIONS[name]
            if not isinstance(value, known) or (isinstance(value, bool) and bool not in known):
                wanted = " or ".join(kind.__name__ for kind in known)
                raise self.wrong(f"{before}{name}", f"expected {wanted}, found {value!r}")

    def bounds(self, data: Any, axes: set[str]) -> Mapping[str, float | str]:
        found: dict[str, float | str] = {}
        for name, value in self.mapping("bounds", data).items():
            key = f"bounds.{name}"
            if name not in axes:
                raise self.wrong(key, f"expected an axis of this sweep: {_named(sorted(axes))}")
            if value == LINEAR:
                found[name] = LINEAR
            elif isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
                raise self.wrong(key, f"expected a positive number or {LINEAR}, found {value!r}")
            else:
                found[name] = float(value)
        return found

    # -- shapes of values --------------------------------------------------------------------------

    def mapping(self, key: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
            raise self.wrong(key, f"expected keys and values, found {_short(value)}")
        return value

    def items(self, key: str, value: Any) -> list[Any]:
        if not isinstance(value, list) or not value:
            raise self.wrong(key, f"expected a list of at least one value, found {_short(value)}")
        return value

    def scalars(self, key: str, value: Any) -> dict[str, Scalar]:
        given = self.mapping(key, value)
        return {name: self.scalar(f"{key}.{name}", item) for name, item in given.items()}

    def scalar(self, key: str, value: Any) -> Scalar:
        if not isinstance(value, (int, float, str, bool)):
            raise self.wrong(key, f"expected a number or a word, found {_short(value)}")
        return value

    def known(self, key: str, given: Mapping[str, Any], names: Iterable[str]) -> None:
        for name in given:
            if name not in names:
                where = f"{key}.{name}" if key else name
                raise self.wrong(where, f"not a key here; known are {_named(names)}")


def _named(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _digest(path: Path) -> str:
    """SHA-256 of a file, or of all files of a plan folder in the order of their names."""
    held = hashlib.sha256()
    for part in sorted(path.iterdir()) if path.is_dir() else [path]:
        with part.open("rb") as file:
            held.update(hashlib.file_digest(file, "sha256").digest())
    return held.hexdigest()

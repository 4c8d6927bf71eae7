"""What a suite asks for: plans, with which settings, over which seeds, and what counts as worse.

Everything is checked before anything runs; a mistake is an `InvalidInput` that names file and key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from engine import files
from engine.errors import InvalidInput
from shardproof.options import kinds
from shardproof.result import EXIT_CODES

Scalar: TypeAlias = int | float | str | bool

_KEYS: Final = ("name", "verify", "seeds", "limits", "plans")
_ENTRY: Final = ("name", "model", "parameters", "single", "parallel", "assume", "expect")

#: Options of ``verify`` that a suite may set, with their types.
OPTIONS: Final[Mapping[str, tuple[type, ...]]] = kinds(
    ("solver", "timeout", "memory_limit", "executor", "address", "workers", "exhaustive", "cache")
)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a night may be worse by: factors, and the least differences (s, MiB) that count.

    ``unstable``: the factor between two seeds' seconds for one template.
    """

    time: float = 1.5
    seconds: float = 2.0
    memory: float = 1.3
    mib: float = 64.0
    unstable: float = 10.0


@dataclass(frozen=True, slots=True)
class Entry:
    """A plan of a suite: of the zoo (``model`` with ``parameters``), or from files (``single``, and
    ``parallel`` unless that is a plan folder). ``expect``: its verdict, "" if nobody says."""

    name: str
    model: str
    parameters: Mapping[str, Scalar]
    single: Path | None
    parallel: Path | None
    assume: Path | None
    expect: str


@dataclass(frozen=True, slots=True)
class Suite:
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


def read(path: Path) -> Suite:
    """The suite in a YAML file; raises `InvalidInput`."""
    import yaml

    try:
        data = yaml.safe_load(files.contents(path, files.SETTINGS_BYTES).decode())
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot be read: {error}", str(path)) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidInput(f"expected YAML: {' '.join(str(error).split())}", str(path)) from error
    return _Reader(path).suite(data)


class _Reader:
    def __init__(self, path: Path) -> None:
        self.path = path

    def fail(self, key: str, message: str) -> InvalidInput:
        return InvalidInput(message, f"{self.path}, {key}" if key else str(self.path))

    def mapping(self, data: Any, key: str, known: tuple[str, ...] | None) -> dict[str, Any]:
        if not isinstance(data, dict) or not all(isinstance(name, str) for name in data):
            raise self.fail(key, f"expected keys with values, found {data!r}")
        unknown = [name for name in data if known is not None and name not in known]
        if unknown:
            raise self.fail(key, f"expected some of {', '.join(known or ())}, found {unknown[0]!r}")
        return data

    def text(self, data: Any, key: str) -> str:
        if not isinstance(data, str) or not data:
            raise self.fail(key, f"expected a text, found {data!r}")
        return data

    def suite(self, data: Any) -> Suite:
        top = self.mapping(data, "", _KEYS)
        name = self.text(top.get("name", self.path.stem), "name")
        seeds = top.get("seeds", [1])
        if not isinstance(seeds, list) or not seeds or not all(type(s) is int for s in seeds):
            raise self.fail("seeds", f"expected a list of numbers, found {seeds!r}")
        if len(set(seeds)) < len(seeds) or min(seeds) < 0:
            raise self.fail("seeds", f"expected different seeds from 0 on, found {seeds!r}")
        plans = top.get("plans")
        if not isinstance(plans, list) or not plans:
            raise self.fail("plans", f"expected a list of plans, found {plans!r}")
        entries = tuple(self.entry(one, f"plans[{n}]") for n, one in enumerate(plans))
        names = [entry.name for entry in entries]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise self.fail("plans", f"expected different names, found {twice[0]!r} twice")
        return Suite(
            name, self.options(top.get("verify", {})), tuple(seeds),
            self.limits(top.get("limits", {})), entries,
        )  # fmt: skip

    def options(self, data: Any) -> dict[str, Scalar]:
        found = self.mapping(data, "verify", tuple(OPTIONS))
        for name, value in found.items():
            if type(value) not in OPTIONS[name]:
                wanted = " or ".join(kind.__name__ for kind in OPTIONS[name])
                raise self.fail(f"verify.{name}", f"expected {wanted}, found {value!r}")
        return found

    def limits(self, data: Any) -> Limits:
        found = self.mapping(data, "limits", tuple(Limits.__slots__))
        for name, value in found.items():
            least = 0.0 if name in ("seconds", "mib") else 1.0
            if type(value) not in (int, float) or not value >= least:
                raise self.fail(f"limits.{name}", f"expected at least {least:g}, found {value!r}")
        return Limits(**{name: float(value) for name, value in found.items()})

    def entry(self, data: Any, key: str) -> Entry:
        found = self.mapping(data, key, _ENTRY)
        if ("model" in found) == ("single" in found):
            raise self.fail(key, "expected either a model of the zoo or files (single, parallel)")
        if "model" in found and ("parallel" in found or "assume" in found):
            raise self.fail(key, "expected parallel and assume beside single only")
        if "single" in found and "parameters" in found:
            raise self.fail(key, "expected parameters beside a model only")
        files = {
            name: self.path.parent / self.text(found[name], f"{key}.{name}")
            for name in ("single", "parallel", "assume")
            if name in found
        }
        parameters = self.mapping(found.get("parameters", {}), f"{key}.parameters", None)
        for name, value in parameters.items():
            if not isinstance(value, (int, float, str, bool)):
                raise self.fail(f"{key}.parameters.{name}", f"expected a value, found {value!r}")
        model = self.text(found["model"], f"{key}.model") if "model" in found else ""
        settled = " ".join(f"{name}={value}" for name, value in parameters.items())
        default = f"{model} {settled}".strip() or str(found.get("parallel", found.get("single")))
        expect = found.get("expect", "")
        if expect not in ("", *EXIT_CODES):
            raise self.fail(f"{key}.expect", f"expected one of {', '.join(EXIT_CODES)}, "
                            f"found {expect!r}")  # fmt: skip
        return Entry(
            self.text(found.get("name", default), f"{key}.name"), model, parameters,
            files.get("single"), files.get("parallel"), files.get("assume"), expect,
        )  # fmt: skip

"""What a zoo plan is made from: a model's hyperparameters (data under ``configs/models``) and how
it is divided over ranks; both checked before anything is built."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from fractions import Fraction
from pathlib import Path
from typing import ClassVar, TypeVar, get_type_hints

from engine.errors import InvalidInput

FOLDER = Path(__file__).resolve().parent.parent.parent / "configs" / "models"


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Hyperparameters that every architecture has, by the names of the configuration file; an
    architecture extends it.  Integers (but for fields that `MAY_BE_ZERO` names) are at least 1,
    fractions positive."""

    name: str
    layers: int
    hidden: int
    vocabulary: int
    sequence: int
    norm_eps: Fraction

    #: Integer fields for which 0 has a meaning.
    MAY_BE_ZERO: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int):
                continue
            least = 0 if field.name in self.MAY_BE_ZERO else 1
            if value < least:
                raise InvalidInput(f"{field.name} is {value}, expected at least {least}", self.name)

    def divided(self, parallel: Parallel) -> Iterator[tuple[str, str]]:
        """(field, degree of `Parallel`) for every field that the degree has to divide."""
        yield "vocabulary", "tp"


@dataclass(frozen=True, slots=True)
class Parallel:
    """Degrees: data, tensor and pipeline parallel; microbatches per replica and their size."""

    dp: int
    tp: int
    pp: int
    microbatches: int
    sequence_parallel: bool = False
    microbatch_size: int = 1

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "sequence_parallel" and (
                isinstance(value, bool) or not isinstance(value, int) or value < 1
            ):
                raise InvalidInput(f"{field.name} is {value!r}, expected an integer of at least 1")

    def __str__(self) -> str:
        text = f"dp{self.dp} tp{self.tp} pp{self.pp} mb{self.microbatches}"
        if self.microbatch_size > 1:
            text += f"x{self.microbatch_size}"
        return text + (" sp" if self.sequence_parallel else "")

    def check(self, config: ModelConfig) -> None:
        """Raise `InvalidInput` unless ``config`` can be divided this way."""
        if self.pp > config.layers:
            raise InvalidInput(
                f"{config.layers} layers cannot fill {self.pp} pipeline stages", config.name
            )
        divided = list(config.divided(self))
        if self.sequence_parallel:
            divided.append(("sequence", "tp"))
        for key, degree in divided:
            value, ranks = getattr(config, key), getattr(self, degree)
            if value % ranks:
                raise InvalidInput(
                    f"{key} {value} is not divisible by {degree} {ranks}", config.name
                )


C = TypeVar("C", bound=ModelConfig)


def read_config(kind: type[C], path: Path, overrides: Mapping[str, object]) -> C:
    """The configuration of an architecture in a file, with some of its values replaced; raises
    `InvalidInput`."""
    data = read_data(path)
    for key, value in overrides.items():
        if key not in data or key == "architecture":
            known = ", ".join(sorted(set(data) - {"architecture"}))
            raise InvalidInput(f"{key} is no setting; known are {known}", path.stem)
        data[key] = value
    values: dict[str, object] = {"name": path.stem}
    types = get_type_hints(kind)
    for field in fields(kind):
        if field.name == "name":
            continue
        if field.name not in data:
            if field.default is MISSING:
                raise InvalidInput(f"{field.name} is missing", str(path))
            continue
        value = data.pop(field.name)
        values[field.name] = _typed(field.name, value, types[field.name], path.stem)
    data.pop("architecture", None)
    if data:
        raise InvalidInput(f"{', '.join(sorted(data))}: not known to the architecture", str(path))
    return kind(**values)  # type: ignore[arg-type]


def read_data(path: Path) -> dict[str, object]:
    """A configuration file as it is; raises `InvalidInput`."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidInput(f"not a readable configuration: {error}", str(path)) from error


def _typed(key: str, value: object, kind: object, where: str) -> object:
    """A value of the file as a field of type int, bool, str or Fraction (a decimal in quotes)."""
    if kind is Fraction:
        try:
            exact = Fraction(value) if isinstance(value, (str, int, Fraction)) else None
        except (ValueError, ZeroDivisionError):
            exact = None
        if exact is None or exact <= 0:
            raise InvalidInput(f"{key} is {value!r}, expected a positive decimal in quotes", where)
        return exact
    expected = {int: "an integer", bool: "true or false", str: "a text"}
    if not isinstance(kind, type) or type(value) is not kind:
        what = expected.get(kind, str(kind))  # type: ignore[call-overload]
        raise InvalidInput(f"{key} is {value!r}, expected {what}", where)
    return value

"""What a zoo plan is made from: a model's hyperparameters (data under ``configs/models``) and how
it is divided over ranks (named ones under ``configs/parallel``); both checked before anything is
built."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from fractions import Fraction
from pathlib import Path
from typing import ClassVar, TypeVar, get_type_hints

from shardproof.engine.errors import InvalidInput
from shardproof.engine.storage import files

_CONFIGS = Path(__file__).resolve().parent.parent.parent / "configs"
MODEL_FOLDER = _CONFIGS / "models"
PARALLEL_FOLDER = _CONFIGS / "parallel"


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

    @property
    def has_experts(self) -> bool:
        """Whether there are experts to divide over ``ep``."""
        return False

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


#: How the losses of tokens combine, microbatches and replicas included; see `docs/zoo.md`.
LOSSES = ("token-mean", "mean", "sum")


@dataclass(frozen=True, slots=True)
class Parallel:
    """How a model is divided over ranks.

    ``dp``, ``tp``, ``pp``, ``ep``, ``cp``: data, tensor, pipeline, expert and context parallel
    degrees, ``ep`` a part of ``dp``; ``microbatches`` per replica and their size in sequences;
    ``zero``: the stage of ZeRO (0: none); ``virtual_stages``: parts of the model that a pipeline
    rank holds; ``loss``: one of `LOSSES`.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    microbatches: int = 1
    sequence_parallel: bool = False
    microbatch_size: int = 1
    ep: int = 1
    cp: int = 1
    zero: int = 0
    virtual_stages: int = 1
    loss: str = "token-mean"

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "sequence_parallel":
                if not isinstance(value, bool):
                    raise InvalidInput(f"{field.name} is {value!r}, expected true or false")
            elif field.name == "loss":
                if value not in LOSSES:
                    raise InvalidInput(f"loss is {value!r}, expected one of {', '.join(LOSSES)}")
            else:
                least = 0 if field.name == "zero" else 1
                if isinstance(value, bool) or not isinstance(value, int) or value < least:
                    raise InvalidInput(
                        f"{field.name} is {value!r}, expected an integer of at least {least}"
                    )
        self._combinations()

    def _combinations(self) -> None:
        """Raise `InvalidInput` for degrees that do not go together."""
        if self.zero > 3:
            raise InvalidInput(f"zero is {self.zero}, expected 0 (none), 1, 2 or 3")
        if self.zero and self.dp * self.cp == 1:
            raise InvalidInput(
                f"zero {self.zero} divides over replicas, but dp and cp are 1: expected dp or cp "
                "of at least 2"
            )
        if self.dp % self.ep:
            raise InvalidInput(
                f"dp {self.dp} is not divisible by ep {self.ep}: experts are divided over "
                "data-parallel ranks"
            )
        if self.virtual_stages > 1 and self.pp == 1:
            raise InvalidInput(
                f"virtual_stages is {self.virtual_stages} with pp 1, expected pp of at least 2"
            )
        if self.virtual_stages > 1 and self.microbatches % self.pp:
            raise InvalidInput(
                f"with virtual stages microbatches go through in rounds of pp: expected a multiple "
                f"of {self.pp} microbatches, found {self.microbatches}"
            )

    def __str__(self) -> str:
        text = f"dp{self.dp} tp{self.tp} pp{self.pp} mb{self.microbatches}"
        if self.microbatch_size > 1:
            text += f"x{self.microbatch_size}"
        for name, value, usual in (
            ("cp", self.cp, 1),
            ("ep", self.ep, 1),
            ("zero", self.zero, 0),
            ("vp", self.virtual_stages, 1),
        ):
            text += f" {name}{value}" if value != usual else ""
        text += " sp" if self.sequence_parallel else ""
        return text if self.loss == "token-mean" else f"{text} loss-{self.loss}"

    @property
    def chunks(self) -> int:
        """Into how many parts the layers are divided."""
        return self.pp * self.virtual_stages

    def check(self, config: ModelConfig) -> None:
        """Raise `InvalidInput` unless ``config`` can be divided this way."""
        if self.chunks > config.layers:
            stages = f"{self.pp} pipeline stages"
            if self.virtual_stages > 1:
                stages += f" of {self.virtual_stages} parts each"
            raise InvalidInput(f"{config.layers} layers cannot fill {stages}", config.name)
        for key, degree in config.divided(self):
            value, ranks = getattr(config, key), getattr(self, degree)
            if value % ranks:
                raise InvalidInput(
                    f"{key} {value} is not divisible by {degree} {ranks}", config.name
                )
        outside = self.cp * (self.tp if self.sequence_parallel else 1)
        if config.sequence % outside:
            names = [n for n, used in (("cp", self.cp > 1), ("tp", self.sequence_parallel)) if used]
            degrees = " times ".join(f"{n} {getattr(self, n)}" for n in names)
            raise InvalidInput(
                f"sequence {config.sequence} is not divisible by {degrees}", config.name
            )
        if self.ep > 1 and not config.has_experts:
            raise InvalidInput(
                f"ep is {self.ep}, but this architecture has no experts: expected ep 1",
                config.name,
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
        values[field.name] = typed(field.name, value, types[field.name], path.stem)
    data.pop("architecture", None)
    if data:
        raise InvalidInput(f"{', '.join(sorted(data))}: not known to the architecture", str(path))
    return kind(**values)  # type: ignore[arg-type]


def read_data(path: Path) -> dict[str, object]:
    """A configuration file as it is; raises `InvalidInput`."""
    try:
        return tomllib.loads(files.contents(path, files.SETTINGS_BYTES).decode())
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInput(f"not a readable configuration: {error}", str(path)) from error


def typed(key: str, value: object, kind: object, where: str) -> object:
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


def read_parallel(path: Path) -> dict[str, object]:
    """The settings of `Parallel` that a file gives; raises `InvalidInput`."""
    data = read_data(path)
    types = get_type_hints(Parallel)
    for key, value in data.items():
        if key not in types:
            known = ", ".join(field.name for field in fields(Parallel))
            raise InvalidInput(f"{key} is no setting; known are {known}", str(path))
        typed(key, value, types[key], str(path))
    return data

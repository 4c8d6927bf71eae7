"""What a zoo plan is made from: a model's hyperparameters (data under ``configs/models``) and how
it is divided over ranks; both checked before anything is built."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from pathlib import Path

from engine.errors import InvalidInput

FOLDER = Path(__file__).resolve().parent.parent.parent / "configs" / "models"


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """Hyperparameters of a Llama model, by the names of the configuration file."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocabulary: int
    sequence: int
    norm_eps: Fraction
    rope_theta: int

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int) and value < 1:
                raise InvalidInput(f"{field.name} is {value}, expected at least 1", self.name)
        if self.hidden % (2 * self.heads):
            raise InvalidInput(
                f"hidden {self.hidden} is not divisible into {self.heads} heads of even size",
                self.name,
            )
        if self.heads % self.kv_heads:
            raise InvalidInput(
                f"{self.heads} heads are not divisible by {self.kv_heads} kv_heads", self.name
            )


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

    def check(self, config: LlamaConfig) -> None:
        """Raise `InvalidInput` unless ``config`` can be divided this way."""
        if self.pp > config.layers:
            raise InvalidInput(
                f"{config.layers} layers cannot fill {self.pp} pipeline stages", config.name
            )
        divided = ["heads", "kv_heads", "ffn", "vocabulary"]
        if self.sequence_parallel:
            divided.append("sequence")
        for key in divided:
            value = getattr(config, key)
            if value % self.tp:
                raise InvalidInput(f"{key} {value} is not divisible by tp {self.tp}", config.name)


def read_llama(path: Path, overrides: Mapping[str, object]) -> LlamaConfig:
    """The configuration in a file, with some of its values replaced; raises `InvalidInput`."""
    data = read_data(path)
    for key, value in overrides.items():
        if key not in data or key == "architecture":
            known = ", ".join(sorted(set(data) - {"architecture"}))
            raise InvalidInput(f"{key} is no setting; known are {known}", path.stem)
        data[key] = value
    values: dict[str, object] = {"name": path.stem}
    for field in fields(LlamaConfig):
        if field.name == "name":
            continue
        if field.name not in data:
            raise InvalidInput(f"{field.name} is missing", str(path))
        values[field.name] = _typed(field.name, data.pop(field.name), path.stem)
    data.pop("architecture", None)
    if data:
        raise InvalidInput(f"{', '.join(sorted(data))}: not known to the architecture", str(path))
    return LlamaConfig(**values)  # type: ignore[arg-type]


def read_data(path: Path) -> dict[str, object]:
    """A configuration file as it is; raises `InvalidInput`."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidInput(f"not a readable configuration: {error}", str(path)) from error


def _typed(key: str, value: object, where: str) -> int | Fraction:
    if key == "norm_eps":
        try:
            eps = Fraction(value) if isinstance(value, (str, int, Fraction)) else None
        except ValueError:
            eps = None
        if eps is None or eps <= 0:
            raise InvalidInput(
                f"norm_eps is {value!r}, expected a positive decimal in quotes", where
            )
        return eps
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(f"{key} is {value!r}, expected an integer", where)
    return value

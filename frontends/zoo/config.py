"""What a zoo plan is made from: a model's hyperparameters (data under ``configs/models``) and how
it is divided over ranks (named ones under ``configs/parallel``); both checked before anything is
built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Literal, TypeVar

from msgspec import Struct

from shardproof.engine.errors import InvalidInput
from shardproof.engine.storage.settings import Count, Text, decoded, read_toml

_CONFIGS = Path(__file__).resolve().parent.parent.parent / "configs"
MODEL_FOLDER = _CONFIGS / "models"
PARALLEL_FOLDER = _CONFIGS / "parallel"
#: A plan lists a call for each microbatch of each part of the layers, and the operators of each
#: layer: more than so many of either do not end.
MOST_LISTED = 1_000_000


class ModelConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Hyperparameters that every architecture has, by the names of the configuration file; an
    architecture extends it.  What a field may be, its type says: `Count` is at least 1.

    Example: of Llama-3 8B, ``layers`` 32, ``hidden`` 4096, ``vocabulary`` 128256, ``sequence`` 8192
    and ``norm_eps`` 1/100000.
    """

    name: Text
    layers: Count
    hidden: Count
    vocabulary: Count
    sequence: Count
    norm_eps: Fraction

    @property
    def has_experts(self) -> bool:
        """Whether there are experts to divide over ``ep``."""
        return False

    def divided(self, parallel: Parallel) -> Iterator[tuple[str, str]]:
        """(field, degree of `Parallel`) for every field that the degree has to divide."""
        yield "vocabulary", "tp"


class Parallel(Struct, frozen=True, forbid_unknown_fields=True):
    """How a model is divided over ranks.

    Example: ``Parallel(dp=2, tp=4, pp=2, microbatches=8)`` prints as "dp2 tp4 pp2 mb8": 16 ranks.

    ``dp``, ``tp``, ``pp``, ``ep``, ``cp``: data, tensor, pipeline, expert and context parallel
    degrees, ``ep`` a part of ``dp``; ``microbatches`` per replica and their size in sequences;
    ``zero``: the stage of ZeRO (0: none); ``virtual_stages``: parts of the model that a pipeline
    rank holds; ``loss``: how the losses of tokens combine,
    microbatches and replicas included; see `docs/zoo.md`.
    """

    dp: Count = 1
    tp: Count = 1
    pp: Count = 1
    microbatches: Count = 1
    sequence_parallel: bool = False
    microbatch_size: Count = 1
    ep: Count = 1
    cp: Count = 1
    zero: Literal[0, 1, 2, 3] = 0
    virtual_stages: Count = 1
    loss: Literal["token-mean", "mean", "sum"] = "token-mean"

    def _combinations(self) -> None:
        """Raise `InvalidInput` for degrees that do not go together."""
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
        self._combinations()
        if self.chunks > config.layers:
            stages = f"{self.pp} pipeline stages"
            if self.virtual_stages > 1:
                stages += f" of {self.virtual_stages} parts each"
            raise InvalidInput(f"{config.layers} layers cannot fill {stages}", config.name)
        if max(config.layers, self.chunks * self.microbatches) > MOST_LISTED:
            raise InvalidInput(
                f"{config.layers} layers in {self.chunks} parts with {self.microbatches} "
                f"microbatches each: a plan lists at most {MOST_LISTED} of both",
                config.name,
            )
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
    `InvalidInput`.

    Example: ``configs/models/llama3-8b.toml`` as `LlamaConfig` with ``{"layers": 2}`` has two
    layers.
    """
    given: dict[str, object] = {"name": path.stem, **read_data(path)}
    given.pop("architecture", None)
    return decoded({**given, **overrides}, kind, path.stem if overrides else str(path))


def read_data(path: Path) -> dict[str, object]:
    """A configuration file as it is; raises `InvalidInput`.

    Example: of ``configs/models/llama3-8b.toml``, ``architecture`` "llama" among others.
    """
    return read_toml(path)


def read_parallel(path: Path) -> dict[str, object]:
    """The settings of `Parallel` that a file gives; raises `InvalidInput`.

    Example: of ``configs/parallel/d1.toml``, dp 16, tp 4, pp 2 and 16 microbatches.
    """
    data = read_toml(path)
    decoded(data, Parallel, str(path))
    return data

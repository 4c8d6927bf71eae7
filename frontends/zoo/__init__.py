"""The model zoo: true models, laid out over ranks the way training systems do.

`build` makes the plan of a model in `MODELS` (their hyperparameters are data, ``configs/models``).
`builder` is public: with `ProgramBuilder` and its bodies, a page of Python writes a plan of one's
own; shapes and gradients are derived from the operators' declarations.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.ir import Plan
from shardproof.engine.storage.settings import decoded
from shardproof.engine.system.names import near
from shardproof.frontends.builder.builder import BodyBuilder, ProgramBuilder, along
from shardproof.frontends.zoo import sides
from shardproof.frontends.zoo.config import (
    MODEL_FOLDER,
    PARALLEL_FOLDER,
    ModelConfig,
    Parallel,
    read_config,
    read_data,
    read_parallel,
)
from shardproof.frontends.zoo.deepseek import DeepSeek, DeepSeekConfig
from shardproof.frontends.zoo.gpt import Gpt, GptConfig
from shardproof.frontends.zoo.llama import Llama, LlamaConfig
from shardproof.frontends.zoo.mixtral import Mixtral, MixtralConfig
from shardproof.frontends.zoo.transformer import Model

__all__ = [
    "ARCHITECTURES",
    "MODELS",
    "PARALLELS",
    "BodyBuilder",
    "ProgramBuilder",
    "along",
    "build",
    "parallelization",
]

#: What ``architecture = "..."`` in a configuration file names: its settings, and who writes it.
ARCHITECTURES: dict[str, tuple[type[ModelConfig], type[Model[Any]]]] = {
    "deepseek": (DeepSeekConfig, DeepSeek),
    "gpt": (GptConfig, Gpt),
    "llama": (LlamaConfig, Llama),
    "mixtral": (MixtralConfig, Mixtral),
}

#: Name -> configuration file of every model, and of every named way to divide one over ranks.
MODELS: dict[str, Path] = {path.stem: path for path in sorted(MODEL_FOLDER.glob("*.toml"))}
PARALLELS: dict[str, Path] = {path.stem: path for path in sorted(PARALLEL_FOLDER.glob("*.toml"))}


def build(name: str, *, layers: int | None = None, **settings: Any) -> Plan:
    """The plan of model ``name`` (or of the configuration file at that path): the single device,
    and ``pp`` stages of ``dp`` replicas of ``tp`` ranks with ``microbatches`` each.

    Example: ``build("llama3-8b", layers=2, tp=2, sequence=128)`` is the plan "llama3-8b dp1 tp2 pp1
    mb1"; ``tp=3`` is refused: "heads 32 is not divisible by tp 3".

    ``settings`` are those of `frontends.zoo.config.Parallel`; any other (and ``layers``) replaces
    a hyperparameter of the model (``sequence=128``).  Raises `InvalidInput` for an unknown model or
    setting, or a model that cannot be divided this way.
    """
    path = find(name)
    degrees = Parallel.__struct_fields__
    parallel = decoded({k: v for k, v in settings.items() if k in degrees}, Parallel)
    architecture = read_data(path).get("architecture")
    if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise InvalidInput(
            f"architecture {architecture!r} is not known; known are {known}", str(path)
        )
    kind, model = ARCHITECTURES[architecture]
    changed = {k: v for k, v in settings.items() if k not in degrees}
    config = read_config(kind, path, changed if layers is None else {**changed, "layers": layers})
    parallel.check(config)
    return sides.build(model, config, parallel)


def find(name: str, among: Mapping[str, Path] = MODELS, what: str = "model") -> Path:
    """The file of a model (or of a parallelization): a known one by its name, any by its path.

    Example: "llama3-8b" is ``configs/models/llama3-8b.toml``; "llama3-9b" is refused with near
    names.
    """
    if name in among:
        return among[name]
    path = Path(name)
    if path.suffix == ".toml":
        return path
    hint = near(name, among)
    raise InvalidInput(
        f"no {what} {name}{hint}; known are {', '.join(among)}, or the path of a .toml"
    )


def parallelization(name: str) -> dict[str, Any]:
    """The settings of a named parallelization, or of the file at a path; raises `InvalidInput`.

    Example: "d1" is dp 16, tp 4, pp 2 and 16 microbatches.
    """
    return read_parallel(find(name, PARALLELS, "parallelization"))

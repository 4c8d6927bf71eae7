"""The model zoo: true models, laid out over ranks the way training systems do.

`build` makes the plan of a model in `MODELS` (their hyperparameters are data, ``configs/models``).
`builder` is public: with `ProgramBuilder` and its bodies, a page of Python writes a plan of one's
own; shapes and gradients are derived from the operators' declarations.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.errors import InvalidInput
from engine.ir import Plan
from frontends.zoo import transformer
from frontends.zoo.builder import BodyBuilder, ProgramBuilder, along
from frontends.zoo.config import FOLDER, ModelConfig, Parallel, read_config, read_data
from frontends.zoo.llama import Llama, LlamaConfig
from frontends.zoo.transformer import Model

__all__ = ["ARCHITECTURES", "MODELS", "BodyBuilder", "ProgramBuilder", "along", "build"]

#: What ``architecture = "..."`` in a configuration file names: its settings, and who writes it.
ARCHITECTURES: dict[str, tuple[type[ModelConfig], type[Model[Any]]]] = {
    "llama": (LlamaConfig, Llama),
}

#: Name -> configuration file of every model.
MODELS: dict[str, Path] = {path.stem: path for path in sorted(FOLDER.glob("*.toml"))}


def build(
    name: str,
    *,
    dp: int,
    tp: int,
    pp: int,
    microbatches: int,
    layers: int | None = None,
    sequence_parallel: bool = False,
    microbatch_size: int = 1,
    **overrides: int | str,
) -> Plan:
    """The plan of model ``name``: single-device, and ``dp`` replicas of ``pp`` stages of ``tp``
    ranks with ``microbatches`` each.

    ``layers`` and ``overrides`` replace hyperparameters of the model (``sequence=128``).  Raises
    `InvalidInput` for an unknown model, or one that cannot be divided this way.
    """
    path = find(name)
    parallel = Parallel(dp, tp, pp, microbatches, sequence_parallel, microbatch_size)
    architecture = read_data(path).get("architecture")
    if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise InvalidInput(
            f"architecture {architecture!r} is not known; known are {known}", str(path)
        )
    kind, model = ARCHITECTURES[architecture]
    changed = {**overrides, **({} if layers is None else {"layers": layers})}
    config = read_config(kind, path, changed)
    parallel.check(config)
    return transformer.build(model, config, parallel)


def find(name: str) -> Path:
    """The configuration file of a model: one of the zoo's by its name, or any by its path."""
    if name in MODELS:
        return MODELS[name]
    path = Path(name)
    if path.suffix == ".toml":
        return path
    raise InvalidInput(
        f"no model {name}; known are {', '.join(MODELS)}, or the path of a .toml file"
    )

"""The model zoo: true models, laid out over ranks the way training systems do.

`build` makes the plan of a model in `MODELS` (their hyperparameters are data, ``configs/models``).
`builder` is public: with `ProgramBuilder` and its bodies, a page of Python writes a plan of one's
own; shapes and gradients are derived from the operators' declarations.
"""

from __future__ import annotations

from pathlib import Path

from engine.errors import InvalidInput
from engine.ir import Plan
from frontends.zoo import llama
from frontends.zoo.builder import BodyBuilder, ProgramBuilder, along
from frontends.zoo.config import FOLDER, Parallel, read_data, read_llama

__all__ = ["MODELS", "BodyBuilder", "ProgramBuilder", "along", "build"]

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
    path = MODELS.get(name)
    if path is None:
        raise InvalidInput(f"no model {name}; known are {', '.join(MODELS)}")
    parallel = Parallel(dp, tp, pp, microbatches, sequence_parallel, microbatch_size)
    architecture = read_data(path).get("architecture")
    if architecture != "llama":
        raise InvalidInput(f"architecture {architecture!r} is not known", str(path))
    changed = {**overrides, **({} if layers is None else {"layers": layers})}
    config = read_llama(path, changed)
    parallel.check(config)
    return llama.build(config, parallel)

"""What adapters of training stacks have in common: both sides of a step, and which packages there
are.

An adapter (`shardproof.torch.transformers`, ...) makes `Both` of a model's configuration; `verify`
decides about it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeAlias

import torch

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.torch.job import Job
from shardproof.frontends.torch.stated import TensorSpec
from shardproof.run.result import Result

#: Makes the optimizer of a model's parameters.
MakeOptimizer: TypeAlias = Callable[[Any], torch.optim.Optimizer]


@dataclass(frozen=True, slots=True)
class Both:
    """Both sides of a training step, as `shardproof.torch.verify` takes them.

    Example: ``Both(single, parallel, 4, {"ids": ids, "labels": labels}).verify(timeout=60.0)``.
    """

    single: Callable[[Job], None]
    parallel: Callable[[Job], None]
    world_size: int
    batch: Mapping[str, TensorSpec]

    def verify(self, **options: Any) -> Result:
        """The verdict; ``options`` are those of `shardproof.torch.verify`."""
        from shardproof.torch import verify

        return verify(
            self.single, self.parallel, world_size=self.world_size, batch=self.batch, **options
        )


def needed(package: str, module: str, name: str, made_for: str) -> Any:
    """``name`` of a stack's ``module``; raises `InvalidInput` naming what is not there, and the
    version that the adapter was made for.

    Example: "megatron-core 0.12 has no megatron.core.models.gpt.GPTModel; the adapter was made for
    megatron-core 0.16".
    """
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError):
        version = installed(package)
        has = (
            f"{package} {version} has no {module}.{name}" if version else f"{package} is not there"
        )
        raise InvalidInput(f"{has}; the adapter was made for {package} {made_for}") from None


def stand_in(owner: Any, name: str, by: Any, package: str, made_for: str) -> Any:
    """Put ``by`` in place of a stack's function, in this process, for good; gives the function
    that was there, and raises `InvalidInput` where there was none.

    Example: ``stand_in(torch.cuda, "synchronize", nothing, "megatron-core", "0.16")`` gives
    ``torch.cuda.synchronize`` back.
    """
    before = getattr(owner, name, None)
    if before is None:
        raise InvalidInput(
            f"{package} {installed(package)} has no {owner.__name__}.{name}, which capture "
            f"replaces; the adapter was made for {package} {made_for}"
        )
    setattr(owner, name, by)
    return before


def installed(package: str) -> str:
    """The version of an installed package (empty: there is none).

    Example: "0.16.0" for ``megatron-core``, "" where it is not installed.
    """
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def positive(**sizes: object) -> None:
    """Refuse a number of ranks (or of anything) that is none.

    Example: ``positive(tp=0)`` raises "tp is 0, expected a positive number".
    """
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise InvalidInput(f"{name} is {size!r}, expected a positive number")


def rows(batch: int, replicas: int) -> int:
    """Rows of the batch for each replica; raises `InvalidInput` where they are not alike.

    Example: 2 for a batch of 4 rows on 2 replicas; 4 rows on 3 replicas are refused.
    """
    if batch < 1 or batch % replicas:
        raise InvalidInput(f"a batch of {batch} rows on {replicas} replicas")
    return batch // replicas


def tokens(batch: int, length: int, classes: int) -> dict[str, TensorSpec]:
    """``ids`` and ``labels`` of a language model, in [0, classes).

    Example: for 4 rows of 8 tokens and 512 classes both are
    ``TensorSpec((4, 8), "int64", 0, 512)``.
    """
    spec = TensorSpec((batch, length), "int64", 0, classes)
    return {"ids": spec, "labels": spec}

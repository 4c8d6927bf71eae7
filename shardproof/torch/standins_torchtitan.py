"""What stands in for GPU functions of torchtitan while its step is recorded on a CPU.

Made for torchtitan 0.3.  What stands for computation is printed with the verdict.  A version that
lacks a function named here is an error that names it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from shardproof.engine.errors import InvalidInput
from shardproof.torch.stacks import needed, stand_in

MADE_FOR = "0.3"

_of = partial(needed, "torchtitan", made_for=MADE_FOR)


def install() -> None:
    """Replace, in this process, for good: meshes are made of CPU devices where there is no GPU.

    Example: ``torchtitan.distributed.parallel_dims.device_type`` is "cpu" then.
    """
    for module in ("torchtitan.distributed.parallel_dims", "torchtitan.tools.utils"):
        without_kernels()
        _of(module, "device_type")
        stand_in(import_module(module), "device_type", "cpu", "torchtitan", MADE_FOR)


def attention(config: Any, note: Callable[[str], None]) -> None:
    """Torchtitan's own attention for the compiled ones in a model's configuration, which are made
    for GPUs: of a row that is one document, they are the same.

    Example: the inner attention of every layer of Llama 3 becomes a
    ``ScaledDotProductAttention.Config``.
    """
    home = "torchtitan.models.common.attention"
    by = _of(home, "ScaledDotProductAttention").Config
    for name in ("FlexAttention", "VarlenAttention"):
        for _, _, parent, field in list(config.traverse(_of(home, name).Config)):
            if isinstance(parent, list):
                parent[field] = by()
            else:
                setattr(parent, field, by())
            note(
                f"stand-in: torchtitan's ScaledDotProductAttention, causal, for its {name}: every "
                "row of the batch is one document, attended to from its start"
            )


#: Torchtitan's kernels for GPUs: expert parallelism without synchronisation calls them.
KERNELS = "torchtitan.distributed.minimal_async_ep.kernels"


def without_kernels() -> None:
    """Let torchtitan be imported where Triton is not installed: its kernels for GPUs are functions
    that refuse to be called.

    Example: ``without_kernels()``, then ``import torchtitan.models.llama3``.
    """
    if find_spec("triton") is None:
        sys.modules.setdefault(KERNELS, _Kernels(KERNELS))


class _Kernels(ModuleType):
    """A module of kernels that cannot run here."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def refused(*_: Any, **__: Any) -> None:
            raise InvalidInput(f"torchtitan's kernel {name} needs Triton and a GPU")

        return refused

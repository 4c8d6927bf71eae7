"""What stands in for GPU functions of megatron-core while its step is recorded on a CPU.

Made for megatron-core 0.16 without Transformer Engine and Apex.  What stands for computation,
communication or randomness is printed with the verdict.  A version that lacks a function named here
is an error that names it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from typing import Any

import torch

from shardproof.torch.stacks import needed, stand_in

MADE_FOR = "0.16"


def _of(module: str, name: str) -> Any:
    return needed("megatron-core", f"megatron.core.{module}", name, MADE_FOR)


def install(note: Callable[[str], None]) -> None:
    """Replace, in this process, for good; ``note`` is told of what stands for computation.

    Example: "stand-in: torch's norm, its parameters marked as sequence parallel, for the norm of
    Transformer Engine or Apex".
    """
    put = partial(stand_in, package="megatron-core", made_for=MADE_FOR)
    # Buffers, masks and messages are made on "the current device".
    put(torch.cuda, "current_device", _cpu)
    # Schedules and groups wait for the device: nothing is computed on one.
    put(torch.cuda, "synchronize", _nothing)
    # Counts of tokens are moved to the device.
    put(torch.Tensor, "cuda", _same)
    # The state of a GPU's random numbers, from which nothing is drawn: dropout is refused.
    # Recomputation puts it aside and back.
    random = import_module("megatron.core.tensor_parallel.random")
    put(random, "_get_cuda_rng_state", _nothing)
    put(random, "_set_cuda_rng_state", _nothing)
    put(
        _of("tensor_parallel.random", "CudaRNGStatesTracker"),
        "fork",
        lambda *_, **__: nullcontext(),
    )
    _norms(_of("transformer.torch_norm", "WrappedTorchNorm"), note)
    torch.compiler.set_stance("force_eager")
    note("stand-in: Megatron's functions under torch.compile run eagerly")


def experts(note: Callable[[str], None]) -> None:
    """Name what Megatron's router asks for, which is no name without Transformer Engine: None, as
    with an early version of it.

    Example: the router multiplies by ``torch.mm``.
    """
    home = import_module("megatron.core.transformer.moe.moe_utils")
    if not _of("transformer.moe.moe_utils", "HAVE_TE"):
        home.te_general_gemm = None  # type: ignore[attr-defined]
        note("stand-in: torch.mm in the router, for the product of Transformer Engine")


def optimizers(note: Callable[[str], None]) -> None:
    """Replace what Megatron's optimizers read of tensors, and how they tell types on a GPU.

    Example: the norm of all gradients is a tensor, as it is added up, and no number of Python.
    """
    home = import_module("megatron.core.optimizer.optimizer")
    put = partial(stand_in, package="megatron-core", made_for=MADE_FOR)
    # Types of parameters are told by names of tensors on a GPU.
    kinds = torch.Tensor.type

    def kind(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        kept = kinds(x, *args, **kwargs)
        return kept.replace("torch.", "torch.cuda.") if isinstance(kept, str) else kept

    put(torch.Tensor, "type", kind)

    def gathered(objects: list[Any], own: Any, *_: Any, **__: Any) -> None:
        note(
            "stand-in: every rank has the groups of parameters, and their order, that this rank "
            "has (Megatron's all_gather_object)"
        )
        objects[:] = [own] * len(objects)

    put(torch.distributed, "all_gather_object", gathered)

    def norm(
        grads_for_norm: Any, norm_type: float = 2, grad_stats_parallel_group: Any = None
    ) -> Any:
        """As Megatron adds it up, but for the last step, ``total_norm.item() ** 0.5``."""
        total = torch.zeros(1)
        for gradient in grads_for_norm:
            total = total + (gradient * gradient).sum()
        torch.distributed.all_reduce(total, group=grad_stats_parallel_group)
        return total**0.5

    def clipped(
        parameters: Any, max_norm: float, total_norm: Any, use_decoupled_grad: bool = False
    ) -> None:
        """Megatron scales ``if clip_coeff < 1.0``, with a number of Python."""
        note(
            "stand-in: Megatron's clipping scales by min(1, max_norm / (norm + 1e-6)), where it "
            "asks whether that is less than 1"
        )
        scale = (max_norm / (total_norm + 1.0e-6)).clamp(max=1.0)
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(scale)

    put(home, "get_grad_norm_fp32", norm)
    put(home, "clip_grad_by_total_norm_fp32", clipped)


def _norms(wrapped: Any, note: Callable[[str], None]) -> None:
    """Torch's norms are not made for sequence parallelism; the norms of Apex and of Transformer
    Engine are: they mark their parameters, whose gradients are reduced then."""
    original = wrapped.__new__

    def made(cls: Any, config: Any, *args: Any, **kwargs: Any) -> Any:
        if not config.sequence_parallel:
            return original(cls, config, *args, **kwargs)
        norm = original(cls, _Sequential(config), *args, **kwargs)
        for parameter in norm.parameters():
            parameter.sequence_parallel = True
        note(
            "stand-in: torch's norm, its parameters marked as sequence parallel, for the norm of "
            "Transformer Engine or Apex"
        )
        return norm

    wrapped.__new__ = made


class _Sequential:
    """A configuration, but for sequence parallelism."""

    sequence_parallel = False

    def __init__(self, config: Any) -> None:
        self._config = config

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)


def _cpu(*_: Any) -> torch.device:
    return torch.device("cpu")


def _nothing(*_: Any, **__: Any) -> None:
    """There is no device to wait for."""


def _same(x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return x

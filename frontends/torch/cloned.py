"""Deep copies of tensors while a step is recorded: as PyTorch makes them of tensors with memory.

A recorded tensor has no memory of its own, and PyTorch would copy all that it carries instead, the
recording itself too: what is computed with the copy would not be what is computed with its memory.
"""

from __future__ import annotations

import copy
from math import prod
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor


def install() -> None:
    """Let ``copy.deepcopy`` of recorded tensors clone their memory, in this process, for good.

    Example: the two layers of ``nn.TransformerEncoder(layer, 2)``, which it copies from ``layer``,
    have parameters of their own.
    """
    FakeTensor.__deepcopy__ = _deepcopy  # type: ignore[method-assign]


def _deepcopy(self: torch.Tensor, memo: dict[Any, Any]) -> torch.Tensor:
    """What ``Parameter.__deepcopy__`` and ``Tensor.__deepcopy__`` of torch 2.13 give."""
    if id(self) not in memo:
        own = _parameter if isinstance(self, torch.nn.Parameter) else _tensor
        with torch.no_grad():
            memo[id(self)] = own(self, memo)
    known: torch.Tensor = memo[id(self)]
    return known


def _parameter(x: torch.Tensor, memo: dict[Any, Any]) -> torch.Tensor:
    """Its numbers alone: neither its gradient nor attributes."""
    whole = x.data.clone(memory_format=torch.preserve_format)
    return torch.nn.Parameter(whole, x.requires_grad)


def _tensor(x: torch.Tensor, memo: dict[Any, Any]) -> torch.Tensor:
    """All of its memory, once for all tensors that share it, its gradient and attributes."""
    if not x.is_leaf:
        raise RuntimeError("only tensors that are leaves of the graph can be copied deeply")
    storages = memo.setdefault("torch", {})
    key = x.untyped_storage()._cdata
    if key not in storages:
        size = x.untyped_storage().nbytes() // x.element_size()
        storages[key] = x.detach().as_strided((size,), (1,), 0).clone()
    memory = storages[key]
    if memory.dtype != x.dtype:
        raise RuntimeError("tensors of two element types share memory: copy them one by one")
    whole = x.is_contiguous() and prod(x.shape) == memory.numel()
    result: torch.Tensor = (
        memory.view(x.shape)
        if whole
        else memory.as_strided(x.shape, x.stride(), x.storage_offset())
    )
    result.requires_grad_(x.requires_grad)
    if x.grad is not None:
        result.grad = copy.deepcopy(x.grad, memo)
    for name in x.__dict__.keys() - result.__dict__.keys():
        setattr(result, name, copy.deepcopy(x.__dict__[name], memo))
    return result

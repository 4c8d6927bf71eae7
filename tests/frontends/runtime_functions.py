"""What the functions that plans name compute, by PyTorch itself and by nnScaler's documentation."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from frontends.nnscaler.cells import ForwardOp
from frontends.nnscaler.inert import DType
from frontends.nnscaler.records import Tensor as Part

REAL = torch.float64


def _embedding(ids: Tensor, weight: Tensor, padding_idx: Any, start: int, stop: int) -> Tensor:
    outside = (ids < start) | (ids >= stop)
    rows = functional.embedding(torch.where(outside, 0, ids - start), weight, padding_idx)
    return torch.where(outside[..., None], torch.zeros((), dtype=REAL), rows)


def _causal(ids: Tensor, h: Tensor) -> Tensor:
    n = ids.shape[1]
    return torch.full((n, n), -torch.inf, dtype=REAL).triu(1)[None, None]


def _rotary(q: Tensor, k: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    def turned(x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * frequencies[None, :, None]).flatten(3)

    return turned(q), turned(k)


OWN: dict[str, Callable[..., Any]] = {
    "identity": lambda x: x,
    "multiref": lambda x, times: x if times == 1 else (x,) * times,
    "to": lambda x, dtype_or_device: x.to(dtype_or_device),
    "accum": lambda *xs: torch.stack(xs).sum(0),
    "embedding": _embedding,
    "layer_norm": lambda x, weight, bias, normalized_shape, eps=1e-5: functional.layer_norm(
        x, normalized_shape, weight, bias, eps
    ),
    "cat": lambda *xs, dim=0: torch.cat(xs, dim),
    "stack": lambda *xs, dim=0: torch.stack(xs, dim),
    "einsum": lambda *xs, equation: torch.einsum(equation, *xs),
    "fullslice": lambda x, *slicers: x[tuple(slicers)],
    "index_select": lambda x, index, dim: torch.index_select(x, dim, index),
}
MODEL: dict[str, Callable[..., Any]] = {
    "create_mask": _causal,
    "apply_mask": lambda x, mask: x + mask,
    "apply_rotary_emb": _rotary,
}


def function(signature: str) -> Callable[..., Any]:
    """The function that a signature names."""
    module, _, name = signature.rpartition(".")
    if module == "nnscaler.runtime.function":
        return OWN[name]
    if signature.startswith("torch."):
        found: Any = torch
        for part in signature.split(".")[1:]:
            found = getattr(found, part)
        return found  # type: ignore[no-any-return]
    if signature.startswith("einops."):
        return getattr(importlib.import_module("einops"), name)  # type: ignore[no-any-return]
    return MODEL[name]


def real(value: Any) -> Any:
    """A constant of a plan for PyTorch: all floating types are one here."""
    if isinstance(value, DType):
        kind = getattr(torch, value.name)
        return REAL if kind.is_floating_point else kind
    if isinstance(value, tuple):
        return tuple(map(real, value))
    return value


def call(op: ForwardOp, read: Callable[[Part], Tensor]) -> list[Tensor]:
    """The results of an operator, in the shapes that the plan records for scalars."""

    def value(x: Any) -> Any:
        if isinstance(x, Part):
            return read(x)
        if isinstance(x, tuple):
            return tuple(map(value, x))
        return real(x)

    kwargs = {k: value(v) for k, v in op.kwargs.items()}
    if isinstance(kwargs.get("training"), str):
        kwargs["training"] = True
    found = function(op.signature)(*map(value, op.inputs), **kwargs)
    results = list(found) if isinstance(found, (tuple, list)) else [found]
    parts = [x for x in op.outputs if isinstance(x, Part)]
    return [
        y.reshape(x.shape) if y.dim() == 0 and x.shape == (1,) else y
        for x, y in zip(parts, results, strict=True)
    ]

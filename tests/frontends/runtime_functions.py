"""What the functions that plans name compute, by PyTorch itself and by nnScaler's documentation."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from shardproof.frontends.nnscaler.cells import ForwardOp
from shardproof.frontends.nnscaler.records import ObjectRef
from shardproof.frontends.nnscaler.records import Tensor as Part
from shardproof.frontends.untrusted.inert import DType

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


def _dropout(
    x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, *, keeps: Tensor
) -> Tensor:
    """`torch.nn.functional.dropout` where it keeps what it keeps."""
    return x * keeps / (1 - p) if training and p else x


def _set(x: Tensor, *given: Any) -> Tensor:
    """`setitem`: into the memory of ``x``."""
    *places, value = given
    x[places[0] if isinstance(places[0], tuple) else tuple(places)] = value
    return x


def _conv2d(x: Tensor, weight: Tensor, bias: Any, *, padding: Any, **kwargs: Any) -> Tensor:
    """``padding``: before and behind the rows, before and behind the columns."""
    around = [*padding[2:], *padding[:2]]
    return functional.conv2d(functional.pad(x, around), weight, bias, **kwargs)


def _conv3d(x: Tensor, weight: Tensor, bias: Any, *, padding: Any, **kwargs: Any) -> Tensor:
    """``padding``: at both ends of each dimension."""
    return functional.conv3d(x, weight, bias, padding=padding, **kwargs)


def _batch_norm(
    x: Tensor, weight: Any, bias: Any, mean: Any, square: Any, _batches: Any, *,
    eps: float = 1e-5, **_kwargs: Any,
) -> Tensor:  # fmt: skip
    """``wrap_batchnorm2d_func`` where it does not train."""
    running = [s if s is None else s.detach() for s in (mean, square)]
    return functional.batch_norm(x, *running, weight, bias, mean is None, 0.0, eps)


def _instance_norm(
    x: Tensor, weight: Any, bias: Any, mean: Any, square: Any, *, momentum: float = 0.1,
    eps: float = 1e-5, training: bool = True, track_running_stats: bool = False, **_kwargs: Any,
) -> Tensor:  # fmt: skip
    """``wrap_instancenorm2d_func``; what it writes is left as it is."""
    four = x[None] if x.dim() == 3 else x
    statistics = [s if s is None else s.detach().clone() for s in (mean, square)]
    own = training or not track_running_stats
    made = functional.instance_norm(four, *statistics, weight, bias, own, momentum, eps)
    return made[0] if x.dim() == 3 else made


OWN: dict[str, Callable[..., Any]] = {
    "wrap_batchnorm2d_func": _batch_norm,
    "wrap_instancenorm2d_func": _instance_norm,
    "setitem": _set,
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
    "nndropout": lambda x, p=0.5, inplace=False: functional.dropout(x, p, True, inplace),
    "zeros": lambda size, dtype=None, requires_grad=False: torch.zeros(size, dtype=REAL),
    "ones": lambda size, dtype=None, requires_grad=False: torch.ones(size, dtype=REAL),
    "full": lambda size, fill_value, dtype=None, requires_grad=False: torch.full(
        size, float(fill_value), dtype=REAL
    ),
    "arange": lambda start, end, step, dtype, requires_grad=False: torch.arange(
        start, end, step
    ).to(dtype or REAL),
    "linspace": lambda start, end, steps, dtype=None, requires_grad=False: torch.linspace(
        start, end, steps, dtype=REAL
    ),
    "tensor": lambda data, dtype=None, requires_grad=False, pin_memory=False: torch.tensor(
        data, dtype=dtype or REAL
    ),
    "conv2d": _conv2d,
    "conv3d": _conv3d,
    "index_select": lambda x, index, dim: torch.index_select(x, dim, index),
}


def _gate(
    x: Tensor,
    weight: Tensor,
    bias: Any = None,
    *,
    n_groups: int,
    topk_groups: int,
    topk: int,
    route_scale: float,
    score_func: str,
) -> tuple[Tensor, Tensor]:
    """Of one group, without a bias."""
    scores = functional.linear(x, weight)
    scores = scores.softmax(-1) if score_func == "softmax" else scores.sigmoid()
    weights, indices = scores.topk(topk, -1)
    if score_func == "sigmoid":
        weights = weights / weights.sum(-1, keepdim=True)
    return weights * route_scale, indices


def _experts(
    x: Tensor,
    indices: Tensor,
    weights: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    *,
    n_routed_experts: int,
    local_expert_start: int,
    local_expert_end: int,
) -> Tensor:
    """Token by token."""
    rows = []
    for token, chosen, shares in zip(x, indices.tolist(), weights, strict=True):
        row = 0 * token + 0 * (gate.sum() + up.sum() + down.sum() + shares.sum())
        for number, share in zip(chosen, shares, strict=True):
            if local_expert_start <= number < local_expert_end:
                e = number - local_expert_start
                hidden = functional.silu(gate[e] @ token) * (up[e] @ token)
                row = row + share * (down[e] @ hidden)
        rows.append(row)
    return torch.stack(rows)


def _mixed(x: Tensor, w: Tensor, eps: float) -> Tensor:
    return (
        torch.tanh(x / (x.square().mean(-1, keepdim=True) + eps).sqrt() @ w) + x.sum(-1)[..., None]
    )


def _expert(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return functional.silu(x @ up.T) @ down.T


def _paired(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return (x * w).softmax(-1), torch.sin(x).flip(-1) + w


def _headed(x: Tensor, rows: Tensor, out: Tensor, h: int, mask: bool) -> Tensor:
    """Attention of whole heads along dimension 0, its projections with it."""
    length, count, _ = x.shape
    q, k, v = (x @ rows.T).reshape(length, count, h, -1, 3).permute(4, 1, 2, 0, 3)
    scores = q @ k.transpose(-1, -2)
    scores = scores + torch.full((length, length), -30.0, dtype=REAL).triu(1) if mask else scores
    found = scores.softmax(-1) @ v
    return found.permute(2, 0, 1, 3).reshape(length, count, -1) @ out.T


MODEL: dict[str, Callable[..., Any]] = {
    "mixed": _mixed,
    "expert": _expert,
    "paired": _paired,
    "headed": _headed,
    "gate_fw": _gate,
    "nnscaler_moe_gmm": _experts,
    "create_mask": _causal,
    "apply_mask": lambda x, mask: x + mask,
    "apply_rotary_emb": _rotary,
}


def patterned(name: str) -> Callable[..., Any]:
    """einops' functions, by looking up every element: which one of ``x`` each of the result is."""

    def groups(text: str) -> list[list[str]]:
        words = re.sub(r"([()])", r" \1 ", text).split()
        found: list[list[str]] = []
        inside = False
        for word in words:
            if word in "()":
                inside = word == "("
                found += [[]] if inside else []
            elif inside:
                found[-1].append(word)
            else:
                found.append([word])
        return found

    def run(x: Tensor, pattern: str, reduction: str = "sum", **sizes: int) -> Tensor:
        left, right = (groups(side) for side in pattern.split("->"))
        spare = [f"_{i}" for i in range(x.dim() - len(left) + 1)]
        left = [g for h in left for g in ([[s] for s in spare] if h == ["..."] else [h])]
        right = [g for h in right for g in ([[s] for s in spare] if h == ["..."] else [h])]
        right = [[a for b in h for a in (spare if b == "..." else [b])] for h in right]
        for size, group in zip(x.shape, left, strict=True):
            known = math.prod(sizes.get(a, 1) for a in group)
            for axis in group:
                if axis not in sizes and axis != "1":
                    sizes[axis] = size // known
        sizes |= {a: int(a) for group in right for a in group if a.isdigit()}
        sizes["1"] = 1
        kept = [a for group in right for a in group]
        gone = [a for group in left for a in group if a not in kept and a != "1"]
        grids = torch.meshgrid(*(torch.arange(sizes[a]) for a in [*kept, *gone]), indexing="ij")
        where = dict(zip([*kept, *gone], grids, strict=True))
        flat: Any = torch.zeros((), dtype=torch.int64)
        for group in left:
            for axis in group:
                flat = flat * sizes[axis] + (where[axis] if axis != "1" else 0)
        taken = x.reshape(-1)[flat].reshape(*(math.prod(sizes[a] for a in g) for g in right), -1)
        return taken.mean(-1) if reduction == "mean" else taken.sum(-1)

    return run


def function(signature: str) -> Callable[..., Any]:
    """The function that a signature names."""
    module, _, name = signature.rpartition(".")
    if module in ("nnscaler.runtime.function", "nnscaler.graph.function.wrapnn"):
        return OWN[name]
    if signature in ("torch.Tensor.float", "torch.Tensor.half", "torch.Tensor.bfloat16"):
        return lambda x: x.to(REAL)
    if signature == "torch.Tensor.view":
        # Strides are no part of a plan.
        return lambda x, *given, size=(): x.reshape(*given, *size)
    if signature in ("torch.fill_", "torch.masked_fill_"):
        signature = signature.replace("torch.", "torch.Tensor.")
    if signature.startswith("torch."):
        found: Any = torch
        for part in signature.split(".")[1:]:
            found = getattr(found, part)
        return found  # type: ignore[no-any-return]
    if signature == "_operator.setitem":
        return _set
    if module == "_operator":
        return getattr(operator, name)  # type: ignore[no-any-return]
    if signature.startswith("einops."):
        return patterned(name)
    return MODEL[name]


def real(value: Any) -> Any:
    """A constant of a plan for PyTorch: all floating types are one here."""
    if isinstance(value, DType):
        kind = getattr(torch, value.name)
        return REAL if kind.is_floating_point else kind
    if value in ("torch.FloatTensor", "torch.HalfTensor", "torch.BFloat16Tensor"):
        return "torch.DoubleTensor"
    if isinstance(value, tuple):
        return tuple(map(real, value))
    return value


def call(
    op: ForwardOp,
    read: Callable[[Part], Tensor],
    *,
    strict: bool = True,
    mask: Callable[[Part], Tensor] | None = None,
    known: Mapping[int, Any] | None = None,
) -> list[Any]:
    """The results of an operator, in the shapes that the plan records for scalars; ``strict``: as
    many as the plan records; ``mask``: what a dropout draws for its result; ``known``: what is no
    tensor, by number."""

    def value(x: Any) -> Any:
        if isinstance(x, Part):
            return read(x)
        if isinstance(x, ObjectRef):
            return (known or {})[x.id]
        if isinstance(x, tuple):
            return tuple(map(value, x))
        return real(x)

    kwargs = {k: value(v) for k, v in op.kwargs.items()}
    if isinstance(kwargs.get("training"), str):
        kwargs["training"] = True
    if op.signature.endswith("dropout") and mask is not None:
        kwargs["keeps"] = mask(*(x for x in op.outputs if isinstance(x, Part)))
        found = _dropout(*map(value, op.inputs), **kwargs)
    else:
        found = function(op.signature)(*map(value, op.inputs), **kwargs)
    if strict and isinstance(op.outputs[0], ObjectRef):
        return [found]
    results = list(found) if isinstance(found, (tuple, list)) else [found]
    if not strict:
        return results
    parts = [x for x in op.outputs if isinstance(x, Part)]
    return [
        y.reshape(x.shape) if y.dim() == 0 and x.shape == (1,) else y
        for x, y in zip(parts, results, strict=True)
    ]

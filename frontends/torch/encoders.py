"""PyTorch's encoder layers and self-attention where nothing is differentiated (a teacher, a
reference model, evaluation): plain operators for the one kernel that PyTorch calls there."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

import torch
import torch.nn.functional as F
from torch.distributed.tensor import DTensor

from shardproof.frontends.torch.standins import replace

#: What is printed where a step calls one of these kernels.
PLAIN = (
    "stand-in: nn.TransformerEncoderLayer and nn.MultiheadAttention without gradients: plain "
    "operators for the kernel of PyTorch's fast path"
)


def install(note: Callable[[str], None]) -> None:
    """Let a step call these layers, in this process, for good; ``note`` is told of it.

    Example: ``copy.deepcopy(policy).eval()`` under ``torch.no_grad()``, of an encoder.
    """
    whole, attention = torch._transformer_encoder_layer_fwd, torch._native_multi_head_attention

    def encoded(src: torch.Tensor, *args: Any) -> torch.Tensor:
        if not _is_plain(src, *args):
            return whole(src, *args)
        note(PLAIN)
        return _encoded(src, *args)

    def attended(query: torch.Tensor, *args: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        if not _is_plain(query, *args):
            return attention(query, *args)
        note(PLAIN)
        return _attended(query, *args[2:])

    replace(torch, "_transformer_encoder_layer_fwd", encoded)
    replace(torch, "_native_multi_head_attention", attended)


def _is_plain(*args: Any) -> bool:
    """Whether the kernel takes these tensors as they are: it refuses DTensors, and has rules of
    its own for nested ones."""
    tensors = [x for x in args if isinstance(x, torch.Tensor)]
    return not any(x.is_nested or isinstance(x, DTensor) for x in tensors)


def _encoded(
    src: torch.Tensor,
    width: int,
    heads: int,
    weight: torch.Tensor,
    bias: torch.Tensor,
    out_weight: torch.Tensor,
    out_bias: torch.Tensor,
    is_gelu: bool,
    norm_first: bool,
    eps: float,
    *rest: Any,
) -> torch.Tensor:
    """A layer of src [rows, positions, width]; ``rest``: weights and biases of both norms and of
    both products, then a mask and its kind."""
    first, second, up, down = rest[:2], rest[2:4], rest[4:6], rest[6:8]

    def norm(x: torch.Tensor, own: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return F.layer_norm(x, (width,), own[0], own[1], eps)

    x = norm(src, first) if norm_first else src
    own = (weight, bias, out_weight, out_bias, rest[8], False, False, rest[9])
    x = src + _attended(x, width, heads, *own)[0]
    if not norm_first:
        x = norm(x, first)
    h = F.linear(norm(x, second) if norm_first else x, *up)
    x = x + F.linear(F.gelu(h) if is_gelu else F.relu(h), *down)
    return x if norm_first else norm(x, second)


def _attended(
    x: torch.Tensor,
    width: int,
    heads: int,
    weight: torch.Tensor,
    bias: torch.Tensor,
    out_weight: torch.Tensor,
    out_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average: bool = True,
    kind: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attention of x [rows, positions, width] to itself, and its weights; ``kind``: the mask hides
    keys for each query (0), keys of each row (1), or for each row, head and query (2).  What it has
    but 0 hides, as the kernel has it."""
    rows, positions, _ = x.shape
    parts = F.linear(x, weight, bias).view(rows, positions, 3, heads, width // heads)
    q, k, v = parts.permute(2, 0, 3, 1, 4)
    scores = (q / sqrt(width // heads)) @ k.transpose(-2, -1)
    if mask is not None:
        hidden = mask if mask.dtype == torch.bool else mask != 0
        hidden = hidden[:, None, None] if kind == 1 else hidden
        scores = scores.masked_fill(hidden, float("-inf"))
    weights = scores.softmax(-1)
    y = F.linear(
        (weights @ v).transpose(1, 2).reshape(rows, positions, width), out_weight, out_bias
    )
    if not need_weights:
        return y, None
    return y, weights.mean(1) if average else weights

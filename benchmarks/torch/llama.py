"""A Llama as its authors and transformers write it: grouped queries, rotary positions, SwiGLU.

`Llama` is the single-device model; `tensor_parallel` cuts it with DTensor as transformers' own plan
does (columns and rows, logits gathered), `fully_sharded` shards every layer over a second axis.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)


class Config(NamedTuple):
    width: int = 64
    inner: int = 128
    layers: int = 2
    heads: int = 8
    kv_heads: int = 4
    vocabulary: int = 256
    base: float = 500000.0
    epsilon: float = 1e-5


class Norm(nn.Module):
    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        variance = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + self.epsilon))


class Rotary(nn.Module):
    """Cosines and sines of all positions."""

    def __init__(self, size: int, base: float) -> None:
        super().__init__()
        frequencies = 1.0 / (base ** (torch.arange(0, size, 2).float() / size))
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(self, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        angles = torch.outer(torch.arange(length).float(), self.frequencies)
        both = torch.cat((angles, angles), dim=-1)
        return both.cos(), both.sin()


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.size = c.width // c.heads
        self.q_proj = nn.Linear(c.width, c.heads * self.size, bias=False)
        self.k_proj = nn.Linear(c.width, c.kv_heads * self.size, bias=False)
        self.v_proj = nn.Linear(c.width, c.kv_heads * self.size, bias=False)
        self.o_proj = nn.Linear(c.heads * self.size, c.width, bias=False)
        self.times = c.heads // c.kv_heads

    def heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(*x.shape[:-1], -1, self.size).transpose(1, 2)

    def repeated(self, x: torch.Tensor) -> torch.Tensor:
        b, heads, length, size = x.shape
        spread = x[:, :, None].expand(b, heads, self.times, length, size)
        return spread.reshape(b, heads * self.times, length, size)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        q = turned(self.heads(self.q_proj(x)), cos, sin)
        k = self.repeated(turned(self.heads(self.k_proj(x)), cos, sin))
        v = self.repeated(self.heads(self.v_proj(x)))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(*x.shape[:-1], -1))


class MLP(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(c.width, c.inner, bias=False)
        self.up_proj = nn.Linear(c.width, c.inner, bias=False)
        self.down_proj = nn.Linear(c.inner, c.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.input_layernorm = Norm(c.width, c.epsilon)
        self.self_attn = Attention(c)
        self.post_attention_layernorm = Norm(c.width, c.epsilon)
        self.mlp = MLP(c)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocabulary, c.width)
        self.rotary = Rotary(c.width // c.heads, c.base)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.layers))
        self.norm = Norm(c.width, c.epsilon)
        self.lm_head = nn.Linear(c.width, c.vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(tokens)
        cos, sin = self.rotary(tokens.shape[1])
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.lm_head(self.norm(x))


def loss_of(model: nn.Module, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    logits = model(tokens)
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def tensor_parallel(model: Llama, mesh: DeviceMesh) -> Llama:
    """Attention and MLP cut by columns and rows, the head by columns with logits gathered."""
    plan: dict[str, ParallelStyle] = {
        "self_attn.q_proj": ColwiseParallel(),
        "self_attn.k_proj": ColwiseParallel(),
        "self_attn.v_proj": ColwiseParallel(),
        "self_attn.o_proj": RowwiseParallel(),
        "mlp.gate_proj": ColwiseParallel(),
        "mlp.up_proj": ColwiseParallel(),
        "mlp.down_proj": RowwiseParallel(),
    }
    for layer in model.layers:
        parallelize_module(layer, mesh, plan)
    parallelize_module(model, mesh, {"lm_head": ColwiseParallel(output_layouts=Replicate())})
    return model


def fully_sharded(model: Llama, mesh: DeviceMesh) -> Llama:
    """Every layer, then the rest, sharded over a mesh dimension."""
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model

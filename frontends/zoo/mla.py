"""Multi-head latent attention: keys, values and queries from low-rank latents.

The latents and the rotary key, which all heads share, are computed outside of the tensor-parallel
region; the projections from latents to heads are divided over it by heads.

A head's query and key have a part without position and a rotary one; a score is the sum of the two
parts' products, which is the product of the concatenated ones.  Accordingly the projections that
checkpoints keep fused are held as the parts that they consist of: ``wq_b`` (or ``wq``), ``wkv_a``
and ``wkv_b`` each as two parameters, ``..._nope`` and ``..._rope``, or ``wk_b`` and ``wv_b``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from shardproof.frontends.zoo.layout import CP
from shardproof.frontends.zoo.moe import branch
from shardproof.frontends.zoo.transformer import Model


@dataclass(frozen=True, slots=True)
class Latent:
    """Sizes: ranks of the latents (``q_rank`` 0: queries come from the hidden state), and of one
    head the part without position, the rotary part, and the value.

    Example: ``Latent(128, 1536, 512, 128, 64, 128)`` of DeepSeek V3: keys of 128 + 64 from a latent
    of 512.
    """

    heads: int
    q_rank: int
    kv_rank: int
    nope: int
    rope: int
    value: int


def latent_attention(model: Model[Any], x: int, path: str, sizes: Latent, frequencies: int) -> int:
    """Multi-head latent attention of ``x`` [b, outside, hidden] (normed), of the same shape;
    ``frequencies`` [tokens, rope/2, 2].

    Example: on two tensor-parallel ranks ``wq_b_nope`` and ``wk_b`` have 64 of 128 heads each; the
    latent itself is computed on both.
    """
    body, layout, hidden = model.body, model.layout, model.config.hidden
    latent = _latent(model, x, f"{path}.wkv_a", sizes.kv_rank, f"{path}.kv_norm")
    shared = _outside(model, x, f"{path}.wkv_a_rope", sizes.rope)
    q, width = x, hidden
    if sizes.q_rank:
        q, width = _latent(model, x, f"{path}.wq_a", sizes.q_rank, f"{path}.q_norm"), sizes.q_rank
    q = branch(model, q)
    latent, shared = (layout.enter(body, v) for v in (latent, shared))
    heads = sizes.heads // layout.tp
    shape = (layout.batch, layout.tokens, heads)

    def project(v: int, name: str, size: int, inputs: int) -> int:
        """[b, tokens, inputs] -> [b, tokens, heads, size]"""
        y = model.linear(v, f"{path}.{name}", sizes.heads * size, inputs, 0)
        return body.view(y, *shape, size)

    last = "wq_b" if sizes.q_rank else "wq"
    q_nope = project(q, f"{last}_nope", sizes.nope, width)
    q_rope = project(q, f"{last}_rope", sizes.rope, width)
    k_nope = project(latent, "wk_b", sizes.nope, sizes.kv_rank)
    values = project(latent, "wv_b", sizes.value, sizes.kv_rank)
    shared = body.view(shared, layout.batch, layout.tokens, 1, sizes.rope)
    q_rope, shared = body.rotary(q_rope, shared, frequencies)
    mixed = _attend(model, (q_nope, q_rope), (k_nope, shared), values)
    joined = body.view(mixed, layout.batch, layout.tokens, heads * sizes.value)
    out = model.linear(joined, f"{path}.wo", hidden, sizes.heads * sizes.value, 1)
    return layout.leave(body, out)


def _attend(model: Model[Any], queries: tuple[int, int], keys: tuple[int, int], values: int) -> int:
    """Causal attention: queries [b, t, heads, nope] and [b, t, heads, rope], keys [b, t, heads,
    nope] and [b, t, 1, rope], values [b, t, heads, v] -> [b, t, heads, v]."""
    body, layout = model.body, model.layout
    heads = body.shape(values)[2]
    width = sum(body.shape(q)[3] for q in queries)
    if layout.cp > 1:
        keys = (body.all_gather(keys[0], 1, CP), body.all_gather(keys[1], 1, CP))
        values = body.all_gather(values, 1, CP)
    mask = body.op("create_mask", values, values, name="mask")
    if layout.cp > 1:
        mask = body.chunk(mask, 2, CP)
    spread = (keys[0], body.op("expand", keys[1], size=(-1, -1, heads, -1)))
    nope, rope = (
        body.matmul(
            body.transpose(q, 1, 2), body.transpose(body.transpose(k, 1, 2), 2, 3), name="scores"
        )
        for q, k in zip(queries, spread, strict=True)
    )
    scores = body.div_constant(body.add(nope, rope), Fraction(repr(math.sqrt(width))))
    weights = body.softmax(body.op("apply_mask", scores, mask))
    return body.transpose(body.matmul(weights, body.transpose(values, 1, 2)), 1, 2)


def _outside(model: Model[Any], x: int, path: str, outputs: int) -> int:
    """A linear layer [b, outside, hidden] -> [b, outside, outputs], the same on all ranks."""
    weight = model.parameter(f"{path}.weight", (outputs, model.config.hidden), outside=True)
    return model.body.linear(x, weight, name=path.rpartition(".")[2])


def _latent(model: Model[Any], x: int, path: str, rank: int, norm: str) -> int:
    """A normed low-rank latent [b, outside, rank]."""
    weight = model.parameter(f"{norm}.weight", (rank,), outside=True)
    down = _outside(model, x, path, rank)
    return model.body.rms_norm(down, weight, model.config.norm_eps, name=norm.rpartition(".")[2])

"""Causal attention over heads, which architectures share."""

from __future__ import annotations

import math
from fractions import Fraction

from shardproof.frontends.builder.builder import BodyBuilder
from shardproof.frontends.zoo.layout import CP, Layout


def causal_attention(
    body: BodyBuilder, layout: Layout, q: int, k: int, v: int, scale: Fraction | None = None
) -> int:
    """Queries [b, tokens, heads, d], keys [b, tokens, groups, d], values [b, tokens, groups, e]
    -> [b, tokens, heads * e]; ``groups`` divides ``heads``.

    Example: Llama-3 8B has 32 ``heads`` and 8 ``groups``: every key and value is repeated four
    times, and scores are divided by the root of 128, as a decimal.

    With context parallelism the keys and values of all ranks along ``cp`` are gathered, and the
    mask is this rank's rows of the whole one.  ``scale`` divides the scores (square root of d).
    """
    _, tokens, heads, size = body.shape(q)
    groups, width = body.shape(v)[2:]
    if layout.cp > 1:
        k, v = (body.all_gather(x, 1, CP) for x in (k, v))
    mask = body.op("create_mask", k, k, name="mask")
    if layout.cp > 1:
        mask = body.chunk(mask, 2, CP)
    if heads != groups:
        k, v = (body.repeat_interleave(x, heads // groups, 2) for x in (k, v))
    keys = body.transpose(body.transpose(k, 1, 2), 2, 3)
    scores = body.matmul(body.transpose(q, 1, 2), keys, name="scores")
    scores = body.div_constant(scores, scale or Fraction(repr(math.sqrt(size))))
    weights = body.softmax(body.op("apply_mask", scores, mask))
    mixed = body.transpose(body.matmul(weights, body.transpose(v, 1, 2)), 1, 2)
    return body.view(mixed, layout.batch, tokens, heads * width)

"""The examples of operators of transformer and mixture-of-experts models."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from tests.engine.operator_examples import EPS, EXAMPLES, Attrs, Call, Draw, Resize, example

__all__ = ["EXAMPLES"]


def shift(axis: str, attribute: str, *dropped: str) -> Resize:
    """An axis whose position 0 has the absolute position ``attribute``."""

    def resize(attrs: Attrs, sizes: Mapping[str, int], changed: str, start: int) -> Attrs:
        if changed != axis:
            return attrs
        kept = {key: value for key, value in attrs.items() if key not in dropped}
        return kept | {attribute: attrs.get(attribute, 0) + start}

    return resize


# -- projections, attention ---------------------------------------------------------------------


def _linear(d: Draw) -> Call:
    b, s, k, n = d.sizes(4)
    return [d.real(b, s, k), d.real(n, k)], {}


def _biased(d: Draw) -> Call:
    (x, w), attrs = _linear(d)
    return [x[0], w, d.real(len(w))], attrs


example("linear", _linear, lambda a, x, w: functional.linear(x, w))
example("linear", _biased, lambda a, x, w, b: functional.linear(x, w, b), conforms=False)


def _matmul(d: Draw) -> Call:
    lead = d.sizes(d.below(3))
    m, k, n = d.sizes(3)
    return [d.real(*lead, m, k), d.real(*lead, k, n)], {}


example("matmul", _matmul, lambda a, x, y: x @ y)


def _broadcast_matmul(d: Draw) -> Call:
    """Leading dimensions that one factor lacks, or has once; rows and columns without one."""
    lead = d.sizes(1 + d.below(3))
    m, k, n = d.sizes(3)

    def part() -> list[int]:
        kept = lead[d.below(len(lead) + 1) :]
        return [1 if d.below(3) == 0 else size for size in kept]

    shapes = [*part(), m, k], [*part(), k, n]
    if d.below(4) == 0:
        shapes[d.below(2)][:] = [k]
    return [d.real(*shape) for shape in shapes], {}


for _ in range(4):
    example("matmul", _broadcast_matmul, lambda a, x, y: x @ y, conforms=False)


def _causal(length: int) -> Any:
    return torch.full((length, length), -torch.inf, dtype=torch.float64).triu(1)


def _create_mask(d: Draw) -> Call:
    b, s, h = d.sizes(3)
    return [d.ids(9, b, s), d.real(b, s, h)], {}


def _plain_mask(d: Draw) -> Call:
    b, h, q, k = d.sizes(4)
    return [d.real(b, h, q, k), np.where(d.real(q, k) > 0, 0.0, -np.inf)], {}


def _causal_mask(d: Draw) -> Call:
    b, h, s = d.sizes(3)
    return [d.real(b, h, s, s), _causal(s).reshape(1, 1, s, s).numpy()], {}


example(
    "create_mask",
    _create_mask,
    lambda a, ids, h: _causal(ids.shape[1])[None, None],
    differentiable=False,
)
example("apply_mask", _plain_mask, lambda a, x, mask: x + mask)
example("apply_mask", _causal_mask, lambda a, x, mask: x + mask, conforms=False)
example(
    "tril",
    lambda d: ([d.real(*d.sizes(3))], {}),
    lambda a, x: x.tril(),
)
example(
    "fill_after",
    lambda d: ([d.real(*d.sizes(3))], {"value": Fraction(-10000)}),
    lambda a, x: x.masked_fill(torch.ones(x.shape[-2:]).triu(1).bool(), -10000.0),
)
example(
    "softmax",
    lambda d: ([d.masked(*d.sizes(2))], {"dim": -1}),
    lambda a, x: x.softmax(-1),
)
example(
    "softmax",
    lambda d: ([d.real(*d.sizes(3))], {"dim": 1}),
    lambda a, x: x.softmax(1),
    conforms=False,
)


def _rotary(d: Draw) -> Call:
    b, s, h, p = d.sizes(4)
    return [d.real(b, s, h, 2 * p), d.real(b, s, h, 2 * p), d.real(s, p, 2)], {}


def _grouped_rotary(d: Draw) -> Call:
    (q, k, frequencies), attrs = _rotary(d)
    return [q, k[:, :, :1], frequencies], attrs


def _rotated(attrs: Attrs, xq: Any, xk: Any, frequencies: Any) -> Any:
    turn = torch.view_as_complex(frequencies)[None, :, None]

    def rotate(x: Any) -> Any:
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turn).flatten(3)

    return rotate(xq), rotate(xk)


example("apply_rotary_emb", _rotary, _rotated)
example("apply_rotary_emb", _grouped_rotary, _rotated, conforms=False)

# -- vocabulary ---------------------------------------------------------------------------------


def _embedding(d: Draw) -> Call:
    b, s, v, h = d.sizes(4)
    start = d.below(4)
    ids = d.ids(start + v + 2, b, s)
    return [ids, d.real(v, h)], {"start": start, "stop": start + v}


def _whole_embedding(d: Draw) -> Call:
    b, v, h = d.sizes(3)
    return [d.ids(v, b), d.real(v, h)], {}


def _looked_up(attrs: Attrs, ids: Any, table: Any) -> Any:
    local = ids.long() - attrs.get("start", 0)
    inside = (local >= 0) & (local < len(table))
    rows = functional.embedding(torch.where(inside, local, 0), table)
    return torch.where(inside[..., None], rows, 0.0)


example("embedding", _embedding, _looked_up, resize=shift("v", "start", "stop"))
example("embedding", _whole_embedding, lambda a, i, t: t[i.long()], conforms=False)


def _pick(d: Draw) -> Call:
    b, s, v = d.sizes(3)
    start = d.below(4)
    return [d.real(b, s, v), d.ids(start + v + 2, b, s)], {"start": start}


def _picked(attrs: Attrs, x: Any, ids: Any) -> Any:
    local = ids.long() - attrs["start"]
    inside = (local >= 0) & (local < x.shape[-1])
    return torch.where(inside, x.gather(-1, torch.where(inside, local, 0)[..., None])[..., 0], 0.0)


example("pick", _pick, _picked, resize=shift("v", "start"))


def _logits(d: Draw) -> Call:
    b, s, v = d.sizes(3)
    return [d.real(b, s, v) * 3, d.ids(v, b, s)], {}


def _token_loss(attrs: Attrs, x: Any, ids: Any) -> Any:
    loss = functional.cross_entropy(x.flatten(0, 1), ids.flatten().long(), reduction="none")
    return loss.reshape(ids.shape)


example("cross_entropy", _logits, _token_loss)


def _logits_gradient(d: Draw) -> Call:
    b, s, v = d.sizes(3)
    start = d.below(4)
    inputs = [d.positive(b, s, v), 9 * d.positive(b, s), d.ids(start + v + 2, b, s), d.real(b, s)]
    return inputs, {"start": start}


def _softmax_minus_onehot(attrs: Attrs, e: Any, total: Any, ids: Any, gradient: Any) -> Any:
    classes = torch.arange(e.shape[-1]) + attrs["start"]
    return (e / total[..., None] - (ids[..., None] == classes).double()) * gradient[..., None]


example("cross_entropy_grad", _logits_gradient, _softmax_minus_onehot)

# -- normalisation ------------------------------------------------------------------------------


def _normed(weights: int) -> Any:
    def build(d: Draw) -> Call:
        *lead, k = d.sizes(3)
        return [d.real(*lead, k), *(d.real(k) for _ in range(weights))], {"eps": EPS}

    return build


example(
    "rms_norm",
    _normed(1),
    lambda a, x, w: functional.rms_norm(x, x.shape[-1:], w, float(a["eps"])),
)
for _weights in (1, 2):
    example(
        "layernorm",
        _normed(_weights),
        lambda a, x, w, b=None: functional.layer_norm(x, x.shape[-1:], w, b, float(a["eps"])),
        conforms=_weights == 2,
    )

# -- mixture of experts -------------------------------------------------------------------------


def _gate(function: str, bias: bool) -> Any:
    def build(d: Draw) -> Call:
        a, h, size = d.sizes(3)
        groups = 1 + d.below(3)
        size = max(size, 2)
        chosen = 1 + d.below(groups)
        inputs = [d.real(a, h), d.real(groups * size, h)]
        if bias:
            inputs.append(d.real(groups * size))
        return inputs, {
            "score_func": function,
            "n_groups": groups,
            "topk_groups": chosen,
            "topk": 1 + d.below(min(4, chosen * size)),
            "route_scale": Fraction(5, 2),
        }

    return build


def _routed(attrs: Any, x: Any, weight: Any, *bias: Any) -> Any:
    """The gate of DeepSeek-V3's reference model."""
    scores = functional.linear(x, weight)
    softmax = attrs["score_func"] == "softmax"
    scores = scores.softmax(-1) if softmax else scores.sigmoid()
    ranked = scores + bias[0] if bias else scores
    if attrs["n_groups"] > 1:
        grouped = ranked.reshape(len(x), attrs["n_groups"], -1)
        best = grouped.topk(2, dim=-1)[0].sum(-1) if bias else grouped.amax(-1)
        kept = best.topk(attrs["topk_groups"], dim=-1)[1]
        mask = torch.ones_like(best, dtype=torch.bool).scatter(1, kept, False)
        ranked = grouped.masked_fill(mask[..., None], -torch.inf).flatten(1)
    indices = ranked.topk(attrs["topk"], dim=-1)[1]
    weights = scores.gather(1, indices)
    if not softmax:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights * float(attrs["route_scale"]), indices.double().detach()


for _function in ("softmax", "sigmoid"):
    for _bias in (False, True):
        example("gate_fw", _gate(_function, _bias), _routed, conforms=not _bias)


def _experts(d: Draw) -> Call:
    a, h, width, held = d.sizes(4)
    start = d.below(3)
    total = start + held + d.below(2)
    k = 1 + d.below(min(total, 3))
    indices = np.stack([d.rng.permutation(total)[:k] for _ in range(a)]).astype(float)
    return [
        d.real(a, h),
        indices,
        d.real(a, k),
        d.real(held, width, h),
        d.real(held, width, h),
        d.real(held, h, width),
    ], {"local_expert_start": start, "local_expert_end": start + held}


def _mixed(attrs: Any, x: Any, indices: Any, weights: Any, gate: Any, up: Any, down: Any) -> Any:
    start, end = attrs["local_expert_start"], attrs["local_expert_end"]
    rows = []
    for t in range(len(x)):
        row = torch.zeros_like(x[t])
        for j, expert in enumerate(indices[t].long().tolist()):
            if start <= expert < end:
                e = expert - start
                hidden = functional.silu(gate[e] @ x[t]) * (up[e] @ x[t])
                row = row + weights[t, j] * (down[e] @ hidden)
        rows.append(row)
    # A tie to every input, so that unused ones have a gradient of zero rather than none.
    unused = sum(0 * y.sum() for y in (weights, gate, up, down))
    return torch.stack(rows) + unused


example(
    "nnscaler_moe_gmm",
    _experts,
    _mixed,
    resize=shift("e", "local_expert_start", "local_expert_end"),
)

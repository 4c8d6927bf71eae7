"""Operators of mixture-of-experts layers."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import prod
from typing import Any

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.engine.ops.basic import ONE
from shardproof.engine.ops.declare import (
    Attrs,
    dimension,
    integer,
    number,
    operator,
    position,
    sized,
)
from shardproof.engine.ops.model import keep_dim, softmax
from shardproof.engine.ops.primitives import (
    Interpreter,
    Selection,
    check_selection,
    expand_as,
    labels,
    multiply,
    scale,
    sum_dims,
)

R = Interpreter[Any]


@operator(
    "gate_fw",
    "a h!, e! h! -> a k!, a k!",
    "x weight bias?",
    "score_func:sigmoid/softmax n_groups:integer topk_groups:integer topk:integer "
    "route_scale:number",
)
def _gate(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """x [a, h], weight [e, h][, bias [e]] -> weights [a, k], indices [a, k].

    Selection is on scores + bias: the best groups (by their maximum, or by the sum of their two
    best where a bias exists), then the best experts inside them.  The weights are the unbiased
    scores of the chosen, normalised to sum 1 where the function is a sigmoid, times route_scale.
    """
    x, weight = inputs[0], inputs[1]
    logits = r.einsum("ah,eh->ae", x, weight)
    function = attrs.get("score_func")
    if function == "sigmoid":
        scores = r.unary("sigmoid", logits)
    elif function == "softmax":
        scores = softmax(r, logits, 1)
    else:
        raise Unsupported(f"gate_fw with score_func {function!r}")
    ranked = scores
    if len(inputs) == 3:
        bias = expand_as(r, inputs[2], r.shape(scores))
        ranked = r.combine([scores, bias], [ONE, ONE], Fraction(0))
    indices = _chosen(
        r,
        ranked,
        Selection(
            topk=integer(attrs, "topk"),
            groups=integer(attrs, "n_groups"),
            topk_groups=integer(attrs, "topk_groups"),
            group_score="top2" if len(inputs) == 3 else "max",
        ),
    )
    experts = r.shape(scores)[1]
    weights = r.einsum("ae,ake->ak", scores, r.onehot(indices, Affine(), experts))
    if function == "sigmoid":
        total = r.unary("inv", sum_dims(r, weights, [1]))
        weights = multiply(r, weights, keep_dim(r, total, r.shape(weights), 1))
    return [scale(r, number(attrs, "route_scale"), weights), indices]


@operator(
    "nnscaler_moe_gmm",
    "a h!, a k+, a k+, e+ d+ h!, e+ d+ h!, e+ o d+ -> a o",
    "x indices weights gate_proj up_proj down_proj",
    "local_expert_start:position local_expert_end:position?",
    data=(1,),
)
def _grouped_experts(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """y[t] = sum over chosen experts e in [start, end) of weight * down(silu(gate x) * up x).

    x [a, h], indices [a, k], weights [a, k], gate_proj and up_proj [E, d, h], down_proj [E, h, d];
    a rank holds experts [local_expert_start, local_expert_end).
    """
    x, indices, weights, gate, up, down = inputs
    local = sized(r, gate, 3, "projections of experts", 3)[0]
    offset = position(attrs, "local_expert_start")
    end = attrs.get("local_expert_end")
    if end is not None and position(attrs, "local_expert_end") != offset + local:
        raise ShapeMismatch(f"local experts {offset} to {end} with projections of {local}")
    chosen = r.onehot(indices, offset, local)
    share = r.einsum("ak,ake->ae", weights, chosen)
    gated = r.einsum("ah,edh->aed", x, gate)
    hidden = multiply(r, gated, r.unary("sigmoid", gated), r.einsum("ah,edh->aed", x, up))
    return [r.einsum("ae,aed,ehd->ah", share, hidden, down)]


# -- the parts of a mixture: choose, dispatch, compute, combine ------------------------------------
#
# The mixture that they make is dense: every expert sees every token, multiplied by 1 where the
# token has chosen it and by 0 elsewhere.  No token is dropped, and no shape depends on data.


@operator(
    "choose_experts",
    "b s e!, e! -> b s e!",
    "scores bias?",
    "n_groups:integer topk_groups:integer topk:integer",
    data=(0, 1),
    differentiable=False,
)
def _choose(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """scores [b, s, e][, bias [e]] -> [b, s, e]: 1 for each token's chosen experts, else 0.

    The choice is that of `gate_fw`.  It has no derivative: scores reach the loss by another way.
    """
    scores = inputs[0]
    shape = sized(r, scores, 1, "scores")
    if len(inputs) == 2:
        scores = r.combine([scores, expand_as(r, inputs[1], shape)], [ONE, ONE], Fraction(0))
    selection = Selection(
        topk=integer(attrs, "topk"),
        groups=integer(attrs, "n_groups"),
        topk_groups=integer(attrs, "topk_groups"),
        group_score="top2" if len(inputs) == 2 else "max",
    )
    indices = _chosen(r, r.reshape(scores, (prod(shape[:-1]), shape[-1])), selection)
    chosen = r.einsum("ake->ae", r.onehot(indices, Affine(), shape[-1]))
    return [r.reshape(chosen, shape)]


def _chosen(r: R, scores: Any, selection: Selection) -> Any:
    """A choice from each row; raises `ShapeMismatch` unless so many can be chosen."""
    check_selection(int(r.shape(scores)[1]), selection)
    return r.select(scores, selection)


@operator(
    "topk",
    "a e! -> a k!, a k!",
    "x",
    "topk:integer dim:integer? largest:flag? dropped:flag?",
)
def _topk(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """The ``topk`` largest entries (``largest`` False: smallest) of each row along a dimension, in
    their order, and where they are.  ``dropped``: of one entry, without the dimension.

    The gradient of an entry goes where it was.  (Which of two equal entries comes first is
    undefined, here as in PyTorch.)
    """
    x = inputs[0]
    shape, count = tuple(r.shape(x)), integer(attrs, "topk")
    if not shape or (attrs.get("dropped") and count != 1):
        raise ShapeMismatch(f"the best {count} of {list(shape)}")
    dim = dimension(integer(attrs, "dim") if "dim" in attrs else -1, len(shape))
    names = labels(len(shape))
    rows = names.replace(names[dim], "")
    outer = shape[:dim] + shape[dim + 1 :]
    moved = r.einsum(f"{names}->{rows}{names[dim]}", x)
    flat = r.reshape(moved, (prod(outer), shape[dim]))
    ranked = scale(r, -1, flat) if attrs.get("largest") is False else flat
    places = r.reshape(_chosen(r, ranked, Selection(topk=count)), (*outer, count))
    chosen = r.onehot(places, Affine(), shape[dim])
    spec = f"{rows}{names[dim]},{rows}x{names[dim]}->{rows}x"
    results = [r.einsum(spec, moved, chosen), places]
    if attrs.get("dropped"):
        return [r.reshape(y, outer or (1,)) for y in results]
    return [r.einsum(f"{rows}{names[dim]}->{names}", y) for y in results]


@operator("dispatch_tokens", "b s h, b s e -> e b s h", "x chosen", data=(1,))
def _dispatch(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """Every token for every expert, zero where ``chosen`` [b, s, e] is."""
    x, chosen = inputs
    axes = labels(len(sized(r, x, 1, "tokens")) - 1)
    return [r.einsum(f"{axes}y,{axes}z->z{axes}y", x, chosen)]


@operator("expert_linear", "e b s k+, e n k+ -> e b s n", "x weight")
def _expert_linear(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """x w^T, expert by expert."""
    x, w = inputs
    shape, weight = sized(r, x, 2, "the operand of expert_linear"), r.shape(w)
    if len(weight) != 3 or (shape[0], shape[-1]) != (weight[0], weight[2]):
        raise ShapeMismatch(f"expert_linear of {list(shape)} with weights {list(weight)}")
    axes = labels(len(shape) - 2)
    return [r.einsum(f"x{axes}y,xzy->x{axes}z", x, w)]


@operator("combine_experts", "e+ b s h, b s e+ -> b s h", "y weights")
def _combine_experts(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """The experts' results, each token's weighted by its ``weights`` [b, s, e] and summed."""
    y, weights = inputs
    axes = labels(len(sized(r, weights, 1, "weights of experts")) - 1)
    return [r.einsum(f"z{axes}y,{axes}z->{axes}y", y, weights)]

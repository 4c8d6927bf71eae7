"""Mixtures of experts: routing, dispatch, experts, combination, the load-balancing loss.

The mixture is dense and drops nothing: with ``chosen[t, e]`` 1 where token t has chosen expert e
and 0 elsewhere, and ``weights[t, e]`` zero where it has not,

    out[t] = sum over e of weights[t, e] * expert_e(chosen[t, e] * x[t])

Every token is dispatched to every expert, as zeros to those that it has not chosen, so that no
shape depends on data; experts have no bias and give zero for zero.

How it is divided: routing, dispatch and combination work on the residual stream outside of
tensor-parallel regions (each rank along ``tp`` on the same tokens, or with sequence parallelism on
its own).  The experts are a region of their own: each is divided over ``tp`` like any feed-forward
block.  Over ``ep`` the experts themselves are divided: replicas exchange tokens for experts by an
all-to-all outside of the region, and results for tokens by another one.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.zoo.layout import CP, EP, TP
from shardproof.frontends.zoo.transformer import Model


@dataclass(frozen=True, slots=True)
class Mixture:
    """What kind of mixture a layer has.

    Example: ``Mixture(8, 2, 14336, balance=Fraction(1, 50))`` of Mixtral 8x7B.

    ``experts`` of ``width``, of which each token chooses ``chosen``, by "softmax" or "sigmoid"
    ``scoring`` of its logits: inside the best ``kept_groups`` of ``groups`` groups.  With a
    ``bias`` the choice is by score + bias (a buffer that training adjusts outside of the graph).
    ``normalised``: the weights of the chosen are divided by their sum; then multiplied by
    ``scale``.  ``balance``: coefficient of the load-balancing loss, 0 for none.  ``shared``: width
    of the experts that every token passes, all together.
    """

    experts: int
    chosen: int
    width: int
    scoring: str = "softmax"
    groups: int = 1
    kept_groups: int = 1
    bias: bool = False
    normalised: bool = True
    scale: Fraction = Fraction(1)
    balance: Fraction = Fraction(0)
    shared: int = 0

    def check(self, where: str) -> None:
        """Raise `InvalidInput` for a choice that cannot be made."""
        if self.scoring not in ("softmax", "sigmoid"):
            raise InvalidInput(f"scoring {self.scoring!r}, expected 'softmax' or 'sigmoid'", where)
        size, rest = divmod(self.experts, self.groups)
        if rest:
            raise InvalidInput(
                f"{self.experts} experts are not divisible into {self.groups} groups", where
            )
        if self.kept_groups > self.groups:
            raise InvalidInput(f"{self.kept_groups} of {self.groups} groups are kept", where)
        if self.chosen > self.kept_groups * size:
            raise InvalidInput(
                f"{self.chosen} experts are chosen among {self.kept_groups * size}", where
            )

    @property
    def notes(self) -> tuple[str, ...]:
        """The reference that a parallel plan of it is held to, for `Plan.notes`."""
        dense = (
            f"mixture of experts: dense dispatch, no drops: each of {self.experts} experts "
            f"computes every token, zeroed where it is not among the token's {self.chosen} choices"
        )
        if not self.balance:
            return (dense,)
        return (
            dense,
            f"load-balancing loss: {self.balance} x sum over {self.experts} experts of (its share "
            f"of choices, times {self.experts}) x (its mean score), per layer and per microbatch "
            "of each replica; the mean over microbatches and replicas is added to the loss",
        )


def mixture_of_experts(model: Model[Any], x: int, path: str, mixture: Mixture) -> int:
    """The feed-forward block of a layer: ``x`` [b, outside, hidden] (normed) to the same.

    Example: of two experts of which a token chooses the second, ``dispatch_tokens`` gives the first
    one zeros, and ``combine_experts`` adds the second one's result times its weight.
    """
    body, layout = model.body, model.layout
    chosen, weights = _route(model, x, f"{path}.gate", mixture)
    routed: int = body.op("dispatch_tokens", x, chosen)
    routed = _experts(model, _to_experts(model, routed), f"{path}.experts", mixture)
    routed = body.op("combine_experts", _from_experts(model, routed), weights)
    if not mixture.shared:
        return routed
    with body.module("shared_experts"):
        inner = branch(model, x)
        shared = swiglu(model, inner, f"{path}.shared_experts", mixture.shared)
        return body.add(routed, layout.leave(body, shared))


def branch(model: Model[Any], x: int) -> int:
    """`Layout.enter` for one of several uses of ``x``: the gradients of what is inside are added
    up before those of the other uses, on a single device too.

    Example: on a single device an ``identity``; on tensor-parallel ranks ``copy_to``, or with
    sequence parallelism an all-gather.
    """
    if model.layout.tp == 1:
        return model.body.op("identity", x)
    return model.layout.enter(model.body, x)


def swiglu(model: Model[Any], x: int, path: str, width: int) -> int:
    """A gated feed-forward, w2 (silu(w1 x) * w3 x): ``x`` [b, tokens, hidden] -> addends of the
    same shape.

    Example: a width of 14336 on two ranks is 7168 on each, and their results are added up outside.
    """
    body, hidden = model.body, model.config.hidden
    gate = body.silu(model.linear(x, f"{path}.w1", width, hidden, 0))
    up = model.linear(x, f"{path}.w3", width, hidden, 0)
    return model.linear(body.mul(gate, up), f"{path}.w2", hidden, width, 1)


# -- routing ------------------------------------------------------------------------------------


def _route(model: Model[Any], x: int, path: str, mixture: Mixture) -> tuple[int, int]:
    """Choices (0 or 1) and weights, both [b, outside, experts]."""
    body = model.body
    shape = (mixture.experts, model.config.hidden)
    with body.module("gate"):
        weight = model.parameter(f"{path}.weight", shape, outside=True)
        logits = body.linear(x, weight, name="logits")
        if mixture.scoring == "softmax":
            scores = body.softmax(logits)
        else:
            scores = body.op("sigmoid", logits)
        ranked: list[int] = [scores]
        if mixture.bias:
            ranked.append(model.parameter(f"{path}.bias", shape[:1], trainable=False))
        chosen = body.op(
            "choose_experts",
            *ranked,
            name="chosen",
            n_groups=mixture.groups,
            topk_groups=mixture.kept_groups,
            topk=mixture.chosen,
        )
        weights = body.mul(scores, chosen, name="weights")
        if mixture.normalised:
            weights = body.op("div", weights, body.sum(weights, -1, keepdim=True), name="weights")
        if mixture.scale != 1:
            weights = body.mul_constant(weights, mixture.scale, name="weights")
        if mixture.balance:
            model.add_loss(_balance(model, scores, chosen, mixture))
    return chosen, weights


def _balance(model: Model[Any], scores: int, chosen: int, mixture: Mixture) -> int:
    """The load-balancing loss [blocks] of scores and choices [b, outside, experts].

    Per block of T tokens: coefficient * e/(k T) * sum over experts of (how many tokens chose it) *
    (mean over tokens of its score), scores summing to 1 over experts.  No gradient flows through
    the choices.
    """
    body, layout = model.body, model.layout
    if mixture.scoring != "softmax":
        scores = body.op("div", scores, body.sum(scores, -1, keepdim=True), name="shares")
    shape = (layout.blocks, layout.block_batch, layout.outside, mixture.experts)
    counts, shares = (
        body.op("sum", body.view(v, *shape), name=name, dim=(1, 2), keepdim=False)
        for v, name in ((chosen, "counts"), (scores, "shares"))
    )
    divided = layout.tp > 1 and layout.sequence_parallel
    if divided:
        counts = body.all_reduce(counts, TP)
    if layout.cp > 1:
        counts = body.all_reduce(counts, CP)
    total = body.sum(body.mul(counts, shares), 1)
    tokens = layout.block_batch * layout.sequence
    factor = mixture.balance * mixture.experts / (mixture.chosen * tokens * tokens)
    loss = body.mul_constant(total, factor * layout.block_factor, name="balance")
    return body.reduce_from(loss, TP) if divided else loss


# -- experts ------------------------------------------------------------------------------------


def _experts(model: Model[Any], x: int, path: str, mixture: Mixture) -> int:
    """``x`` [e, b, outside, hidden], for the experts of this rank, to the same."""
    body, hidden = model.body, model.config.hidden

    def projection(x: int, name: str, outputs: int, inputs: int, split: int) -> int:
        shape = (mixture.experts, outputs, inputs)
        weight = model.parameter(f"{path}.{name}", shape, {0: "ep", split: "tp"})
        return body.op("expert_linear", x, weight, name=name)

    with body.module("experts"):
        x = _enter(model, x)
        gate = body.silu(projection(x, "w1", mixture.width, hidden, 1))
        up = projection(x, "w3", mixture.width, hidden, 1)
        return _leave(model, projection(body.mul(gate, up), "w2", hidden, mixture.width, 2))


def _enter(model: Model[Any], x: int) -> int:
    """`Layout.enter` for [e, b, outside, hidden]."""
    body, layout = model.body, model.layout
    if layout.tp == 1:
        return x
    return body.all_gather(x, 2, TP) if layout.sequence_parallel else body.copy_to(x, TP)


def _leave(model: Model[Any], x: int) -> int:
    """`Layout.leave` to [e, b, outside, hidden]."""
    body, layout = model.body, model.layout
    if layout.tp == 1:
        return x
    return body.reduce_scatter(x, 2, TP) if layout.sequence_parallel else body.reduce_from(x, TP)


def _to_experts(model: Model[Any], x: int) -> int:
    """[experts, b, outside, hidden] of this replica -> [experts here, ep * b, outside, hidden] of
    all replicas along ``ep``."""
    return x if model.layout.ep == 1 else model.body.all_to_all(x, 0, 1, EP)


def _from_experts(model: Model[Any], x: int) -> int:
    """The way back of `_to_experts`."""
    return x if model.layout.ep == 1 else model.body.all_to_all(x, 1, 0, EP)

"""The examples of the parts that a mixture of experts is made of in the zoo's plans."""

from __future__ import annotations

from typing import Any

import torch

from tests.engine.operator_examples import Attrs, Call, Draw, example
from tests.engine.random_examples import EXAMPLES

__all__ = ["EXAMPLES"]


def _scores(bias: bool) -> Any:
    def build(d: Draw) -> Call:
        b, s, size = d.sizes(3)
        groups = 1 + d.below(3)
        size = max(size, 2)
        kept = 1 + d.below(groups)
        inputs = [d.real(b, s, groups * size)]
        if bias:
            inputs.append(d.real(groups * size))
        return inputs, {
            "n_groups": groups,
            "topk_groups": kept,
            "topk": 1 + d.below(min(4, kept * size)),
        }

    return build


def _chosen(attrs: Attrs, scores: Any, *bias: Any) -> Any:
    """Group-limited top-k: groups by their best, or by their two best where there is a bias."""
    ranked = scores + bias[0] if bias else scores
    grouped = ranked.unflatten(-1, (attrs["n_groups"], -1))
    best = grouped.topk(2, dim=-1)[0].sum(-1) if bias else grouped.amax(-1)
    kept = torch.zeros_like(best).scatter(-1, best.topk(attrs["topk_groups"], dim=-1)[1], 1.0)
    eligible = grouped.masked_fill(kept[..., None] == 0, -torch.inf).flatten(-2)
    return torch.zeros_like(scores).scatter(-1, eligible.topk(attrs["topk"], dim=-1)[1], 1.0)


for _bias in (False, True):
    example("choose_experts", _scores(_bias), _chosen, conforms=_bias, differentiable=False)


def _best(largest: bool) -> Any:
    def build(d: Draw) -> Call:
        a, e = d.sizes(2)
        e = max(e, 2)
        attrs: Attrs = {"topk": 1 + d.below(e), "dim": -1}
        return [d.real(a, e)], attrs | ({} if largest else {"largest": False})

    return build


def _ranked(attrs: Attrs, x: Any) -> Any:
    values, indices = x.topk(attrs["topk"], dim=-1, largest=attrs.get("largest", True))
    return values, indices.double().detach()


for _largest in (True, False):
    example("topk", _best(_largest), _ranked, conforms=_largest)


def _tokens(d: Draw) -> Call:
    b, s, h, e = d.sizes(4)
    return [d.real(b, s, h), d.ids(2, b, s, e)], {}


example("dispatch_tokens", _tokens, lambda a, x, chosen: torch.einsum("bsh,bse->ebsh", x, chosen))


def _projection(lead: int) -> Any:
    def build(d: Draw) -> Call:
        e, k, n, *tokens = d.sizes(3 + lead)
        return [d.real(e, *tokens, k), d.real(e, n, k)], {}

    return build


for _lead in (1, 2):
    example(
        "expert_linear",
        _projection(_lead),
        lambda a, x, w: torch.stack([y @ v.T for y, v in zip(x, w, strict=True)]),
        conforms=_lead == 2,
    )


def _results(d: Draw) -> Call:
    e, b, s, h = d.sizes(4)
    return [d.real(e, b, s, h), d.real(b, s, e)], {}


example("combine_experts", _results, lambda a, y, w: torch.einsum("ebsh,bse->bsh", y, w))


def _shared(d: Draw) -> Call:
    a, b, c, e = d.sizes(4)
    return [d.real(a, b, 1, e)], {"size": (-1, -1, c, -1)}


example("expand", _shared, lambda a, x: x.expand(*a["size"]))

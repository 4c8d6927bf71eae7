"""Examples of the library's operators (`engine.ops.library`), each with its meaning in PyTorch."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import torch

from tests.engine.model_examples import EXAMPLES
from tests.engine.operator_examples import Attrs, Call, Draw, example

__all__ = ["EXAMPLES"]


def _signed(d: Draw) -> Call:
    return [d.real(*d.sizes(3))], {}


def _matrix(d: Draw, **attrs: Any) -> Call:
    return [d.real(*d.sizes(2))], attrs


example(
    "affine",
    lambda d: ([d.real(*d.sizes(2))], {"factor": Fraction(-3, 2), "shift": 5}),
    lambda a, x: float(a["factor"]) * x + a["shift"],
)
example(
    "reciprocal",
    lambda d: ([d.positive(*d.sizes(2))], {"numerator": 3}),
    lambda a, x: a["numerator"] / x,
)
for _function in (torch.sin, torch.cos, torch.atan, torch.erf, torch.relu, torch.abs):
    example(_function.__name__, _signed, lambda a, x, f=_function: f(x))
for _function in (torch.floor, torch.ceil, torch.trunc, torch.round):
    example(_function.__name__, _signed, lambda a, x, f=_function: f(x))
example("lgamma", lambda d: ([d.positive(*d.sizes(3))], {}), lambda a, x: torch.lgamma(x))
example("digamma", lambda d: ([d.positive(*d.sizes(3))], {}), lambda a, x: torch.digamma(x))
example(
    "trigamma",
    lambda d: ([d.positive(*d.sizes(3))], {}),
    lambda a, x: torch.polygamma(1, x),
    differentiable=False,
)
example("erfinv", lambda d: ([np.tanh(d.real(*d.sizes(3)))], {}), lambda a, x: torch.erfinv(x))
example("step", _signed, lambda a, x: (torch.sign(x) + torch.sign(x).abs()) / 2)
example("log_sigmoid", _signed, lambda a, x: torch.nn.functional.logsigmoid(x))


def _masked(d: Draw) -> Call:
    shape = d.sizes(2)
    return [d.real(*shape), d.ids(2, *shape).astype(float)], {"value": -7}


example("masked_fill", _masked, lambda a, x, m: torch.masked_fill(x, m > 0.5, a["value"]))

# -- contractions ----------------------------------------------------------------------------------


def _product(d: Draw) -> Call:
    a, k, n = d.sizes(3)
    return [d.real(a, k), d.real(k, n)], {"equation": "ab,bc->ac"}


def _addition(d: Draw) -> Call:
    m, k, n = d.sizes(3)
    return [d.real(m, n), d.real(m, k), d.real(k, n)], {"alpha": 2, "beta": Fraction(1, 2)}


def _attended(causal: bool) -> Any:
    def build(d: Draw) -> Call:
        b, q, k, e = d.sizes(4)
        k = q if causal else k
        inputs = [d.real(b, q, 3), d.real(b, k, 3), d.real(b, k, e)]
        return inputs, {"scale": Fraction(1, 2), "is_causal": causal}

    return build


def _attention(a: Attrs, q: Any, k: Any, v: Any) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=a["is_causal"], scale=float(a["scale"])
    )


example("einsum", _product, lambda a, x, y: torch.einsum(a["equation"], x, y))
example(
    "einsum",
    lambda d: ([d.real(*d.sizes(3))], {"equation": "abc->ca"}),
    lambda a, x: torch.einsum(a["equation"], x),
    conforms=False,
)
example("addmm", _addition, lambda a, x, y, z: torch.addmm(x, y, z, beta=float(a["beta"]), alpha=2))
example("log_softmax", lambda d: _matrix(d, dim=1), lambda a, x: torch.log_softmax(x, 1))
example(
    "norm",
    lambda d: _matrix(d, dim=(1,), keepdim=False),
    lambda a, x: torch.linalg.vector_norm(x, dim=1),
)
example("scaled_dot_product_attention", _attended(False), _attention)
example("scaled_dot_product_attention", _attended(True), _attention, conforms=False)

# -- shapes ----------------------------------------------------------------------------------------

example("broadcast_to", lambda d: _matrix(d, size=(3, -1, -1)), lambda a, x: x.expand(*a["size"]))


def _regrouped(d: Draw) -> Call:
    a, b = d.sizes(2)
    attrs = {
        "groups": (1, 2), "split": (-1, -1, 3), "equation": "abc->cab", "sizes": (),
        "merge": (2, 1), "divisor": None,
    }  # fmt: skip
    return [d.real(a, b * 3)], attrs


def _repeated(d: Draw) -> Call:
    attrs = {
        "groups": (1, 1), "split": (-1, -1), "equation": "ab->ax", "sizes": (2,), "merge": (2,),
        "divisor": 2,
    }  # fmt: skip
    return [d.real(*d.sizes(2))], attrs


example(
    "rearrange",
    _regrouped,
    lambda a, x: x.reshape(x.shape[0], -1, 3).permute(2, 0, 1).reshape(-1, x.shape[1] // 3),
)
example(
    "rearrange",
    _repeated,
    lambda a, x: (x.sum(1) / 2).repeat_interleave(2),
    conforms=False,
)


def _alike(d: Draw) -> Call:
    shape = d.sizes(2)
    return [d.real(*shape), d.real(*shape)], {"dim": 1}


example("stack", _alike, lambda a, *xs: torch.stack(xs, 1))
example(
    "split",
    lambda d: ([d.real(d.sizes(1)[0], 5)], {"sizes": (2, 3), "dim": -1, "parts": 2}),
    lambda a, x: torch.split(x, a["sizes"], -1),
)
example(
    "index",
    lambda d: ([d.real(d.sizes(1)[0], 4)], {"starts": (0, 2), "sizes": (-1, 1), "kept": (0,)}),
    lambda a, x: x[:, 2],
)
example(
    "index",
    lambda d: ([d.real(4, 3)], {"starts": (1, 0), "sizes": (2, -1), "kept": (0, -1, 1)}),
    lambda a, x: x[1:3, None],
    conforms=False,
)
example(
    "full",
    lambda d: ([], {"size": d.sizes(2), "value": 3}),
    lambda a: torch.full(a["size"], 3.0, dtype=torch.float64),
    conforms=False,
    differentiable=False,
)


# -- ids -------------------------------------------------------------------------------------------


def _chosen(d: Draw) -> Call:
    b, s, v = d.sizes(3)
    start = d.below(4)
    return [d.ids(start + v + 2, b, s)], {"start": start, "size": v}


example(
    "onehot",
    _chosen,
    lambda a, i: (i[..., None] == a["start"] + torch.arange(a["size"])).double(),
    differentiable=False,
)

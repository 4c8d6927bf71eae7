"""Convolutions over positions that four devices divide, with the edges of their neighbours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P
from shapes import Case, F, S, beside_twins, mapped

N, BATCH, LENGTH, CHANNELS = 4, 2, 32, 6
OWN = P(None, "sp")
SEQUENCE = S((BATCH, LENGTH, CHANNELS), F)


def conv(w: Any, x: Any, pad: tuple[int, int], groups: int = 1) -> Any:
    return lax.conv_general_dilated(
        x, w, (1,), [pad], dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=groups
    )


def wide(x: Any, before: int, after: int) -> Any:
    """A device's positions, and what it is sent of those beside them; zeros at both ends."""
    parts = [x]
    if before:
        right = [(i, i + 1) for i in range(N - 1)]
        parts.insert(0, lax.ppermute(x[:, -before:], "sp", right))
    if after:
        left = [(i + 1, i) for i in range(N - 1)]
        parts.append(lax.ppermute(x[:, :after], "sp", left))
    return jnp.concatenate(parts, axis=1)


def case(single: Callable[..., Any], twin: Callable[..., Any], outs: Any, *args: Any) -> Case:
    """Parameters first, which all devices have; sequences are divided."""
    ins = tuple(OWN if a is SEQUENCE else P() for a in args)
    return {"step": single, "parallel": mapped(twin, ins, outs), "args": args, "mesh": {"sp": N}}


def causal(wrong: str = "") -> Case:
    def single(w: Any, x: Any) -> Any:
        return jax.nn.silu(conv(w, x, (3, 0)))

    def twin(w: Any, x: Any) -> Any:
        edges = jnp.pad(x, ((0, 0), (3, 0), (0, 0))) if wrong == "zeros" else wide(x, 3, 0)
        return jax.nn.silu(conv(w, edges, (0, 0)))

    return case(single, twin, OWN, S((4, CHANNELS, 5), F), SEQUENCE)


def depthwise(wrong: str = "") -> Case:
    def single(w: Any, x: Any) -> Any:
        return conv(w, x, (3, 0), CHANNELS)

    def twin(w: Any, x: Any) -> Any:
        edges = wide(x, 2, 1) if wrong == "one further" else wide(x, 3, 0)
        return conv(w, edges, (0, 0), CHANNELS)

    return case(single, twin, OWN, S((4, 1, CHANNELS), F), SEQUENCE)


def two_layers(wrong: str = "") -> Case:
    def single(w: Any, v: Any, x: Any) -> Any:
        return conv(v, jax.nn.relu(conv(w, x, (1, 1))), (1, 1))

    def twin(w: Any, v: Any, x: Any) -> Any:
        y = jax.nn.relu(conv(w, wide(x, 1, 1), (0, 0)))
        edges = jnp.pad(y, ((0, 0), (1, 1), (0, 0))) if wrong == "second" else wide(y, 1, 1)
        return conv(v, edges, (0, 0))

    return case(single, twin, OWN, S((3, CHANNELS, 5), F), S((3, 5, 4), F), SEQUENCE)


def shifted_products(wrong: str = "") -> Case:
    def products(w: Any, x: Any, count: int) -> Any:
        return sum(x[:, k : k + count] * w[k] for k in range(4))

    def single(w: Any, x: Any) -> Any:
        return products(w, jnp.pad(x, ((0, 0), (3, 0), (0, 0))), LENGTH)

    def twin(w: Any, x: Any) -> Any:
        return products(w[::-1] if wrong == "reversed" else w, wide(x, 3, 0), LENGTH // N)

    return case(single, twin, OWN, S((4, CHANNELS), F), SEQUENCE)


def gradients(wrong: str = "") -> Case:
    def loss(pad: tuple[int, int], edges: Callable[[Any], Any], w: Any, x: Any, t: Any) -> Any:
        return jnp.sum((conv(w, edges(x), pad) - t) ** 2)

    def single(w: Any, x: Any, t: Any) -> Any:
        return jax.value_and_grad(lambda w, x: loss((1, 1), lambda x: x, w, x, t), (0, 1))(w, x)

    def twin(w: Any, x: Any, t: Any) -> Any:
        def own(w: Any, x: Any) -> Any:
            return loss((0, 0), lambda x: wide(x, 1, 1), w, x, t)

        value, (of_w, of_x) = jax.value_and_grad(own, (0, 1))(w, x)
        of_w = of_w if wrong == "own kernel" else lax.psum(of_w, "sp")
        return lax.psum(value, "sp"), (of_w, of_x)

    outs = (P(), (P(), OWN))
    return case(single, twin, outs, S((3, CHANNELS, CHANNELS), F), SEQUENCE, SEQUENCE)


def gated_block(wrong: str = "") -> Case:
    """Mamba's block without its scan: a causal convolution, two gates, a projection."""

    def loss(conved: Callable[[Any, Any], Any], p: Any, x: Any, t: Any) -> Any:
        u = jax.nn.silu(conved(p["w"], x) + p["b"])
        return jnp.sum(((u * jax.nn.silu(x @ p["gate"])) @ p["out"] - t) ** 2)

    def single(p: Any, x: Any, t: Any) -> Any:
        return jax.value_and_grad(
            lambda p: loss(lambda w, x: conv(w, x, (3, 0), CHANNELS), p, x, t)
        )(p)

    def twin(p: Any, x: Any, t: Any) -> Any:
        def own(w: Any, x: Any) -> Any:
            return conv(w, wide(x, 3, 0), (0, 0), CHANNELS)

        value, of_p = jax.value_and_grad(lambda p: loss(own, p, x, t))(p)
        if wrong != "own sums":
            of_p = jax.tree.map(lambda g: lax.psum(g, "sp"), of_p)
        return lax.psum(value, "sp"), of_p

    square = S((CHANNELS, CHANNELS), F)
    p = {"w": S((4, 1, CHANNELS), F), "b": S((CHANNELS,), F), "gate": square, "out": square}
    return case(single, twin, (P(), P()), p, SEQUENCE, SEQUENCE)


RIGHT, WRONG = beside_twins(
    {
        causal: ("zeros",),
        depthwise: ("one further",),
        two_layers: ("second",),
        shifted_products: ("reversed",),
        gradients: ("own kernel",),
        gated_block: ("own sums",),
    }
)

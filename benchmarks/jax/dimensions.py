"""Layers whose features, heads, classes, experts or centres are divided by hand over four devices,
with gradients, in shard_map with its check of what varies.  Written before any of them was run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P
from shapes import IDS, Case, F, S, beside_twins

N, D, H = 4, 8, 8
X = S((N, D), F)


def made(
    single: Callable[..., Any], twin: Callable[..., Any], args: Any, ins: Any, outs: Any, n: int = 4
) -> Case:
    """Both with the value and the gradients of the first argument."""
    return {
        "step": lambda *a: jax.value_and_grad(single)(*a),
        "parallel": jax.shard_map(
            lambda *a: jax.value_and_grad(twin)(*a), in_specs=ins, out_specs=(P(), outs)
        ),
        "args": args,
        "mesh": {"tp": n},
    }


def normed_features(wrong: str = "") -> Case:
    """A layer norm over features that are divided."""

    def single(p: Any, x: Any) -> Any:
        h = x @ p["u"]
        mean = h.mean(-1, keepdims=True)
        z = (h - mean) * lax.rsqrt(((h - mean) ** 2).mean(-1, keepdims=True) + 1e-5) * p["g"]
        return ((z @ p["w"]) ** 2).mean()

    def twin(p: Any, x: Any) -> Any:
        h = x @ p["u"]
        mean = h.mean(-1, keepdims=True)
        if wrong != "mean":
            mean = lax.pmean(mean, "tp")
        square = ((h - mean) ** 2).mean(-1, keepdims=True)
        square = lax.psum(square, "tp") if wrong == "scale" else lax.pmean(square, "tp")
        z = (h - mean) * lax.rsqrt(square + 1e-5) * p["g"]
        return (lax.psum(z @ p["w"], "tp") ** 2).mean()

    p = {"u": S((D, H), F), "g": S((H,), F), "w": S((H, D), F)}
    at = {"u": P(None, "tp"), "g": P("tp"), "w": P("tp")}
    return made(single, twin, (p, X), (at, P()), at)


def heads(wrong: str = "") -> Case:
    """Attention with normed queries and keys, one head on each device."""

    def attend(p: Any, x: Any, count: int, scale: float) -> Any:
        def cut(w: Any) -> Any:
            y = (x @ w).reshape(*x.shape[:2], count, 4)
            return y * lax.rsqrt((y**2).mean(-1, keepdims=True) + 1e-6)

        q, k = cut(p["q"]), cut(p["k"])
        v = (x @ p["v"]).reshape(*x.shape[:2], count, 4)
        s = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) * scale, -1)
        return jnp.einsum("bhqk,bkhd->bqhd", s, v).reshape(*x.shape[:2], -1) @ p["o"]

    def single(p: Any, x: Any) -> Any:
        return (attend(p, x, 4, 0.5) ** 2).mean()

    def twin(p: Any, x: Any) -> Any:
        y = attend(p, x, 1, 0.25 if wrong == "scale" else 0.5)
        return ((lax.pmean(y, "tp") if wrong == "mean" else lax.psum(y, "tp")) ** 2).mean()

    p = {**{k: S((D, 16), F) for k in "qkv"}, "o": S((16, D), F)}
    at = {**dict.fromkeys("qkv", P(None, "tp")), "o": P("tp")}
    return made(single, twin, (p, S((2, 3, D), F)), (at, P()), at)


def focal_classes(wrong: str = "") -> Case:
    """The focal loss of a divided vocabulary."""
    count = 12

    def single(p: Any, x: Any, y: Any) -> Any:
        log = jnp.take_along_axis(jax.nn.log_softmax(x @ p), y[:, None], -1)[:, 0]
        return -((1 - jnp.exp(log)) ** 2 * log).mean()

    def twin(p: Any, x: Any, y: Any) -> Any:
        z = x @ p
        own = z.shape[-1]
        first = lax.axis_index("tp") * own
        top = lax.stop_gradient(z.max(-1))
        top = lax.pmax(top, "tp")
        total = lax.psum(jnp.exp(z - top[:, None]).sum(-1), "tp")
        inside = (y >= first) & (y < first + own)
        if wrong == "inside":
            inside = (y > first) & (y < first + own)
        at = jnp.clip(y - first, 0, own - 1)
        mine = jnp.take_along_axis(z, at[:, None], -1)[:, 0]
        target = lax.psum(jnp.where(inside, mine, 0.0), "tp")
        log = target - top - jnp.log(total)
        if wrong == "top":
            log = target - jnp.log(total)
        return -((1 - jnp.exp(log)) ** 2 * log).mean()

    at = P(None, "tp")
    args = (S((D, count), F), X, S((N,), IDS))
    return made(single, twin, args, (at, P(), P()), at)


def gated(wrong: str = "") -> Case:
    """A gated layer whose hidden units have norms by groups, two groups on each device."""

    def hidden(p: Any, x: Any, groups: int) -> Any:
        h = jax.nn.silu(x @ p["g"]) * (x @ p["u"])
        h = h.reshape(*h.shape[:-1], groups, -1)
        h = h * lax.rsqrt((h**2).mean(-1, keepdims=True) + 1e-5)
        return h.reshape(*x.shape[:-1], -1) @ p["w"]

    def single(p: Any, x: Any) -> Any:
        return (hidden(p, x, 8) ** 2).mean()

    def twin(p: Any, x: Any) -> Any:
        y = lax.psum(hidden(p, x, 1 if wrong == "groups" else 2), "tp")
        return ((y + x if wrong == "residual" else y) ** 2).mean()

    p = {"g": S((D, 16), F), "u": S((D, 16), F), "w": S((16, D), F)}
    at = {"g": P(None, "tp"), "u": P(None, "tp"), "w": P("tp")}
    return made(single, twin, (p, X), (at, P()), at)


def adapters(wrong: str = "") -> Case:
    """Frozen weights with adapters: the first half of a pair is whole, the second divided."""

    def single(p: Any, w: Any, x: Any) -> Any:
        h = jax.nn.gelu(x @ w["u"] + 2.0 * (x @ p["a"] @ p["b"]))
        return ((h @ w["w"]) ** 2).mean()

    def twin(p: Any, w: Any, x: Any) -> Any:
        scale = 1.0 if wrong == "scale" else 2.0
        h = jax.nn.gelu(x @ w["u"] + scale * (x @ p["a"] @ p["b"]))
        y = h @ w["w"]
        return ((y if wrong == "reduce" else lax.psum(y, "tp")) ** 2).mean()

    p = {"a": S((D, 2), F), "b": S((2, 16), F)}
    w = {"u": S((D, 16), F), "w": S((16, D), F)}
    at = {"a": P(), "b": P(None, "tp")}

    def mapped_twin(p: Any, w: Any, x: Any) -> Any:
        if wrong == "reduce":
            return lax.pmean(twin(p, w, x), "tp")
        return twin(p, w, x)

    return made(single, mapped_twin, (p, w, X), (at, {"u": P(None, "tp"), "w": P("tp")}, P()), at)


def centres(wrong: str = "") -> Case:
    """Soft assignments to centres that are divided."""

    def single(p: Any, x: Any) -> Any:
        far = ((x[:, None] - p) ** 2).sum(-1)
        return (jax.nn.softmax(-far, -1) * far).sum(-1).mean()

    def twin(p: Any, x: Any) -> Any:
        far = ((x[:, None] - p) ** 2).sum(-1)
        low = lax.pmin(lax.stop_gradient(far.min(-1, keepdims=True)), "tp")
        e = jnp.exp(low - far)
        total = e.sum(-1)
        if wrong != "total":
            total = lax.psum(total, "tp")
        return lax.psum((e * far).sum(-1) / total, "tp").mean() * (2 if wrong == "twice" else 1)

    return made(single, twin, (S((8, D), F), X), (P("tp"), P()), P("tp"))


def experts(wrong: str = "") -> Case:
    """The two best of eight experts, two of them on each device."""

    def gates(p: Any, x: Any) -> Any:
        best, chosen = lax.top_k(jax.nn.softmax(x @ p, -1), 2)
        best = best / best.sum(-1, keepdims=True)
        return (jax.nn.one_hot(chosen, 8) * best[..., None]).sum(-2)

    def ffn(p: Any, x: Any) -> Any:
        h = jax.nn.relu(jnp.einsum("td,edf->tef", x, p["u"]))
        return jnp.einsum("tef,efd->ted", h, p["w"])

    def single(p: Any, x: Any) -> Any:
        return (jnp.einsum("ted,te->td", ffn(p, x), gates(p["r"], x)) ** 2).mean()

    def twin(p: Any, x: Any) -> Any:
        first = lax.axis_index("tp") * 2
        if wrong == "other":
            first = 6 - first
        g = lax.dynamic_slice_in_dim(gates(p["r"], x), first, 2, 1)
        y = lax.psum(jnp.einsum("ted,te->td", ffn(p, x), g), "tp")
        return (y**2).sum() / (N * D if wrong != "sum" else N)

    p = {"r": S((D, 8), F), "u": S((8, D, 6), F), "w": S((8, 6, D), F)}
    at = {"r": P(), "u": P("tp"), "w": P("tp")}
    return made(single, twin, (p, X), (at, P()), at)


def embedded(wrong: str = "") -> Case:
    """Tables divided along their columns, gathered where they are read."""

    def single(p: Any, t: Any) -> Any:
        return ((p["e"][t] @ p["w"]) ** 2).mean()

    def twin(p: Any, t: Any) -> Any:
        x = lax.all_gather(p["e"][t], "tp", axis=-1, tiled=True)
        if wrong == "order":
            x = jnp.flip(x.reshape(*x.shape[:-1], 4, 2), -2).reshape(x.shape)
        y = x @ p["w"]
        return lax.pmean((y**2).mean() * (4 if wrong == "scale" else 1), "tp")

    p = {"e": S((10, D), F), "w": S((D, 12), F)}
    at = {"e": P(None, "tp"), "w": P(None, "tp")}
    return made(single, twin, (p, S((N, 3), IDS)), (at, P()), at)


def redundancy(wrong: str = "") -> Case:
    """The cross-correlation of two views over the batch of all devices (Barlow twins)."""

    def normal(z: Any, mean: Any) -> Any:
        centred = z - mean(z)
        return centred * lax.rsqrt(mean(centred**2) + 1e-5)

    def loss(c: Any) -> Any:
        eye = jnp.eye(c.shape[0])
        return (((c - eye) ** 2) * (eye + 0.01 * (1 - eye))).sum()

    def single(p: Any, x: Any, y: Any) -> Any:
        u, v = (normal(t @ p, lambda z: z.mean(0)) for t in (x, y))
        return loss(u.T @ v / (4 * N))

    def twin(p: Any, x: Any, y: Any) -> Any:
        def mean(z: Any) -> Any:
            own = z.mean(0)
            return own if wrong == "own" else lax.pmean(own, "tp")

        u, v = (normal(t @ p, mean) for t in (x, y))
        c = u.T @ v / N
        return loss(lax.psum(c, "tp") if wrong == "sum" else lax.pmean(c, "tp"))

    rows = S((4 * N, D), F)
    return made(single, twin, (S((D, 5), F), rows, rows), (P(), P("tp"), P("tp")), P())


def siglip(wrong: str = "") -> Case:
    """Sigmoid losses of all pairs, texts going round."""

    def pairs(a: Any, b: Any, sign: Any, p: Any) -> Any:
        return -jax.nn.log_sigmoid(sign * (a @ b.T * jnp.exp(p["t"]) + p["b"])).sum()

    def single(p: Any, x: Any, y: Any) -> Any:
        sign = 2 * jnp.eye(8) - 1
        return pairs(x @ p["x"], y @ p["y"], sign, p) / 8

    def twin(p: Any, x: Any, y: Any) -> Any:
        a, b = x @ p["x"], y @ p["y"]
        total = pairs(a, b, 2 * jnp.eye(2) - 1, p)
        for turn in range(1, 3 if wrong == "turns" else 4):
            b = lax.ppermute(b, "tp", [(i, (i + 1) % 4) for i in range(4)])
            total = total + pairs(a, b, 1.0 if wrong == "sign" else -1.0, p)
            del turn
        return lax.psum(total, "tp") / 8

    p = {"x": S((D, 5), F), "y": S((D, 5), F), "t": S((), F), "b": S((), F)}
    rows = S((8, D), F)
    return made(single, twin, (p, rows, rows), (P(), P("tp"), P("tp")), P())


RIGHT, WRONG = beside_twins(
    {
        normed_features: ("mean", "scale"),
        heads: ("scale", "mean"),
        focal_classes: ("inside", "top"),
        gated: ("groups", "residual"),
        adapters: ("scale", "reduce"),
        centres: ("total", "twice"),
        experts: ("other", "sum"),
        embedded: ("order", "scale"),
        redundancy: ("own", "sum"),
        siglip: ("turns", "sign"),
    }
)

"""Layers of `afresh`: attention, experts, a divided vocabulary, sequence parallelism, padding."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P
from shapes import IDS, Case, F, S, mapped

# -- grouped queries with rotary positions, tensor parallel ----------------------------------------


def rotated(x: Any, positions: Any, base: float = 10000.0) -> Any:
    half = x.shape[-1] // 2
    speeds = base ** (-jnp.arange(half, dtype=F) / half)
    angles = positions[:, None].astype(F) * speeds
    sin, cos = jnp.sin(angles)[:, None], jnp.cos(angles)[:, None]
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def rotary(turned: bool = True) -> Case:
    heads, shared, size = 8, 2, 8

    def block(p: Any, x: Any, turned: bool = True) -> Any:
        at = jnp.arange(x.shape[1])
        y = x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * p["norm"]
        q = (y @ p["q"]).reshape(*y.shape[:2], -1, size)
        k = (y @ p["k"]).reshape(*y.shape[:2], -1, size)
        v = (y @ p["v"]).reshape(*y.shape[:2], -1, size)
        q = jax.vmap(partial(rotated, positions=at))(q)
        if turned:
            k = jax.vmap(partial(rotated, positions=at))(k)
        k, v = (jnp.repeat(i, heads // shared, axis=2) for i in (k, v))
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / size**0.5
        s = jnp.where(at[:, None] >= at[None, :], s, -jnp.inf)
        o = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s), v)
        return x + o.reshape(*x.shape[:2], -1) @ p["o"]

    def loss(p: Any, x: Any, turned: bool = True) -> Any:
        return jnp.sum(jnp.tanh(block(p, x, turned)))

    p = {
        "norm": S((32,), F),
        "q": S((32, heads * size), F),
        "k": S((32, shared * size), F),
        "v": S((32, shared * size), F),
        "o": S((heads * size, 32), F),
    }
    at = {
        "norm": P(),
        "q": P(None, "tp"),
        "k": P(None, "tp"),
        "v": P(None, "tp"),
        "o": P("tp", None),
    }
    made: Case = {
        "step": jax.value_and_grad(lambda p, x: loss(p, x)),
        "args": (p, S((2, 6, 32), F)),
        "mesh": {"tp": 2},
        "in_shardings": (at, P()),
        "out_shardings": (P(), at),
    }
    if not turned:
        made["parallel"] = jax.value_and_grad(partial(loss, turned=False))
    return made


# -- linear attention in a ring --------------------------------------------------------------------


def linear_ring(last: bool = True) -> Case:
    """Keys and values go round; what they add up to needs no maximum."""
    n = 4

    def feature(x: Any) -> Any:
        return jax.nn.elu(x) + 1

    def single(q: Any, k: Any, v: Any) -> Any:
        s = jnp.einsum("bqd,bkd->bqk", feature(q), feature(k))
        return jnp.einsum("bqk,bkd->bqd", s, v) / s.sum(-1, keepdims=True)

    def twin(q: Any, k: Any, v: Any) -> Any:
        def body(i: Any, carry: Any) -> Any:
            num, den, k, v = carry
            s = jnp.einsum("bqd,bkd->bqk", feature(q), feature(k))
            num = num + jnp.einsum("bqk,bkd->bqd", s, v)
            den = den + s.sum(-1, keepdims=True)
            k, v = (lax.ppermute(x, "sp", [(j, (j + 1) % n) for j in range(n)]) for x in (k, v))
            return num, den, k, v

        zero = (jnp.zeros_like(q), jnp.zeros((*q.shape[:2], 1)), k, v)
        num, den, _, _ = lax.fori_loop(0, n if last else n - 1, body, zero)
        return num / den

    at, x = P(None, "sp"), S((2, 16, 8), F)
    return {
        "step": single,
        "parallel": mapped(twin, (at, at, at), at),
        "args": (x, x, x),
        "mesh": {"sp": n},
    }


# -- experts on their own ranks, two for a token ---------------------------------------------------


def two_experts(weighted: bool = True) -> Case:
    """Every token goes to every expert's rank as a row that its weight scales (no capacity)."""
    count = 4

    def weights(gate: Any, x: Any) -> Any:
        best, which = lax.top_k(x @ gate, 2)
        share = jax.nn.softmax(best, axis=-1)
        hot = jax.nn.one_hot(which, count, dtype=x.dtype)
        return jnp.einsum("tk,tke->te", share, hot)

    def single(p: Any, x: Any) -> Any:
        w = weights(p["gate"], x)
        h = jax.nn.silu(jnp.einsum("td,edf->etf", x, p["up"]))
        return jnp.einsum("te,etf,efd->td", w, h, p["down"])

    def twin(p: Any, x: Any) -> Any:
        w = weights(p["gate"], x)
        rows = jnp.broadcast_to(x, (count, *x.shape))
        if not weighted:
            w = (w > 0).astype(x.dtype)
        # Rows of all ranks, for the expert that this one has.
        rows = lax.all_to_all(rows, "ep", 0, 1, tiled=True)
        h = jax.nn.silu(jnp.einsum("etd,edf->etf", rows, p["up"]))
        y = jnp.einsum("etf,efd->etd", h, p["down"])
        y = lax.all_to_all(y, "ep", 1, 0, tiled=True)
        return jnp.einsum("te,etd->td", w, y)

    p = {"gate": S((8, count), F), "up": S((count, 8, 16), F), "down": S((count, 16, 8), F)}
    at = {"gate": P(), "up": P("ep"), "down": P("ep")}
    return {
        "step": single,
        "parallel": mapped(twin, (at, P("ep")), P("ep")),
        "args": (p, S((16, 8), F)),
        "mesh": {"ep": count},
    }


# -- a divided vocabulary: embedding and loss, indices into rows -----------------------------------


def tied(shifted: bool = False) -> Case:
    def single(p: Any, ids: Any, labels: Any) -> Any:
        x = jnp.tanh(p["table"][ids] @ p["w"])
        logits = x @ p["table"].T
        logp = jax.nn.log_softmax(logits, axis=-1)
        flat = logp.reshape(-1, logp.shape[-1])
        return -jnp.mean(flat[jnp.arange(flat.shape[0]), labels.reshape(-1)])

    def twin(p: Any, ids: Any, labels: Any) -> Any:
        part = p["table"].shape[0]
        begin = lax.axis_index("v") * part

        def rows(table: Any, ids: Any) -> Any:
            own = ids - begin
            inside = (own >= 0) & (own < part + shifted)
            found = table[jnp.where(inside, own, 0)]
            return lax.psum(jnp.where(inside[..., None], found, 0.0), "v")

        x = jnp.tanh(rows(p["table"], ids) @ p["w"])
        logits = x @ p["table"].T
        top = lax.pmax(logits.max(-1), "v")
        total = lax.psum(jnp.exp(logits - top[..., None]).sum(-1), "v")
        own = labels - begin
        hot = jax.nn.one_hot(own, part)
        score = lax.psum((hot * (logits - top[..., None])).sum(-1), "v")
        return jnp.mean(jnp.log(total) - score)

    p = {"table": S((32, 16), F), "w": S((16, 16), F)}
    at = {"table": P("v"), "w": P()}
    return {
        "step": single,
        "parallel": mapped(twin, (at, P(), P()), P()),
        "args": (p, S((2, 6), IDS), S((2, 6), IDS)),
        "mesh": {"v": 4},
    }


# -- sequence parallelism around a layer norm ------------------------------------------------------


def sequence(scattered: bool = True) -> Case:
    def norm(x: Any, p: Any) -> Any:
        return jax.nn.standardize(x, axis=-1, epsilon=1e-5) * p["scale"] + p["shift"]

    def single(p: Any, x: Any) -> Any:
        y = norm(x, p)
        y = jax.nn.gelu(y @ p["up"] + p["bias"]) @ p["down"]
        return norm(x + y, p)

    def twin(p: Any, x: Any) -> Any:
        y = lax.all_gather(norm(x, p), "tp", axis=1, tiled=True)
        y = jax.nn.gelu(y @ p["up"] + p["bias"]) @ p["down"]
        if scattered:
            y = lax.psum_scatter(y, "tp", scatter_dimension=1, tiled=True)
        else:
            y = lax.dynamic_slice_in_dim(y, lax.axis_index("tp") * x.shape[1], x.shape[1], 1)
        return norm(x + y, p)

    p = {
        "scale": S((8,), F),
        "shift": S((8,), F),
        "up": S((8, 16), F),
        "bias": S((16,), F),
        "down": S((16, 8), F),
    }
    at = {"scale": P(), "shift": P(), "up": P(None, "tp"), "bias": P("tp"), "down": P("tp")}
    return {
        "step": single,
        "parallel": mapped(twin, (at, P(None, "tp")), P(None, "tp")),
        "args": (p, S((2, 8, 8), F)),
        "mesh": {"tp": 4},
    }


# -- layers that are recomputed, by a list of checkpoints, with padding masks ----------------------


def padded(masked: bool = True) -> Case:
    def layer(w: Any, x: Any, seen: Any) -> Any:
        q, k, v = jnp.split(x @ w["qkv"], 3, axis=-1)
        s = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5
        s = jnp.where(seen[:, None, :], s, jnp.finfo(F).min)
        return x + jax.nn.softmax(s, axis=-1) @ v @ w["o"]

    def loss(p: Any, x: Any, seen: Any, masked: bool = True) -> Any:
        for w in p:
            x = jax.checkpoint(layer)(w, x, seen)
        per = jnp.mean(jnp.square(x), axis=-1)
        kept = seen.astype(F) if masked else jnp.ones_like(per)
        return jnp.sum(per * kept) / jnp.sum(kept)

    p = [{"qkv": S((8, 24), F), "o": S((8, 8), F)}] * 2
    made: Case = {
        "step": jax.value_and_grad(lambda p, x, seen: loss(p, x, seen)),
        "args": (p, S((4, 6, 8), F), S((4, 6), jnp.bool_)),
        "mesh": {"dp": 2},
        "in_shardings": (jax.tree.map(lambda _: P(), p), P("dp"), P("dp")),
    }
    if not masked:
        made["parallel"] = jax.value_and_grad(partial(loss, masked=False))
    return made

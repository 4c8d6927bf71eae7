"""Forms that no other module here has: attention in its variants, decoding, recurrences, places.

Each right step stands beside a wrong twin, written before any of them was run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P
from shapes import IDS, Case, F, S, mapped

# -- attention in its variants, by the partitioner -------------------------------------------------


def _heads(p: Any, x: Any) -> Any:
    return tuple(jnp.einsum("btd,dhk->bthk", x, p[n]) for n in "qkv")


def _attention(score: Callable[[Any], Any], p: Any, x: Any) -> Any:
    q, k, v = _heads(p, x)
    if k.shape[2] != q.shape[2]:
        k, v = (jnp.repeat(i, q.shape[2] // i.shape[2], axis=2) for i in (k, v))
    s = score(jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5)
    o = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, axis=-1), v)
    return jnp.einsum("bqhd,hdo->bqo", o, p["o"])


def _variant(
    right: Callable[[Any], Any], wrong: Callable[[Any], Any], ok: bool, kv: int = 4
) -> Case:
    def loss(score: Callable[[Any], Any], p: Any, x: Any) -> Any:
        return jnp.sum(jnp.tanh(_attention(score, p, x)))

    p = {
        "q": S((16, 4, 8), F),
        "k": S((16, kv, 8), F),
        "v": S((16, kv, 8), F),
        "o": S((4, 8, 16), F),
    }
    at = {"q": P(None, "tp"), "k": P(None, "tp"), "v": P(None, "tp"), "o": P("tp")}
    made: Case = {
        "step": jax.value_and_grad(partial(loss, right)),
        "args": (p, S((4, 8, 16), F)),
        "mesh": {"dp": 2, "tp": 2},
        "in_shardings": (at, P("dp")),
        "out_shardings": (P(), at),
    }
    if not ok:
        made["parallel"] = jax.value_and_grad(partial(loss, wrong))
    return made


def _distance(s: Any) -> Any:
    return jnp.arange(s.shape[-2])[:, None] - jnp.arange(s.shape[-1])[None, :]


def window(ok: bool = True) -> Case:
    def score(width: int, s: Any) -> Any:
        far = _distance(s)
        return jnp.where((far >= 0) & (far < width), s, -jnp.inf)

    return _variant(partial(score, 3), partial(score, 4), ok)


def alibi(ok: bool = True) -> Case:
    def score(base: float, s: Any) -> Any:
        slopes = base ** -(jnp.arange(1, s.shape[1] + 1) * 8.0 / s.shape[1])
        far = _distance(s)
        s = s - slopes[:, None, None] * far
        return jnp.where(far >= 0, s, jnp.finfo(F).min)

    return _variant(partial(score, 2.0), partial(score, 2.5), ok, kv=2)


def softcap(ok: bool = True) -> Case:
    def score(cap: float, s: Any) -> Any:
        return jnp.where(_distance(s) >= 0, cap * jnp.tanh(s / cap), -1e9)

    return _variant(partial(score, 30.0), partial(score, 50.0), ok)


def buckets(ok: bool = True) -> Case:
    """T5's relative positions: a table's rows by a logarithm of the distance."""

    def bucket(far: Any, most: int) -> Any:
        near = 2
        large = near + (
            jnp.log(jnp.maximum(far, 1) / near) / jnp.log(8 / near) * (4 - near)
        ).astype(IDS)
        return jnp.where(far < near, jnp.maximum(far, 0), jnp.minimum(large, most))

    def loss(most: int, p: Any, x: Any) -> Any:
        def score(s: Any) -> Any:
            far = _distance(s)
            return s + p["table"][bucket(far, most)].transpose(2, 0, 1)

        return jnp.mean(_attention(score, p, x) ** 2)

    p = {
        "q": S((16, 4, 8), F),
        "k": S((16, 4, 8), F),
        "v": S((16, 4, 8), F),
        "o": S((4, 8, 16), F),
        "table": S((4, 4), F),
    }
    at = {
        "q": P(None, "tp"),
        "k": P(None, "tp"),
        "v": P(None, "tp"),
        "o": P("tp"),
        "table": P(None, "tp"),
    }
    made: Case = {
        "step": partial(loss, 3),
        "args": (p, S((4, 8, 16), F)),
        "mesh": {"dp": 2, "tp": 2},
        "in_shardings": (at, P("dp")),
        "out_shardings": P(),
    }
    if not ok:
        made["parallel"] = partial(loss, 2)
    return made


def complex_rotary(ok: bool = True) -> Case:
    def step(sign: float, w: Any, x: Any) -> Any:
        y = (x @ w).reshape(*x.shape[:2], -1, 4, 2)
        angles = jnp.arange(x.shape[1])[:, None] * 10000.0 ** (-jnp.arange(4) / 4)
        z = lax.complex(y[..., 0], y[..., 1]) * jnp.exp(sign * 1j * angles)[:, None]
        return jnp.stack([z.real, z.imag], -1).reshape(*x.shape[:2], -1)

    made: Case = {
        "step": partial(step, 1.0),
        "args": (S((16, 32), F), S((2, 6, 16), F)),
        "mesh": {"tp": 2},
        "in_shardings": (P(None, "tp"), P()),
        "out_shardings": P(None, None, "tp"),
    }
    if not ok:
        made["parallel"] = partial(step, -1.0)
    return made


def interleaved_rotary(ok: bool = True) -> Case:
    def step(turn: int, w: Any, x: Any) -> Any:
        y = (x @ w).reshape(*x.shape[:2], -1, 8)
        angles = jnp.repeat(
            jnp.arange(x.shape[1])[:, None] * 10000.0 ** (-jnp.arange(4) / 4), 2, -1
        )
        other = jnp.stack([turn * -y[..., 1::2], turn * y[..., ::2]], -1).reshape(y.shape)
        z = y * jnp.cos(angles)[:, None] + other * jnp.sin(angles)[:, None]
        return z.reshape(*x.shape[:2], -1)

    made: Case = {
        "step": partial(step, 1),
        "args": (S((16, 32), F), S((2, 6, 16), F)),
        "mesh": {"tp": 2},
        "in_shardings": (P(None, "tp"), P()),
        "out_shardings": P(None, None, "tp"),
    }
    if not ok:
        made["parallel"] = partial(step, -1)
    return made


def packed(ok: bool = True) -> Case:
    """Several documents in a row: attention inside each."""

    def step(causal: bool, p: Any, x: Any, seg: Any) -> Any:
        def score(s: Any) -> Any:
            mask = seg[:, None, :, None] == seg[:, None, None, :]
            if causal:
                mask = mask & (_distance(s) >= 0)
            return jnp.where(mask, s, -1e30)

        return _attention(score, p, x)

    p = {"q": S((16, 4, 8), F), "k": S((16, 4, 8), F), "v": S((16, 4, 8), F), "o": S((4, 8, 16), F)}
    at = {"q": P(None, "tp"), "k": P(None, "tp"), "v": P(None, "tp"), "o": P("tp")}
    made: Case = {
        "step": partial(step, True),
        "args": (p, S((4, 8, 16), F), S((4, 8), IDS)),
        "mesh": {"dp": 2, "tp": 2},
        "in_shardings": (at, P("dp"), P("dp")),
        "out_shardings": P("dp"),
    }
    if not ok:
        made["parallel"] = partial(step, False)
    return made


# -- decoding --------------------------------------------------------------------------------------


def decode(ok: bool = True) -> Case:
    """One token: keys and values are written at its position, later places are hidden."""

    def step(off: int, p: Any, x: Any, ck: Any, cv: Any, pos: Any) -> Any:
        q, k, v = (jnp.einsum("bd,dhk->bhk", x, p[n]) for n in "qkv")
        ck = lax.dynamic_update_slice_in_dim(ck, k[:, None], pos, axis=1)
        cv = lax.dynamic_update_slice_in_dim(cv, v[:, None], pos, axis=1)
        s = jnp.einsum("bhd,bkhd->bhk", q, ck) * 8**-0.5
        s = jnp.where(jnp.arange(ck.shape[1]) <= pos + off, s, -1e30)
        o = jnp.einsum("bhk,bkhd->bhd", jax.nn.softmax(s, -1), cv)
        return jnp.einsum("bhd,hdo->bo", o, p["o"]), ck, cv

    p = {"q": S((16, 4, 8), F), "k": S((16, 4, 8), F), "v": S((16, 4, 8), F), "o": S((4, 8, 16), F)}
    at = {"q": P(None, "tp"), "k": P(None, "tp"), "v": P(None, "tp"), "o": P("tp")}
    cache = P("dp", None, "tp")
    made: Case = {
        "step": partial(step, 0),
        "args": (p, S((4, 16), F), S((4, 8, 4, 8), F), S((4, 8, 4, 8), F), S((), IDS)),
        "mesh": {"dp": 2, "tp": 2},
        "in_shardings": (at, P("dp"), cache, cache, P()),
        "out_shardings": (P("dp"), cache, cache),
    }
    if not ok:
        made["parallel"] = partial(step, 1)
    return made


def greedy(ok: bool = True) -> Case:
    """The best of a divided vocabulary: every rank's best, and the best of those."""

    def single(w: Any, x: Any) -> Any:
        return jnp.argmax(x @ w, axis=-1)

    def twin(w: Any, x: Any) -> Any:
        logits = x @ w
        best = jnp.argmax(logits, axis=-1)
        top = jnp.max(logits, axis=-1)
        if ok:
            best = best + lax.axis_index("v") * logits.shape[-1]
        tops = lax.all_gather(top, "v")
        bests = lax.all_gather(best, "v")
        rank = jnp.argmax(tops, axis=0)
        return jnp.take_along_axis(bests, rank[None], axis=0)[0]

    return {
        "step": single,
        "parallel": mapped(twin, (P(None, "v"), P()), P()),
        "args": (S((16, 32), F), S((4, 16), F)),
        "mesh": {"v": 4},
    }


# -- recurrences -----------------------------------------------------------------------------------


def selective(ok: bool = True) -> Case:
    """A diagonal recurrence by an associative scan; channels divided."""

    def step(flip: bool, w: Any, x: Any) -> Any:
        a = jax.nn.sigmoid(x @ w["a"])
        b = x @ w["b"]

        def join(left: Any, right: Any) -> Any:
            (la, lb), (ra, rb) = left, right
            return la * ra, (ra * lb + rb if flip else la * rb + lb)

        return lax.associative_scan(join, (a, b), axis=1)[1] @ w["o"]

    w = {"a": S((8, 16), F), "b": S((8, 16), F), "o": S((16, 8), F)}
    at = {"a": P(None, "tp"), "b": P(None, "tp"), "o": P("tp")}
    made: Case = {
        "step": partial(step, True),
        "args": (w, S((2, 8, 8), F)),
        "mesh": {"tp": 4},
        "in_shardings": (at, P()),
        "out_shardings": P(),
    }
    if not ok:
        made["parallel"] = partial(step, False)
    return made


def lstm(ok: bool = True) -> Case:
    """A gated recurrence in a scan, and its gradient; data parallel."""

    def loss(bias: float, w: Any, x: Any) -> Any:
        def cell(state: Any, x: Any) -> Any:
            h, c = state
            i, f, g, o = jnp.split(x @ w["x"] + h @ w["h"] + w["b"], 4, axis=-1)
            c = jax.nn.sigmoid(f + bias) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        start = (jnp.zeros((x.shape[1], 8)), jnp.zeros((x.shape[1], 8)))
        _, hs = lax.scan(cell, start, x)
        return jnp.mean(hs**2)

    w = {"x": S((4, 32), F), "h": S((8, 32), F), "b": S((32,), F)}
    made: Case = {
        "step": jax.value_and_grad(partial(loss, 1.0)),
        "args": (w, S((4, 8, 4), F)),
        "mesh": {"dp": 2},
        "in_shardings": (P(), P(None, "dp")),
        "out_shardings": (P(), P()),
    }
    if not ok:
        made["parallel"] = jax.value_and_grad(partial(loss, 0.0))
    return made


def loop(ok: bool = True) -> Case:
    """Newton and Schulz's iteration, as Muon does it, rows divided."""

    def step(count: int, x: Any) -> Any:
        x = x / (jnp.linalg.norm(x) + 1e-7)

        def turn(_: Any, x: Any) -> Any:
            a = x @ x.T
            return 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x

        return lax.fori_loop(0, count, turn, x)

    made: Case = {
        "step": partial(step, 3),
        "args": (S((8, 16), F),),
        "mesh": {"fsdp": 2},
        "in_shardings": (P("fsdp"),),
        "out_shardings": P("fsdp"),
    }
    if not ok:
        made["parallel"] = partial(step, 2)
    return made


def causal_convolution(ok: bool = True) -> Case:
    """A depthwise convolution of the past, channels divided (as Mamba's)."""

    def step(left: int, w: Any, x: Any) -> Any:
        y = x @ w["in"]
        y = lax.conv_general_dilated(
            y, w["conv"], (1,), [(left, 3 - left)], dimension_numbers=("NWC", "WIO", "NWC"),
            feature_group_count=w["conv"].shape[-1],
        )  # fmt: skip
        return jax.nn.silu(y + w["b"]) @ w["out"]

    w = {"in": S((8, 16), F), "conv": S((4, 1, 16), F), "b": S((16,), F), "out": S((16, 8), F)}
    at = {"in": P(None, "tp"), "conv": P(None, None, "tp"), "b": P("tp"), "out": P("tp")}
    made: Case = {
        "step": partial(step, 3),
        "args": (w, S((2, 8, 8), F)),
        "mesh": {"tp": 2},
        "in_shardings": (at, P()),
        "out_shardings": P(),
    }
    if not ok:
        made["parallel"] = partial(step, 2)
    return made


def group_norm(ok: bool = True) -> Case:
    def step(groups: int, g: Any, x: Any) -> Any:
        y = x.reshape(*x.shape[:-1], groups, -1)
        mean = y.mean((1, 2, 4), keepdims=True)
        var = y.var((1, 2, 4), keepdims=True)
        return ((y - mean) * lax.rsqrt(var + 1e-5)).reshape(x.shape) * g

    made: Case = {
        "step": partial(step, 4),
        "args": (S((16,), F), S((4, 4, 4, 16), F)),
        "mesh": {"dp": 2, "tp": 2},
        "in_shardings": (P("tp"), P("dp", None, None, "tp")),
        "out_shardings": P("dp", None, None, "tp"),
    }
    if not ok:
        made["parallel"] = partial(step, 2)
    return made

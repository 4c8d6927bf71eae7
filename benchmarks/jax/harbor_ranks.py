"""Steps of `harbor` that are written by hand over a mesh."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P
from shapes import IDS, Case, F, S, mapped

# -- Megatron's layer: column and row products, biases after the sum -------------------------------


def megatron(wrong: str = "") -> Case:
    d, h, k, f, t = 16, 4, 4, 32, 6

    def norm(x: Any, g: Any, b: Any) -> Any:
        mu = x.mean(-1, keepdims=True)
        return (x - mu) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-6) * g + b

    def layer(p: Any, x: Any, add: Callable[[Any], Any], add_after: Callable[[Any], Any]) -> Any:
        y = norm(x, p["ln1"]["scale"], p["ln1"]["bias"])
        q = jnp.einsum("bsd,dhk->bshk", y, p["wq"]) + p["bq"]
        key = jnp.einsum("bsd,dhk->bshk", y, p["wk"]) + p["bk"]
        v = jnp.einsum("bsd,dhk->bshk", y, p["wv"]) + p["bv"]
        w = jnp.einsum("bqhk,bshk->bhqs", q * k**-0.5, key)
        keep = jnp.arange(t)[:, None] >= jnp.arange(t)[None, :]
        w = jax.nn.softmax(jnp.where(keep, w, -1e9), axis=-1)
        o = jnp.einsum("bhqs,bshk->bqhk", w, v)
        x = x + add(jnp.einsum("bqhk,hkd->bqd", o, p["wo"])) + p["bo"]
        y = norm(x, p["ln2"]["scale"], p["ln2"]["bias"])
        y = jax.nn.gelu(y @ p["wi"] + p["bi"], approximate=True) @ p["wf"]
        if wrong == "bias":
            return x + add_after(y + p["bf"])
        return x + add_after(y) + p["bf"]

    def single(p: Any, x: Any) -> Any:
        return layer(p, x, lambda v: v, lambda v: v)

    def twin(p: Any, x: Any) -> Any:
        def total(v: Any) -> Any:
            return lax.psum(v, "model")

        return layer(p, x, (lambda v: v) if wrong == "attention" else total, total)

    pair = {"scale": S((d,), F), "bias": S((d,), F)}
    p = {
        "ln1": pair, "ln2": pair, "wo": S((h, k, d), F), "bo": S((d,), F), "wi": S((d, f), F),
        "bi": S((f,), F), "wf": S((f, d), F), "bf": S((d,), F),
        **{f"w{n}": S((d, h, k), F) for n in "qkv"}, **{f"b{n}": S((h, k), F) for n in "qkv"},
    }  # fmt: skip
    at = {
        "ln1": P(), "ln2": P(), "wo": P("model"), "bo": P(), "wi": P(None, "model"),
        "bi": P("model"), "wf": P("model"), "bf": P(),
        **{f"w{n}": P(None, "model") for n in "qkv"}, **{f"b{n}": P("model") for n in "qkv"},
    }  # fmt: skip
    return {
        "step": single,
        "parallel": mapped(twin, (at, P("data")), P("data")),
        "args": (p, S((4, t, d), F)),
        "mesh": {"data": 2, "model": 4},
    }


# -- one expert a token, groups of tokens with a capacity, all-to-all there and back ---------------


def switch(wrong: str = "") -> Case:
    n, tokens, d, f, experts, capacity = 4, 6, 8, 16, 4, 3

    def route(x: Any, w: Any) -> Any:
        probabilities = jax.nn.softmax(x @ w, axis=-1)
        best = jnp.argmax(probabilities, axis=-1)
        chosen = jax.nn.one_hot(best, experts)
        place = jnp.cumsum(chosen, axis=0) * chosen - 1.0
        kept = chosen * (place < capacity)
        slots = jax.nn.one_hot(place.astype(jnp.int32), capacity) * kept[..., None]
        gate = jnp.sum(probabilities * kept, axis=-1)
        return slots, slots if wrong == "gate" else slots * gate[:, None, None]

    def single(p: Any, x: Any) -> Any:
        def group(x: Any) -> Any:
            def right(x: Any, w: Any) -> Any:
                probabilities = jax.nn.softmax(x @ w, axis=-1)
                best = jnp.argmax(probabilities, axis=-1)
                chosen = jax.nn.one_hot(best, experts)
                place = jnp.cumsum(chosen, axis=0) * chosen - 1.0
                kept = chosen * (place < capacity)
                slots = jax.nn.one_hot(place.astype(jnp.int32), capacity) * kept[..., None]
                return slots, slots * jnp.sum(probabilities * kept, axis=-1)[:, None, None]

            slots, weights = right(x, p["router"])
            y = jnp.einsum("tec,td->ecd", slots, x)
            y = jax.nn.relu(jnp.einsum("ecd,edf->ecf", y, p["up"]))
            return jnp.einsum("tec,ecd->td", weights, jnp.einsum("ecf,efd->ecd", y, p["down"]))

        return x + jax.vmap(group)(x.reshape(n, tokens, d)).reshape(n * tokens, d)

    def twin(p: Any, x: Any) -> Any:
        slots, weights = route(x, p["router"])
        y = jnp.einsum("tec,td->ecd", slots, x)
        y = lax.all_to_all(y, "ep", split_axis=0, concat_axis=1, tiled=True)
        y = jax.nn.relu(jnp.einsum("ecd,edf->ecf", y, p["up"]))
        y = jnp.einsum("ecf,efd->ecd", y, p["down"])
        if wrong != "back":
            y = lax.all_to_all(y, "ep", split_axis=1, concat_axis=0, tiled=True)
        else:
            y = jnp.moveaxis(y.reshape(1, n, capacity, d), 1, 0).reshape(experts, capacity, d)
        return x + jnp.einsum("tec,ecd->td", weights, y)

    p = {
        "router": S((d, experts), F), "up": S((experts, d, f), F), "down": S((experts, f, d), F),
    }  # fmt: skip
    at = {"router": P(), "up": P("ep"), "down": P("ep")}
    return {
        "step": single,
        "parallel": mapped(twin, (at, P("ep")), P("ep")),
        "args": (p, S((n * tokens, d), F)),
        "mesh": {"ep": n},
    }


# -- a causal ring with -1e30 and a running maximum, in a fori_loop --------------------------------


def ring(wrong: str = "") -> Case:
    n, b, t, h, k = 4, 2, 8, 2, 4
    c = t // n

    def single(q: Any, key: Any, v: Any) -> Any:
        s = jnp.einsum("bqhk,bshk->bhqs", q, key) / jnp.sqrt(k)
        s = jnp.where(jnp.tril(jnp.ones((t, t), bool)), s, -1e30)
        return jnp.einsum("bhqs,bshk->bqhk", jax.nn.softmax(s, -1), v)

    def twin(q: Any, key: Any, v: Any) -> Any:
        me = lax.axis_index("sp")
        rows = me * c + jnp.arange(c)

        def tick(i: Any, carry: Any) -> Any:
            key, v, top, total, out = carry
            owner = (me + i if wrong == "owner" else me - i) % n
            columns = owner * c + jnp.arange(c)
            s = jnp.einsum("bqhk,bshk->bhqs", q, key) / jnp.sqrt(k)
            s = jnp.where(rows[:, None] >= columns[None, :], s, -1e30)
            now = jnp.maximum(top, s.max(-1))
            e = jnp.exp(s - now[..., None])
            old = jnp.exp(top - now)
            total = total * old + e.sum(-1)
            scale = 1.0 if wrong == "old" else old.transpose(0, 2, 1)[..., None]
            out = out * scale + jnp.einsum("bhqs,bshk->bqhk", e, v)
            key, v = (lax.ppermute(w, "sp", [(j, (j + 1) % n) for j in range(n)]) for w in (key, v))
            return key, v, now, total, out

        start = (
            key, v, jnp.full((b, h, c), -1e30), jnp.zeros((b, h, c)), jnp.zeros((b, c, h, k)),
        )  # fmt: skip
        *_, total, out = lax.fori_loop(0, n, tick, start)
        return out / total.transpose(0, 2, 1)[..., None]

    x = S((b, t, h, k), F)
    at = P(None, "sp")
    return {
        "step": single,
        "parallel": mapped(twin, (at, at, at), at),
        "args": (x, x, x),
        "mesh": {"sp": n},
    }


# -- a pipeline that hands on microbatches in a fori_loop ------------------------------------------


def gpipe(wrong: str = "") -> Case:
    n, m, b, d = 4, 4, 2, 8

    def stage(w: Any, x: Any) -> Any:
        return x + jnp.tanh(x @ w["a"] + w["b"])

    def single(p: Any, x: Any) -> Any:
        for i in range(n):
            x = stage(jax.tree.map(lambda w, i=i: w[i], p), x)
        return x

    def twin(p: Any, x: Any) -> Any:
        me = lax.axis_index("stage")
        w = jax.tree.map(lambda w: w[0], p)
        last = n - 1

        def tick(i: Any, carry: Any) -> Any:
            state, out = carry
            fresh = lax.dynamic_index_in_dim(x, jnp.minimum(i, m - 1), keepdims=False)
            state = stage(w, jnp.where(me == 0, fresh, state))
            place = jnp.maximum(i - (last - 1 if wrong == "place" else last), 0)
            out = lax.dynamic_update_index_in_dim(out, state, place, 0)
            ring = [(j, (j + (2 if wrong == "ring" else 1)) % n) for j in range(n)]
            return lax.ppermute(state, "stage", ring), out

        start = jnp.zeros_like(x[0]), jnp.zeros_like(x)
        _, out = lax.fori_loop(0, n + m - 1, tick, start)
        return lax.psum(jnp.where(me == last, out, 0.0), "stage")

    p = {"a": S((n, d, d), F), "b": S((n, d), F)}
    at = {"a": P("stage"), "b": P("stage")}
    return {
        "step": single,
        "parallel": mapped(twin, (at, P()), P()),
        "args": (p, S((m, b, d), F)),
        "mesh": {"stage": n},
    }


# -- a divided vocabulary: smoothed labels and a z-loss, with gradients ----------------------------


def vocabulary(wrong: str = "") -> Case:
    n, b, d, v, smooth = 4, 8, 8, 24, 0.1
    own = v // n

    def single(w: Any, x: Any, labels: Any) -> Any:
        def loss(w: Any, x: Any) -> Any:
            z = x @ w
            lse = jax.nn.logsumexp(z, axis=-1)
            target = jnp.take_along_axis(z, labels[:, None], axis=-1)[:, 0]
            ce = lse - (1 - smooth) * target - smooth * z.mean(-1)
            return jnp.mean(ce + 1e-3 * lse**2)

        return jax.value_and_grad(loss, argnums=(0, 1))(w, x)

    def twin(w: Any, x: Any, labels: Any) -> Any:
        me = lax.axis_index("tp")

        def terms(w: Any, x: Any) -> Any:
            z = x @ w
            top = lax.stop_gradient(z.max(-1))
            if wrong != "top":
                top = lax.pmax(top, "tp")
            e = jnp.exp(z - top[:, None])
            return z, top, e

        z, top, e = terms(w, x)
        total = lax.psum(e.sum(-1), "tp")
        lse = jnp.log(total) + top
        mine = labels - me * own
        here = (mine >= 0) & (mine < own)
        at = jnp.clip(mine, 0, own - 1)
        target = jnp.where(here, jnp.take_along_axis(z, at[:, None], axis=-1)[:, 0], 0.0)
        target = lax.psum(target, "tp")
        spread = lax.psum(z.sum(-1), "tp") / (own if wrong == "spread" else v)
        ce = lse - (1 - smooth) * target - smooth * spread
        value = jnp.mean(ce + 1e-3 * lse**2)
        p = e / total[:, None]
        hot = jnp.where(here[:, None], jax.nn.one_hot(at, own), 0.0)
        dz = p * (1 + 2e-3 * lse)[:, None] - (1 - smooth) * hot - smooth / v
        dz = dz / b
        return value, (x.T @ dz, lax.psum(dz @ w.T, "tp"))

    return {
        "step": single,
        "parallel": mapped(twin, (P(None, "tp"), P(), P()), (P(), (P(None, "tp"), P()))),
        "args": (S((d, v), F), S((b, d), F), S((b,), IDS)),
        "mesh": {"tp": n},
    }


# -- context parallel: rotary positions of each rank, keys and values gathered ---------------------


def context(wrong: str = "") -> Case:
    n, b, t, d, h, k = 4, 2, 8, 8, 2, 4
    c = t // n

    def rotary(x: Any, positions: Any) -> Any:
        inverse = 10000.0 ** (-jnp.arange(0, k, 2, dtype=F) / k)
        angle = positions[:, None] * inverse[None, :]
        cos = jnp.cos(angle)[None, :, None, :]
        sin = jnp.sin(angle)[None, :, None, :]
        a, o = x[..., ::2], x[..., 1::2]
        return jnp.stack([a * cos - o * sin, a * sin + o * cos], axis=-1).reshape(x.shape)

    def attention(p: Any, x: Any, rows: Any, whole: Callable[[Any], Any], shown: Any) -> Any:
        q = rotary(jnp.einsum("btd,dhk->bthk", x, p["q"]), rows)
        key = rotary(jnp.einsum("btd,dhk->bthk", x, p["k"]), rows)
        v = jnp.einsum("btd,dhk->bthk", x, p["v"])
        key, v = whole(key), whole(v)
        s = jnp.einsum("bqhk,bshk->bhqs", q, key) / k**0.5
        s = jnp.where(shown[:, None] >= jnp.arange(t)[None, :], s, jnp.finfo(F).min)
        o = jnp.einsum("bhqs,bshk->bqhk", jax.nn.softmax(s, axis=-1), v)
        return x + jnp.einsum("bqhk,hkd->bqd", o, p["o"])

    def single(p: Any, x: Any) -> Any:
        rows = jnp.arange(t)
        return attention(p, x, rows.astype(F), lambda v: v, rows)

    def twin(p: Any, x: Any) -> Any:
        own = jnp.arange(c)
        rows = lax.axis_index("cp") * c + own

        def whole(v: Any) -> Any:
            return lax.all_gather(v, "cp", axis=1, tiled=True)

        turned = own if wrong == "offset" else rows
        return attention(p, x, turned.astype(F), whole, own if wrong == "mask" else rows)

    p = {**{w: S((d, h, k), F) for w in "qkv"}, "o": S((h, k, d), F)}
    at = P(None, "cp")
    return {
        "step": single,
        "parallel": mapped(twin, (P(), at), at),
        "args": (p, S((b, t, d), F)),
        "mesh": {"cp": n},
    }


# -- convolutions over divided rows of images, with halos from the neighbours ----------------------


def halo(wrong: str = "") -> Case:
    n, b, height, width, c = 4, 2, 8, 6, 3

    def conv(x: Any, w: Any, pad: Any) -> Any:
        return lax.conv_general_dilated(
            x, w, (1, 1), pad, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def single(p: Any, x: Any) -> Any:
        y = jax.nn.relu(conv(x, p["a"], ((1, 1), (1, 1))))
        return conv(y, p["b"], ((1, 1), (1, 1))).mean((1, 2))

    def twin(p: Any, x: Any) -> Any:
        def wide(x: Any) -> Any:
            down = lax.ppermute(x[:, -1:], "rows", [(i, i + 1) for i in range(n - 1)])
            up = lax.ppermute(x[:, :1], "rows", [(i + 1, i) for i in range(n - 1)])
            if wrong == "swapped":
                down, up = up, down
            return jnp.concatenate([down, x, up], axis=1)

        y = jax.nn.relu(conv(wide(x), p["a"], ((0, 0), (1, 1))))
        z = conv(y if wrong == "second" else wide(y), p["b"],
                 ((1, 1) if wrong == "second" else (0, 0), (1, 1)))  # fmt: skip
        return lax.pmean(z.mean((1, 2)), "rows")

    p = {"a": S((3, 3, c, 4), F), "b": S((3, 3, 4, 5), F)}
    return {
        "step": single,
        "parallel": mapped(twin, (P(), P(None, "rows")), P()),
        "args": (p, S((b, height, width, c), F)),
        "mesh": {"rows": n},
    }


# -- a recurrence whose hidden units are divided ---------------------------------------------------


def gru(wrong: str = "") -> Case:
    n, b, t, d, h = 2, 4, 5, 6, 8

    def cell(p: Any, whole: Any, own: Any, x: Any) -> Any:
        z = jax.nn.sigmoid(x @ p["wz"] + whole @ p["uz"] + p["bz"])
        r = jax.nn.sigmoid(x @ p["wr"] + whole @ p["ur"] + p["br"])
        c = jnp.tanh(x @ p["wc"] + r * (whole @ p["uc"]) + p["bc"])
        return (1 - z) * own + z * c

    def single(p: Any, x: Any) -> Any:
        def tick(h: Any, x: Any) -> Any:
            h = cell(p, h, h, x)
            return h, h

        return lax.scan(tick, jnp.zeros((2 * b, h)), x)[1]

    def twin(p: Any, x: Any) -> Any:
        def tick(own: Any, x: Any) -> Any:
            if wrong == "order":
                whole = lax.all_gather(own, "tp", axis=1, tiled=True)[:, ::-1]
            elif wrong == "own":
                whole = jnp.tile(own, (1, n))
            else:
                whole = lax.all_gather(own, "tp", axis=1, tiled=True)
            own = cell(p, whole, own, x)
            return own, own

        return lax.scan(tick, jnp.zeros((b, h // n)), x)[1]

    p = {
        **{f"w{g}": S((d, h), F) for g in "zrc"}, **{f"u{g}": S((h, h), F) for g in "zrc"},
        **{f"b{g}": S((h,), F) for g in "zrc"},
    }  # fmt: skip
    at = {name: P("tp") if name[0] == "b" else P(None, "tp") for name in p}
    return {
        "step": single,
        "parallel": mapped(twin, (at, P(None, "dp")), P(None, "dp", "tp")),
        "args": (p, S((t, b * 2, d), F)),
        "mesh": {"dp": 2, "tp": n},
    }

"""Steps as published models have them, placed by the partitioner, beside wrong twins; written
before any of them was run. The twin is the same step with one thing changed, on the mesh."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from everyday import placed
from jax import lax
from jax.sharding import PartitionSpec as P
from published import named
from shapes import IDS, Case, F, S

# -- Llama: halves that turn, repeated keys, dp beside tp, gradients -------------------------------


def rms(x: Any, g: Any, eps: float = 1e-6) -> Any:
    return x * lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + eps) * g


def turned(x: Any, first: int = 0, theta: float = 10000.0) -> Any:
    t, k = x.shape[1], x.shape[-1]
    inverse = 1.0 / (theta ** (jnp.arange(0, k, 2) / k))
    angle = jnp.outer(first + jnp.arange(t), inverse)
    angle = jnp.concatenate([angle, angle], axis=-1)
    cos, sin = jnp.cos(angle)[None, :, None], jnp.sin(angle)[None, :, None]
    left, right = jnp.split(x, 2, axis=-1)
    return x * cos + jnp.concatenate([-right, left], axis=-1) * sin


def llama(wrong: str = "") -> Case:
    d, h, g, k, f, vocabulary, t = 16, 4, 2, 4, 24, 32, 6

    def make(wrong: str) -> Callable[..., Any]:
        def layer(p: Any, x: Any) -> Any:
            b = x.shape[0]
            y = rms(x, p["n1"])
            q = turned((y @ p["q"]).reshape(b, t, h, k), 1 if wrong == "offset" else 0)
            key = turned((y @ p["k"]).reshape(b, t, g, k))
            v = (y @ p["v"]).reshape(b, t, g, k)
            if wrong == "repeat":
                key = jnp.tile(key, (1, 1, h // g, 1))
            else:
                key = jnp.repeat(key, h // g, axis=2)
            v = jnp.repeat(v, h // g, axis=2)
            s = jnp.einsum("bqhk,bshk->bhqs", q, key) / jnp.sqrt(k)
            s = s + jnp.triu(jnp.full((t, t), -jnp.inf), 1)
            o = jnp.einsum("bhqs,bshk->bqhk", jax.nn.softmax(s, axis=-1), v).reshape(b, t, h * k)
            x = x + o @ p["o"]
            y = rms(x, p["n2"])
            return x + (jax.nn.silu(y @ p["w1"]) * (y @ p["w3"])) @ p["w2"]

        def loss(p: Any, ids: Any, labels: Any) -> Any:
            x = p["embed"][ids]
            for layer_p in p["layers"]:
                x = layer(layer_p, x)
            z = rms(x, p["norm"]) @ p["head"]
            z = jax.nn.log_softmax(z)
            return -jnp.mean(jnp.take_along_axis(z, labels[..., None], axis=-1))

        return jax.value_and_grad(loss)

    one = {
        "n1": S((d,), F), "n2": S((d,), F), "q": S((d, h * k), F), "k": S((d, g * k), F),
        "v": S((d, g * k), F), "o": S((h * k, d), F), "w1": S((d, f), F), "w3": S((d, f), F),
        "w2": S((f, d), F),
    }  # fmt: skip
    p = {
        "embed": S((vocabulary, d), F), "layers": [one, one], "norm": S((d,), F),
        "head": S((d, vocabulary), F),
    }  # fmt: skip
    column, row = P(None, "tp"), P("tp")
    at = named(
        p, dict.fromkeys(("q", "k", "v", "w1", "w3", "head"), column) | {"o": row, "w2": row}
    )
    ids = S((4, t), IDS)
    return placed(
        make,
        wrong,
        args=(p, ids, ids),
        mesh={"dp": 2, "tp": 2},
        in_shardings=(at, P("dp"), P("dp")),
        out_shardings=(P(), at),
    )


# -- MaxText's shape of step: three axes, constraints, a scan with remat, AdamW behind clipping ----


def maxtext(wrong: str = "") -> Case:
    d, h, k, f, vocabulary, layers, t = 16, 4, 4, 32, 32, 2, 4

    def make(wrong: str) -> Callable[..., Any]:
        tx = optax.chain(
            optax.clip_by_global_norm(10.0 if wrong == "clip" else 1.0),
            optax.adamw(1e-3, b1=0.9, b2=0.95, weight_decay=0.1),
        )
        rows = P(("data", "fsdp"))

        def layer(x: Any, p: Any) -> Any:
            x = lax.with_sharding_constraint(x, rows)
            y = rms(x, p["n1"])
            q = turned(jnp.einsum("btd,dhk->bthk", y, p["q"]))
            key = turned(jnp.einsum("btd,dhk->bthk", y, p["k"]))
            v = jnp.einsum("btd,dhk->bthk", y, p["v"])
            s = jnp.einsum("bqhk,bshk->bhqs", q, key) * k**-0.5
            s = jnp.where(jnp.tril(jnp.ones((t, t), bool)), s, jnp.finfo(F).min)
            o = jnp.einsum("bhqs,bshk->bqhk", jax.nn.softmax(s, axis=-1), v)
            o = lax.with_sharding_constraint(o, P(("data", "fsdp"), None, "tensor"))
            x = x + jnp.einsum("bqhk,hkd->bqd", o, p["o"])
            y = rms(x, p["n1" if wrong == "norm" else "n2"])
            return x + (jax.nn.silu(y @ p["wi0"]) * (y @ p["wi1"])) @ p["wo"], None

        def step(p: Any, s: Any, ids: Any, labels: Any) -> Any:
            def loss(p: Any) -> Any:
                body = jax.checkpoint(layer, policy=jax.checkpoint_policies.nothing_saveable)
                x, _ = lax.scan(body, p["embed"][ids], p["layers"])
                z = rms(x, p["norm"]) @ p["embed"].T
                return optax.softmax_cross_entropy_with_integer_labels(z, labels).mean()

            value, g = jax.value_and_grad(loss)(p)
            changes, s = tx.update(g, s, p)
            return optax.apply_updates(p, changes), s, value

        return step

    sizes = {
        "n1": (d,), "n2": (d,), "q": (d, h, k), "k": (d, h, k), "v": (d, h, k), "o": (h, k, d),
        "wi0": (d, f), "wi1": (d, f), "wo": (f, d),
    }  # fmt: skip
    p = {
        "layers": {n: S((layers, *size), F) for n, size in sizes.items()},
        "embed": S((vocabulary, d), F), "norm": S((d,), F),
    }  # fmt: skip
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    s = jax.eval_shape(tx.init, p)
    column = P(None, "fsdp", "tensor")
    rules = dict.fromkeys(("q", "k", "v", "wi0", "wi1"), column) | {
        "o": P(None, "tensor", None, "fsdp"), "wo": P(None, "tensor", "fsdp"),
        "embed": P("tensor", "fsdp"),
    }  # fmt: skip
    at, state_at = named(p, rules), named(s, rules)
    ids = S((8, t), IDS)
    rows = P(("data", "fsdp"))
    return placed(
        make,
        wrong,
        args=(p, s, ids, ids),
        mesh={"data": 2, "fsdp": 2, "tensor": 2},
        in_shardings=(at, state_at, rows, rows),
        out_shardings=(at, state_at, P()),
    )


# -- T5's encoder: buckets of relative positions, heads divided, gradients -------------------------


def t5(wrong: str = "") -> Case:
    d, h, k, f, t, buckets, most = 16, 4, 4, 32, 8, 8, 16

    def bucket(wrong: str) -> Any:
        relative = jnp.arange(t)[None, :] - jnp.arange(t)[:, None]
        half = buckets // 2
        side = (relative > 0).astype(jnp.int32) * half
        n = jnp.abs(relative)
        exact = half // 2
        far = most // 2 if wrong == "far" else most
        large = exact + (
            jnp.log(n.astype(F) / exact + 1e-6) / jnp.log(far / exact) * (half - exact)
        ).astype(jnp.int32)
        return side + jnp.where(n < exact, n, jnp.minimum(large, half - 1))

    def make(wrong: str) -> Callable[..., Any]:
        def loss(p: Any, x: Any, y: Any) -> Any:
            bias = p["relative"][bucket(wrong)].transpose(2, 0, 1)
            n = rms(x, p["n1"])
            q, key, v = (jnp.einsum("btd,dhk->bhtk", n, p[w]) for w in "qkv")
            s = jnp.einsum("bhqk,bhsk->bhqs", q, key)
            w = jax.nn.softmax(s + (0.0 if wrong == "bias" else bias), axis=-1)
            x = x + jnp.einsum("bhqs,bhsk,hkd->bqd", w, v, p["o"])
            n = rms(x, p["n2"])
            x = x + (jax.nn.gelu(n @ p["wi0"]) * (n @ p["wi1"])) @ p["wo"]
            return jnp.mean((x - y) ** 2)

        return jax.value_and_grad(loss)

    p = {
        "relative": S((buckets, h), F), "n1": S((d,), F), "n2": S((d,), F), "o": S((h, k, d), F),
        "wi0": S((d, f), F), "wi1": S((d, f), F), "wo": S((f, d), F),
        **{w: S((d, h, k), F) for w in "qkv"},
    }  # fmt: skip
    column, row = P(None, "tp"), P("tp")
    at = named(
        p, dict.fromkeys(("relative", "q", "k", "v", "wi0", "wi1"), column) | {"o": row, "wo": row}
    )
    return placed(
        make,
        wrong,
        args=(p, S((4, t, d), F), S((4, t, d), F)),
        mesh={"dp": 2, "tp": 4},
        in_shardings=(at, P("dp"), P("dp")),
        out_shardings=(P(), at),
    )


# -- Mamba: a selective state space by an associative scan, channels divided -----------------------


def mamba(wrong: str = "") -> Case:
    d, inner, n, t = 8, 16, 4, 4

    def make(wrong: str) -> Callable[..., Any]:
        def step(p: Any, x: Any) -> Any:
            u, z = x @ p["u"], x @ p["z"]
            past = jnp.pad(u, ((0, 0), (2, 0), (0, 0)))
            u = sum(past[:, i : i + t] * p["conv"][i] for i in range(3))
            u = jax.nn.silu(u)
            delta = jax.nn.softplus(u * p["dt"] + p["dt_bias"])
            b, c = u @ p["b"], u @ p["c"]
            a = jnp.exp(delta[..., None] * -jnp.exp(p["a"]))
            add = delta[..., None] * b[:, :, None, :] * u[..., None]

            def join(left: Any, right: Any) -> Any:
                if wrong == "join":
                    return left[0] * right[0], left[1] * right[0] + left[0] * right[1]
                return left[0] * right[0], left[1] * right[0] + right[1]

            _, state = lax.associative_scan(join, (a, add), axis=1)
            y = jnp.einsum("btin,btn->bti", state, c) + u * p["d"]
            return (y if wrong == "gate" else y * jax.nn.silu(z)) @ p["out"]

        return step

    p = {
        "u": S((d, inner), F), "z": S((d, inner), F), "conv": S((3, inner), F),
        "dt": S((inner,), F), "dt_bias": S((inner,), F), "b": S((inner, n), F),
        "c": S((inner, n), F), "a": S((inner, n), F), "d": S((inner,), F),
        "out": S((inner, d), F),
    }  # fmt: skip
    column, row = P(None, "tp"), P("tp")
    at = {n: column if n in ("u", "z", "conv") else row for n in p}
    return placed(
        make,
        wrong,
        args=(p, S((4, t, d), F)),
        mesh={"dp": 2, "tp": 2},
        in_shardings=(at, P("dp")),
        out_shardings=P("dp"),
    )


# -- Gemma 2: norms before and after, capped scores, a window, scaled embeddings -------------------


def gemma(wrong: str = "") -> Case:
    d, h, g, k, f, vocabulary, t, window = 16, 4, 2, 4, 32, 24, 6, 3

    def make(wrong: str) -> Callable[..., Any]:
        def norm(x: Any, g: Any) -> Any:
            return rms(x, 1.0) * (1.0 + g)

        def step(p: Any, ids: Any) -> Any:
            x = p["embed"][ids] * jnp.sqrt(d).astype(F)
            y = norm(x, p["n1"])
            q = turned(jnp.einsum("btd,dhk->bthk", y, p["q"])).reshape(*ids.shape, g, h // g, k)
            key = turned(jnp.einsum("btd,dhk->bthk", y, p["k"]))
            v = jnp.einsum("btd,dhk->bthk", y, p["v"])
            s = jnp.einsum("bqgrk,bsgk->bgrqs", q, key) * k**-0.5
            cap = 30.0 if wrong == "cap" else 50.0
            s = cap * jnp.tanh(s / cap)
            rows, columns = jnp.arange(t)[:, None], jnp.arange(t)[None, :]
            wide = window + 1 if wrong == "window" else window
            shown = (columns <= rows) & (columns > rows - wide)
            w = jax.nn.softmax(jnp.where(shown, s, -2.3819763e38), axis=-1)
            o = jnp.einsum("bgrqs,bsgk->bqgrk", w, v).reshape(*ids.shape, h, k)
            x = x + norm(jnp.einsum("bqhk,hkd->bqd", o, p["o"]), p["n2"])
            y = norm(x, p["n3"])
            y = (jax.nn.gelu(y @ p["gate"]) * (y @ p["up"])) @ p["down"]
            x = x + norm(y, p["n4"])
            z = norm(x, p["n"]) @ p["embed"].T
            return 30.0 * jnp.tanh(z / 30.0)

        return step

    p = {
        "embed": S((vocabulary, d), F), "q": S((d, h, k), F), "k": S((d, g, k), F),
        "v": S((d, g, k), F), "o": S((h, k, d), F), "gate": S((d, f), F), "up": S((d, f), F),
        "down": S((f, d), F), **{n: S((d,), F) for n in ("n", "n1", "n2", "n3", "n4")},
    }  # fmt: skip
    column, row = P(None, "tp"), P("tp")
    at = named(
        p,
        dict.fromkeys(("q", "k", "v", "gate", "up"), column)
        | dict.fromkeys(("o", "down", "embed"), row),
    )
    return placed(
        make,
        wrong,
        args=(p, S((4, t), IDS)),
        mesh={"dp": 2, "tp": 2},
        in_shardings=(at, P("dp")),
        out_shardings=P("dp", None, "tp"),
    )


# -- DeepSeek's latent attention: low ranks, positions apart, heads divided, gradients -------------


def latent(wrong: str = "") -> Case:
    d, h, k, r, low, t = 16, 4, 4, 2, 8, 6

    def make(wrong: str) -> Callable[..., Any]:
        def loss(p: Any, x: Any, y: Any) -> Any:
            q = jnp.einsum("btl,lhk->bthk", rms(x @ p["qa"], p["qn"]), p["qb"])
            plain, with_place = q[..., :k], turned(q[..., k:])
            both = x @ p["kva"]
            compressed, place = both[..., :low], both[..., low:]
            place = turned(place[:, :, None, :])
            kv = jnp.einsum("btl,lhk->bthk", rms(compressed, p["kvn"]), p["kvb"])
            key, v = kv[..., :k], kv[..., k:]
            s = jnp.einsum("bqhk,bshk->bhqs", plain, key)
            if wrong != "place":
                s = s + jnp.einsum("bqhr,bsr->bhqs", with_place, place[:, :, 0])
            s = s / jnp.sqrt(k if wrong == "scale" else k + r)
            s = jnp.where(jnp.tril(jnp.ones((t, t), bool)), s, -jnp.inf)
            o = jnp.einsum("bhqs,bshk->bqhk", jax.nn.softmax(s, axis=-1), v)
            x = x + jnp.einsum("bqhk,hkd->bqd", o, p["o"])
            return jnp.mean((x - y) ** 2)

        return jax.value_and_grad(loss)

    p = {
        "qa": S((d, low), F), "qn": S((low,), F), "qb": S((low, h, k + r), F),
        "kva": S((d, low + r), F), "kvn": S((low,), F), "kvb": S((low, h, 2 * k), F),
        "o": S((h, k, d), F),
    }  # fmt: skip
    at = named(p, {"qb": P(None, "tp"), "kvb": P(None, "tp"), "o": P("tp")})
    return placed(
        make,
        wrong,
        args=(p, S((4, t, d), F), S((4, t, d), F)),
        mesh={"dp": 2, "tp": 4},
        in_shardings=(at, P("dp"), P("dp")),
        out_shardings=(P(), at),
    )


# -- attention with a cache: one token more, groups of keys, batches divided -----------------------


def decoding(wrong: str = "") -> Case:
    d, h, g, k, most = 16, 4, 2, 4, 8

    def make(wrong: str) -> Callable[..., Any]:
        def step(p: Any, x: Any, keys: Any, values: Any, at: Any) -> Any:
            q = jnp.einsum("bd,dhk->bhk", x, p["q"])
            key, v = jnp.einsum("bd,dgk->bgk", x, p["k"]), jnp.einsum("bd,dgk->bgk", x, p["v"])
            here = (jnp.arange(most) == (at + 1 if wrong == "place" else at))[None, :, None, None]
            keys = jnp.where(here, key[:, None], keys)
            values = jnp.where(here, v[:, None], values)
            q = q.reshape(-1, g, h // g, k)
            s = jnp.einsum("bgrk,bsgk->bgrs", q, keys) / jnp.sqrt(k)
            known = jnp.arange(most) < at if wrong == "known" else jnp.arange(most) <= at
            s = jnp.where(known, s, -jnp.inf)
            o = jnp.einsum("bgrs,bsgk->bgrk", jax.nn.softmax(s, axis=-1), values)
            return jnp.einsum("bhk,hkd->bd", o.reshape(-1, h, k), p["o"]), keys, values

        return step

    p = {"q": S((d, h, k), F), "k": S((d, g, k), F), "v": S((d, g, k), F), "o": S((h, k, d), F)}
    at = {"q": P(None, "tp"), "k": P(None, "tp"), "v": P(None, "tp"), "o": P("tp")}
    cache = P("dp", None, "tp")
    stored = S((4, most, g, k), F)
    return placed(
        make,
        wrong,
        args=(p, S((4, d), F), stored, stored, S((), IDS)),
        mesh={"dp": 2, "tp": 2},
        in_shardings=(at, P("dp"), cache, cache, P()),
        out_shardings=(P("dp"), cache, cache),
    )

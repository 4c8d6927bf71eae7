"""Training steps as tutorials write them, placed by the partitioner, beside wrong twins; written
before any of them was run. The twin is the same step with one line changed, on the mesh."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax import lax
from jax.sharding import PartitionSpec as P
from shapes import IDS, B, Case, F, S


def placed(make: Callable[[str], Callable[..., Any]], wrong: str, **case: Any) -> Case:
    """The step that ``make`` makes; where one thing is wrong, that one on the mesh."""
    right: Case = {"step": make(""), **case}
    return right | ({"parallel": make(wrong)} if wrong else {})


# -- a GPT: scan over its layers, each computed again in the backward pass -------------------------


def layer_norm(x: Any, g: Any, b: Any) -> Any:
    mean = jnp.mean(x, -1, keepdims=True)
    var = jnp.mean(jnp.square(x - mean), -1, keepdims=True)
    return (x - mean) * lax.rsqrt(var + 1e-5) * g + b


def gpt(wrong: str = "") -> Case:
    d, h, k, f, vocabulary, layers, length = 16, 4, 4, 32, 24, 2, 6

    def block(wrong: str, x: Any, p: Any) -> Any:
        y = layer_norm(x, p["g1"], p["b1"])
        q, key, v = jnp.einsum("btd,dshk->sbthk", y, p["qkv"])
        s = jnp.einsum("bqhk,bshk->bhqs", q, key) / jnp.sqrt(d if wrong == "scale" else k)
        s = jnp.where(jnp.tril(jnp.ones((length, length), bool)), s, jnp.finfo(s.dtype).min)
        o = jnp.einsum("bhqs,bshk->bqhk", jax.nn.softmax(s, -1), v)
        x = x + jnp.einsum("bthk,hkd->btd", o, p["o"])
        y = layer_norm(x, p["g2"], p["b2"])
        y = jax.nn.gelu(y @ p["up"] + p["c1"]) @ p["down"] + p["c2"]
        return (y if wrong == "residual" else x + y), None

    def make(wrong: str) -> Callable[..., Any]:
        def loss(p: Any, ids: Any) -> Any:
            x = p["wte"][ids[:, :-1]] + p["wpe"]
            x, _ = lax.scan(jax.checkpoint(partial(block, wrong)), x, p["layers"])
            logits = layer_norm(x, p["g"], p["b"]) @ p["head"]
            return optax.softmax_cross_entropy_with_integer_labels(logits, ids[:, 1:]).mean()

        return jax.value_and_grad(loss)

    at = {
        "g1": P(), "b1": P(), "g2": P(), "b2": P(), "qkv": P(None, None, None, "tp"),
        "o": P(None, "tp"), "up": P(None, None, "tp"), "c1": P(None, "tp"),
        "down": P(None, "tp"), "c2": P(),
    }  # fmt: skip
    sizes = {
        "g1": (d,), "b1": (d,), "g2": (d,), "b2": (d,), "qkv": (d, 3, h, k), "o": (h, k, d),
        "up": (d, f), "c1": (f,), "down": (f, d), "c2": (d,),
    }  # fmt: skip
    p = {
        "layers": {n: S((layers, *size), F) for n, size in sizes.items()},
        "wte": S((vocabulary, d), F), "wpe": S((length, d), F), "g": S((d,), F), "b": S((d,), F),
        "head": S((d, vocabulary), F),
    }  # fmt: skip
    spec = {"layers": at} | {n: P() for n in ("wte", "wpe", "g", "b")} | {"head": P(None, "tp")}
    return placed(
        make,
        wrong,
        args=(p, S((4, length + 1), IDS)),
        mesh={"dp": 2, "tp": 2},
        in_shardings=(spec, P("dp")),
        out_shardings=(P(), spec),
    )


# -- a Llama: grouped queries, rotary positions, a gated MLP ---------------------------------------


def rotate(x: Any, theta: float) -> Any:
    """Rotary positions in halves, as the published code of Llama in JAX has them."""
    d = x.shape[-1]
    rates = theta ** -(jnp.arange(0, d, 2, dtype=F) / d)
    angle = jnp.einsum("t,f->tf", jnp.arange(x.shape[1], dtype=F), rates)
    angle = jnp.concatenate([angle, angle], -1)[None, :, None]
    half = jnp.concatenate([-x[..., d // 2 :], x[..., : d // 2]], -1)
    return x * jnp.cos(angle) + half * jnp.sin(angle)


class RMSNorm(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
        return x * lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6) * scale


class LlamaBlock(nn.Module):
    wrong: str

    @nn.compact
    def __call__(self, x: Any) -> Any:
        heads, groups, k = 4, 2, 4
        y = RMSNorm(name="n1")(x)
        q = nn.DenseGeneral((heads, k), use_bias=False, name="q")(y)
        key = nn.DenseGeneral((groups, k), use_bias=False, name="k")(y)
        v = nn.DenseGeneral((groups, k), use_bias=False, name="v")(y)
        q, key = rotate(q, 10000.0), rotate(key, 500.0 if self.wrong == "theta" else 10000.0)
        b, t = x.shape[:2]
        q = q.reshape(b, t, groups, heads // groups, k)
        if self.wrong == "groups":
            q = q.reshape(b, t, heads // groups, groups, k).swapaxes(2, 3)
        s = jnp.einsum("btgrk,bsgk->bgrts", q, key) * k**-0.5
        s = jnp.where(nn.make_causal_mask(jnp.ones((b, t)))[:, :, None], s, -1e9)
        o = jnp.einsum("bgrts,bsgk->btgrk", nn.softmax(s), v).reshape(b, t, heads, k)
        x = x + nn.DenseGeneral(x.shape[-1], axis=(-2, -1), use_bias=False, name="o")(o)
        y = RMSNorm(name="n2")(x)
        gate = nn.silu(nn.Dense(32, use_bias=False, name="w1")(y))
        y = gate * nn.Dense(32, use_bias=False, name="w3")(y)
        return x + nn.Dense(x.shape[-1], use_bias=False, name="w2")(y)


class Llama(nn.Module):
    wrong: str = ""

    @nn.compact
    def __call__(self, ids: Any) -> Any:
        x = nn.Embed(32, 16, name="embed")(ids)
        for n in range(2):
            x = LlamaBlock(self.wrong, name=f"layer{n}")(x)
        return nn.Dense(32, use_bias=False, name="head")(RMSNorm(name="norm")(x))


def llama(wrong: str = "") -> Case:
    ids = S((4, 6), IDS)
    p = jax.eval_shape(Llama().init, jax.random.key(0), jnp.zeros(ids.shape, IDS))

    def make(wrong: str) -> Callable[..., Any]:
        def loss(p: Any, ids: Any, labels: Any) -> Any:
            logits = Llama(wrong).apply(p, ids)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        return jax.value_and_grad(loss)

    rules = {
        "q": P(None, "tp"), "k": P(None, "tp"), "v": P(None, "tp"), "o": P("tp"),
        "w1": P(None, "tp"), "w3": P(None, "tp"), "w2": P("tp"), "head": P(None, "tp"),
    }  # fmt: skip
    at = jax.tree_util.tree_map_with_path(lambda path, _: rules.get(path[-2].key, P()), p)
    return placed(
        make,
        wrong,
        args=(p, ids, ids),
        mesh={"dp": 2, "tp": 2},
        in_shardings=(at, P("dp"), P("dp")),
        out_shardings=(P(), at),
    )


# -- a vision transformer with a class token -------------------------------------------------------


class Encoder(nn.Module):
    wrong: str

    @nn.compact
    def __call__(self, images: Any) -> Any:
        x = nn.Conv(16, (4, 4), strides=(4, 4), padding="VALID", name="patches")(images)
        x = x.reshape(x.shape[0], -1, x.shape[-1])
        token = self.param("token", nn.initializers.zeros, (1, 1, 16))
        x = jnp.concatenate([jnp.tile(token, (x.shape[0], 1, 1)), x], axis=1)
        x = x + self.param("places", nn.initializers.normal(0.02), (1, 5, 16))
        y = nn.LayerNorm(name="n1")(x)
        x = x + nn.MultiHeadDotProductAttention(num_heads=4, name="attention")(y, y)
        y = nn.gelu(nn.Dense(32, name="up")(nn.LayerNorm(name="n2")(x)))
        x = x + nn.Dense(16, name="down")(y)
        if self.wrong != "no last norm":
            x = nn.LayerNorm(name="n3")(x)
        return nn.Dense(8, name="head")(x[:, 1 if self.wrong == "token" else 0])


def vision(wrong: str = "") -> Case:
    images = S((4, 8, 8, 3), F)
    p = jax.eval_shape(Encoder("").init, jax.random.key(0), jnp.zeros(images.shape))

    def make(wrong: str) -> Callable[..., Any]:
        def loss(p: Any, images: Any, labels: Any) -> Any:
            logits = Encoder(wrong).apply(p, images)
            return -jnp.mean(jnp.sum(jax.nn.one_hot(labels, 8) * nn.log_softmax(logits), -1))

        return jax.value_and_grad(loss)

    rules = {
        "up/kernel": P(None, "tp"), "up/bias": P("tp"), "down/kernel": P("tp"),
        "query/kernel": P(None, "tp"), "key/kernel": P(None, "tp"), "value/kernel": P(None, "tp"),
        "query/bias": P("tp"), "key/bias": P("tp"), "value/bias": P("tp"), "out/kernel": P("tp"),
    }  # fmt: skip
    at = jax.tree_util.tree_map_with_path(
        lambda path, _: rules.get("/".join(k.key for k in path[-2:]), P()), p
    )
    return placed(
        make,
        wrong,
        args=(p, images, S((4,), IDS)),
        mesh={"dp": 2, "tp": 2},
        in_shardings=(at, P("dp"), P("dp")),
        out_shardings=(P(), at),
    )


# -- smoothed labels, padded positions do not count ------------------------------------------------


def smoothing(wrong: str = "") -> Case:
    def make(wrong: str) -> Callable[..., Any]:
        alpha = 0.2 if wrong == "alpha" else 0.1

        def loss(p: Any, x: Any, labels: Any, weights: Any) -> Any:
            logits = jnp.tanh(x @ p["a"]) @ p["b"]
            soft = jax.nn.one_hot(labels, 12) * (1 - alpha) + alpha / 12
            each = -jnp.sum(soft * jax.nn.log_softmax(logits), -1)
            if wrong == "every position":
                return jnp.mean(each * weights)
            return jnp.sum(each * weights) / jnp.sum(weights)

        return jax.value_and_grad(loss)

    p = {"a": S((16, 32), F), "b": S((32, 12), F)}
    at = {"a": P(None, "tp"), "b": P("tp")}
    return placed(
        make,
        wrong,
        args=(p, S((4, 6, 16), F), S((4, 6), IDS), S((4, 6), F)),
        mesh={"dp": 2, "tp": 2},
        in_shardings=(at, P("dp"), P("dp"), P("dp")),
        out_shardings=(P(), at),
    )


# -- AdamW behind clipping, with warmup and a cosine -----------------------------------------------


def adamw(wrong: str = "") -> Case:
    def make(wrong: str) -> Callable[..., Any]:
        rate = optax.warmup_cosine_decay_schedule(
            0.0, 1e-3, 10, 200 if wrong == "schedule" else 100
        )
        update = optax.chain(
            optax.clip_by_global_norm(1.0),
            optax.adamw(rate, b2=0.95, weight_decay=0.01 if wrong == "decay" else 0.1),
        )

        def step(p: Any, state: Any, x: Any, y: Any) -> Any:
            def loss(p: Any) -> Any:
                out = jax.nn.relu(x @ p["up"]["kernel"] + p["up"]["bias"]) @ p["down"]["kernel"]
                return jnp.mean(optax.huber_loss(out, y))

            value, grads = jax.value_and_grad(loss)(p)
            changes, state = update.update(grads, state, p)
            return optax.apply_updates(p, changes), state, value

        return step

    p = {"up": {"kernel": S((8, 32), F), "bias": S((32,), F)}, "down": {"kernel": S((32, 8), F)}}
    state = jax.eval_shape(
        optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(lambda n: 0.1 * n)).init, p
    )
    at = {"up": {"kernel": P("fsdp", "tp"), "bias": P("tp")}, "down": {"kernel": P("tp", "fsdp")}}
    rules = {"up/kernel": P("fsdp", "tp"), "up/bias": P("tp"), "down/kernel": P("tp", "fsdp")}
    state_at = jax.tree_util.tree_map_with_path(
        lambda path, _: rules.get("/".join(str(getattr(k, "key", "")) for k in path[-2:]), P()),
        state,
    )
    return placed(
        make,
        wrong,
        args=(p, state, S((8, 8), F), S((8, 8), F)),
        mesh={"fsdp": 2, "tp": 2},
        in_shardings=(at, state_at, P("fsdp"), P("fsdp")),
        out_shardings=(at, state_at, P()),
    )


# -- bfloat16 beside master weights, with a scaled loss --------------------------------------------


def precision(wrong: str = "") -> Case:
    def make(wrong: str) -> Callable[..., Any]:
        def step(master: Any, x: Any, labels: Any, scale: Any) -> Any:
            def loss(p: Any) -> Any:
                h = x.astype(B)
                for n in ("a", "b"):
                    h = h + jax.nn.silu(h @ p[n]["w"]) @ p[n]["v"]
                logits = (h @ p["head"]).astype(F)
                each = jax.nn.logsumexp(logits, -1) - jnp.take_along_axis(
                    logits, labels[:, None], -1
                ).squeeze(-1)
                return each.mean() * scale, each.mean()

            small = jax.tree.map(lambda v: v.astype(B), master)
            grads, value = jax.grad(loss, has_aux=True)(small)
            times = 1.0 if wrong == "scaled" else 1 / scale
            rate = -0.1 if wrong == "upwards" else 0.1
            new = jax.tree.map(lambda w, g: w - rate * (g.astype(F) * times), master, grads)
            return new, value

        return step

    layer = {"w": S((16, 32), F), "v": S((32, 16), F)}
    p = {"a": layer, "b": layer, "head": S((16, 8), F)}
    layer_at = {"w": P(None, "tp"), "v": P("tp")}
    at = {"a": layer_at, "b": layer_at, "head": P()}
    return placed(
        make,
        wrong,
        args=(p, S((8, 16), F), S((8,), IDS), S((), F)),
        mesh={"dp": 2, "tp": 2},
        in_shardings=(at, P("dp"), P("dp"), P()),
        out_shardings=(at, P()),
    )


# -- inference without a cache: logits of the last position ----------------------------------------


def inference(wrong: str = "") -> Case:
    def make(wrong: str) -> Callable[..., Any]:
        def forward(p: Any, ids: Any) -> Any:
            x = jnp.take(p["embed"], ids, axis=0)
            t = ids.shape[1]
            for layer in p["layers"]:
                y = x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * layer["g"]
                q, k, v = (
                    (y @ layer[n]).reshape(*y.shape[:2], 4, 4).transpose(0, 2, 1, 3) for n in "qkv"
                )
                q, k = (rotate(i.swapaxes(1, 2), 1e4).swapaxes(1, 2) for i in (q, k))
                s = q @ k.swapaxes(-1, -2) / 2.0
                below = jnp.arange(t)[:, None] >= jnp.arange(t)[None, :]
                if wrong != "no mask":
                    s = jnp.where(below, s, -jnp.inf)
                o = (jax.nn.softmax(s, -1) @ v).transpose(0, 2, 1, 3).reshape(*y.shape[:2], 16)
                x = x + o @ layer["o"]
            last = x[:, -2 if wrong == "position" else -1]
            return jax.nn.log_softmax(last @ p["embed"].T)

        return forward

    layer = {n: S((16, 16), F) for n in "qkvo"} | {"g": S((16,), F)}
    layer_at = {n: P(None, "tp") for n in "qkv"} | {"o": P("tp"), "g": P()}
    p = {"embed": S((32, 16), F), "layers": [layer, layer]}
    at = {"embed": P("tp"), "layers": [layer_at, layer_at]}
    return placed(
        make,
        wrong,
        args=(p, S((4, 6), IDS)),
        mesh={"dp": 2, "tp": 4},
        in_shardings=(at, P("dp")),
        out_shardings=P("dp", "tp"),
    )

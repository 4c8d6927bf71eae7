"""Steps in plain jax.numpy as notebooks hold them, placed by the partitioner, beside wrong twins;
written before any of them was run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from everyday import placed
from jax import lax
from jax.sharding import PartitionSpec as P
from shapes import IDS, Case, F, S


def norm(x: Any, scale: Any) -> Any:
    return x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * scale


# -- a mixer: perceptrons over patches and over channels, AdamW ------------------------------------


def mixer(wrong: str = "") -> Case:
    side, patch, d, hidden, classes = 8, 4, 16, 32, 10
    tokens = (side // patch) ** 2

    def make(wrong: str) -> Callable[..., Any]:
        tx = optax.adamw(1e-3, weight_decay=0.0 if wrong == "no decay" else 0.05)

        def forward(p: Any, images: Any) -> Any:
            b = images.shape[0]
            n = side // patch
            x = images.reshape(b, n, patch, n, patch, 3).transpose(0, 1, 3, 2, 4, 5)
            x = x.reshape(b, n * n, patch * patch * 3) @ p["stem"]
            for layer in p["blocks"]:
                y = norm(x, layer["n1"]).swapaxes(1, 2)
                y = jax.nn.gelu(y @ layer["t1"]) @ layer["t2"]
                x = x + y.swapaxes(1, 2)
                y = norm(x, layer["n1" if wrong == "norm of tokens" else "n2"])
                x = x + jax.nn.gelu(y @ layer["c1"]) @ layer["c2"]
            return jnp.mean(norm(x, p["n"]), axis=1) @ p["head"]

        def loss(p: Any, images: Any, labels: Any) -> Any:
            logp = jax.nn.log_softmax(forward(p, images))
            return -jnp.mean(jnp.sum(logp * jax.nn.one_hot(labels, classes), axis=-1))

        def step(p: Any, mu: Any, nu: Any, count: Any, images: Any, labels: Any) -> Any:
            value, grads = jax.value_and_grad(loss)(p, images, labels)
            state = tx.init(p)
            state = (state[0]._replace(count=count, mu=mu, nu=nu), *state[1:])
            updates, state = tx.update(grads, state, p)
            return value, optax.apply_updates(p, updates), state[0].mu, state[0].nu

        return step

    layer = {
        "n1": S((d,), F), "n2": S((d,), F), "t1": S((tokens, 8), F), "t2": S((8, tokens), F),
        "c1": S((d, hidden), F), "c2": S((hidden, d), F),
    }  # fmt: skip
    at = {"n1": P(), "n2": P(), "t1": P(), "t2": P(), "c1": P(None, "tp"), "c2": P("tp")}
    p = {
        "stem": S((patch * patch * 3, d), F), "blocks": [layer], "n": S((d,), F),
        "head": S((d, classes), F),
    }  # fmt: skip
    spec = {"stem": P(), "blocks": [at], "n": P(), "head": P()}
    return placed(
        make,
        wrong,
        args=(p, p, p, S((), IDS), S((4, side, side, 3), F), S((4,), IDS)),
        mesh={"dp": 2, "tp": 2},
        in_shardings=(spec, spec, spec, P(), P("dp"), P("dp")),
        out_shardings=(P(), spec, spec, spec),
    )


# -- a small GPT with tied embeddings; layers in a scan, each computed again -----------------------


def small_gpt(wrong: str = "") -> Case:
    d, heads, f, vocabulary, layers, length = 16, 4, 32, 24, 2, 6

    def make(wrong: str) -> Callable[..., Any]:
        def attention(x: Any, p: Any) -> Any:
            b, t, _ = x.shape
            q, k, v = (
                (x @ p[n]).reshape(b, t, heads, d // heads).transpose(0, 2, 1, 3) for n in "qkv"
            )
            scores = q @ k.swapaxes(-1, -2) * (d // heads) ** -0.5
            shift = 1 if wrong == "sees the next" else 0
            mask = jnp.arange(t)[:, None] + shift >= jnp.arange(t)[None, :]
            weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1)
            return (weights @ v).transpose(0, 2, 1, 3).reshape(b, t, d) @ p["o"]

        @jax.checkpoint
        def block(x: Any, p: Any) -> Any:
            x = x + attention(norm(x, p["n1"]), p)
            return x + jax.nn.gelu(norm(x, p["n2"]) @ p["up"]) @ p["down"], None

        def loss(p: Any, ids: Any) -> Any:
            x = p["wte"][ids[:, :-1]] + p["wpe"][: ids.shape[1] - 1]
            x, _ = lax.scan(block, x, p["layers"])
            logits = norm(x, p["n"]) @ p["wte"].T
            logp = jax.nn.log_softmax(logits)
            picked = jnp.take_along_axis(logp, ids[:, 1:, None], axis=-1)
            return -(picked.sum() / length if wrong == "sum over batch" else picked.mean())

        def step(p: Any, ids: Any) -> Any:
            value, grads = jax.value_and_grad(loss)(p, ids)
            return value, jax.tree.map(lambda w, g: w - 0.1 * g, p, grads)

        return step

    sizes = {
        "q": (d, d), "k": (d, d), "v": (d, d), "o": (d, d), "up": (d, f), "down": (f, d),
        "n1": (d,), "n2": (d,),
    }  # fmt: skip
    at = {
        "q": P(None, None, "tp"), "k": P(None, None, "tp"), "v": P(None, None, "tp"),
        "o": P(None, "tp"), "up": P(None, None, "tp"), "down": P(None, "tp"), "n1": P(),
        "n2": P(),
    }  # fmt: skip
    p = {
        "layers": {n: S((layers, *size), F) for n, size in sizes.items()},
        "wte": S((vocabulary, d), F), "wpe": S((8, d), F), "n": S((d,), F),
    }  # fmt: skip
    spec = {"layers": at, "wte": P(), "wpe": P(), "n": P()}
    return placed(
        make,
        wrong,
        args=(p, S((4, length + 1), IDS)),
        mesh={"dp": 2, "tp": 2},
        in_shardings=(spec, P("dp")),
        out_shardings=(P(), spec),
    )


# -- patches by reshape and transpose, one block, the mean of patches ------------------------------


def patches(wrong: str = "") -> Case:
    side, patch, d, heads, classes = 8, 4, 16, 4, 10
    n = side // patch

    def make(wrong: str) -> Callable[..., Any]:
        def loss(p: Any, images: Any, labels: Any) -> Any:
            b = images.shape[0]
            x = images.reshape(b, n, patch, n, patch, 3)
            x = jnp.transpose(x, (0, 3, 1, 2, 4, 5) if wrong == "columns" else (0, 1, 3, 2, 4, 5))
            x = x.reshape(b, n * n, -1) @ p["patch"] + p["pos"]
            y = norm(x, p["n1"])
            q, k, v = jnp.split((y @ p["qkv"]).reshape(b, n * n, heads, -1), 3, axis=-1)
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / (d // heads) ** 0.5
            o = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
            x = x + o.reshape(b, n * n, d) @ p["o"]
            x = x + jax.nn.relu(norm(x, p["n2"]) @ p["up"]) @ p["down"]
            logits = (x.sum(1) if wrong == "sum" else x.mean(1)) @ p["head"]
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        return jax.value_and_grad(loss)

    p = {
        "patch": S((patch * patch * 3, d), F), "pos": S((n * n, d), F), "n1": S((d,), F),
        "n2": S((d,), F), "qkv": S((d, 3 * d), F), "o": S((d, d), F), "up": S((d, 32), F),
        "down": S((32, d), F), "head": S((d, classes), F),
    }  # fmt: skip
    spec = {
        "patch": P(), "pos": P(), "n1": P(), "n2": P(), "qkv": P(None, "tp"), "o": P("tp"),
        "up": P(None, "tp"), "down": P("tp"), "head": P(),
    }  # fmt: skip
    return placed(
        make,
        wrong,
        args=(p, S((4, side, side, 3), F), S((4,), IDS)),
        mesh={"dp": 2, "tp": 2},
        in_shardings=(spec, P("dp"), P("dp")),
        out_shardings=(P(), spec),
    )

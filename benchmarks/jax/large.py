"""A training step of Llama-3 8B's shapes on 64 devices: fsdp 8 beside tp 8, placed by the
partitioner; 32 layers by a scan with remat, AdamW."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from everyday import placed, rotate
from jax import lax
from jax.sharding import PartitionSpec as P
from published import named
from shapes import IDS, Case, F, S, beside_twins

VOCABULARY, WIDTH, HEADS, GROUPS, HEAD, INNER = 128256, 4096, 32, 8, 128, 14336


def norm(x: Any, g: Any) -> Any:
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * g


def layer(wrong: str, x: Any, p: Any) -> Any:
    b, t, _ = x.shape
    y = norm(x, p["n1"])
    q = rotate(jnp.einsum("btd,dhk->bthk", y, p["q"]), 500000.0)
    key = rotate(jnp.einsum("btd,dhk->bthk", y, p["k"]), 5e4 if wrong == "theta" else 500000.0)
    v = jnp.einsum("btd,dhk->bthk", y, p["v"])
    q = q.reshape(b, t, GROUPS, HEADS // GROUPS, HEAD)
    s = jnp.einsum("btgrk,bsgk->bgrts", q, key) * HEAD**-0.5
    s = jnp.where(jnp.tril(jnp.ones((t, t), bool)), s, -jnp.inf)
    o = jnp.einsum("bgrts,bsgk->btgrk", jax.nn.softmax(s, -1), v).reshape(b, t, HEADS, HEAD)
    x = x + jnp.einsum("bthk,hkd->btd", o, p["o"])
    y = norm(x, p["n1" if wrong == "norm" else "n2"])
    return x + (jax.nn.silu(y @ p["w1"]) * (y @ p["w3"])) @ p["w2"], None


def llama_8b(wrong: str = "", layers: int = 32, batch: int = 16, length: int = 512) -> Case:
    tx = optax.adamw(3e-4, b2=0.95, weight_decay=0.1)

    def make(wrong: str) -> Callable[..., Any]:
        def step(p: Any, s: Any, ids: Any, labels: Any) -> Any:
            def loss(p: Any) -> Any:
                body = jax.checkpoint(partial(layer, wrong))
                x, _ = lax.scan(body, p["embed"][ids], p["layers"])
                logits = norm(x, p["norm"]) @ p["head"]
                return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

            value, grads = jax.value_and_grad(loss)(p)
            changes, s = tx.update(grads, s, p)
            return optax.apply_updates(p, changes), s, value

        return step

    sizes = {
        "n1": (WIDTH,), "n2": (WIDTH,), "q": (WIDTH, HEADS, HEAD), "k": (WIDTH, GROUPS, HEAD),
        "v": (WIDTH, GROUPS, HEAD), "o": (HEADS, HEAD, WIDTH), "w1": (WIDTH, INNER),
        "w3": (WIDTH, INNER), "w2": (INNER, WIDTH),
    }  # fmt: skip
    p = {
        "layers": {n: S((layers, *size), F) for n, size in sizes.items()},
        "embed": S((VOCABULARY, WIDTH), F), "norm": S((WIDTH,), F),
        "head": S((WIDTH, VOCABULARY), F),
    }  # fmt: skip
    column, row = P(None, "fsdp", "tp"), P(None, "tp", "fsdp")
    rules = {
        "q": column, "k": column, "v": column, "w1": column, "w3": column, "w2": row,
        "o": P(None, "tp", None, "fsdp"), "embed": P("tp", "fsdp"), "head": P("fsdp", "tp"),
    }  # fmt: skip
    s = jax.eval_shape(tx.init, p)
    at, state_at = named(p, rules), named(s, rules)
    ids = S((batch, length), IDS)
    return placed(
        make,
        wrong,
        args=(p, s, ids, ids),
        mesh={"fsdp": 8, "tp": 8},
        in_shardings=(at, state_at, P("fsdp"), P("fsdp")),
        out_shardings=(at, state_at, P()),
    )


RIGHT, WRONG = beside_twins({llama_8b: ("theta", "norm")})

"""Steps in other styles than `programs`, written without running them: what was made to work is not
made for these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import lax
from jax.sharding import PartitionSpec as P
from shapes import IDS, Case, F, S, mapped


def rope(x: Any) -> Any:
    half = x.shape[-1] // 2
    inverse = 1.0 / (10000.0 ** (jnp.arange(half) / half))
    angle = jnp.arange(x.shape[1])[:, None] * inverse
    cos, sin = jnp.cos(angle)[None, :, None], jnp.sin(angle)[None, :, None]
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def norm(x: Any, w: Any) -> Any:
    return x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-5) * w


def llama(p: Any, x: Any) -> Any:
    """Grouped queries, rotary positions, a gated MLP."""
    y = norm(x, p["n1"])
    q = rope(jnp.einsum("btd,dhk->bthk", y, p["wq"]))
    k = rope(jnp.einsum("btd,dhk->bthk", y, p["wk"]))
    v = jnp.einsum("btd,dhk->bthk", y, p["wv"])
    k, v = jnp.repeat(k, 2, axis=2), jnp.repeat(v, 2, axis=2)
    s = jnp.einsum("bqhk,bshk->bhqs", q, k) * q.shape[-1] ** -0.5
    t = x.shape[1]
    s = jnp.where(jnp.arange(t)[:, None] >= jnp.arange(t)[None, :], s, -jnp.inf)
    o = jnp.einsum("bhqs,bshk->bqhk", jax.nn.softmax(s, axis=-1), v)
    x = x + jnp.einsum("bthk,hkd->btd", o, p["wo"])
    y = norm(x, p["n2"])
    return x + (jax.nn.silu(y @ p["w1"]) * (y @ p["w3"])) @ p["w2"]


def llama_case() -> Case:
    d, h, kv, k, f = 32, 8, 4, 8, 64
    p = {
        "n1": S((d,), F), "n2": S((d,), F), "wq": S((d, h, k), F), "wk": S((d, kv, k), F),
        "wv": S((d, kv, k), F), "wo": S((h, k, d), F), "w1": S((d, f), F), "w3": S((d, f), F),
        "w2": S((f, d), F),
    }  # fmt: skip
    c, r = P(None, "model"), P("model")
    at = {"n1": P(), "n2": P(), "wq": c, "wk": c, "wv": c, "wo": r, "w1": c, "w3": c, "w2": r}
    return {
        "step": jax.value_and_grad(lambda p, x, y: jnp.mean((llama(p, x) - y) ** 2)),
        "args": (p, S((4, 6, d), F), S((4, 6, d), F)),
        "mesh": {"data": 2, "model": 4},
        "in_shardings": (at, P("data"), P("data")),
        "out_shardings": (P(), at),
    }


class Net(nnx.Module):
    def __init__(self, rngs: Any) -> None:
        self.a = nnx.Linear(16, 64, rngs=rngs)
        self.b = nnx.Linear(64, 16, rngs=rngs)
        self.n = nnx.LayerNorm(16, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return x + self.b(nnx.relu(self.a(self.n(x))))


def nnx_case() -> Case:
    graph, state = nnx.split(nnx.eval_shape(lambda: Net(nnx.Rngs(0))))
    pure = nnx.to_pure_dict(state)

    def loss(params: Any, x: Any, y: Any) -> Any:
        model = nnx.merge(graph, state_of(params))
        return optax.l2_loss(model(x), y).mean()

    def state_of(params: Any) -> Any:
        found = nnx.eval_shape(lambda: Net(nnx.Rngs(0)))
        _, own = nnx.split(found)
        nnx.replace_by_pure_dict(own, params)
        return own

    at = jax.tree.map(lambda _: P(), pure)
    at["a"] = {"kernel": P(None, "tp"), "bias": P("tp")}
    at["b"]["kernel"] = P("tp", None)
    return {
        "step": jax.value_and_grad(loss),
        "args": (pure, S((8, 16), F), S((8, 16), F)),
        "mesh": {"dp": 2, "tp": 2},
        "in_shardings": (at, P("dp"), P("dp")),
        "out_shardings": (P(), at),
    }


CLIPPED = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1, momentum=0.9, nesterov=True))


def clipped_case() -> Case:
    w = {"a": S((16, 32), F), "b": S((32, 8), F)}
    state = jax.eval_shape(CLIPPED.init, w)

    def step(w: Any, state: Any, x: Any, y: Any) -> Any:
        def loss(w: Any) -> Any:
            return optax.sigmoid_binary_cross_entropy(jnp.tanh(x @ w["a"]) @ w["b"], y).mean()

        g = jax.grad(loss)(w)
        u, state = CLIPPED.update(g, state, w)
        return optax.apply_updates(w, u), state

    at = {"a": P(None, "x"), "b": P("x")}
    state_at = jax.tree_util.tree_map_with_path(
        lambda path, leaf: at.get(getattr(path[-1], "key", ""), P()), state
    )
    return {
        "step": step,
        "args": (w, state, S((8, 16), F), S((8, 8), F)),
        "mesh": {"y": 2, "x": 4},
        "in_shardings": (at, state_at, P("y"), P("y")),
        "out_shardings": (at, state_at),
    }


def vit_case() -> Case:
    """Patches by reshape, mean pooling, a smoothed loss over few classes."""

    def loss(p: Any, images: Any, labels: Any) -> Any:
        b = images.shape[0]
        x = images.reshape(b, 2, 4, 2, 4, 3).transpose(0, 1, 3, 2, 4, 5).reshape(b, 4, 48)
        x = x @ p["patch"] + p["pos"]
        y = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-6)
        x = x + jax.nn.gelu(y @ p["w1"] + p["b1"], approximate=False) @ p["w2"]
        logits = x.mean(1) @ p["head"]
        target = optax.smooth_labels(jax.nn.one_hot(labels, 8), 0.1)
        return optax.softmax_cross_entropy(logits, target).mean()

    p = {
        "patch": S((48, 32), F), "pos": S((4, 32), F), "w1": S((32, 64), F), "b1": S((64,), F),
        "w2": S((64, 32), F), "head": S((32, 8), F),
    }  # fmt: skip
    at = {"patch": P(), "pos": P(), "w1": P(None, "t"), "b1": P("t"), "w2": P("t"), "head": P()}
    return {
        "step": jax.value_and_grad(loss),
        "args": (p, S((4, 8, 8, 3), F), S((4,), IDS)),
        "mesh": {"d": 2, "t": 2},
        "in_shardings": (at, P("d"), P("d")),
        "out_shardings": (P(), at),
    }


def dense_loss(w: Any, x: Any) -> Any:
    return jnp.sum(jax.nn.softplus(x @ w["a"]) @ w["b"])


def zero_by_hand(scatter: bool = True, mean: bool = False) -> Case:
    """Weights gathered before use, gradients reduced and scattered: as FSDP does."""

    def own(w: Any, x: Any) -> Any:
        whole = jax.tree.map(lambda v: lax.all_gather(v, "fsdp", axis=0, tiled=True), w)
        g = jax.grad(dense_loss)(whole, x)
        if not scatter:
            n = jax.tree.map(lambda v: v.shape[0] // 4, g)
            r = lax.axis_index("fsdp")
            return jax.tree.map(lambda v, k: lax.dynamic_slice_in_dim(v, r * k, k, 0), g, n)
        found = jax.tree.map(
            lambda v: lax.psum_scatter(v, "fsdp", scatter_dimension=0, tiled=True), g
        )
        return jax.tree.map(lambda v: v / 4, found) if mean else found

    w = {"a": S((16, 32), F), "b": S((32, 8), F)}
    at = {"a": P("fsdp"), "b": P("fsdp")}
    return {
        "step": jax.grad(dense_loss),
        "parallel": mapped(own, (at, P("fsdp")), at),
        "args": (w, S((8, 16), F)),
        "mesh": {"fsdp": 4},
    }


def sequence_parallel(gathers: bool = True) -> Case:
    """Norms on parts of the sequence, matrix products on parts of the width."""

    def single(x: Any, n: Any, a: Any, b: Any) -> Any:
        return x + jax.nn.gelu(norm(x, n) @ a) @ b

    def twin(x: Any, n: Any, a: Any, b: Any) -> Any:
        y = norm(x, n)
        y = lax.all_gather(y, "tp", axis=1, tiled=True)
        y = jax.nn.gelu(y @ a) @ b
        if not gathers:
            r = lax.axis_index("tp")
            return x + lax.dynamic_slice_in_dim(y, r * x.shape[1], x.shape[1], 1)
        return x + lax.psum_scatter(y, "tp", scatter_dimension=1, tiled=True)

    ins = (P(None, "tp"), P(), P(None, "tp"), P("tp"))
    return {
        "step": single,
        "parallel": mapped(twin, ins, P(None, "tp")),
        "args": (S((2, 8, 16), F), S((16,), F), S((16, 32), F), S((32, 16), F)),
        "mesh": {"tp": 4},
    }


def accumulated(divide: float = 4.0) -> Case:
    """Gradients of four microbatches, added up in a scan."""

    def loss(w: Any, x: Any) -> Any:
        return jnp.mean(jnp.tanh(x @ w["a"]) @ w["b"])

    def twin(w: Any, x: Any) -> Any:
        parts = x.reshape(4, -1, x.shape[-1])

        def body(total: Any, part: Any) -> Any:
            return jax.tree.map(jnp.add, total, jax.grad(loss)(w, part)), None

        total, _ = lax.scan(body, jax.tree.map(jnp.zeros_like, w), parts)
        return jax.tree.map(lambda v: lax.pmean(v / divide, "dp"), total)

    w = {"a": S((16, 32), F), "b": S((32, 8), F)}
    return {
        "step": jax.grad(loss),
        "parallel": mapped(twin, (P(), P("dp")), P()),
        "args": (w, S((16, 16), F)),
        "mesh": {"dp": 2},
    }


def recurrent() -> Case:
    """A recurrence over time."""

    def loss(p: Any, x: Any) -> Any:
        def cell(h: Any, part: Any) -> Any:
            z = jax.nn.sigmoid(part @ p["wz"] + h @ p["uz"])
            h = (1 - z) * h + z * jnp.tanh(part @ p["wh"] + h @ p["uh"])
            return h, h

        h = jnp.zeros((x.shape[1], 16))
        _, all_h = lax.scan(cell, h, x)
        return jnp.mean(all_h**2)

    p = {n: S((16, 16), F) for n in ("wz", "uz", "wh", "uh")}
    at = {n: P() for n in p}
    return {
        "step": jax.value_and_grad(loss),
        "args": (p, S((5, 8, 16), F)),
        "mesh": {"dp": 4},
        "in_shardings": (at, P(None, "dp")),
        "out_shardings": (P(), at),
    }


RIGHT: dict[str, Callable[[], Case]] = {
    "llama block, data and model": llama_case,
    "nnx, data and tensor": nnx_case,
    "clipped momentum": clipped_case,
    "patches and smoothed labels": vit_case,
    "ZeRO by hand": zero_by_hand,
    "sequence parallel by hand": sequence_parallel,
    "accumulated gradients": accumulated,
    "recurrence": recurrent,
}
WRONG: dict[str, Callable[[], Case]] = {
    "ZeRO by hand, no reduction": lambda: zero_by_hand(scatter=False),
    "ZeRO by hand, a mean": lambda: zero_by_hand(mean=True),
    "sequence parallel, no reduction": lambda: sequence_parallel(gathers=False),
    "accumulated gradients, not divided": lambda: accumulated(1.0),
}

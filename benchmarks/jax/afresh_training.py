"""Training of `afresh`: data parallelism, sharded weights, pipelines, clipping, mixed precision."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import PartitionSpec as P
from shapes import IDS, B, Case, F, S, mapped

# -- a perceptron of flax, data parallel by hand, with SGD and momentum ----------------------------


class Perceptron(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        for width in (32, 24):
            x = nn.gelu(nn.LayerNorm()(nn.Dense(width)(x)))
        return nn.Dense(10)(x)


def perceptron(mean: bool = True) -> Case:
    model, tx = Perceptron(), optax.sgd(0.1, momentum=0.9, nesterov=True)
    params = jax.eval_shape(lambda: model.init(jax.random.key(0), jnp.zeros((8, 12))))
    state = jax.eval_shape(tx.init, params)

    def loss(p: Any, x: Any, y: Any) -> Any:
        logits = model.apply(p, x)
        return optax.softmax_cross_entropy(logits, jax.nn.one_hot(y, 10)).mean()

    def step(p: Any, s: Any, x: Any, y: Any, join: Callable[[Any], Any]) -> Any:
        value, grads = jax.value_and_grad(loss)(p, x, y)
        value, grads = join(value), jax.tree.map(join, grads)
        updates, s = tx.update(grads, s, p)
        return optax.apply_updates(p, updates), s, value

    def twin(p: Any, s: Any, x: Any, y: Any) -> Any:
        join = partial(lax.pmean if mean else lax.psum, axis_name="dp")
        return step(p, s, x, y, join)

    return {
        "step": lambda p, s, x, y: step(p, s, x, y, lambda v: v),
        "parallel": mapped(twin, (P(), P(), P("dp"), P("dp")), (P(), P(), P())),
        "args": (params, state, S((8, 12), F), S((8,), IDS)),
        "mesh": {"dp": 4},
    }


# -- fully sharded by hand: gathered before use, gradients scattered -------------------------------


def gathered(scaled: bool = True) -> Case:
    def loss(p: Any, x: Any, y: Any) -> Any:
        for w, b in p:
            x = jax.nn.relu(x @ w + b)
        return jnp.mean(jnp.square(x - y))

    def single(p: Any, x: Any, y: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(p, x, y)
        return jax.tree.map(lambda w, g: w - 0.1 * g, p, grads), value

    def twin(p: Any, x: Any, y: Any) -> Any:
        whole = jax.tree.map(lambda w: lax.all_gather(w, "fsdp", tiled=True), p)
        value, grads = jax.value_and_grad(loss)(whole, x, y)
        grads = jax.tree.map(lambda g: lax.psum_scatter(g, "fsdp", tiled=True), grads)
        if scaled:
            grads = jax.tree.map(lambda g: g / lax.psum(1, "fsdp"), grads)
        return jax.tree.map(lambda w, g: w - 0.1 * g, p, grads), lax.pmean(value, "fsdp")

    p = [(S((16, 16), F), S((16,), F)) for _ in range(3)]
    at = [(P("fsdp"), P("fsdp"))] * 3
    return {
        "step": single,
        "parallel": mapped(twin, (at, P("fsdp"), P("fsdp")), (at, P())),
        "args": (p, S((8, 16), F), S((8, 16), F)),
        "mesh": {"fsdp": 4},
    }


# -- a pipeline in a scan --------------------------------------------------------------------------


def piped(whole: bool = True) -> Case:
    """GPipe: each tick every stage works on what the one before gave it."""
    stages, count = 4, 4

    def stage(w: Any, x: Any) -> Any:
        return x + jax.nn.gelu(x @ w["a"]) @ w["b"]

    def single(w: Any, x: Any) -> Any:
        return lax.scan(lambda x, w: (stage(w, x), None), x, w)[0]

    def twin(w: Any, x: Any) -> Any:
        own = jax.tree.map(lambda v: v[0], w)
        me = lax.axis_index("pp")
        parts = x.reshape(count, -1, x.shape[-1])

        def tick(carry: Any, t: Any) -> Any:
            held, done = carry
            first = lax.dynamic_index_in_dim(parts, jnp.clip(t, 0, count - 1), 0, keepdims=False)
            held = stage(own, jnp.where(me == 0, first, held))
            at = jnp.clip(t - (stages - 1), 0, count - 1)
            old = lax.dynamic_index_in_dim(done, at, 0, keepdims=False)
            new = jnp.where((me == stages - 1) & (t >= stages - 1), held, old)
            done = lax.dynamic_update_index_in_dim(done, new, at, 0)
            held = lax.ppermute(held, "pp", [(i, (i + 1) % stages) for i in range(stages)])
            return (held, done), None

        ticks = count + stages - (1 if whole else 2)
        zero = (jnp.zeros_like(parts[0]), jnp.zeros_like(parts))
        (_, done), _ = lax.scan(tick, zero, jnp.arange(ticks))
        done = jnp.where(me == stages - 1, done, 0.0)
        return lax.psum(done, "pp").reshape(x.shape)

    w = {"a": S((stages, 8, 16), F), "b": S((stages, 16, 8), F)}
    at = jax.tree.map(lambda _: P("pp"), w)
    return {
        "step": single,
        "parallel": mapped(twin, (at, P()), P()),
        "args": (w, S((8, 8), F)),
        "mesh": {"pp": stages},
    }


# -- clipped by the global norm of sharded gradients -----------------------------------------------


def clipped(joined: bool = True) -> Case:
    def loss(p: Any, x: Any) -> Any:
        return jnp.mean(jnp.square(jnp.tanh(x @ p["a"]) @ p["b"]))

    def adam(p: Any, m: Any, v: Any, g: Any) -> Any:
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
        v = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, v, g)
        p = jax.tree.map(lambda p, m, v: p - 1e-3 * (m / (jnp.sqrt(v) + 1e-8) + 0.1 * p), p, m, v)
        return p, m, v

    def single(p: Any, m: Any, v: Any, x: Any) -> Any:
        g = jax.grad(loss)(p, x)
        norm = optax.global_norm(g)
        g = jax.tree.map(lambda t: t * jnp.minimum(1.0, 1.0 / (norm + 1e-6)), g)
        return adam(p, m, v, g)

    def twin(p: Any, m: Any, v: Any, x: Any) -> Any:
        def loss(p: Any) -> Any:
            y = lax.psum(jnp.tanh(x @ p["a"]) @ p["b"], "tp")
            return jnp.mean(jnp.square(y))

        # The seed of each rank's loss is summed by the transposed psum.
        g = jax.tree.map(lambda t: t / lax.psum(1, "tp"), jax.grad(loss)(p))
        square = sum(jnp.sum(t * t) for t in jax.tree.leaves(g))
        norm = jnp.sqrt(lax.psum(square, "tp") if joined else square)
        g = jax.tree.map(lambda t: t * jnp.minimum(1.0, 1.0 / (norm + 1e-6)), g)
        return adam(p, m, v, g)

    p = {"a": S((8, 16), F), "b": S((16, 8), F)}
    at = {"a": P(None, "tp"), "b": P("tp")}
    return {
        "step": single,
        "parallel": mapped(twin, (at, at, at, P()), (at, at, at)),
        "args": (p, p, p, S((4, 8), F)),
        "mesh": {"tp": 4},
    }


# -- mixed precision with a scale of the loss ------------------------------------------------------


def mixed(unscaled: bool = True) -> Case:
    scale = 1024.0

    def loss(p: Any, x: Any, y: Any) -> Any:
        low = jax.tree.map(lambda w: w.astype(B), p)
        h = jax.nn.silu(x.astype(B) @ low["gate"]) * (x.astype(B) @ low["up"])
        out = (h @ low["down"]).astype(F)
        return scale * jnp.mean(optax.huber_loss(out, y))

    def step(p: Any, x: Any, y: Any, unscaled: bool = True) -> Any:
        value, grads = jax.value_and_grad(loss)(p, x, y)
        if unscaled:
            grads = jax.tree.map(lambda g: g / scale, grads)
        finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(grads)]))
        new = jax.tree.map(lambda w, g: w - 0.01 * g, p, grads)
        return jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, p), value / scale

    p = {"gate": S((16, 32), F), "up": S((16, 32), F), "down": S((32, 16), F)}
    at = {"gate": P("dp", "tp"), "up": P("dp", "tp"), "down": P("tp", "dp")}
    made: Case = {
        "step": lambda p, x, y: step(p, x, y),
        "args": (p, S((8, 16), F), S((8, 16), F)),
        "mesh": {"dp": 2, "tp": 2},
        "in_shardings": (at, P("dp"), P("dp")),
        "out_shardings": (at, P()),
    }
    if not unscaled:
        made["parallel"] = partial(step, unscaled=False)
    return made


# -- a loss of every sample by vmap, weighted, with gradients of each ------------------------------


def per_sample(normed: bool = True) -> Case:
    """Differentially private SGD without noise: every sample's gradient is clipped."""

    def loss(p: Any, x: Any, y: Any) -> Any:
        h = jnp.tanh(p["a"] @ x + p["c"])
        return jax.nn.logsumexp(p["b"] @ h) - (p["b"] @ h)[y]

    def grads(p: Any, x: Any, y: Any) -> Any:
        each = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(p, x, y)
        square = sum(jnp.sum(jnp.square(g.reshape(g.shape[0], -1)), -1) for g in each.values())
        factor = jnp.minimum(1.0, lax.rsqrt(square + 1e-6))
        if not normed:
            factor = jnp.ones_like(factor)
        return {k: jnp.einsum("n,n...->...", factor, g) for k, g in each.items()}

    def single(p: Any, x: Any, y: Any) -> Any:
        each = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(p, x, y)
        square = sum(jnp.sum(jnp.square(g.reshape(g.shape[0], -1)), -1) for g in each.values())
        factor = jnp.minimum(1.0, lax.rsqrt(square + 1e-6))
        return {k: jnp.einsum("n,n...->...", factor, g) for k, g in each.items()}

    def twin(p: Any, x: Any, y: Any) -> Any:
        return jax.tree.map(lambda g: lax.psum(g, "dp"), grads(p, x, y))

    p = {"a": S((12, 6), F), "c": S((12,), F), "b": S((5, 12), F)}
    return {
        "step": single,
        "parallel": mapped(twin, (P(), P("dp"), P("dp")), P()),
        "args": (p, S((8, 6), F), S((8,), IDS)),
        "mesh": {"dp": 4},
    }

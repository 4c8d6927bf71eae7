"""Steps of users' kinds that none of the other modules holds, placed by the partitioner, beside
wrong twins; written before any of them was run."""

from __future__ import annotations

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import PartitionSpec as P
from shapes import IDS, Case, F, S

# -- a convolutional network, Nesterov momentum, a cosine schedule ---------------------------------


class Vision(nn.Module):
    groups: int = 2

    @nn.compact
    def __call__(self, x: Any) -> Any:
        for width in (4, 8):
            x = nn.Conv(width, (3, 3), use_bias=False)(x)
            x = nn.relu(nn.GroupNorm(num_groups=self.groups)(x))
            x = nn.avg_pool(x, (2, 2), strides=(2, 2))
        return nn.Dense(10)(x.mean(axis=(1, 2)))


def vision(wrong: str = "") -> Case:
    """Images over devices, parameters on all of them."""
    schedule = optax.cosine_decay_schedule(0.1, 1000)
    tx = optax.chain(
        optax.add_decayed_weights(5e-4), optax.sgd(schedule, momentum=0.9, nesterov=True)
    )

    def step(p: Any, s: Any, x: Any, y: Any, groups: int = 2, tx: Any = tx) -> Any:
        def loss(p: Any) -> Any:
            logits = Vision(groups).apply(p, x)
            return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

        value, grads = jax.value_and_grad(loss)(p)
        updates, s = tx.update(grads, s, p)
        return optax.apply_updates(p, updates), s, value

    x = S((4, 8, 8, 3), F)
    params = jax.eval_shape(lambda: Vision().init(jax.random.key(0), jnp.zeros(x.shape)))
    opt = jax.eval_shape(tx.init, params)
    made: Case = {
        "step": step,
        "args": (params, opt, x, S((4,), IDS)),
        "mesh": {"dp": 4},
        "in_shardings": (
            jax.tree.map(lambda _: P(), params),
            jax.tree.map(lambda _: P(), opt),
            P("dp"),
            P("dp"),
        ),
    }
    if wrong == "groups":
        made["parallel"] = partial(step, groups=4)
    if wrong == "momentum":
        other = optax.chain(optax.add_decayed_weights(5e-4), optax.sgd(schedule, momentum=0.9))
        made["parallel"] = partial(step, tx=other)
    return made


# -- a decoder with capped scores, decay on matrices alone -----------------------------------------


def decoder(wrong: str = "") -> Case:
    """Scores and logits are capped by tanh; fsdp and tp."""

    def norm(x: Any, g: Any) -> Any:
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * (1 + g)

    def forward(p: Any, ids: Any, cap: float) -> Any:
        x = p["embed"][ids] * p["embed"].shape[1] ** 0.5
        t = ids.shape[1]
        for w in p["layers"]:
            y = norm(x, w["g1"])
            q, k, v = (jnp.einsum("btd,dhk->bthk", y, w[n]) for n in "qkv")
            s = jnp.einsum("bqhk,bmhk->bhqm", q * q.shape[-1] ** -0.5, k)
            s = cap * jnp.tanh(s / cap)
            s = jnp.where(jnp.tril(jnp.ones((t, t), bool)), s, -2.3819763e38)
            y = jnp.einsum("bhqm,bmhk->bqhk", jax.nn.softmax(s, axis=-1), v)
            x = x + jnp.einsum("bqhk,hkd->bqd", y, w["o"])
            y = norm(x, w["g2"])
            x = x + (jax.nn.gelu(y @ w["gate"]) * (y @ w["up"])) @ w["down"]
        logits = norm(x, p["g"]) @ p["embed"].T
        return 30.0 * jnp.tanh(logits / 30.0)

    tx = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.scale_by_adam(b2=0.95),
        optax.add_decayed_weights(0.1, mask=lambda p: jax.tree.map(lambda v: v.ndim > 1, p)),
        optax.scale_by_learning_rate(3e-4),
    )

    def step(p: Any, s: Any, ids: Any, cap: float = 50.0, eps: float = 0.0) -> Any:
        def loss(p: Any) -> Any:
            logits = forward(p, ids[:, :-1], cap)
            each = optax.softmax_cross_entropy_with_integer_labels(logits, ids[:, 1:])
            return each.mean() + eps * jnp.square(jax.nn.logsumexp(logits, axis=-1)).mean()

        value, grads = jax.value_and_grad(loss)(p)
        updates, s = tx.update(grads, s, p)
        return optax.apply_updates(p, updates), s, value

    layer = {w: S((8, 2, 4), F) for w in "qkv"} | {"o": S((2, 4, 8), F)}
    layer |= {"gate": S((8, 16), F), "up": S((8, 16), F), "down": S((16, 8), F)}
    layer |= {"g1": S((8,), F), "g2": S((8,), F)}
    at = {w: P("fsdp", "tp") for w in "qkv"} | {"o": P("tp", None, "fsdp")}
    at |= {"gate": P("fsdp", "tp"), "up": P("fsdp", "tp"), "down": P("tp", "fsdp")}
    at |= {"g1": P(), "g2": P()}
    p = {"embed": S((32, 8), F), "layers": [layer] * 2, "g": S((8,), F)}
    places = {"embed": P("tp", "fsdp"), "layers": [at] * 2, "g": P()}
    opt = jax.eval_shape(tx.init, p)
    empty = optax.EmptyState
    moments = optax.ScaleByAdamState(count=P(), mu=places, nu=places)
    made: Case = {
        "step": step,
        "args": (p, opt, S((4, 7), IDS)),
        "mesh": {"fsdp": 2, "tp": 2},
        "in_shardings": (
            places,
            (empty(), moments, optax.MaskedState(inner_state=empty()), empty()),
            P("fsdp"),
        ),
    }
    if wrong == "cap":
        made["parallel"] = partial(step, cap=25.0)
    if wrong == "z-loss":
        made["parallel"] = partial(step, eps=1e-4)
    return made


# -- two towers, whose pairs are told from all others ----------------------------------------------


def pairs(wrong: str = "") -> Case:
    """The symmetric loss of CLIP over the batch of all devices, with a learned temperature."""

    def unit(x: Any) -> Any:
        return x / jnp.linalg.norm(x, axis=-1, keepdims=True)

    def step(p: Any, images: Any, texts: Any, both: bool = True, cut: float = 4.6052) -> Any:
        def loss(p: Any) -> Any:
            a = unit(jax.nn.gelu(images @ p["i1"]) @ p["i2"])
            b = unit(jax.nn.gelu(texts @ p["t1"]) @ p["t2"])
            logits = jnp.exp(p["scale"]) * (a @ b.T)
            labels = jnp.arange(logits.shape[0])
            ways = (logits, logits.T) if both else (logits, logits)
            each = [optax.softmax_cross_entropy_with_integer_labels(w, labels) for w in ways]
            return 0.5 * (each[0].mean() + each[1].mean())

        value, grads = jax.value_and_grad(loss)(p)
        p = jax.tree.map(lambda w, g: w - 0.01 * g, p, grads)
        return value, p | {"scale": jnp.clip(p["scale"], 0.0, cut)}

    p = {"i1": S((12, 16), F), "i2": S((16, 8), F), "t1": S((6, 16), F), "t2": S((16, 8), F)}
    p |= {"scale": S((), F)}
    at = {"i1": P(None, "tp"), "i2": P("tp"), "t1": P(None, "tp"), "t2": P("tp"), "scale": P()}
    made: Case = {
        "step": step,
        "args": (p, S((4, 12), F), S((4, 6), F)),
        "mesh": {"dp": 2, "tp": 2},
        "in_shardings": (at, P("dp"), P("dp")),
    }
    if wrong == "one way":
        made["parallel"] = partial(step, both=False)
    if wrong == "cut":
        made["parallel"] = partial(step, cut=1.0)
    return made


# -- nnx: batch norms with running averages --------------------------------------------------------


class Normed(nnx.Module):
    def __init__(self, momentum: float, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(6, 16, rngs=rngs)
        self.norm = nnx.BatchNorm(16, momentum=momentum, rngs=rngs)
        self.second = nnx.Linear(16, 3, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.second(nnx.silu(self.norm(self.first(x))))


def batches(wrong: str = "") -> Case:
    """Statistics are of all devices' rows, since the partitioner divides them."""

    def halves(momentum: float) -> Any:
        return nnx.split(
            nnx.eval_shape(lambda: Normed(momentum, nnx.Rngs(0))), nnx.Param, nnx.BatchStat
        )

    graph, params, stats = halves(0.9)

    def step(p: Any, s: Any, x: Any, y: Any, momentum: float = 0.9, ddof: bool = False) -> Any:
        own = halves(momentum)[0] if momentum != 0.9 else graph

        def loss(p: Any) -> Any:
            left, right = params, stats
            left = jax.tree.unflatten(jax.tree.structure(left), jax.tree.leaves(p))
            right = jax.tree.unflatten(jax.tree.structure(right), jax.tree.leaves(s))
            model = nnx.merge(own, left, right)
            out = model(x)
            after = nnx.state(model, nnx.BatchStat)
            each = optax.sigmoid_binary_cross_entropy(out, y)
            return each.sum() / (each.size - ddof), jax.tree.leaves(after)

        (value, after), grads = jax.value_and_grad(loss, has_aux=True)(p)
        return value, [w - 0.1 * g for w, g in zip(p, grads, strict=True)], after

    p, s = ([S(v.shape, v.dtype) for v in jax.tree.leaves(t)] for t in (params, stats))
    made: Case = {
        "step": step,
        "args": (p, s, S((8, 6), F), S((8, 3), F)),
        "mesh": {"dp": 4},
        "in_shardings": ([P()] * len(p), [P()] * len(s), P("dp"), P("dp")),
    }
    if wrong == "momentum":
        made["parallel"] = partial(step, momentum=0.99)
    if wrong == "count":
        made["parallel"] = partial(step, ddof=True)
    return made

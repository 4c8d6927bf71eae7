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
from jax import lax
from jax.sharding import PartitionSpec as P
from shapes import IDS, Case, F, S

# -- nnx: a transformer whose kernels say how they lie ---------------------------------------------


class Block(nnx.Module):
    def __init__(self, width: int, heads: int, rngs: nnx.Rngs) -> None:
        made = partial(nnx.with_partitioning, nnx.initializers.lecun_normal())
        self.first = nnx.LayerNorm(width, rngs=rngs)
        self.second = nnx.RMSNorm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(heads, width, decode=False, rngs=rngs)
        self.up = nnx.Linear(width, 4 * width, kernel_init=made((None, "tp")), rngs=rngs)
        self.down = nnx.Linear(4 * width, width, kernel_init=made(("tp", None)), rngs=rngs)

    def __call__(self, x: Any, mask: Any, act: Any = jax.nn.gelu) -> Any:
        x = x + self.attention(self.first(x), mask=mask)
        return x + self.down(act(self.up(self.second(x))))


class Model(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(32, 16, rngs=rngs)
        self.blocks = nnx.List([Block(16, 4, rngs) for _ in range(2)])
        self.norm = nnx.LayerNorm(16, rngs=rngs)
        self.head = nnx.Linear(16, 32, use_bias=False, rngs=rngs)

    def __call__(self, ids: Any, act: Any = jax.nn.gelu) -> Any:
        x = self.embed(ids)
        mask = nn.make_causal_mask(ids)
        for block in self.blocks:
            x = block(x, mask, act)
        return self.head(self.norm(x))


def modern(wrong: str = "") -> Case:
    """AdamW behind a warm-up, gradients clipped; ids shifted by one."""
    with nnx.use_eager_sharding(False):
        graph, state = nnx.split(nnx.eval_shape(lambda: Model(nnx.Rngs(0))))
    schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-3, 10, 100)
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=0.1))
    params = nnx.to_pure_dict(state)

    def loss(params: Any, ids: Any, act: Any, by: int) -> Any:
        own = jax.tree.map(lambda v: v, state)
        nnx.replace_by_pure_dict(own, params)
        logits = nnx.merge(graph, own)(ids, act)[:, : ids.shape[1] - by]
        return optax.softmax_cross_entropy_with_integer_labels(logits, ids[:, by:]).mean()

    def step(p: Any, s: Any, ids: Any, act: Any = jax.nn.gelu, by: int = 1) -> Any:
        value, grads = jax.value_and_grad(loss)(p, ids, act, by)
        updates, s = tx.update(grads, s, p)
        return optax.apply_updates(p, updates), s, value

    def at(path: Any, leaf: Any) -> P:
        names = [getattr(k, "key", None) for k in path]
        if leaf.ndim == 2 and "up" in names:
            return P(None, "tp")
        if leaf.ndim == 2 and "down" in names:
            return P("tp", None)
        return P()

    opt = jax.eval_shape(tx.init, params)
    made: Case = {
        "step": step,
        "args": (params, opt, S((4, 8), IDS)),
        "mesh": {"dp": 2, "tp": 2},
        "in_shardings": (
            jax.tree_util.tree_map_with_path(at, params),
            jax.tree_util.tree_map_with_path(at, opt),
            P("dp"),
        ),
    }
    if wrong == "activation":
        made["parallel"] = partial(step, act=lambda v: jax.nn.gelu(v, approximate=False))
    if wrong == "shift":
        made["parallel"] = partial(step, by=2)
    return made


# -- linen: layers in nn.scan with nn.remat, logical axes ------------------------------------------


class Layer(nn.Module):
    factor: float = 1.0

    @nn.compact
    def __call__(self, x: Any, _: Any) -> Any:
        y = nn.RMSNorm()(x)
        y = nn.MultiHeadDotProductAttention(num_heads=2, deterministic=True)(
            y, y, mask=nn.make_causal_mask(jnp.ones(x.shape[:2]))
        )
        x = x + self.factor * y
        y = nn.LayerNorm(use_bias=False)(x)
        gate, up = jnp.split(nn.Dense(32, use_bias=False)(y), 2, axis=-1)
        return x + nn.Dense(x.shape[-1], use_bias=False)(nn.silu(gate) * up), None


class Scanned(nn.Module):
    factor: float = 1.0

    @nn.compact
    def __call__(self, ids: Any) -> Any:
        embed = nn.Embed(24, 8)
        x = embed(ids) + self.param("place", nn.initializers.normal(), (ids.shape[1], 8))
        layers = nn.scan(
            nn.remat(Layer, prevent_cse=False, policy=jax.checkpoint_policies.dots_saveable),
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=3,
        )
        x, _ = layers(self.factor)(x, None)
        return embed.attend(nn.RMSNorm()(x))


def logical(wrong: str = "") -> Case:
    """Parameters lie over `fsdp` by their largest dimension; the embedding is tied; Lion."""
    tx = optax.lion(1e-3, weight_decay=0.01)

    def step(p: Any, s: Any, ids: Any, labels: Any, factor: float = 1.0, pad: int = 0) -> Any:
        def loss(p: Any) -> Any:
            logits = Scanned(factor).apply(p, ids)
            each = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            counted = (labels != pad).astype(F)
            return (each * counted).sum() / counted.sum()

        value, grads = jax.value_and_grad(loss)(p)
        updates, s = tx.update(grads, s, p)
        return optax.apply_updates(p, updates), s, value

    ids = S((4, 6), IDS)
    params = jax.eval_shape(lambda: Scanned().init(jax.random.key(0), jnp.zeros((4, 6), IDS)))

    def at(leaf: Any) -> P:
        dims = [i for i, n in enumerate(leaf.shape) if n % 4 == 0]
        best = max(dims, key=lambda i: leaf.shape[i], default=None)
        return P(*("fsdp" if i == best else None for i in range(leaf.ndim)))

    opt = jax.eval_shape(tx.init, params)
    made: Case = {
        "step": step,
        "args": (params, opt, ids, ids),
        "mesh": {"fsdp": 4},
        "in_shardings": (jax.tree.map(at, params), jax.tree.map(at, opt), P("fsdp"), P("fsdp")),
    }
    if wrong == "factor":
        made["parallel"] = partial(step, factor=0.5)
    if wrong == "pad":
        made["parallel"] = partial(step, pad=1)
    return made


# -- a mixer with sharding constraints inside ------------------------------------------------------


def mixer(wrong: str = "") -> Case:
    def norm(x: Any, g: Any) -> Any:
        mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return (x - mean) * lax.rsqrt(var + 1e-6) * g

    def forward(p: Any, images: Any, where: Any, pool: Any) -> Any:
        n, h, w, c = images.shape
        x = images.reshape(n, h // 4, 4, w // 4, 4, c).transpose(0, 1, 3, 2, 4, 5)
        x = where(x.reshape(n, -1, 16 * c) @ p["patch"], P("dp", None, "tp"))
        for w in p["layers"]:
            y = norm(x, w["g1"]).swapaxes(1, 2)
            y = where(jax.nn.gelu(y @ w["t1"]), P("dp", "tp", None)) @ w["t2"]
            x = x + y.swapaxes(1, 2)
            y = where(jax.nn.gelu(norm(x, w["g2"]) @ w["c1"]), P("dp", None, "tp"))
            x = where(x + y @ w["c2"], P("dp", None, None))
        return pool(x, axis=1) @ p["head"]

    def step(p: Any, images: Any, labels: Any, pool: Any = jnp.mean, smooth: float = 0.1) -> Any:
        def loss(p: Any) -> Any:
            logits = forward(p, images, lax.with_sharding_constraint, pool)
            hot = optax.smooth_labels(jax.nn.one_hot(labels, 10), smooth)
            return optax.softmax_cross_entropy(logits, hot).mean()

        value, grads = jax.value_and_grad(loss)(p)
        return value, jax.tree.map(lambda w, g: w - 0.01 * g, p, grads)

    layer = {"g1": S((8,), F), "g2": S((8,), F), "t1": S((4, 8), F), "t2": S((8, 4), F)}
    layer |= {"c1": S((8, 16), F), "c2": S((16, 8), F)}
    p = {"patch": S((48, 8), F), "layers": [layer] * 2, "head": S((8, 10), F)}
    made: Case = {
        "step": step,
        "args": (p, S((4, 8, 8, 3), F), S((4,), IDS)),
        "mesh": {"dp": 2, "tp": 2},
        "in_shardings": (jax.tree.map(lambda _: P(), p), P("dp"), P("dp")),
    }
    if wrong == "pool":
        made["parallel"] = partial(step, pool=jnp.sum)
    if wrong == "smooth":
        made["parallel"] = partial(step, smooth=0.2)
    return made


# -- low-rank adapters, most parameters frozen -----------------------------------------------------


def adapters(wrong: str = "") -> Case:
    tx = optax.multi_transform(
        {"train": optax.adam(1e-3), "freeze": optax.set_to_zero()},
        lambda p: jax.tree_util.tree_map_with_path(
            lambda path, _: "train" if path[-1].key in ("a", "b") else "freeze", p
        ),
    )

    def step(p: Any, s: Any, x: Any, y: Any, alpha: float = 16.0, frozen: bool = True) -> Any:
        def loss(p: Any) -> Any:
            h = x
            for w in p:
                base = lax.stop_gradient(w["w"]) if frozen else w["w"]
                h = jnp.tanh(h @ base + (alpha / 4) * ((h @ w["a"]) @ w["b"]))
            return optax.huber_loss(h, y, delta=1.0).mean()

        value, grads = jax.value_and_grad(loss)(p)
        updates, s = tx.update(grads, s, p)
        return optax.apply_updates(p, updates), s, value, optax.global_norm(grads)

    p = [{"w": S((8, 8), F), "a": S((8, 4), F), "b": S((4, 8), F)}] * 2
    at = [{"w": P(None, "tp"), "a": P(), "b": P(None, "tp")}] * 2
    opt = jax.eval_shape(tx.init, p)
    made: Case = {
        "step": step,
        "args": (p, opt, S((8, 8), F), S((8, 8), F)),
        "mesh": {"dp": 2, "tp": 2},
        "in_shardings": (at, jax.tree.map(lambda _: P(), opt), P("dp"), P("dp")),
    }
    if wrong == "scale":
        made["parallel"] = partial(step, alpha=8.0)
    if wrong == "not frozen":
        made["parallel"] = partial(step, frozen=False)
    return made


# -- an ensemble by vmap, its members over devices -------------------------------------------------


def ensemble(wrong: str = "") -> Case:
    def member(p: Any, x: Any) -> Any:
        h = jax.nn.elu(x @ p["w1"] + p["b1"])
        return jax.nn.softplus(h @ p["w2"])

    def step(p: Any, x: Any, y: Any, of: Any = jnp.mean) -> Any:
        def loss(p: Any) -> Any:
            each = jax.vmap(member, in_axes=(0, None))(p, x)
            spread = jnp.mean(jnp.var(each, axis=0))
            return jnp.mean(jnp.square(of(each, axis=0) - y)) - 0.1 * spread

        value, grads = jax.value_and_grad(loss)(p)
        return value, jax.tree.map(lambda w, g: w - 0.1 * g, p, grads)

    p = {"w1": S((4, 6, 8), F), "b1": S((4, 8), F), "w2": S((4, 8, 3), F)}
    made: Case = {
        "step": step,
        "args": (p, S((8, 6), F), S((8, 3), F)),
        "mesh": {"ens": 4},
        "in_shardings": (jax.tree.map(lambda _: P("ens"), p), P(), P()),
    }
    if wrong:
        made["parallel"] = partial(step, of=lambda v, axis: jnp.sum(v, axis) / 3)
    return made


# -- distillation with a teacher that follows ------------------------------------------------------


def distilled(wrong: str = "") -> Case:
    def net(p: Any, x: Any) -> Any:
        return jax.nn.relu(x @ p["w1"]) @ p["w2"]

    def step(student: Any, teacher: Any, x: Any, rate: float = 0.05, heat: float = 2.0) -> Any:
        def loss(p: Any) -> Any:
            target = jax.nn.softmax(lax.stop_gradient(net(teacher, x)) / heat)
            logs = jax.nn.log_softmax(net(p, x) / 2.0)
            return 4.0 * optax.kl_divergence(logs, target).mean()

        value, grads = jax.value_and_grad(loss)(student)
        student = jax.tree.map(lambda w, g: w - 0.1 * g, student, grads)
        return student, optax.incremental_update(student, teacher, rate), value

    p = {"w1": S((8, 16), F), "w2": S((16, 8), F)}
    at = {"w1": P(None, "tp"), "w2": P("tp")}
    made: Case = {
        "step": step,
        "args": (p, p, S((4, 8), F)),
        "mesh": {"dp": 2, "tp": 2},
        "in_shardings": (at, at, P("dp")),
    }
    if wrong == "rate":
        made["parallel"] = partial(step, rate=0.95)
    if wrong == "heat":
        made["parallel"] = partial(step, heat=1.0)
    return made

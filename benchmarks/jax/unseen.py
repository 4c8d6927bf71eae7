"""Steps in the idioms of published JAX code, each beside a wrong twin, written before any of them
was run: what was made to work is not made for these."""

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
from shapes import IDS, Case, F, S, mapped

# -- grouped queries, by jax.nn ------------------------------------------------------------------


def _attend(p: Any, x: Any, scale: float | None = None) -> Any:
    q = jnp.einsum("btd,dnh->btnh", x, p["q"])
    k = jnp.einsum("bsd,dkh->bskh", x, p["k"])
    v = jnp.einsum("bsd,dkh->bskh", x, p["v"])
    o = jax.nn.dot_product_attention(q, k, v, is_causal=True, scale=scale)
    return jnp.einsum("btnh,nhd->btd", o, p["o"])


def grouped(scale: float | None = None) -> Case:
    def loss(p: Any, x: Any, scale: float | None = None) -> Any:
        return jnp.mean(jnp.square(_attend(p, x, scale)))

    p = {"q": S((16, 8, 4), F), "k": S((16, 4, 4), F), "v": S((16, 4, 4), F), "o": S((8, 4, 16), F)}
    at = {"q": P(None, "mdl"), "k": P(None, "mdl"), "v": P(None, "mdl"), "o": P("mdl")}
    found: Case = {
        "step": jax.value_and_grad(loss),
        "args": (p, S((4, 6, 16), F)),
        "mesh": {"data": 2, "mdl": 2},
        "in_shardings": (at, P("data")),
        "out_shardings": (P(), at),
    }
    if scale is not None:
        found["parallel"] = jax.value_and_grad(partial(loss, scale=scale))
    return found


# -- experts with a capacity ---------------------------------------------------------------------


def _switch(p: Any, x: Any, capacity: int, normal: bool = True) -> Any:
    """Two experts a token, dispatched by one-hots of places, as GShard does."""
    gates = jax.nn.softmax(x @ p["gate"], axis=-1)
    best, which = lax.top_k(gates, 2)
    if normal:
        best = best / best.sum(-1, keepdims=True)
    chosen = jax.nn.one_hot(which, p["gate"].shape[1])
    flat = chosen.transpose(1, 0, 2).reshape(-1, chosen.shape[-1])
    place = ((jnp.cumsum(flat, axis=0) - 1) * flat).reshape(2, x.shape[0], -1).transpose(1, 0, 2)
    kept = (place < capacity) * chosen
    slots = jax.nn.one_hot(place, capacity) * kept[..., None]
    combine = jnp.einsum("tk,tkec->tec", best, slots)
    inside = jnp.einsum("tec,td->ecd", slots.sum(1), x)
    hidden = jax.nn.relu(jnp.einsum("ecd,edf->ecf", inside, p["up"]))
    return jnp.einsum("tec,ecf,efd->td", combine, hidden, p["down"])


def experts(normal: bool = True) -> Case:
    p = {"gate": S((8, 4), F), "up": S((4, 8, 16), F), "down": S((4, 16, 8), F)}
    at = {"gate": P(), "up": P("expert"), "down": P("expert")}
    found: Case = {
        "step": lambda p, x: _switch(p, x, 6),
        "args": (p, S((12, 8), F)),
        "mesh": {"expert": 4},
        "in_shardings": (at, P()),
        "out_shardings": P(),
    }
    if not normal:
        found["parallel"] = lambda p, x: _switch(p, x, 6, normal=False)
    return found


# -- ring attention ------------------------------------------------------------------------------


def ring(corrected: bool = True) -> Case:
    """Blocks of keys go round; maxima and denominators are kept up to date."""
    n, size = 4, 8

    def single(q: Any, k: Any, v: Any) -> Any:
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * size**-0.5
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, axis=-1), v)

    def twin(q: Any, k: Any, v: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            out, den, top, k, v = carry
            s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * size**-0.5
            new = jnp.maximum(top, s.max(-1))
            p = jnp.exp(s - new[..., None])
            old = jnp.exp(top - new) if corrected else jnp.ones_like(top)
            den = den * old + p.sum(-1)
            out = out * old.swapaxes(1, 2)[..., None] + jnp.einsum("bhqk,bkhd->bqhd", p, v)
            shift = [(i, (i + 1) % n) for i in range(n)]
            k, v = lax.ppermute((k, v), "sp", shift)
            return (out, den, new, k, v), None

        b, t, h, _ = q.shape
        first = (jnp.zeros_like(q), jnp.zeros((b, h, t)), jnp.full((b, h, t), -jnp.inf), k, v)
        (out, den, *_), _ = lax.scan(step, first, None, length=n)
        return out / den.swapaxes(1, 2)[..., None]

    at = P(None, "sp")
    x = S((2, 16, 2, size), F)
    return {
        "step": single,
        "parallel": mapped(twin, (at, at, at), at),
        "args": (x, x, x),
        "mesh": {"sp": n},
    }


# -- a divided vocabulary with its gradient ------------------------------------------------------


def vocabulary(summed: bool = True) -> Case:
    def single(w: Any, x: Any, y: Any) -> Any:
        def loss(w: Any) -> Any:
            logits = x @ w["head"]
            picked = jnp.take_along_axis(logits, y[:, None], axis=-1)[:, 0]
            return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked)

        return jax.value_and_grad(loss)(w)

    def twin(w: Any, x: Any, y: Any) -> Any:
        def loss(w: Any) -> Any:
            logits = x @ w["head"]
            part = logits.shape[-1]
            top = lax.pmax(lax.stop_gradient(logits.max(-1)), "v")
            total = lax.psum(jnp.exp(logits - top[:, None]).sum(-1), "v")
            at = y - lax.axis_index("v") * part
            inside = (at >= 0) & (at < part)
            safe = jnp.clip(at, 0, part - 1)
            own = jnp.take_along_axis(logits, safe[:, None], axis=-1)[:, 0]
            own = jnp.where(inside, own, 0.0)
            if summed:
                own = lax.psum(own, "v")
            return jnp.mean(jnp.log(total) + top - own)

        # Each rank holds the whole loss: its seed is divided.
        value, grads = jax.value_and_grad(loss)(w)
        return value, jax.tree.map(lambda g: g / 4, grads)

    at = {"head": P(None, "v")}
    return {
        "step": single,
        "parallel": mapped(twin, (at, P(), P()), (P(), at)),
        "args": ({"head": S((16, 32), F)}, S((8, 16), F), S((8,), IDS)),
        "mesh": {"v": 4},
    }


# -- fully sharded, AdamW with clipping ----------------------------------------------------------


class Mixer(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        y = nn.RMSNorm()(x)
        y = nn.swish(nn.Dense(64, name="gate")(y)) * nn.Dense(64, name="up")(y)
        return x + nn.Dense(16, name="down")(y)


SCHEDULE = optax.warmup_cosine_decay_schedule(0.0, 1e-3, 100, 1000)
CLIPPED = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(SCHEDULE, weight_decay=0.01))


def fully_sharded(norm: float = 1.0) -> Case:
    params = jax.eval_shape(lambda: Mixer().init(jax.random.key(0), jnp.zeros((8, 16))))
    state = jax.eval_shape(CLIPPED.init, params)

    def step(params: Any, state: Any, x: Any, y: Any, optimizer: Any = CLIPPED) -> Any:
        def loss(params: Any) -> Any:
            return jnp.mean((Mixer().apply(params, x) - y) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    def place(leaf: Any) -> Any:
        return P("fsdp") if leaf.ndim and leaf.shape[0] % 4 == 0 else P()

    at, state_at = jax.tree.map(place, params), jax.tree.map(place, state)
    found: Case = {
        "step": lambda params, state, x, y: step(params, state, x, y),
        "args": (params, state, S((8, 16), F), S((8, 16), F)),
        "mesh": {"fsdp": 4},
        "in_shardings": (at, state_at, P("fsdp"), P("fsdp")),
        "out_shardings": (at, state_at, P()),
    }
    if norm != 1.0:
        other = optax.chain(
            optax.clip_by_global_norm(norm), optax.adamw(SCHEDULE, weight_decay=0.01)
        )
        found["parallel"] = lambda params, state, x, y: step(params, state, x, y, other)
    return found


# -- a pipeline by ppermute ----------------------------------------------------------------------


def pipeline(shift: int = 1) -> Case:
    """Four stages, six microbatches, a step of all stages at once in a loop."""
    stages, count = 4, 6

    def layer(w: Any, x: Any) -> Any:
        return x + jnp.tanh(x @ w)

    def single(w: Any, x: Any) -> Any:
        for i in range(stages):
            x = layer(w[i], x)
        return x

    def twin(w: Any, x: Any) -> Any:
        stage = lax.axis_index("pp")
        parts = x.reshape(count, -1, x.shape[-1])
        held = jnp.zeros_like(parts[0])
        done = jnp.zeros_like(parts)
        ring = [(i, (i + shift) % stages) for i in range(stages)]
        for t in range(count + stages - 1):
            held = jnp.where(stage == 0, parts[min(t, count - 1)], held)
            held = layer(w[0], held)
            if t >= stages - 1:
                own = jnp.where(stage == stages - 1, held, 0.0)
                done = done.at[t - stages + 1].set(own)
            held = lax.ppermute(held, "pp", ring)
        return lax.psum(done, "pp").reshape(x.shape)

    return {
        "step": single,
        "parallel": mapped(twin, (P("pp"), P()), P()),
        "args": (S((stages, 8, 8), F), S((12, 8), F)),
        "mesh": {"pp": stages},
    }


# -- layers in a scan, recomputed by a policy, in shard_map ---------------------------------------


def scanned(reduced: bool = True) -> Case:
    def run(p: Any, x: Any, total: Callable[[Any], Any]) -> Any:
        @partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable)
        def layer(x: Any, w: Any) -> Any:
            y = (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
            y = jax.nn.gelu(y * w["scale"] @ w["up"])
            return x + total(y @ w["down"]), None

        return lax.scan(layer, x, p)[0]

    def single(p: Any, x: Any) -> Any:
        return jax.grad(lambda p: jnp.sum(run(p, x, lambda v: v) ** 2))(p)

    @jax.custom_vjp
    def joined(v: Any) -> Any:
        return lax.psum(v, "tp")

    joined.defvjp(lambda v: (lax.psum(v, "tp"), None), lambda _, g: (g,))

    @jax.custom_vjp
    def entered(v: Any) -> Any:
        return v

    entered.defvjp(lambda v: (v, None), lambda _, g: (lax.psum(g, "tp") if reduced else g,))

    def twin(p: Any, x: Any) -> Any:
        def run(p: Any, x: Any) -> Any:
            @partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable)
            def layer(x: Any, w: Any) -> Any:
                y = (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
                y = jax.nn.gelu(entered(y * w["scale"]) @ w["up"])
                return x + joined(y @ w["down"]), None

            return lax.scan(layer, x, p)[0]

        return jax.grad(lambda p: jnp.sum(run(p, x) ** 2))(p)

    p = {"scale": S((3, 8), F), "up": S((3, 8, 16), F), "down": S((3, 16, 8), F)}
    at = {"scale": P(), "up": P(None, None, "tp"), "down": P(None, "tp")}
    return {
        "step": single,
        "parallel": mapped(twin, (at, P()), at),
        "args": (p, S((4, 8), F)),
        "mesh": {"tp": 4},
    }


# -- dropout with keys ---------------------------------------------------------------------------


def dropout(rate: float = 0.1) -> Case:
    def loss(w: Any, x: Any, key: Any, rate: float = 0.1) -> Any:
        h = jax.nn.relu(x @ w["a"])
        kept = jax.random.bernoulli(key, 1 - rate, h.shape)
        h = jnp.where(kept, h / (1 - rate), 0.0)
        return jnp.mean((h @ w["b"]) ** 2)

    w = {"a": S((16, 32), F), "b": S((32, 8), F)}
    at = {"a": P(None, "tp"), "b": P("tp")}
    found: Case = {
        "step": jax.value_and_grad(lambda w, x, key: loss(w, x, key)),
        "args": (w, S((8, 16), F), S((2,), jnp.uint32)),
        "mesh": {"dp": 2, "tp": 2},
        "in_shardings": (at, P("dp"), P()),
        "out_shardings": (P(), at),
    }
    if rate != 0.1:
        found["parallel"] = jax.value_and_grad(lambda w, x, key: loss(w, x, key, rate))
    return found


# -- a norm whose features are divided -----------------------------------------------------------


def layernorm(joined: bool = True) -> Case:
    def single(x: Any, g: Any, b: Any) -> Any:
        y = (x - jnp.mean(x, -1, keepdims=True)) / jnp.sqrt(jnp.var(x, -1, keepdims=True) + 1e-5)
        return y * g + b

    def twin(x: Any, g: Any, b: Any) -> Any:
        mean = lax.pmean(jnp.mean(x, -1, keepdims=True), "tp")
        off = mean if joined else jnp.mean(x, -1, keepdims=True)
        var = lax.pmean(jnp.mean(jnp.square(x - off), -1, keepdims=True), "tp")
        return (x - mean) * lax.rsqrt(var + 1e-5) * g + b

    at = P(None, "tp")
    return {
        "step": single,
        "parallel": mapped(twin, (at, P("tp"), P("tp")), at),
        "args": (S((8, 32), F), S((32,), F), S((32,), F)),
        "mesh": {"tp": 4},
    }


# -- convolutions --------------------------------------------------------------------------------


class Convolutions(nn.Module):
    strides: int = 2

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.relu(nn.Conv(8, (3, 3), name="first")(x))
        x = nn.Conv(16, (3, 3), strides=self.strides, name="second")(x)
        x = nn.avg_pool(nn.relu(x), (2, 2), strides=(2, 2))
        return nn.Dense(4)(x.reshape(x.shape[0], -1))


def convolution(bias: float = 0.0) -> Case:
    params = jax.eval_shape(lambda: Convolutions().init(jax.random.key(0), jnp.zeros((4, 8, 8, 3))))

    def loss(p: Any, x: Any, y: Any, bias: float = 0.0) -> Any:
        logits = Convolutions().apply(p, x) + bias * jnp.arange(4)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    at = jax.tree.map(lambda _: P(), params)
    found: Case = {
        "step": jax.value_and_grad(lambda p, x, y: loss(p, x, y)),
        "args": (params, S((4, 8, 8, 3), F), S((4,), IDS)),
        "mesh": {"dp": 2},
        "in_shardings": (at, P("dp"), P("dp")),
        "out_shardings": (P(), at),
    }
    if bias:
        found["parallel"] = jax.value_and_grad(lambda p, x, y: loss(p, x, y, bias))
    return found


# -- batch norm over all ranks -------------------------------------------------------------------


def batch_norm(axis: str | None = "dp") -> Case:
    def model(axis: str | None) -> Any:
        return nn.BatchNorm(use_running_average=False, axis_name=axis, use_fast_variance=False)

    variables = jax.eval_shape(lambda: model(None).init(jax.random.key(0), jnp.zeros((8, 16))))

    def loss(params: Any, stats: Any, x: Any, axis: str | None) -> Any:
        held = {"params": params, "batch_stats": stats}
        y, new = model(axis).apply(held, x, mutable=["batch_stats"])
        return jnp.mean(jnp.tanh(y) ** 2), new["batch_stats"]

    def single(params: Any, stats: Any, x: Any) -> Any:
        return jax.grad(lambda p: loss(p, stats, x, None), has_aux=True)(params)

    def twin(params: Any, stats: Any, x: Any) -> Any:
        grads, new = jax.grad(lambda p: loss(p, stats, x, axis), has_aux=True)(params)
        return lax.pmean(grads, "dp"), lax.pmean(new, "dp")

    return {
        "step": single,
        "parallel": mapped(twin, (P(), P(), P("dp")), (P(), P())),
        "args": (variables["params"], variables["batch_stats"], S((8, 16), F)),
        "mesh": {"dp": 4},
    }


# -- heads for sequence, by all-to-all -----------------------------------------------------------


def ulysses(axis: int = 2) -> Case:
    """Parts of the sequence become parts of the heads, and back."""

    def attend(q: Any, k: Any, v: Any) -> Any:
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(q.shape[-1])
        mask = jnp.tril(jnp.ones(s.shape[-2:], dtype=bool))
        s = jnp.where(mask, s, jnp.finfo(s.dtype).min)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, axis=-1), v)

    def single(x: Any, w: Any) -> Any:
        q, k, v = jnp.moveaxis(jnp.einsum("btd,dchk->btchk", x, w["qkv"]), 2, 0)
        return jnp.einsum("bthk,hkd->btd", attend(q, k, v), w["o"])

    def twin(x: Any, w: Any) -> Any:
        qkv = jnp.einsum("btd,dchk->btchk", x, w["qkv"])
        q, k, v = (
            lax.all_to_all(qkv[:, :, i], "sp", split_axis=2, concat_axis=1, tiled=True)
            for i in range(3)
        )
        o = attend(q, k, v)
        o = lax.all_to_all(o, "sp", split_axis=1, concat_axis=2, tiled=True)
        if axis != 2:
            o = jnp.flip(o, 2)
        return jnp.einsum("bthk,hkd->btd", o, w["o"])

    w = {"qkv": S((16, 3, 4, 4), F), "o": S((4, 4, 16), F)}
    return {
        "step": single,
        "parallel": mapped(twin, (P(None, "sp"), P()), P(None, "sp")),
        "args": (S((2, 8, 16), F), w),
        "mesh": {"sp": 4},
    }


RIGHT: dict[str, Callable[[], Case]] = {
    "grouped queries": grouped,
    "experts with a capacity": experts,
    "ring attention": ring,
    "divided vocabulary": vocabulary,
    "fully sharded, AdamW, clipping": fully_sharded,
    "pipeline by ppermute": pipeline,
    "scan and remat by hand": scanned,
    "dropout with keys": dropout,
    "divided norm": layernorm,
    "convolutions": convolution,
    "batch norm over ranks": batch_norm,
    "heads for sequence": ulysses,
}
WRONG: dict[str, Callable[[], Case]] = {
    "grouped queries, scale": lambda: grouped(1.0),
    "experts with a capacity, not normal": lambda: experts(normal=False),
    "ring attention, old sums kept": lambda: ring(corrected=False),
    "divided vocabulary, label not summed": lambda: vocabulary(summed=False),
    "fully sharded, AdamW, clipping at 2": lambda: fully_sharded(2.0),
    "pipeline by ppermute, two on": lambda: pipeline(3),
    "scan and remat by hand, no reduction": lambda: scanned(reduced=False),
    "dropout with keys, rate": lambda: dropout(0.2),
    "divided norm, local means": lambda: layernorm(joined=False),
    "convolutions, a bias": lambda: convolution(0.5),
    "batch norm over ranks, local": lambda: batch_norm(None),
    "heads for sequence, reversed": lambda: ulysses(1),
}

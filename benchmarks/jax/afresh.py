"""More steps in the idioms of JAX, each beside a wrong twin, written before any of them was run."""

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

S = jax.ShapeDtypeStruct
F, B, IDS = jnp.float32, jnp.bfloat16, jnp.int32
Case = dict[str, Any]


def mapped(f: Callable[..., Any], ins: Any, outs: Any) -> Callable[..., Any]:
    return jax.shard_map(f, in_specs=ins, out_specs=outs, check_vma=False)


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


# -- grouped queries with rotary positions, tensor parallel ----------------------------------------


def rotated(x: Any, positions: Any, base: float = 10000.0) -> Any:
    half = x.shape[-1] // 2
    speeds = base ** (-jnp.arange(half, dtype=F) / half)
    angles = positions[:, None].astype(F) * speeds
    sin, cos = jnp.sin(angles)[:, None], jnp.cos(angles)[:, None]
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def rotary(turned: bool = True) -> Case:
    heads, shared, size = 8, 2, 8

    def block(p: Any, x: Any, turned: bool = True) -> Any:
        at = jnp.arange(x.shape[1])
        y = x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * p["norm"]
        q = (y @ p["q"]).reshape(*y.shape[:2], -1, size)
        k = (y @ p["k"]).reshape(*y.shape[:2], -1, size)
        v = (y @ p["v"]).reshape(*y.shape[:2], -1, size)
        q = jax.vmap(partial(rotated, positions=at))(q)
        if turned:
            k = jax.vmap(partial(rotated, positions=at))(k)
        k, v = (jnp.repeat(i, heads // shared, axis=2) for i in (k, v))
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / size**0.5
        s = jnp.where(at[:, None] >= at[None, :], s, -jnp.inf)
        o = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s), v)
        return x + o.reshape(*x.shape[:2], -1) @ p["o"]

    def loss(p: Any, x: Any, turned: bool = True) -> Any:
        return jnp.sum(jnp.tanh(block(p, x, turned)))

    p = {
        "norm": S((32,), F),
        "q": S((32, heads * size), F),
        "k": S((32, shared * size), F),
        "v": S((32, shared * size), F),
        "o": S((heads * size, 32), F),
    }
    at = {
        "norm": P(),
        "q": P(None, "tp"),
        "k": P(None, "tp"),
        "v": P(None, "tp"),
        "o": P("tp", None),
    }
    made: Case = {
        "step": jax.value_and_grad(lambda p, x: loss(p, x)),
        "args": (p, S((2, 6, 32), F)),
        "mesh": {"tp": 2},
        "in_shardings": (at, P()),
        "out_shardings": (P(), at),
    }
    if not turned:
        made["parallel"] = jax.value_and_grad(partial(loss, turned=False))
    return made


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


# -- linear attention in a ring --------------------------------------------------------------------


def linear_ring(last: bool = True) -> Case:
    """Keys and values go round; what they add up to needs no maximum."""
    n = 4

    def feature(x: Any) -> Any:
        return jax.nn.elu(x) + 1

    def single(q: Any, k: Any, v: Any) -> Any:
        s = jnp.einsum("bqd,bkd->bqk", feature(q), feature(k))
        return jnp.einsum("bqk,bkd->bqd", s, v) / s.sum(-1, keepdims=True)

    def twin(q: Any, k: Any, v: Any) -> Any:
        def body(i: Any, carry: Any) -> Any:
            num, den, k, v = carry
            s = jnp.einsum("bqd,bkd->bqk", feature(q), feature(k))
            num = num + jnp.einsum("bqk,bkd->bqd", s, v)
            den = den + s.sum(-1, keepdims=True)
            k, v = (lax.ppermute(x, "sp", [(j, (j + 1) % n) for j in range(n)]) for x in (k, v))
            return num, den, k, v

        zero = (jnp.zeros_like(q), jnp.zeros((*q.shape[:2], 1)), k, v)
        num, den, _, _ = lax.fori_loop(0, n if last else n - 1, body, zero)
        return num / den

    at, x = P(None, "sp"), S((2, 16, 8), F)
    return {
        "step": single,
        "parallel": mapped(twin, (at, at, at), at),
        "args": (x, x, x),
        "mesh": {"sp": n},
    }


# -- experts on their own ranks, two for a token ---------------------------------------------------


def two_experts(weighted: bool = True) -> Case:
    """Every token goes to every expert's rank as a row that its weight scales (no capacity)."""
    count = 4

    def weights(gate: Any, x: Any) -> Any:
        best, which = lax.top_k(x @ gate, 2)
        share = jax.nn.softmax(best, axis=-1)
        hot = jax.nn.one_hot(which, count, dtype=x.dtype)
        return jnp.einsum("tk,tke->te", share, hot)

    def single(p: Any, x: Any) -> Any:
        w = weights(p["gate"], x)
        h = jax.nn.silu(jnp.einsum("td,edf->etf", x, p["up"]))
        return jnp.einsum("te,etf,efd->td", w, h, p["down"])

    def twin(p: Any, x: Any) -> Any:
        w = weights(p["gate"], x)
        rows = jnp.broadcast_to(x, (count, *x.shape))
        if not weighted:
            w = (w > 0).astype(x.dtype)
        # Rows of all ranks, for the expert that this one has.
        rows = lax.all_to_all(rows, "ep", 0, 1, tiled=True)
        h = jax.nn.silu(jnp.einsum("etd,edf->etf", rows, p["up"]))
        y = jnp.einsum("etf,efd->etd", h, p["down"])
        y = lax.all_to_all(y, "ep", 1, 0, tiled=True)
        return jnp.einsum("te,etd->td", w, y)

    p = {"gate": S((8, count), F), "up": S((count, 8, 16), F), "down": S((count, 16, 8), F)}
    at = {"gate": P(), "up": P("ep"), "down": P("ep")}
    return {
        "step": single,
        "parallel": mapped(twin, (at, P("ep")), P("ep")),
        "args": (p, S((16, 8), F)),
        "mesh": {"ep": count},
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


# -- a divided vocabulary: embedding and loss, indices into rows -----------------------------------


def tied(shifted: bool = False) -> Case:
    def single(p: Any, ids: Any, labels: Any) -> Any:
        x = jnp.tanh(p["table"][ids] @ p["w"])
        logits = x @ p["table"].T
        logp = jax.nn.log_softmax(logits, axis=-1)
        flat = logp.reshape(-1, logp.shape[-1])
        return -jnp.mean(flat[jnp.arange(flat.shape[0]), labels.reshape(-1)])

    def twin(p: Any, ids: Any, labels: Any) -> Any:
        part = p["table"].shape[0]
        begin = lax.axis_index("v") * part

        def rows(table: Any, ids: Any) -> Any:
            own = ids - begin
            inside = (own >= 0) & (own < part + shifted)
            found = table[jnp.where(inside, own, 0)]
            return lax.psum(jnp.where(inside[..., None], found, 0.0), "v")

        x = jnp.tanh(rows(p["table"], ids) @ p["w"])
        logits = x @ p["table"].T
        top = lax.pmax(logits.max(-1), "v")
        total = lax.psum(jnp.exp(logits - top[..., None]).sum(-1), "v")
        own = labels - begin
        hot = jax.nn.one_hot(own, part)
        score = lax.psum((hot * (logits - top[..., None])).sum(-1), "v")
        return jnp.mean(jnp.log(total) - score)

    p = {"table": S((32, 16), F), "w": S((16, 16), F)}
    at = {"table": P("v"), "w": P()}
    return {
        "step": single,
        "parallel": mapped(twin, (at, P(), P()), P()),
        "args": (p, S((2, 6), IDS), S((2, 6), IDS)),
        "mesh": {"v": 4},
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


# -- sequence parallelism around a layer norm ------------------------------------------------------


def sequence(scattered: bool = True) -> Case:
    def norm(x: Any, p: Any) -> Any:
        return jax.nn.standardize(x, axis=-1, epsilon=1e-5) * p["scale"] + p["shift"]

    def single(p: Any, x: Any) -> Any:
        y = norm(x, p)
        y = jax.nn.gelu(y @ p["up"] + p["bias"]) @ p["down"]
        return norm(x + y, p)

    def twin(p: Any, x: Any) -> Any:
        y = lax.all_gather(norm(x, p), "tp", axis=1, tiled=True)
        y = jax.nn.gelu(y @ p["up"] + p["bias"]) @ p["down"]
        if scattered:
            y = lax.psum_scatter(y, "tp", scatter_dimension=1, tiled=True)
        else:
            y = lax.dynamic_slice_in_dim(y, lax.axis_index("tp") * x.shape[1], x.shape[1], 1)
        return norm(x + y, p)

    p = {
        "scale": S((8,), F),
        "shift": S((8,), F),
        "up": S((8, 16), F),
        "bias": S((16,), F),
        "down": S((16, 8), F),
    }
    at = {"scale": P(), "shift": P(), "up": P(None, "tp"), "bias": P("tp"), "down": P("tp")}
    return {
        "step": single,
        "parallel": mapped(twin, (at, P(None, "tp")), P(None, "tp")),
        "args": (p, S((2, 8, 8), F)),
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


# -- layers that are recomputed, by a list of checkpoints, with padding masks ----------------------


def padded(masked: bool = True) -> Case:
    def layer(w: Any, x: Any, seen: Any) -> Any:
        q, k, v = jnp.split(x @ w["qkv"], 3, axis=-1)
        s = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5
        s = jnp.where(seen[:, None, :], s, jnp.finfo(F).min)
        return x + jax.nn.softmax(s, axis=-1) @ v @ w["o"]

    def loss(p: Any, x: Any, seen: Any, masked: bool = True) -> Any:
        for w in p:
            x = jax.checkpoint(layer)(w, x, seen)
        per = jnp.mean(jnp.square(x), axis=-1)
        kept = seen.astype(F) if masked else jnp.ones_like(per)
        return jnp.sum(per * kept) / jnp.sum(kept)

    p = [{"qkv": S((8, 24), F), "o": S((8, 8), F)}] * 2
    made: Case = {
        "step": jax.value_and_grad(lambda p, x, seen: loss(p, x, seen)),
        "args": (p, S((4, 6, 8), F), S((4, 6), jnp.bool_)),
        "mesh": {"dp": 2},
        "in_shardings": (jax.tree.map(lambda _: P(), p), P("dp"), P("dp")),
    }
    if not masked:
        made["parallel"] = jax.value_and_grad(partial(loss, masked=False))
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


RIGHT: dict[str, Callable[[], Case]] = {
    "perceptron, momentum": perceptron,
    "rotary, grouped queries": rotary,
    "fully sharded by hand": gathered,
    "linear attention in a ring": linear_ring,
    "two experts a token": two_experts,
    "pipeline in a scan": piped,
    "tied, divided vocabulary": tied,
    "clipped by the global norm": clipped,
    "sequence parallel norm": sequence,
    "mixed precision": mixed,
    "padding masks, checkpoints": padded,
    "gradients of every sample": per_sample,
}
WRONG: dict[str, Callable[[], Case]] = {
    "perceptron, momentum, sums": lambda: perceptron(mean=False),
    "rotary, grouped queries, keys not turned": lambda: rotary(turned=False),
    "fully sharded by hand, sums": lambda: gathered(scaled=False),
    "linear attention in a ring, one short": lambda: linear_ring(last=False),
    "two experts a token, equal weights": lambda: two_experts(weighted=False),
    "pipeline in a scan, one tick short": lambda: piped(whole=False),
    "tied, divided vocabulary, one row more": lambda: tied(shifted=True),
    "clipped by the global norm, local norms": lambda: clipped(joined=False),
    "sequence parallel norm, not reduced": lambda: sequence(scattered=False),
    "mixed precision, scaled": lambda: mixed(unscaled=False),
    "padding masks, checkpoints, all counted": lambda: padded(masked=False),
    "gradients of every sample, not clipped": lambda: per_sample(normed=False),
}

"""Training steps as tutorials write them under `shard_map`, beside wrong twins; written before any
of them was run."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P
from shapes import Case, F, S, mapped

# -- two experts of each token; every rank has two experts -----------------------------------------


def experts(wrong: str = "") -> Case:
    count = 4

    def gates(x: Any, router: Any, norm: bool = True) -> Any:
        best, chosen = lax.top_k(jax.nn.softmax(x @ router, -1), 2)
        if norm:
            best = best / jnp.sum(best, -1, keepdims=True)
        return jnp.sum(jax.nn.one_hot(chosen, count) * best[..., None], -2)

    def ffn(x: Any, p: Any) -> Any:
        h = jax.nn.silu(jnp.einsum("td,edf->tef", x, p["w1"]))
        return jnp.einsum("tef,efd->ted", h * jnp.einsum("td,edf->tef", x, p["w3"]), p["w2"])

    def single(p: Any, x: Any, y: Any) -> Any:
        def loss(p: Any) -> Any:
            out = jnp.einsum("ted,te->td", ffn(x, p), gates(x, p["router"]))
            return jnp.mean(jnp.square(out - y))

        return jax.value_and_grad(loss)(p)

    def twin(p: Any, x: Any, y: Any) -> Any:
        me = lax.axis_index("ep")
        own = p["w1"].shape[0]

        def loss(p: Any) -> Any:
            g = gates(x, p["router"], wrong != "not normalised")
            first = (count // own - 1 - me if wrong == "other experts" else me) * own
            mine = lax.dynamic_slice_in_dim(g, first, own, 1)
            out = lax.psum(jnp.einsum("ted,te->td", ffn(x, p), mine), "ep")
            return jnp.mean(jnp.square(out - y))

        value, grads = jax.value_and_grad(loss)(p)
        # The transpose of a psum is a psum here, so gradients are too large.
        grads = jax.tree.map(lambda v: v / (count // own), grads)
        return value, grads | {"router": lax.psum(grads["router"], "ep")}

    p = {
        "router": S((8, count), F), "w1": S((count, 8, 16), F), "w3": S((count, 8, 16), F),
        "w2": S((count, 16, 8), F),
    }  # fmt: skip
    at = {"router": P(), "w1": P("ep"), "w3": P("ep"), "w2": P("ep")}
    return {
        "step": single,
        "parallel": mapped(twin, (at, P(), P()), (P(), at)),
        "args": (p, S((12, 8), F), S((12, 8), F)),
        "mesh": {"ep": 2},
    }


# -- a contrastive loss over the batch of all ranks ------------------------------------------------


def contrast(wrong: str = "") -> Case:
    def embed(p: Any, a: Any, b: Any) -> Any:
        both = jnp.tanh(a @ p["image"]), jnp.tanh(b @ p["text"])
        return tuple(v / jnp.linalg.norm(v, axis=-1, keepdims=True) for v in both)

    def nce(u: Any, v: Any, first: Any, temperature: Any) -> Any:
        logits = u @ v.T * jnp.exp(temperature)
        labels = first + jnp.arange(u.shape[0])
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1)
        return -jnp.mean(picked)

    def single(p: Any, a: Any, b: Any) -> Any:
        def loss(p: Any) -> Any:
            u, v = embed(p, a, b)
            return (nce(u, v, 0, p["t"]) + nce(v, u, 0, p["t"])) / 2

        return jax.value_and_grad(loss)(p)

    def twin(p: Any, a: Any, b: Any) -> Any:
        first = 0 if wrong == "labels" else lax.axis_index("dp") * a.shape[0]

        def loss(p: Any) -> Any:
            u, v = embed(p, a, b)
            all_u, all_v = (lax.all_gather(i, "dp", tiled=True) for i in (u, v))
            if wrong == "no gradient of others":
                all_u, all_v = lax.stop_gradient((all_u, all_v))
            return (nce(u, all_v, first, p["t"]) + nce(v, all_u, first, p["t"])) / 2

        return jax.tree.map(lambda v: lax.pmean(v, "dp"), jax.value_and_grad(loss)(p))

    p = {"image": S((12, 8), F), "text": S((10, 8), F), "t": S((), F)}
    return {
        "step": single,
        "parallel": mapped(twin, (P(), P("dp"), P("dp")), (P(), P())),
        "args": (p, S((8, 12), F), S((8, 10), F)),
        "mesh": {"dp": 4},
    }


# -- a pipeline: microbatches go from stage to stage -----------------------------------------------


def pipeline(wrong: str = "") -> Case:
    stages, batches = 4, 4

    def layer(w: Any, x: Any) -> Any:
        return x + jax.nn.gelu(x @ w["a"] + w["c"]) @ w["b"]

    def single(p: Any, x: Any) -> Any:
        for n in range(stages):
            x = layer(jax.tree.map(lambda v, n=n: v[n], p), x)
        return x

    def twin(p: Any, x: Any) -> Any:
        me = lax.axis_index("pp")
        own = jax.tree.map(lambda v: v[0], p)
        parts = x.reshape(batches, -1, x.shape[-1])
        state, done = jnp.zeros_like(parts[0]), jnp.zeros_like(parts)
        to = [(i, (i + 1) % stages) for i in range(stages)]
        if wrong == "direction":
            to = [(j, i) for i, j in to]
        for tick in range(batches + stages - 1):
            fed = parts[tick] if tick < batches else jnp.zeros_like(state)
            state = layer(own, jnp.where(me == 0, fed, state))
            place = tick - stages + (2 if wrong == "place" else 1)
            if 0 <= place < batches:
                done = done.at[place].set(jnp.where(me == stages - 1, state, 0.0))
            state = lax.ppermute(state, "pp", to)
        return lax.psum(done, "pp").reshape(x.shape)

    p = {"a": S((stages, 8, 16), F), "c": S((stages, 16), F), "b": S((stages, 16, 8), F)}
    return {
        "step": single,
        "parallel": mapped(twin, (P("pp"), P()), P()),
        "args": (p, S((8, 8), F)),
        "mesh": {"pp": stages},
    }


# -- tensor parallelism with sequences divided between the products --------------------------------


def sequences(wrong: str = "") -> Case:
    heads, k = 4, 4

    def norm(x: Any, g: Any) -> Any:
        return x * lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-5) * g

    def attend(y: Any, p: Any) -> Any:
        q, key, v = (jnp.einsum("btd,dhk->bthk", y, p[n]) for n in "qkv")
        s = jnp.einsum("bqhk,bshk->bhqs", q, key) / k**0.5
        below = jnp.tril(jnp.ones(s.shape[-2:], bool))
        o = jnp.einsum("bhqs,bshk->bqhk", jax.nn.softmax(jnp.where(below, s, -1e9), -1), v)
        return jnp.einsum("bthk,hkd->btd", o, p["o"])

    def mlp(y: Any, p: Any) -> Any:
        return jax.nn.gelu(y @ p["up"]) @ p["down"]

    def single(p: Any, x: Any, target: Any) -> Any:
        def loss(p: Any) -> Any:
            h = x + attend(norm(x, p["g1"]), p)
            h = h + mlp(norm(h, p["g2"]), p)
            return jnp.mean(jnp.square(h - target))

        return jax.value_and_grad(loss)(p)

    def twin(p: Any, x: Any, target: Any) -> Any:
        def whole(y: Any) -> Any:
            return lax.all_gather(y, "tp", axis=1, tiled=True)

        def parts(y: Any) -> Any:
            y = lax.psum_scatter(y, "tp", scatter_dimension=1, tiled=True)
            return y / 2 if wrong == "mean" else y

        def loss(p: Any) -> Any:
            h = x + parts(attend(whole(norm(x, p["g1"])), p))
            h = h + parts(mlp(whole(norm(h, p["g2"])), p))
            return jnp.mean(jnp.square(h - target)) / 2

        value, grads = jax.value_and_grad(loss)(p)
        if wrong != "norms":
            grads |= {n: lax.psum(grads[n], "tp") for n in ("g1", "g2")}
        return lax.psum(value, "tp"), grads

    p = {n: S((16, heads, k), F) for n in "qkv"} | {
        "o": S((heads, k, 16), F), "g1": S((16,), F), "g2": S((16,), F),
        "up": S((16, 32), F), "down": S((32, 16), F),
    }  # fmt: skip
    c, r = P(None, "tp"), P("tp")
    at = {"q": c, "k": c, "v": c, "o": r, "g1": P(), "g2": P(), "up": c, "down": r}
    x = S((2, 8, 16), F)
    return {
        "step": single,
        "parallel": mapped(twin, (at, c, c), (P(), at)),
        "args": (p, x, x),
        "mesh": {"tp": 2},
    }


# -- gradients of microbatches are added up in a scan ----------------------------------------------


def accumulation(wrong: str = "") -> Case:
    steps = 2

    def loss(p: Any, x: Any, y: Any) -> Any:
        h = jax.nn.relu(x @ p["w1"] + p["b1"])
        return jnp.mean(jnp.square(h @ p["w2"] + p["b2"] - y))

    def single(p: Any, x: Any, y: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(p, x, y)
        return value, jax.tree.map(lambda w, g: w - 0.1 * g, p, grads)

    def twin(p: Any, x: Any, y: Any) -> Any:
        small = tuple(v.reshape(steps, -1, *v.shape[1:]) for v in (x, y))

        def one(carry: Any, part: Any) -> Any:
            found = jax.value_and_grad(loss)(p, *part)
            if wrong == "last":
                return found, None
            return jax.tree.map(jnp.add, carry, found), None

        empty = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, p))
        total, _ = lax.scan(one, empty, small)
        value, grads = jax.tree.map(lambda v: lax.pmean(v, "dp") / steps, total)
        if wrong == "sum":
            grads = jax.tree.map(lambda v: v * steps, grads)
        return value, jax.tree.map(lambda w, g: w - 0.1 * g, p, grads)

    p = {"w1": S((8, 16), F), "b1": S((16,), F), "w2": S((16, 4), F), "b2": S((4,), F)}
    return {
        "step": single,
        "parallel": mapped(twin, (P(), P("dp"), P("dp")), (P(), P())),
        "args": (p, S((16, 8), F), S((16, 4), F)),
        "mesh": {"dp": 4},
    }

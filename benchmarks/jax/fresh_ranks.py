"""Steps of users' kinds that none of the other modules holds, written by rank, beside wrong twins;
written before any of them was run."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.sharding import PartitionSpec as P
from shapes import Case, F, S, mapped

# -- sequence parallel attention: keys and values of all ranks are gathered ------------------------


def context(wrong: str = "") -> Case:
    def attend(q: Any, k: Any, v: Any, begin: Any) -> Any:
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
        rows = begin + jnp.arange(q.shape[1])
        s = jnp.where(rows[:, None] >= jnp.arange(k.shape[1])[None], s, -1e9)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1), v)

    def block(p: Any, x: Any, begin: Any, gather: Any) -> Any:
        y = x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * p["g"]
        q, k, v = (jnp.einsum("btd,dhk->bthk", y, p[n]) for n in "qkv")
        out = attend(q, gather(k), gather(v), begin)
        return x + jnp.einsum("bthk,hkd->btd", out, p["o"])

    def single(p: Any, x: Any, y: Any) -> Any:
        def loss(p: Any) -> Any:
            return jnp.mean(jnp.square(block(p, x, 0, lambda v: v) - y))

        return jax.value_and_grad(loss)(p)

    def twin(p: Any, x: Any, y: Any) -> Any:
        begin = 0 if wrong == "begin" else lax.axis_index("sp") * x.shape[1]

        def loss(p: Any) -> Any:
            out = block(p, x, begin, lambda v: lax.all_gather(v, "sp", axis=1, tiled=True))
            return jnp.mean(jnp.square(out - y))

        value, grads = jax.value_and_grad(loss)(p)
        if wrong != "own gradients":
            grads = lax.pmean(grads, "sp")
        return lax.pmean(value, "sp"), grads

    p = {n: S((8, 2, 4), F) for n in "qkv"} | {"o": S((2, 4, 8), F), "g": S((8,), F)}
    x = S((2, 8, 8), F)
    return {
        "step": single,
        "parallel": mapped(twin, (P(), P(None, "sp"), P(None, "sp")), (P(), P())),
        "args": (p, x, x),
        "mesh": {"sp": 2},
    }


# -- a pipeline whose microbatches run in a scan, with its gradient --------------------------------


def stages(wrong: str = "") -> Case:
    """Two layers a stage, four microbatches; the loss is the last stage's."""
    count, batches = 2, 4

    def layer(x: Any, w: Any) -> Any:
        return x + jnp.tanh(x @ w["a"]) @ w["b"]

    def single(p: Any, x: Any, y: Any) -> Any:
        def loss(p: Any) -> Any:
            h, _ = lax.scan(lambda h, w: (layer(h, w), None), x, p)
            return jnp.mean(jnp.square(h - y))

        return jax.value_and_grad(loss)(p)

    def twin(p: Any, x: Any, y: Any) -> Any:
        me = lax.axis_index("pp")
        small = x.shape[0] // batches
        xs, ys = (v.reshape(batches, small, *v.shape[1:]) for v in (x, y))
        around = [(i, (i + 1) % count) for i in range(count)]
        if wrong == "turned":
            around = [(j, i) for i, j in around][:1]

        def loss(p: Any) -> Any:
            def tick(carry: Any, t: Any) -> Any:
                given, total = carry
                h = jnp.where(me == 0, xs[jnp.clip(t, 0, batches - 1)], given)
                h, _ = lax.scan(lambda h, w: (layer(h, w), None), h, p)
                done = t - (count - 1)
                off = jnp.mean(jnp.square(h - ys[jnp.clip(done, 0, batches - 1)]))
                counts = (me == count - 1) & (done >= 0)
                if wrong == "filling counts":
                    counts = me == count - 1
                total = total + jnp.where(counts, off, 0.0)
                return (lax.ppermute(h, "pp", around), total), None

            first = (jnp.zeros_like(xs[0]), jnp.zeros(()))
            (_, total), _ = lax.scan(tick, first, jnp.arange(batches + count - 1))
            return total / batches

        value, grads = jax.value_and_grad(loss)(p)
        return lax.psum(value, "pp"), grads

    p = {"a": S((4, 8, 16), F), "b": S((4, 16, 8), F)}
    return {
        "step": single,
        "parallel": mapped(twin, (P("pp"), P(), P()), (P(), P("pp"))),
        "args": (p, S((8, 8), F), S((8, 8), F)),
        "mesh": {"pp": count},
    }


# -- one expert a token, with a loss that balances them --------------------------------------------


def switch(wrong: str = "") -> Case:
    """Every rank sends all its tokens, masked, to the ranks of the experts."""
    experts = 4

    def route(gate: Any, x: Any) -> Any:
        share = jax.nn.softmax(x @ gate, axis=-1)
        hot = jax.nn.one_hot(jnp.argmax(share, axis=-1), experts)
        return share, hot

    def run(p: Any, rows: Any) -> Any:
        return jnp.einsum(
            "ecf,efd->ecd", jax.nn.gelu(jnp.einsum("ecd,edf->ecf", rows, p["up"])), p["down"]
        )

    def single(p: Any, x: Any) -> Any:
        def loss(p: Any) -> Any:
            share, hot = route(p["gate"], x)
            rows = run(p, jnp.einsum("te,td->etd", hot, x))
            out = jnp.einsum("etd,te->td", rows, hot * share)
            balance = experts * jnp.sum(hot.mean(0) * share.mean(0))
            return jnp.mean(jnp.square(x + out)) + 0.01 * balance

        return jax.value_and_grad(loss)(p)

    def twin(p: Any, x: Any) -> Any:
        def loss(p: Any) -> Any:
            share, hot = route(p["gate"], x)
            rows = jnp.einsum("te,td->etd", hot, x)
            rows = lax.all_to_all(rows, "ep", 0, 1, tiled=True)
            rows = lax.all_to_all(run(p, rows), "ep", 1, 0, tiled=True)
            out = jnp.einsum("etd,te->td", rows, hot if wrong == "unweighted" else hot * share)
            used, given = lax.pmean(hot.mean(0), "ep"), share.mean(0)
            if wrong == "own balance":
                used = hot.mean(0)
            return jnp.mean(jnp.square(x + out)) + 0.01 * experts * jnp.sum(used * given)

        value, grads = jax.value_and_grad(loss)(p)
        grads["gate"] = lax.pmean(grads["gate"], "ep")
        for name in ("up", "down"):
            grads[name] = grads[name] / lax.axis_size("ep")
        return lax.pmean(value, "ep"), grads

    p = {"gate": S((8, experts), F), "up": S((experts, 8, 16), F), "down": S((experts, 16, 8), F)}
    at = {"gate": P(), "up": P("ep"), "down": P("ep")}
    return {
        "step": single,
        "parallel": mapped(twin, (at, P("ep")), (P(), at)),
        "args": (p, S((8, 8), F)),
        "mesh": {"ep": 2},
    }


# -- flat parameters that are padded, gradients accumulated and scattered --------------------------


def flat(wrong: str = "") -> Case:
    """AdamW on a rank's part of all parameters in one vector."""
    rounds, ranks = 2, 4
    tx = optax.adamw(1e-2, b2=0.99, weight_decay=0.05)
    p = {"w": S((6, 5), F), "b": S((5,), F), "v": S((5, 3), F)}
    size = sum(v.size for v in jax.tree.leaves(p))
    padded = -(-size // ranks) * ranks

    def loss(p: Any, x: Any, y: Any) -> Any:
        return jnp.mean(jnp.square(jax.nn.silu(x @ p["w"] + p["b"]) @ p["v"] - y))

    def whole(p: Any, length: int) -> Any:
        flat, back = ravel_pytree(p)
        return jnp.pad(flat, (0, length - size)), lambda v: back(v[:size])

    def single(p: Any, mu: Any, nu: Any, x: Any, y: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(p, x, y)
        own, back = whole(p, padded)
        g, _ = whole(grads, padded)
        adam = optax.ScaleByAdamState(jnp.asarray(4), mu, nu)
        state = (adam, *tx.init(own)[1:])
        updates, state = tx.update(g, state, own)
        return back(optax.apply_updates(own, updates)), state[0].mu, state[0].nu, value

    def twin(p: Any, mu: Any, nu: Any, x: Any, y: Any) -> Any:
        xs, ys = (v.reshape(rounds, -1, *v.shape[1:]) for v in (x, y))

        def add(total: Any, b: Any) -> Any:
            return jax.tree.map(jnp.add, total, jax.value_and_grad(loss)(p, *b)), None

        zero = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, p))
        (value, grads), _ = lax.scan(add, zero, (xs, ys))
        own, back = whole(p, padded)
        g, _ = whole(grads, padded)
        g = lax.psum_scatter(g, "dp", tiled=True) / (ranks * rounds)
        if wrong == "sum over rounds":
            g = g * rounds
        part = padded // ranks
        mine = lax.dynamic_slice_in_dim(own, lax.axis_index("dp") * part, part)
        adam = optax.ScaleByAdamState(jnp.asarray(3 if wrong == "count" else 4), mu, nu)
        updates, state = tx.update(g, (adam, *tx.init(mine)[1:]), mine)
        new = lax.all_gather(optax.apply_updates(mine, updates), "dp", tiled=True)
        return back(new), state[0].mu, state[0].nu, lax.pmean(value, "dp") / rounds

    moment = S((padded,), F)
    return {
        "step": single,
        "parallel": mapped(
            twin, (P(), P("dp"), P("dp"), P("dp"), P("dp")), (P(), P("dp"), P("dp"), P())
        ),
        "args": (p, moment, moment, S((8, 6), F), S((8, 3), F)),
        "mesh": {"dp": ranks},
    }

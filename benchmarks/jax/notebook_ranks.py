"""Steps in plain jax.numpy under `shard_map` as notebooks hold them, beside wrong twins; written
before any of them was run."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import PartitionSpec as P
from shapes import IDS, Case, F, S, mapped

# -- rotary positions and grouped queries, heads over ranks ----------------------------------------


def rotary(wrong: str = "") -> Case:
    d, k, heads, groups, length, ranks = 16, 4, 8, 4, 6, 2

    def rope(x: Any, first: int = 0) -> Any:
        angles = (first + jnp.arange(length))[:, None] * 10000.0 ** (-jnp.arange(0, k, 2) / k)
        cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
        a, b = jnp.split(x, 2, axis=-1)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    def attend(p: Any, x: Any, wrong: str = "") -> Any:
        q = rope(jnp.einsum("btd,dhk->bthk", x, p["q"]))
        key = rope(jnp.einsum("btd,dhk->bthk", x, p["k"]), 1 if wrong == "positions" else 0)
        v = jnp.einsum("btd,dhk->bthk", x, p["v"])
        key, v = (jnp.repeat(z, heads // groups, axis=2) for z in (key, v))
        s = jnp.einsum("bqhk,bshk->bhqs", q, key) / k**0.5
        s = jnp.where(jnp.tril(jnp.ones((length, length), bool)), s, -jnp.inf)
        return jnp.einsum("bhqs,bshk,hkd->bqd", jax.nn.softmax(s), v, p["o"])

    def single(p: Any, x: Any, y: Any) -> Any:
        return jax.value_and_grad(lambda p: jnp.mean((x + attend(p, x) - y) ** 2))(p)

    def twin(p: Any, x: Any, y: Any) -> Any:
        def loss(p: Any) -> Any:
            out = attend(p, x, wrong)
            out = lax.pmean(out, "tp") if wrong == "mean" else lax.psum(out, "tp")
            return jnp.mean((x + out - y) ** 2)

        value, grads = jax.value_and_grad(loss)(p)
        return value, jax.tree.map(lambda g: g / ranks, grads)

    p = {
        "q": S((d, heads, k), F), "k": S((d, groups, k), F), "v": S((d, groups, k), F),
        "o": S((heads, k, d), F),
    }  # fmt: skip
    at = {"q": P(None, "tp"), "k": P(None, "tp"), "v": P(None, "tp"), "o": P("tp")}
    return {
        "step": single,
        "parallel": mapped(twin, (at, P(), P()), (P(), at)),
        "args": (p, S((2, length, d), F), S((2, length, d), F)),
        "mesh": {"tp": ranks},
    }


# -- data parallelism: means over ranks, momentum of optax, a clipped norm -------------------------


def momentum(wrong: str = "") -> Case:
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1, momentum=0.9, nesterov=True))

    def loss(p: Any, x: Any, y: Any) -> Any:
        h = jnp.tanh(x @ p["w1"] + p["b1"])
        logits = h @ p["w2"] + p["b2"]
        return -jnp.mean(jnp.sum(jax.nn.one_hot(y, 10) * jax.nn.log_softmax(logits), -1))

    def update(p: Any, trace: Any, value: Any, grads: Any) -> Any:
        state = tx.init(p)
        state = (state[0], (state[1][0]._replace(trace=trace), *state[1][1:]))
        updates, state = tx.update(grads, state, p)
        return value, optax.apply_updates(p, updates), state[1][0].trace

    def single(p: Any, trace: Any, x: Any, y: Any) -> Any:
        return update(p, trace, *jax.value_and_grad(loss)(p, x, y))

    def twin(p: Any, trace: Any, x: Any, y: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(p, x, y)
        if wrong == "sum":
            grads = lax.psum(grads, "dp")
        elif wrong == "one left out":
            grads = lax.pmean({n: g for n, g in grads.items() if n != "b1"}, "dp") | {
                "b1": grads["b1"]
            }
        else:
            grads = lax.pmean(grads, "dp")
        return update(p, trace, lax.pmean(value, "dp"), grads)

    p = {"w1": S((8, 16), F), "b1": S((16,), F), "w2": S((16, 10), F), "b2": S((10,), F)}
    return {
        "step": single,
        "parallel": mapped(twin, (P(), P(), P("dp"), P("dp")), (P(), P(), P())),
        "args": (p, p, S((8, 8), F), S((8,), IDS)),
        "mesh": {"dp": 4},
    }


# -- two stages; each sends microbatch by microbatch to the next by ppermute -----------------------


def stages(wrong: str = "") -> Case:
    d, micro, size = 8, 2, 4

    def layer(w: Any, x: Any) -> Any:
        return x + jax.nn.silu(x @ w["in"]) @ w["out"]

    def single(p: Any, x: Any, y: Any) -> Any:
        def loss(p: Any) -> Any:
            first, last = ({n: w[s] for n, w in p.items()} for s in range(2))
            return jnp.mean((layer(last, layer(first, x)) - y) ** 2)

        return jax.value_and_grad(loss)(p)

    def twin(p: Any, x: Any, y: Any) -> Any:
        me = lax.axis_index("pp")
        xs, ys = x.reshape(micro, size, d), y.reshape(micro, size, d)

        def loss(p: Any) -> Any:
            w = jax.tree.map(lambda v: v[0], p)
            arrived, total = jnp.zeros((size, d)), 0.0
            for tick in range(micro + 1):
                fed = jnp.where(me == 0, xs[min(tick, micro - 1)], arrived)
                out = layer(w, fed)
                if tick:
                    at = tick if wrong == "labels" and tick < micro else tick - 1
                    total = total + jnp.mean((out - ys[at]) ** 2)
                arrived = lax.ppermute(out, "pp", [(0, 1)])
            own = jnp.where(me == 1, total, 0.0)
            return own if wrong == "not divided" else own / micro

        value, grads = jax.value_and_grad(loss)(p)
        return lax.psum(value, "pp"), grads

    p = {"in": S((2, d, 16), F), "out": S((2, 16, d), F)}
    at = {"in": P("pp"), "out": P("pp")}
    return {
        "step": single,
        "parallel": mapped(twin, (at, P(), P()), (P(), at)),
        "args": (p, S((micro * size, d), F), S((micro * size, d), F)),
        "mesh": {"pp": 2},
    }


# -- one expert a token, sent as one-hot dispatch by all_to_all ------------------------------------


def dispatch(wrong: str = "") -> Case:
    d, f, count, tokens, ranks = 8, 16, 4, 12, 2

    def routed(x: Any, router: Any) -> tuple[Any, Any]:
        probabilities = jax.nn.softmax(x @ router)
        one = jax.nn.one_hot(jnp.argmax(probabilities, -1), count)
        return one, jnp.sum(probabilities * one, -1)

    def single(p: Any, x: Any, y: Any) -> Any:
        def loss(p: Any) -> Any:
            one, gate = routed(x, p["router"])
            slots = jnp.einsum("te,td->etd", one, x)
            h = jax.nn.relu(jnp.einsum("etd,edf->etf", slots, p["w1"]))
            out = jnp.einsum("etf,efd->etd", h, p["w2"])
            out = jnp.einsum("etd,te->td", out, one) * gate[:, None]
            return jnp.mean((x + out - y) ** 2)

        return jax.value_and_grad(loss)(p)

    def twin(p: Any, x: Any, y: Any) -> Any:
        def loss(p: Any) -> Any:
            one, gate = routed(x, p["router"])
            slots = jnp.einsum("te,td->etd", one, x)
            slots = lax.all_to_all(slots, "ep", 0, 1, tiled=True)
            h = jax.nn.relu(jnp.einsum("etd,edf->etf", slots, p["w1"]))
            out = jnp.einsum("etf,efd->etd", h, p["w2"])
            out = lax.all_to_all(out, "ep", 1, 0, tiled=True)
            if wrong == "not weighted":
                gate = jnp.ones_like(gate)
            out = jnp.einsum("etd,te->td", out, one) * gate[:, None]
            return jnp.mean((x + out - y) ** 2)

        value, grads = jax.value_and_grad(loss)(p)
        router = grads["router"]
        router = lax.psum(router, "ep") if wrong == "sum" else lax.pmean(router, "ep")
        grads = jax.tree.map(lambda g: g / ranks, grads) | {"router": router}
        return lax.pmean(value, "ep"), grads

    p = {"router": S((d, count), F), "w1": S((count, d, f), F), "w2": S((count, f, d), F)}
    at = {"router": P(), "w1": P("ep"), "w2": P("ep")}
    return {
        "step": single,
        "parallel": mapped(twin, (at, P("ep"), P("ep")), (P(), at)),
        "args": (p, S((tokens, d), F), S((tokens, d), F)),
        "mesh": {"ep": ranks},
    }


# -- an embedding in parts, tied to the logits; a loss over the divided vocabulary -----------------


def divided(wrong: str = "") -> Case:
    d, vocabulary, ranks = 8, 24, 2
    own = vocabulary // ranks

    def single(p: Any, ids: Any, labels: Any) -> Any:
        def loss(p: Any) -> Any:
            x = jnp.tanh(p["table"][ids] @ p["w"])
            logp = jax.nn.log_softmax(x @ p["table"].T)
            return -jnp.mean(jnp.take_along_axis(logp, labels[:, None], -1))

        return jax.value_and_grad(loss)(p)

    def twin(p: Any, ids: Any, labels: Any) -> Any:
        me = lax.axis_index("tp")

        def rows(table: Any, ids: Any) -> Any:
            local = ids - me * own
            mine = (local >= 0) & (local <= own if wrong == "bound" else local < own)
            return jnp.where(mine[:, None], table[jnp.clip(local, 0, own - 1)], 0.0)

        def loss(p: Any) -> Any:
            x = jnp.tanh(lax.psum(rows(p["table"], ids), "tp") @ p["w"])
            logits = x @ p["table"].T
            peak = lax.pmax(lax.stop_gradient(logits).max(-1, keepdims=True), "tp")
            total = lax.psum(jnp.exp(logits - peak).sum(-1), "tp")
            hot = jax.nn.one_hot(labels - me * own + (wrong == "label"), own)
            if wrong == "class":
                hot = hot * (jnp.arange(own) < own - 1)
            picked = lax.psum(jnp.sum((logits - peak) * hot, -1), "tp")
            return jnp.mean((total if wrong == "no log" else jnp.log(total)) - picked)

        value, grads = jax.value_and_grad(loss)(p)
        return value, {"table": grads["table"] / ranks, "w": lax.pmean(grads["w"], "tp")}

    p = {"table": S((vocabulary, d), F), "w": S((d, d), F)}
    at = {"table": P("tp"), "w": P()}
    return {
        "step": single,
        "parallel": mapped(twin, (at, P(), P()), (P(), at)),
        "args": (p, S((6,), IDS), S((6,), IDS)),
        "mesh": {"tp": ranks},
    }


# -- labels compared with class numbers on the ranks, and looked up on one device ------------------


def labels(wrong: str = "") -> Case:
    def single(p: Any, x: Any, y: Any) -> Any:
        def loss(p: Any) -> Any:
            logp = jax.nn.log_softmax(jnp.tanh(x) @ p["w"])
            return -jnp.mean(jnp.take_along_axis(logp, y[:, None], -1))

        return jax.value_and_grad(loss)(p)

    def twin(p: Any, x: Any, y: Any) -> Any:
        def loss(p: Any) -> Any:
            scores = jnp.tanh(x) @ p["w"]
            hot = jax.nn.one_hot(y + (wrong == "shifted"), 12)
            own = jnp.sum(hot * scores, -1) * (0.5 if wrong == "half" else 1.0)
            return jnp.mean(jax.nn.logsumexp(scores, -1) - own)

        return lax.pmean(jax.value_and_grad(loss)(p), "dp")

    return {
        "step": single,
        "parallel": mapped(twin, (P(), P("dp"), P("dp")), (P(), P())),
        "args": ({"w": S((8, 12), F)}, S((8, 8), F), S((8,), IDS)),
        "mesh": {"dp": 2},
    }

"""Steps of `published` that are written by hand over a mesh, and two more of the partitioner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from everyday import placed
from jax import lax
from jax.sharding import PartitionSpec as P
from published import named
from shapes import IDS, Case, F, S, mapped

# -- ZeRO of every leaf: gradients are scattered, moments divided, parameters gathered -------------


def zero(wrong: str = "") -> Case:
    n, d, f = 4, 8, 16
    tx = optax.scale_by_adam(b2=0.95)

    def loss(p: Any, x: Any, y: Any) -> Any:
        h = jax.nn.gelu(x @ p["up"] + p["b"])
        return jnp.mean((h @ p["down"] - y) ** 2)

    def single(p: Any, s: Any, x: Any, y: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(p, x, y)
        scale = jnp.minimum(1.0, 1.0 / (optax.global_norm(grads) + 1e-6))
        changes, s = tx.update(jax.tree.map(lambda g: g * scale, grads), s)
        return jax.tree.map(lambda w, c: w - 1e-3 * (c + 0.1 * w), p, changes), s, value

    def twin(p: Any, s: Any, x: Any, y: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(p, x, y)
        grads = jax.tree.map(lambda g: lax.psum_scatter(g, "dp", tiled=True), grads)
        if wrong != "sum":
            grads = jax.tree.map(lambda g: g / n, grads)
        squares = sum(jnp.sum(g**2) for g in jax.tree.leaves(grads))
        squares = squares if wrong == "norm" else lax.psum(squares, "dp")
        scale = jnp.minimum(1.0, 1.0 / (jnp.sqrt(squares) + 1e-6))
        changes, s = tx.update(jax.tree.map(lambda g: g * scale, grads), s)
        me = lax.axis_index("dp")

        def updated(w: Any, c: Any) -> Any:
            own = lax.dynamic_slice_in_dim(w, me * c.shape[0], c.shape[0])
            return lax.all_gather(own - 1e-3 * (c + 0.1 * own), "dp", tiled=True)

        return jax.tree.map(updated, p, changes), s, lax.pmean(value, "dp")

    p = {"up": S((d, f), F), "b": S((f,), F), "down": S((f, d), F)}
    s = jax.eval_shape(tx.init, p)
    state_at = jax.tree.map(lambda v: P("dp") if v.ndim else P(), s)
    return {
        "step": single,
        "parallel": mapped(twin, (P(), state_at, P("dp"), P("dp")), (P(), state_at, P())),
        "args": (p, s, S((8, d), F), S((8, d), F)),
        "mesh": {"dp": n},
    }


# -- sequence and tensor parallelism as Megatron has them, with gradients --------------------------


def sequence(wrong: str = "") -> Case:
    batch, length, d, heads, k, f, tp = 4, 4, 8, 4, 2, 16, 2

    def norm(x: Any, g: Any) -> Any:
        mean = x.mean(-1, keepdims=True)
        return (x - mean) * lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5) * g

    def block(p: Any, x: Any, whole: Callable[[Any], Any], parts: Callable[[Any], Any]) -> Any:
        y = whole(norm(x, p["g1"]))
        q, key, v = (jnp.einsum("btd,dhk->bhtk", y, p[n]) for n in ("q", "k", "v"))
        s = jnp.einsum("bhqk,bhsk->bhqs", q, key) / jnp.sqrt(k)
        s = jnp.where(jnp.tril(jnp.ones((length, length), bool)), s, -jnp.inf)
        o = jnp.einsum("bhqs,bhsk->bqhk", jax.nn.softmax(s, -1), v)
        x = x + parts(jnp.einsum("bthk,hkd->btd", o, p["o"]))
        y = whole(norm(x, p["g2"]))
        return x + parts(jax.nn.silu(y @ p["up"]) @ p["down"])

    def single(p: Any, x: Any, y: Any) -> Any:
        def loss(p: Any) -> Any:
            return jnp.mean((block(p, x, lambda i: i, lambda i: i) - y) ** 2)

        return jax.value_and_grad(loss)(p)

    def twin(p: Any, x: Any, y: Any) -> Any:
        def loss(p: Any) -> Any:
            out = block(
                p, x, lambda i: lax.all_gather(i, "tp", axis=1, tiled=True),
                lambda i: lax.psum_scatter(i, "tp", scatter_dimension=1, tiled=True),
            )  # fmt: skip
            return jnp.mean((out - y) ** 2) / (1 if wrong == "count" else tp)

        value, grads = jax.value_and_grad(loss)(p)
        for n in ("g1",) if wrong == "norm" else ("g1", "g2"):
            grads[n] = lax.psum(grads[n], "tp")
        grads = lax.pmean(grads, "dp")
        return lax.pmean(lax.psum(value, "tp"), "dp"), grads

    p = {
        "g1": S((d,), F), "g2": S((d,), F), "o": S((heads, k, d), F), "up": S((d, f), F),
        "down": S((f, d), F), **{n: S((d, heads, k), F) for n in "qkv"},
    }  # fmt: skip
    column, row = P(None, "tp"), P("tp")
    at = {
        "g1": P(), "g2": P(), "q": column, "k": column, "v": column, "o": row, "up": column,
        "down": row,
    }  # fmt: skip
    x_at = P("dp", "tp")
    return {
        "step": single,
        "parallel": mapped(twin, (at, x_at, x_at), (P(), at)),
        "args": (p, S((batch, length, d), F), S((batch, length, d), F)),
        "mesh": {"dp": 2, "tp": tp},
    }


# -- a pipeline in a scan over ticks, the gradient through it --------------------------------------


def ticks(wrong: str = "") -> Case:
    stages, micro, size, d = 2, 3, 2, 4

    def layer(w: Any, x: Any) -> Any:
        return x + jax.nn.relu(x @ w["a"]) @ w["b"]

    def single(p: Any, x: Any, y: Any) -> Any:
        def loss(p: Any) -> Any:
            h, _ = lax.scan(lambda h, w: (layer(w, h), None), x.reshape(-1, d), p)
            return jnp.mean((h - y.reshape(-1, d)) ** 2)

        return jax.value_and_grad(loss)(p)

    def local(p: Any, x: Any, y: Any) -> Any:
        me = lax.axis_index("pp")
        w = jax.tree.map(lambda v: v[0], p)

        def tick(carry: Any, t: Any) -> Any:
            state, outs = carry
            fed = lax.dynamic_index_in_dim(x, jnp.clip(t, 0, micro - 1), keepdims=False)
            out = layer(w, jnp.where(me == 0, fed, state))
            at = jnp.clip(t - stages + (2 if wrong == "offset" else 1), 0, micro - 1)
            outs = lax.dynamic_update_index_in_dim(outs, out, at, 0)
            return (lax.ppermute(out, "pp", [(i, i + 1) for i in range(stages - 1)]), outs), None

        start = lax.pcast((jnp.zeros((size, d)), jnp.zeros_like(x)), "pp", to="varying")
        (_, outs), _ = lax.scan(tick, start, jnp.arange(micro + stages - 1))
        error = jnp.mean((outs - y) ** 2)
        last = 0 if wrong == "stage" else stages - 1
        return lax.psum(jnp.where(me == last, error, 0.0), "pp")

    def twin(p: Any, x: Any, y: Any) -> Any:
        return jax.value_and_grad(
            jax.shard_map(local, in_specs=(P("pp"), P(), P()), out_specs=P())
        )(p, x, y)

    p = {"a": S((stages, d, 2 * d), F), "b": S((stages, 2 * d, d), F)}
    return {
        "step": single,
        "parallel": twin,
        "args": (p, S((micro, size, d), F), S((micro, size, d), F)),
        "mesh": {"pp": stages},
    }


# -- Ulysses: heads for sequence by all-to-all, rotary positions of each rank's part ---------------


def ulysses(wrong: str = "") -> Case:
    batch, length, d, heads, k, sp = 2, 8, 8, 4, 4, 2

    def rope(x: Any, positions: Any) -> Any:
        angles = positions[:, None] * 10000.0 ** (-jnp.arange(k // 2) / (k // 2))
        sin, cos = (f(angles)[:, None] for f in (jnp.sin, jnp.cos))
        one, two = x[..., : k // 2], x[..., k // 2 :]
        return jnp.concatenate([one * cos - two * sin, two * cos + one * sin], -1)

    def forward(
        p: Any, x: Any, positions: Any, there: Callable[[Any], Any], back: Callable[[Any], Any]
    ) -> Any:
        q, key, v = (jnp.einsum("btd,dhk->bthk", x, p[n]) for n in ("q", "k", "v"))
        q, key, v = (there(i) for i in (rope(q, positions), rope(key, positions), v))
        s = jnp.einsum("bqhk,bshk->bhqs", q, key) * k**-0.5
        s = jnp.where(jnp.tril(jnp.ones(s.shape[-2:], bool)), s, jnp.finfo(F).min)
        o = back(jnp.einsum("bhqs,bshk->bqhk", jax.nn.softmax(s, -1), v))
        return jax.nn.log_softmax((x + jnp.einsum("bthk,hkd->btd", o, p["o"])) @ p["head"])

    def picked(logs: Any, labels: Any) -> Any:
        return -jnp.take_along_axis(logs, labels[..., None], -1).mean()

    def single(p: Any, x: Any, labels: Any) -> Any:
        def loss(p: Any) -> Any:
            logs = forward(p, x, jnp.arange(length), lambda i: i, lambda i: i)
            return picked(logs, labels)

        value, grads = jax.value_and_grad(loss)(p)
        return value, jax.tree.map(lambda w, g: w - 0.1 * g, p, grads)

    def twin(p: Any, x: Any, labels: Any) -> Any:
        t = x.shape[1]
        positions = jnp.arange(t) + (0 if wrong == "positions" else lax.axis_index("sp") * t)

        def loss(p: Any) -> Any:
            logs = forward(
                p, x, positions,
                lambda i: lax.all_to_all(i, "sp", 2, 1, tiled=True),
                lambda i: lax.all_to_all(i, "sp", 1, 2, tiled=True),
            )  # fmt: skip
            return picked(logs, labels)

        value, grads = jax.value_and_grad(loss)(p)
        mean = lax.psum if wrong == "sum" else lax.pmean
        grads = mean(grads, "sp")
        return lax.pmean(value, "sp"), jax.tree.map(lambda w, g: w - 0.1 * g, p, grads)

    p = {n: S((d, heads, k), F) for n in "qkv"} | {"o": S((heads, k, d), F), "head": S((d, 12), F)}
    at = P(None, "sp")
    return {
        "step": single,
        "parallel": mapped(twin, (P(), at, at), (P(), P())),
        "args": (p, S((batch, length, d), F), S((batch, length), IDS)),
        "mesh": {"sp": sp},
    }


# -- layers gathered one at a time in a scan with remat, Lion --------------------------------------


def gathered(wrong: str = "") -> Case:
    layers, d, n = 3, 8, 2
    tx = optax.lion(1e-4, b1=0.95, b2=0.98, weight_decay=0.1)

    def loss(p: Any, x: Any, y: Any, whole: Callable[[Any, int], Any]) -> Any:
        @jax.checkpoint
        def body(h: Any, w: Any) -> Any:
            up, down = whole(w["up"], 0), whole(w["down"], 1)
            return h + jnp.tanh(h @ up + w["b"]) @ down, None

        h, _ = lax.scan(body, x, p)
        return jnp.mean(optax.l2_loss(h, y))

    def single(p: Any, s: Any, x: Any, y: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(p, x, y, lambda w, _: w)
        changes, s = tx.update(grads, s, p)
        return optax.apply_updates(p, changes), s, value

    def twin(p: Any, s: Any, x: Any, y: Any) -> Any:
        def whole(w: Any, axis: int) -> Any:
            return lax.all_gather(w, "fsdp", axis=axis, tiled=True)

        value, grads = jax.value_and_grad(loss)(p, x, y, whole)
        own = 1 if wrong == "signs" else n
        grads = {k: lax.pmean(g, "fsdp") if k == "b" else g / own for k, g in grads.items()}
        if wrong == "bias":
            grads["b"] = lax.psum(grads["b"], "fsdp")
        changes, s = tx.update(grads, s, p)
        return optax.apply_updates(p, changes), s, lax.pmean(value, "fsdp")

    p = {"up": S((layers, d, d), F), "b": S((layers, d), F), "down": S((layers, d, d), F)}
    s = jax.eval_shape(tx.init, p)
    rules = {"up": P(None, "fsdp"), "down": P(None, None, "fsdp")}
    at, state_at = named(p, rules), named(s, rules)
    return {
        "step": single,
        "parallel": mapped(twin, (at, state_at, P("fsdp"), P("fsdp")), (at, state_at, P())),
        "args": (p, s, S((4, d), F), S((4, d), F)),
        "mesh": {"fsdp": n},
    }


# -- masked words: a tied and divided vocabulary, accumulated by a scan over microbatches ----------


def masked_words(wrong: str = "") -> Case:
    vocabulary, d, micro, batch, length = 12, 8, 2, 8, 3

    def hidden(p: Any, x: Any, kinds: Any) -> Any:
        x = x + p["kinds"][kinds]
        x = x - x.mean(-1, keepdims=True)
        x = x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-12) * p["g"]
        return jax.nn.gelu(x @ p["w"])

    def accumulated(loss: Callable[[Any, Any], Any], p: Any, data: Any) -> Any:
        def add(total: Any, one: Any) -> Any:
            return jax.tree.map(jnp.add, total, jax.value_and_grad(loss)(p, one)), None

        zeros = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, p))
        cut = jax.tree.map(lambda v: v.reshape(micro, -1, *v.shape[1:]), data)
        return lax.scan(add, zeros, cut)[0]

    def single(p: Any, data: Any) -> Any:
        count = jnp.sum(data["weights"])

        def loss(p: Any, one: Any) -> Any:
            h = hidden(p, p["words"][one["ids"]], one["kinds"])
            logs = jax.nn.log_softmax(h @ p["words"].T)
            own = jnp.take_along_axis(logs, one["labels"][..., None], -1)[..., 0]
            return -jnp.sum(own * one["weights"]) / count

        return accumulated(loss, p, data)

    def twin(p: Any, data: Any) -> Any:
        rows = p["words"].shape[0]
        first = lax.axis_index("tp") * rows
        count = jnp.sum(data["weights"])
        count = count * 2 if wrong == "weights" else lax.psum(count, "dp")

        def inside(ids: Any) -> Any:
            at = ids - first
            return (at >= 0) & (at <= rows if wrong == "bound" else at < rows)

        def loss(p: Any, one: Any) -> Any:
            at = jnp.clip(one["ids"] - first, 0, rows - 1)
            x = jnp.where(inside(one["ids"])[..., None], p["words"][at], 0.0)
            logits = hidden(p, lax.psum(x, "tp"), one["kinds"]) @ p["words"].T
            top = lax.pmax(lax.stop_gradient(logits.max(-1)), "tp")
            total = lax.psum(jnp.exp(logits - top[..., None]).sum(-1), "tp")
            at = jnp.clip(one["labels"] - first, 0, rows - 1)
            own = jnp.take_along_axis(logits, at[..., None], -1)[..., 0]
            own = lax.psum(jnp.where(inside(one["labels"]), own, 0.0), "tp")
            each = (top + jnp.log(total) - own) * one["weights"] / count
            return lax.psum(jnp.sum(each), "dp")

        return accumulated(loss, p, data)

    p = {"words": S((vocabulary, d), F), "kinds": S((2, d), F), "g": S((d,), F), "w": S((d, d), F)}
    at = {"words": P("tp"), "kinds": P(), "g": P(), "w": P()}
    ids = S((batch, length), IDS)
    data = {"ids": ids, "kinds": ids, "labels": ids, "weights": S((batch, length), F)}
    return {
        "step": single,
        "parallel": jax.shard_map(twin, in_specs=(at, P("dp")), out_specs=(P(), at)),
        "args": (p, data),
        "mesh": {"dp": 2, "tp": 2},
    }


# -- preferences: log-probabilities of two answers beside those of a frozen model ------------------


def preferences(wrong: str = "") -> Case:
    vocabulary, d, length, batch = 16, 8, 5, 4

    def make(wrong: str) -> Callable[..., Any]:
        def logs(p: Any, ids: Any, answer: Any) -> Any:
            x = p["embed"][ids[:, :-1]]
            q, k, v = (x @ p[n] for n in ("q", "k", "v"))
            s = jnp.einsum("bqd,bkd->bqk", q, k) / jnp.sqrt(d)
            below = jnp.tril(jnp.ones((length - 1, length - 1), bool))
            x = x + jax.nn.softmax(jnp.where(below, s, -1e9), -1) @ v
            logits = jax.nn.gelu(x @ p["up"]) @ p["down"]
            each = -optax.softmax_cross_entropy_with_integer_labels(logits, ids[:, 1:])
            total = jnp.sum(each * answer[:, 1:], -1)
            return total / jnp.sum(answer[:, 1:], -1) if wrong == "mean" else total

        def step(p: Any, frozen: Any, good: Any, bad: Any) -> Any:
            ref = [logs(frozen, *pair) for pair in (good, bad)]

            def loss(p: Any) -> Any:
                own = [logs(p, *pair) for pair in (good, bad)]
                gains = [0.1 * (a - lax.stop_gradient(b)) for a, b in zip(own, ref, strict=True)]
                margin = gains[1] - gains[0] if wrong == "sign" else gains[0] - gains[1]
                correct = jnp.mean((margin > 0).astype(F))
                return -jnp.mean(jax.nn.log_sigmoid(margin)), (jnp.mean(margin), correct)

            (value, seen), grads = jax.value_and_grad(loss, has_aux=True)(p)
            return value, seen, jax.tree.map(lambda w, g: w - 1e-2 * g, p, grads)

        return step

    sizes = {"embed": (vocabulary, d), "q": (d, d), "k": (d, d), "v": (d, d), "up": (d, 16)}
    p = {n: S(size, F) for n, size in sizes.items()} | {"down": S((16, vocabulary), F)}
    at = {n: P("fsdp") for n in p} | {"up": P("fsdp", "tp"), "down": P("tp", "fsdp")}
    pair = (S((batch, length), IDS), S((batch, length), F))
    return placed(
        make,
        wrong,
        args=(p, p, pair, pair),
        mesh={"fsdp": 2, "tp": 2},
        in_shardings=(at, at, P("fsdp"), P("fsdp")),
        out_shardings=(P(), P(), at),
    )

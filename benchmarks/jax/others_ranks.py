"""Steps of users' kinds that none of the other modules holds, written by rank, beside wrong twins;
written before any of them was run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import PartitionSpec as P
from shapes import IDS, Case, F, S, mapped

# -- Megatron's f and g as custom derivatives ------------------------------------------------------


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def copied(x: Any, axis: str) -> Any:
    return x


copied.defvjp(lambda x, axis: (x, None), lambda axis, _, g: (lax.psum(g, axis),))


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def reduced(x: Any, axis: str) -> Any:
    return lax.psum(x, axis)


reduced.defvjp(lambda x, axis: (lax.psum(x, axis), None), lambda axis, _, g: (g,))


def megatron(wrong: str = "") -> Case:
    """Attention with heads over ranks and an MLP; gradients of all parameters."""

    def norm(x: Any, g: Any) -> Any:
        return x * lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-5) * g

    def block(p: Any, x: Any, heads: int, f: Callable[..., Any], g: Callable[..., Any]) -> Any:
        n, t, _ = x.shape
        y = f(norm(x, p["g1"]))
        q, k, v = (jnp.reshape(y @ p[w], (n, t, heads, -1)) for w in "qkv")
        s = jnp.einsum("nqhd,nkhd->nhqk", q, k) / q.shape[-1] ** 0.5
        s = jnp.where(jnp.tril(jnp.ones((t, t), bool)), s, -jnp.inf)
        y = jnp.einsum("nhqk,nkhd->nqhd", jax.nn.softmax(s, -1), v).reshape(n, t, -1)
        x = x + g(y @ p["o"])
        return x + g(jax.nn.silu(f(norm(x, p["g2"])) @ p["up"]) @ p["down"]) + p["bias"]

    def loss(p: Any, x: Any, y: Any, heads: int, f: Any, g: Any) -> Any:
        return jnp.mean(jnp.abs(block(p, x, heads, f, g) - y))

    def same(x: Any) -> Any:
        return x

    f = partial(copied, axis="tp") if wrong != "no sum of gradients" else same
    g = partial(reduced, axis="tp")

    def twin(p: Any, x: Any, y: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(p, x, y, 1, lambda v: f(v), lambda v: g(v))
        if wrong == "bias summed":
            grads["bias"] = lax.psum(grads["bias"], "tp")
        return lax.pmean(value, "dp"), jax.tree.map(lambda v: lax.pmean(v, "dp"), grads)

    shapes = {w: S((8, 8), F) for w in "qkvo"} | {"up": S((8, 16), F), "down": S((16, 8), F)}
    shapes |= {w: S((8,), F) for w in ("g1", "g2", "bias")}
    at = {w: P(None, "tp") for w in ("q", "k", "v", "up")} | {w: P("tp") for w in ("o", "down")}
    at |= {w: P() for w in ("g1", "g2", "bias")}
    return {
        "step": jax.value_and_grad(lambda p, x, y: loss(p, x, y, 2, same, same)),
        "parallel": mapped(twin, (at, P("dp"), P("dp")), (P(), at)),
        "args": (shapes, S((2, 4, 8), F), S((2, 4, 8), F)),
        "mesh": {"dp": 2, "tp": 2},
    }


# -- shard_map that checks what varies, with the gradient taken outside ----------------------------


def varying(wrong: str = "") -> Case:
    """The default of `jax.shard_map`: transposes of replicated operands sum by themselves."""

    def single(p: Any, x: Any, y: Any) -> Any:
        def loss(p: Any) -> Any:
            h = jax.nn.gelu(x @ p["up"] + p["b"]) @ p["down"]
            return jnp.sum(jnp.square(h + x - y)) / x.shape[0]

        return jax.value_and_grad(loss)(p)

    def local(p: Any, x: Any, y: Any) -> Any:
        rows = lax.all_gather(x, "tp", axis=1, tiled=True)
        h = jax.nn.gelu(rows @ p["up"] + p["b"]) @ p["down"]
        h = lax.psum_scatter(h, "tp", scatter_dimension=1, tiled=True)
        total = jnp.sum(jnp.square(h + x - y))
        count = lax.psum(x.shape[0], "dp") if wrong != "count" else x.shape[0]
        return lax.psum(total, ("dp", "tp") if wrong != "axis" else "tp") / count

    at = {"up": P(None, "tp"), "b": P("tp"), "down": P("tp")}

    def twin(p: Any, x: Any, y: Any) -> Any:
        outs = P() if wrong != "axis" else P("dp")
        body = local if wrong != "axis" else lambda *a: local(*a)[None]
        f = jax.shard_map(body, in_specs=(at, P("dp", "tp"), P("dp", "tp")), out_specs=outs)
        return jax.value_and_grad(lambda p: jnp.mean(f(p, x, y)))(p)

    p = {"up": S((8, 16), F), "b": S((16,), F), "down": S((16, 8), F)}
    return {
        "step": single,
        "parallel": twin,
        "args": (p, S((4, 8, 8), F), S((4, 8, 8), F)),
        "mesh": {"dp": 2, "tp": 2},
    }


# -- fully sharded layers in a scan, AdamW, clipping by the norm over ranks ------------------------


def layered(wrong: str = "") -> Case:
    """Weights are gathered in the body of the scan; their gradients come back scattered."""
    tx = optax.adamw(1e-3, b2=0.95, weight_decay=0.1)

    def body(x: Any, w: Any) -> Any:
        y = x * lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6) * w["g"]
        return x + (jax.nn.silu(y @ w["gate"]) * (y @ w["up"])) @ w["down"], None

    def single(p: Any, s: Any, x: Any, y: Any) -> Any:
        def loss(p: Any) -> Any:
            h, _ = lax.scan(jax.checkpoint(body), x, p)
            return jnp.mean(jnp.square(h - y))

        value, grads = jax.value_and_grad(loss)(p)
        norm = optax.global_norm(grads)
        grads = jax.tree.map(lambda g: g * jnp.minimum(1.0, 1.0 / (norm + 1e-6)), grads)
        updates, s = tx.update(grads, s, p)
        return optax.apply_updates(p, updates), s, value, norm

    def twin(p: Any, s: Any, x: Any, y: Any) -> Any:
        def shard(x: Any, w: Any) -> Any:
            return body(x, jax.tree.map(lambda v: lax.all_gather(v, "fsdp", tiled=True), w))

        def loss(p: Any) -> Any:
            h, _ = lax.scan(jax.checkpoint(shard), x, p)
            return jnp.mean(jnp.square(h - y))

        value, grads = jax.value_and_grad(loss)(p)
        if wrong != "sum of gradients":
            grads = jax.tree.map(lambda g: g / lax.axis_size("fsdp"), grads)
        square = sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(grads))
        if wrong != "own norm":
            square = lax.psum(square, "fsdp")
        norm = jnp.sqrt(square)
        grads = jax.tree.map(lambda g: g * jnp.minimum(1.0, 1.0 / (norm + 1e-6)), grads)
        updates, s = tx.update(grads, s, p)
        if wrong == "own norm":
            norm = jnp.sqrt(lax.psum(jnp.square(norm), "fsdp"))
        return optax.apply_updates(p, updates), s, lax.pmean(value, "fsdp"), norm

    p = {"g": S((2, 8), F), "gate": S((2, 8, 16), F), "up": S((2, 8, 16), F)}
    p |= {"down": S((2, 16, 8), F)}
    opt = jax.eval_shape(tx.init, p)
    at = jax.tree.map(lambda _: P(None, "fsdp"), p)
    over = jax.tree.map(lambda v: P(None, "fsdp") if v.ndim > 1 else P(), opt)
    return {
        "step": single,
        "parallel": mapped(twin, (at, over, P("fsdp"), P("fsdp")), (at, over, P(), P())),
        "args": (p, opt, S((4, 8), F), S((4, 8), F)),
        "mesh": {"fsdp": 2},
    }


# -- causal attention in a ring, whose blocks behind the diagonal are skipped ----------------------


def causal_ring(wrong: str = "") -> Case:
    count = 2

    def single(q: Any, k: Any, v: Any) -> Any:
        t = q.shape[1]
        s = jnp.einsum("nqhd,nkhd->nhqk", q, k) * q.shape[-1] ** -0.5
        s = jnp.where(jnp.arange(t)[:, None] >= jnp.arange(t)[None], s, -1e30)
        return jnp.einsum("nhqk,nkhd->nqhd", jax.nn.softmax(s, axis=-1), v)

    def twin(q: Any, k: Any, v: Any) -> Any:
        n, t, h, d = q.shape
        me = lax.axis_index("sp")
        top = jnp.full((n, h, t), -1e30)
        total, out = jnp.zeros((n, h, t)), jnp.zeros((n, h, t, d))
        for i in range(count):
            at = (me - i) % count
            s = jnp.einsum("nqhd,nkhd->nhqk", q, k) * d**-0.5
            rows, cols = me * t + jnp.arange(t)[:, None], at * t + jnp.arange(t)[None]
            if wrong == "places":
                rows = rows + 1
            s = jnp.where(rows >= cols, s, -1e30)
            new = jnp.maximum(top, s.max(-1))
            old, p = jnp.exp(top - new), jnp.exp(s - new[..., None])
            total = total * old + p.sum(-1)
            if wrong == "not rescaled":
                old = jnp.ones_like(old)
            out = out * old[..., None] + jnp.einsum("nhqk,nkhd->nhqd", p, v)
            top = new
            around = [(j, (j + 1) % count) for j in range(count)]
            k, v = (lax.ppermute(z, "sp", around) for z in (k, v))
        return (out / total[..., None]).swapaxes(1, 2)

    at = P(None, "sp")
    return {
        "step": single,
        "parallel": mapped(twin, (at, at, at), at),
        "args": (S((1, 8, 2, 4), F),) * 3,
        "mesh": {"sp": count},
    }


# -- experts with a capacity, rows by all-to-all ---------------------------------------------------


def capacity(wrong: str = "") -> Case:
    """GShard groups: each chooses places at experts by running sums; what overflows is dropped."""
    groups, experts, places = 2, 2, 3

    def route(gate: Any, x: Any, from_one: bool = False) -> Any:
        share = jax.nn.softmax(x @ gate)
        best = jnp.argmax(share, axis=-1)
        hot = jax.nn.one_hot(best, experts)
        at = jnp.cumsum(hot, axis=0) * hot - (0 if from_one else hot)
        at = at.sum(-1).astype(jnp.int32)
        slots = hot[:, :, None] * jax.nn.one_hot(at, places)[:, None, :]
        return slots, slots * share.max(-1)[:, None, None]

    def single(p: Any, x: Any) -> Any:
        def group(x: Any) -> Any:
            slots, weights = route(p["gate"], x)
            rows = jnp.einsum("tec,td->ecd", slots, x)
            rows = jax.nn.relu(jnp.einsum("ecd,edf->ecf", rows, p["up"]))
            return jnp.einsum("tec,ecf,efd->td", weights, rows, p["down"])

        return jax.vmap(group)(x.reshape(groups, -1, x.shape[-1])).reshape(x.shape)

    def twin(p: Any, x: Any) -> Any:
        slots, weights = route(p["gate"], x, wrong == "places from one")
        rows = jnp.einsum("tec,td->ecd", slots, x)
        rows = lax.all_to_all(rows, "ep", 0, 1, tiled=True)
        rows = jax.nn.relu(jnp.einsum("ecd,edf->ecf", rows, p["up"]))
        rows = jnp.einsum("ecf,efd->ecd", rows, p["down"])
        rows = lax.all_to_all(rows, "ep", 1, 0, tiled=True)
        return jnp.einsum("tec,ecd->td", slots if wrong == "not weighted" else weights, rows)

    p = {"gate": S((8, experts), F), "up": S((experts, 8, 16), F), "down": S((experts, 16, 8), F)}
    at = {"gate": P(), "up": P("ep"), "down": P("ep")}
    return {
        "step": single,
        "parallel": mapped(twin, (at, P("ep")), P("ep")),
        "args": (p, S((8, 8), F)),
        "mesh": {"ep": 2},
    }


# -- proximal policy optimisation ------------------------------------------------------------------


def policy(wrong: str = "") -> Case:
    """Advantages by a reversed scan, normalised over all devices; clipped ratios."""

    def advantages(rewards: Any, values: Any, last: Any, decay: float = 0.95) -> Any:
        after = jnp.concatenate([values[1:], last[None]])
        delta = rewards + 0.99 * after - values

        def body(a: Any, d: Any) -> Any:
            a = d + 0.99 * decay * a
            return a, a

        return lax.scan(body, jnp.zeros_like(last), delta, reverse=True)[1]

    def loss(p: Any, b: Any, mean: Callable[[Any], Any]) -> Any:
        adv = advantages(b["rewards"], b["values"], b["last"])
        returns = adv + b["values"]
        centre = mean(adv)
        spread = jnp.sqrt(mean(jnp.square(adv - centre)) + 1e-8)
        adv = lax.stop_gradient((adv - centre) / spread)
        h = jnp.tanh(b["seen"] @ p["body"])
        logs = jax.nn.log_softmax(h @ p["actor"])
        chosen = jnp.take_along_axis(logs, b["actions"][..., None], axis=-1)[..., 0]
        ratio = jnp.exp(chosen - b["logs"])
        gain = jnp.minimum(ratio * adv, jnp.clip(ratio, 0.8, 1.2) * adv)
        value = jnp.square((h @ p["critic"])[..., 0] - returns)
        entropy = -(jnp.exp(logs) * logs).sum(-1)
        return -jnp.mean(gain) + 0.5 * jnp.mean(value) - 0.01 * jnp.mean(entropy)

    def twin(p: Any, b: Any) -> Any:
        def mean(v: Any) -> Any:
            return jnp.mean(v) if wrong == "own mean" else lax.pmean(jnp.mean(v), "dp")

        grads = jax.grad(loss)(p, b, mean)
        join = lax.psum if wrong == "sum" else lax.pmean
        return jax.tree.map(lambda g: join(g, "dp"), grads)

    p = {"body": S((6, 8), F), "actor": S((8, 4), F), "critic": S((8, 1), F)}
    b = {w: S((5, 4), F) for w in ("rewards", "values", "logs")}
    b |= {"last": S((4,), F), "seen": S((5, 4, 6), F), "actions": S((5, 4), IDS)}
    at = {w: P(None, "dp") for w in b} | {"last": P("dp")}
    return {
        "step": jax.grad(lambda p, b: loss(p, b, jnp.mean)),
        "parallel": mapped(twin, (P(), at), P()),
        "args": (p, b),
        "mesh": {"dp": 2},
    }


# -- a divided vocabulary with labels that do not count, z-loss ------------------------------------


def divided(wrong: str = "") -> Case:
    def single(x: Any, head: Any, labels: Any) -> Any:
        def loss(x: Any, head: Any) -> Any:
            logits = x @ head
            norm = jax.nn.logsumexp(logits, axis=-1)
            safe = jnp.where(labels >= 0, labels, 0)
            score = jnp.take_along_axis(logits, safe[:, None], axis=-1)[:, 0]
            each = norm - score + 1e-4 * jnp.square(norm)
            counted = (labels >= 0).astype(x.dtype)
            return jnp.sum(each * counted) / jnp.maximum(counted.sum(), 1.0)

        return jax.value_and_grad(loss, argnums=(0, 1))(x, head)

    def twin(x: Any, head: Any, labels: Any) -> Any:
        part = head.shape[1]
        begin = lax.axis_index("v") * part

        def loss(x: Any, head: Any) -> Any:
            logits = x @ head
            top = lax.stop_gradient(logits.max(-1))
            top = lax.stop_gradient(lax.pmax(top, "v"))
            norm = jnp.log(reduced(jnp.exp(logits - top[:, None]).sum(-1), "v")) + top
            own = labels - begin
            inside = (own >= 0) & (own < part)
            score = jnp.take_along_axis(logits, jnp.where(inside, own, 0)[:, None], axis=-1)[:, 0]
            score = reduced(jnp.where(inside, score, 0.0), "v")
            z = 0.0 if wrong == "no z-loss" else 1e-4
            each = norm - score + z * jnp.square(norm)
            counted = (labels >= 0).astype(x.dtype)
            count = jnp.maximum(counted.sum(), 1.0) if wrong != "all counted" else x.shape[0]
            return jnp.sum(each * counted) / count

        value, (dx, dhead) = jax.value_and_grad(loss, argnums=(0, 1))(x, head)
        return value, (lax.psum(dx, "v"), dhead)

    at = P(None, "v")
    return {
        "step": single,
        "parallel": mapped(twin, (P(), at, P()), (P(), (P(), at))),
        "args": (S((6, 8), F), S((8, 16), F), S((6,), IDS)),
        "mesh": {"v": 2},
    }


# -- messages on a graph, edges over devices -------------------------------------------------------


def messages(wrong: str = "") -> Case:
    nodes = 6

    def layer(w: Any, h: Any, source: Any, target: Any, join: Callable[[Any], Any]) -> Any:
        sent = jax.nn.relu(h[source] @ w["message"])
        total = join(jax.ops.segment_sum(sent, target, nodes))
        degree = jax.ops.segment_sum(jnp.ones(target.shape), target, nodes)
        degree = degree if wrong == "own degree" else join(degree)
        return jnp.tanh(h @ w["self"] + total / jnp.maximum(degree, 1.0)[:, None])

    def single(p: Any, h: Any, source: Any, target: Any) -> Any:
        for w in p:
            sent = jax.nn.relu(h[source] @ w["message"])
            total = jax.ops.segment_sum(sent, target, nodes)
            degree = jax.ops.segment_sum(jnp.ones(target.shape), target, nodes)
            h = jnp.tanh(h @ w["self"] + total / jnp.maximum(degree, 1.0)[:, None])
        return h

    def twin(p: Any, h: Any, source: Any, target: Any) -> Any:
        for w in p:
            h = layer(w, h, source, target, partial(lax.psum, axis_name="e"))
        return h

    p = [{"message": S((4, 4), F), "self": S((4, 4), F)}] * 2
    return {
        "step": single,
        "parallel": mapped(twin, (P(), P(), P("e"), P("e")), P()),
        "args": (p, S((nodes, 4), F), S((8,), IDS), S((8,), IDS)),
        "mesh": {"e": 2},
    }

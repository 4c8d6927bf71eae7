"""Forms of `forms` written by hand over a mesh: rings, halos, prefixes, experts, divided tables."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import PartitionSpec as P
from shapes import IDS, Case, F, S, mapped


def prefix(ok: bool = True) -> Case:
    """Running sums over a divided sequence: each rank's own, and all totals before it."""

    def twin(x: Any) -> Any:
        own = jnp.cumsum(x, axis=1)
        totals = lax.all_gather(own[:, -1], "sp")
        rank = lax.axis_index("sp")
        before = jnp.arange(4) < rank if ok else jnp.arange(4) <= rank
        return own + jnp.einsum("r,rbd->bd", before.astype(F), totals)[:, None]

    return {
        "step": lambda x: jnp.cumsum(x, axis=1),
        "parallel": mapped(twin, (P(None, "sp"),), P(None, "sp")),
        "args": (S((2, 16, 4), F),),
        "mesh": {"sp": 4},
    }


def halo(ok: bool = True) -> Case:
    """A convolution over divided rows: neighbours send their edges, zeros beyond the ends."""

    def conv(w: Any, x: Any, pad: int) -> Any:
        return lax.conv_general_dilated(
            x, w, (1,), [(pad, pad)], dimension_numbers=("NWC", "WIO", "NWC")
        )

    def twin(w: Any, x: Any) -> Any:
        n = 4
        left = lax.ppermute(x[:, -1:], "sp", [(i, i + 1) for i in range(n - 1)])
        right = lax.ppermute(x[:, :1], "sp", [(i + 1, i) for i in range(n - 1)])
        if not ok:
            left, right = right, left
        return conv(w, jnp.concatenate([left, x, right], axis=1), 0)

    return {
        "step": lambda w, x: conv(w, x, 1),
        "parallel": mapped(twin, (P(), P(None, "sp")), P(None, "sp")),
        "args": (S((3, 4, 8), F), S((2, 16, 4), F)),
        "mesh": {"sp": 4},
    }


def collective_matmul(ok: bool = True) -> Case:
    """Rows go round while each part is multiplied, and are written where they belong."""

    def twin(x: Any, w: Any) -> Any:
        n, rank = 4, lax.axis_index("tp")
        out = jnp.zeros((x.shape[0] * n, w.shape[1]))
        for i in range(n):
            at = (rank + i) % n if ok else (rank - i) % n
            out = lax.dynamic_update_slice(out, x @ w, (at * x.shape[0], 0))
            x = lax.ppermute(x, "tp", [(j, (j - 1) % n) for j in range(n)])
        return out

    return {
        "step": lambda x, w: x @ w,
        "parallel": mapped(twin, (P("tp"), P(None, "tp")), P(None, "tp")),
        "args": (S((8, 16), F), S((16, 8), F)),
        "mesh": {"tp": 4},
    }


def scattered_matmul(ok: bool = True) -> Case:
    """Partial products are added up in a ring; each rank ends with its rows."""

    def twin(x: Any, w: Any) -> Any:
        n, rank = 4, lax.axis_index("tp")
        rows = x.shape[0] // n
        total = jnp.zeros((rows, w.shape[1]))
        for i in range(n):
            total = lax.ppermute(total, "tp", [(j, (j + 1) % n) for j in range(n)])
            at = (rank - i - 1) % n if ok else (rank - i) % n
            total = total + lax.dynamic_slice_in_dim(x, at * rows, rows) @ w
        return total

    return {
        "step": lambda x, w: x @ w,
        "parallel": mapped(twin, (P(None, "tp"), P("tp")), P("tp")),
        "args": (S((8, 16), F), S((16, 8), F)),
        "mesh": {"tp": 4},
    }


def cannon(ok: bool = True) -> Case:
    """Blocks of both factors move over a square of ranks."""
    n = 2

    def twin(a: Any, b: Any) -> Any:
        pairs = [(r * n + c, r * n + (c - r) % n) for r in range(n) for c in range(n)]
        a = lax.ppermute(a, ("r", "c"), pairs)
        if ok:
            pairs = [(r * n + c, (r - c) % n * n + c) for r in range(n) for c in range(n)]
        b = lax.ppermute(b, ("r", "c"), pairs)
        total = a @ b
        for _ in range(n - 1):
            a = lax.ppermute(a, "c", [(i, (i - 1) % n) for i in range(n)])
            b = lax.ppermute(b, "r", [(i, (i - 1) % n) for i in range(n)])
            total += a @ b
        return total

    return {
        "step": lambda a, b: a @ b,
        "parallel": mapped(twin, (P("r", "c"), P("r", "c")), P("r", "c")),
        "args": (S((8, 8), F), S((8, 8), F)),
        "mesh": {"r": n, "c": n},
    }


def stacked(ok: bool = True) -> Case:
    """Sums scattered and gathered with a dimension of their own (not tiled)."""

    def twin(x: Any, w: Any) -> Any:
        y = (x @ w).reshape(4, -1, w.shape[1])
        own = lax.psum_scatter(y, "tp", scatter_dimension=0, tiled=False)
        return lax.all_gather(jnp.tanh(own), "tp", axis=0 if ok else 1, tiled=False).reshape(
            -1, w.shape[1]
        )

    return {
        "step": lambda x, w: jnp.tanh(x @ w),
        "parallel": mapped(twin, (P(None, "tp"), P("tp")), P()),
        "args": (S((8, 16), F), S((16, 8), F)),
        "mesh": {"tp": 4},
    }


def contrastive(ok: bool = True) -> Case:
    """Images against texts of all ranks (as CLIP): the other side is gathered."""

    def normed(x: Any) -> Any:
        return x / jnp.linalg.norm(x, axis=-1, keepdims=True)

    def single(w: Any, a: Any, b: Any) -> Any:
        logits = jnp.exp(w["t"]) * normed(a @ w["a"]) @ normed(b @ w["b"]).T
        own = jnp.diagonal(logits)
        rows, columns = (jax.nn.logsumexp(logits, axis=i) for i in (0, 1))
        return jnp.mean(rows + columns - 2 * own) / 2

    def twin(w: Any, a: Any, b: Any) -> Any:
        a, b = normed(a @ w["a"]), normed(b @ w["b"])
        scale = jnp.exp(w["t"])
        alls = [lax.all_gather(i, "dp", tiled=True) for i in (a, b)]
        one, two = scale * a @ alls[1].T, scale * b @ alls[0].T
        at = jnp.arange(a.shape[0]) + (lax.axis_index("dp") * a.shape[0] if ok else 0)
        loss = [optax.softmax_cross_entropy_with_integer_labels(i, at).mean() for i in (one, two)]
        return lax.pmean((loss[0] + loss[1]) / 2, "dp")

    w = {"a": S((16, 8), F), "b": S((12, 8), F), "t": S((), F)}
    return {
        "step": single,
        "parallel": mapped(twin, (P(), P("dp"), P("dp")), P()),
        "args": (w, S((8, 16), F), S((8, 12), F)),
        "mesh": {"dp": 4},
    }


def ignored(ok: bool = True) -> Case:
    """Labels of -1 do not count: the number of all others is summed over ranks."""

    def parts(w: Any, x: Any, y: Any) -> Any:
        logp = jax.nn.log_softmax(jnp.tanh(x) @ w)
        on = y >= 0
        picked = jnp.take_along_axis(logp, jnp.where(on, y, 0)[:, None], axis=-1)[:, 0]
        return -jnp.sum(jnp.where(on, picked, 0.0)), jnp.sum(on)

    def single(w: Any, x: Any, y: Any) -> Any:
        total, count = parts(w, x, y)
        return total / jnp.maximum(count, 1)

    def twin(w: Any, x: Any, y: Any) -> Any:
        total, count = parts(w, x, y)
        if ok:
            return lax.psum(total, "dp") / jnp.maximum(lax.psum(count, "dp"), 1)
        return lax.pmean(total / jnp.maximum(count, 1), "dp")

    return {
        "step": single,
        "parallel": mapped(twin, (P(), P("dp"), P("dp")), P()),
        "args": (S((8, 16), F), S((16, 8), F), S((16,), IDS)),
        "mesh": {"dp": 4},
    }


def experts(ok: bool = True) -> Case:
    """Tokens of a rank go to experts by one-hots with a capacity, there by all-to-all, and back."""
    n, capacity = 4, 3

    def routed(p: Any, x: Any) -> Any:
        gates = jax.nn.softmax(x @ p["gate"], axis=-1)
        which = jax.nn.one_hot(jnp.argmax(gates, axis=-1), n)
        place = jnp.cumsum(which, axis=0) * which - 1
        slot = jax.nn.one_hot(place.max(-1).astype(IDS), capacity) * which.max(-1, keepdims=True)
        mask = which[:, :, None] * slot[:, None, :]
        return mask, mask * jnp.sum(gates * which, -1)[:, None, None]

    def group(p: Any, x: Any) -> Any:
        mask, combine = routed(p, x)
        inside = jnp.einsum("tec,td->ecd", mask, x)
        hidden = jax.nn.gelu(jnp.einsum("ecd,edf->ecf", inside, p["up"]))
        return jnp.einsum("tec,ecd->td", combine, jnp.einsum("ecf,efd->ecd", hidden, p["down"]))

    def single(p: Any, x: Any) -> Any:
        return jax.vmap(partial(group, p))(x)

    def twin(p: Any, x: Any) -> Any:
        x = x[0]
        mask, combine = routed(p, x)
        inside = jnp.einsum("tec,td->ecd", mask, x)
        inside = lax.all_to_all(inside, "ep", 0, 1, tiled=True)
        hidden = jax.nn.gelu(jnp.einsum("ecd,edf->ecf", inside, p["up"]))
        out = jnp.einsum("ecf,efd->ecd", hidden, p["down"])
        out = lax.all_to_all(out, "ep", 1, 0, tiled=True)
        return jnp.einsum("tec,ecd->td", combine if ok else mask, out)[None]

    p = {"gate": S((8, n), F), "up": S((n, 8, 16), F), "down": S((n, 16, 8), F)}
    at = {"gate": P(), "up": P("ep"), "down": P("ep")}
    return {
        "step": single,
        "parallel": mapped(twin, (at, P("ep")), P("ep")),
        "args": (p, S((n, 6, 8), F)),
        "mesh": {"ep": n},
    }


def tied(ok: bool = True) -> Case:
    """One divided table: its rows are looked up, and it is the head."""

    def single(e: Any, ids: Any) -> Any:
        return jnp.tanh(e[ids]) @ e.T

    def twin(e: Any, ids: Any) -> Any:
        rows = e.shape[0]
        at = ids - lax.axis_index("v") * rows
        inside = (at >= 0) & (at < rows)
        x = jnp.where(inside[..., None], e[jnp.clip(at, 0, rows - 1)], 0.0)
        x = jnp.tanh(lax.psum(x, "v")) if ok else lax.psum(jnp.tanh(x), "v") / 2
        return lax.all_gather(x @ e.T, "v", axis=2, tiled=True)

    return {
        "step": single,
        "parallel": mapped(twin, (P("v"), P()), P()),
        "args": (S((16, 8), F), S((2, 4), IDS)),
        "mesh": {"v": 4},
    }


def segments(ok: bool = True) -> Case:
    """Sums by segment (a graph's edges to its nodes), edges divided."""

    def twin(x: Any, to: Any) -> Any:
        own = jax.ops.segment_sum(x, to, num_segments=6)
        return lax.psum(own, "dp") if ok else lax.pmean(own, "dp")

    return {
        "step": lambda x, to: jax.ops.segment_sum(x, to, num_segments=6),
        "parallel": mapped(twin, (P("dp"), P("dp")), P()),
        "args": (S((16, 4), F), S((16,), IDS)),
        "mesh": {"dp": 4},
    }


def scatter_gather(ok: bool = True) -> Case:
    """Messages along edges: rows of nodes gathered, summed where they go; features divided."""

    def layer(w: Any, x: Any, a: Any, b: Any) -> Any:
        sent = jax.nn.relu(x[a]) - x[b]
        return x + jnp.zeros_like(x).at[b if ok else a].add(sent)

    return {
        "step": lambda x, a, b: x + jnp.zeros_like(x).at[b].add(jax.nn.relu(x[a]) - x[b]),
        "parallel": mapped(partial(layer, None), (P(None, "tp"), P(), P()), P(None, "tp")),
        "args": (S((6, 8), F), S((12,), IDS), S((12,), IDS)),
        "mesh": {"tp": 4},
    }


def keyed(ok: bool = True) -> Case:
    """Noise of every sample by its own key: keys are folded with the sample's number."""

    def noise(key: Any, number: Any, x: Any) -> Any:
        key = jax.random.fold_in(key, number)
        return jnp.where(jax.random.bernoulli(key, 0.75, x.shape), x / 0.75, 0.0)

    def single(key: Any, x: Any) -> Any:
        return jax.vmap(partial(noise, key))(jnp.arange(x.shape[0]), x)

    def twin(key: Any, x: Any) -> Any:
        at = jnp.arange(x.shape[0])
        if ok:
            at = at + lax.axis_index("dp") * x.shape[0]
        return jax.vmap(partial(noise, key))(at, x)

    return {
        "step": single,
        "parallel": mapped(twin, (P(), P("dp")), P("dp")),
        "args": (S((2,), jnp.uint32), S((8, 4), F)),
        "mesh": {"dp": 4},
    }


def accumulated(ok: bool = True) -> Case:
    """Microbatches in a scan, gradients summed once over ranks, lion's update."""
    optimizer = optax.lion(1e-3, weight_decay=0.1)

    def loss(w: Any, x: Any, y: Any) -> Any:
        return jnp.mean((jnp.tanh(x @ w["a"]) @ w["b"] - y) ** 2)

    def step(w: Any, s: Any, g: Any) -> Any:
        u, s = optimizer.update(g, s, w)
        return optax.apply_updates(w, u), s

    def single(w: Any, s: Any, x: Any, y: Any) -> Any:
        return step(w, s, jax.grad(loss)(w, x, y))

    def twin(w: Any, s: Any, x: Any, y: Any) -> Any:
        parts = [i.reshape(2, -1, i.shape[-1]) for i in (x, y)]
        zero = jax.tree.map(jnp.zeros_like, w)

        def micro(total: Any, xy: Any) -> Any:
            return jax.tree.map(jnp.add, total, jax.grad(loss)(w, *xy)), None

        g, _ = lax.scan(micro, zero, tuple(parts))
        g = jax.tree.map(lambda i: lax.pmean(i, "dp") / (2 if ok else 1), g)
        return step(w, s, g)

    w = {"a": S((8, 16), F), "b": S((16, 4), F)}
    state = jax.eval_shape(optimizer.init, w)
    return {
        "step": single,
        "parallel": mapped(twin, (P(), P(), P("dp"), P("dp")), (P(), P())),
        "args": (w, state, S((16, 8), F), S((16, 4), F)),
        "mesh": {"dp": 4},
    }


def flash(ok: bool = True) -> Case:
    """Blocks of keys in a loop with a running maximum, heads divided."""

    def single(q: Any, k: Any, v: Any) -> Any:
        s = jnp.einsum("hqd,hkd->hqk", q, k)
        return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(s, -1), v)

    def twin(q: Any, k: Any, v: Any) -> Any:
        block = 4

        def turn(i: Any, state: Any) -> Any:
            out, den, top = state
            kb = lax.dynamic_slice_in_dim(k, i * block, block, axis=1)
            vb = lax.dynamic_slice_in_dim(v, i * block, block, axis=1)
            s = jnp.einsum("hqd,hkd->hqk", q, kb)
            new = jnp.maximum(top, s.max(-1))
            old, p = jnp.exp(top - new), jnp.exp(s - new[..., None])
            out = out * old[..., None] + jnp.einsum("hqk,hkd->hqd", p, vb)
            return out, den * old + p.sum(-1), new

        h, t, _ = q.shape
        start = (jnp.zeros_like(q), jnp.zeros((h, t)), jnp.full((h, t), -jnp.inf))
        out, den, _ = lax.fori_loop(0, 2 if ok else 1, turn, start)
        return out / den[..., None]

    at = P("tp")
    return {
        "step": single,
        "parallel": mapped(twin, (at, at, at), at),
        "args": (S((4, 8, 4), F),) * 3,
        "mesh": {"tp": 2},
    }


def chunked(ok: bool = True) -> Case:
    """The loss of a large vocabulary in pieces of the sequence, recomputed; tokens divided."""

    def single(w: Any, x: Any, y: Any) -> Any:
        def loss(w: Any) -> Any:
            logp = jax.nn.log_softmax(x @ w)
            return -jnp.mean(jnp.take_along_axis(logp, y[:, None], -1))

        return jax.value_and_grad(loss)(w)

    def twin(w: Any, x: Any, y: Any) -> Any:
        def loss(w: Any) -> Any:
            @jax.checkpoint
            def piece(xy: Any) -> Any:
                logits = xy[0] @ w
                own = jnp.sum(jax.nn.one_hot(xy[1], w.shape[1]) * logits, -1)
                return jnp.sum(jax.nn.logsumexp(logits, -1) - own)

            pieces = x.reshape(2, -1, x.shape[-1]), y.reshape(2, -1)
            return jnp.sum(lax.map(piece, pieces)) / (x.shape[0] * 2)

        value, grad = jax.value_and_grad(loss)(w)
        return lax.psum(value, "dp"), lax.psum(grad, "dp") if ok else lax.pmean(grad, "dp")

    return {
        "step": single,
        "parallel": mapped(twin, (P(), P("dp"), P("dp")), (P(), P())),
        "args": (S((8, 12), F), S((8, 8), F), S((8,), IDS)),
        "mesh": {"dp": 2},
    }


def sorting(ok: bool = True) -> Case:
    """The sum of the largest three of every row, by a sort; rows divided."""

    def step(count: int, x: Any) -> Any:
        return jnp.sum(jnp.sort(x, axis=-1)[:, -count:], -1)

    return {
        "step": partial(step, 3),
        "parallel": mapped(partial(step, 3 if ok else 2), (P("dp"),), P("dp")),
        "args": (S((8, 6), F),),
        "mesh": {"dp": 2},
    }


def spectrum(ok: bool = True) -> Case:
    """Fourier's transform is no operator that is read."""

    def step(x: Any) -> Any:
        return jnp.fft.rfft(x, axis=-1).real

    return {
        "step": step,
        "parallel": mapped(step if ok else lambda x: 2 * step(x), (P("dp"),), P("dp")),
        "args": (S((8, 6), F),),
        "mesh": {"dp": 2},
    }

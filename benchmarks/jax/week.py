"""Steps as they are written in an ordinary week, beside wrong twins, written before any of them was
run: a pipeline whose loss is divided by a count, noise to be predicted, a U-Net, interactions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax import lax
from jax.sharding import PartitionSpec as P
from shapes import IDS, Case, F, S, beside_twins, mapped

# -- two stages, three microbatches, the gradient through a checked `shard_map` -------------------


def counted(wrong: str = "") -> Case:
    stages, micro, size, d = 2, 3, 2, 4

    def layer(w: Any, x: Any) -> Any:
        return jnp.tanh(x @ w["w"] + w["b"])

    def single(p: Any, x: Any, y: Any) -> Any:
        def loss(p: Any) -> Any:
            h = x
            for stage in range(stages):
                h = layer({name: w[stage] for name, w in p.items()}, h)
            return jnp.mean((h - y) ** 2)

        return jax.value_and_grad(loss)(p)

    def local(p: Any, x: Any, y: Any) -> Any:
        w, me = {name: w[0] for name, w in p.items()}, lax.axis_index("pp")
        xs, ys = x.reshape(micro, size, d), y.reshape(micro, size, d)
        state = lax.pcast(jnp.zeros((size, d)), "pp", to="varying")
        total = lax.pcast(jnp.zeros(()), "pp", to="varying")
        for t in range(micro + stages - 1):
            out = layer(w, jnp.where(me == 0, xs[min(t, micro - 1)], state))
            if t >= stages - 1:
                at = min(t - stages + 1 + (wrong == "labels"), micro - 1)
                own = jnp.sum((out - ys[at]) ** 2)
                total = total + jnp.where(me == stages - 1, own, 0.0)
            state = lax.ppermute(out, "pp", [(k, (k + 1) % stages) for k in range(stages)])
        count = size * d * (1 if wrong == "count" else micro)
        return lax.psum(total, "pp") / count

    def twin(p: Any, x: Any, y: Any) -> Any:
        f = jax.shard_map(local, in_specs=(P("pp"), P(), P()), out_specs=P())
        return jax.value_and_grad(f)(p, x, y)

    p = {"w": S((stages, d, d), F), "b": S((stages, d), F)}
    return {
        "step": single, "parallel": twin, "mesh": {"pp": stages},
        "args": (p, S((micro * size, d), F), S((micro * size, d), F)),
    }  # fmt: skip


# -- noise that is predicted: a schedule as a running product, looked up by the step --------------


def noise(wrong: str = "") -> Case:
    steps, d = 10, 8

    def make(wrong: str) -> Any:
        def step(p: Any, x: Any, t: Any, noise: Any) -> Any:
            left = jnp.cumprod(1 - jnp.linspace(1e-4, 0.02, steps))
            angles = t[:, None].astype(F) * jnp.exp(-jnp.log(1e4) * jnp.arange(d // 2) / (d // 2))

            def loss(p: Any) -> Any:
                a = left[t][:, None]
                mixed = jnp.sqrt(a) * x + jnp.sqrt(a if wrong == "share" else 1 - a) * noise
                time = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1)
                h = jax.nn.silu(mixed @ p["in"] + time @ p["t"])
                return jnp.mean((h @ p["out"] - noise) ** 2)

            return jax.value_and_grad(loss)(p)

        return step

    at = {"in": P(None, "tp"), "t": P(None, "tp"), "out": P("tp")}
    p = {"in": S((d, 16), F), "t": S((d, 16), F), "out": S((16, d), F)}
    case: Case = {
        "step": make(""), "mesh": {"dp": 2, "tp": 2},
        "args": (p, S((4, d), F), S((4,), IDS), S((4, d), F)),
        "in_shardings": (at, P("dp"), P("dp"), P("dp")), "out_shardings": (P(), at),
    }  # fmt: skip
    return case | ({"parallel": make(wrong)} if wrong else {})


# -- a U-Net: a smaller picture, made larger again beside the first one ---------------------------


def pictures(wrong: str = "") -> Case:
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            first = nn.relu(nn.Conv(4, (3, 3))(x))
            h = nn.avg_pool(first, (2, 2), strides=(2, 2))
            h = nn.GroupNorm(num_groups=2)(nn.relu(nn.Conv(8, (3, 3))(h)))
            h = jax.image.resize(h, (*first.shape[:3], 8), "nearest")
            return nn.Conv(1, (1, 1))(jnp.concatenate([first, h], -1))

    def make(wrong: str) -> Any:
        def step(p: Any, x: Any, y: Any) -> Any:
            def loss(p: Any) -> Any:
                error = (Net().apply({"params": p}, x) - y) ** 2  # type: ignore[operator]
                return error.mean((1, 2, 3)).sum() if wrong == "sum" else error.mean()

            return jax.value_and_grad(loss)(p)

        return step

    p = jax.eval_shape(lambda: Net().init(jax.random.key(0), jnp.zeros((1, 4, 4, 1))))["params"]
    case: Case = {
        "step": make(""), "mesh": {"dp": 2},
        "args": (p, S((2, 4, 4, 1), F), S((2, 4, 4, 1), F)),
        "in_shardings": (jax.tree.map(lambda _: P(), p), P("dp"), P("dp")),
    }  # fmt: skip
    return case | ({"parallel": make(wrong)} if wrong else {})


# -- tables over ranks, by all-to-all beside the ranks' samples; every pair of features -----------


def interactions(wrong: str = "") -> Case:
    tables, rows, e, b, ranks = 4, 6, 4, 4, 2

    def looked_up(t: Any, ids: Any) -> Any:
        return jax.vmap(lambda table, i: table[i], in_axes=(0, 1), out_axes=1)(t, ids)

    def losses(p: Any, rows: Any, x: Any, y: Any) -> Any:
        own = jax.nn.relu(x @ p["own"])
        features = jnp.concatenate([own[:, None], rows], 1)
        pairs = jnp.einsum("bie,bje->bij", features, features)
        i, j = jnp.tril_indices(tables + 1, -1)
        scores = (jnp.concatenate([own, pairs[:, i, j]], -1) @ p["top"])[:, 0]
        return optax.sigmoid_binary_cross_entropy(scores, y)

    def single(p: Any, t: Any, ids: Any, x: Any, y: Any) -> Any:
        return losses(p, looked_up(t, ids), x, y).mean()

    def twin(p: Any, t: Any, ids: Any, x: Any, y: Any) -> Any:
        sent = lax.all_to_all(looked_up(t, ids), "mp", 0, 1, tiled=True)
        own = losses(p, sent[:, ::-1] if wrong == "order" else sent, x, y).mean()
        return lax.psum(own, "mp") if wrong == "sum" else lax.pmean(own, "mp")

    p = {"own": S((3, e), F), "top": S((e + (tables + 1) * tables // 2, 1), F)}
    ins = (P(), P("mp"), P(None, "mp"), P("mp"), P("mp"))
    return {
        "step": single, "parallel": mapped(twin, ins, P()), "mesh": {"mp": ranks},
        "args": (
            p, S((tables, rows, e), F), S((b, tables), IDS), S((b, 3), F), S((b,), F),
        ),
    }  # fmt: skip


RIGHT, WRONG = beside_twins(
    {
        counted: ("labels", "count"),
        noise: ("share",),
        pictures: ("sum",),
        interactions: ("order", "sum"),
    }
)

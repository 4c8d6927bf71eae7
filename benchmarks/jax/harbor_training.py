"""Steps of `harbor` that train: optimizers, dropout, accumulated and scattered gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from everyday import placed
from flax import linen as nn
from jax import lax
from jax.sharding import PartitionSpec as P
from shapes import IDS, B, Case, F, S, mapped

# -- Muon: gradients made orthogonal by Newton and Schulz ------------------------------------------


def muon(wrong: str = "") -> Case:
    d, f = 8, 16

    def orthogonal(g: Any, wrong: str) -> Any:
        a, b, c = 3.4445, -4.7750, 2.0315
        x = g.T if g.shape[0] > g.shape[1] else g
        x = x / (jnp.linalg.norm(x) + 1e-7)
        for _ in range(1 if wrong == "rounds" else 2):
            s = x @ x.T
            x = a * x + (b * s + c * s @ s) @ x
        return x.T if g.shape[0] > g.shape[1] else x

    def make(wrong: str) -> Callable[..., Any]:
        def step(p: Any, m: Any, x: Any, y: Any) -> Any:
            def loss(p: Any) -> Any:
                return jnp.mean((jax.nn.relu(x @ p["up"]) @ p["down"] - y) ** 2)

            g = jax.grad(loss)(p)
            m = jax.tree.map(lambda m, g: 0.95 * m + g, m, g)
            ahead = jax.tree.map(lambda m, g: g + 0.95 * m, m, g)
            change = m if wrong == "ahead" else ahead
            return jax.tree.map(lambda w, c: w - 0.02 * orthogonal(c, wrong), p, change), m

        return step

    p = {"up": S((d, f), F), "down": S((f, d), F)}
    at = {"up": P("fsdp"), "down": P(None, "fsdp")}
    return placed(
        make,
        wrong,
        args=(p, p, S((8, d), F), S((8, d), F)),
        mesh={"fsdp": 4},
        in_shardings=(at, at, P("fsdp"), P("fsdp")),
        out_shardings=(at, at),
    )


# -- dropout with split keys, in flax --------------------------------------------------------------


class Dropped(nn.Module):
    rate: float = 0.1
    shared: bool = False

    @nn.compact
    def __call__(self, x: Any, train: bool = True) -> Any:
        y = nn.Dense(16, name="a")(x)
        y = nn.gelu(y)
        y = nn.Dropout(self.rate, deterministic=not train)(y)
        y = nn.Dense(8, name="b")(y)
        y = nn.Dropout(self.rate, deterministic=self.shared)(y)
        return nn.LayerNorm(name="n")(x + y)


def dropped(wrong: str = "") -> Case:
    def make(wrong: str) -> Callable[..., Any]:
        model = Dropped(0.2 if wrong == "rate" else 0.1, shared=wrong == "second")

        def step(p: Any, key: Any, x: Any, y: Any) -> Any:
            def loss(p: Any) -> Any:
                out = model.apply({"params": p}, x, rngs={"dropout": key})
                return jnp.mean(jnp.abs(out - y))

            return jax.value_and_grad(loss)(p)

        return step

    shape = S((8, 8), F)
    key = jax.eval_shape(lambda: jax.random.key(0))
    p = jax.eval_shape(lambda k, x: Dropped().init({"params": k, "dropout": k}, x), key, shape)
    p = p["params"]
    at = {
        "a": {"kernel": P(None, "tp"), "bias": P("tp")},
        "b": {"kernel": P("tp"), "bias": P()}, "n": {"scale": P(), "bias": P()},
    }  # fmt: skip
    return placed(
        make,
        wrong,
        args=(p, key, shape, shape),
        mesh={"dp": 2, "tp": 2},
        in_shardings=(at, P(), P("dp"), P("dp")),
        out_shardings=(P(), at),
    )


# -- a student beside its teacher: divergence at a temperature, and labels -------------------------


def distilled(wrong: str = "") -> Case:
    d, f, classes, warm = 8, 16, 10, 2.0

    def make(wrong: str) -> Callable[..., Any]:
        def logits(p: Any, x: Any) -> Any:
            return jax.nn.relu(x @ p["a"] + p["b"]) @ p["c"]

        def step(p: Any, teacher: Any, x: Any, y: Any) -> Any:
            def loss(p: Any) -> Any:
                z = logits(p, x)
                known = lax.stop_gradient(logits(teacher, x))
                soft = jax.nn.softmax(known / warm, axis=-1)
                if wrong == "sides":
                    soft = jax.nn.softmax(z / warm)
                    kl = optax.losses.kl_divergence(jax.nn.log_softmax(known / warm), soft)
                else:
                    kl = optax.losses.kl_divergence(jax.nn.log_softmax(z / warm), soft)
                hard = optax.softmax_cross_entropy_with_integer_labels(z, y)
                square = 1.0 if wrong == "square" else warm**2
                return jnp.mean(0.7 * square * kl + 0.3 * hard)

            value, g = jax.value_and_grad(loss)(p)
            return value, jax.tree.map(lambda w, g: w - 0.1 * g, p, g)

        return step

    p = {"a": S((d, f), F), "b": S((f,), F), "c": S((f, classes), F)}
    at = {"a": P(None, "tp"), "b": P("tp"), "c": P("tp")}
    return placed(
        make,
        wrong,
        args=(p, p, S((8, d), F), S((8,), IDS)),
        mesh={"dp": 2, "tp": 2},
        in_shardings=(at, at, P("dp"), P("dp")),
        out_shardings=(P(), at),
    )


# -- parameters gathered for use, their gradients scattered by the derivative of the gather --------


def gathered_for_use(wrong: str = "") -> Case:
    n, d, f = 4, 8, 16

    def loss(p: Any, x: Any, y: Any) -> Any:
        h = jnp.tanh(x @ p["a"] + p["ab"])
        h = h + jax.nn.relu(h @ p["b"])
        return 0.5 * jnp.mean(jnp.sum((h @ p["c"] - y) ** 2, axis=-1))

    def single(p: Any, x: Any, y: Any) -> Any:
        value, g = jax.value_and_grad(loss)(p, x, y)
        return value, jax.tree.map(lambda w, c: w - 0.1 * c, p, g)

    def twin(p: Any, x: Any, y: Any) -> Any:
        def whole(w: Any) -> Any:
            return lax.all_gather(w, "fsdp", axis=0, tiled=True)

        def local(p: Any) -> Any:
            return loss(jax.tree.map(whole, p), x, y)

        value, g = jax.value_and_grad(local)(p)
        if wrong != "sum":
            g = jax.tree.map(lambda c: c / n, g)
        if wrong == "neighbour":
            g = jax.tree.map(
                lambda c: lax.ppermute(c, "fsdp", [(i, (i + 1) % n) for i in range(n)]), g
            )
        return lax.pmean(value, "fsdp"), jax.tree.map(lambda w, c: w - 0.1 * c, p, g)

    p = {"a": S((d, f), F), "ab": S((f,), F), "b": S((f, f), F), "c": S((f, d), F)}
    at = dict.fromkeys(p, P("fsdp"))
    return {
        "step": single,
        "parallel": mapped(twin, (at, P("fsdp"), P("fsdp")), (P(), at)),
        "args": (p, S((8, d), F), S((8, d), F)),
        "mesh": {"fsdp": n},
    }


# -- gradients accumulated in a scan, on replicas --------------------------------------------------


def accumulated(wrong: str = "") -> Case:
    n, micro, rows, d, f, classes = 2, 3, 2, 8, 16, 6

    def loss(p: Any, x: Any, y: Any) -> Any:
        z = jax.nn.silu(x @ p["a"]) @ p["b"] + p["c"]
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(z), y[:, None], axis=1))

    def updated(p: Any, m: Any, g: Any) -> Any:
        m = jax.tree.map(lambda m, g: 0.9 * m + g, m, g)
        return jax.tree.map(lambda w, m: w - 0.05 * m, p, m), m

    def single(p: Any, m: Any, x: Any, y: Any) -> Any:
        value, g = jax.value_and_grad(loss)(p, x, y)
        return (*updated(p, m, g), value)

    def twin(p: Any, m: Any, x: Any, y: Any) -> Any:
        def add(carry: Any, batch: Any) -> Any:
            value, g = jax.value_and_grad(loss)(p, *batch)
            return jax.tree.map(jnp.add, carry, (value, g)), None

        zero = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, p))
        batches = x.reshape(micro, rows, d), y.reshape(micro, rows)
        (value, g), _ = lax.scan(add, zero, batches)
        value, g = jax.tree.map(lambda v: lax.pmean(v, "dp") / micro, (value, g))
        if wrong == "twice":
            g = jax.tree.map(lambda v: v / micro, g)
        if wrong == "bias":
            g = {**g, "c": g["c"] * n}
        return (*updated(p, m, g), value)

    p = {"a": S((d, f), F), "b": S((f, classes), F), "c": S((classes,), F)}
    total = n * micro * rows
    return {
        "step": single,
        "parallel": mapped(twin, (P(), P(), P("dp"), P("dp")), (P(), P(), P())),
        "args": (p, p, S((total, d), F), S((total,), IDS)),
        "mesh": {"dp": n},
    }


# -- three axes, bfloat16 beside float32 master weights, a scaled loss -----------------------------


def cube(wrong: str = "") -> Case:
    d, f, scale = 8, 16, 1024.0

    def loss(p: Any, x: Any, y: Any, add: Callable[[Any], Any]) -> Any:
        up, down = p["up"].astype(B), p["down"].astype(B)
        h = jax.nn.gelu(x.astype(B) @ up)
        out = add((h @ down).astype(F))
        return jnp.mean((out - y) ** 2)

    def single(p: Any, x: Any, y: Any) -> Any:
        value, g = jax.value_and_grad(lambda p: loss(p, x, y, lambda v: v) * scale)(p)
        return value / scale, jax.tree.map(lambda w, g: w - 0.1 * g / scale, p, g)

    def twin(p: Any, x: Any, y: Any) -> Any:
        @jax.custom_vjp
        def add(v: Any) -> Any:
            return lax.psum(v, "tensor")

        add.defvjp(lambda v: (lax.psum(v, "tensor"), None), lambda _, g: (g,))

        def local(p: Any) -> Any:
            whole = {
                "up": lax.all_gather(p["up"], "fsdp", axis=0, tiled=True),
                "down": lax.all_gather(p["down"], "fsdp", axis=1, tiled=True),
            }
            return loss(whole, x, y, add) * scale

        value, g = jax.value_and_grad(local)(p)
        g = jax.tree.map(lambda v: v / 2, g)
        if wrong != "data":
            g = lax.pmean(g, "data")
        value = lax.pmean(value, ("data", "fsdp"))
        down = 1.0 if wrong == "scale" else scale
        return value / scale, jax.tree.map(lambda w, g: w - 0.1 * g / down, p, g)

    p = {"up": S((d, f), F), "down": S((f, d), F)}
    at = {"up": P("fsdp", "tensor"), "down": P("tensor", "fsdp")}
    rows = P(("data", "fsdp"))
    return {
        "step": single,
        "parallel": mapped(twin, (at, rows, rows), (P(), at)),
        "args": (p, S((8, d), F), S((8, d), F)),
        "mesh": {"data": 2, "fsdp": 2, "tensor": 2},
    }

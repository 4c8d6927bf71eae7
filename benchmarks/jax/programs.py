"""Training steps of JAX as users write them: flax, optax, scan, remat, shard_map; and wrong twins.

Each entry of `RIGHT` and `WRONG` makes the arguments of `shardproof.jax.verify`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import PartitionSpec as P
from shapes import IDS, Case, F, S, mapped

MESH = {"dp": 2, "tp": 4}
VOCABULARY, WIDTH, HEADS, SIZE, INNER, LAYERS = 64, 32, 4, 8, 64, 2
BATCH, LENGTH = 4, 8


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        y = nn.LayerNorm(name="ln1")(x)
        split = {"features": (HEADS, SIZE), "use_bias": False}
        q, k, v = (nn.DenseGeneral(name=n, **split)(y) for n in ("q", "k", "v"))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(SIZE)
        mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), dtype=bool))
        weights = nn.softmax(jnp.where(mask, scores, -1e9))
        y = jnp.einsum("bhqk,bkhd->bqhd", weights, v)
        x = x + nn.DenseGeneral(WIDTH, axis=(-2, -1), name="o")(y)
        y = nn.LayerNorm(name="ln2")(x)
        y = nn.gelu(nn.Dense(INNER, name="up")(y))
        return x + nn.Dense(WIDTH, name="down")(y)


class Transformer(nn.Module):
    """Embeddings of tokens and positions, blocks, a head."""

    @nn.compact
    def __call__(self, ids: Any) -> Any:
        x = nn.Embed(VOCABULARY, WIDTH, name="wte")(ids)
        x = x + nn.Embed(LENGTH, WIDTH, name="wpe")(jnp.arange(ids.shape[1])[None])
        for i in range(LAYERS):
            x = Block(name=f"h{i}")(x)
        x = nn.LayerNorm(name="ln")(x)
        return nn.Dense(VOCABULARY, use_bias=False, name="head")(x)


MODEL = Transformer()


def abstract(make: Callable[..., Any], *args: Any) -> Any:
    return jax.eval_shape(make, *args)


def parameters() -> Any:
    return abstract(lambda: MODEL.init(jax.random.key(0), jnp.zeros((BATCH, LENGTH), IDS)))


def loss(params: Any, batch: Any) -> Any:
    logits = MODEL.apply(params, batch["ids"])
    found = optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"])
    return jnp.mean(found)


#: Where the parameters of the transformer lie, by the end of their path.
TENSOR_PARALLEL = {
    ("q", "kernel"): P(None, "tp"),
    ("k", "kernel"): P(None, "tp"),
    ("v", "kernel"): P(None, "tp"),
    ("o", "kernel"): P("tp"),
    ("up", "kernel"): P(None, "tp"),
    ("up", "bias"): P("tp"),
    ("down", "kernel"): P("tp"),
    ("wte", "embedding"): P("tp"),
    ("head", "kernel"): P(None, "tp"),
}
FULLY_SHARDED = {
    **TENSOR_PARALLEL,
    ("q", "kernel"): P("dp", "tp"),
    ("k", "kernel"): P("dp", "tp"),
    ("v", "kernel"): P("dp", "tp"),
    ("o", "kernel"): P("tp", None, "dp"),
    ("up", "kernel"): P("dp", "tp"),
    ("down", "kernel"): P("tp", "dp"),
    ("head", "kernel"): P("dp", "tp"),
}


def placed(tree: Any, table: Mapping[tuple[str, str], Any]) -> Any:
    def place(path: Any, _: Any) -> Any:
        keys = [getattr(k, "key", None) or getattr(k, "name", None) for k in path]
        return table.get(tuple(keys[-2:]), P())

    return jax.tree_util.tree_map_with_path(place, tree)


BATCHES = {"ids": S((BATCH, LENGTH), IDS), "labels": S((BATCH, LENGTH), IDS)}
BATCH_AT = {"ids": P("dp"), "labels": P("dp")}


def flax_step(table: Mapping[tuple[str, str], Any]) -> Case:
    params = parameters()
    at = placed(params, table)
    return {
        "step": jax.value_and_grad(loss),
        "args": (params, BATCHES),
        "mesh": MESH,
        "in_shardings": (at, BATCH_AT),
        "out_shardings": (P(), at),
    }


OPTIMIZER = optax.adamw(1e-3, weight_decay=0.1)


def train(params: Any, state: Any, batch: Any) -> Any:
    value, grads = jax.value_and_grad(loss)(params, batch)
    updates, state = OPTIMIZER.update(grads, state, params)
    return optax.apply_updates(params, updates), state, value


def adamw() -> Case:
    params = parameters()
    state = abstract(OPTIMIZER.init, params)
    at, state_at = placed(params, TENSOR_PARALLEL), placed(state, TENSOR_PARALLEL)
    return {
        "step": train,
        "args": (params, state, BATCHES),
        "mesh": MESH,
        "in_shardings": (at, state_at, BATCH_AT),
        "out_shardings": (at, state_at, P()),
    }


# -- layers in a scan --------------------------------------------------------------------------


def scanned(p: Any, x: Any) -> Any:
    @jax.checkpoint
    def layer(x: Any, w: Any) -> Any:
        y = x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * w["norm"]
        return x + jax.nn.silu(y @ w["gate"]) * (y @ w["up"]) @ w["down"], None

    x, _ = lax.scan(layer, x, p)
    return jnp.mean(x**2)


def scan(layers: int = 4) -> Case:
    p = {
        "norm": S((layers, WIDTH), F),
        "gate": S((layers, WIDTH, INNER), F),
        "up": S((layers, WIDTH, INNER), F),
        "down": S((layers, INNER, WIDTH), F),
    }
    columns = P(None, None, "tp")
    at = {"norm": P(), "gate": columns, "up": columns, "down": P(None, "tp")}
    return {
        "step": jax.value_and_grad(scanned),
        "args": (p, S((BATCH, LENGTH, WIDTH), F)),
        "mesh": MESH,
        "in_shardings": (at, P("dp")),
        "out_shardings": (P(), at),
    }


# -- shard_map ---------------------------------------------------------------------------------


WEIGHTS = {"up": S((WIDTH, INNER), F), "down": S((INNER, WIDTH), F)}
WEIGHTS_AT = {"up": P(None, "tp"), "down": P("tp")}
X = S((8, WIDTH), F)


def mlp(p: Any, x: Any) -> Any:
    return jax.nn.gelu(x @ p["up"]) @ p["down"]


def mlp_loss(p: Any, x: Any) -> Any:
    return jnp.sum(mlp(p, x) ** 2)


def forward(reduce: Callable[[Any], Any]) -> Case:
    twin = mapped(lambda p, x: reduce(mlp(p, x)), (WEIGHTS_AT, P("dp")), P("dp"))
    return {"step": mlp, "parallel": twin, "args": (WEIGHTS, X), "mesh": MESH}


def backward(of_weights: Callable[[Any], Any], of_input: Callable[[Any], Any]) -> Case:
    """By hand: the gradients of weights over replicas, that of the input over the columns."""

    def step(p: Any, x: Any, g: Any) -> Any:
        _, pull = jax.vjp(mlp, p, x)
        return pull(g)

    def own(p: Any, x: Any, g: Any) -> Any:
        dp, dx = step(p, x, g)
        return jax.tree.map(of_weights, dp), of_input(dx)

    twin = mapped(own, (WEIGHTS_AT, P("dp"), P("dp")), (WEIGHTS_AT, P("dp")))
    return {"step": step, "parallel": twin, "args": (WEIGHTS, X, X), "mesh": MESH}


def psum(*axes: str) -> Callable[[Any], Any]:
    return lambda x: lax.psum(x, axes)


def ring(steps: int, shift: int = 1) -> Case:
    """x @ w, where the ranks hold rows of w and pass them on."""

    def twin(x: Any, w: Any) -> Any:
        size, rank = w.shape[0], lax.axis_index("tp")
        total = jnp.zeros((x.shape[0], w.shape[1]))
        for i in range(steps):
            at = (rank - i) % 4 * size
            total = total + lax.dynamic_slice_in_dim(x, at, size, 1) @ w
            w = lax.ppermute(w, "tp", [(j, (j + shift) % 4) for j in range(4)])
        return total

    return {
        "step": lambda x, w: x @ w,
        "parallel": mapped(twin, (P(), P("tp")), P()),
        "args": (S((8, WIDTH), F), S((WIDTH, INNER), F)),
        "mesh": {"tp": 4},
    }


def experts() -> Case:
    """Tokens are sorted by expert; ranks hold tokens and experts, and exchange."""

    def single(x: Any, w: Any) -> Any:
        return jax.nn.relu(jnp.einsum("etd,edf->etf", x, w))

    def twin(x: Any, w: Any) -> Any:
        x = lax.all_to_all(x, "tp", 0, 1, tiled=True)
        y = jax.nn.relu(jnp.einsum("etd,edf->etf", x, w))
        return lax.all_to_all(y, "tp", 1, 0, tiled=True)

    return {
        "step": single,
        "parallel": mapped(twin, (P(None, "tp"), P("tp")), P(None, "tp")),
        "args": (S((8, 16, WIDTH), F), S((8, WIDTH, WIDTH), F)),
        "mesh": {"tp": 4},
    }


def vocabulary_loss(x: Any, head: Any, labels: Any) -> Any:
    scores = x @ head
    chosen = jnp.sum(jax.nn.one_hot(labels, scores.shape[-1]) * scores, -1)
    return jnp.mean(jax.nn.logsumexp(scores, -1) - chosen)


def vocabulary(of_sum: str = "tp", of_labels: int = 0) -> Case:
    """The loss over a vocabulary that is divided, and its gradients."""

    def twin(x: Any, head: Any, labels: Any) -> Any:
        def own(x: Any, head: Any) -> Any:
            scores = x @ head
            first = lax.axis_index("tp") * head.shape[1] + of_labels
            top = lax.stop_gradient(lax.pmax(lax.stop_gradient(jnp.max(scores, -1)), "tp"))
            total = lax.psum(jnp.sum(jnp.exp(scores - top[:, None]), -1), of_sum)
            mine = jax.nn.one_hot(labels - first, head.shape[1])
            chosen = lax.psum(jnp.sum(mine * scores, -1), "tp")
            return jnp.mean(jnp.log(total) + top - chosen)

        return own(x, head)

    ins = (P(), P(None, "tp"), P())
    return {
        "step": vocabulary_loss,
        "parallel": mapped(twin, ins, P()),
        "args": (S((8, WIDTH), F), S((WIDTH, VOCABULARY), F), S((8,), IDS)),
        "mesh": MESH,
    }


def vocabulary_gradients() -> Case:
    """The same, by annotations."""
    return {
        "step": jax.value_and_grad(vocabulary_loss, (0, 1)),
        "args": (S((8, WIDTH), F), S((WIDTH, VOCABULARY), F), S((8,), IDS)),
        "mesh": MESH,
        "in_shardings": (P("dp"), P(None, "tp"), P("dp")),
        "out_shardings": (P(), (P("dp"), P(None, "tp"))),
    }


def replicas(reduce: Callable[[Any], Any]) -> Case:
    step = jax.grad(mlp_loss)
    twin = mapped(lambda p, x: jax.tree.map(reduce, step(p, x)), (P(), P("dp")), P())
    return {"step": step, "parallel": twin, "args": (WEIGHTS, X), "mesh": MESH}


RIGHT: dict[str, Callable[[], Case]] = {
    "flax transformer, dp2 tp4": lambda: flax_step(TENSOR_PARALLEL),
    "flax transformer, fsdp2 tp4": lambda: flax_step(FULLY_SHARDED),
    "AdamW with optax": adamw,
    "scan over layers with remat": scan,
    "shard_map, forward": lambda: forward(psum("tp")),
    "shard_map, backward": lambda: backward(psum("dp"), psum("tp")),
    "ring by ppermute": lambda: ring(4),
    "experts by all-to-all": experts,
    "loss over a divided vocabulary": vocabulary,
    "its gradients": vocabulary_gradients,
    "gradients of replicas": lambda: replicas(psum("dp")),
}

WRONG: dict[str, Callable[[], Case]] = {
    "no psum": lambda: forward(lambda y: y),
    "psum over the wrong axis": lambda: forward(psum("dp")),
    "psum twice": lambda: forward(lambda y: lax.psum(lax.psum(y, "tp"), "tp")),
    "a mean for a sum": lambda: forward(lambda y: lax.pmean(y, "tp")),
    "psum of a gradient that is whole": lambda: backward(psum("dp", "tp"), psum("tp")),
    "no psum of the input's gradient": lambda: backward(psum("dp"), lambda g: g),
    "ring in the other direction": lambda: ring(4, 3),
    "ring a step short": lambda: ring(3),
    "sum of exponentials over the wrong axis": lambda: vocabulary("dp"),
    "labels off by one": lambda: vocabulary(of_labels=1),
    "gradients of replicas, a mean": lambda: replicas(lambda g: lax.pmean(g, "dp")),
    "gradients of replicas, none": lambda: replicas(lambda g: g),
}

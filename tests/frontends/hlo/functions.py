"""Functions of JAX that samples are made of; needs jax.

``python -m tests.frontends.hlo.functions FOLDER`` writes the samples again.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

S = jax.ShapeDtypeStruct
F, IDS = jnp.float32, jnp.int32


class Case(NamedTuple):
    """A step, its arguments, a mesh, and either shardings or a shard_map twin."""

    step: Callable[..., Any]
    args: tuple[Any, ...]
    mesh: Mapping[str, int]
    in_shardings: Any = None
    out_shardings: Any = None
    parallel: Callable[..., Any] | None = None


def mapped(f: Callable[..., Any], ins: Any, outs: Any) -> Callable[..., Any]:
    return jax.shard_map(f, in_specs=ins, out_specs=outs, check_vma=False)


def mlp(p: Any, x: Any) -> Any:
    return jnp.mean(jnp.square(jax.nn.gelu(x @ p["a"]) @ p["b"]))


def block(p: Any, x: Any) -> Any:
    """Causal attention, then an MLP."""
    q, k, v = (jnp.einsum("bsd,dhk->bshk", x, p[n]) for n in "qkv")
    scores = jnp.einsum("bqhk,bshk->bhqs", q, k) / 2.0
    seen = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e9), -1)
    mixed = jnp.einsum("bhqs,bshk->bqhk", weights, v)
    x = x + jnp.einsum("bqhk,hkd->bqd", mixed, p["o"])
    return x + jax.nn.gelu(x @ p["a"]) @ p["b"]


def language(p: Any, ids: Any, labels: Any) -> Any:
    """Embedding, one layer, loss over a vocabulary."""
    x = jax.nn.relu(p["e"][ids] @ p["w"])
    scores = jax.nn.log_softmax(x @ p["h"])
    return -jnp.mean(jnp.take_along_axis(scores, labels[..., None], -1))


def scanned(p: Any, x: Any) -> Any:
    @jax.checkpoint
    def layer(x: Any, w: Any) -> Any:
        return jnp.tanh(x @ w["a"]) @ w["b"] + x, None

    return jnp.sum(jnp.square(lax.scan(layer, x, p)[0]))


def ring(x: Any, w: Any) -> Any:
    """x @ w, where the ranks hold rows of w and pass them on."""
    size = w.shape[0]
    rank = lax.axis_index("tp")
    total = jnp.zeros((x.shape[0], w.shape[1]))
    for i in range(4):
        at = (rank - i) % 4 * size
        total = total + lax.dynamic_slice_in_dim(x, at, size, 1) @ w
        w = lax.ppermute(w, "tp", [(j, (j + 1) % 4) for j in range(4)])
    return total


def experts(x: Any, w: Any) -> Any:
    x = lax.all_to_all(x, "tp", 0, 1, tiled=True)
    y = jnp.tanh(jnp.einsum("etd,edf->etf", x, w))
    return lax.all_to_all(y, "tp", 1, 0, tiled=True)


MLP = {"a": S((8, 16), F), "b": S((16, 8), F)}
BLOCK = {
    **dict.fromkeys("qkv", S((8, 4, 4), F)),
    "o": S((4, 4, 8), F),
    "a": S((8, 16), F),
    "b": S((16, 8), F),
}
BLOCK_AT = {
    **dict.fromkeys("qkv", P(None, "tp")),
    "o": P("tp"),
    "a": P(None, "tp"),
    "b": P("tp", None),
}
MLP_FSDP = {"a": P("dp", "tp"), "b": P("tp", "dp")}
MESH = {"dp": 2, "tp": 4}
X = S((4, 8), F)

CASES: Mapping[str, Case] = {
    "mlp": Case(
        jax.value_and_grad(mlp),
        (MLP, X),
        MESH,
        ({"a": P(None, "tp"), "b": P("tp")}, P("dp")),
        (P(), {"a": P(None, "tp"), "b": P("tp")}),
    ),
    "fsdp": Case(jax.value_and_grad(mlp), (MLP, X), MESH, (MLP_FSDP, P("dp")), (P(), MLP_FSDP)),
    "block": Case(
        jax.value_and_grad(lambda p, x: jnp.mean(block(p, x) ** 2)),
        (BLOCK, S((4, 6, 8), F)),
        MESH,
        (BLOCK_AT, P("dp")),
        (P(), BLOCK_AT),
    ),
    "language": Case(
        language,
        (
            {"e": S((32, 8), F), "w": S((8, 8), F), "h": S((8, 32), F)},
            S((4, 6), IDS),
            S((4, 6), IDS),
        ),
        MESH,
        ({"e": P("tp"), "w": P(None, "tp"), "h": P(None, "tp")}, P("dp"), P("dp")),
    ),
    "scanned": Case(
        jax.value_and_grad(scanned),
        ({"a": S((3, 8, 16), F), "b": S((3, 16, 8), F)}, X),
        MESH,
        ({"a": P(None, None, "tp"), "b": P(None, "tp")}, P("dp")),
    ),
    "ring": Case(
        lambda x, w: x @ w,
        (S((4, 16), F), S((16, 8), F)),
        {"tp": 4},
        parallel=mapped(ring, (P(), P("tp")), P()),
    ),
    "experts": Case(
        lambda x, w: jnp.tanh(jnp.einsum("etd,edf->etf", x, w)),
        (S((8, 16, 4), F), S((8, 4, 4), F)),
        {"tp": 4},
        parallel=mapped(experts, (P(None, "tp"), P("tp")), P(None, "tp")),
    ),
}


def write(folder: Path) -> None:
    """All samples, without the places on the machine that made them."""
    from shardproof.frontends.jax.lowering import devices, lowered
    from shardproof.frontends.jax.step import Step

    devices(8)
    for name, case in CASES.items():
        step = Step(
            case.step, case.parallel, case.args, case.mesh, case.in_shardings, case.out_shardings
        )
        found = lowered(step)
        for side in ("single", "parallel"):
            text = re.sub(r'^(\d+) ".*/([^/"]*)"$', r'\1 "\2"', found[side], flags=re.M)
            (folder / f"{name}.{side}.hlo").write_text(text)


if __name__ == "__main__":
    write(Path(sys.argv[1]))

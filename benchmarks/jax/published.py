"""Training steps in the forms in which models are published, placed by the partitioner: linen, nnx,
plain pytrees; optimizers of optax. Written with their wrong twins before any of them was run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from everyday import placed
from flax import linen as nn
from flax import nnx
from jax import lax
from jax.sharding import PartitionSpec as P
from shapes import IDS, Case, F, S


def named(tree: Any, rules: dict[str, P]) -> Any:
    """For every leaf the spec of the last part of its path that ``rules`` names."""

    def spec(path: Any, leaf: Any) -> P:
        names = [str(getattr(k, "key", getattr(k, "name", ""))) for k in path]
        found = [rules[n] for n in reversed(names) if n in rules]
        return found[0] if found and leaf.ndim >= len(found[0]) else P()

    return jax.tree_util.tree_map_with_path(spec, tree)


# -- Mixtral: two experts a token, weights by a softmax over the chosen two ------------------------


class Experts(nn.Module):
    wrong: str
    count: int = 4

    @nn.compact
    def __call__(self, x: Any) -> Any:
        d, f, init = x.shape[-1], 16, nn.initializers.lecun_normal()
        gates = nn.Dense(self.count, use_bias=False, name="gate")(x)
        if self.wrong == "all":
            weights, at = lax.top_k(jax.nn.softmax(gates), 2)
        else:
            best, at = lax.top_k(gates, 2)
            weights = jax.nn.softmax(best)
        mask = jax.nn.one_hot(at, self.count)
        combine = jnp.einsum("btk,btke->bte", weights, mask)
        w1, w3 = (self.param(n, init, (self.count, d, f)) for n in ("w1", "w3"))
        w2 = self.param("w2", init, (self.count, f, d))
        h = nn.silu(jnp.einsum("btd,edf->btef", x, w1)) * jnp.einsum("btd,edf->btef", x, w3)
        out = jnp.einsum("btef,efd,bte->btd", h, w2, combine)
        share = mask.sum(2).mean((0, 1))
        balance = share * nn.softmax(gates).mean((0, 1))
        return out, balance.mean() if self.wrong == "balance" else self.count * balance.sum()


def mixtral(wrong: str = "") -> Case:
    class Model(nn.Module):
        wrong: str

        @nn.compact
        def __call__(self, ids: Any) -> Any:
            x = nn.Embed(24, 8, name="embed")(ids)
            y, extra = Experts(self.wrong, name="moe")(nn.RMSNorm(name="norm")(x))
            return nn.Dense(24, use_bias=False, name="head")(x + y), extra

    def make(wrong: str) -> Callable[..., Any]:
        def loss(p: Any, ids: Any, labels: Any) -> Any:
            logits, extra = Model(wrong).apply(p, ids)
            each = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            return each.mean() + 0.02 * extra

        return jax.value_and_grad(loss)

    ids = S((4, 6), IDS)
    p = jax.eval_shape(Model("").init, jax.random.key(0), jnp.zeros(ids.shape, IDS))
    at = named(p, {"w1": P("ep"), "w3": P("ep"), "w2": P("ep")})
    return placed(
        make,
        wrong,
        args=(p, ids, ids),
        mesh={"dp": 2, "ep": 2},
        in_shardings=(at, P("dp"), P("dp")),
        out_shardings=(P(), at),
    )


# -- a small GPT of nnx: tied embedding, AdamW that decays matrices only, behind clipping ----------


class NanoBlock(nnx.Module):
    def __init__(self, d: int, heads: int, rngs: nnx.Rngs) -> None:
        self.heads = heads
        self.n1, self.n2 = nnx.LayerNorm(d, rngs=rngs), nnx.LayerNorm(d, rngs=rngs)
        self.qkv = nnx.Linear(d, 3 * d, rngs=rngs)
        self.out = nnx.Linear(d, d, rngs=rngs)
        self.up = nnx.Linear(d, 4 * d, rngs=rngs)
        self.down = nnx.Linear(4 * d, d, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        b, t, d = x.shape
        q, k, v = (
            i.reshape(b, t, self.heads, -1) for i in jnp.split(self.qkv(self.n1(x)), 3, axis=-1)
        )
        o = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(o.reshape(b, t, d))
        return x + self.down(jax.nn.gelu(self.up(self.n2(x))))


class Nano(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.wte, self.wpe = nnx.Embed(24, 8, rngs=rngs), nnx.Embed(6, 8, rngs=rngs)
        self.blocks = nnx.List([NanoBlock(8, 2, rngs) for _ in range(2)])
        self.norm = nnx.LayerNorm(8, rngs=rngs)

    def __call__(self, ids: Any) -> Any:
        x = self.wte(ids) + self.wpe(jnp.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.wte.attend(self.norm(x))


def nano(wrong: str = "") -> Case:
    graph, state = nnx.split(nnx.eval_shape(lambda: Nano(nnx.Rngs(0))))
    p = nnx.to_pure_dict(state)

    def optimizer(wrong: str) -> optax.GradientTransformation:
        def matrices(tree: Any) -> Any:
            return jax.tree.map(lambda x: x.ndim > 1 or wrong == "decay", tree)

        rate = optax.warmup_cosine_decay_schedule(0.0, 6e-4, 20, 200, 6e-5)
        return optax.chain(
            optax.clip_by_global_norm(1.0),
            optax.adamw(
                rate,
                b2=0.999 if wrong == "b2" else 0.95,
                weight_decay=0.1,
                mask=matrices,
            ),
        )

    def make(wrong: str) -> Callable[..., Any]:
        def step(p: Any, s: Any, ids: Any) -> Any:
            def loss(p: Any) -> Any:
                own = jax.tree.map(lambda v: v, state)
                nnx.replace_by_pure_dict(own, p)
                logits = nnx.merge(graph, own)(ids[:, :-1])
                return optax.softmax_cross_entropy_with_integer_labels(logits, ids[:, 1:]).mean()

            value, grads = jax.value_and_grad(loss)(p)
            changes, s = optimizer(wrong).update(grads, s, p)
            return optax.apply_updates(p, changes), s, value

        return step

    s = jax.eval_shape(optimizer("").init, p)
    matrix = P("fsdp")
    rules = {"kernel": matrix, "embedding": matrix}
    at, state_at = named(p, rules), named(s, rules)
    return placed(
        make,
        wrong,
        args=(p, s, S((4, 7), IDS)),
        mesh={"fsdp": 2},
        in_shardings=(at, state_at, P("fsdp")),
        out_shardings=(at, state_at, P()),
    )


# -- recommendation: bags of ids are pooled, pairs of features multiplied, Adagrad -----------------


def ratings(wrong: str = "") -> Case:
    rows, d, batch, bag = (8, 6, 10), 4, 8, 3

    def make(wrong: str) -> Callable[..., Any]:
        tx = optax.adagrad(0.05)

        def step(p: Any, s: Any, dense: Any, ids: Any, clicks: Any) -> Any:
            def loss(p: Any) -> Any:
                pool = jnp.sum if wrong == "pooling" else jnp.mean
                own = jax.nn.relu(dense @ p["bottom"]["w"] + p["bottom"]["b"])
                bags = [pool(t[i], axis=1) for t, i in zip(p["tables"], ids, strict=True)]
                features = jnp.stack([own, *bags], axis=1)
                pairs = jnp.einsum("bid,bjd->bij", features, features)
                i, j = jnp.triu_indices(len(rows) + 1, 1)
                h = jnp.concatenate([own, pairs[:, i, j]], axis=-1)
                h = jax.nn.relu(h @ p["top"]["w"] + p["top"]["b"])
                each = optax.sigmoid_binary_cross_entropy((h @ p["last"])[:, 0], clicks)
                return each.sum() if wrong == "sum" else each.mean()

            value, grads = jax.value_and_grad(loss)(p)
            changes, s = tx.update(grads, s, p)
            return optax.apply_updates(p, changes), s, value

        return step

    pairs = (len(rows) + 1) * len(rows) // 2
    p = {
        "tables": [S((r, d), F) for r in rows],
        "bottom": {"w": S((5, d), F), "b": S((d,), F)},
        "top": {"w": S((d + pairs, 8), F), "b": S((8,), F)},
        "last": S((8, 1), F),
    }
    s = jax.eval_shape(optax.adagrad(0.05).init, p)
    at, state_at = named(p, {"tables": P("mp")}), named(s, {"tables": P("mp")})
    ids = [S((batch, bag), IDS) for _ in rows]
    return placed(
        make,
        wrong,
        args=(p, s, S((batch, 5), F), ids, S((batch,), F)),
        mesh={"dp": 2, "mp": 2},
        in_shardings=(at, state_at, P("dp"), [P("dp")] * 3, P("dp")),
        out_shardings=(at, state_at, P()),
    )


# -- diffusion: a U-Net that knows the time, attention in its middle, a moving average -------------


class Block(nn.Module):
    width: int

    @nn.compact
    def __call__(self, x: Any, time: Any) -> Any:
        h = nn.Conv(self.width, (3, 3), name="c1")(nn.silu(nn.GroupNorm(2, name="n1")(x)))
        h = h + nn.Dense(self.width, name="time")(nn.silu(time))[:, None, None]
        h = nn.Conv(self.width, (3, 3), name="c2")(nn.silu(nn.GroupNorm(2, name="n2")(h)))
        return h + (x if x.shape[-1] == self.width else nn.Dense(self.width, name="skip")(x))


class UNet(nn.Module):
    wrong: str

    @nn.compact
    def __call__(self, x: Any, t: Any) -> Any:
        rates = jnp.exp(-jnp.log(10000.0) * jnp.arange(4) / 3)
        angles = t[:, None].astype(F) * rates[None]
        parts = [jnp.sin(angles), jnp.cos(angles)]
        time = jnp.concatenate(parts[::-1] if self.wrong == "time" else parts, -1)
        time = nn.Dense(8, name="t2")(nn.silu(nn.Dense(8, name="t1")(time)))
        first = Block(4, name="down")(nn.Conv(4, (3, 3), name="in")(x), time)
        h = nn.Conv(8, (3, 3), strides=(2, 2), name="smaller")(first)
        b, height, width, c = h.shape
        flat = nn.GroupNorm(2, name="an")(h).reshape(b, height * width, c)
        q, k, v = jnp.split(nn.Dense(3 * c, name="qkv")(flat), 3, axis=-1)
        seen = nn.softmax(jnp.einsum("bqc,bkc->bqk", q, k) / jnp.sqrt(c), axis=-1)
        h = h + nn.Dense(c, name="ao")(seen @ v).reshape(h.shape)
        h = jax.image.resize(h, (b, 2 * height, 2 * width, c), "nearest")
        h = Block(4, name="up")(jnp.concatenate([first, h], -1), time)
        return nn.Conv(x.shape[-1], (3, 3), name="out")(nn.silu(nn.GroupNorm(2, name="n")(h)))


def diffusion(wrong: str = "") -> Case:
    images, t = S((4, 4, 4, 2), F), S((4,), IDS)
    p = jax.eval_shape(
        UNet("").init, jax.random.key(0), jnp.zeros(images.shape), jnp.zeros(t.shape, IDS)
    )
    tx = optax.adam(2e-4)

    def make(wrong: str) -> Callable[..., Any]:
        def step(p: Any, average: Any, s: Any, images: Any, t: Any, noise: Any) -> Any:
            betas = jnp.linspace(1e-4, 0.02, 50)
            kept = jnp.cumprod(1.0 - betas)[t][:, None, None, None]
            mixed = jnp.sqrt(kept) * images + jnp.sqrt(1.0 - kept) * noise

            def loss(p: Any) -> Any:
                return jnp.mean((UNet(wrong).apply(p, mixed, t) - noise) ** 2)  # type: ignore[operator]

            value, grads = jax.value_and_grad(loss)(p)
            changes, s = tx.update(grads, s)
            p = optax.apply_updates(p, changes)
            average = optax.incremental_update(p, average, 0.01 if wrong == "average" else 0.001)
            return p, average, s, value

        return step

    return placed(
        make,
        wrong,
        args=(p, p, jax.eval_shape(tx.init, p), images, t, images),
        mesh={"dp": 2},
        in_shardings=(P(), P(), P(), P("dp"), P("dp"), P("dp")),
        out_shardings=P(),
    )


# -- a residual network: batch norms over the whole batch, max pooling, momentum -------------------


class ResNet(nn.Module):
    wrong: str

    @nn.compact
    def __call__(self, x: Any) -> Any:
        norm = partial(nn.BatchNorm, use_running_average=False, momentum=0.9, epsilon=1e-5)
        x = nn.relu(norm(name="n0")(nn.Conv(4, (3, 3), use_bias=False, name="c0")(x)))
        pool = nn.avg_pool if self.wrong == "pool" else nn.max_pool
        x = pool(x, (2, 2), strides=(2, 2))
        y = nn.relu(norm(name="n1")(nn.Conv(4, (3, 3), use_bias=False, name="c1")(x)))
        y = norm(name="n2")(nn.Conv(4, (3, 3), use_bias=False, name="c2")(y))
        return nn.Dense(3, name="head")(jnp.mean(nn.relu(x + y), (1, 2)))


def resnet(wrong: str = "") -> Case:
    images = S((4, 4, 4, 3), F)
    variables = jax.eval_shape(ResNet("").init, jax.random.key(0), jnp.zeros(images.shape))
    p, stats = variables["params"], variables["batch_stats"]
    tx = optax.sgd(optax.cosine_decay_schedule(0.1, 100), momentum=0.9, nesterov=True)

    def make(wrong: str) -> Callable[..., Any]:
        def step(p: Any, stats: Any, s: Any, images: Any, labels: Any) -> Any:
            def loss(p: Any) -> Any:
                logits, new = ResNet(wrong).apply(
                    {"params": p, "batch_stats": stats}, images, mutable=["batch_stats"]
                )
                each = optax.softmax_cross_entropy(logits, jax.nn.one_hot(labels, 3))
                kernels = [jnp.sum(w**2) for w in jax.tree.leaves(p) if w.ndim > 1]
                decay = (2e-4 if wrong == "decay" else 1e-4) * 0.5 * sum(kernels)
                return each.mean() + decay, new["batch_stats"]

            (value, new), grads = jax.value_and_grad(loss, has_aux=True)(p)
            changes, s = tx.update(grads, s, p)
            return optax.apply_updates(p, changes), new, s, value

        return step

    return placed(
        make,
        wrong,
        args=(p, stats, jax.eval_shape(tx.init, p), images, S((4,), IDS)),
        mesh={"dp": 2},
        in_shardings=(P(), P(), P(), P("dp"), P("dp")),
        out_shardings=P(),
    )


# -- Mistral as a function of one sequence: vmap over the batch, scan with remat, a window ---------


def mistral(wrong: str = "") -> Case:
    d, groups, shared, k, f, vocabulary, layers, length = 16, 2, 2, 4, 16, 24, 2, 6

    def norm(x: Any, g: Any) -> Any:
        return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * g

    def rope(x: Any) -> Any:
        rates = 1.0 / 10000.0 ** (jnp.arange(0, k, 2) / k)
        angles = jnp.arange(length)[:, None] * rates[None]
        sin, cos = jnp.sin(angles), jnp.cos(angles)
        one, two = jnp.split(x, 2, axis=-1)
        return jnp.concatenate([one * cos - two * sin, one * sin + two * cos], -1)

    def layer(wrong: str, x: Any, p: Any) -> Any:
        y = norm(x, p["n1"])
        far = jnp.arange(length)[:, None] - jnp.arange(length)[None]
        seen = (far >= 0) & (far < (4 if wrong == "window" else 3))

        def group(q: Any, key: Any, v: Any) -> Any:
            def head(q: Any) -> Any:
                s = rope(q) @ rope(key).T / jnp.sqrt(k)
                return jax.nn.softmax(jnp.where(seen, s, -1e9), -1) @ v

            return jax.vmap(head)(q)

        q = jnp.einsum("td,dgsk->gstk", y, p["q"])
        key, v = jnp.einsum("td,dgk->gtk", y, p["k"]), jnp.einsum("td,dgk->gtk", y, p["v"])
        x = x + jnp.einsum("gstk,gskd->td", jax.vmap(group)(q, key, v), p["o"])
        y = norm(x, p["n2"])
        return x + (jax.nn.silu(y @ p["w1"]) * (y @ p["w3"])) @ p["w2"], None

    def make(wrong: str) -> Callable[..., Any]:
        def forward(p: Any, ids: Any) -> Any:
            policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
            body = jax.checkpoint(partial(layer, wrong), policy=policy)
            x, _ = lax.scan(body, p["embed"][ids], p["layers"])
            return norm(x, p["norm"]) @ p["head"]

        def loss(p: Any, ids: Any) -> Any:
            logits = jax.vmap(forward, (None, 0))(p, ids[:, :-1])
            z = jax.nn.logsumexp(logits, -1)
            own = jnp.take_along_axis(logits, ids[:, 1:, None], -1)[..., 0]
            return jnp.mean(z - own) + (0.0 if wrong == "z" else 1e-4) * jnp.mean(z**2)

        return jax.value_and_grad(loss)

    sizes = {
        "n1": (d,), "n2": (d,), "q": (d, groups, shared, k), "k": (d, groups, k),
        "v": (d, groups, k), "o": (groups, shared, k, d), "w1": (d, f), "w3": (d, f), "w2": (f, d),
    }  # fmt: skip
    p = {
        "layers": {n: S((layers, *size), F) for n, size in sizes.items()},
        "embed": S((vocabulary, d), F), "norm": S((d,), F), "head": S((d, vocabulary), F),
    }  # fmt: skip
    column, row = P(None, None, "tp"), P(None, "tp")
    rules = {
        "q": column, "k": column, "v": column, "o": row, "w1": column, "w3": column, "w2": row,
        "head": row,
    }  # fmt: skip
    at = named(p, rules)
    return placed(
        make,
        wrong,
        args=(p, S((4, length + 1), IDS)),
        mesh={"dp": 2, "tp": 2},
        in_shardings=(at, P("dp")),
        out_shardings=(P(), at),
    )

"""Models whose rows are divided among devices by hand: each with one row on each of two devices, in
shard_map, beside its gradient on one device.  Written before any of them was run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P
from shapes import IDS, Case, F, S, mapped

DEVICES, D, T, WORDS = 2, 8, 4, 16
Model = Callable[..., Any]


def normed(x: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5)


def attention(p: Any, x: Any, keys: Any = None, mask: Any = None, heads: int = 2) -> Any:
    keys = x if keys is None else keys

    def divided(y: Any) -> Any:
        return y.reshape(*y.shape[:2], heads, D // heads)

    q, k, v = divided(x @ p["q"]), divided(keys @ p["k"]), divided(keys @ p["v"])
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(D // heads)
    if mask is not None:
        scores = jnp.where(mask, scores, -1e9)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v).reshape(x.shape) @ p["o"]


def wide(p: Any, x: Any) -> Any:
    return jax.nn.gelu(x @ p["u"]) @ p["w"]


def block(p: Any, x: Any, mask: Any = None) -> Any:
    x = x + attention(p, normed(x), mask=mask)
    return x + wide(p, normed(x))


def entropy(logits: Any, y: Any) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[..., None], -1).mean()


def causal(n: int) -> Any:
    return jnp.tril(jnp.ones((n, n), bool))


BLOCK = {**{n: S((D, D), F) for n in "qkvo"}, "u": S((D, 16), F), "w": S((16, D), F)}
TABLE = {"e": S((WORDS, D), F), "b": BLOCK}
ROWS, TOKENS, LABELS = S((DEVICES, T, D), F), S((DEVICES, T), IDS), S((DEVICES,), IDS)
#: A model, its parameters and its batch.
MODELS: dict[str, tuple[Model, Any, tuple[Any, ...]]] = {}


def model(parameters: Any, *batch: Any) -> Callable[[Model], Model]:
    def added(f: Model) -> Model:
        MODELS[f.__name__.replace("_", " ")] = f, parameters, batch
        return f

    return added


CLASSES = {"b": BLOCK, "cls": S((1, 1, D), F), "pos": S((T + 1, D), F), "head": S((D, 5), F)}


@model(CLASSES, ROWS, LABELS)
def class_token(p: Any, x: Any, y: Any) -> Any:
    first = jnp.broadcast_to(p["cls"], (x.shape[0], 1, D))
    x = jnp.concatenate([first, x], 1) + p["pos"]
    return entropy(normed(block(p["b"], x))[:, 0] @ p["head"], y)


@model({**TABLE, "pos": S((T, D), F), "pool": S((D, D), F), "head": S((D, 3), F)}, TOKENS, LABELS)
def first_token(p: Any, t: Any, y: Any) -> Any:
    x = block(p["b"], p["e"][t] + p["pos"])
    return entropy(jnp.tanh(x[:, 0] @ p["pool"]) @ p["head"], y)


@model({**TABLE, "pre": S((2, D), F)}, TOKENS)
def prefix(p: Any, t: Any) -> Any:
    first = jnp.broadcast_to(p["pre"], (t.shape[0], 2, D))
    x = block(p["b"], jnp.concatenate([first, p["e"][t]], 1), mask=causal(T + 2))
    return entropy(x[:, 2:-1] @ p["e"].T, t[:, 1:])


@model({"e": TABLE["e"], "enc": BLOCK, "dec": BLOCK, "x": BLOCK}, TOKENS, TOKENS)
def encoder_and_decoder(p: Any, s: Any, t: Any) -> Any:
    h, z = block(p["enc"], p["e"][s]), p["e"][t]
    z = z + attention(p["dec"], normed(z), mask=causal(T))
    z = z + attention(p["x"], normed(z), keys=h)
    z = z + wide(p["dec"], normed(z))
    return entropy(z[:, :-1] @ p["e"].T, t[:, 1:])


@model({"z": S((3, D), F), "b": BLOCK, "head": S((D, 4), F)}, ROWS, LABELS)
def queries(p: Any, x: Any, y: Any) -> Any:
    z = jnp.broadcast_to(p["z"], (x.shape[0], 3, D))
    z = z + attention(p["b"], normed(z), keys=normed(x))
    z = z + wide(p["b"], normed(z))
    return entropy(z.mean(1) @ p["head"], y)


GATES = {"w": S((D, 3 * D), F), "u": S((D, 3 * D), F), "b": S((3 * D,), F), "o": S((D,), F)}


@model(GATES, ROWS, S((DEVICES,), F))
def recurrence(p: Any, x: Any, y: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        a, b = jnp.split(x @ p["w"] + p["b"], 3, -1), jnp.split(h @ p["u"], 3, -1)
        reset, keep = jax.nn.sigmoid(a[0] + b[0]), jax.nn.sigmoid(a[1] + b[1])
        return (1 - keep) * jnp.tanh(a[2] + reset * b[2]) + keep * h, None

    h, _ = lax.scan(step, jnp.zeros((x.shape[0], D)), x.swapaxes(0, 1))
    return jnp.mean((h @ p["o"] - y) ** 2)


@model({"k": S((2, D, D), F), "l": S((2, D, D), F), "o": S((D, 4), F)}, ROWS)
def dilated(p: Any, x: Any) -> Any:
    def past(x: Any, kernel: Any, step: int) -> Any:
        x, names = jnp.pad(x, ((0, 0), (step, 0), (0, 0))), ("NWC", "WIO", "NWC")
        return lax.conv_general_dilated(
            x, kernel, (1,), "VALID", rhs_dilation=(step,), dimension_numbers=names
        )

    h = jnp.tanh(past(x, p["k"], 1))
    h = h + jax.nn.relu(past(h, p["l"], 2))
    return jnp.mean((h[:, :-1] @ p["o"] - x[:, 1:, :4]) ** 2)


@model(TABLE, TOKENS, TOKENS, S((DEVICES,), F), S((DEVICES,), F))
def preferences(p: Any, better: Any, worse: Any, old: Any, old_worse: Any) -> Any:
    def score(t: Any) -> Any:
        logs = jax.nn.log_softmax(block(p["b"], p["e"][t], mask=causal(T))[:, :-1] @ p["e"].T)
        return jnp.take_along_axis(logs, t[:, 1:, None], -1)[..., 0].sum(-1)

    margin = (score(better) - old) - (score(worse) - old_worse)
    return -jax.nn.log_sigmoid(0.1 * margin).mean()


@model({**TABLE, "c": BLOCK, "m": S((2 * D, D), F)}, TOKENS)
def two_words_ahead(p: Any, t: Any) -> Any:
    h = block(p["b"], p["e"][t], mask=causal(T))
    one = entropy(h[:, :-1] @ p["e"].T, t[:, 1:])
    g = jnp.concatenate([normed(h[:, :-1]), normed(p["e"][t[:, 1:]])], -1) @ p["m"]
    g = block(p["c"], g, mask=causal(T - 1))
    return one + 0.3 * entropy(g[:, :-1] @ p["e"].T, t[:, 2:])


@model({"w": S((D, 6), F), "v": S((3, D), F)}, S((DEVICES, D), F), S((DEVICES, 3), F))
def variational(p: Any, x: Any, noise: Any) -> Any:
    mean, log = jnp.split(x @ p["w"], 2, -1)
    far = ((mean + jnp.exp(0.5 * log) * noise) @ p["v"] - x) ** 2
    return (far.sum(-1) - 0.5 * (1 + log - mean**2 - jnp.exp(log)).sum(-1)).mean()


@model({**TABLE, "r": S((D, 1), F)}, TOKENS, S((DEVICES, T), F), S((DEVICES, T), F))
def clipped_policy(p: Any, t: Any, old: Any, gain: Any) -> Any:
    logs = jax.nn.log_softmax(block(p["b"], p["e"][t], mask=causal(T)) @ p["e"].T)
    now = jnp.take_along_axis(logs, t[..., None], -1)[..., 0]
    ratio = jnp.exp(now - old)
    own = jnp.minimum(ratio * gain, jnp.clip(ratio, 0.8, 1.2) * gain)
    return (0.04 * (jnp.exp(old - now) - 1 - (old - now)) - own).mean()


@model({n: S((D, D), F) for n in "qkv"}, ROWS)
def retention(p: Any, x: Any) -> Any:
    q, k, v = x @ p["q"], x @ p["k"], x @ p["v"]
    i = jnp.arange(T)
    fades = jnp.where(i[:, None] >= i, 0.9 ** (i[:, None] - i).astype(F), 0.0)
    o = jnp.einsum("bts,bsd->btd", jnp.einsum("btd,bsd->bts", q, k) * fades, v)
    return ((o * lax.rsqrt((o**2).mean(-1, keepdims=True) + 1e-6) - x) ** 2).mean()


PATCHES = {"p": S((12, D), F), "b": BLOCK, "d": BLOCK, "m": S((D,), F), "o": S((D, 12), F)}


@model(PATCHES, S((DEVICES, 4, 4, 3), F))
def hidden_patches(p: Any, image: Any) -> Any:
    n = image.shape[0]
    x = image.reshape(n, 2, 2, 2, 2, 3).transpose(0, 1, 3, 2, 4, 5).reshape(n, 4, 12)
    h = block(p["b"], x[:, :2] @ p["p"])
    z = jnp.concatenate([h, jnp.broadcast_to(p["m"], (n, 2, D))], 1)
    return (((block(p["d"], z) @ p["o"])[:, 2:] - x[:, 2:]) ** 2).mean()


@model({**TABLE, "im": S((6, D), F)}, S((DEVICES, 3, 6), F), TOKENS)
def image_before_text(p: Any, image: Any, t: Any) -> Any:
    i = jnp.arange(T + 3)
    mask = (i[:, None] >= i) | ((i[:, None] < 3) & (i < 3))
    x = block(p["b"], jnp.concatenate([image @ p["im"], p["e"][t]], 1), mask=mask)
    return entropy(x[:, 3:-1] @ p["e"].T, t[:, 1:])


@model({**TABLE, "w": S((D, D), F)}, TOKENS, TOKENS)
def two_towers(p: Any, a: Any, b: Any) -> Any:
    def tower(t: Any) -> Any:
        v = block(p["b"], p["e"][t]).mean(1) @ p["w"]
        return v / jnp.linalg.norm(v, axis=-1, keepdims=True)

    return (1 - (tower(a) * tower(b)).sum(-1)).mean()


def case(name: str, wrong: str) -> Case:
    """A model, and its twin of which each device has its rows; ``wrong``: gradients that nobody
    adds up, or rows of the first device in all but the first tensor."""
    f, parameters, batch = MODELS[name]

    def step(p: Any, *rows: Any) -> Any:
        return jax.value_and_grad(f)(p, *rows)

    def local(p: Any, *rows: Any) -> Any:
        if wrong == "rows":
            kept = rows[:1] if len(rows) > 1 else ()
            first = [lax.all_gather(x, "dp", tiled=True)[: len(x)] for x in rows[len(kept) :]]
            rows = (*kept, *first)
        loss, gradients = step(p, *rows)
        mean = partial(lax.pmean, axis_name="dp")
        return mean(loss), gradients if wrong == "not reduced" else mean(gradients)

    twin = mapped(local, (P(), *[P("dp")] * len(batch)), P())
    return {
        "step": step,
        "parallel": twin,
        "mesh": {"dp": DEVICES},
        "args": (parameters, *batch),
    }


RIGHT: Mapping[str, Callable[[], Case]] = {name: partial(case, name, "") for name in MODELS}
WRONG: Mapping[str, Callable[[], Case]] = {
    f"{name}, {wrong}": partial(case, name, wrong)
    for name in MODELS
    for wrong in ("not reduced", "rows")
}

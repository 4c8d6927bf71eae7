"""Losses as papers have them, their rows divided among devices by hand: two rows on each of two, in
shard_map, beside gradients on one device.  Written before any of them was run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P
from shapes import IDS, Case, F, S, mapped

DEVICES, N, D, H = 2, 4, 6, 5
Model = Callable[..., Any]
MODELS: dict[str, tuple[Model, Any, tuple[Any, ...]]] = {}
ROWS, LABELS = S((N, D), F), S((N,), IDS)
NET = {"a": S((D, H), F), "b": S((H,), F), "c": S((H, D), F)}
CLASSIFIER = {"a": S((D, H), F), "b": S((H,), F), "c": S((H, 3), F)}


def model(parameters: Any, *batch: Any) -> Callable[[Model], Model]:
    def added(f: Model) -> Model:
        MODELS[f.__name__.replace("_", " ")] = f, parameters, batch
        return f

    return added


def net(p: Any, x: Any) -> Any:
    return jax.nn.silu(x @ p["a"] + p["b"]) @ p["c"]


def chosen(z: Any, y: Any) -> Any:
    return jnp.take_along_axis(z, y[:, None], -1)[:, 0]


@model(CLASSIFIER, ROWS, LABELS)
def focal(p: Any, x: Any, y: Any) -> Any:
    log = chosen(jax.nn.log_softmax(net(p, x)), y)
    return -((1 - jnp.exp(log)) ** 2 * log).mean()


@model(CLASSIFIER, ROWS, LABELS)
def poly(p: Any, x: Any, y: Any) -> Any:
    log = chosen(jax.nn.log_softmax(net(p, x)), y)
    return (-log + 0.5 * (1 - jnp.exp(log))).mean()


@model(CLASSIFIER, ROWS, LABELS)
def hinge(p: Any, x: Any, y: Any) -> Any:
    z = net(p, x)
    other = jax.nn.one_hot(y, 3) * -1e4
    return jax.nn.relu(1 + (z + other).max(-1) - chosen(z, y)).mean()


@model(NET, ROWS, ROWS)
def huber(p: Any, x: Any, y: Any) -> Any:
    d = jnp.abs(net(p, x) - y)
    return jnp.where(d < 1, 0.5 * d**2, d - 0.5).mean()


@model(NET, ROWS, ROWS)
def cosine(p: Any, x: Any, y: Any) -> Any:
    z = net(p, x)
    norms = jnp.linalg.norm(z, axis=-1) * jnp.linalg.norm(y, axis=-1)
    return (1 - (z * y).sum(-1) / norms).mean()


@model(NET, ROWS, ROWS, ROWS)
def triplet(p: Any, x: Any, near: Any, far: Any) -> Any:
    def apart(u: Any, v: Any) -> Any:
        return jnp.sqrt(((u - v) ** 2).sum(-1) + 1e-6)

    z, u, v = (net(p, t) for t in (x, near, far))
    return jax.nn.relu(apart(z, u) - apart(z, v) + 0.2).mean()


@model({"old": CLASSIFIER, "new": CLASSIFIER}, ROWS, LABELS)
def distilled(p: Any, x: Any, y: Any) -> Any:
    t = jax.nn.log_softmax(lax.stop_gradient(net(p["old"], x)) / 2)
    z = net(p["new"], x)
    s = jax.nn.log_softmax(z / 2)
    kl = (jnp.exp(t) * (t - s)).sum(-1).mean() * 4
    return 0.5 * kl - 0.5 * chosen(jax.nn.log_softmax(z), y).mean()


@model({"q": CLASSIFIER, "target": CLASSIFIER}, ROWS, LABELS, S((N,), F), ROWS)
def double_q(p: Any, x: Any, a: Any, r: Any, after: Any) -> Any:
    best = jnp.argmax(net(p["q"], after), -1)
    goal = r + 0.9 * chosen(net(p["target"], after), best)
    return jnp.square(chosen(net(p["q"], x), a) - lax.stop_gradient(goal)).mean()


@model(CLASSIFIER, ROWS, LABELS, S((N,), F), S((N,), F))
def clipped_policy(p: Any, x: Any, a: Any, old: Any, gain: Any) -> Any:
    log = jax.nn.log_softmax(net(p, x))
    ratio = jnp.exp(chosen(log, a) - old)
    gained = jnp.minimum(ratio * gain, jnp.clip(ratio, 0.8, 1.2) * gain).mean()
    return -gained - 0.01 * -(jnp.exp(log) * log).sum(-1).mean()


@model({"mean": NET, "log": S((D,), F)}, ROWS, ROWS)
def gaussian_policy(p: Any, x: Any, a: Any) -> Any:
    mean, log = net(p["mean"], x), jnp.clip(p["log"], -5, 2)
    return (0.5 * ((a - mean) * jnp.exp(-log)) ** 2 + log).sum(-1).mean()


@model({"s": NET, "t": NET}, ROWS)
def coupling_flow(p: Any, x: Any) -> Any:
    mask = jnp.arange(D) % 2
    s = jnp.tanh(net(p["s"], x * mask)) * (1 - mask)
    z = x * jnp.exp(s) + net(p["t"], x * mask) * (1 - mask)
    return (0.5 * (z**2).sum(-1) - s.sum(-1)).mean()


@model(NET, ROWS, ROWS)
def neural_ode(p: Any, x: Any, y: Any) -> Any:
    def step(z: Any, _: Any) -> Any:
        h = 0.25
        k1 = net(p, z)
        k2 = net(p, z + h / 2 * k1)
        return z + h * k2, None

    z, _ = lax.scan(step, x, None, length=3)
    return ((z - y) ** 2).mean()


@model(NET, ROWS, ROWS)
def quantized_weights(p: Any, x: Any, y: Any) -> Any:
    def rounded(w: Any) -> Any:
        scale = jnp.abs(w).max() / 127
        q = jnp.clip(jnp.round(w / scale), -127, 127) * scale
        return w + lax.stop_gradient(q - w)

    return ((net({**p, "a": rounded(p["a"]), "c": rounded(p["c"])}, x) - y) ** 2).mean()


@model({"e": NET, "d": NET, "book": S((7, D), F)}, ROWS)
def vector_quantized(p: Any, x: Any) -> Any:
    z = net(p["e"], x)
    far = ((z[:, None] - p["book"][None]) ** 2).sum(-1)
    q = p["book"][jnp.argmin(far, -1)]
    straight = z + lax.stop_gradient(q - z)
    loss = ((net(p["d"], straight) - x) ** 2).mean()
    kept = ((lax.stop_gradient(q) - z) ** 2).mean()
    return loss + ((q - lax.stop_gradient(z)) ** 2).mean() + 0.25 * kept


@model({"w": S((D, H), F), "v": S((H, 1), F)}, ROWS, ROWS)
def gradient_penalty(p: Any, real: Any, fake: Any) -> Any:
    def critic(x: Any) -> Any:
        return (jnp.tanh(x @ p["w"]) @ p["v"])[..., 0]

    slope = jax.vmap(jax.grad(critic))(0.5 * real + 0.5 * fake)
    size = jnp.sqrt((slope**2).sum(-1) + 1e-8)
    return (critic(fake) - critic(real)).mean() + 10 * ((size - 1) ** 2).mean()


@model(NET, S((N, 3, D), F), S((N, 3, D), F))
def inner_steps(p: Any, x: Any, y: Any) -> Any:
    def loss(p: Any, x: Any, y: Any) -> Any:
        return ((net(p, x) - y) ** 2).mean()

    def task(x: Any, y: Any) -> Any:
        g = jax.grad(loss)(p, x[:2], y[:2])
        return loss(jax.tree.map(lambda w, d: w - 0.1 * d, p, g), x[2:], y[2:])

    return jax.vmap(task)(x, y).mean()


@model({"c": S((3, D), F), "w": S((D, D), F)}, ROWS)
def prototypes(p: Any, x: Any) -> Any:
    z = x @ p["w"]
    far = ((z[:, None] - p["c"]) ** 2).sum(-1)
    soft = jax.nn.softmax(-far, -1)
    return (soft * far).sum(-1).mean()


@model({"e": S((9, D), F), "f": S((9, D), F)}, S((N, 3), IDS), S((N,), IDS))
def skip_gram(p: Any, near: Any, centre: Any) -> Any:
    scores = jnp.einsum("nd,nkd->nk", p["e"][centre], p["f"][near])
    return -jax.nn.log_sigmoid(scores).sum(-1).mean()


@model({"u": S((9, D), F), "i": S((7, D), F), "b": S((7,), F)}, LABELS, LABELS, LABELS)
def ranked_pairs(p: Any, user: Any, good: Any, bad: Any) -> Any:
    def score(item: Any) -> Any:
        return (p["u"][user] * p["i"][item]).sum(-1) + p["b"][item]

    return jax.nn.softplus(score(bad) - score(good)).mean()


@model({"x": S((D, H), F), "h": S((H, H), F), "o": S((H, 3), F)}, S((N, 4, D), F), S((N, 4), IDS))
def tagged_sequence(p: Any, x: Any, y: Any) -> Any:
    def step(h: Any, u: Any) -> Any:
        h = jnp.tanh(u @ p["x"] + h @ p["h"])
        return h, h

    _, hs = lax.scan(step, jnp.zeros((x.shape[0], H)), x.swapaxes(0, 1))
    log = jax.nn.log_softmax(hs.swapaxes(0, 1) @ p["o"])
    return -jnp.take_along_axis(log, y[..., None], -1).mean()


@model({"w": S((D, 4), F)}, ROWS, S((N, 2), F))
def mixture_density(p: Any, x: Any, y: Any) -> Any:
    z = (x @ p["w"]).reshape(-1, 2, 2)
    log = jax.nn.log_softmax(z[..., 0], -1)
    each = -0.5 * ((y - z[..., 1]) ** 2) - 0.5 * jnp.log(2 * jnp.pi)
    return -jax.nn.logsumexp(log + each, -1).mean()


@model(NET, ROWS, ROWS)
def evidential(p: Any, x: Any, y: Any) -> Any:
    z = net(p, x)
    variance = jax.nn.softplus(z[:, 3:]) + 1e-3
    return (jnp.log(variance) + (z[:, :3] - y[:, :3]) ** 2 / variance).mean()


@model({"q": S((D, H), F), "k": S((D, H), F), "v": S((D, H), F)}, S((N, 4, D), F))
def gated_linear_attention(p: Any, x: Any) -> Any:
    q, k, v = jax.nn.elu(x @ p["q"]) + 1, jax.nn.elu(x @ p["k"]) + 1, x @ p["v"]
    s = jnp.einsum("bqh,bkh->bqk", q, k) * jnp.tril(jnp.ones((4, 4)))
    out = jnp.einsum("bqk,bkh->bqh", s, v) / (s.sum(-1, keepdims=True) + 1e-6)
    return (out**2).mean()


def case(name: str, wrong: str) -> Case:
    """A model, and its twin of which each device has its rows, as in `rows`."""
    f, parameters, batch = MODELS[name]

    def step(p: Any, *given: Any) -> Any:
        return jax.value_and_grad(f)(p, *given)

    def local(p: Any, *given: Any) -> Any:
        if wrong == "rows" and len(given) > 1:
            first = [lax.all_gather(x, "dp", tiled=True)[: len(x)] for x in given[1:]]
            given = (given[0], *first)
        loss, gradients = step(p, *given)
        mean = partial(lax.pmean, axis_name="dp")
        how = {"not reduced": lambda g: g, "sum": partial(lax.psum, axis_name="dp")}
        return mean(loss), how.get(wrong, mean)(gradients)

    return {
        "step": step,
        "parallel": mapped(local, (P(), *[P("dp")] * len(batch)), P()),
        "mesh": {"dp": DEVICES},
        "args": (parameters, *batch),
    }


RIGHT: Mapping[str, Callable[[], Case]] = {name: partial(case, name, "") for name in MODELS}
WRONG: Mapping[str, Callable[[], Case]] = {
    f"{name}, {wrong}": partial(case, name, wrong)
    for name, (_, _, batch) in MODELS.items()
    for wrong in ("not reduced", "sum", *(["rows"] if len(batch) > 1 else []))
}

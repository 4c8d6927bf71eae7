"""Recorded operators run by NumPy on all ranks in lock-step: a judge that reads no declaration."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from shardproof.frontends.graphs.graph import PerRank
from shardproof.frontends.graphs.recorder import GROUP, PAIRS, Recorded, Recorder

Array = Any


def _digamma(x: Array) -> Array:
    import torch

    return torch.digamma(torch.tensor(x)).numpy()


UNARY: Mapping[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "sin": np.sin,
    "cos": np.cos,
    "erf": np.vectorize(math.erf),
    "lgamma": np.vectorize(math.lgamma),
    "digamma": _digamma,
    "step": lambda x: (x > 0).astype(float),
    "identity": lambda x: x,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": np.rint,
    "atan": np.arctan,
    "abs": np.abs,
}
BINARY: Mapping[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
}


def run(recorder: Recorder, inputs: Sequence[Sequence[Array]], outputs: Sequence[int]) -> Any:
    """Outputs of every rank for the inputs of every rank (those that are held, in order)."""
    held = [
        {h.value: np.asarray(x, dtype=float) for h, x in zip(recorder.placed, own, strict=True)}
        for own in _sent(recorder, inputs)
    ]
    for constant in recorder.constants:
        for rank, values in enumerate(held):
            own = constant.arrays[rank if len(constant.arrays) > 1 else 0]
            values[constant.value] = own.astype(float)
    for op in recorder.ops:
        if GROUP in op.attrs or PAIRS in op.attrs:
            _joined(op, held)
            continue
        for rank, values in enumerate(held):
            attrs = {
                k: v.values[rank] if isinstance(v, PerRank) else v for k, v in op.attrs.items()
            }
            if op.name == "topk":
                results = _topk(values[op.inputs[0]], attrs)
                values.update(zip(op.outputs, results, strict=True))
                continue
            if " of HLO (" in op.name:
                # A refused operator is no number: no output depends on it.
                values |= {o: np.full(recorder.shape(o), np.nan) for o in op.outputs}
                continue
            result = _local(op.name, [values[v] for v in op.inputs], attrs)
            assert result.shape == recorder.shape(op.outputs[0]), op
            values[op.outputs[0]] = result
    return [[values[o] for o in outputs] for values in held]


def _sent(recorder: Recorder, inputs: Sequence[Sequence[Array]]) -> list[list[Array]]:
    """The inputs of every rank, beside those that are what another rank has of one."""
    whole = [list(own) for own in inputs]
    for h in recorder.placed[len(inputs[0]) :]:
        _, origin, pairs = next(k for k, v in recorder._same.items() if v == h.value)
        at = next(n for n, p in enumerate(recorder.placed) if p.value == origin)
        source = {to: own for own, to in pairs}
        sent = [whole[source[rank]][at] for rank in range(len(inputs))]
        for own, x in zip(whole, sent, strict=True):
            own.append(x)
    return whole


def _topk(x: Array, attrs: Mapping[str, Any]) -> tuple[Array, Array]:
    order = np.argsort(-x if attrs["largest"] else x, axis=attrs["dim"], kind="stable")
    places = order.take(range(attrs["topk"]), axis=attrs["dim"])
    return np.take_along_axis(x, places, axis=attrs["dim"]), places.astype(float)


def _slice(x: Array, attrs: Mapping[str, Any]) -> Array:
    at = attrs["start"]
    return x.take(range(at, at + attrs["size"]), axis=attrs["dim"])


def _causal(x: Array) -> Array:
    count = x.shape[1]
    return np.triu(np.full((count, count), -np.inf), 1).reshape(1, 1, count, count)


def _onehot(x: Array, attrs: Mapping[str, Any]) -> Array:
    return (x[..., None] == attrs["start"] + np.arange(attrs["size"])).astype(float)


OTHERS: Mapping[str, Callable[[Sequence[Array], Mapping[str, Any]], Array]] = {
    "full": lambda xs, a: np.full(a["size"], float(a["value"])),
    "pow": lambda xs, a: xs[0] ** float(a["exponent"]),
    "view": lambda xs, a: xs[0].reshape(a["size"]),
    "permute": lambda xs, a: xs[0].transpose(a["dims"]),
    "expand": lambda xs, a: np.broadcast_to(xs[0], a["size"]),
    "slice": lambda xs, a: _slice(xs[0], a),
    "concat": lambda xs, a: np.concatenate(xs, axis=a["dim"]),
    "sum": lambda xs, a: xs[0].sum(axis=tuple(a["dim"])),
    "amax": lambda xs, a: xs[0].max(axis=tuple(a["dim"])),
    "tril": lambda xs, a: np.tril(xs[0]),
    "einsum": lambda xs, a: np.einsum(a["equation"], *xs),
    "onehot": lambda xs, a: _onehot(xs[0], a),
    "create_mask": lambda xs, a: _causal(xs[0]),
    "apply_mask": lambda xs, a: xs[0] + xs[1],
}


def _local(name: str, xs: Sequence[Array], attrs: Mapping[str, Any]) -> Array:
    if name in UNARY:
        return UNARY[name](xs[0])
    if name in BINARY:
        return BINARY[name](xs[0], xs[1] if len(xs) > 1 else float(attrs["other"]))
    return OTHERS[name](xs, attrs)


def _joined(op: Recorded, held: Sequence[dict[int, Array]]) -> None:
    (x,), (y,) = op.inputs, op.outputs
    given = [values[x] for values in held]
    if PAIRS in op.attrs:
        for rank, values in enumerate(held):
            sources = [a for a, b in op.attrs[PAIRS] if b == rank]
            values[y] = given[sources[0]] if sources else np.zeros_like(given[rank])
        return
    for group in op.attrs[GROUP]:
        parts = [given[rank] for rank in group]
        for place, rank in enumerate(group):
            held[rank][y] = _member(op, parts, place)


def _member(op: Recorded, parts: Sequence[Array], place: int) -> Array:
    match op.name:
        case "all_reduce":
            how = np.add.reduce if op.attrs["op"] == "sum" else np.maximum.reduce
            return how(np.stack(parts), axis=0)
        case "all_gather":
            return np.concatenate(parts, axis=op.attrs["dim"])
        case "reduce_scatter":
            return np.split(sum(parts), len(parts), axis=op.attrs["dim"])[place]
        case "all_to_all":
            cut = [np.split(p, len(parts), axis=op.attrs["split_dim"])[place] for p in parts]
            return np.concatenate(cut, axis=op.attrs["concat_dim"])
    raise AssertionError(op.name)

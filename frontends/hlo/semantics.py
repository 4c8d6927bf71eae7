"""What operators of HLO compute, in NumPy, on the tensors of one rank; from XLA's documentation.

Used twice: integers and predicates that are known are folded by it while calls are inlined, and
`evaluate` runs whole graphs with it.  Indices clamp in gathers and dynamic slices and drop what is
out of bounds in scatters, as XLA says.  Floats are computed in the type that the caller gives, and
a conversion between floats rounds nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from shardproof.engine.errors import InvalidInput, Unsupported
from shardproof.engine.interpreters import gamma
from shardproof.frontends.hlo import erf_inv, shifts, tables
from shardproof.frontends.hlo.module import Array
from shardproof.frontends.hlo.quotients import divided, remainder

Attrs = Mapping[str, Any]
Operation = Callable[[Sequence[Any], Attrs, tuple[int, ...]], Any]

_erf, _erfc = np.frompyfunc(math.erf, 1, 1), np.frompyfunc(math.erfc, 1, 1)
_lgamma, _digamma = gamma.each(gamma.lgamma), gamma.each(gamma.digamma)

_UNARY: Mapping[str, Callable[[Any], Any]] = {
    "abs": np.abs,
    "negate": np.negative,
    "exponential": np.exp,
    "log": np.log,
    "logistic": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sqrt": np.sqrt,
    "cbrt": np.cbrt,
    "sine": np.sin,
    "cosine": np.cos,
    "sign": np.sign,
    "floor": np.floor,
    "ceil": np.ceil,
    "not": np.invert,
    "exponential-minus-one": np.expm1,
    "log-plus-one": np.log1p,
    "is-finite": np.isfinite,
    "erf": lambda x: np.asarray(_erf(x), dtype=np.asarray(x).dtype),
    "erfc": lambda x: np.asarray(_erfc(x), dtype=np.asarray(x).dtype),
    "lgamma": lambda x: np.asarray(_lgamma(x), dtype=np.asarray(x).dtype),
    "digamma": lambda x: np.asarray(_digamma(x), dtype=np.asarray(x).dtype),
    "erf-inv": erf_inv.value,
    "tan": np.tan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asin": np.arcsin,
    "atan": np.arctan,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "round-nearest-even": np.rint,
    "round-nearest-afz": lambda x: np.where(x < 0, np.ceil(x - 0.5), np.floor(x + 0.5)),
    "copy": lambda x: x,
    "opt-barrier": lambda x: x,
}
_BINARY: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: np.logical_or(x, y) if np.asarray(x).dtype == bool else np.add(x, y),
    "subtract": np.subtract,
    "multiply": lambda x, y: (
        np.logical_and(x, y) if np.asarray(x).dtype == bool else np.multiply(x, y)
    ),
    "divide": divided,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "power": np.power,
    "remainder": remainder,
    "atan2": np.arctan2,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shift-left": lambda x, y: shifts.logical(np.left_shift, x, y),
    "shift-right-logical": lambda x, y: shifts.logical(np.right_shift, x, y),
    "shift-right-arithmetic": shifts.arithmetic,
}
_COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}
#: Reductions by the operator of their computation, with its neutral element.
REDUCTIONS: Mapping[str, tuple[Callable[..., Any], Any]] = {
    "add": (np.add.reduce, 0),
    "multiply": (np.multiply.reduce, 1),
    "maximum": (np.maximum.reduce, -math.inf),
    "minimum": (np.minimum.reduce, math.inf),
    "and": (np.logical_and.reduce, True),
    "or": (np.logical_or.reduce, False),
}


def apply(opcode: str, attrs: Attrs, xs: Sequence[Array], shape: tuple[int, ...]) -> Array:
    """The result, of shape ``shape``, of an operator on NumPy arrays; raises `Unsupported` for an
    operator without a rule here, `InvalidInput` for one that does not fit its operands.

    Example: ``remainder`` of [-7, 7] by 3 is [-1, 1], and ``divide`` of them by 2 is [-3, 3].
    """
    try:
        if opcode in _UNARY:
            return np.asarray(_UNARY[opcode](xs[0]))
        if opcode in _BINARY:
            return np.asarray(_BINARY[opcode](xs[0], xs[1]))
        if opcode in _OTHERS:
            return np.asarray(_OTHERS[opcode](xs, attrs, shape))
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise InvalidInput(f"operator {opcode} does not fit its operands: {error}") from error
    raise Unsupported(f"operator {opcode} has no rule in NumPy")


def several(
    opcode: str, attrs: Attrs, xs: Sequence[Array], shapes: Sequence[tuple[int, ...]]
) -> tuple[Array, ...]:
    """The results of an operator on NumPy arrays that has several.

    Example: ``topk`` of [3, 9, 5] with ``k`` 2 is [9, 5] and [1, 2].
    """
    if opcode == "topk":
        return _largest(xs[0], attrs["k"], -1, attrs.get("largest", "true") == "true")
    if opcode == "sort":
        return _sorted(xs, attrs)
    if opcode == "reduce" and attrs["to_apply"] in ("argmax", "argmin"):
        return _extreme(xs, attrs)
    return (apply(opcode, attrs, xs, shapes[0]),)


def _largest(x: Any, count: int, dim: int, largest: bool) -> tuple[Array, ...]:
    """The largest (smallest) entries in order, and where they are; of equal ones the first."""
    order = np.argsort(_falling(x) if largest else x, axis=dim, kind="stable")
    place: Any = np.take(order, np.arange(count), axis=dim)
    return np.take_along_axis(x, place, axis=dim), place.astype("int32")


def _falling(x: Any) -> Any:
    """Numbers in the opposite order: bits turned, of what has no number below zero, or one more."""
    return -x if np.issubdtype(x.dtype, np.floating) else ~x


def _sorted(xs: Sequence[Any], attrs: Attrs) -> tuple[Array, ...]:
    (dim,) = attrs["dimensions"]
    key = xs[attrs["key"]]
    place: Any = _largest(key, key.shape[dim], dim, attrs["falling"])[1]
    return tuple(np.take_along_axis(x, place, axis=dim) for x in xs)


def _extreme(xs: Sequence[Any], attrs: Attrs) -> tuple[Array, ...]:
    """Larger (smaller) numbers with their places; of equal ones the first place."""
    (dim,) = attrs["dimensions"]
    largest = attrs["to_apply"] == "argmax"
    order = np.lexsort((xs[1], _falling(xs[0]) if largest else xs[0]), axis=dim)
    first: Any = np.take(order, [0], axis=dim)
    results = [np.take_along_axis(x, first, axis=dim).squeeze(dim) for x in xs[:2]]
    start = xs[2]
    if np.any(results[0] < start if largest else results[0] > start):
        raise Unsupported(f"an {attrs['to_apply']} that begins with {start}")
    return tuple(results)


def _compare(xs: Sequence[Any], attrs: Attrs, shape: tuple[int, ...]) -> Any:
    if attrs.get("direction") not in _COMPARE or attrs.get("type") == "TOTALORDER":
        raise Unsupported(f"compare with direction {attrs.get('direction')} {attrs.get('type')}")
    return _COMPARE[attrs["direction"]](xs[0], xs[1])


def _broadcast(xs: Sequence[Any], attrs: Attrs, shape: tuple[int, ...]) -> Any:
    """Operand dimension i is dimension ``dimensions[i]`` of the result."""
    dims = attrs.get("dimensions", ())
    order = sorted(range(len(dims)), key=lambda i: dims[i])
    wide = [1] * len(shape)
    for i in order:
        wide[dims[i]] = xs[0].shape[i]
    return np.broadcast_to(xs[0].transpose(order).reshape(wide), shape)


def _pad(xs: Sequence[Any], attrs: Attrs, shape: tuple[int, ...]) -> Any:
    result = np.full(shape, xs[1], dtype=xs[0].dtype)
    source, target = [], []
    for n, m, (low, _, interior) in zip(xs[0].shape, shape, attrs["padding"], strict=True):
        at = [(low + i * (interior + 1), i) for i in range(n)]
        kept = [(to, i) for to, i in at if 0 <= to < m]
        target.append([to for to, _ in kept])
        source.append([i for _, i in kept])
    result[np.ix_(*target)] = xs[0][np.ix_(*source)]
    return result


def starts(given: Sequence[Any], full: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Where a dynamic slice begins: clamped so that it lies inside.

    Example: a slice of two from 7 on among eight positions begins at 6.
    """
    return [min(max(int(s), 0), n - size) for s, n, size in zip(given, full, sizes, strict=True)]


def _dynamic_slice(xs: Sequence[Any], attrs: Attrs, shape: tuple[int, ...]) -> Any:
    at = starts([np.asarray(s).item() for s in xs[1:]], xs[0].shape, shape)
    return xs[0][tuple(slice(s, s + n) for s, n in zip(at, shape, strict=True))]


def _dynamic_update(xs: Sequence[Any], attrs: Attrs, shape: tuple[int, ...]) -> Any:
    size = xs[1].shape
    at = starts([np.asarray(s).item() for s in xs[2:]], shape, size)
    result = np.array(xs[0])
    result[tuple(slice(s, s + n) for s, n in zip(at, size, strict=True))] = xs[1]
    return result


def _dot(xs: Sequence[Any], attrs: Attrs, shape: tuple[int, ...]) -> Any:
    equation = dot_equation(attrs, xs[0].ndim, xs[1].ndim)
    return np.einsum(equation, *map(_wide, xs))


def _wide(x: Any) -> Any:
    """Integers in 64 bits, since a product may have more bits than its operands."""
    return x.astype(np.int64) if np.issubdtype(x.dtype, np.integer) else x


def dot_equation(attrs: Attrs, left: int, right: int) -> str:
    """The contraction of a ``dot`` as einsum writes it: batch dimensions, then left ones, then
    right ones.

    Example: batch dimensions 0 and contracting dimensions 2 of two ``[b, s, d]`` are
    ``abc,adc->abd``.
    """
    names = iter("abcdefghijklmnopqrstuvwx")
    x, y = [next(names) for _ in range(left)], [""] * right
    batch = attrs.get("lhs_batch_dims", ()), attrs.get("rhs_batch_dims", ())
    contract = attrs.get("lhs_contracting_dims", ()), attrs.get("rhs_contracting_dims", ())
    for i, j in (*zip(*batch, strict=True), *zip(*contract, strict=True)):
        y[j] = x[i]
    y = [name or next(names) for name in y]
    free = [x[i] for i in range(left) if i not in batch[0] and i not in contract[0]]
    other = [y[j] for j in range(right) if j not in batch[1] and j not in contract[1]]
    return f"{''.join(x)},{''.join(y)}->{''.join([*(x[i] for i in batch[0]), *free, *other])}"


def _reduce(xs: Sequence[Any], attrs: Attrs, shape: tuple[int, ...]) -> Any:
    function, _ = REDUCTIONS[attrs["to_apply"]]
    dims = attrs.get("dimensions", ())
    whole = function(xs[0], axis=tuple(dims)) if dims else xs[0]
    return apply(attrs["to_apply"], {}, [np.asarray(whole), np.asarray(xs[1])], shape)


def _places(indices: Any, vector: int) -> Any:
    """Index vectors last, with a dimension of one where they are scalars."""
    return (
        np.expand_dims(indices, -1) if vector == indices.ndim else np.moveaxis(indices, vector, -1)
    )


def _reduce_window(xs: Sequence[Any], attrs: Attrs, shape: tuple[int, ...]) -> Any:
    """Of every window of positions; what lies beside them counts for nothing."""
    function, neutral = REDUCTIONS[attrs["to_apply"]]
    x = np.asarray(xs[0])
    for d, (taps, steps) in enumerate(zip(attrs["window"], shape, strict=True)):
        moved = np.moveaxis(x, d, 0)
        if attrs["to_apply"] == "add" and tables.up_to_each(taps, len(moved), steps):
            x = np.cumsum(x, axis=d)
            continue
        tables.few(taps.size, steps)
        read = (tables.positions(taps, len(moved), step) for step in range(steps))
        rows = [
            function(moved[at], axis=0) if at.size else np.full(moved.shape[1:], neutral)
            for at in read
        ]
        x = np.moveaxis(np.stack(rows), 0, d)
    return apply(attrs["to_apply"], {}, [x, np.asarray(xs[1])], shape)


def _select_and_scatter(xs: Sequence[Any], attrs: Attrs, shape: tuple[int, ...]) -> Any:
    """Every entry of the source goes to the first of the largest (smallest) of its window."""
    operand, source, start = (np.asarray(x) for x in xs)
    result = np.full(shape, start, dtype=operand.dtype)
    for where in np.ndindex(source.shape):
        read = [
            [p for t in range(w.size) if 0 <= (p := k * w.stride + t * w.apart - w.before) < n]
            for k, w, n in zip(where, attrs["window"], shape, strict=True)
        ]
        block = operand[np.ix_(*read)]
        place = np.argmax(block) if attrs["select"] == "largest" else np.argmin(block)
        at = tuple(r[i] for r, i in zip(read, np.unravel_index(place, block.shape), strict=True))
        result[at] = apply(attrs["scatter"], {}, [result[at], source[where]], ())
    return result


class Labels(NamedTuple):
    """Of a convolution ``b01f_01io->b01f``: for operand, kernel and result, where the batch (or
    input features), the features (or output features) and the spatial dimensions are.

    Example: of that text, ``operand`` is (0, 3, (1, 2)) and ``kernel`` (2, 3, (0, 1)).
    """

    operand: tuple[int, int, tuple[int, ...]]
    kernel: tuple[int, int, tuple[int, ...]]
    result: tuple[int, int, tuple[int, ...]]


def labels(text: str) -> Labels:
    """``bf01_oi01->bf01``: where operand, kernel and result of a convolution have their
    dimensions.

    Example: of that text the operand's batch, features and positions are dimensions 0, 1 and (2,
    3).
    """
    match = re.fullmatch(r"([bf\d]+)_([io\d]+)->([bf\d]+)", text)
    if match is None:
        raise InvalidInput(f"dim_labels={text[:60]}")
    parts = []
    for part, named in zip(match.groups(), ("bf", "io", "bf"), strict=True):
        one, two = named[0], named[1]
        count = len(part) - 2
        if sorted(part) != sorted(f"{one}{two}" + "".join(map(str, range(count)))):
            raise InvalidInput(f"dim_labels={text[:60]}")
        spatial = tuple(part.index(str(d)) for d in range(count))
        parts.append((part.index(one), part.index(two), spatial))
    if len({len(p[2]) for p in parts}) != 1:
        raise InvalidInput(f"dim_labels={text[:60]}")
    return Labels(*parts)


def _convolution(xs: Sequence[Any], attrs: Attrs, shape: tuple[int, ...]) -> Any:
    """Group by group: channels of the operand, or of its batch, meet their part of the kernel."""
    at = labels(attrs["dim_labels"])
    x = np.moveaxis(_wide(xs[0]), (at.operand[0], at.operand[1], *at.operand[2]), range(xs[0].ndim))
    w = np.moveaxis(_wide(xs[1]), (at.kernel[1], at.kernel[0], *at.kernel[2]), range(xs[1].ndim))
    features, batches = (attrs.get(f"{k}_group_count", 1) for k in ("feature", "batch"))
    groups = features * batches
    axis = 1 if features > 1 else 0
    sizes = tuple(shape[d] for d in at.result[2])
    results = []
    for own, kernel in zip(
        np.split(x, groups, axis=axis), np.split(w, groups, axis=0), strict=True
    ):
        part: Any = own
        for taps, steps in zip(attrs["window"], sizes, strict=True):
            # The first dimension of positions becomes one of taps and one of results, at the end.
            part = np.tensordot(part, tables.reads(taps, part.shape[2], steps), axes=([2], [0]))
        count = len(sizes)
        tapped = tuple(range(2, 2 + 2 * count, 2))
        part = np.tensordot(part, kernel, axes=([1, *tapped], [1, *range(2, 2 + count)]))
        results.append(np.moveaxis(part, -1, 1))
    whole = np.concatenate(results, axis=1)
    return np.moveaxis(whole, range(whole.ndim), (at.result[0], at.result[1], *at.result[2]))


def _gather(xs: Sequence[Any], attrs: Attrs, shape: tuple[int, ...]) -> Any:
    operand, at = xs[0], _places(xs[1], attrs["index_vector_dim"])
    sizes, offset = attrs["slice_sizes"], attrs.get("offset_dims", ())
    batching = dict(
        zip(
            attrs.get("operand_batching_dims", ()),
            attrs.get("start_indices_batching_dims", ()),
            strict=True,
        )
    )
    dropped = {*attrs.get("collapsed_slice_dims", ()), *batching}
    outer = [d for d in range(len(shape)) if d not in offset]
    result = np.empty(shape, dtype=operand.dtype)
    for where in np.ndindex(at.shape[:-1]):
        given = [0] * operand.ndim
        for k, d in enumerate(attrs["start_index_map"]):
            given[d] = int(at[where][k])
        for d, e in batching.items():
            given[d] = where[e]
        begin = starts(given, operand.shape, sizes)
        block = operand[tuple(slice(b, b + n) for b, n in zip(begin, sizes, strict=True))]
        kept = block.reshape([n for d, n in enumerate(sizes) if d not in dropped])
        index: list[Any] = [slice(None)] * len(shape)
        for d, i in zip(outer, where, strict=True):
            index[d] = i
        result[tuple(index)] = kept
    return result


def _scatter(xs: Sequence[Any], attrs: Attrs, shape: tuple[int, ...]) -> Any:
    result, at, updates = np.array(xs[0]), _places(xs[1], attrs["index_vector_dim"]), xs[2]
    window = attrs.get("update_window_dims", ())
    batching = dict(
        zip(
            attrs.get("input_batching_dims", ()),
            attrs.get("scatter_indices_batching_dims", ()),
            strict=True,
        )
    )
    inserted = {*attrs.get("inserted_window_dims", ()), *batching}
    outer = [d for d in range(updates.ndim) if d not in window]
    kept = [d for d in range(len(shape)) if d not in inserted]
    for where in np.ndindex(at.shape[:-1]):
        begin = [0] * len(shape)
        for k, d in enumerate(attrs["scatter_dims_to_operand_dims"]):
            begin[d] = int(at[where][k])
        for d, e in batching.items():
            begin[d] = where[e]
        index: list[Any] = [slice(None)] * updates.ndim
        for d, i in zip(outer, where, strict=True):
            index[d] = i
        block = updates[tuple(index)]
        sizes = [1] * len(shape)
        for d, n in zip(kept, block.shape, strict=True):
            sizes[d] = n
        if any(not 0 <= b <= n - m for b, n, m in zip(begin, shape, sizes, strict=True)):
            continue
        cut = tuple(slice(b, b + n) for b, n in zip(begin, sizes, strict=True))
        new = block.reshape(sizes)
        if attrs["to_apply"] != "replace":
            new = apply(attrs["to_apply"], {}, [result[cut], new], tuple(sizes))
        result[cut] = new
    return result


def _bits(xs: Sequence[Any], attrs: Attrs, shape: tuple[int, ...]) -> Any:
    """The same bits as another type of the same size."""
    target = np.dtype("float32" if attrs["dtype"] == "bfloat16" else attrs["dtype"])
    if target.itemsize != xs[0].dtype.itemsize:
        raise Unsupported(f"bits of {xs[0].dtype} as {attrs['dtype']}")
    return np.ascontiguousarray(xs[0]).view(target).reshape(shape)


def _convert(xs: Sequence[Any], attrs: Attrs, shape: tuple[int, ...]) -> Any:
    dtype, (x,) = attrs["dtype"], xs
    if dtype == "bool":
        return x != 0
    if dtype.startswith(("float", "bfloat")) and np.issubdtype(x.dtype, np.floating):
        return x
    if dtype.startswith(("int", "uint")) and np.issubdtype(x.dtype, np.floating):
        # The nearest number of the type, as XLA writes it.
        limits = np.iinfo(dtype)
        cut = np.where((x > limits.min) & (x < limits.max), x, 0).astype(dtype)
        below = np.where(x <= limits.min, limits.min, cut)
        return np.where(x >= limits.max, limits.max, below).astype(dtype)
    return x.astype("float32" if dtype == "bfloat16" else dtype)


_OTHERS: Mapping[str, Operation] = {
    "compare": _compare,
    "select": lambda xs, a, s: np.where(xs[0], xs[1], xs[2]),
    "clamp": lambda xs, a, s: np.minimum(np.maximum(xs[1], xs[0]), xs[2]),
    "convert": _convert,
    "reduce-precision": lambda xs, a, s: xs[0],
    "broadcast": _broadcast,
    "reshape": lambda xs, a, s: xs[0].reshape(s),
    "transpose": lambda xs, a, s: xs[0].transpose(a["dimensions"]),
    "slice": lambda xs, a, s: xs[0][tuple(slice(*part) for part in a["slice"])],
    "concatenate": lambda xs, a, s: np.concatenate(xs, axis=a["dimensions"][0]),
    "reverse": lambda xs, a, s: np.flip(xs[0], axis=a["dimensions"]),
    "pad": _pad,
    "dynamic-slice": _dynamic_slice,
    "dynamic-update-slice": _dynamic_update,
    "dot": _dot,
    "reduce": _reduce,
    "reduce-window": _reduce_window,
    "select-and-scatter": _select_and_scatter,
    "convolution": _convolution,
    "bitcast-convert": _bits,
    "sort": lambda xs, a, s: _sorted(xs, a)[0],
    "gather": _gather,
    "scatter": _scatter,
}

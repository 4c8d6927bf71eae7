"""What operators of ATen give that put known numbers in another shape or order, by NumPy; and pairs
of them that are complex.

Rules are those of `arrays`: the rule of ``aten.permute.default`` is ``numpy.transpose``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardproof.frontends.fx.arrays import Array, rule_for, shape_of
from shardproof.frontends.fx.records import Node

# -- complex numbers -----------------------------------------------------------------------------


@rule_for("polar.default")
def _polar(node: Node, size: Array, angle: Array) -> Any:
    # Cosine and sine as these operators have them: a program may have both forms.
    return size * np.cos(angle) + 1j * (size * np.sin(angle))


@rule_for("complex.default")
def _complex(node: Node, x: Array, y: Array) -> Any:
    return x + 1j * y


@rule_for("view_as_complex.default")
def _as_complex(node: Node, x: Array) -> Any:
    return x[..., 0] + 1j * x[..., 1]


@rule_for("view_as_real.default")
def _as_real(node: Node, x: Array) -> Any:
    return np.stack([x.real, x.imag], -1)


@rule_for("real.default")
def _real(node: Node, x: Array) -> Any:
    return x.real


@rule_for("imag.default")
def _imag(node: Node, x: Array) -> Any:
    return x.imag


@rule_for("conj_physical.default", "_conj.default")
def _conjugate(node: Node, x: Array) -> Any:
    return np.conj(x)


# -- the same numbers in another shape or order --------------------------------------------------


@rule_for(
    *("_to_copy.default", "to.dtype", "clone.default", "detach.default", "detach_.default"),
    *("alias.default", "contiguous.default", "lift_fresh_copy.default"),
    *("type_as.default", "to.dtype_layout", "to.device", "resolve_conj.default"),
)
def _same(node: Node, x: Array, *_: Any) -> Any:
    return x


@rule_for(*("view.default", "_unsafe_view.default", "reshape.default", "flatten.using_ints"))
@rule_for(*("unsqueeze.default", "squeeze.default", "squeeze.dim", "squeeze.dims"))
@rule_for("unflatten.int", "view_as.default", "reshape_as.default")
def _in_order(node: Node, x: Array, *_: Any) -> Any:
    return x.reshape(shape_of(node))


@rule_for("expand.default", "expand_as.default", "broadcast_to.default")
def _expand(node: Node, x: Array, *_: Any) -> Any:
    return np.broadcast_to(x, shape_of(node))


@rule_for("permute.default")
def _permute(node: Node, x: Array, dims: Sequence[int]) -> Any:
    return x.transpose(dims)


@rule_for("transpose.int")
def _transpose(node: Node, x: Array, dim0: int, dim1: int) -> Any:
    return x.swapaxes(dim0, dim1)


@rule_for("t.default", "numpy_T.default")
def _t(node: Node, x: Array) -> Any:
    return x.T


@rule_for("slice.Tensor")
def _slice(
    node: Node,
    x: Array,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Any:
    return np.moveaxis(np.moveaxis(x, dim, 0)[start:end:step], 0, dim)


@rule_for("select.int")
def _select(node: Node, x: Array, dim: int, index: int) -> Any:
    return np.take(x, index, dim)


@rule_for("narrow.default")
def _narrow(node: Node, x: Array, dim: int, start: int, length: int) -> Any:
    return np.moveaxis(np.moveaxis(x, dim, 0)[start : start + length], 0, dim)


@rule_for("split.Tensor")
def _split(node: Node, x: Array, size: int, dim: int = 0) -> Any:
    return np.split(x, range(size, x.shape[dim], size), dim)


@rule_for("split_with_sizes.default")
def _split_with_sizes(node: Node, x: Array, sizes: Sequence[int], dim: int = 0) -> Any:
    return np.split(x, np.cumsum(sizes)[:-1], dim)


@rule_for("chunk.default")
def _chunk(node: Node, x: Array, chunks: int, dim: int = 0) -> Any:
    return _split(node, x, -(-x.shape[dim] // chunks), dim)


@rule_for("unbind.int")
def _unbind(node: Node, x: Array, dim: int = 0) -> Any:
    return list(np.moveaxis(x, dim, 0))


@rule_for("cat.default")
def _cat(node: Node, xs: Sequence[Array], dim: int = 0) -> Any:
    # A tensor of no entries and one dimension counts for nothing, whatever the others are.
    return np.concatenate([x for x in xs if x.shape != (0,)] or xs, dim)


@rule_for("stack.default")
def _stack(node: Node, xs: Sequence[Array], dim: int = 0) -> Any:
    return np.stack(xs, dim)


@rule_for("repeat.default")
def _repeat(node: Node, x: Array, repeats: Sequence[int]) -> Any:
    return np.tile(x, repeats)


@rule_for("repeat_interleave.self_int")
def _repeat_interleave(node: Node, x: Array, repeats: int, dim: int | None = None) -> Any:
    return np.repeat(x, repeats, dim)


@rule_for("flip.default")
def _flip(node: Node, x: Array, dims: Sequence[int]) -> Any:
    return np.flip(x, tuple(dims))


@rule_for("roll.default")
def _roll(node: Node, x: Array, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
    return np.roll(x, shifts, dims) if dims else np.roll(x, shifts[0])


@rule_for("meshgrid.default", "meshgrid.indexing")
def _meshgrid(node: Node, xs: Sequence[Array], indexing: str = "ij") -> Any:
    return list(np.meshgrid(*xs, indexing=indexing))  # type: ignore[call-overload]


@rule_for("index.Tensor")
def _index(node: Node, x: Array, indices: Sequence[Array | None]) -> Any:
    return x[tuple(slice(None) if n is None else n for n in indices)]


@rule_for("index_select.default")
def _index_select(node: Node, x: Array, dim: int, index: Array) -> Any:
    if index.size and index.min() < 0:
        raise IndexError
    return np.take(x, index, dim)


@rule_for("slice_scatter.default")
def _slice_scatter(
    node: Node,
    x: Array,
    part: Array,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Any:
    made = x.copy()
    np.moveaxis(made, dim, 0)[start:end:step] = np.moveaxis(part, dim, 0)
    return made


@rule_for("select_scatter.default")
def _select_scatter(node: Node, x: Array, part: Array, dim: int, index: int) -> Any:
    made = x.copy()
    np.moveaxis(made, dim, 0)[index] = part
    return made


@rule_for("copy.default")
def _copy(node: Node, x: Array, other: Array) -> Any:
    return np.broadcast_to(other, x.shape)


@rule_for("constant_pad_nd.default")
def _pad(node: Node, x: Array, pad: Sequence[int], value: float = 0) -> Any:
    pairs = [(pad[n], pad[n + 1]) for n in range(0, len(pad), 2)]
    every = [(0, 0)] * (x.ndim - len(pairs)) + pairs[::-1]
    cut = tuple(slice(max(0, -a), n - max(0, -b)) for n, (a, b) in zip(x.shape, every, strict=True))
    wider = [(max(0, a), max(0, b)) for a, b in every]
    return np.pad(x[cut], wider, constant_values=value)

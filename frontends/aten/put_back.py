"""Rows that places choose, write or add to, where these are an order or in one: sorted, gathered,
put back.

Source: PyTorch's documentation of each operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from shardproof.frontends.aten.arranged import (
    Arranged,
    Inverse,
    Numbers,
    added_up,
    again,
    called,
    entries_each,
    reads,
    settled,
    sorts,
)
from shardproof.frontends.aten.lowering import Const, Lowering, dimensions, fraction
from shardproof.frontends.aten.positions import Positions
from shardproof.frontends.aten.rules import written_as


@reads("aten.sort.default")
def _sort(lo: Lowering, x: Any, dim: int = -1, descending: bool = False) -> Any:
    return sorts(lo, x, dim, descending)


@reads("aten.sort.stable")
def _stable(
    lo: Lowering, x: Any, stable: bool | None, dim: int = -1, descending: bool = False
) -> Any:
    return sorts(lo, x, dim, descending)


def _rows(lo: Lowering, x: Any, index: Arranged, name: str, *places: Any) -> Any:
    """Rows of a tensor by ids in an order."""
    if isinstance(index.base, Numbers):
        if len(index.shape) != 1 or x.shape[0] * index.base.by != index.shape[0]:
            return None
        return again(lo, entries_each(lo, x, index.base.by), index, 0)
    return again(lo, called(lo, name, x, *places), index, index.at)


@reads("aten.index.Tensor")
def _index(lo: Lowering, x: Any, indices: Sequence[Any]) -> Any:
    """Rows of tokens, in the order; or rows in the order, back where they were."""
    if len(indices) != 1:
        return None
    (index,) = indices
    if isinstance(index, Inverse):
        same = isinstance(x, Arranged) and x.order is index.order and x.at == 0
        return x.base if same and not isinstance(x.base, Numbers) else None
    if not isinstance(index, Arranged) or isinstance(x, (Arranged, Inverse)):
        return None
    return _rows(lo, settled(lo, x), index, "aten.index.Tensor", [index.base])


@reads("aten.index_select.default")
def _index_select(lo: Lowering, x: Any, dim: int, index: Any) -> Any:
    return _index(lo, x, [index]) if dimensions(x.shape, dim) == (0,) else None


@reads("aten.gather.default")
def _gather(lo: Lowering, x: Any, dim: int, index: Any, sparse_grad: bool = False) -> Any:
    """Rows of tokens by ids that are the same along each row."""
    wide = isinstance(index, Arranged) and isinstance(index.base, Numbers) and index.at == 0
    if not wide or isinstance(x, (Arranged, Inverse)) or dimensions(x.shape, dim) != (0,):
        return None
    if x.shape[1:] != index.shape[1:] or x.shape[0] * index.base.by != index.shape[0]:
        return None
    return again(lo, entries_each(lo, settled(lo, x), index.base.by), index, 0)


@reads("aten.index_put.default", "aten._index_put_impl.default", "aten._unsafe_index_put.default")
def _index_put(
    lo: Lowering,
    x: Any,
    indices: Sequence[Any],
    values: Any,
    accumulate: bool = False,
    unsafe: bool = False,
) -> Any:
    """Rows that are put back, or added up for each token; or the order's inverse."""
    if len(indices) != 1 or isinstance(x, (Arranged, Inverse)):
        return None
    (index,) = indices
    if isinstance(index, Inverse):
        alone = isinstance(x, Const) and not isinstance(values, (Arranged, Inverse))
        if not alone or values.shape != x.shape:
            return None
        moved = values if not accumulate else lo.shift(values, x.value)
        return Arranged(lo, written_as(lo, moved, x.dtype), index.order)
    if not isinstance(index, Arranged) or len(index.shape) != 1:
        return None
    if accumulate:
        return _added(lo, x, index, values)
    if not index.is_order or x.shape != values.shape:
        return None
    if isinstance(values, Arranged) and values.order is index.order and values.at == 0:
        return None if isinstance(values.base, Numbers) else written_as(lo, values.base, x.dtype)
    plain = isinstance(values, Positions) and (values.const, values.steps) == (0, (1,))
    return Inverse(index.order, x.shape, x.dtype) if plain else None


def _added(lo: Lowering, x: Any, index: Arranged, values: Any, alpha: float = 1) -> Any:
    """``x`` with rows in the order added at ids in that order, [n]."""
    if not index.beside(values) or isinstance(values.base, Numbers):
        return None
    if isinstance(index.base, Numbers):
        whole = (x.shape[0] * index.base.by, *x.shape[1:])
        if values.shape != whole:
            return None
        return lo.add(x, added_up(lo, values.base, index.base.by), fraction(alpha))
    if alpha != 1:
        return None
    return called(lo, "aten.index_put.default", x, [index.base], values.base, True)


@reads("aten.index_add.default")
def _index_add(lo: Lowering, x: Any, dim: int, index: Any, values: Any, alpha: float = 1) -> Any:
    if not isinstance(index, Arranged) or dimensions(x.shape, dim) != (0,):
        return None
    return None if isinstance(x, Arranged) else _added(lo, x, index, values, alpha)


@reads("aten.scatter_add.default")
def _scatter_add(lo: Lowering, x: Any, dim: int, index: Any, values: Any) -> Any:
    """Rows in the order, added up for each token, by ids that are the same along each row."""
    wide = isinstance(index, Arranged) and isinstance(index.base, Numbers) and index.at == 0
    if not wide or isinstance(x, Arranged) or dimensions(x.shape, dim) != (0,):
        return None
    if index.shape != values.shape or not index.beside(values):
        return None
    if len(index.shape) == 1:
        return _added(lo, x, index, values)
    count = index.shape[0]
    line = replace(index, base=replace(index.base, at=0, shape=(count,)), at=0)
    return _added(lo, x, line, values)


@reads("torchtitan.deterministic_scatter_add.default")
def _scattered(lo: Lowering, x: Any, index: Any, values: Any) -> Any:
    """Source: ``torchtitan/ops/scatter_add.py``: ``out.scatter_add(0, index, src)``."""
    added = _scatter_add(lo, x, 0, index, values)
    if added is not None:
        return added
    own = (settled(lo, given) for given in (x, index, values))
    into, places, rows = own
    return called(lo, "aten.scatter_add.default", into, 0, places, rows)


@reads("aten.embedding.default")
def _embedding(
    lo: Lowering, weight: Any, index: Any, padding: int = -1, scale: bool = False, *_: Any
) -> Any:
    if not isinstance(index, Arranged) or isinstance(weight, Arranged):
        return None
    if isinstance(index.base, Numbers):
        return None
    name = "aten.embedding.default"
    return again(lo, called(lo, name, weight, index.base, padding, scale), index, index.at)


@reads("aten.embedding_dense_backward.default")
def _embedding_backward(
    lo: Lowering, gradient: Any, index: Any, rows: int, padding: int, scale: bool
) -> Any:
    if not isinstance(index, Arranged) or not index.beside(gradient) or scale:
        return None
    if isinstance(index.base, Numbers):
        return None
    name = "aten.embedding_dense_backward.default"
    return called(lo, name, gradient.base, index.base, rows, padding, scale)

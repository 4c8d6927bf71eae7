"""What ranks have after a collective, rank by rank: written from what torch.distributed does.

This is on purpose no reading of `engine.collectives`: it says the same a second time, and a test
holds the two against each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.errors import ShapeMismatch, Unsupported
from engine.ir import Attr, Op

#: Collectives, and what else is no single operator: the attributes that this file reads.
COLLECTIVES: Final[Mapping[str, frozenset[str]]] = {
    "all_reduce": frozenset({"group", "op"}),
    "reduce": frozenset({"group", "op", "root"}),
    "broadcast": frozenset({"group", "root"}),
    "all_gather": frozenset({"group", "dim", "position"}),
    "reduce_scatter": frozenset({"group", "dim", "op"}),
    "all_to_all": frozenset({"group", "split_dim", "concat_dim"}),
}
OTHERS: Final[Mapping[str, frozenset[str]]] = {
    "send": frozenset({"peer", "self"}),
    "recv": frozenset({"peer", "self"}),
    "post_recv": frozenset({"peer", "self"}),
    "chunk": frozenset({"group", "dim", "claimed"}),
    "load_batch": frozenset(),
}
Array = NDArray[Any]


class Stuck(Exception):
    """The program contradicts itself: says how."""


def understood(op: Op) -> None:
    """Raise `Unsupported` for an attribute that nothing here reads."""
    known = COLLECTIVES.get(op.name, OTHERS.get(op.name))
    for key in () if known is None else sorted(set(op.attrs) - known):
        raise Unsupported(f"{op.name} says {key}")


def cut(x: Array, dim: int, start: int, size: int) -> Array:
    return x[(slice(None),) * (dim % x.ndim) + (slice(start, start + size),)]


def exchanged(
    ranks: Sequence[int], members: Sequence[tuple[Op, Array | None]], own: int, root: Attr
) -> list[Array]:
    """What the member at position ``own`` has after a collective."""
    op = members[own][0]
    kinds = {(o.name, _kind(o.attrs, x)) for o, x in members}
    if len(kinds) > 1:
        raise Stuck(f"ranks {list(ranks)} join in different collectives")
    given = [x for _, x in members if x is not None]
    if op.name in ("broadcast", "reduce"):
        return _rooted(op, ranks, members, own, root)
    if len(given) < len(members):
        raise Stuck(f"ranks {list(ranks)}: {op.name} without an input")
    if op.name == "all_gather":
        places = [o.attrs.get("position") for o, _ in members]
        order = sorted(range(len(given)), key=lambda i: _place(places, i))
        dim = _dim(op, "dim", given[0])
        if len({(*x.shape[:dim], *x.shape[dim + 1 :]) for x in given}) > 1:
            raise ShapeMismatch(f"{op.name} of shapes {[x.shape for x in given]}")
        return [np.concatenate([given[i] for i in order], axis=dim)]
    if len({x.shape for x in given}) > 1:
        raise ShapeMismatch(f"{op.name} of shapes {[x.shape for x in given]}")
    if op.name == "all_reduce":
        return [_reduced(op, given)]
    if op.name == "reduce_scatter":
        return [_part(_reduced(op, given), _dim(op, "dim", given[0]), own, len(given))]
    split, joined = _dim(op, "split_dim", given[0]), _dim(op, "concat_dim", given[0])
    return [np.concatenate([_part(x, split, own, len(given)) for x in given], axis=joined)]


def _place(places: Sequence[Attr], i: int) -> int:
    known = [p for p in places if isinstance(p, int)]
    return known[i] if len(known) == len(places) else i


def _rooted(
    op: Op, ranks: Sequence[int], members: Sequence[tuple[Op, Array | None]], own: int, root: Attr
) -> list[Array]:
    """The root gives what all have, or takes what all give: nobody else knows what is in his
    buffer afterwards."""
    if root not in ranks:
        raise Stuck(f"ranks {list(ranks)}: {op.name} whose root is rank {root}")
    held = [x for _, x in members]
    if op.name == "broadcast":
        value = held[ranks.index(root)]
        if value is None:
            raise Stuck(f"ranks {list(ranks)}: {op.name} without an input on rank {root}")
        return [value] * len(op.outputs)
    given = [x for x in held if x is not None]
    if len(given) < len(held):
        raise Stuck(f"ranks {list(ranks)}: {op.name} without an input")
    if len({x.shape for x in given}) > 1:
        raise ShapeMismatch(f"{op.name} of shapes {[x.shape for x in given]}")
    total = _reduced(op, given)
    undefined: Array = np.full(total.shape, np.nan)
    return [total if ranks[own] == root else undefined] * len(op.outputs)


def _kind(attrs: Mapping[str, Attr], x: Array | None) -> str:
    """What ranks agree on in a collective: what is not said is as by default, and a dimension is
    the same counted from either end."""
    said = {"op": "sum", **attrs}
    for key in ("dim", "split_dim", "concat_dim"):
        dim = said.get(key)
        if x is not None and isinstance(dim, int) and -x.ndim <= dim < 0:
            said[key] = dim + x.ndim
    return str(sorted((k, str(v)) for k, v in said.items() if k not in ("group", "position")))


def _dim(op: Op, key: str, x: Array) -> int:
    dim = op.attrs.get(key)
    if not isinstance(dim, int) or not -x.ndim <= dim < x.ndim:
        raise ShapeMismatch(f"{key} {dim} of a tensor of {x.ndim} dimensions")
    return dim % x.ndim


def _reduced(op: Op, given: Sequence[Array]) -> Array:
    kind = op.attrs.get("op", "sum")
    if kind not in ("sum", "max"):
        raise Unsupported(f"{op.name} with {kind}")
    total: Array = np.sum(given, axis=0) if kind == "sum" else np.max(given, axis=0)
    return total


def _part(x: Array, dim: int, position: int, count: int) -> Array:
    size, rest = divmod(x.shape[dim], count)
    if rest:
        raise ShapeMismatch(f"{x.shape[dim]} positions divided among {count} ranks")
    return cut(x, dim, position * size, size)

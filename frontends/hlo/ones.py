"""Sums over the classes of ids that all lie among them, where a one-hot adds up to 1.

Where the parallel side only compares ids with numbers (``one_hot``), and looks nothing up by them,
the single side's lookup of a difference is the difference of lookups, and the sum of what it
scatters is what it scatters.  Both are equal for all ids of the domain, which is an assumption.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from math import prod

from shardproof.frontends.builder import piecewise
from shardproof.frontends.builder.piecewise import chosen_rows
from shardproof.frontends.graphs.graph import Graph, Node
from shardproof.frontends.graphs.recorder import Recorded
from shardproof.frontends.hlo.items import Lookup
from shardproof.frontends.hlo.state import Compared, Lowering, integral

_MOVING = frozenset({"view", "permute", "slice", "expand"})
#: Operators that choose rows, by the first of the operands that say which.
_CHOOSING = {"gather": 1, "scatter": 1, "dynamic-slice": 1, "dynamic-update-slice": 2}


def compared(graph: Graph) -> Compared:
    """Integer inputs, by position, by which nothing is looked up or written; none where logarithms
    are taken off whole rows, as the single side is likely to do it, too.

    Example: the labels of ``one_hot(labels, 24) * scores``, and not those of ``scores[labels]``.
    """
    if _has_logarithms_off_rows(graph):
        return Compared()
    made_of: dict[int, frozenset[int]] = {}
    for position, given in enumerate(graph.inputs):
        if integral(graph.values[given.value].dtype):
            made_of[given.value] = frozenset([position])
    every = frozenset(p for positions in made_of.values() for p in positions)
    choosing: set[int] = set()
    for node in graph.nodes:
        read = frozenset(p for v in node.operands for p in made_of.get(v, ()))
        first = _CHOOSING.get(node.target, len(node.operands))
        choosing.update(p for v in node.operands[first:] for p in made_of.get(v, ()))
        for result in node.results:
            if integral(graph.values[result].dtype) or graph.values[result].dtype == "bool":
                made_of[result] = read
    sums = _has_sums_with_logarithms(graph)
    return Compared(every if sums else every - choosing, sums)


def _has_sums_with_logarithms(graph: Graph) -> bool:
    """Whether something is added to a logarithm, as the maximum is in a ``logsumexp``, or one is
    taken off numbers of which there are as many."""
    maker = {result: node for node in graph.nodes for result in node.results}
    added = (v for node in graph.nodes if node.target == "add" for v in node.operands)
    taken_off = (node.operands[1] for node in graph.nodes if node.target == "subtract")
    return any(_logarithm(graph, maker, value)[0] for value in added) or any(
        _logarithm(graph, maker, value) == (True, False) for value in taken_off
    )


def _has_logarithms_off_rows(graph: Graph) -> bool:
    """Whether a logarithm is repeated and subtracted, as in a ``log_softmax``."""
    maker = {result: node for node in graph.nodes for result in node.results}
    return any(
        all(_logarithm(graph, maker, node.operands[1]))
        for node in graph.nodes
        if node.target == "subtract"
    )


def _logarithm(graph: Graph, maker: Mapping[int, Node], value: int) -> tuple[bool, bool]:
    """Whether a value is a logarithm, in another shape perhaps; and whether it is repeated."""
    made, repeated = maker.get(value), False
    while made is not None and made.target in ("broadcast", "reshape", "convert", "copy"):
        sizes = [prod(graph.values[v].shape) for v in (value, made.operands[0])]
        repeated |= sizes[0] > sizes[1]
        value = made.operands[0]
        made = maker.get(value)
    return made is not None and made.target == "log", repeated


def difference(low: Lowering, item: Lookup) -> int | None:
    """Rows of a difference of which the second part is one for all rows: that of the rows of the
    first, and the second part. None: it is no such lookup.

    Example: ``(s - l)[i, ids[i]]`` of ``s`` [6, 24] and ``l`` [6, 1] is ``s[i, ids[i]] - l[i]``.
    """
    if _origin(low, item.ids.origin) not in low.compared_ids or not _every(low, item):
        return None
    parts = _difference(low, item.table, item.dim)
    if parts is None:
        return None
    first, second = parts
    shape = low.recorder.shape(second)
    terms, result = item.equation.split("->")
    names = terms.split(",")[1]
    kept = names[: item.dim] + names[item.dim + 1 :]
    if names[item.dim] != "v" or "v" in kept or set(result) - set(kept):
        return None
    full = tuple(n for d, n in enumerate(low.recorder.shape(item.table)) if d != item.dim)
    dims = [d for d in range(len(names)) if d != item.dim]
    rest = low.values.view(second, tuple(shape[d] for d in dims))
    if low.recorder.shape(rest) != full:
        rest = low.op("expand", rest, size=full).value
    if kept != result:
        rest = low.op("einsum", rest, equation=f"{kept}->{result}").value
    left = replace(item, table=first)
    rows = difference(low, left) if low.other.compared.sums else None
    if rows is None:
        rows = low.values.tensor(left)
    return low.op("sub", rows, low.values.broadcast(rest, item.dims, item.shape)).value


def _difference(low: Lowering, value: int, dim: int) -> tuple[int, int] | None:
    """What a table is the difference of, where the second part is one for all positions of a
    dimension, which it has once."""
    made = low.reaches.maker(value)
    if made is None:
        return None
    shape = low.recorder.shape(value)
    if made.name == "view" and dim == len(shape) - 1:
        before = low.recorder.shape(made.inputs[0])
        inner = None
        if before and before[-1] == shape[-1]:
            inner = _difference(low, made.inputs[0], len(before) - 1)
        if inner is None:
            return None
        wide = (*before[:-1], 1)
        rest = inner[1]
        if low.recorder.shape(rest) != wide:
            rest = low.op("expand", rest, size=wide).value
        return low.values.view(inner[0], shape), low.values.view(rest, (*shape[:-1], 1))
    if made.name != "sub" or len(made.inputs) != 2:
        return None
    first, second = made.inputs
    spread = low.reaches.maker(second)
    if spread is None or spread.name != "expand" or low.recorder.shape(first) != shape:
        return None
    have = low.recorder.shape(spread.inputs[0])
    return (first, spread.inputs[0]) if len(have) == len(shape) and have[dim] == 1 else None


def total(low: Lowering, value: int, dims: tuple[int, ...]) -> int | None:
    """The sum of what is scattered, over the rows that it is scattered to. None: it is no such
    sum.

    Example: -1 at ``[i, ids[i]]`` of zeros [6, 24], added up over the 24, is -1 for each i; beside
    0.1 everywhere (smoothed labels), -1 + 2.4.
    """
    made = low.reaches.maker(value)
    if made is None or len(dims) != 1:
        return None
    if made.name == "mul" and len(made.inputs) == 1:
        inner = total(low, made.inputs[0], dims)
        return None if inner is None else low.op("mul", inner, **made.attrs).value
    if made.name == "add" and len(made.inputs) == 1:
        other, inner = made.attrs["other"], total(low, made.inputs[0], dims)
        if inner is None or not isinstance(other, Fraction | int):
            return None
        return low.op("add", inner, other=other * low.recorder.shape(value)[dims[0]]).value
    if made.name in ("add", "sub") and len(made.inputs) == 2:
        return _total_of_both(low, made, value, dims)
    return _total_of_scattered(low, made, dims)


def _total_of_both(low: Lowering, made: Recorded, value: int, dims: tuple[int, ...]) -> int | None:
    """The sum of what is scattered and of something beside it (smoothed labels)."""
    if any(low.recorder.shape(v) != low.recorder.shape(value) for v in made.inputs):
        return None
    parts = [total(low, v, dims) for v in made.inputs]
    if parts == [None, None]:
        return None
    first, second = (
        low.op("sum", v, dim=dims).value if part is None else part
        for v, part in zip(made.inputs, parts, strict=True)
    )
    return low.op(made.name, first, second).value


def _total_of_scattered(low: Lowering, made: Recorded, dims: tuple[int, ...]) -> int | None:
    if made.name != "einsum" or len(made.inputs) != 2:
        return None
    onehot = low.reaches.maker(made.inputs[0])
    if onehot is not None and onehot.name == "view":
        # Other dimensions than that of the classes may come and go.
        before = low.recorder.shape(onehot.inputs[0])
        if before[-1:] != low.recorder.shape(made.inputs[0])[-1:]:
            return None
        onehot = low.reaches.maker(onehot.inputs[0])
    if onehot is None or onehot.name != "onehot":
        return None
    origin = _origin(low, onehot.inputs[0])
    if origin not in low.compared_ids:
        return None
    terms, result = str(made.attrs["equation"]).split("->")
    own, given = terms.split(",")
    low_id, high = low.domains.get(low.origins[origin], (0, 0))
    start, size = onehot.attrs["start"], int(str(onehot.attrs["size"]))
    if start != 0 or low_id < 0 or not 0 < high <= size or result[dims[0]] != own[-1]:
        return None
    kept = result[: dims[0]] + result[dims[0] + 1 :]
    if own[-1] in given or set(own[:-1]) - set(given) or set(kept) - set(given):
        return None
    return low.op("einsum", made.inputs[1], equation=f"{given}->{kept}").value


def _origin(low: Lowering, value: int) -> int:
    """The integers that a value holds in another shape or order, or some of."""
    made = low.reaches.maker(value)
    while made is not None and made.name in _MOVING and len(made.inputs) == 1:
        value = made.inputs[0]
        made = low.reaches.maker(value)
    return value


def _every(low: Lowering, item: Lookup) -> bool:
    """Whether every id of the domain chooses its row, alike on all ranks."""
    if len(item.ids.functions) != 1 or len(item.live) != 1 or piecewise.value(item.live[0]) != 1:
        return False
    (function,), (live,) = item.ids.functions, item.live
    rows = low.recorder.shape(item.table)[item.dim]
    return chosen_rows(function, live, rows) is not None

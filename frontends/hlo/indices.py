"""Rules for integers that are computed of ids: exact functions of the id."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from shardproof.engine.errors import Unsupported
from shardproof.frontends.builder import piecewise
from shardproof.frontends.builder.piecewise import Function
from shardproof.frontends.graphs.graph import Node, Shape
from shardproof.frontends.hlo.items import Ids, Item, Lookup, Narrow, Places, Tensor, per_rank
from shardproof.frontends.hlo.known import Known, compact
from shardproof.frontends.hlo.state import Lowering, integral


def same_place(x: Ids, y: Ids) -> bool:
    """Whether both are functions of the same id at every position.

    Example: ``ids`` and ``ids - 8`` are; ``ids`` and their transpose are not.
    """
    return (x.origin, x.axes, x.shape) == (y.origin, y.axes, y.shape)


def of_one_id(p: Ids, *xs: Item) -> bool:
    """Whether items are known, rows, or functions of the id that a predicate is of.

    Example: beside ``ids < 0``, ``ids + 9`` and 0 are; a number that is computed is not, nor are
    other ids.
    """
    known = (isinstance(x, Known | Lookup) or (isinstance(x, Ids) and same_place(p, x)) for x in xs)
    return all(known)


def functions(item: Item, like: Ids, ranks: int) -> tuple[Function, ...]:
    """An operand as functions of the id of ``like``, on every rank.

    Example: beside ids in [0, 32) on four ranks, the constant 7 is four times the function that is
    7 on [0, 32); ids of another input are refused.
    """
    if isinstance(item, Ids):
        if not same_place(item, like):
            raise Unsupported("arithmetic of ids of unlike positions")
        return per_rank(item.functions, ranks)
    if isinstance(item, Known):
        constants = []
        for rank in range(ranks):
            number = Known((item.at(rank),), item.dtype).number()
            if not isinstance(number, int):
                raise Unsupported("ids together with numbers that differ by position")
            constants.append(piecewise.constant(like.functions[0], int(number)))
        return tuple(constants)
    raise Unsupported("ids together with computed numbers")


def _made(low: Lowering, like: Ids, functions: Sequence[Function]) -> Ids:
    same = all(f == functions[0] for f in functions)
    return Ids(like.origin, like.axes, like.shape, tuple(functions[:1] if same else functions))


def _like(xs: Sequence[Item]) -> Ids:
    return next(x for x in xs if isinstance(x, Ids))


def combine(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """Arithmetic, comparisons and logic of ids and constants.

    Example: ``ids < 0`` of ids in [-9, 9) is 1 on [-9, 0) and 0 on [0, 9). Ids compared with an
    iota along a dimension along which they repeat are a one-hot.
    """
    like, ranks = _like(xs), low.graph.ranks
    chosen = _among_positions(low, node, xs)
    if chosen is not None:
        return chosen
    f, g = (functions(x, like, ranks) for x in xs)
    if node.target == "compare":
        direction = node.attrs["direction"]
        return _made(
            low,
            like,
            [piecewise.compare(direction, p, q) for p, q in zip(f, g, strict=True)],
        )
    return _made(
        low, like, [piecewise.combine(node.target, p, q) for p, q in zip(f, g, strict=True)]
    )


def of_one(x: Ids, opcode: str) -> Ids:
    """Minus an integer (``negate``), its magnitude (``abs``) or its ``sign``.

    Example: the sign of ids in [0, 9) is 0 of the id 0, and 1 of all others.
    """
    made = []
    for f in x.functions:
        zero = piecewise.constant(f, 0)
        minus = piecewise.combine("subtract", zero, f)
        if opcode == "sign":
            over, under = (piecewise.compare(d, f, zero) for d in ("GT", "LT"))
            made.append(piecewise.combine("subtract", over, under))
        else:
            made.append(minus if opcode == "negate" else piecewise.combine("maximum", f, minus))
    return replace(x, functions=tuple(made))


def _among_positions(low: Lowering, node: Node, xs: Sequence[Item]) -> Item | None:
    """Whether ids are the positions along a dimension along which they repeat (a one-hot, or 1 less
    it); None: this is no such comparison."""
    for ids, other in (xs, xs[::-1]):
        if not isinstance(ids, Ids) or not isinstance(other, Known):
            continue
        counted = positions(other)
        direction = node.attrs.get("direction")
        if node.target != "compare" or direction not in ("EQ", "NE") or counted is None:
            continue
        dim, firsts = counted
        ranks = low.graph.ranks
        moved = [f[0] for f in ids.functions if len(f) == 1 and f[0].slope == 1]
        have = low.recorder.shape(ids.origin)
        axes = [a for a in ids.axes if a >= 0]
        all_axes = [a for a, n in enumerate(have) if n > 1]
        if ids.axes[dim] >= 0 or sorted(axes) != all_axes:
            return None
        first = firsts * ranks if len(firsts) == 1 else firsts
        if len(moved) < len(ids.functions):
            item = Places(ids, dim, tuple(first))
            value = low.values.places_of(item)
            low.values.places[value] = item
        else:
            offsets = [f[0].offset for f in per_rank(ids.functions, ranks)]
            starts = [a - b for a, b in zip(first, offsets, strict=True)]
            onehot = low.values.onehot(ids.origin, starts, ids.shape[dim])
            table = low.values.view(onehot, (*(have[a] for a in all_axes), ids.shape[dim]))
            places = [*(ids.axes.index(a) for a in all_axes), dim]
            value = low.values.broadcast(table, places, ids.shape)
        if direction == "EQ":
            return Tensor(value)
        negated = low.op("mul", value, other=Fraction(-1))
        return low.op("add", negated.value, other=Fraction(1))
    return None


def positions(x: Known) -> tuple[int, list[int]] | None:
    """The dimension that numbers count along, and the first one on every rank; None: they do not
    count along one dimension.

    Example: ``[[4, 5, 6, 7]]`` is (1, [4]); ``[0, 2, 4]`` is None.
    """
    lines = set()
    firsts = []
    for array in x.arrays:
        core = compact(array)
        moving = [d for d, n in enumerate(core.shape) if n > 1]
        if len(moving) != 1:
            return None
        line = core.reshape(-1).astype(np.int64)
        if not np.array_equal(line, line[0] + np.arange(line.size)):
            return None
        lines.add(moving[0])
        firsts.append(int(line[0]))
    return (lines.pop(), firsts) if len(lines) == 1 else None


def clamp(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """An id between two bounds, each a number or a function of the same id.

    Example: ids in [-3, 32) between 0 and 7: 0 on [-3, 0), the id on [0, 8), 7 on [8, 32).
    """
    like, ranks = _like(xs), low.graph.ranks
    lows, f, highs = (functions(x, like, ranks) for x in xs)
    return _made(
        low,
        like,
        [
            piecewise.combine("minimum", piecewise.combine("maximum", p, a), b)
            for a, p, b in zip(lows, f, highs, strict=True)
        ],
    )


def select(low: Lowering, node: Node, p: Ids, x: Item, y: Item) -> Item:
    """A choice by ids between indices, or between rows and zero.

    Example: ``select(ids < 0, ids + 9, ids)`` of ids in [-9, 9) is id + 9 on [-9, 0) and the id on
    [0, 9). Rows of a vocabulary that is divided, or zero, are a `Lookup` with ``live`` 1 on the
    rank's own ids.
    """
    ranks = low.graph.ranks
    if all(isinstance(i, Ids | Known) for i in (x, y)) and low.dtype(node) != "float32":
        chosen = functions(p, p, ranks)
        f, g = (functions(i, p, ranks) for i in (x, y))
        return _made(
            low, p, [piecewise.select(c, a, b) for c, a, b in zip(chosen, f, g, strict=True)]
        )
    for rows, other, kept in ((x, y, True), (y, x, False)):
        if isinstance(rows, Lookup) and isinstance(other, Known):
            if other.number() == 0:
                return _restricted(low, rows, p, kept)
            raise Narrow(rows.ids.origin, low.recorder.shape(rows.table)[rows.dim])
    raise Unsupported("a choice by ids between what are no rows")


def _restricted(low: Lowering, rows: Lookup, p: Ids, kept: bool) -> Lookup:
    if p.origin != rows.ids.origin:
        raise Unsupported("rows that are chosen by other ids")
    for d, a in enumerate(p.axes):
        if a >= 0 and rows.places[a] != d:
            raise Unsupported("rows that are chosen by ids of other positions")
    ranks = low.graph.ranks
    functions = []
    for live, f in zip(per_rank(rows.live, ranks), per_rank(p.functions, ranks), strict=True):
        functions.append(piecewise.combine("and", live, f if kept else piecewise.negated(f)))
    return Lookup(
        rows.table,
        rows.dim,
        rows.ids,
        rows.equation,
        rows.places,
        rows.dims,
        rows.shape,
        tuple(functions),
    )


def cast(x: Ids, source: str, target: str) -> Ids:
    """Ids of another integer type, where all values fit, or as a predicate: whether the id is not
    zero.

    Example: ids in [-3, 32) fit ``s8``; as ``pred`` they are 0 for the id 0 and 1 for all others.
    """
    if target == "bool" and source != "bool":
        zero = piecewise.constant(x.functions[0], 0)
        return Ids(
            x.origin, x.axes, x.shape, tuple(piecewise.compare("NE", f, zero) for f in x.functions)
        )
    bits = int("".join(c for c in target if c.isdigit()) or 1)
    least, most = (0, 1 << bits) if target[0] in "ub" else (-(1 << bits - 1), 1 << bits - 1)
    for f in x.functions:
        for p in f:
            if not all(least <= p.at(i) < most for i in (p.low, p.high - 1)):
                raise Unsupported(f"a conversion of ids to {target} in which not all fit")
    return x


def broadcast(x: Ids, dims: Sequence[int], shape: Shape) -> Ids:
    """Ids repeated: dimension i becomes dimension ``dims[i]``.

    Example: ids ``s32[4]`` as ``s32[4,9]`` with ``dims`` (0,) have the axes (0, -1).
    """
    axes = [-1] * len(shape)
    for i, d in enumerate(dims):
        axes[d] = x.axes[i]
    return Ids(x.origin, tuple(axes), shape, x.functions)


def reshape(low: Lowering, x: Ids, shape: Shape) -> Item:
    """Ids in another shape: dimensions of one position come and go; other reshapes are of ids
    alone.

    Example: ``s32[4]`` as ``[4, 1]`` has the axes (0, -1); as ``[2, 2]`` it is a view of the input,
    an origin of its own.
    """
    if [n for n in x.shape if n != 1] == [n for n in shape if n != 1]:
        old = [a for a, n in zip(x.axes, x.shape, strict=True) if n != 1]
        axes = iter(old)
        return Ids(x.origin, tuple(next(axes) if n != 1 else -1 for n in shape), shape, x.functions)
    whole = low.recorder.shape(x.origin)
    if x.axes == own_axes(whole) and x.shape == whole:
        # What is computed of each id stays so.
        plain = tuple(piecewise.identity(f[0].low, f[-1].high) for f in x.functions)
        own = Ids(x.origin, x.axes, x.shape, plain)
        viewed = ids_after_move(low, own, ("view", shape), lambda v: low.values.view(v, shape))
        return Ids(viewed.origin, viewed.axes, viewed.shape, x.functions)
    if any(len(f) > 1 or f[0][2:] != (1, 0) for f in x.functions):
        raise Unsupported("a reshape of computed ids")
    return ids_after_move(low, x, ("view", shape), lambda v: low.values.view(v, shape))


def ids_after_move(
    low: Lowering, x: Ids, key: tuple[object, ...], move: Callable[[int], int]
) -> Ids:
    """Ids of which nothing is computed, as a tensor of the body that is moved: an origin of its
    own, the same one for the same move, in the domain of the input whose ids they are.

    Example: ``reshape(ids)`` of ``s32[4]`` as ``[2, 2]``, done twice, is the same ``view`` of the
    input, value 1, with the domain of the input.
    """
    value = low.tensor(x)
    known = low.recorder.known((*key, value))
    origin = move(value) if known is None else known
    low.recorder.once((*key, value), origin)
    if x.origin in low.origins:
        low.origins[origin] = low.origins[x.origin]
    shape = low.recorder.shape(origin)
    _stays_distinct(low, x, key[0], origin)
    return Ids(origin, own_axes(shape), shape, x.functions)


def each_moved(low: Lowering, x: Ids, key: tuple[object, ...], move: Callable[[int], int]) -> Ids:
    """Ids that are moved (`ids_after_move`): what is computed of each id stays so.

    Example: of ``ids - 8`` of ``s32[4]``, positions 1 to 3 are the same function of a slice.
    """
    plain = tuple(piecewise.identity(f[0].low, f[-1].high) for f in x.functions)
    moved = ids_after_move(low, replace(x, functions=plain), key, move)
    return replace(moved, functions=x.functions)


def _stays_distinct(low: Lowering, x: Ids, how: object, origin: int) -> None:
    """Places none of which is twice along an axis are so in a part of them, and where dimensions of
    one position come or go."""
    along, shape = low.distinct.get(x.origin, -1), low.recorder.shape(origin)
    if along < 0 or along not in x.axes:
        return
    dim = x.axes.index(along)
    before, after = ([d for d, n in enumerate(own) if n != 1] for own in (x.shape, shape))
    if how == "slice":
        low.distinct[origin] = dim
    elif (
        how == "view"
        and dim in before
        and [x.shape[d] for d in before] == [shape[d] for d in after]
    ):
        low.distinct[origin] = after[before.index(dim)]


def joined(low: Lowering, xs: Sequence[Item], dim: int) -> Ids | None:
    """Ids of one input and numbers one after the other, as a tensor of the body that is ids, too;
    None: something else is among them.

    Example: labels behind a first word, ``concatenate(0, ids[:, :-1])``, are in the domain of the
    ids, and what follows from a lookup of them is said of the input.
    """
    own = [x for x in xs if isinstance(x, Ids)]
    numbers = [x.number() for x in xs if isinstance(x, Known) and integral(x.dtype)]
    if not own or len(own) + len(numbers) < len(xs):
        return None
    plain = all(len(f) == 1 and f[0][2:] == (1, 0) for x in own for f in x.functions)
    inputs = {low.origins.get(x.origin, -1) for x in own}
    if not plain or len(inputs) > 1 or not all(type(n) is int and n >= 0 for n in numbers):
        return None
    values = [low.tensor(x) for x in xs]
    key = ("joined", dim, *values)
    value = low.recorder.known(key)
    if value is None:
        dtype = low.recorder.values[own[0].origin].dtype
        value = low.recorder.op("concat", *values, dim=dim, dtype=dtype)
        low.recorder.once(key, value)
    if own[0].origin in low.origins:
        low.origins[value] = low.origins[own[0].origin]
    spans = [(f[0].low, f[0].high) for x in own for f in x.functions]
    lowest = min([a for a, _ in spans] + [int(n) for n in numbers])
    highest = max([b for _, b in spans] + [int(n) + 1 for n in numbers])
    shape = low.recorder.shape(value)
    return Ids(value, own_axes(shape), shape, (piecewise.identity(lowest, highest),))


def between(
    low: Lowering, ids: Ids, number: Known, dim: int, before: int, after: int
) -> Ids | None:
    """Ids with one number as often before and after them along a dimension (`joined`).

    Example: ``pad(ids, 0)`` by one position in front.
    """
    parts: list[Item] = [ids]
    for count, place in ((before, 0), (after, 2)):
        if count:
            wide = (*ids.shape[:dim], count, *ids.shape[dim + 1 :])
            first = tuple(a.reshape(-1)[:1] for a in number.arrays)
            parts.insert(place, Known(tuple(np.broadcast_to(a, wide) for a in first), number.dtype))
    return joined(low, parts, dim) if number.number() is not None else None


def own_axes(shape: Shape) -> tuple[int, ...]:
    """The axes of ids that are a tensor of the body as it is: dimensions of one position are not
    counted.

    Example: of shape (4, 1, 6), (0, -1, 2).
    """
    return tuple(d if n != 1 else -1 for d, n in enumerate(shape))


def reshaped(x: Lookup, shape: Shape) -> Lookup | None:
    """A lookup of rows after a reshape in which dimensions of one position come and go; None: it is
    another reshape.

    Example: the row ``f32[6]`` of a lookup as ``[1, 6]`` is a `Lookup` of that shape whose
    dimension 1 is the equation's first; as ``[2, 3]`` it is None.
    """
    if [n for n in x.shape if n != 1] != [n for n in shape if n != 1]:
        return None
    kept = iter([d for d, n in enumerate(shape) if n != 1])
    moved = {d: next(kept) for d, n in enumerate(x.shape) if n != 1}
    free = [d for d, n in enumerate(shape) if n == 1]
    if any(x.shape[d] == 1 for d in x.dims) and len(free) < sum(x.shape[d] == 1 for d in x.dims):
        return None
    ones = iter(free)
    dims = tuple(moved[d] if d in moved else next(ones) for d in x.dims)
    places = tuple(moved.get(d, -1) for d in x.places)
    return Lookup(x.table, x.dim, x.ids, x.equation, places, dims, shape, x.live)


def transpose(x: Ids, dims: Sequence[int]) -> Ids:
    """Ids with their dimensions in another order.

    Example: ids of axes (0, 1), transposed by (1, 0), have the axes (1, 0).
    """
    return Ids(
        x.origin,
        tuple(x.axes[d] for d in dims),
        tuple(x.shape[d] for d in dims),
        x.functions,
    )


def reduce(low: Lowering, x: Ids, dims: Sequence[int], shape: Shape, how: str, start: Item) -> Item:
    """A reduction of ids over dimensions of one position, which gives the ids.

    Example: ``reduce(p, true)`` by "and" of ``pred[4,1]`` over dimension 1 is ``p`` as ``[4]``;
    from false it is refused.
    """
    neutral = {"and": True, "or": False, "add": 0}.get(how)
    if any(x.shape[d] != 1 for d in dims) or not isinstance(start, Known) or neutral is None:
        raise Unsupported(f"a reduction of ids by {how}")
    if start.number() != neutral:
        raise Unsupported(f"a reduction of ids by {how} from {start.number()}")
    return reshape(low, x, shape)

"""What a value of a graph is while it is lowered: an engine value, or something still symbolic.

Constants stay constants, integers computed of ids stay functions of the id (`Ids`), a gather stays
a `Lookup` until it is known which rows it really reads.  `Values.tensor` makes an engine value of
any, or refuses by name.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

import numpy as np

from shardproof.engine.errors import Unsupported
from shardproof.engine.plan.assumption import Assumption
from shardproof.frontends.builder import piecewise
from shardproof.frontends.builder.piecewise import Function, chosen_rows
from shardproof.frontends.graphs.graph import PerRank, Shape
from shardproof.frontends.graphs.recorder import Recorder
from shardproof.frontends.hlo import exchange, orders, origins, own_numbers, repeats
from shardproof.frontends.hlo.endless import Endless, Lowest
from shardproof.frontends.hlo.exchange import Exchanged
from shardproof.frontends.hlo.expressions import Expressions
from shardproof.frontends.hlo.known import Known, compact, core, exact, flags
from shardproof.frontends.hlo.module import Array
from shardproof.frontends.hlo.repeats import Part
from shardproof.frontends.hlo.written import Spots, Written


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value of the body that is being written.  Example: ``Tensor(2)``, of ``add(x, z)`` of the
    first two inputs."""

    value: int


@dataclass(frozen=True, slots=True)
class Ids:
    """An integer, or a predicate (0 or 1), that is a function of one integer tensor of the body.

    Example: of an input ``s32[4]`` with ids in [-9, 9), value 0, broadcast along a second
    dimension, ``i + 9`` has the axes (0, -1) and the function ``Piece(-9, 9, 1, 9)``.

    ``axes``: for every dimension, the dimension of the origin that it is, or -1 (repeated, or of
    one position);
    ``functions``: one for all ranks, or one for each.
    """

    origin: int
    axes: tuple[int, ...]
    shape: Shape
    functions: tuple[Function, ...]

    def number(self) -> int | None:
        """The one number that it is, on all ranks and for all ids."""
        numbers = {piecewise.value(f) for f in self.functions}
        return numbers.pop() if len(numbers) == 1 else None


@dataclass(frozen=True, slots=True)
class Lookup:
    """Rows of ``table`` chosen along ``dim`` by ids: ``equation`` takes the one-hot of the ids'
    origin (its axes, then the chosen dimension) and the table to the result.

    Example: rows of an embedding ``f32[32,8]``, value 0, by ids ``s32[4,6]`` have the equation
    ``abv,vc->abc``, the places (0, 1) and the dims (0, 1, 2).

    ``ids``: of a row, for every rank; ``live``: 1 for ids whose rows count, 0 where the result is
    zero instead; ``places``: which dimension of the result each axis of the origin is (-1: none);
    ``dims``: which dimension of the result each one that the equation gives is.
    """

    table: int
    dim: int
    ids: Ids
    equation: str
    places: tuple[int, ...]
    dims: tuple[int, ...]
    shape: Shape
    live: tuple[Function, ...]


@dataclass(frozen=True, slots=True)
class Places:
    """Where ids are the numbers that count along dimension ``dim``, from ``firsts[rank]`` on.

    Example: ``ids == iota`` of ids ``s32[4]``, repeated along dimension 1 of ``[4, 9]``, on two
    ranks: the dimension 1 and the firsts (0, 0).
    """

    ids: Ids
    dim: int
    firsts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Vectors:
    """Vectors of indices along the last dimension: every index by itself, of shape [..., 1].

    Example: of ``x[jnp.arange(4), ids]``: a known count and ids, both of shape (4, 1), together of
    shape (4, 2).
    """

    parts: tuple[Ids | Known, ...]
    shape: Shape


@dataclass(frozen=True, slots=True)
class Gated:
    """``value`` where a predicate of ids of its shape holds, zero elsewhere.  Example:
    ``select(ids != 0, x, 0)``, so that ``x`` of other ids than 0 counts."""

    value: int
    gate: Ids

    @property
    def shape(self) -> Shape:
        """That of the gate."""
        return self.gate.shape


@dataclass(frozen=True, slots=True)
class Either:
    """``yes`` where a predicate is 1, ``no`` where it is 0: one of two integers, or what is made of
    each (`either`).  Example: ``select(mask, ids, 7)`` of a mask that is computed."""

    gate: Ids
    yes: Item
    no: Item
    shape: Shape


@dataclass(frozen=True, slots=True)
class Bits:
    """Integers (or what is made of them) of which only expressions are known: their numbers, once
    for all ranks, or for each.

    Example: ``xor`` of both elements of a key ``u32[2]`` is
    ``Bits((array([2]),), (1,), "uint32")``: expression 2, of the expressions 0 and 1.
    """

    arrays: tuple[Array, ...]
    shape: Shape
    dtype: str


#: What is assumed where bits become numbers.
RANDOM = (
    "bits of a random generator are any numbers, other ones for every other expression of its key; "
    "a number drawn of them lies strictly inside its interval"
)
#: Whole numbers that are drawn lie below this one.
MOST_DRAWN = 1 << 30
#: Places at which another function of an id begins, where it becomes a number.
MOST_KINKS = 8

Item: TypeAlias = (
    "Tensor|Known|Ids|Lookup|Vectors|Gated|Either|Bits|Exchanged|Endless|Lowest|Written|Spots"
)


class Narrow(Exception):
    """Ids of an origin must lie in [0, rows) for a lookup to read rows that exist."""

    def __init__(self, origin: int, rows: int) -> None:
        super().__init__(f"ids of value {origin} choose among {rows} rows")
        self.origin = origin
        self.rows = rows


def per_rank(functions: Sequence[Function], ranks: int) -> tuple[Function, ...]:
    """One function for every rank: a single one serves all.

    Example: one function on three ranks is three times that function.
    """
    return tuple(functions) * ranks if len(functions) == 1 else tuple(functions)


def table_of(numbers: Sequence[int]) -> int | PerRank:
    """An attribute from its number on each rank: one number where all are equal.

    Example: ``[0, 4, 8]`` is ``PerRank((0, 4, 8))``, ``[4, 4]`` is 4.
    """
    return numbers[0] if len(set(numbers)) == 1 else PerRank(tuple(numbers))


class Values:
    """Makes values of the body of items, each of them once.

    Example: ``tensor`` of a `Lookup` is a ``onehot`` of the ids and an ``einsum`` with the rows.
    """

    def __init__(
        self,
        recorder: Recorder,
        expressions: Expressions,
        settled: bool = True,
        tables: Sequence[Array] = (),
        by_order: bool = False,
    ) -> None:
        """``settled``: ids stay in their domains; ``tables``: constants of unlike numbers that the
        other side has; ``by_order``: causal masks are no constants."""
        self.recorder, self.expressions, self.settled = recorder, expressions, settled
        self.tables, self.by_order = tables, by_order
        #: Lookups, and ids of which several are one number beside positions, by their value.
        self.lookups, self.places = dict[int, Lookup](), dict[int, Places]()
        #: What is zero without a predicate by how it is made; products with predicates, by value.
        self.bare, self.gated = set[tuple[int, Ids]](), dict[int, Gated]()

    def tensor(self, item: Item) -> int:
        """The value that an item becomes once an operator computes with it; equal items become one
        value."""
        match item:
            case Tensor(value):
                return value
            case Known():
                return self.known(item)
            case Gated(value, gate):
                known = self.recorder.known(("gated", value, gate))
                if known is None and (value, gate) in self.bare:
                    return value
                if known is None:
                    known = self.ids(gate)
                    if value != self.full(gate.shape, Fraction(1)):
                        known = self.recorder.op("mul", known, value)
                        self.gated[known] = item
                return self.recorder.once(("gated", value, gate), known)
            case Bits():
                return self.bits(item)
            case Vectors() | Either() | Written() | Spots():
                raise Unsupported("indices read as numbers")
            case Endless() | Lowest():
                raise Unsupported("the constant inf")
            case Ids() | Lookup() | Exchanged():
                emitted = self.recorder.known(("item", item))
                if emitted is None:
                    emitted = self._emitted(item)
                return self.recorder.once(("item", item), emitted)

    def _emitted(self, item: Ids | Lookup | Exchanged) -> int:
        """The operators of an item, appended to the body."""
        match item:
            case Ids():
                return self.ids(item)
            case Lookup():
                return self.lookup(item)
            case Exchanged():
                return exchange.plain(self.recorder, item)

    # -- constants --------------------------------------------------------------------------

    def known(self, item: Known) -> int:
        """Known numbers as a value; raises `Unsupported` for numbers that are not finite."""
        number = item.number()
        if number is not None:
            return self.full(item.shape, exact(number))
        if any(not np.all(np.isfinite(compact(a).astype(np.float64))) for a in item.arrays):
            raise Unsupported("a constant with numbers that are not finite")
        if (factored := flags(item)) is not None:
            return self.recorder.op("mul", self.known(factored[0]), other=exact(factored[1]))
        if (parts := origins.parts(item, self.tables)) is not None:
            blocks = [self.recorder.constant(block.arrays, block.begins) for block in parts.blocks]
            return self.broadcast(parts.joined(self.recorder, blocks), parts.dims, item.shape)
        if all(compact(a).size and compact(a).min() == compact(a).max() for a in item.arrays):
            return self.by_rank([compact(a).reshape(-1)[0].item() for a in item.arrays], item.shape)
        cores = [core(a) for a in item.arrays]
        wide = tuple(max(c.shape[d] for c in cores) for d in range(len(item.shape)))
        kept = tuple(d for d, n in enumerate(wide) if n > 1)
        line = tuple(wide[d] for d in kept)
        own = [np.broadcast_to(c, wide).reshape(line) for c in cores]
        beside = self.by_rank, self.by_order, self.tables
        if (made := orders.ordered(self.recorder, own, *beside)) is not None:
            return self.broadcast(made, kept, item.shape)
        shape = origins.row(own, line, self.tables) or line or (1,)
        value = self.recorder.constant([c.reshape(shape) for c in own])
        return self.broadcast(self.view(value, line), kept, item.shape)

    def by_rank(self, numbers: Sequence[object], shape: Shape) -> int:
        """A tensor of one number on each rank (`own_numbers.by_rank`)."""
        return own_numbers.by_rank(self, [exact(n) for n in numbers], shape)

    def full(self, shape: Shape, number: Fraction) -> int:
        """A tensor of one number, one value for each shape and number."""
        key = ("full", shape, number)
        if (value := self.recorder.known(key)) is None:
            value = self.recorder.once(key, self.recorder.op("full", size=shape, value=number))
        return value

    def broadcast(self, value: int, dims: Sequence[int], shape: Shape) -> int:
        """Dimension i of the value becomes dimension ``dims[i]``, others are new."""
        order = sorted(range(len(dims)), key=lambda i: dims[i])
        if order != list(range(len(dims))):
            value = self.recorder.op("permute", value, dims=tuple(order))
        have = self.recorder.shape(value)
        wide = [1] * len(shape)
        for i, d in enumerate(sorted(dims)):
            wide[d] = have[i]
        value = self.view(value, tuple(wide))
        if tuple(wide) != shape:
            value = self.recorder.op("expand", value, size=shape)
        return value

    def view(self, value: int, shape: Shape) -> int:
        """The value in another shape; in its own shape, itself."""
        if self.recorder.shape(value) == shape:
            return value
        dtype = self.recorder.values[value].dtype
        return self.recorder.op("view", value, size=shape, dtype=dtype)

    def bits(self, item: Bits) -> int:
        """Bits as a value of the body: a float of a random fraction is 1 plus a number between 0
        and 1, the sigmoid of any number; a predicate is 0 or 1."""
        self.recorder.notes.append(Assumption("inferred", "random bits", "", RANDOM))
        arrays = [np.ascontiguousarray(a) for a in item.arrays]
        if item.dtype == "float32":
            inside = self.recorder.op("sigmoid", self.recorder.drawn(arrays, "float32", None))
            return self.recorder.op("add", inside, other=Fraction(1))
        if item.dtype != "bool" and not item.dtype.startswith(("int", "uint")):
            raise Unsupported(f"random bits as {item.dtype}")
        domain = self.drawn_from(item)
        return self.recorder.drawn(arrays, "float32" if domain is None else "int32", domain)

    def drawn_from(self, item: Bits) -> tuple[int, int] | None:
        """Between which whole numbers bits lie, as their expressions say; None: they are taken for
        any numbers."""
        numbers = np.unique(np.concatenate([a.reshape(-1) for a in item.arrays]))
        spans = [self.expressions.interval(int(number)) for number in numbers]
        known = [span for span in spans if span is not None]
        if not known or len(known) < len(spans):
            return None
        low, high = min(s[0] for s in known), max(s[1] for s in known)
        return (low, high) if low >= 0 and high <= MOST_DRAWN else None

    # -- ids --------------------------------------------------------------------------------

    def ids(self, item: Ids) -> int:
        """What is computed of ids, as numbers: the first rule, and from every place where another
        begins what that one adds to it."""
        number = item.number()
        if number is not None:
            return self.full(item.shape, Fraction(number))
        if len(set(item.functions)) != 1:
            return self.own(item, self.inside(item))
        (slope, offset), *others = [(p.slope, p.offset) for p in item.functions[0]]
        if len(others) > MOST_KINKS:
            raise Unsupported("a number that is different functions of an id in many intervals")
        own = self.own(item)
        value = self.line(own, slope, offset)
        for piece, after in itertools.pairwise(item.functions[0]):
            rise = self.line(own, after.slope - piece.slope, after.offset - piece.offset)
            at = Fraction(1 - 2 * after.low, 2)
            over = self.recorder.op("step", self.recorder.op("add", own, other=at))
            value = self.recorder.op("add", value, self.recorder.op("mul", rise, over))
        return value

    def line(self, x: int, slope: int, offset: int) -> int:
        """slope x + offset."""
        if slope == 0:
            return self.full(self.recorder.shape(x), Fraction(offset))
        value = x if slope == 1 else self.recorder.op("mul", x, other=Fraction(slope))
        return self.recorder.op("add", value, other=Fraction(offset)) if offset else value

    def inside(self, item: Ids) -> int:
        """Whether ids lie in an interval, another one of the same size on each rank: how often
        they are one of its numbers."""
        spans = [piecewise.span(f) for f in per_rank(item.functions, self.recorder.ranks)]
        sizes = {s[1] - s[0] for s in spans if s is not None}
        if None in spans or len(sizes) != 1:
            raise Unsupported("a number that is different functions of an id on different ranks")
        onehot = self.onehot(item.origin, [s[0] for s in spans if s is not None], sizes.pop())
        *lead, size = self.recorder.shape(onehot)
        if size == 1:
            return self.view(onehot, tuple(lead))
        return self.recorder.op("sum", onehot, dim=(len(lead),))

    def own(self, item: Ids, value: int = -1) -> int:
        """The ids themselves, or what is made of each, where the item's positions are."""
        kept = sorted((a, d) for d, a in enumerate(item.axes) if a >= 0)
        value = item.origin if value < 0 else value
        have = self.recorder.shape(value)
        if len({a for a, _ in kept}) < len(kept):
            raise Unsupported("ids along two dimensions at once")
        value = self.view(value, tuple(have[a] for a, _ in kept))
        return self.broadcast(value, [d for _, d in kept], item.shape)

    def lookup(self, item: Lookup) -> int:
        """A one-hot of the ids, contracted with the rows that they can choose."""
        ranks = self.recorder.ranks
        rows = self.recorder.shape(item.table)[item.dim]
        functions, live = per_rank(item.ids.functions, ranks), per_rank(item.live, ranks)
        windows = [chosen_rows(f, own, rows) for f, own in zip(functions, live, strict=True)]
        sizes = {-1 if parts is None else len(parts) for parts in windows}
        if (-1 in sizes or len(sizes) > 1) and not self.settled and piecewise.vary(functions):
            raise Narrow(item.ids.origin, rows)
        if not any(windows) and None not in windows:
            return self.full(item.shape, Fraction(0))
        chosen = [self.rows(item, part) for part in repeats.parts(functions, live, rows)]
        total = chosen[0]
        for other in chosen[1:]:
            total = self.recorder.op("add", total, other)
        value = self.broadcast(total, item.dims, item.shape)
        self.lookups[value] = item
        return value

    def rows(self, item: Lookup, part: Part) -> int:
        """Rows of a lookup for one interval of ids on each rank, zero for all others."""
        table, count = item.table, 1 if part.one else part.size
        if count < self.recorder.shape(table)[item.dim]:
            table = self.recorder.op("slice", table, dim=item.dim, start=part.row, size=count)
        chosen = self.contracted(self.choice(item.ids.origin, part), table, item.equation)
        return self.of_ranks(part, chosen)

    def of_ranks(self, part: Part, value: int) -> int:
        """What is made of a `choice`, where it is of all ids that there are: zero on ranks that
        lack the part.  Example: row 7 of a table, and zeros on ranks that have other rows."""
        if not part.every or all(part.there()):
            return value
        shape = self.recorder.shape(value)
        sides = (self.view(v, (1, *shape)) for v in (self.full(shape, Fraction(0)), value))
        both = self.recorder.op("concat", *sides, dim=0)
        own = self.recorder.op("slice", both, dim=0, start=PerRank(tuple(part.there())), size=1)
        return self.view(own, shape)

    def contracted(self, onehot: int, other: int, equation: str) -> int:
        """One-hots of ids with rows, or with what is added to rows; a dimension of one position
        that the ids alone have is no sum over it.

        Example: by ``abv,vc->bc`` with ids of shape [1, 4], ``einsum`` by ``bv,vc->bc`` of these as
        [4].
        """
        reads, result = equation.split("->")
        own, given = reads.split(",")
        shape = self.recorder.shape(onehot)
        kept = [d for d, a in enumerate(own) if shape[d] > 1 or a in given + result]
        onehot = self.view(onehot, tuple(shape[d] for d in kept))
        equation = f"{''.join(own[d] for d in kept)},{given}->{result}"
        return self.recorder.op("einsum", onehot, other, equation=equation)

    def choice(self, origin: int, part: Part) -> int:
        """[ids, rows]: 1 where the id chooses the row of the part.

        Example: of ``Part((0, 12), 0, 12, False)`` the ``onehot`` of the ids from 0 or 12 on; of
        all ids that there are, ones.
        """
        lead = self.recorder.shape(origin)
        if part.every:
            return self.full((*lead, 1), Fraction(1))
        onehot = self.onehot(origin, part.ids, part.size)
        if not part.one or part.size == 1:
            return onehot
        return self.view(self.recorder.op("sum", onehot, dim=(len(lead),)), (*lead, 1))

    def places_of(self, item: Places, live: Sequence[Function] = ()) -> int:
        """1 where an id is the position, else 0; ``live``: for which ids at all, on every rank.

        Example: of ``max(ids, 0) == iota`` of ids in [-1, 9), the one-hot of the ids, and a 1 at
        position 0 for the id -1.
        """
        ids, ranks = item.ids, self.recorder.ranks
        count, have = ids.shape[item.dim], self.recorder.shape(ids.origin)
        every = (piecewise.constant(ids.functions[0], 1),)
        numbers, counted = [], []
        for f, own, first in zip(
            per_rank(ids.functions, ranks), per_rank(live or every, ranks), item.firsts, strict=True
        ):
            number = piecewise.combine("subtract", f, piecewise.constant(f, first))
            numbers.append(number)
            counted.append(piecewise.combine("and", repeats.inside(number, count), own))
        total: int | None = None
        for part in repeats.parts(numbers, counted, count):
            value = self.of_ranks(part, self.choice(ids.origin, part))
            size = self.recorder.shape(value)[-1]
            sides = [(*have, n) for n in (part.row, count - part.row - size)]
            before, after = ([self.full(z, Fraction(0))] if z[-1] else [] for z in sides)
            if before or after:
                value = self.recorder.op("concat", *before, value, *after, dim=len(have))
            total = value if total is None else self.recorder.op("add", total, value)
        if total is None:
            return self.full(ids.shape, Fraction(0))
        axes = [a for a, n in enumerate(have) if n > 1]
        table = self.view(total, (*(have[a] for a in axes), count))
        return self.broadcast(table, [*(ids.axes.index(a) for a in axes), item.dim], ids.shape)

    def onehot(self, origin: int, starts: Sequence[int], size: int) -> int:
        """[ids, classes]: 1 where the id is the class; classes begin at each rank's own start."""
        key = ("onehot", origin, tuple(starts), size)
        if (value := self.recorder.known(key)) is None:
            value = self.recorder.op("onehot", origin, start=table_of(starts), size=size)
            self.recorder.once(key, value)
        return value

"""How many positions of an axis have to stand for all of them.

An entry of either side of a claim is a polynomial: sums over positions, of products of letters that
are indexed by positions. Along one class of digits (those that one index runs along somewhere in
the claim) a level of it has so many *free* labels, which the entry's own place fixes, and so many
*summed* ones that are multiplied with one another. If every piece of the class keeps as many
positions as both together, equality at these is equality at all (docs/soundness.md, section 5.3).
The arguments of functions are levels of their own; any two of one function are compared, so the
free labels of both count.

Counted are the definitions that a claim reads and the declaration of its operator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations_with_replacement
from typing import NamedTuple

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.claims.claim import Claim
from shardproof.engine.claims.cone import Cone, operands
from shardproof.engine.errors import Unsupported
from shardproof.engine.lineage.expressions import (
    Amax,
    Combine,
    Einsum,
    Labelled,
    Most,
    Onehot,
    Operand,
    Restrict,
    Select,
    Unary,
)
from shardproof.engine.lineage.lineage import Lineage
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.lineage.places import has_places
from shardproof.engine.ops.primitives import Selection
from shardproof.engine.small_model.classes import Class, Classes, Count, coordinate
from shardproof.engine.small_model.mixed_radix import Axis, MixedRadix, Relation
from shardproof.engine.small_model.related import applied, names_of, related, relations_of
from shardproof.engine.small_model.shared_dims import Digit, Relating
from shardproof.engine.small_model.shared_dims import Tensor as Dims

#: Functions whose argument something is divided by: of a logarithm, where an exponential is of it.
DIVISORS = ("inv", "log")
#: Functions that `engine.obligations.logistic` writes as one another.
LOGISTIC = ("sigmoid", "tanh", "exp")
#: Classes along which differs what a value is divided by.
Below = frozenset[Class]
NOTHING: Below = frozenset()


class Level(NamedTuple):
    """The labels of a polynomial, by class, and how many of each.

    Example: an entry of a matrix product has its row and its column as free labels, and one summed
    one.
    """

    free: Count
    summed: Count


@dataclass
class Levels:
    """The arguments of functions, by the function's name.

    Example: of ``exp(x) + exp(y)`` two arguments under "exp", of which any two are compared.
    """

    of: dict[str, list[Level]] = field(default_factory=dict)
    #: Whether a sum runs along what something is divided by inside it.
    over_divisors: bool = False

    def add(self, name: str, level: Level) -> None:
        """An argument of a function, noted once."""
        levels = self.of.setdefault(name, [])
        if level not in levels:
            levels.append(level)

    def divisors(self) -> Level:
        """The most labels of what is divided by; an exponential of less a logarithm divides, too.

        Example: of ``sum(e) / sum(e)`` one summed one, that of ``e``.
        """
        free: Count = Counter()
        summed: Count = Counter()
        for name in DIVISORS:
            for level in self.of.get(name, ()):
                free, summed = free | level.free, summed | level.summed
        return Level(free, summed)

    def sum_over(self, labels: Count, below: Below) -> None:
        """A sum along labels, of what is divided by what differs along ``below``.

        Example: ``sum over b of g[b] / t[b]`` runs along what is divided by.
        """
        self.over_divisors |= not below.isdisjoint(+labels)

    def pairs(self) -> Count:
        """The most labels of two arguments that are compared.  What is an argument of a reciprocal
        may become one of a logarithm, and that of an exponential one of a logistic function."""
        most: Count = Counter()
        compared = dict(self.of)
        if "log" in compared:
            compared["log"] = [*compared["log"], *compared.get("inv", ())]
        # Logistic functions and exponentials are written as one another.
        compared["sigmoid"] = [x for name in LOGISTIC for x in self.of.get(name, ())]
        for levels in compared.values():
            for one, other in combinations_with_replacement(levels, 2):
                most |= one.free + other.free + (one.summed | other.summed)
        return most


class Definitions:
    """The levels of the definitions that a claim reads.

    Example: of ``n3 = einsum(n1[a:4, b:16], n2[c:8, b:16] -> a c)`` ``summed(3)`` is one label, of
    the class of ``b``.
    """

    def __init__(self, nodes: NodeTable, classes: Classes, cone: Cone, levels: Levels) -> None:
        self.nodes = nodes
        self.classes = classes
        self.defined = cone.defined
        self.levels = levels
        self.known: dict[int, Count] = {}
        self._below: dict[int, Below] = {}
        for number in sorted(cone.defined):
            self._note(number)

    def summed(self, number: int) -> Count:
        """The labels that an entry of a node sums over, as far as they are multiplied."""
        if number not in self.defined:
            return Counter()
        if number not in self.known:
            self.known[number] = self._summed(number)
        return self.known[number]

    def lineage(self, lineage: Lineage) -> Count:
        """The labels that an entry of a lineage sums over, as far as they are multiplied: the most
        of its addends'."""
        labels: Count = Counter()
        for addend in lineage.addends:
            labels |= self.summed(addend.node)
        return labels

    def below(self, lineage: Lineage) -> Below:
        """Along what an entry of a lineage is divided by different values.

        Example: the classes of ``b`` for a view of ``g[b, k] / S[b]``.
        """
        return NOTHING.union(*(self._divided(addend.node) for addend in lineage.addends))

    def _divided(self, number: int) -> Below:
        """Definitions name earlier nodes, and all were noted in order."""
        return self._below.get(number, NOTHING)

    def _note_divisors(self, number: int) -> None:
        node = self.nodes[number]
        definition = node.definition
        inner = NOTHING.union(*(self._divided(n) for n in definition.children()))
        match definition:
            case Unary(function=function):
                axes = [c for i, n in enumerate(node.extents) for c in self._axis((number, i), n)]
                self._below[number] = divided_by(function, axes, inner)
            case Einsum():
                self.levels.sum_over(self._reduced(number, definition), inner)
                self._below[number] = inner
            case Combine() | Restrict():
                self._below[number] = inner

    def _axis(self, axis: Axis, extent: int) -> list[Class]:
        return self.classes.along(axis, 1, extent)

    def _reduced(self, number: int, read: Labelled) -> Count:
        """The reduced labels of a definition."""
        extents = {
            x: e for o in read.reads() for _, _, e, x in o.intervals if x not in read.outputs
        }
        return Counter(c for x, e in extents.items() for c in self._axis((number, -1 - x), e))

    def _fixed(self, read: Operand) -> Count:
        """Positions that a definition reads by their number are labels, too."""
        return Counter(
            c
            for axis, stride, extent, _ in read.fixed
            for c in self.classes.along((read.node, axis), stride, extent)
        )

    def _summed(self, number: int) -> Count:
        reads = operands(self.nodes, number)
        below = [self.summed(read.node) + self._fixed(read) for read in reads]
        labels: Count = Counter()
        match self.nodes[number].definition:
            case Einsum() as read:
                for part in below:
                    labels += part
                labels += self._reduced(number, read)
            case Combine():
                for part in below:
                    labels |= part
            case Restrict(node=operand):
                labels += self.summed(operand)
        return labels

    def _note(self, number: int) -> None:
        self._note_divisors(number)
        node = self.nodes[number]
        definition = node.definition
        if not isinstance(definition, Unary | Onehot | Amax | Most | Select):
            return
        axes = Counter(c for i, n in enumerate(node.extents) for c in self._axis((number, i), n))
        if isinstance(definition, Amax | Select):
            axes += self._reduced(number, definition)
        for read in definition.reads():
            axes += self._fixed(read)
        name = definition.function if isinstance(definition, Unary) else definition.kind
        # The maximum of several is one set of entries with the maximum along an axis.
        name = Amax.kind if isinstance(definition, Most) else name
        for operand in definition.children():
            self.levels.add(name, Level(axes, self.summed(operand)))


def divided_by(function: str, labels: Iterable[Class], inner: Below) -> Below:
    """Along what a function of a value is divided by different values; ``labels``: of the value,
    ``inner``: along what that is divided by different values.

    Example: ``1 / t[b]`` along ``b``; ``tanh`` of it is a symbol, and divided by nothing.
    """
    if function in DIVISORS:
        return inner.union(labels)
    return inner if function == "exp" else NOTHING


class Counted(NamedTuple):
    """A tensor of `Counting`: its dimensions, the labels that its entries sum over, and along what
    they are divided by different values.

    Example: the product of [4, 16] and [8, 16] has dimensions of 4 and 8, and sums over one label.
    """

    dims: Dims
    summed: Count
    below: Below = NOTHING


class Counting:
    """A `engine.ops.primitives.Interpreter` that counts labels; dimensions are those of `Relating`,
    whose numbers are the same whenever an operator is read.  ``along``: the classes of a digit.

    Example: ``apply_forward(counting, "linear", [x, w], {})``, where x and w are `Counted`.
    """

    def __init__(
        self, along: Callable[[Digit], Iterable[Class]], levels: Levels, relating: Relating
    ) -> None:
        self.relating = relating
        self.along = along
        self.levels = levels

    def labels(self, dims: Iterable[Sequence[Digit]]) -> Count:
        """The classes along dimensions, each as often as it occurs."""
        return Counter(c for dim in dims for digit in dim for c in self.along(digit))

    def shape(self, x: Counted) -> tuple[int, ...]:
        """The sizes of the dimensions."""
        return self.relating.shape(x.dims)

    def _function(self, name: str, x: Counted, dims: Dims) -> Counted:
        self.levels.add(name, Level(self.labels(x.dims), x.summed))
        return Counted(dims, Counter())

    def combine(
        self, xs: Sequence[Counted], factors: Sequence[Fraction], constant: Fraction
    ) -> Counted:
        """A sum multiplies nothing: the larger count of its addends."""
        dims = self.relating.combine([x.dims for x in xs], factors, constant)
        return Counted(dims, _most(x.summed for x in xs), _below(xs))

    def unary(self, function: str, x: Counted) -> Counted:
        """The argument is noted; the result is one symbol, which sums nothing."""
        below = divided_by(function, self.labels(x.dims), x.below)
        return self._function(function, x, x.dims)._replace(below=below)

    def einsum(self, spec: str, *xs: Counted, sizes: Mapping[str, int] | None = None) -> Counted:
        """A product adds the counts of its factors, and one for every label that it sums over."""
        dims = self.relating.einsum(spec, *(x.dims for x in xs), sizes=sizes)
        left, output = spec.split("->")
        digits = {
            name: dim
            for names, x in zip(left.split(","), xs, strict=True)
            for name, dim in zip(names, x.dims, strict=True)
        }
        summed = self.labels(dim for name, dim in digits.items() if name not in output)
        self.levels.sum_over(summed, _below(xs))
        for x in xs:
            summed += x.summed
        return Counted(dims, summed, _below(xs))

    def reshape(self, x: Counted, shape: tuple[int, ...]) -> Counted:
        """The same entries and counts."""
        return x._replace(dims=self.relating.reshape(x.dims, shape))

    def slice(self, x: Counted, dim: int, start: Affine, size: int) -> Counted:
        """The same counts on a part of a dimension."""
        return x._replace(dims=self.relating.slice(x.dims, dim, start, size))

    def concat(self, xs: Sequence[Counted], dim: int) -> Counted:
        """The larger count of what is joined."""
        dims = self.relating.concat([x.dims for x in xs], dim)
        return Counted(dims, _most(x.summed for x in xs), _below(xs))

    def amax(self, x: Counted, dim: int) -> Counted:
        """The maximum over a dimension: a function of all entries along it, noted with them."""
        return self._function("amax", x, self.relating.amax(x.dims, dim))

    def onehot(self, ids: Counted, start: Affine, size: int) -> Counted:
        """A function of the ids, noted with them."""
        return self._function("onehot", ids, self.relating.onehot(ids.dims, start, size))

    def causal(self, queries: int, keys: int) -> Counted:
        """A mask reads no sum."""
        return Counted(self.relating.causal(queries, keys), Counter())

    def order(self, queries: int, keys: int) -> Counted:
        """A mask reads no sum."""
        return self.causal(queries, keys)

    def select(self, scores: Counted, selection: Selection) -> Counted:
        """A function of a row's scores, noted with them."""
        return self._function("select", scores, self.relating.select(scores.dims, selection))

    def constant(self, name: str) -> Counted:
        """A table reads no sum."""
        return Counted(self.relating.constant(name), Counter())


def _most(counts: Iterable[Count]) -> Count:
    most: Count = Counter()
    for count in counts:
        most |= count
    return most


def _below(xs: Iterable[Counted]) -> Below:
    return NOTHING.union(*(x.below for x in xs))


class Requirements:
    """Positions that a piece of a digit has to keep.

    Example: of ``y[i,j] + y[j,k] + y[k,i] = y[j,i] + y[k,j] + y[i,k]``, where i, j and k are one
    class, 3: two positions would make it true.

    ``entries``: the levels of what is compared entry by entry; their free labels are the same on
    both sides.
    """

    def __init__(self, classes: Classes, entries: Sequence[Level], levels: Levels) -> None:
        self.classes = classes
        self.most = levels.pairs()
        self.ordered: Count = Counter()
        self._divisors = None if levels.over_divisors else levels.divisors()
        for level in (*entries, *(x for arguments in levels.of.values() for x in arguments)):
            labels = level.free + level.summed
            self.most |= labels
            together: Count = Counter()
            for label, count in labels.items():
                together[classes.order(label)] += count
            self.ordered |= together

    def times_divisors(self, factors: int, different: int) -> Requirements | None:
        """What is enough where both sides of an equality are multiplied by so many of what they are
        divided by; None where that differs along a sum.

        Example: of ``sum(e) / S == 1`` one position more, since ``S`` is a sum as well.
        """
        if self._divisors is None:
            return None
        free, summed = self._divisors
        more = Counter({c: n * different for c, n in free.items()})
        more.update({c: n * factors for c, n in summed.items()})
        result = copy(self)
        result.most, result.ordered = self.most + more, Counter(self.ordered)
        for label, count in more.items():
            result.ordered[self.classes.order(label)] += count
        return result

    def of(self, axis: Axis, stride: int, extent: int) -> int:
        """How many positions a piece of (all digits of) an interval of an axis has to keep."""
        digits = self.classes.along(axis, stride, extent)
        return max(
            (max(self.most[c], self.ordered[self.classes.order(c)]) for c in digits), default=0
        )


def enough(
    nodes: NodeTable, claim: Claim, cone: Cone, relations: Sequence[Relation]
) -> Requirements:
    """How many positions are enough for a claim. ``relations``: what its operator takes for one
    another (`engine.small_model.related.related`). Raises `Unsupported` where digits do not fit one
    another.

    Example: of ``y = linear(x, w)`` one position of the rows of ``x``, of those of ``w``, and of
    the columns of both.
    """
    lineages = [*(x for x in claim.inputs if x is not None), *claim.outputs]
    try:
        return _enough(nodes, claim, cone, relations, coarse=False)
    except Unsupported:
        if not has_places(*lineages):
            raise
        # Values side by side that are split in different ways: their dimension is one digit.
        return _enough(nodes, claim, cone, related(claim, coarse=True), coarse=True)


def _enough(
    nodes: NodeTable, claim: Claim, cone: Cone, relations: Sequence[Relation], *, coarse: bool
) -> Requirements:
    given = [x for x in claim.inputs if x is not None]
    lineages = [*given, *claim.outputs]
    numbers = sorted(cone.defined)
    grid = MixedRadix(nodes, lineages, numbers, claim.extents, relations, coarse)
    joined = [axis for axis, _ in claim.over]
    classes = Classes(nodes, grid, lineages, cone, relations, joined)
    levels = Levels()
    definitions = Definitions(nodes, classes, cone, levels)
    reading = Relating(coarse)
    tensors = [reading.tensor(x.shape) for x in lineages]
    names = names_of(tensors, 0)

    def along(digit: Digit) -> list[Class]:
        axis = names.get(digit.root, (-1 - len(lineages), digit.root))
        return classes.along(axis, digit.stride, digit.size)

    counting = Counting(along, levels, reading)
    counteds = [
        Counted(dims, definitions.lineage(x), definitions.below(x))
        for dims, x in zip(tensors, lineages, strict=True)
    ]
    inputs, outputs = counteds[: len(given)], counteds[len(given) :]
    if claim.kind in ("op", "slice"):
        rest = iter(inputs)
        results = applied(
            counting, claim, [None if x is None else next(rest) for x in claim.inputs]
        )
        summed = [x.summed for x in results]
        if not set(relations_of(reading, tensors)) <= set(relations):
            raise Unsupported("an operator that relates other dimensions when it is read again")
    else:
        members = Counter(classes.of(coordinate(place)) for place in range(len(joined)))
        total = _most(x.summed for x in inputs) + members
        levels.sum_over(members, _below(inputs))
        summed = [total for _ in outputs]
        if claim.attrs.get("op") == "max":
            for x in inputs:
                levels.add("amax", Level(counting.labels(x.dims) + members, x.summed))
    entries = [
        Level(counting.labels(x.dims), x.summed | other)
        for x, other in zip(outputs, summed, strict=True)
    ]
    return Requirements(classes, entries, levels)

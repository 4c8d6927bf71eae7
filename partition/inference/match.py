"""Values that both programs have, by another route.

A parallel program may add, multiply and distribute in another order than the single-device one:
``(a + b) c`` for ``a c + b c``, a chain of products from the other end, a sum in other groups.  The
result is then a node of its own.  Here sums and products are multiplied out, down to nodes that
both sides have, and compared; where a reference node has the same expansion, it is what the value
is taken for.  That is a guess: the claim of the operator that made the value states it, and the
solvers decide, with the cut moved back over the definitions that were multiplied out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from itertools import islice, permutations
from typing import NamedTuple

from shardproof.engine.algebra.affine import ZERO
from shardproof.engine.claims.cone import operands
from shardproof.engine.lineage.expressions import Combine, Einsum, Operand, Restrict
from shardproof.engine.lineage.lineage import (
    Addend,
    Lineage,
    PartialRange,
    StridedInterval,
)
from shardproof.engine.lineage.nodes import NodeTable, Reduction
from shardproof.engine.lineage.positions import normal
from shardproof.partition.inference.above import DOWN, Above
from shardproof.partition.inference.canonical import Draft, canonical
from shardproof.partition.inference.chains import Chains
from shardproof.partition.inference.closed import Closed
from shardproof.partition.inference.expansion import Expansion, Inside
from shardproof.partition.inference.substitution import Path, Read, TooLarge
from shardproof.partition.inference.views import along_axes

#: Definitions of reference nodes that are multiplied out below a value, one under the other.
DEEPEST = 3
#: Definitions that reference nodes are multiplied out by that are compared with a value.
TALLEST = 10
#: Candidates that are tried for a value and multiplied out until both meet.
MOST_MET = 12
#: Products looked at until a value is found; and products, and nodes below candidates, where only
#: those are looked at that end at what the value ends at.
MOST_WORK, MOST_LIKELY = 20_000, 100_000

#: A label of a form, and the stride and the extent that something has in it.
Digit = tuple[int, int, int]


class _Form(NamedTuple):
    """A product without names: canonical operands and where each axis of the value is in it."""

    operands: tuple[Operand, ...]
    outputs: tuple[int, ...]
    places: tuple[tuple[int, int, int] | None, ...]


class Alias(NamedTuple):
    """A value is ``factor`` times ``node``; its axis i is axis ``axes[i]`` of the node; ``sums``:
    where a label that it reduces is reduced there, and at which stride; ``leaves``: where a node
    that both read is read there (of single products); ``opened``: what was multiplied out. Example:
    ``Alias(7, Fraction(1), (0, 1), {}, {}, frozenset())``."""

    node: int
    factor: Fraction
    axes: tuple[int, ...]
    sums: Mapping[Inside, tuple[Inside, int]]
    leaves: Mapping[Path, Path]
    opened: frozenset[int]


class _Sum(NamedTuple):
    """A node multiplied out: factors of distinct products; ``reduced``: where the labels that a
    single product reduces are in its form; ``leaves``: which operands lead to those of its form;
    ``opened``: the nodes that were multiplied out; ``named``: one-hots that add up to 1."""

    forms: dict[_Form, Fraction]
    reduced: dict[Inside, Digit]
    leaves: tuple[Path, ...] = ()
    opened: frozenset[int] = frozenset()
    named: frozenset[int] = frozenset()


def _leaves(value: _Sum) -> frozenset[int]:
    """The nodes that a value is multiplied out to."""
    return frozenset(o.node for form in value.forms for o in form.operands)


class Matcher:
    """Finds reference nodes (those below ``reference_size``) for values of the parallel side, for
    example ``a c + b c`` of the single device for ``(a + b) c``.
    """

    def __init__(self, table: NodeTable, reference_size: int, opened: set[int]) -> None:
        """``opened``: gets what was multiplied out for the values that are asked for."""
        self.table = table
        self.reference_size = reference_size
        #: Whether values are looked for that meet a reference node further down: where exponentials
        #: are written by others, factors are in other places.
        self.meets = False
        self.opened = opened
        self._aliases: dict[int, Alias | None] = {}
        self._closed = Closed(table, reference_size)
        self._chains = Chains(table, reference_size)
        self._above = Above(table, reference_size)
        self._work = self._aside = self._summed = self._likely = 0

    def renew(self) -> None:
        """Look for values of another plan as long as for those of the first.

        Example: what was spent on a candidate repair is not missing for the next.
        """
        self._work = self._aside = self._summed = self._likely = 0

    @property
    def matched(self) -> bool:
        """Whether any value was found."""
        return any(alias is not None for alias in self._aliases.values())

    def known(self, x: Lineage) -> Lineage:
        """The lineage over a reference node, where the value has one."""
        if len(x.addends) != 1:
            return x
        (addend,) = x.addends
        if addend.node < self.reference_size or addend.places:
            return x
        alias = self.alias(addend.node)
        made = None if alias is None else self._read_as(addend, alias)
        return x if made is None else Lineage(x.shape, (made,))

    def under_order(self, addend: Addend, candidate: int, order: int) -> Addend | None:
        """A view of a value as one of a reference node, of which it is what is left without its
        factor ``order``; None: it is not.

        Example: the total of eight positions as the sum up to each of them, which is the sum of the
        same product with the order of positions.
        """
        extents = self.table[addend.node].extents
        try:
            for depth in range(DEEPEST + 1):
                mine = self._even(addend.node, depth)
                there = self._sum(candidate, _leaves(mine), TALLEST, without=order)
                alias = self._alike(mine, extents, candidate, there)
                if alias is not None:
                    return self._read_as(addend, alias)
        except TooLarge:
            pass
        return None

    def _read_as(self, addend: Addend, alias: Alias) -> Addend | None:
        """A view of a value as one of the reference node that it is; None where its parts are
        none."""
        partials = [self._part(partial, alias) for partial in addend.partials]
        if any(partial is None for partial in partials):
            return None
        parts = normal([partial for partial in partials if partial is not None])
        self.opened |= alias.opened
        view = along_axes(addend.view, alias.axes)
        return Addend(addend.factor * alias.factor, alias.node, view, parts)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Look for several readings of a value: what is spent on these is not missing for values
        themselves."""
        self._work, self._aside = self._aside, self._work
        try:
            yield
        finally:
            self._work, self._aside = self._aside, self._work

    def _part(self, partial: PartialRange, alias: Alias) -> PartialRange | None:
        """A part of a value as one of the node that it is; None where its range is none there."""
        path: list[int] = []
        number: int | None = partial.reduction
        reduction = self.table.reductions[partial.reduction]
        while reduction.kind == "via":
            path.append(reduction.where)
            number, reduction = reduction.inner, self.table.reductions[reduction.inner]
            read = alias.leaves.get(tuple(path))
            if read is not None:
                inside = self._via(alias.node, read, number)
                return None if inside is None else partial._replace(reduction=inside)
        place = alias.sums.get((tuple(path), reduction.where))
        if reduction.kind != "sum" or place is None:
            return None
        (there, label), stride = place
        number = self._reduction(alias.node, there, label)
        if number is None:
            return None
        return PartialRange(
            number, partial.start * stride, partial.size * stride, partial.extent * stride
        )

    def _reduction(self, node: int, path: Path, label: int) -> int | None:
        """The reduction of a label that is reduced behind operands of a node, if it is linear
        there."""
        if not isinstance(self.table[node].definition, Einsum):
            return None
        if not path:
            return self.table.reduction(Reduction("sum", node, label))
        inner = self._reduction(operands(self.table, node)[path[0]].node, path[1:], label)
        return (
            None if inner is None else self.table.reduction(Reduction("via", node, path[0], inner))
        )

    def _via(self, node: int, path: Path, inner: int) -> int | None:
        """A reduction of a node that is read behind operands of another one, as one of that."""
        if not path:
            return inner
        if self.table[node].kind != "einsum":
            return None
        below = self._via(operands(self.table, node)[path[0]].node, path[1:], inner)
        return (
            None if below is None else self.table.reduction(Reduction("via", node, path[0], below))
        )

    def alias(self, number: int) -> Alias | None:
        """The reference node that a node of the parallel side is, if there is one."""
        if number not in self._aliases:
            alias = self._aliases[number] = self._match(number)
            if alias is not None:
                self._work = self._summed = self._likely = 0
        return self._aliases[number]

    def _match(self, number: int) -> Alias | None:
        node = self.table[number]
        if number in self._closed or node.coordinates:
            return None
        # A sum over positions is looked for as what it sums first: then parts of it are parts.
        sums = isinstance(node.definition, Combine)
        first, then = (self._added, self._multiplied) if sums else (self._multiplied, self._added)
        return first(number) or then(number)

    def _multiplied(self, number: int) -> Alias | None:
        """The reference node that a node is, where both are multiplied out."""
        if not self._above.has_shape(self.table[number].extents):
            return None
        alias = self._ending_alike(number) or self._tried(number)
        if alias is not None:
            return alias
        return self._met(number) if self.meets and self._work <= MOST_WORK else None

    def _ending_alike(self, number: int) -> Alias | None:
        """`_tried`, with candidates alone that end at what the node ends at: these are told without
        multiplying them out, and many values that are none do not spend what they need."""
        spent, self._work = self._work, 0
        try:
            return None if self._likely > MOST_LIKELY else self._tried(number, likely=True)
        finally:
            self._likely += self._work + self._above.looked
            self._work, self._above.looked = spent, 0

    def _tried(self, number: int, *, likely: bool = False) -> Alias | None:
        """The first candidate that is the same, multiplied out."""
        extents = self.table[number].extents
        for depth in range(DEEPEST + 1):
            if self._work > MOST_WORK:
                return None
            try:
                mine = self._even(number, depth)
            except TooLarge:
                break
            leaves = _leaves(mine)
            for candidate in self._above.candidates(leaves, extents):
                if self._work > MOST_WORK:
                    return None
                if likely and not self._above.ends_at(candidate, leaves):
                    continue
                try:
                    alias = self._same(mine, extents, candidate, leaves)
                except TooLarge:
                    continue
                if alias is not None:
                    return alias
        return None

    def _added(self, number: int) -> Alias | None:
        """The reference node that a node is, where both are sums of the same addends."""
        if self._summed > MOST_WORK:
            return None
        extents = self.table[number].extents
        try:
            mine = self._chain(number)
            others = self._chains.above(_leaves(mine), extents, len(mine.forms))
            made = (self._alike(mine, extents, n, self._chain(n)) for n in others)
            return next((alias for alias in made if alias is not None), None)
        except TooLarge:
            return None

    def _chain(self, number: int) -> _Sum:
        """A node as the sum of all its addends."""
        addends, axes, labels, opened = self._chains.addends(number)
        self._summed += len(addends)
        factors: dict[_Form, Fraction] = {}
        for factor, read in addends:
            leaves = () if read.node == self.table.one else (read,)
            form, _, _ = _form(leaves, axes, labels.extents)
            factors[form] = factors.get(form, Fraction(0)) + factor
        return _Sum({form: factor for form, factor in factors.items() if factor}, {}, (), opened)

    def _met(self, number: int) -> Alias | None:
        """The reference node that a node is, where both are multiplied out down to the first nodes
        that both end at."""
        extents = self.table[number].extents
        try:
            first = _leaves(self._sum(number, frozenset(), 0))
        except TooLarge:
            return None
        below = self._above.below(number)
        for candidate in islice(self._above.candidates(first, extents), MOST_MET):
            if self._work > MOST_WORK:
                break
            stop = (below & self._above.below(candidate)) - {candidate}
            try:
                alias = self._meeting(number, candidate, stop)
            except TooLarge:
                continue
            if alias is not None:
                return alias
        return None

    def _meeting(self, number: int, candidate: int, stop: frozenset[int]) -> Alias | None:
        """As `_met`, with one candidate; ``stop``: all nodes below both."""
        while self._work <= MOST_WORK:
            mine = self._sum(number, stop, DOWN)
            leaves = _leaves(mine)
            others = _leaves(self._sum(candidate, stop, DOWN))
            if leaves == others:
                return self._same(mine, self.table[number].extents, candidate, stop, DOWN)
            apart = (leaves ^ others) & stop
            opens = self._above.openable(apart)
            if not opens:
                # One ends at what the other ends at only inside of something else.
                both = self._above.openable(leaves & others & stop)
                opens = {n for n in both if not apart.isdisjoint(self._above.below(n))}
            if not opens:
                return None
            stop -= opens
        return None

    def _even(self, number: int, depth: int) -> _Sum:
        """A node multiplied out, everywhere down to the same nodes: what one product ends at is not
        multiplied out in another, where it is reached over fewer definitions."""
        stop: frozenset[int] = frozenset()
        mine = self._sum(number, stop, depth)
        while not mine.opened.isdisjoint(_leaves(mine)):
            stop |= _leaves(mine) & mine.opened
            mine = self._sum(number, stop, depth)
        return mine

    def _sum(
        self, number: int, stop: frozenset[int], depth: int, without: int | None = None
    ) -> _Sum:
        """A node multiplied out, but for the nodes of ``stop``; ``without`` a factor."""
        expansion = Expansion(self.table, self.reference_size, stop)
        try:
            products, labels = expansion.whole(number, depth)
        finally:
            self._work += expansion.work
        factors: dict[_Form, Fraction] = {}
        reduced: dict[Inside, Digit] = {}
        paths: tuple[Path, ...] = ()
        for factor, factors_read in products:
            leaves = tuple(leaf for leaf in factors_read if leaf.node != without)
            form, places, order = _form(leaves, labels, expansion.labels.extents)
            factors[form] = factors.get(form, Fraction(0)) + factor
            if len(products) == 1:
                reduced_labels = expansion.reduced.items()
                reduced = {
                    inside: places[label] for inside, label in reduced_labels if label in places
                }
                paths = tuple(leaves[i].path for i in order)
        forms = {form: factor for form, factor in factors.items() if factor}
        opened, named = frozenset(expansion.opened), frozenset(expansion.named)
        return _Sum(forms, reduced, paths, opened, named)

    def _same(
        self,
        value: _Sum,
        extents: tuple[int, ...],
        candidate: int,
        leaves: frozenset[int],
        depth: int = TALLEST,
    ) -> Alias | None:
        """How a candidate is the value, if its expansion is the same."""
        return self._alike(value, extents, candidate, self._sum(candidate, leaves, depth))

    def _alike(
        self, value: _Sum, extents: tuple[int, ...], candidate: int, there: _Sum
    ) -> Alias | None:
        """How a candidate is the value, if what it is multiplied out to is the same."""
        mine, other = value.forms, there.forms
        if len(other) != len(mine) or _outlines(mine) != _outlines(other):
            return None
        theirs = self.table[candidate].extents
        for axes in permutations(range(len(theirs)), len(extents)):
            if any(theirs[a] != n for a, n in zip(axes, extents, strict=True)):
                continue
            moved = {
                f._replace(places=tuple(f.places[a] for a in axes)): v for f, v in other.items()
            }
            if moved.keys() != mine.keys():
                continue
            ratios = {mine[form] / moved[form] for form in mine}
            if len(ratios) == 1:
                sums = _reduced_alike(value.reduced, there.reduced)
                several = len(value.leaves) != len(there.leaves)
                read = {} if several else dict(zip(value.leaves, there.leaves, strict=True))
                opened = value.opened | there.opened | value.named | there.named
                opened |= self._of_blocks(value, there)
                return Alias(candidate, ratios.pop(), axes, sums, read, opened)
        return None

    def _of_blocks(self, *values: _Sum) -> frozenset[int]:
        """Blocks that values end at, and what those are blocks of that were multiplied out."""
        ends = frozenset(n for x in values for n in _leaves(x) if self.table[n].kind == "block")
        opened = (self.table[n].definition for x in values for n in x.opened)
        return ends.union(d.node for d in opened if isinstance(d, Restrict))


def _reduced_alike(
    mine: Mapping[Inside, Digit], other: Mapping[Inside, Digit]
) -> dict[Inside, tuple[Inside, int]]:
    """Which reduced label of the other value a label is, or a digit of, at which stride."""
    result = {}
    for inside, (number, stride, extent) in mine.items():
        for there, (same, step, reach) in other.items():
            fits = stride % step == 0 and stride * extent <= step * reach
            if same == number and stride >= step and fits:
                result[inside] = there, stride // step
    return result


def _outlines(forms: dict[_Form, Fraction]) -> list[str]:
    return sorted(repr((f.operands, f.outputs)) for f in forms)


def _form(
    leaves: Sequence[Read], labels: Sequence[int], extents: dict[int, int]
) -> tuple[_Form, Mapping[int, Digit], tuple[int, ...]]:
    """A product in canonical form, where its labels are in it, and its leaves in its order."""
    if not leaves:
        return _Form((), (), tuple(None for _ in labels)), {}, ()
    drafts: list[Draft] = [
        (
            leaf.node,
            tuple((StridedInterval(a, s, n, ZERO, n), label) for a, s, n, label in leaf.intervals),
            tuple(StridedInterval(a, s, n, start, 1) for a, s, n, start in leaf.fixed),
            (),
        )
        for leaf in leaves
    ]
    used = {label for leaf in leaves for _, _, _, label in leaf.intervals}
    form = canonical(
        drafts,
        frozenset(used.intersection(labels)),
        {label: n for label, n in extents.items() if label in used},
    )
    places = tuple(form.labels.get(label) for label in labels)
    return _Form(form.operands, form.outputs, places), form.labels, form.order

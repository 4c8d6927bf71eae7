"""Products of views: one node, with parts where it is summed over part of a range."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import partial
from itertools import chain, product
from math import prod
from string import ascii_letters

from shardproof.engine.errors import ShapeMismatch
from shardproof.engine.lineage.expressions import Einsum, Expression
from shardproof.engine.lineage.floating import picked, settled
from shardproof.engine.lineage.lineage import (
    BROADCAST,
    Addend,
    Lineage,
    StridedInterval,
    View,
)
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.lineage.places import collapsed, has_places
from shardproof.engine.lineage.positions import normal
from shardproof.engine.lineage.sums import SOME
from shardproof.engine.lineage.views import Misaligned, align, constant_interval, merge
from shardproof.partition.inference.blocks import ended_operands, narrowed, widened
from shardproof.partition.inference.canonical import Draft, canonical
from shardproof.partition.inference.closing import composed
from shardproof.partition.inference.complete import Complete
from shardproof.partition.inference.flattened import flattened
from shardproof.partition.inference.floats import Way, dropped
from shardproof.partition.inference.laws import (
    Factor,
    common_exponentials,
    factor_views,
    is_exponential,
    left,
    outside,
)
from shardproof.partition.inference.masks import (
    are_positions,
    is_of_a_table,
    is_order,
    seen_anyway,
)
from shardproof.partition.inference.pieces import each, multiplied
from shardproof.partition.inference.sums import MOST_TERMS
from shardproof.partition.inference.together import Together
from shardproof.partition.inference.values import tried
from shardproof.partition.inference.vanishing import Zeros
from shardproof.partition.inference.views import (
    inherited,
    partial_sums,
    result_view,
    view_of_constant,
)
from shardproof.partition.inference.windows import Reads, is_endless

#: Products of such addends that are kept apart (of one operand, and of one with several parts of
#: sums beside others of one addend: `MOST_TERMS`, they stay as many). Behind a fault there are as
#: many as ranks, and every operator multiplies them.
MOST_PRODUCTS = 4
#: Products that are kept apart where the single-device program has every one of them: it has fewer
#: in each region of a tensor of several values, of which a rank may have one region alone.
MOST_KNOWN = 16

#: What is made of operands: the products of every choice of one addend of each.
Terms = Callable[[Sequence[Lineage]], list[Addend]]
#: The product in a region: its labels, its operands there, and how far labels run.
Region = tuple[str, tuple[Lineage, ...], tuple[tuple[str, int], ...]]


class Products(Complete):
    """Products over lineages, summed over labels.

    Example: ``x[4, 8] w[6, 8]`` over four of eight inputs is
    ``n4[a0[4], a1[6]] part #1[0 +4 of 8]``; both parts added up are the whole node.
    """

    def __init__(
        self,
        table: NodeTable,
        reference_size: int | None = None,
        mesh: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(table, reference_size, mesh)
        self._in_regions: dict[Region, Lineage] = {}
        self._zeros = Zeros(table, self.einsum, self.fold)
        self._together = (
            None if self.matcher is None else Together(table, self.fold, self.einsum, self.matcher)
        )

    def einsum(self, spec: str, *xs: Lineage, sizes: Mapping[str, int] | None = None) -> Lineage:
        """A product summed over labels, addend by addend; over a shard of a label it is part of a
        sum."""
        left, output = spec.split("->")
        operands = left.split(",")
        extents = dict(sizes or {})
        for names, x in zip(operands, xs, strict=True):
            if len(names) != len(x.shape):
                raise ShapeMismatch(f"operand {names} of shape {list(x.shape)}")
            for name, size in zip(names, x.shape, strict=True):
                if extents.setdefault(name, size) != size:
                    raise ShapeMismatch(f"axis of size {size} against {extents[name]} in {spec}")
        shape = tuple(extents[name] for name in output)
        if any(not x.addends for x in xs):
            return Lineage(shape, ())
        xs = self._with_complete_maxima(xs)
        if has_places(*xs):
            xs = tuple(Lineage(x.shape, tuple(map(collapsed, x.addends))) for x in xs)
            try:
                ends = ended_operands(self.table, operands, xs)
                return self.fold(multiplied(operands, output, ends, extents, self._einsum))
            except Misaligned:
                xs = tuple(self.scaled_piece(x) if has_places(x) else x for x in xs)
        terms = partial(self._terms, operands, output, extents=extents)
        addends = self._few_terms(xs, terms)
        if len(addends) == 1:
            whole = self.known(Lineage(shape, tuple(self.nonzero(addends))))
            known = self._are_known(whole.addends)
            addends = [] if known else self.distributed(xs, terms)
            if not addends:
                return whole
        elif len(addends) == len(xs[0].addends) and all(len(x.addends) == 1 for x in xs[1:]):
            addends = self._each_distributed(xs, Lineage(shape, tuple(addends)), terms)
        made = self.fold(Lineage(shape, tuple(addends)))
        again = partial(self.einsum, spec, sizes=sizes)
        return made if self._are_known(made.addends) else self.of_ended(xs, again) or made

    def _few_terms(self, xs: Sequence[Lineage], terms: Terms) -> list[Addend]:
        """The products of addends, kept apart where they are few; of operands taken as they are
        where they are many, unless the single-device program has them all."""
        count = prod(len(x.addends) for x in xs)
        if count <= (MOST_TERMS if len(xs) == 1 or _are_parts(xs) else MOST_PRODUCTS):
            return terms(xs)
        single = [Lineage(x.shape, (self._single(x),)) if len(x.addends) > 1 else x for x in xs]
        addends = terms(single)
        given = (t for x in xs for t in x.addends)
        if count <= MOST_KNOWN and self._are_known(given) and not self._are_known(addends):
            apart = terms(xs)
            return apart if self._are_known(apart) else addends
        return addends

    def _each_distributed(self, xs: Sequence[Lineage], apart: Lineage, make: Terms) -> list[Addend]:
        """What was made of each addend of the first operand, beside others of one addend: of its
        own addends, where that is the single-device program's and all of it at once is not."""
        made: list[Addend] = []
        for given, whole in zip(xs[0].addends, apart.addends, strict=True):
            own = [xs[0]._replace(addends=(given,)), *xs[1:]]
            read = self.known(apart._replace(addends=(whole,))).addends
            made += read if self._are_known(read) else self.distributed(own, make) or [whole]
        return made

    def _terms(
        self,
        operands: Sequence[str],
        output: str,
        xs: Sequence[Lineage],
        extents: Mapping[str, int],
    ) -> list[Addend]:
        """The products of every choice of one addend of each operand."""
        addends: list[Addend] = []
        for chosen in product(*(x.addends for x in xs)):
            beside = self._beside_reciprocals(chosen)
            readings = (beside, chosen, tuple(self._complete(t) for t in chosen))
            read = (
                tried(lambda t: self._placed_product(operands, output, t, extents), reading)
                for reading in dict.fromkeys(readings)
            )
            made = next(filter(None, read), None)
            if made is None:
                ways = [
                    self.scaled_pieces(Lineage(x.shape, (t,)))
                    for x, t in zip(xs, chosen, strict=True)
                ]
                made = self.first_known(
                    ways, lambda ts: self._product(operands, output, ts, extents)
                )
            addends.append(made)
        return addends

    def together(self, shape: tuple[int, ...], addends: Sequence[Addend]) -> Lineage | None:
        """A sum of what ranks made as what the single device makes of the sum; None if it makes no
        such value."""
        if self._together is None:
            return None
        made = self._together.of(Lineage(shape, tuple(addends)))
        self.rewrote |= made is not None
        return made

    def nonzero(self, addends: Sequence[Addend]) -> list[Addend]:
        """Addends without complete sums that are zero, and without what adds zero to these."""
        return [kept for addend in addends for kept in self._nonzero(addend)]

    def _nonzero(self, addend: Addend) -> tuple[Addend, ...]:
        if addend.partials or (whole := self._zeros.rest(addend.node)) is None:
            return (addend,)
        try:
            parts = [composed(addend, t) for t in whole.lineage.addends]
        except Misaligned:
            return (addend,)
        self.rewrote = True
        self.dropped += 1
        self.opened |= whole.opened | {addend.node}
        return tuple(t._replace(places=addend.places) for t in parts)

    def _einsum(self, spec: str, xs: Sequence[Lineage], sizes: Mapping[str, int]) -> Lineage:
        """A product in one region.  Behind a wrong chunk ranks, layers and operands have the same
        regions again and again, while no operator repeats as a whole."""
        key = (spec, tuple(xs), tuple(sizes.items()))
        made = self._in_regions.get(key)
        if made is None:
            made = self._in_regions[key] = self.einsum(spec, *xs, sizes=sizes)
        return made

    def _each(
        self, x: Lineage, make: Callable[[Lineage], Lineage], inner: int = 0
    ) -> Lineage | None:
        """What is made of a tensor of several values, region by region (None: it is of one, or has
        no regions)."""
        if not has_places(x):
            return None
        try:
            return each([x], lambda lineages: make(lineages[0]), inner)
        except Misaligned:
            return None

    def _placed_product(
        self,
        names: Sequence[str],
        output: str,
        addends: Sequence[Addend],
        sizes: Mapping[str, int],
    ) -> Addend:
        """`_product`, with positions of one of many where the single-device program has them."""

        used = {*"".join(names), *output}
        letters = "".join(a for a in ascii_letters if a not in used)

        def others(*, again: bool = False) -> Iterator[Addend | None]:
            made = partial(self._product, names, output, sizes=sizes, again=again)
            if any(is_endless(dim) for t in addends for dim in t.view.dims):
                wide = partial(made, widest=True)
                yield tried(wide, addends)
                yield from self.slid(names, addends, wide)
            moved = partial(another, again=again)
            yield from self.readings(names, addends, made, moved, letters, sums=True)

        def another(way: Way, *, again: bool) -> Addend:
            spelled = [n + more for n, more in zip(names, way.labels, strict=True)]
            more = dict.fromkeys("".join(way.labels), 1)
            extents = {**sizes, **more}
            made = self._product(spelled, output + way.kept, way.addends, extents, again=again)
            return dropped(made, len(output))

        summed = {*"".join(names)} - {*output}
        if bool(summed) == (len(names) == 1):
            known = self.of_all_slots(addends, letters, partial(another, again=False))
            if known is not None:
                return known
        if self.reference_size is None and summed:
            # One of several blocks that the single-device program contracts with something else
            # (queries, of queries, keys and values) is a value alone, no part of one of all blocks.
            every = [range(len(own)) for own in names]
            pairs = zip(addends, every, strict=True)
            addends = [t._replace(view=picked(t.view, dims)) for t, dims in pairs]
        if self.reference_size is not None and any(is_order(self.table, t) for t in addends):
            # The single-device program may mask again what is masked already.
            make = partial(self._product, names, output, sizes=sizes)
            for masked in chain([tried(partial(make, again=True), addends)], others(again=True)):
                if masked is not None and masked.node < self.reference_size:
                    return masked
            own = {t.node for t in addends}
            if (seen := next(self.slid(names, addends, make, own), None)) is not None:
                return seen
        first = tried(lambda t: self._product(names, output, t, sizes), addends)
        return self._first_reading(addends, first, others)

    def _product(
        self,
        names: Sequence[str],
        output: str,
        addends: Sequence[Addend],
        sizes: Mapping[str, int],
        closed: frozenset[str] = frozenset(),
        widest: bool = False,
        again: bool = False,
    ) -> Addend:
        """One addend of a product; ``closed``: labels that run along what the addends have of them,
        and no further; ``widest``: blocks of axes without an end are parts of larger ones;
        ``again``: what is masked already is masked again."""
        self.products += 1
        factor = Fraction(1)
        for addend in addends:
            factor *= addend.factor
        extents: dict[int, int] = {}
        intervals: dict[int, StridedInterval] = {}
        reads = Reads(self.windows, addends, widest=widest)
        dims: dict[str, list[int | StridedInterval]] = {}
        for name in dict.fromkeys("".join(names) + output):
            holders = [(k, x.index(name)) for k, x in enumerate(names) if name in x]
            dim: list[int | StridedInterval] = []
            if not holders:
                dim.append(constant_interval(sizes[name]))
            for position in align([addends[k].view.dims[i] for k, i in holders]):
                label = len(extents)
                owners = [k for k, _ in holders]
                whole = name in output and not is_of_a_table(self.table, addends, owners)
                ends = name in closed or (not whole and is_endless(position))
                joined = reads.label(label, position, owners, closed=ends)
                if joined.axis == BROADCAST:
                    if name not in output and joined.size != 1:
                        factor *= joined.size
                        self.counted.add(joined.size)
                    dim.append(joined)
                    continue
                if name not in output and are_positions(self.table, addends, owners):
                    self.counted.add(SOME)
                extents[label] = joined.extent
                intervals[label] = joined
                dim.append(label)
            dims[name] = dim
        outputs = frozenset(
            x for name in output for x in dims[name] if not isinstance(x, StridedInterval)
        )
        views, atoms = reads.settled()
        return self._product_addend(
            factor, views, atoms, [dims[n] for n in output], outputs, extents, intervals, again
        )

    def _product_addend(
        self,
        factor: Fraction,
        addends: Sequence[Addend],
        atoms: Sequence[tuple[tuple[StridedInterval, int], ...]],
        dims: Sequence[Sequence[int | StridedInterval]],
        outputs: frozenset[int],
        extents: Mapping[int, int],
        intervals: Mapping[int, StridedInterval],
        again: bool = False,
    ) -> Addend:
        real = [k for k, t in enumerate(addends) if t.node != self.table.one]
        if not real:
            return Addend(
                factor,
                self.table.one,
                View(
                    tuple(merge([a for a in dim if isinstance(a, StridedInterval)]) for dim in dims)
                ),
            )
        if len(real) == 1 and len(outputs) == len(extents):
            only = addends[real[0]]
            intervals_of = {label: interval for interval, label in atoms[real[0]]}
            moved = tuple(
                merge([a if isinstance(a, StridedInterval) else intervals_of[a] for a in dim])
                for dim in dims
            )
            return Addend(factor, only.node, View(moved, only.view.fixed), only.partials)
        read = [Factor(addends[k], tuple(atoms[k])) for k in real]
        if rest := left(self.table, factor, read, dims, outputs, extents, intervals):
            self.rewrote = True
            if rest.factor != factor:
                self.counted.add(SOME)
            wide = widened(rest.factors, rest.outputs, rest.extents, intervals)
            return self._product_addend(rest.factor, *wide.read, rest.dims, rest.outputs, *wide[1:])
        pulled = self._pulled(factor, read, dims, outputs, extents, intervals)
        if pulled is not None:
            return pulled
        if len(read) == 1 and (flat := flattened(self.table, read[0], extents, intervals)):
            self.opened.add(read[0].addend.node)
            self.rewrote = True
            one, atom = [flat.read.addend], [flat.read.intervals]
            return self._product_addend(
                factor, one, atom, dims, outputs, flat.extents, flat.intervals
            )
        chosen = [addends[k] for k in real]
        drafts: list[Draft] = [
            (t.node, tuple(atoms[k]), t.view.fixed, ()) for k, t in zip(real, chosen, strict=True)
        ]
        form = canonical(drafts, outputs, dict(extents))
        definition = Einsum(form.operands, form.outputs)
        kept = again or self._is_reference(definition)
        if not kept and (seen := seen_anyway(self.table, read)) is not None:
            self.rewrote = True
            self.dropped += 1
            self.opened |= seen.opened
            addends, atoms = [x.addend for x in seen.rest], [x.intervals for x in seen.rest]
            return self._product_addend(factor, addends, atoms, dims, outputs, extents, intervals)
        node = self._definition(definition, form.outputs, form.extents, chosen)
        partials = inherited(self.table, node, [chosen[i] for i in form.order])
        partials += partial_sums(self.table, node, form.labels, outputs, intervals)
        view = result_view(dims, form.labels, form.outputs, intervals)
        return self.whole(Addend(factor, node, view, normal(partials)))

    def _is_reference(self, definition: Expression) -> bool:
        """Whether the single-device program defines a value so, or it is that program that is read:
        what it computes is not written otherwise."""
        if self.reference_size is None:
            return True
        node = self.table.find(definition)
        return node is not None and node < self.reference_size

    def _pulled(
        self,
        factor: Fraction,
        read: Sequence[Factor],
        dims: Sequence[Sequence[int | StridedInterval]],
        outputs: frozenset[int],
        extents: Mapping[int, int],
        intervals: Mapping[int, StridedInterval],
    ) -> Addend | None:
        """A sum of products times the exponentials in these that it does not run along; None where
        there are none."""
        if self.reference_size is None:
            return None
        apart = outside(self.table, read, outputs, self.reference_size)
        if apart is None:
            return None
        kept, out = apart
        if len(outputs) == len(extents):
            # Nothing is summed: of products, exponentials are factors as they are beside others.
            if len(kept) + len(out) <= len(read):
                return None
            self.rewrote = True
            wide = widened([*kept, *out], outputs, extents, intervals)
            return self._product_addend(factor, *wide.read, dims, outputs, *wide[1:])
        used = frozenset(label for x in kept for _, label in x.intervals)
        if not used.issuperset(extents.keys() - outputs):
            return None
        own = sorted(outputs & used)
        inside = {label: n for label, n in extents.items() if label in used}
        wide = widened(kept, outputs & used, inside, intervals)
        inner = self._product_addend(
            factor, *wide.read, [[label] for label in own], outputs & used, *wide[1:]
        )
        if inner.view.fixed or any(len(dim) != 1 for dim in inner.view.dims):
            return None
        whole = tuple((dim[0], label) for dim, label in zip(inner.view.dims, own, strict=True))
        block = narrowed(Factor(inner._replace(factor=Fraction(1)), whole), extents)
        if block is None:
            return None
        self.rewrote = True
        return self._product_addend(
            inner.factor,
            [block.addend, *(x.addend for x in out)],
            [block.intervals, *(x.intervals for x in out)],
            dims,
            outputs,
            {label: n for label, n in extents.items() if label in outputs},
            intervals,
        )

    def factored(self, shape: tuple[int, ...], addends: Sequence[Addend]) -> Lineage | None:
        """A sum as a product with the exponentials that all its addends have, of those that the
        single-device program does not have."""
        if self.reference_size is None:
            return None
        read = [factor_views(self.table, addend) for addend in addends]
        common = common_exponentials(self.table, read, self.reference_size)
        if not common and all(self._has_exponentials(own) for own in read):
            # The same view may be written in two ways.
            alike = [t._replace(view=settled(t.view)) for t in addends]
            read = [factor_views(self.table, addend) for addend in alike]
            common = common_exponentials(self.table, read, self.reference_size)
        if not common:
            return None
        names = ascii_letters[: len(shape)]

        def times(factors: Sequence[Lineage]) -> Lineage:
            return self.einsum(f"{','.join([names] * len(factors))}->{names}", *factors)

        rest: list[Addend] = []
        for addend, own in zip(addends, read, strict=True):
            left = list((Counter(own) - common).elements())
            constant = Addend(addend.factor, self.table.one, view_of_constant(shape))
            product = times([Lineage(shape, (f,)) for f in (constant, *left)])
            rest += product.addends
        self.rewrote = True
        total = self.fold(Lineage(shape, tuple(rest)))
        if not total.addends:
            return total
        return times([*(Lineage(shape, (f,)) for f in common.elements()), total])

    def _has_exponentials(self, factors: Sequence[Addend]) -> bool:
        known = self.reference_size or 0
        return any(is_exponential(self.table, factor.node, known) for factor in factors)

    def _closed_product(self, spec: str, addends: Sequence[Addend], over: frozenset[str]) -> Addend:
        """As in `Complete`, by its labels."""
        left, output = spec.split("->")
        return self._product(left.split(","), output, addends, {}, over)


def _are_parts(xs: Sequence[Lineage]) -> bool:
    """Whether one operand is several parts of sums, and every other one a single addend: a gradient
    that goes back through layers before ranks add it up."""
    several = [x for x in xs if len(x.addends) > 1]
    return len(several) == 1 and all(t.partials for t in several[0].addends)

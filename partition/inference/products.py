"""Products of views: one node, with parts where it is summed over part of a range."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import product
from math import prod
from string import ascii_letters

from shardproof.engine.errors import ShapeMismatch
from shardproof.engine.lineage.expressions import Einsum
from shardproof.engine.lineage.floating import sunk
from shardproof.engine.lineage.layout import Misaligned, align, constant_atom, merge
from shardproof.engine.lineage.lineage import ABSOLUTE, BROADCAST, Atom, Layout, Lineage, Part, Term
from shardproof.engine.lineage.nodes import Token
from shardproof.engine.lineage.places import has_places
from shardproof.engine.lineage.sums import SOME
from shardproof.partition.inference.canonical import Draft, canonical
from shardproof.partition.inference.closing import closed
from shardproof.partition.inference.floats import Way, dropped, ways
from shardproof.partition.inference.laws import Factor, left
from shardproof.partition.inference.pieces import each, multiplied
from shardproof.partition.inference.sums import Sums, tried
from shardproof.partition.inference.views import result_layout
from shardproof.partition.inference.windows import Reads

#: Products of such terms that are kept apart.  Partial sums that somebody completes are one or two;
#: behind a fault there are as many as ranks, and every operator multiplies them.
MOST_PRODUCTS = 4


class Products(Sums):
    """Products over lineages, summed over labels."""

    def einsum(self, spec: str, *xs: Lineage, sizes: Mapping[str, int] | None = None) -> Lineage:
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
        if any(not x.terms for x in xs):
            return Lineage(shape, ())
        if has_places(*xs):
            try:
                return self.fold(multiplied(operands, output, xs, extents, self._einsum))
            except Misaligned:
                xs = tuple(self.piece(x) if has_places(x) else x for x in xs)
        if prod(len(x.terms) for x in xs) > MOST_PRODUCTS:
            xs = tuple(Lineage(x.shape, (self._single(x),)) if len(x.terms) > 1 else x for x in xs)
        terms: list[Term] = []
        for chosen in product(*(x.terms for x in xs)):
            try:
                terms.append(self._placed_product(operands, output, chosen, extents))
            except Misaligned:
                taken = [
                    self.piece(Lineage(x.shape, (t,))).terms[0]
                    for x, t in zip(xs, chosen, strict=True)
                ]
                terms.append(self._product(operands, output, taken, extents))
        if len(terms) == 1:
            return self.known(Lineage(shape, (terms[0],)))
        return self.fold(Lineage(shape, tuple(terms)))

    def _einsum(self, spec: str, xs: Sequence[Lineage], sizes: Mapping[str, int]) -> Lineage:
        return self.einsum(spec, *xs, sizes=sizes)

    def _each(
        self, x: Lineage, make: Callable[[Lineage], Lineage], inner: int = 0
    ) -> Lineage | None:
        """What is made of a tensor of several values, region by region (None: it is of one, or has
        no regions)."""
        if not has_places(x):
            return None
        try:
            return each([x], lambda here: make(here[0]), inner)
        except Misaligned:
            return None

    def _placed_product(
        self,
        names: Sequence[str],
        output: str,
        terms: Sequence[Term],
        sizes: Mapping[str, int],
    ) -> Term:
        """`_product`, with positions of one of many where the single-device program has them."""

        def others() -> Iterator[Term | None]:
            used = {*"".join(names), *output}
            letters = "".join(a for a in ascii_letters if a not in used)
            inside = [t._replace(layout=sunk(t.layout)) for t in terms]
            yield tried(lambda t: self._product(names, output, t, sizes), inside)
            found = ways(terms, self.mesh, letters, sums=True, sides=self.as_part)
            yield from (tried(another, way) for way in found)

        def another(way: Way) -> Term:
            spelled = [n + more for n, more in zip(names, way.labels, strict=True)]
            more = dict.fromkeys("".join(way.labels), 1)
            made = self._product(spelled, output + way.kept, way.terms, {**sizes, **more})
            return dropped(made, len(output))

        first = tried(lambda t: self._product(names, output, t, sizes), terms)
        return self._taken(terms, first, others)

    def _product(
        self,
        names: Sequence[str],
        output: str,
        terms: Sequence[Term],
        sizes: Mapping[str, int],
        closed: frozenset[str] = frozenset(),
    ) -> Term:
        """One term of a product; ``closed``: labels that run along what the terms have of them, and
        no further."""
        factor = Fraction(1)
        for term in terms:
            factor *= term.factor
        extents: dict[int, int] = {}
        intervals: dict[int, Atom] = {}
        reads = Reads(self.windows, terms)
        dims: dict[str, list[int | Atom]] = {}
        for name in dict.fromkeys("".join(names) + output):
            holders = [(k, x.index(name)) for k, x in enumerate(names) if name in x]
            dim: list[int | Atom] = []
            if not holders:
                dim.append(constant_atom(sizes[name]))
            for position in align([terms[k].layout.dims[i] for k, i in holders]):
                label = len(extents)
                owners = [k for k, _ in holders]
                ends = name in closed or (name not in output and _endless(position))
                joined = reads.label(label, position, owners, closed=ends)
                if joined.axis == BROADCAST:
                    if name not in output and joined.size != 1:
                        factor *= joined.size
                        self.counted.add(joined.size)
                    dim.append(joined)
                    continue
                extents[label] = joined.extent
                intervals[label] = joined
                dim.append(label)
            dims[name] = dim
        outputs = frozenset(x for name in output for x in dims[name] if not isinstance(x, Atom))
        views, atoms = reads.settled()
        return self._product_term(
            factor, views, atoms, [dims[n] for n in output], outputs, extents, intervals
        )

    def _product_term(
        self,
        factor: Fraction,
        terms: Sequence[Term],
        atoms: Sequence[tuple[tuple[Atom, int], ...]],
        dims: Sequence[Sequence[int | Atom]],
        outputs: frozenset[int],
        extents: Mapping[int, int],
        intervals: Mapping[int, Atom],
    ) -> Term:
        real = [k for k, t in enumerate(terms) if t.node != self.table.one]
        if not real:
            return Term(
                factor,
                self.table.one,
                Layout(tuple(merge([a for a in dim if isinstance(a, Atom)]) for dim in dims)),
            )
        if len(real) == 1 and len(outputs) == len(extents):
            only = terms[real[0]]
            held = {label: atom for atom, label in atoms[real[0]]}
            moved = tuple(
                merge([a if isinstance(a, Atom) else held[a] for a in dim]) for dim in dims
            )
            return Term(factor, only.node, Layout(moved, only.layout.fixed), only.parts)
        read = [Factor(terms[k], tuple(atoms[k])) for k in real]
        if rest := left(self.table, factor, read, dims, outputs, extents, intervals):
            self.rewrote = True
            if rest.factor != factor:
                self.counted.add(SOME)
            return self._product_term(*rest, intervals)
        chosen = [terms[k] for k in real]
        drafts: list[Draft] = [
            (t.node, tuple(atoms[k]), t.layout.fixed, ()) for k, t in zip(real, chosen, strict=True)
        ]
        form = canonical(drafts, outputs, dict(extents))
        definition = Einsum(form.operands, form.outputs)
        node = self._definition(definition, form.outputs, form.extents, chosen)
        parts = self._inherited(node, [chosen[i] for i in form.order])
        parts += self._partial_sums(node, form.labels, outputs, intervals)
        layout = result_layout(dims, form.labels, form.outputs, intervals)
        return Term(factor, node, layout, tuple(sorted(parts, key=lambda p: p.token)))

    def _inherited(self, node: int, terms: Sequence[Term]) -> list[Part]:
        """Partial operands of a product make the product partial, each on its own."""
        return [
            part._replace(token=self.table.token(Token("via", node, position, part.token)))
            for position, term in enumerate(terms)
            for part in term.parts
        ]

    def _partial_sums(
        self,
        node: int,
        labels: Mapping[int, tuple[int, int, int]],
        outputs: frozenset[int],
        intervals: Mapping[int, Atom],
    ) -> list[Part]:
        summed: dict[int, list[Atom]] = {}
        for old, (number, stride, extent) in labels.items():
            if old not in outputs:
                atom = intervals[old]
                summed.setdefault(number, []).append(Atom(0, stride, extent, atom.start, atom.size))
        parts = []
        for number, atoms in summed.items():
            joined = merge(sorted(atoms, key=lambda a: -a.stride))
            if len(joined) != 1 or joined[0].extent == ABSOLUTE:
                raise Misaligned
            atom = joined[0]
            if not atom.full:
                token = self.table.token(Token("sum", node, number))
                parts.append(Part(token, atom.start, atom.size, atom.extent))
        return parts

    def _single(self, x: Lineage) -> Term:
        """The one complete term of ``x``; taken as it is if there is no such term."""
        if len(x.terms) == 1 and not x.terms[0].parts and not x.terms[0].places:
            return x.terms[0]
        whole = self.closed(x)
        return self.piece(x).terms[0] if whole is None else whole.terms[0]

    def closed(self, x: Lineage) -> Lineage | None:
        """Partial sums over constant blocks as one complete term over these blocks (None: it is
        none, or none that the single-device program has)."""
        if has_places(x) or not any(t.parts for t in x.terms):
            return None
        try:
            terms = [closed(self.table, t, self._closed_product) for t in x.terms]
        except Misaligned:
            return None
        if self.reference_size is not None and any(t.node >= self.reference_size for t in terms):
            return None
        result = self.fold(Lineage(x.shape, tuple(terms)))
        if len(result.terms) != 1 or result.terms[0].parts:
            return None
        self.rewrote = True
        return result

    def _closed_product(self, spec: str, terms: Sequence[Term], over: frozenset[str]) -> Term:
        left, output = spec.split("->")
        names = left.split(",")
        return self._product(names, output, terms, {}, over)


def _endless(position: Sequence[Atom | None]) -> bool:
    """Whether aligned atoms are all of axes without an end (classes of a one-hot): a sum over them
    is one over the block that is read."""
    atoms = [a for a in position if a is not None and a.axis != BROADCAST]
    return bool(atoms) and all(a.extent == ABSOLUTE for a in atoms)

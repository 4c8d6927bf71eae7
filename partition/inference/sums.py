"""Sums of views: of one node where they are complete, side by side where they lie apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from string import ascii_letters
from typing import TypeVar

from shardproof.engine.errors import ShapeMismatch
from shardproof.engine.lineage.expressions import Combine, Expression, Local, Most, Piece
from shardproof.engine.lineage.floating import settled, sunk
from shardproof.engine.lineage.layout import Misaligned, align
from shardproof.engine.lineage.lineage import BROADCAST, Atom, Lineage, Term
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.lineage.places import has_places
from shardproof.engine.lineage.sums import collect, largest, merge_parts
from shardproof.partition.inference.canonical import Draft, canonical
from shardproof.partition.inference.floats import Reductions, Way, dropped, ways
from shardproof.partition.inference.masks import masked_once, unscaled
from shardproof.partition.inference.match import Matcher
from shardproof.partition.inference.pieces import each
from shardproof.partition.inference.views import (
    constant_layout,
    lineage_axes,
    local_view,
    result_layout,
)
from shardproof.partition.inference.windows import Reads, Windows

#: Sums of more partial terms than this are taken as they are.
MOST_TERMS = 32


class Values:
    """Values over lineages, and the nodes that they become; all nodes go to ``table``."""

    def __init__(
        self,
        table: NodeTable,
        reference_size: int | None = None,
        mesh: Mapping[str, int] | None = None,
    ) -> None:
        """``reference_size``: nodes below are the single-device program's (None: all are);
        ``mesh``: how far every coordinate reaches."""
        self.table = table
        self.reference_size = reference_size
        self.mesh = mesh or {}
        self._reductions: Reductions | None = None
        self.windows = Windows(table, reference_size is None, self.mesh)
        self.partial: list[tuple[str, Term]] = []
        self.counted: set[int] = set()
        self.rewrote = False
        self.matcher = None if reference_size is None else Matcher(table, reference_size)

    def shape(self, x: Lineage) -> tuple[int, ...]:
        return x.shape

    def known(self, x: Lineage) -> Lineage:
        """The value over a node of the single-device program, where it has one by another route."""
        return x if self.matcher is None else self.matcher.known(x)

    def _definition(
        self,
        definition: Expression,
        outputs: Sequence[int],
        extents: Mapping[int, int],
        terms: Sequence[Term],
    ) -> int:
        coordinates: set[str] = set()
        for term in terms:
            coordinates |= self.table[term.node].coordinates
            for atom in term.layout.fixed:
                coordinates.update(atom.start.axes)
        return self.table.define(
            definition, tuple(extents[x] for x in outputs), frozenset(coordinates)
        )

    def as_part(self, term: Term) -> Term | None:
        """A view of one position of many as part of a sum that the single-device program has."""
        if self._reductions is None:
            self._reductions = Reductions(self.table, self.reference_size or 0)
        return self._reductions.part(term)

    def _taken(
        self,
        terms: Sequence[Term],
        first: Term | None,
        others: Callable[[], Iterable[Term | None]],
    ) -> Term:
        """The first way of reading views that gives a value of the single-device program; raises
        `Misaligned` where none gives one at all.  ``first``: by their dimensions."""
        size = self.reference_size
        guess = size is not None and (first is None or first.node >= size)
        if size is not None and guess and all(t.node < size for t in terms):
            for found in others():
                if found is not None and found.node < size:
                    return found
        if first is None:
            raise Misaligned
        return first

    def piece(self, x: Lineage) -> Lineage:
        """The tensor as a node of its own (a value that only the parallel program has)."""
        if not x.terms:
            return Lineage(x.shape, (Term(Fraction(0), self.table.one, constant_layout(x.shape)),))
        ranked = tuple(sorted(x.terms, key=repr))
        atoms = (a for t in ranked for dim in t.layout.dims for a in dim)
        self.counted.update(a.size for a in atoms if a.axis == BROADCAST)
        node = self.local_node(Piece(ranked), x.shape, ranked)
        return local_view(node, x.shape)

    def local_node(self, definition: Local, shape: tuple[int, ...], terms: Sequence[Term]) -> int:
        axes = lineage_axes(Lineage(shape, tuple(terms)), self.table)
        return self.table.define(definition, tuple(n for n in shape if n != 1), axes)


class Sums(Values):
    """Sums over lineages."""

    def combine(
        self, xs: Sequence[Lineage], factors: Sequence[Fraction], constant: Fraction
    ) -> Lineage:
        shape = xs[0].shape
        if any(x.shape != shape for x in xs):
            raise ShapeMismatch(f"sum of shapes {[list(x.shape) for x in xs]}")
        terms = [
            term._replace(factor=term.factor * factor)
            for x, factor in zip(xs, factors, strict=True)
            for term in x.terms
        ]
        if constant:
            terms.append(Term(constant, self.table.one, constant_layout(shape)))
        return self.fold(Lineage(shape, tuple(terms)))

    def fold(self, x: Lineage) -> Lineage:
        """Collect equal terms, join partial ones; a complete sum of several becomes a node."""
        if has_places(x):
            try:
                return each([x], lambda here: self.fold(here[0]))
            except Misaligned:
                return self.piece(x)
        terms = collect(unscaled(self.table, x.terms))
        if len(terms) > 1 and any(term.parts for term in terms):
            terms = collect(merge_parts(self.table, terms, self.mesh))
        if len(terms) > 1 and any(term.parts for term in terms):
            # The same view may be written in two ways.
            alike = [t._replace(layout=settled(t.layout)) for t in terms]
            again = collect(merge_parts(self.table, alike, self.mesh))
            terms = again if len(again) < len(terms) else terms
        if len(terms) > 1 and any(t.parts for t in terms) and not all(t.parts for t in terms):
            # One position is a part too, of a sum over all of them of which others are parts.
            sums = {t.node for t in terms if t.parts}
            whole = [t if t.parts else self._in_sums(t, sums) for t in terms]
            again = collect(merge_parts(self.table, whole, self.mesh))
            terms = again if len(again) < len(terms) else terms
        if len(terms) < 2:
            return self.known(Lineage(x.shape, tuple(terms)))
        if any(term.parts for term in terms):
            if len(terms) > MOST_TERMS:
                return self.piece(Lineage(x.shape, tuple(terms)))
            return Lineage(x.shape, tuple(terms))
        terms = masked_once(self.table, terms)
        if len(terms) == 1:
            return self.known(Lineage(x.shape, tuple(terms)))
        try:
            found = self._placed_sum(x.shape, terms)
            known = self.reference_size is None or found.terms[0].node < self.reference_size
            return self.known(found if known else self._as_parts(x.shape, terms) or found)
        except Misaligned:
            apart = [self.piece(Lineage(x.shape, (t._replace(factor=Fraction(1)),))) for t in terms]
            taken = [
                p.terms[0]._replace(factor=t.factor) for p, t in zip(apart, terms, strict=True)
            ]
            return self.known(self._sum_node(x.shape, taken))

    def _as_parts(self, shape: tuple[int, ...], terms: Sequence[Term]) -> Lineage | None:
        """Positions of one value as a part of the sum over all of them, if they are one."""
        if len({term.node for term in terms}) > 1:
            return None
        parts = [part for term in terms if (part := self.as_part(term)) is not None]
        joined = collect(merge_parts(self.table, parts, self.mesh))
        return Lineage(shape, tuple(joined)) if len(parts) == len(terms) > len(joined) else None

    def _in_sums(self, term: Term, sums: set[int]) -> Term:
        """A view as part of one of some sums, if it is one."""
        found = self.as_part(term)
        return term if found is None or found.node not in sums else found

    def _placed_sum(self, shape: tuple[int, ...], terms: Sequence[Term]) -> Lineage:
        """`_sum_node`, with positions of one of many where the single-device program has them."""

        def another(way: Way) -> Term:
            count = len(way.kept)
            spread = [
                _with_behind(t, len(shape), own, way.kept)
                for t, own in zip(way.terms, way.labels, strict=True)
            ]
            made = self._sum_node((*shape, *(1,) * count), spread).terms[0]
            return dropped(made, len(shape))

        def others() -> Iterator[Term | None]:
            inside = [t._replace(layout=sunk(t.layout)) for t in terms]
            yield tried(lambda t: self._sum_node(shape, t).terms[0], inside)
            found = ways(terms, self.mesh, ascii_letters, sums=False, sides=self.as_part)
            yield from (tried(another, way) for way in found)

        first = tried(lambda t: self._sum_node(shape, t).terms[0], terms)
        return Lineage(shape, (self._taken(terms, first, others),))

    def _sum_node(
        self,
        shape: tuple[int, ...],
        terms: Sequence[Term],
        kind: type[Combine] | type[Most] = Combine,
    ) -> Lineage:
        outputs: set[int] = set()
        extents: dict[int, int] = {}
        intervals: dict[int, Atom] = {}
        dims: list[list[int | Atom]] = []
        reads = Reads(self.windows, terms)
        for i in range(len(shape)):
            dim: list[int | Atom] = []
            for position in align([t.layout.dims[i] for t in terms]):
                label = len(extents)
                joined = reads.label(label, position, range(len(terms)))
                if joined.axis == BROADCAST:
                    dim.append(joined)
                    continue
                extents[label] = joined.extent
                intervals[label] = joined
                outputs.add(label)
                dim.append(label)
            dims.append(dim)
        drafts: list[Draft] = [
            (t.node if t.node != self.table.one else -1, own, t.layout.fixed, (t.factor,))
            for t, own in zip(*reads.settled(), strict=True)
        ]
        form = canonical(drafts, frozenset(outputs), extents)
        factors = [terms[i].factor for i in form.order]
        lead = self._lead(terms)
        lead = abs(lead) if kind is Most else lead
        operands = tuple(
            o._replace(node=self.table.one) if o.node == -1 else o for o in form.operands
        )
        definition = kind(tuple(f / lead for f in factors), operands, form.outputs)
        node = self._definition(definition, form.outputs, form.extents, terms)
        layout = result_layout(dims, form.labels, form.outputs, intervals)
        return Lineage(shape, (Term(lead, node, layout),))

    def _lead(self, terms: Sequence[Term]) -> Fraction:
        """The factor that is taken out of a sum: of what is a sum already and was there first (the
        residual stream), so that factors do not pile up layer by layer.  A masked sum keeps its
        sign: minus infinity has no negative."""
        sums = [t for t in terms if isinstance(self.table[t.node].definition, Combine)] or [
            t for t in terms if t.node != self.table.one
        ]
        first = min(t.node for t in sums)
        lead = largest([t.factor for t in sums if t.node == first])
        return abs(lead) if any(self.table.is_masked(t.node) for t in terms) else lead


W = TypeVar("W")


def tried(make: Callable[[W], Term], way: W) -> Term | None:
    """What is made, if it is a view."""
    try:
        return make(way)
    except Misaligned:
        return None


def _with_behind(term: Term, rank: int, own: str, names: str) -> Term:
    """A view with a dimension of size 1 for each of ``names``, of which it has its ``own``."""
    dims = term.layout.dims
    held = dict(zip(own, dims[rank:], strict=True))
    behind = tuple(held.get(name, ()) for name in names)
    return term._replace(layout=term.layout._replace(dims=(*dims[:rank], *behind)))

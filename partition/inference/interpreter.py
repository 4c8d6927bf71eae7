"""Lineage inference: operators read over lineages.

`LineageReading` is the reading of an operator's declaration in which a tensor is its lineage: an
operator applied to views of reference nodes gives a view of the node that the same operator defines
on the whole tensors.  Every step is exact at true size.  Where a result is no view of such a node
(operands that do not line up, a non-linear function of a partial sum), the operands are taken as
they are: `LineageReading.piece` makes nodes of them, which the single-device program does not have.
Inference therefore never fails for a declared operator, and never claims more than it knows; what
it claims is checked by the solvers at each operator.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import prod
from string import ascii_letters

from shardproof.engine.algebra.affine import ZERO, Affine
from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.engine.lineage.expressions import (
    Amax,
    Causal,
    Most,
    Onehot,
    Order,
    Select,
    Stack,
    Unary,
)
from shardproof.engine.lineage.floating import sunk
from shardproof.engine.lineage.layout import Misaligned, regroup
from shardproof.engine.lineage.lineage import (
    ABSOLUTE,
    BROADCAST,
    Atom,
    Dim,
    Layout,
    Lineage,
    Term,
)
from shardproof.engine.lineage.places import (
    MOST_REGIONS,
    cut,
    has_places,
    joined,
    moved,
    permuted,
    placed,
    side_by_side,
)
from shardproof.engine.lineage.sums import merge_parts
from shardproof.engine.ops.primitives import Selection, is_partial
from shardproof.partition.inference.canonical import Draft, canonical
from shardproof.partition.inference.families import along_axes
from shardproof.partition.inference.floats import Way, dropped, ways
from shardproof.partition.inference.laws import Factor, factors_of, rewritten
from shardproof.partition.inference.pieces import each
from shardproof.partition.inference.products import Products
from shardproof.partition.inference.sums import tried
from shardproof.partition.inference.views import (
    adjoin_terms,
    causal_view,
    constant_view,
    local_view,
    result_layout,
)


class LineageReading(Products):
    """A `engine.ops.primitives.Reading` over lineages; all nodes go to ``table``."""

    def unary(self, function: str, x: Lineage) -> Lineage:
        several = self._each(x, lambda here: self.unary(function, here))
        if several is not None:
            return several
        term = self._single(x)
        made = self._reciprocals(term) if function == "inv" else None
        return Lineage(x.shape, (made or self._function(function, term),))

    def _reciprocals(self, term: Term) -> Term | None:
        """1 / (a b) as 1 / a times 1 / b; None if the term is no product."""
        flat = [atom for dim in term.layout.dims for atom in dim]
        numbers = iter(range(len(flat)))
        dims: list[list[int | Atom]] = [
            [a if a.axis == BROADCAST else n for a, n in zip(dim, numbers, strict=False)]
            for dim in term.layout.dims
        ]
        held = {n: a for n, a in enumerate(flat) if a.axis != BROADCAST}
        whole = Factor(term, tuple((atom, n) for n, atom in held.items()))
        found = factors_of(self.table, whole)
        if len(found) < 2 or not term.factor:
            return None
        factor = 1 / term.factor
        inverse: list[Term] = []
        for one in found:
            own = Layout(tuple((atom,) for atom, _ in one.atoms), one.term.layout.fixed)
            made = self._function("inv", one.term._replace(layout=own))
            factor *= made.factor
            inverse.append(made)
        self.rewrote = True
        extents = {n: atom.extent for n, atom in held.items()}
        atoms = [one.atoms for one in found]
        return self._product_term(factor, inverse, atoms, dims, frozenset(held), extents, held)

    def _function(self, function: str, term: Term) -> Term:
        known = rewritten(self.table, function, term)
        if known is not None:
            self.rewrote = True
            self._note_powers(known)
            return known
        if is_partial(function):
            self.partial.append((function, term))
        operand = self.table[term.node]
        node = self.table.define(
            Unary(function, term.factor, term.node), operand.extents, operand.coordinates
        )
        return Term(Fraction(1), node, term.layout)

    def _note_powers(self, known: Term) -> None:
        """A power of a power is defined where the inner one is and the power that both are."""
        match self.table[known.node].definition:
            case Unary(function=function, factor=factor, node=node) if is_partial(function):
                self.partial.append((function, known._replace(factor=factor, node=node)))

    def reshape(self, x: Lineage, shape: tuple[int, ...]) -> Lineage:
        if prod(shape) != prod(x.shape):
            raise ShapeMismatch(f"view of {list(x.shape)} as {list(shape)}")
        if shape == x.shape:
            return x
        try:
            terms = tuple(joined([moved(t, x.shape, shape) for t in x.terms]))
        except Misaligned:
            taken = self.piece(x).terms[0]
            terms = (taken._replace(layout=regroup(taken.layout, shape)),)
        return Lineage(shape, terms)

    def slice(self, x: Lineage, dim: int, start: Affine, size: int) -> Lineage:
        start = start.settled(self.mesh)
        shape = (*x.shape[:dim], size, *x.shape[dim + 1 :])
        if size > x.shape[dim] or (not start.terms and not 0 <= start.const <= x.shape[dim] - size):
            raise ShapeMismatch(f"slice [{start}, +{size}) of a dimension of {x.shape[dim]}")

        def taken(given: Lineage, start: Affine) -> Lineage:
            terms = [cut(t, x.shape, dim, start, size) for t in given.terms]
            return Lineage(shape, tuple(joined([t for t in terms if t is not None])))

        try:
            return taken(x, start)
        except Misaligned:
            pass
        try:
            return along_axes(lambda at: taken(x, at), start, self.mesh)
        except Misaligned:
            return taken(self.piece(x), start)

    def concat(self, xs: Sequence[Lineage], dim: int) -> Lineage:
        shape = list(xs[0].shape)
        for x in xs[1:]:
            if x.shape[:dim] != xs[0].shape[:dim] or x.shape[dim + 1 :] != xs[0].shape[dim + 1 :]:
                raise ShapeMismatch(f"concatenation of {[list(x.shape) for x in xs]}")
        shape[dim] = sum(x.shape[dim] for x in xs)
        try:
            return Lineage(tuple(shape), tuple(adjoin_terms(xs, dim)))
        except Misaligned:
            pass
        try:
            return Lineage(tuple(shape), tuple(self._side_by_side(xs, dim, shape[dim])))
        except Misaligned:
            taken = tuple(self.piece(x).terms[0] for x in xs)
            node = self.local_node(Stack(dim, taken), tuple(shape), taken)
            return local_view(node, tuple(shape))

    def _side_by_side(self, xs: Sequence[Lineage], dim: int, whole: int) -> list[Term]:
        terms: list[Term] = []
        start = 0
        for x in xs:
            size = x.shape[dim]
            terms += [placed(t, dim, start, size, whole) for t in x.terms if size]
            start += size
        if len(terms) > MOST_REGIONS:
            raise Misaligned
        return joined(terms)

    def amax(self, x: Lineage, dim: int) -> Lineage:
        if has_places(x):
            order = [i for i in range(len(x.shape)) if i != dim]
            rows = permuted(x, [*order, dim])
            several = self._each(rows, lambda here: self.amax(here, len(order)), 1)
            several = several or self._largest(x, dim)
            if several is not None:
                return several
        term = self._single(x)
        try:
            return self._placed_amax(x.shape, term, dim)
        except Misaligned:
            return self._amax(x.shape, self.piece(x).terms[0], dim)

    def _largest(self, x: Lineage, dim: int) -> Lineage | None:
        """The maximum along a dimension in which several values lie side by side: that of their
        maxima (None: something else is there too)."""
        try:
            return self._most([self.amax(part, dim) for part in side_by_side(x, dim)])
        except Misaligned:
            return None

    def _most(self, xs: Sequence[Lineage]) -> Lineage:
        """The elementwise maximum of tensors of one shape, as parts of one maximum or as a node;
        raises `Misaligned` where it is neither."""
        if has_places(*xs):
            return each(xs, self._most)
        if any(len(x.terms) != 1 for x in xs):
            raise Misaligned
        terms = merge_parts(self.table, [x.terms[0] for x in xs], self.mesh, add=False)
        if len(terms) == 1:
            return Lineage(xs[0].shape, tuple(terms))
        if any(term.parts for term in terms):
            raise Misaligned
        return self._sum_node(xs[0].shape, terms, Most)

    def _placed_amax(self, shape: tuple[int, ...], term: Term, dim: int) -> Lineage:
        """`_amax`, with positions of one of many where the single-device program has them."""

        def another(way: Way) -> Term:
            dims = way.terms[0].layout.dims
            behind = list(zip(way.labels[0], dims[len(shape) :], strict=True))
            over = tuple(a for letter, d in behind if letter not in way.kept for a in d)
            more = [d for letter, d in behind if letter in way.kept]
            own = (*dims[:dim], (*over, *dims[dim]), *dims[dim + 1 : len(shape)], *more)
            moved = way.terms[0]._replace(layout=way.terms[0].layout._replace(dims=own))
            made = self._amax((*shape, *(1,) * len(more)), moved, dim).terms[0]
            return dropped(made, len(shape) - 1)

        def others() -> Iterator[Term | None]:
            inside = term._replace(layout=sunk(term.layout))
            yield tried(lambda t: self._amax(shape, t, dim).terms[0], inside)
            found = ways([term], self.mesh, ascii_letters, sums=True, sides=self.as_part)
            yield from (tried(another, way) for way in found)

        first = tried(lambda t: self._amax(shape, t, dim).terms[0], term)
        taken = self._taken([term], first, others)
        return Lineage(shape[:dim] + shape[dim + 1 :], (taken,))

    def _amax(self, shape: tuple[int, ...], term: Term, dim: int) -> Lineage:
        reduced = shape[:dim] + shape[dim + 1 :]
        factor = abs(term.factor)
        if any(a.axis != BROADCAST for a in term.layout.dims[dim]):
            kept: list[list[int | Atom]] = []
            drafts: list[tuple[Atom, int]] = []
            extents: dict[int, int] = {}
            intervals: dict[int, Atom] = {}
            outputs: set[int] = set()
            for i, atoms in enumerate(term.layout.dims):
                items: list[int | Atom] = []
                for atom in atoms:
                    if atom.axis == BROADCAST:
                        items.append(atom)
                        continue
                    label = len(extents)
                    extents[label], intervals[label] = atom.extent, atom
                    drafts.append((atom, label))
                    items.append(label)
                    if i != dim:
                        outputs.add(label)
                if i != dim:
                    kept.append(items)
            draft: Draft = (term.node, tuple(drafts), term.layout.fixed, ())
            form = canonical([draft], frozenset(outputs), extents)
            sign = 1 if term.factor > 0 else -1
            definition = Amax(sign, form.operands[0], form.outputs)
            node = self._definition(definition, form.outputs, form.extents, [term])
            parts = [
                p._replace(token=self.table.token(self.table.tokens[p.token]._replace(kind="max")))
                for p in self._partial_sums(node, form.labels, frozenset(outputs), intervals)
            ]
            layout = result_layout(kept, form.labels, form.outputs, intervals)
            return Lineage(reduced, (Term(factor, node, layout, tuple(parts)),))
        dims = term.layout.dims[:dim] + term.layout.dims[dim + 1 :]
        return Lineage(reduced, (term._replace(layout=term.layout._replace(dims=dims)),))

    def onehot(self, ids: Lineage, start: Affine, size: int) -> Lineage:
        several = self._each(ids, lambda here: self.onehot(here, start, size))
        if several is not None:
            return several
        term = self._single(ids)
        operand = self.table[term.node]
        node = self.table.define(
            Onehot(term.factor, term.node), (*operand.extents, ABSOLUTE), operand.coordinates
        )
        classes = Atom(len(operand.extents), 1, ABSOLUTE, start.settled(self.mesh), size)
        layout = Layout((*term.layout.dims, (classes,)), term.layout.fixed)
        return Lineage((*ids.shape, size), (Term(Fraction(1), node, layout),))

    def causal(self, queries: int, keys: int) -> Lineage:
        return causal_view(self.table, queries, keys, Causal())

    def order(self, queries: int, keys: int) -> Lineage:
        return causal_view(self.table, queries, keys, Order())

    def select(self, scores: Lineage, selection: Selection) -> Lineage:
        several = self._each(scores, lambda here: self.select(here, selection), 1)
        if several is not None:
            return several
        term = self._single(scores)
        row = term.layout.dims[-1]
        if len(row) != 1 or not row[0].full or row[0].axis == BROADCAST:
            term = self.piece(scores).terms[0]
            row = term.layout.dims[-1]
        if not row or row[0].axis == BROADCAST:
            raise Unsupported("a choice from a row of one entry, or of zeros")
        inside = sunk(term.layout)
        if inside.dims[-1] == (row[0],):
            term = term._replace(layout=inside)
        tokens = [a for dim in term.layout.dims[:-1] for a in dim if a.axis != BROADCAST]
        atoms = [(a, i) for i, a in enumerate([row[0], *tokens])]
        outputs = frozenset(range(1, len(atoms)))
        extents = {i: a.extent for a, i in atoms}
        intervals = {i: a for a, i in atoms}
        form = canonical([(term.node, tuple(atoms), term.layout.fixed, ())], outputs, extents)
        choice = Select(term.factor, form.operands[0], form.labels[0][0], selection, form.outputs)
        axes = tuple(form.extents[x] for x in form.outputs)
        node = self.table.define(choice, (*axes, selection.topk), self.table[term.node].coordinates)
        label = iter(range(1, len(atoms)))
        dims = [
            [a if a.axis == BROADCAST else next(label) for a in dim]
            for dim in term.layout.dims[:-1]
        ]
        layout = result_layout(dims, form.labels, form.outputs, intervals)
        chosen: Dim = (Atom(len(axes), 1, selection.topk, ZERO, selection.topk),)
        shape = (*scores.shape[:-1], selection.topk)
        return Lineage(
            shape, (Term(Fraction(1), node, Layout((*layout.dims, chosen), layout.fixed)),)
        )

    def constant(self, name: str) -> Lineage:
        return constant_view(self.table, name)

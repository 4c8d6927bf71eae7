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

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from itertools import product
from math import prod
from string import ascii_letters
from typing import TypeVar

from engine.affine import ZERO, Affine
from engine.errors import ShapeMismatch, Unsupported
from engine.layout import Misaligned, align, constant_atom, merge, regroup
from engine.lineage import (
    ABSOLUTE,
    BROADCAST,
    Atom,
    Dim,
    Layout,
    Lineage,
    NodeTable,
    Part,
    Term,
    Token,
)
from engine.places import MOST_REGIONS, cut, has_places, joined, moved, permuted, placed
from engine.reading import CONSTANTS, Selection, is_partial
from engine.sums import collect, largest, merge_parts
from partition.canonical import Draft, canonical
from partition.closing import closed
from partition.floats import Way, dropped, ways
from partition.masks import masked_once, unscaled
from partition.match import Matcher
from partition.pieces import each, multiplied
from partition.views import (
    adjoin_terms,
    constant_layout,
    lineage_axes,
    local_view,
    result_layout,
)
from partition.windows import Reads, Windows

#: Sums of more partial terms than this are taken as they are.
MOST_TERMS = 32
#: Products of such terms that are kept apart.  Partial sums that somebody completes are one or two;
#: behind a fault there are as many as ranks, and every operator multiplies them.
MOST_PRODUCTS = 4


class LineageReading:
    """A `engine.reading.Reading` over lineages; all nodes go to ``table``."""

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
        self.windows = Windows(table, reference_size is None, self.mesh)
        self.partial: list[tuple[str, Term]] = []
        self.matcher = None if reference_size is None else Matcher(table, reference_size)

    def shape(self, x: Lineage) -> tuple[int, ...]:
        return x.shape

    # -- sums -----------------------------------------------------------------------------------

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

    def known(self, x: Lineage) -> Lineage:
        """The value over a node of the single-device program, where it has one by another route."""
        return x if self.matcher is None else self.matcher.known(x)

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
            return self.known(self._placed_sum(x.shape, terms))
        except Misaligned:
            apart = [self.piece(Lineage(x.shape, (t._replace(factor=Fraction(1)),))) for t in terms]
            taken = [
                p.terms[0]._replace(factor=t.factor) for p, t in zip(apart, terms, strict=True)
            ]
            return self.known(self._sum_node(x.shape, taken))

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

        letters = ascii_letters
        found = self._first_known(
            terms,
            lambda: self._sum_node(shape, terms).terms[0],
            lambda: map(partial(_tried, another), ways(terms, self.mesh, letters, sums=False)),
        )
        return Lineage(shape, (found,))

    def _sum_node(self, shape: tuple[int, ...], terms: Sequence[Term]) -> Lineage:
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
            (t.node if t.node != self.table.one else -1, *reads.of(k), (t.factor,))
            for k, t in enumerate(reads.settled())
        ]
        form = canonical(drafts, frozenset(outputs), extents)
        factors = [terms[i].factor for i in form.order]
        lead = self._lead(terms)
        operands = tuple(
            o._replace(node=self.table.one) if o.node == -1 else o for o in form.operands
        )
        payload = (tuple(f / lead for f in factors), operands, form.outputs)
        node = self._definition("combine", payload, form.outputs, form.extents, terms)
        layout = result_layout(dims, form.labels, form.outputs, intervals)
        return Lineage(shape, (Term(lead, node, layout),))

    def _lead(self, terms: Sequence[Term]) -> Fraction:
        """The factor that is taken out of a sum: of what is a sum already and was there first (the
        residual stream), so that factors do not pile up layer by layer.  A masked sum keeps its
        sign: minus infinity has no negative."""
        sums = [t for t in terms if self.table[t.node].kind == "combine"] or [
            t for t in terms if t.node != self.table.one
        ]
        first = min(t.node for t in sums)
        lead = largest([t.factor for t in sums if t.node == first])
        return abs(lead) if any(self.table.is_masked(t.node) for t in terms) else lead

    def _definition(
        self,
        kind: str,
        payload: tuple[object, ...],
        outputs: Sequence[int],
        extents: Mapping[int, int],
        terms: Sequence[Term],
    ) -> int:
        coordinates: set[str] = set()
        for term in terms:
            coordinates |= self.table[term.node].coordinates
            for atom in term.layout.fixed:
                coordinates.update(atom.start.axes)
        return self.table.node(
            kind, payload, tuple(extents[x] for x in outputs), frozenset(coordinates)
        )

    # -- products -------------------------------------------------------------------------------

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
            xs = tuple(self.piece(x) if len(x.terms) > 1 else x for x in xs)
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
        used = {*"".join(names), *output}
        letters = "".join(a for a in ascii_letters if a not in used)

        def another(way: Way) -> Term:
            spelled = [n + more for n, more in zip(names, way.labels, strict=True)]
            more = dict.fromkeys("".join(way.labels), 1)
            made = self._product(spelled, output + way.kept, way.terms, {**sizes, **more})
            return dropped(made, len(output))

        return self._first_known(
            terms,
            lambda: self._product(names, output, terms, sizes),
            lambda: map(partial(_tried, another), ways(terms, self.mesh, letters, sums=True)),
        )

    def _first_known(
        self,
        terms: Sequence[Term],
        default: Callable[[], Term],
        others: Callable[[], Iterable[Term | None]],
    ) -> Term:
        """The first way of reading views that gives a value of the single-device program."""
        size = self.reference_size
        first = _tried(lambda _: default(), None)
        if first is None and size is None:
            raise Misaligned
        if size is not None and not (first is not None and first.node < size):
            if all(t.node < size for t in terms):
                for found in others():
                    if found is not None and found.node < size:
                        return found
        if first is None:
            raise Misaligned
        return first

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
                joined = reads.label(label, position, owners, closed=name in closed)
                if joined.axis == BROADCAST:
                    if name not in output:
                        factor *= joined.size
                    dim.append(joined)
                    continue
                extents[label] = joined.extent
                intervals[label] = joined
                dim.append(label)
            dims[name] = dim
        outputs = frozenset(x for name in output for x in dims[name] if not isinstance(x, Atom))
        return self._product_term(
            factor, reads, [dims[n] for n in output], outputs, extents, intervals
        )

    def _product_term(
        self,
        factor: Fraction,
        reads: Reads,
        dims: Sequence[Sequence[int | Atom]],
        outputs: frozenset[int],
        extents: Mapping[int, int],
        intervals: Mapping[int, Atom],
    ) -> Term:
        terms = reads.terms
        real = [k for k, t in enumerate(terms) if t.node != self.table.one]
        if not real:
            return Term(
                factor,
                self.table.one,
                Layout(tuple(merge([a for a in dim if isinstance(a, Atom)]) for dim in dims)),
            )
        if len(real) == 1 and len(outputs) == len(extents):
            only = terms[real[0]]
            atoms, fixed = reads.of(real[0])
            held = {label: atom for atom, label in atoms}
            moved = tuple(
                merge([a if isinstance(a, Atom) else held[a] for a in dim]) for dim in dims
            )
            return Term(factor, only.node, Layout(moved, fixed), only.parts)
        settled = reads.settled()
        chosen = [settled[k] for k in real]
        drafts: list[Draft] = [(settled[k].node, *reads.of(k), ()) for k in real]
        form = canonical(drafts, outputs, dict(extents))
        payload = (form.operands, form.outputs)
        node = self._definition("einsum", payload, form.outputs, form.extents, chosen)
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

    # -- other primitives -----------------------------------------------------------------------

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
        return result if len(result.terms) == 1 and not result.terms[0].parts else None

    def _closed_product(self, spec: str, terms: Sequence[Term], over: frozenset[str]) -> Term:
        left, output = spec.split("->")
        names = left.split(",")
        return self._product(names, output, terms, {}, over)

    def unary(self, function: str, x: Lineage) -> Lineage:
        several = self._each(x, lambda here: self.unary(function, here))
        if several is not None:
            return several
        term = self._single(x)
        if is_partial(function):
            self.partial.append((function, term))
        operand = self.table[term.node]
        node = self.table.node(
            "unary", (function, term.factor, term.node), operand.extents, operand.coordinates
        )
        return Lineage(x.shape, (Term(Fraction(1), node, term.layout),))

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

        def taken(given: Lineage) -> Lineage:
            terms = [cut(t, x.shape, dim, start, size) for t in given.terms]
            return Lineage(shape, tuple(joined([t for t in terms if t is not None])))

        try:
            return taken(x)
        except Misaligned:
            return taken(self.piece(x))

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
            node = self.local_node("stack", (dim, taken), tuple(shape), taken)
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
            if several is not None:
                return several
        term = self._single(x)
        try:
            return self._placed_amax(x.shape, term, dim)
        except Misaligned:
            return self._amax(x.shape, self.piece(x).terms[0], dim)

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

        letters = ascii_letters
        found = self._first_known(
            [term],
            lambda: self._amax(shape, term, dim).terms[0],
            lambda: map(partial(_tried, another), ways([term], self.mesh, letters, sums=True)),
        )
        return Lineage(shape[:dim] + shape[dim + 1 :], (found,))

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
            payload = (sign, form.operands[0], form.outputs)
            node = self._definition("amax", payload, form.outputs, form.extents, [term])
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
        node = self.table.node(
            "onehot", (term.factor, term.node), (*operand.extents, ABSOLUTE), operand.coordinates
        )
        classes = Atom(len(operand.extents), 1, ABSOLUTE, start.settled(self.mesh), size)
        layout = Layout((*term.layout.dims, (classes,)), term.layout.fixed)
        return Lineage((*ids.shape, size), (Term(Fraction(1), node, layout),))

    def causal(self, queries: int, keys: int) -> Lineage:
        node = self.table.node("causal", (), (ABSOLUTE, ABSOLUTE))
        dims = tuple(
            (Atom(axis, 1, ABSOLUTE, ZERO, size),) for axis, size in enumerate((queries, keys))
        )
        return Lineage((queries, keys), (Term(Fraction(1), node, Layout(dims)),))

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
        tokens = [a for dim in term.layout.dims[:-1] for a in dim if a.axis != BROADCAST]
        atoms = [(a, i) for i, a in enumerate([row[0], *tokens])]
        outputs = frozenset(range(1, len(atoms)))
        extents = {i: a.extent for a, i in atoms}
        intervals = {i: a for a, i in atoms}
        form = canonical([(term.node, tuple(atoms), term.layout.fixed, ())], outputs, extents)
        payload = (term.factor, form.operands[0], form.labels[0][0], selection, form.outputs)
        axes = tuple(form.extents[x] for x in form.outputs)
        node = self.table.node(
            "select", payload, (*axes, selection.topk), self.table[term.node].coordinates
        )
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
        array = CONSTANTS[name]
        shape = (len(array), len(array[0]), len(array[0][0]))
        return local_view(self.table.node("constant", (name,), shape), shape)

    # -- tensors taken as they are --------------------------------------------------------------

    def piece(self, x: Lineage) -> Lineage:
        """The tensor as a node of its own (a value that only the parallel program has)."""
        if not x.terms:
            return Lineage(x.shape, (Term(Fraction(0), self.table.one, constant_layout(x.shape)),))
        ranked = tuple(sorted(x.terms, key=repr))
        node = self.local_node("piece", (ranked,), x.shape, ranked)
        return local_view(node, x.shape)

    def local_node(
        self,
        kind: str,
        payload: tuple[object, ...],
        shape: tuple[int, ...],
        terms: Sequence[Term],
    ) -> int:
        axes = lineage_axes(Lineage(shape, tuple(terms)), self.table)
        return self.table.node(kind, payload, tuple(n for n in shape if n != 1), axes)


W = TypeVar("W")


def _tried(make: Callable[[W], Term], way: W) -> Term | None:
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

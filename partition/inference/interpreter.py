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

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import product
from math import prod

from shardproof.engine.algebra.affine import ZERO, Affine
from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.engine.lineage.layout import (
    Misaligned,
    align,
    constant_atom,
    merge,
    narrow,
    regroup,
)
from shardproof.engine.lineage.lineage import (
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
from shardproof.engine.lineage.sums import collect, largest, merge_parts
from shardproof.engine.ops.primitives import Selection, is_partial
from shardproof.partition.inference.canonical import Draft, canonical
from shardproof.partition.inference.laws import Factor, left, rewritten
from shardproof.partition.inference.masks import masked_once, unscaled
from shardproof.partition.inference.match import Matcher
from shardproof.partition.inference.views import (
    adjoin_terms,
    causal_view,
    constant_layout,
    constant_view,
    join,
    lineage_axes,
    local_view,
    result_layout,
)

#: Sums of more partial terms than this are taken as they are.
MOST_TERMS = 32
#: Products of such terms that are kept apart.  Partial sums that somebody completes are one or two;
#: behind a fault there are as many as ranks, and every operator multiplies them.
MOST_PRODUCTS = 4


class LineageReading:
    """A `engine.ops.primitives.Reading` over lineages; all nodes go to ``table``."""

    def __init__(
        self,
        table: NodeTable,
        reference_size: int | None = None,
        mesh: Mapping[str, int] | None = None,
    ) -> None:
        """``reference_size``: nodes below are the single-device program's (None: all are);
        ``mesh``: how far every coordinate reaches."""
        self.table = table
        self.mesh = mesh or {}
        self.partial: list[tuple[str, Term]] = []
        self.counts = self.rewrote = False
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
            return self.known(self._sum_node(x.shape, terms))
        except Misaligned:
            apart = [self.piece(Lineage(x.shape, (t._replace(factor=Fraction(1)),))) for t in terms]
            taken = [
                p.terms[0]._replace(factor=t.factor) for p, t in zip(apart, terms, strict=True)
            ]
            return self.known(self._sum_node(x.shape, taken))

    def _sum_node(self, shape: tuple[int, ...], terms: Sequence[Term]) -> Lineage:
        outputs: set[int] = set()
        extents: dict[int, int] = {}
        intervals: dict[int, Atom] = {}
        dims: list[list[int | Atom]] = []
        atoms: list[list[tuple[Atom, int]]] = [[] for _ in terms]
        for i in range(len(shape)):
            dim: list[int | Atom] = []
            for position in align([t.layout.dims[i] for t in terms]):
                joined = join(position)
                if joined.axis == BROADCAST:
                    dim.append(joined)
                    continue
                label = len(extents)
                extents[label] = joined.extent
                intervals[label] = joined
                outputs.add(label)
                dim.append(label)
                for k, atom in enumerate(position):
                    if atom is not None and atom.axis != BROADCAST:
                        atoms[k].append((atom._replace(extent=joined.extent), label))
            dims.append(dim)
        drafts: list[Draft] = [
            (t.node if t.node != self.table.one else -1, tuple(a), t.layout.fixed, (t.factor,))
            for t, a in zip(terms, atoms, strict=True)
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
        if prod(len(x.terms) for x in xs) > MOST_PRODUCTS:
            xs = tuple(self.piece(x) if len(x.terms) > 1 else x for x in xs)
        terms: list[Term] = []
        for chosen in product(*(x.terms for x in xs)):
            try:
                terms.append(self._product(operands, output, chosen, extents))
            except Misaligned:
                taken = [
                    self.piece(Lineage(x.shape, (t,))).terms[0]
                    for x, t in zip(xs, chosen, strict=True)
                ]
                terms.append(self._product(operands, output, taken, extents))
        if len(terms) == 1:
            return self.known(Lineage(shape, (terms[0],)))
        return self.fold(Lineage(shape, tuple(terms)))

    def _product(
        self,
        names: Sequence[str],
        output: str,
        terms: Sequence[Term],
        sizes: Mapping[str, int],
    ) -> Term:
        factor = Fraction(1)
        for term in terms:
            factor *= term.factor
        extents: dict[int, int] = {}
        intervals: dict[int, Atom] = {}
        atoms: list[list[tuple[Atom, int]]] = [[] for _ in terms]
        dims: dict[str, list[int | Atom]] = {}
        for name in dict.fromkeys("".join(names) + output):
            holders = [(k, x.index(name)) for k, x in enumerate(names) if name in x]
            dim: list[int | Atom] = []
            if not holders:
                dim.append(constant_atom(sizes[name]))
            for position in align([terms[k].layout.dims[i] for k, i in holders]):
                joined = join(position)
                if joined.axis == BROADCAST:
                    if name not in output:
                        factor *= joined.size
                        self.counts = True
                    dim.append(joined)
                    continue
                label = len(extents)
                extents[label] = joined.extent
                intervals[label] = joined
                dim.append(label)
                for (k, _), atom in zip(holders, position, strict=True):
                    if atom is not None and atom.axis != BROADCAST:
                        atoms[k].append((atom._replace(extent=joined.extent), label))
            dims[name] = dim
        outputs = frozenset(x for name in output for x in dims[name] if not isinstance(x, Atom))
        return self._product_term(
            factor, terms, atoms, [dims[n] for n in output], outputs, extents, intervals
        )

    def _product_term(
        self,
        factor: Fraction,
        terms: Sequence[Term],
        atoms: Sequence[Sequence[tuple[Atom, int]]],
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
            self.rewrote, self.counts = True, self.counts or rest.factor != factor
            return self._product_term(*rest, intervals)
        chosen = [terms[k] for k in real]
        drafts: list[Draft] = [
            (t.node, tuple(atoms[k]), t.layout.fixed, ()) for k, t in zip(real, chosen, strict=True)
        ]
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
        if len(x.terms) == 1 and not x.terms[0].parts:
            return x.terms[0]
        return self.piece(x).terms[0]

    def unary(self, function: str, x: Lineage) -> Lineage:
        term = self._single(x)
        if known := rewritten(self.table, function, term):
            self.rewrote = True
            return Lineage(x.shape, (known,))
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
            terms = tuple(t._replace(layout=regroup(t.layout, shape)) for t in x.terms)
        except Misaligned:
            taken = self.piece(x).terms[0]
            terms = (taken._replace(layout=regroup(taken.layout, shape)),)
        return Lineage(shape, terms)

    def slice(self, x: Lineage, dim: int, start: Affine, size: int) -> Lineage:
        shape = (*x.shape[:dim], size, *x.shape[dim + 1 :])
        if size > x.shape[dim] or (not start.terms and not 0 <= start.const <= x.shape[dim] - size):
            raise ShapeMismatch(f"slice [{start}, +{size}) of a dimension of {x.shape[dim]}")

        def cut(term: Term) -> Term:
            dims = list(term.layout.dims)
            dims[dim] = narrow(dims[dim], start, size)
            return term._replace(layout=term.layout._replace(dims=tuple(dims)))

        try:
            return Lineage(shape, tuple(cut(t) for t in x.terms))
        except Misaligned:
            return Lineage(shape, tuple(cut(t) for t in self.piece(x).terms))

    def concat(self, xs: Sequence[Lineage], dim: int) -> Lineage:
        shape = list(xs[0].shape)
        for x in xs[1:]:
            if x.shape[:dim] != xs[0].shape[:dim] or x.shape[dim + 1 :] != xs[0].shape[dim + 1 :]:
                raise ShapeMismatch(f"concatenation of {[list(x.shape) for x in xs]}")
        shape[dim] = sum(x.shape[dim] for x in xs)
        try:
            return Lineage(tuple(shape), tuple(adjoin_terms(xs, dim)))
        except Misaligned:
            taken = tuple(self.piece(x).terms[0] for x in xs)
            node = self.local_node("stack", (dim, taken), tuple(shape), taken)
            return local_view(node, tuple(shape))

    def amax(self, x: Lineage, dim: int) -> Lineage:
        term = self._single(x)
        try:
            return self._amax(x.shape, term, dim)
        except Misaligned:
            return self._amax(x.shape, self.piece(x).terms[0], dim)

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
        term = self._single(ids)
        operand = self.table[term.node]
        node = self.table.node(
            "onehot", (term.factor, term.node), (*operand.extents, ABSOLUTE), operand.coordinates
        )
        classes = Atom(len(operand.extents), 1, ABSOLUTE, start, size)
        layout = Layout((*term.layout.dims, (classes,)), term.layout.fixed)
        return Lineage((*ids.shape, size), (Term(Fraction(1), node, layout),))

    def causal(self, queries: int, keys: int) -> Lineage:
        return causal_view(self.table, queries, keys)

    def select(self, scores: Lineage, selection: Selection) -> Lineage:
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
        return constant_view(self.table, name)

    # -- tensors taken as they are --------------------------------------------------------------

    def piece(self, x: Lineage) -> Lineage:
        """The tensor as a node of its own (a value that only the parallel program has)."""
        if not x.terms:
            return Lineage(x.shape, (Term(Fraction(0), self.table.one, constant_layout(x.shape)),))
        ranked = tuple(sorted(x.terms, key=repr))
        self.counts |= any(a.axis == BROADCAST for t in ranked for d in t.layout.dims for a in d)
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

"""Entries of lineages as terms: what a local tensor is, position by position, at small size.

`Meaning` gives the entries of reference nodes, as terms on `Representatives`: free symbols for
those that a claim takes as they are, definitions for the others, by the interpreter of operators'
declarations (`engine.obligations.small_terms`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np

from shardproof.engine.algebra.terms import ONE, ZERO, Term, TermTable
from shardproof.engine.errors import Unsupported
from shardproof.engine.interpreters import MASKED, Weighted
from shardproof.engine.interpreters.dims import Dim, Factor, count
from shardproof.engine.lineage.expressions import (
    AcrossRanks,
    Amax,
    AtCoordinate,
    Causal,
    Combine,
    Constant,
    Einsum,
    Expression,
    Input,
    Most,
    Onehot,
    Opaque,
    Operand,
    Order,
    Restrict,
    Select,
    Unary,
)
from shardproof.engine.lineage.lineage import BROADCAST, Lineage, PartialRange
from shardproof.engine.lineage.lineage import Addend as View
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.lineage.places import has_places, local_positions
from shardproof.engine.lineage.views import Misaligned
from shardproof.engine.obligations.regions import side_by_side
from shardproof.engine.obligations.small_terms import SmallInterpreter, choice
from shardproof.engine.small_model.representatives import Representatives

Entry = Any  # a Term, or MASKED
Index = tuple[int, ...]


class Meaning:
    """Entries of lineages as terms; see the module.

    Example: of ``n3 = einsum(n1[a:4, b:16], n2[c:8, b:16] -> a c)``, with n1 and n2 opaque, the
    entry at (0, 0) is a sum of products of symbols for n1[0, b] and n2[0, b].

    Entries of lineages as terms; see the module.
    """

    def __init__(
        self,
        nodes: NodeTable,
        representatives: Representatives,
        opaque: frozenset[int],
        terms: TermTable,
        first_symbol: int = 0,
        most: int | None = None,
        *,
        masks: bool = False,
        laws: bool = False,
        apart: bool = False,
    ) -> None:
        """``most``: products after which to give up (`Unsupported`)."""
        self.nodes = nodes
        self.representatives = representatives
        self.opaque = opaque
        self.terms = terms
        self.first_symbol = first_symbol
        self.most = most
        self.products = 0
        self.symbols: dict[tuple[object, ...], Term] = {}
        self.memo: dict[tuple[int, Index, tuple[PartialRange, ...]], Entry] = {}
        self.interpreter = SmallInterpreter(terms, representatives, masks, laws, apart)

    def symbol(self, key: tuple[object, ...]) -> Term:
        """The free symbol of an entry of a node, a new one for a new entry."""
        term = self.symbols.get(key)
        if term is None:
            term = self.terms.symbol(f"v{self.first_symbol + len(self.symbols)}")
            self.symbols[key] = term
        return term

    # -- entries ----------------------------------------------------------------------------

    def entry(self, number: int, index: Index, partials: tuple[PartialRange, ...] = ()) -> Entry:
        """The entry of a node (of its partial sum) at a true index."""
        key = (number, index, partials)
        if key not in self.memo:
            self.memo[key] = self._entry(number, index, partials)
        return self.memo[key]

    def _entry(self, number: int, index: Index, partials: tuple[PartialRange, ...]) -> Entry:
        definition = self.nodes[number].definition
        if number == self.nodes.one:
            return self.terms.one
        if number in self.opaque or isinstance(definition, Input | AtCoordinate | AcrossRanks):
            return self.symbol((number, index, *partials))
        if isinstance(definition, Einsum):
            return self._einsum(number, definition, index, partials)
        if isinstance(definition, Amax):
            return self._amax(number, definition, index, partials)
        if partials:
            raise Unsupported(f"a partial {definition.kind}")
        return self._complete(number, definition, index)

    def _complete(self, number: int, definition: Expression, index: Index) -> Entry:
        """An entry of a definition that has no partial sums."""
        match definition:
            case Combine():
                return self._combine(definition, index)
            case Most():
                return self._most(definition, index)
            case Unary():
                return self._unary(definition, index)
            case Onehot(factor=factor, node=node):
                ids = self.terms.mul(factor, self.entry(node, index[:-1]))
                return self.terms.app("is", ids, self.terms.const(index[-1]))
            case Restrict():
                return self._restrict(definition, index)
            case Causal():
                return MASKED if index[1] > index[0] else self.terms.zero
            case Order():
                return self.terms.zero if index[1] > index[0] else self.terms.one
            case Constant(name=name):
                return self.interpreter.constant(name).data[tuple(index)]
            case Select():
                return self._select(number, definition, index)
            case Opaque() if self.representatives.exact:
                return self._local(definition, index)
        raise Unsupported("a tensor that is no view of a single-device value")

    def _operand(
        self, operand: Operand, labels: Mapping[int, int], partials: tuple[PartialRange, ...] = ()
    ) -> Entry:
        axes = [0] * len(self.nodes[operand.node].extents)
        for axis, stride, _, label in operand.intervals:
            axes[axis] += stride * labels[label]
        for axis, stride, _, start in operand.fixed:
            axes[axis] += stride * self.representatives.at(start)
        return self.entry(operand.node, tuple(axes), partials)

    def _summed(
        self, number: int, definition: Einsum | Amax, partials: tuple[PartialRange, ...]
    ) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """The reduced labels of a definition, with the (position, weight) pairs that represent
        their range; restricted by the node's own partial sum."""
        own: dict[int, list[PartialRange]] = {}
        for part in partials:
            reduction = self.nodes.reductions[part.reduction]
            if reduction.kind in ("sum", "max") and reduction.node == number:
                own.setdefault(reduction.where, []).append(part)
        outputs = definition.outputs
        extents = {label: extent for o in definition.reads() for _, _, extent, label in o.intervals}
        if any(not extents[label] for label in extents if label not in outputs):
            raise Unsupported("a sum over a range without an end")
        result = []
        for label in sorted(extents):
            if label in outputs:
                continue
            key, extent = (number, -1 - label), extents[label]
            positions = self.representatives.positions(key, 1, extent, extent, own.get(label, ()))
            result.append(([label], positions))
        return result

    def _einsum(
        self, number: int, definition: Einsum, index: Index, partials: tuple[PartialRange, ...]
    ) -> Entry:
        labels = dict(zip(definition.outputs, index, strict=True))
        inner: dict[int, list[PartialRange]] = {}
        for part in partials:
            reduction = self.nodes.reductions[part.reduction]
            if reduction.kind == "via":
                inner.setdefault(reduction.where, []).append(
                    part._replace(reduction=reduction.inner)
                )
        reduced = self._summed(number, definition, partials)
        self.products += prod(len(positions) for _, positions in reduced)
        if self.most is not None and self.products > self.most:
            raise Unsupported(f"a claim over more than {self.most} products")
        addends = []
        for chosen in product(*(positions for _, positions in reduced)):
            weight = 1
            for ((label,), _), (position, multiplicity) in zip(reduced, chosen, strict=True):
                labels[label] = position
                weight *= multiplicity
            factors = [
                self._operand(o, labels, tuple(inner.get(i, ())))
                for i, o in enumerate(definition.operands)
            ]
            addends.append(self.interpreter.product_of([weight, *factors]))
        return self.interpreter.total_of(addends)

    def _combine(self, definition: Combine, index: Index) -> Entry:
        labels = dict(zip(definition.outputs, index, strict=True))
        entries = [
            (f, self._operand(o, labels))
            for f, o in zip(definition.factors, definition.operands, strict=True)
        ]
        if any(e is MASKED for _, e in entries):
            if any(e is MASKED and f <= 0 for f, e in entries):
                raise Unsupported("a masked entry times a number that is not positive")
            return MASKED
        return self.interpreter.sum_of(self.terms.mul(f, e) for f, e in entries)

    def _local(self, definition: Opaque, index: Index) -> Entry:
        """An entry of a local tensor, whose addends are read where all positions are true ones;
        each is zero outside of its places."""
        entries = []
        for addend in definition.addends:
            try:
                own = local_positions(addend, index)
            except Misaligned:
                raise Unsupported("a local tensor of parts that are no intervals") from None
            if own is None:
                continue
            axes = [0] * len(self.nodes[addend.node].extents)
            for interval in addend.view.fixed:
                axes[interval.axis] += interval.stride * self.representatives.at(interval.start)
            for dim, place in zip(addend.view.dims, own, strict=True):
                for interval in reversed(dim):
                    place, inside = divmod(place, interval.size)
                    if interval.axis != BROADCAST:
                        start = self.representatives.at(interval.start)
                        axes[interval.axis] += interval.stride * (start + inside)
            entry = self.entry(addend.node, tuple(axes), addend.partials)
            if entry is MASKED:
                raise Unsupported("a local tensor of masked entries")
            entries.append(self.terms.mul(addend.factor, entry))
        return self.interpreter.sum_of(entries)

    def _unary(self, definition: Unary, index: Index) -> Entry:
        function, factor = definition.function, definition.factor
        entry = self.entry(definition.node, index)
        if entry is MASKED:
            if function == "exp" and factor > 0:
                return self.terms.zero
            raise Unsupported(f"{function} of a masked entry")
        return self.interpreter.applied_to(function, self.terms.mul(factor, entry))

    def _amax(
        self, number: int, definition: Amax, index: Index, partials: tuple[PartialRange, ...]
    ) -> Entry:
        labels = dict(zip(definition.outputs, index, strict=True))
        reduced = self._summed(number, definition, partials)
        row = []
        for chosen in product(*(positions for _, positions in reduced)):
            for ((label,), _), (position, _) in zip(reduced, chosen, strict=True):
                labels[label] = position
            entry = self._operand(definition.operand, labels)
            plain = entry is MASKED or definition.sign == 1
            row.append(entry if plain else self.terms.mul(-1, entry))
        return self.interpreter.maximum_of(row)

    def _most(self, definition: Most, index: Index) -> Entry:
        labels = dict(zip(definition.outputs, index, strict=True))
        row = []
        for factor, operand in zip(definition.factors, definition.operands, strict=True):
            entry = self._operand(operand, labels)
            row.append(entry if entry is MASKED else self.terms.mul(factor, entry))
        return self.interpreter.maximum_of(row)

    def _restrict(self, definition: Restrict, index: Index) -> Entry:
        operand, blocks = definition.node, definition.blocks
        extents = self.nodes[operand].extents
        positions = (
            self.representatives.inside((operand, axis), blocks, n, i)
            if any(b.axis == axis for b in blocks)
            else i
            for axis, (n, i) in enumerate(zip(extents, index, strict=True))
        )
        return self.entry(operand, tuple(positions))

    def _select(self, number: int, definition: Select, index: Index) -> Entry:
        operand, row = definition.operand, definition.row
        labels = dict(zip(definition.outputs, index[:-1], strict=True))
        extent = next(e for _, _, e, label in operand.intervals if label == row)
        kept = self.representatives.positions((number, -1 - row), 1, extent, extent)
        entries = []
        for position, _ in kept:
            labels[row] = position
            entries.append(self.terms.mul(definition.factor, self._operand(operand, labels)))
        name = choice(definition.selection, extent, kept, index[-1])
        return self.terms.app(name, *entries)

    # -- tensors ----------------------------------------------------------------------------

    def tensor(self, lineage: Lineage, like: Sequence[Dim] | None = None) -> Weighted:
        """The local tensor that a lineage describes, represented on the grid (where it does not
        vary: as ``like``, where that can be)."""
        if not self.representatives.places and not has_places(lineage):
            like = None  # what does not vary is represented as what has its size
        if not lineage.addends:
            sizes = enumerate(lineage.shape)
            dims = tuple(
                like or (self.representatives.broadcast_dim(lineage, d, 1, n) for d, n in sizes)
            )
            data = np.full([count(d) for d in dims], self.terms.zero, dtype=object)
            return Weighted(data, dims)
        if has_places(lineage):
            return side_by_side(lineage, like, self.representatives, self.tensor, self.terms.zero)
        total: Weighted | None = None
        for view in lineage.addends:
            one = self.view(view, lineage, like)
            total = (
                one if total is None else self.interpreter.combine([total, one], [ONE, ONE], ZERO)
            )
        assert total is not None
        return total

    def view(self, view: View, lineage: Lineage, like: Sequence[Dim] | None = None) -> Weighted:
        """One term of a lineage; ``like``: see `tensor`."""
        extents = self.nodes[view.node].extents
        base = [0] * len(extents)
        for interval in view.view.fixed:
            base[interval.axis] += interval.stride * self.representatives.at(interval.start)
        dims: list[Dim] = []
        offsets: list[list[tuple[tuple[int, int], ...]]] = []
        for d, intervals in enumerate(view.view.dims):
            factors: list[Factor] = []
            steps: list[list[tuple[int, int]]] = []
            if like is not None and intervals and all(a.axis == BROADCAST for a in intervals):
                dims.append(like[d])
                offsets.append([((-1, 0),)] * count(like[d]))
                continue
            for k, interval in enumerate(intervals):
                if interval.axis == BROADCAST:
                    inner = prod(a.size for a in intervals[k + 1 :])
                    for factor in self.representatives.broadcast_dim(
                        lineage, d, inner, interval.size
                    ):
                        factors.append(factor)
                        steps.append([(-1, 0)] * len(factor))
                    continue
                for factor, places in self.representatives.digits(
                    (view.node, interval.axis), interval
                ):
                    factors.append(factor)
                    steps.append([(interval.axis, place) for place in places])
            dims.append(tuple(factors))
            offsets.append([tuple(chosen) for chosen in product(*steps)])
        # Moves along no axis, as of what does not vary, are left out.
        moved = [[tuple([m for m in moves if m[0] >= 0]) for moves in dim] for dim in offsets]
        entries = []
        for chosen in product(*moved):
            index = list(base)
            for moves in chosen:
                for axis, place in moves:
                    index[axis] += place
            entries.append(self.entry(view.node, tuple(index), view.partials))
        if view.factor != 1:
            entries = [view.factor * entry for entry in entries]
        data = np.empty(len(entries), dtype=object)
        data[:] = entries
        return Weighted(data.reshape([len(o) for o in offsets]), tuple(dims))

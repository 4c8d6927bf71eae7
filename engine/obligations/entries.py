"""Entries of lineages as terms: what a local tensor is, position by position, at small size.

`SmallInterpreter` is the interpreter of an operator's declaration in which entries are terms on a
`Representatives`; `Meaning` gives the entries of reference nodes: free symbols for those that a
claim takes as they are, definitions for the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from math import prod
from typing import Any

import numpy as np

from shardproof.engine.algebra.terms import ONE, ZERO, Term, TermTable
from shardproof.engine.errors import Unsupported
from shardproof.engine.interpreters import MASKED, TermInterpreter, Weighted
from shardproof.engine.interpreters.dims import Dim, Extent, Factor, count
from shardproof.engine.lineage.blocks import place as placed
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
from shardproof.engine.lineage.sums import largest
from shardproof.engine.lineage.views import Misaligned
from shardproof.engine.obligations.regions import side_by_side
from shardproof.engine.ops.laws import (
    applied,
    common_exponentials,
    flat,
    logarithms,
    without_opposites,
)
from shardproof.engine.ops.primitives import Selection, is_partial
from shardproof.engine.small_model.representatives import Representatives

Entry = Any  # a Term, or MASKED
Index = tuple[int, ...]


@dataclass(frozen=True)
class SmallInterpreter(TermInterpreter):
    """Terms of an obligation: positions follow from multiplicities, and a choice reads the
    represented entries of its row.

    Example: a linear layer of 8 inputs, kept at two of them of which the second one stands for 7,
    has the entry ``7 * (1/7 * v0 * v4 + v1 * v5)``.

    ``masks``: positions are compared by a mask. Then one that stands for others is counted as the
    mask has it: what is summed has to differ from position to position, so that nothing is a count.
    ``laws``: functions are read with the laws of `engine.ops.laws`.
    ``apart``: exponentials of sums are read as products, and what exponentials all addends of a sum
    have is taken out of it.  ``over_positions``: sums over positions, which are no such sums, and
    which no law takes out of an exponent.
    ``applications``: those of functions that are undefined somewhere, before laws of products.
    """

    representatives: Representatives
    masks: bool = False
    laws: bool = False
    apart: bool = False
    over_positions: set[Term] = field(default_factory=set, compare=False)
    applications: set[Term] = field(default_factory=set, compare=False)

    def applied_to(self, function: str, entry: Term) -> Term:
        """A function of an entry as a term; applications that are undefined somewhere are noted."""
        if self.laws:
            term = applied(self.table, function, entry, self.apart, self.over_positions)
        else:
            term = super().applied_to(function, entry)
        parts = (part for part in flat(term) if part.kind == "app" and is_partial(str(part.name)))
        self.applications.update(parts, logarithms(function, term))
        return term

    def product_of(self, factors: Sequence[Any]) -> Any:
        """The product of entries; with ``laws``, without powers and exponentials that cancel."""
        product = super().product_of(factors)
        return without_opposites(product) if self.laws and isinstance(product, Term) else product

    def dim(self, size: int) -> Dim:
        """How the positions of a dimension of this size are represented."""
        return size.dim if isinstance(size, Extent) else self.representatives.constant_dim(size)

    def absolute(self, start: int, size: int) -> tuple[Dim, tuple[int, ...]]:
        """A dimension of ``size`` positions with the true position of each representative."""
        dim = self.dim(size)
        places = [0]
        for factor in dim:
            inner = sum(factor)
            firsts = [sum(factor[:i]) for i in range(len(factor))]
            places = [p * inner + first for p in places for first in firsts]
        return dim, tuple(start + p for p in places)

    def select(self, scores: Weighted, selection: Selection) -> Weighted:
        """A function of the row's scores, not interpreted, for every choice that represents
        others."""
        size = int(scores.shape[1])
        chosen = self.representatives.positions((-1, 0), 1, selection.topk, selection.topk)
        entries = np.empty((scores.data.shape[0], len(chosen)), dtype=object)
        for i, row in enumerate(scores.data):
            for k, (j, _) in enumerate(chosen):
                entries[i, k] = self.table.app(f"select:{size}:{selection}:{j}", *row)
        return Weighted(entries, (scores.dims[0], (tuple(w for _, w in chosen),)))

    def total_of(self, entries: Iterable[Entry]) -> Entry:
        """The sum of entries; raises `Unsupported` where a mask compares positions and two of them
        are alike."""
        parts = list(entries)
        if self.masks:
            terms = [_core(e) for e in parts if isinstance(e, Term) and e is not self.table.zero]
            cores = [self.table.one if e.kind == "const" else e for e in terms]
            if len(set(cores)) < len(cores):
                raise Unsupported("a sum under a mask over positions that are alike")
        total = self.sum_of(parts)
        if self.laws and isinstance(total, Term) and len(parts) > 1:
            self.over_positions.update(f for f in flat(total) if f.kind == "add")
        return total

    def sum_of(self, entries: Iterable[Entry]) -> Entry:
        """A sum with its largest constant factor taken out, as the definitions of nodes have it:
        equal sums are then equal factors of products, which the linear rung does not look into."""
        parts = list(entries)
        if any(e is MASKED for e in parts):
            return MASKED
        if self.apart:
            kept = [e for e in parts if e is not self.table.zero]
            common, rest = common_exponentials(self.table, kept) if len(kept) > 1 else (None, [])
            if common is not None and common is not self.table.one:
                return self.product_of([common, self.sum_of(rest)])
        shares = [(_factor(e), e) for e in parts if e is not self.table.zero]
        if not shares:
            return self.table.zero
        if all(f is ONE for f, _ in shares):
            return self.table.add(*parts)
        lead = largest([f for f, _ in shares])
        if lead == 1:
            return self.table.add(*parts)
        addends = [self.table.mul(f / lead, _core(e)) for f, e in shares]
        return self.table.mul(lead, self.table.add(*addends))

    def maximum_of(self, row: Sequence[Entry]) -> Term:
        """A maximum commutes with a positive factor: the size of the common one of all entries is
        taken out, so that a scaled maximum is the maximum of scaled entries; its sign stays."""
        entries = [e for e in row if isinstance(e, Term)]
        factors = {_factor(e) for e in entries}
        if len(factors) != 1 or abs(factor := factors.pop()) in (0, 1):
            return super().maximum_of(row)
        sign = 1 if factor > 0 else -1
        inner = [self.table.mul(sign, _core(e)) for e in entries]
        return self.table.mul(abs(factor), super().maximum_of(inner))


def _factor(term: Term) -> Fraction:
    """The constant factor of a term ("mul" with a constant is always (constant, term))."""
    if term.kind == "mul" and term.args[0].kind == "const" and len(term.args) == 2:
        return term.args[0].value or ZERO
    return ONE


def _core(term: Term) -> Term:
    """A term without its constant factor."""
    if term.kind == "mul" and term.args[0].kind == "const" and len(term.args) == 2:
        return term.args[1]
    return term


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
            placed(blocks, axis, n, i) if any(b.axis == axis for b in blocks) else i
            for axis, (n, i) in enumerate(zip(extents, index, strict=True))
        )
        return self.entry(operand, tuple(positions))

    def _select(self, number: int, definition: Select, index: Index) -> Entry:
        operand, row = definition.operand, definition.row
        labels = dict(zip(definition.outputs, index[:-1], strict=True))
        extent = next(e for _, _, e, label in operand.intervals if label == row)
        entries = []
        for position, _ in self.representatives.positions((number, -1 - row), 1, extent, extent):
            labels[row] = position
            entries.append(self.terms.mul(definition.factor, self._operand(operand, labels)))
        name = f"select:{extent}:{definition.selection}:{index[-1]}"
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

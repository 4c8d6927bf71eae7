"""What a claim says at small size: an obligation, as equalities between terms.

A claim is one operator instance with the lineages of its inputs and outputs.  Its obligation:
apply the operator, by its declared semantics, to input tensors whose entries are what their
lineages say, and compare with what the lineages of the outputs say.  Entries of reference nodes
are free symbols; nodes that the operator makes are expanded by their definitions.

Restriction: only positions inside the boxes that the claim mentions occur.  Reduction: each of the
claim's axes is represented by few positions (`Grid`): all interval boundaries that the claim
mentions cut it, and each piece keeps ``units`` representatives, the last of which stands for the
rest of the piece (its multiplicity counts in every sum).  Coefficients come from true sizes.
Coordinates along which the claim is one of a family take one value; those that the operator sums
or gathers over are represented like an axis.  `docs/soundness.md` says why this is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from engine.arrays import MASKED, TermReading, Weighted
from engine.arrays.base import Array
from engine.arrays.dims import Dim, Extent, Factor, count, narrow
from engine.cone import Cone, cone, operands
from engine.errors import ShapeMismatch, Unsupported
from engine.grid import Grid, concrete
from engine.ir import Attr
from engine.lineage import BROADCAST, Lineage, NodeTable, Operand, Part
from engine.lineage import Term as View
from engine.moves import attribute_axes, is_even
from engine.ops import apply_backward, apply_forward
from engine.reading import Selection
from engine.sums import largest
from engine.terms import Term, TermTable

Entry = Any  # a Term, or MASKED
Index = tuple[int, ...]
Over = tuple[tuple[str, int], ...]


class Claim(NamedTuple):
    """One operator instance as the prover claims it.

    ``kind``, ``name``, ``attrs``, ``backward``, ``over``: of its row; ``members``: programs that
    take part; ``inputs``, ``outputs``: lineages (None: an absent gradient); ``extents``: of the
    mesh coordinates that occur.
    """

    kind: str
    name: str
    attrs: Mapping[str, Attr]
    backward: bool
    over: Over
    members: int
    inputs: tuple[Lineage | None, ...]
    outputs: tuple[Lineage, ...]
    extents: Mapping[str, int]
    batched: tuple[bool, ...] = ()


@dataclass(frozen=True)
class SmallReading(TermReading):
    """Terms of an obligation: positions follow from multiplicities, and a choice reads the
    represented entries of its row."""

    grid: Grid

    def dim(self, size: int) -> Dim:
        return size.dim if isinstance(size, Extent) else self.grid.constant_dim(size)

    def absolute(self, start: int, size: int) -> tuple[Dim, tuple[int, ...]]:
        dim = self.dim(size)
        places = [0]
        for factor in dim:
            inner = sum(factor)
            firsts = [sum(factor[:i]) for i in range(len(factor))]
            places = [p * inner + first for p in places for first in firsts]
        return dim, tuple(start + p for p in places)

    def select(self, scores: Weighted, selection: Selection) -> Weighted:
        size = int(scores.shape[1])
        chosen = self.grid.positions((-1, 0), 1, selection.topk, 0, selection.topk)
        entries = np.empty((scores.data.shape[0], len(chosen)), dtype=object)
        for i, row in enumerate(scores.data):
            for k, (j, _) in enumerate(chosen):
                entries[i, k] = self.table.app(f"select:{size}:{selection}:{j}", *row)
        return Weighted(entries, (scores.dims[0], (tuple(w for _, w in chosen),)))

    def _sum(self, entries: Iterable[Entry]) -> Entry:
        """A sum with its largest constant factor taken out, as the definitions of nodes have it:
        equal sums are then equal factors of products, which the linear rung does not look into."""
        parts = list(entries)
        if any(e is MASKED for e in parts):
            return MASKED
        shares = [(_factor(e), e) for e in parts if e is not self.table.zero]
        if not shares:
            return self.table.zero
        lead = largest([f for f, _ in shares])
        if lead == 1:
            return self.table.add(*parts)
        addends = [self.table.mul(f / lead, _core(e)) for f, e in shares]
        return self.table.mul(lead, self.table.add(*addends))

    def _maximum(self, row: Array) -> Term:
        """A maximum commutes with a positive factor: the common one of all entries is taken out,
        so that a scaled maximum is the maximum of scaled entries."""
        entries = [e for e in row if isinstance(e, Term)]
        factors = {_factor(e) for e in entries}
        if len(factors) != 1 or (factor := factors.pop()) == 1 or factor <= 0:
            return super()._maximum(row)
        inner = np.empty(len(entries), dtype=object)
        inner[:] = [_core(e) for e in entries]
        return self.table.mul(factor, super()._maximum(inner))


def _factor(term: Term) -> Fraction:
    """The constant factor of a term ("mul" with a constant is always (constant, term))."""
    if term.kind == "mul" and term.args[0].kind == "const" and len(term.args) == 2:
        return term.args[0].value or Fraction(0)
    return Fraction(1)


def _core(term: Term) -> Term:
    """A term without its constant factor."""
    if term.kind == "mul" and term.args[0].kind == "const" and len(term.args) == 2:
        return term.args[1]
    return term


class Meaning:
    """Entries of lineages as terms; see the module."""

    def __init__(
        self,
        nodes: NodeTable,
        grid: Grid,
        opaque: frozenset[int],
        terms: TermTable,
        first_symbol: int = 0,
    ) -> None:
        self.nodes = nodes
        self.grid = grid
        self.opaque = opaque
        self.terms = terms
        self.first_symbol = first_symbol
        self.symbols: dict[tuple[object, ...], Term] = {}
        self.memo: dict[tuple[int, Index, tuple[Part, ...]], Entry] = {}
        self.reading = SmallReading(terms, grid)

    def symbol(self, key: tuple[object, ...]) -> Term:
        found = self.symbols.get(key)
        if found is None:
            found = self.terms.symbol(f"v{self.first_symbol + len(self.symbols)}")
            self.symbols[key] = found
        return found

    # -- entries ----------------------------------------------------------------------------

    def entry(self, number: int, index: Index, parts: tuple[Part, ...] = ()) -> Entry:
        """The entry of a node (of its partial sum) at a true index."""
        key = (number, index, parts)
        if key not in self.memo:
            self.memo[key] = self._entry(number, index, parts)
        return self.memo[key]

    def _entry(self, number: int, index: Index, parts: tuple[Part, ...]) -> Entry:
        node = self.nodes[number]
        if number == self.nodes.one:
            return self.terms.one
        if number in self.opaque or node.kind in ("input", "at", "over"):
            return self.symbol((number, index, *parts))
        if parts and node.kind not in ("einsum", "amax"):
            raise Unsupported(f"a partial {node.kind}")
        expand: Callable[[int, Index, tuple[Part, ...]], Entry] = getattr(self, f"_{node.kind}")
        return expand(number, index, parts)

    def _operand(
        self, operand: Operand, labels: Mapping[int, int], parts: tuple[Part, ...] = ()
    ) -> Entry:
        axes = [0] * len(self.nodes[operand.node].extents)
        for axis, stride, _, label in operand.atoms:
            axes[axis] += stride * labels[label]
        for axis, stride, _, start in operand.fixed:
            axes[axis] += stride * self.grid.at(start)
        return self.entry(operand.node, tuple(axes), parts)

    def _summed(
        self, number: int, outputs: Sequence[int], parts: tuple[Part, ...]
    ) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """The reduced labels of a definition, with the (position, weight) pairs that represent
        their range; restricted by the node's own partial sum."""
        own = {}
        for part in parts:
            token = self.nodes.tokens[part.token]
            if token.kind in ("sum", "max") and token.node == number:
                own[token.where] = part
        extents = {
            label: extent for o in operands(self.nodes, number) for _, _, extent, label in o.atoms
        }
        if any(not extents[label] for label in extents if label not in outputs):
            raise Unsupported("a sum over a range without an end")
        result = []
        for label in sorted(extents):
            if label in outputs:
                continue
            restricted = own.get(label)
            start = self.grid.at(restricted.start) if restricted is not None else 0
            size = restricted.size if restricted is not None else extents[label]
            positions = self.grid.positions((number, -1 - label), 1, extents[label], start, size)
            result.append(([label], positions))
        return result

    def _einsum(self, number: int, index: Index, parts: tuple[Part, ...]) -> Entry:
        outputs = self.nodes[number].payload[1]
        labels = dict(zip(outputs, index, strict=True))  # type: ignore[call-overload]
        inner: dict[int, list[Part]] = {}
        for part in parts:
            token = self.nodes.tokens[part.token]
            if token.kind == "via":
                inner.setdefault(token.where, []).append(part._replace(token=token.inner))
        reduced = self._summed(number, outputs, parts)  # type: ignore[arg-type]
        addends = []
        for chosen in product(*(positions for _, positions in reduced)):
            weight = 1
            for ((label,), _), (position, multiplicity) in zip(reduced, chosen, strict=True):
                labels[label] = position
                weight *= multiplicity
            factors = [
                self._operand(o, labels, tuple(inner.get(i, ())))
                for i, o in enumerate(operands(self.nodes, number))
            ]
            addends.append(self.terms.mul(Fraction(weight), *factors))
        return self.reading._sum(addends)

    def _combine(self, number: int, index: Index, parts: tuple[Part, ...]) -> Entry:
        factors, reads, outputs = self.nodes[number].payload
        labels = dict(zip(outputs, index, strict=True))  # type: ignore[call-overload]
        entries = [
            (f, self._operand(o, labels))
            for f, o in zip(factors, reads, strict=True)  # type: ignore[call-overload]
        ]
        if any(e is MASKED for _, e in entries):
            if any(e is MASKED and f <= 0 for f, e in entries):
                raise Unsupported("a masked entry times a number that is not positive")
            return MASKED
        return self.reading._sum(self.terms.mul(f, e) for f, e in entries)

    def _unary(self, number: int, index: Index, parts: tuple[Part, ...]) -> Entry:
        function, factor, operand = self.nodes[number].payload
        entry = self.entry(operand, index)  # type: ignore[arg-type]
        if entry is MASKED:
            if function == "exp" and factor > 0:  # type: ignore[operator]
                return self.terms.zero
            raise Unsupported(f"{function} of a masked entry")
        return self.terms.app(str(function), self.terms.mul(Fraction(str(factor)), entry))

    def _amax(self, number: int, index: Index, parts: tuple[Part, ...]) -> Entry:
        sign, operand, outputs = self.nodes[number].payload
        labels = dict(zip(outputs, index, strict=True))  # type: ignore[call-overload]
        reduced = self._summed(number, outputs, parts)  # type: ignore[arg-type]
        row = []
        for chosen in product(*(positions for _, positions in reduced)):
            for ((label,), _), (position, _) in zip(reduced, chosen, strict=True):
                labels[label] = position
            entry = self._operand(operand, labels)  # type: ignore[arg-type]
            row.append(entry if entry is MASKED or sign == 1 else self.terms.mul(-1, entry))
        entries = np.empty((1, len(row)), dtype=object)
        entries[0, :] = row
        return self.reading._amax(entries, 1)[0]

    def _onehot(self, number: int, index: Index, parts: tuple[Part, ...]) -> Entry:
        factor, operand = self.nodes[number].payload
        ids = self.terms.mul(factor, self.entry(operand, index[:-1]))  # type: ignore[arg-type]
        return self.terms.app("is", ids, self.terms.const(index[-1]))

    def _causal(self, number: int, index: Index, parts: tuple[Part, ...]) -> Entry:
        return MASKED if index[1] > index[0] else self.terms.zero

    def _constant(self, number: int, index: Index, parts: tuple[Part, ...]) -> Entry:
        array = self.reading.constant(str(self.nodes[number].payload[0])).data
        entry: Entry = array[tuple(index)]
        return entry

    def _select(self, number: int, index: Index, parts: tuple[Part, ...]) -> Entry:
        factor, operand, row, selection, outputs = self.nodes[number].payload
        labels = dict(zip(outputs, index[:-1], strict=True))  # type: ignore[call-overload]
        extent = next(e for _, _, e, label in operand.atoms if label == row)  # type: ignore[attr-defined]
        entries = []
        for position, _ in self.grid.positions((number, -1 - row), 1, extent, 0, extent):  # type: ignore[operator]
            labels[row] = position
            entries.append(self.terms.mul(factor, self._operand(operand, labels)))  # type: ignore[arg-type]
        return self.terms.app(f"select:{extent}:{selection}:{index[-1]}", *entries)

    def _piece(self, number: int, index: Index, parts: tuple[Part, ...]) -> Entry:
        raise Unsupported("a tensor that is no view of a single-device value")

    _stack = _maximum = _piece

    # -- tensors ----------------------------------------------------------------------------

    def tensor(self, lineage: Lineage) -> Weighted:
        """The local tensor that a lineage describes, represented on the grid."""
        if not lineage.terms:
            dims = tuple(self.grid.constant_dim(n) for n in lineage.shape)
            data = np.full([count(d) for d in dims], self.terms.zero, dtype=object)
            return Weighted(data, dims)
        total: Weighted | None = None
        for view in lineage.terms:
            one = self.view(view)
            total = (
                one
                if total is None
                else self.reading.combine([total, one], [Fraction(1), Fraction(1)], Fraction(0))
            )
        assert total is not None
        return total

    def view(self, view: View) -> Weighted:
        extents = self.nodes[view.node].extents
        base = [0] * len(extents)
        for atom in view.layout.fixed:
            base[atom.axis] += atom.stride * self.grid.at(atom.start)
        dims: list[Dim] = []
        offsets: list[list[tuple[tuple[int, int], ...]]] = []
        for atoms in view.layout.dims:
            factors: list[Factor] = []
            steps: list[list[tuple[int, int]]] = []
            for atom in atoms:
                if atom.axis == BROADCAST:
                    for factor in self.grid.constant_dim(atom.size):
                        factors.append(factor)
                        steps.append([(-1, 0)] * len(factor))
                    continue
                for factor, places in self.grid.digits((view.node, atom.axis), atom):
                    factors.append(factor)
                    steps.append([(atom.axis, place) for place in places])
            dims.append(tuple(factors))
            offsets.append([tuple(chosen) for chosen in product(*steps)])
        entries = []
        for chosen in product(*offsets):
            index = list(base)
            for moves in chosen:
                for axis, place in moves:
                    if axis >= 0:
                        index[axis] += place
            entry = self.entry(view.node, tuple(index), view.parts)
            entries.append(entry if view.factor == 1 else view.factor * entry)
        data = np.empty(len(entries), dtype=object)
        data[:] = entries
        return Weighted(data.reshape([len(o) for o in offsets]), tuple(dims))


class Obligation(NamedTuple):
    """Equalities that have to hold for all values of the symbols."""

    goals: tuple[tuple[Term, Term], ...]
    symbols: dict[str, tuple[object, ...]]


def boundaries(claim: Claim) -> list[tuple[int, int]]:
    """Where the operator of a claim cuts or joins local dimensions: (size, place)."""
    given = [x for x in claim.inputs if x is not None]
    if claim.kind == "slice" or claim.name in ("slice", "concat"):
        kind = "slice" if claim.name == "slice" else "all_gather"
    else:
        kind = claim.kind
    keys = {
        "slice": ["dim"],
        "all_gather": ["dim"],
        "reduce_scatter": ["dim"],
        "all_to_all": ["split_dim", "concat_dim"],
    }.get(kind, [])
    found = []
    dims = [claim.attrs.get(key) for key in keys]
    for dim in (d for d in dims if isinstance(d, int)):
        for whole in (*given, *claim.outputs):
            for part in (*given, *claim.outputs):
                large, small = whole.shape[dim], part.shape[dim]
                if small and large > small:
                    found += [(large, place) for place in range(small, large, small)][:64]
    start, cut = claim.attrs.get("start"), claim.attrs.get("dim")
    if kind == "slice" and isinstance(start, int) and isinstance(cut, int) and given:
        size = given[0].shape[cut]
        found += [(size, start), (size, start + claim.outputs[0].shape[cut])]
    return found


#: Kinds of rows that add their inputs up.
SUMS = frozenset({"all_reduce", "reduce", "reduce_scatter", "accumulate"})


def build(nodes: NodeTable, claim: Claim, units: int = 2, widened: int = 0) -> Obligation:
    """The obligation of a claim; raises `Unsupported` where it cannot be stated at small size,
    `ShapeMismatch` if the operator does not take the inputs.

    ``units``: representatives of each piece of an axis; ``widened``: see `engine.cone.cone`.
    """
    try:
        return _build(nodes, claim, units, widened, alike=False)
    except Unsupported:
        # Splitting dimensions of one size alike costs positions; it is done where it is needed.
        return _build(nodes, claim, units, widened, alike=True)


def _build(nodes: NodeTable, claim: Claim, units: int, widened: int, *, alike: bool) -> Obligation:
    inputs = [x for x in claim.inputs if x is not None]
    here = cone(nodes, inputs, claim.outputs, adds=claim.kind in SUMS, widened=widened)
    joined = {axis for axis, _ in claim.over}
    for number in (*here.opaque, *here.defined):
        if joined & nodes[number].coordinates:
            raise Unsupported("a value that differs along the axis that the operator joins")
    lineages = [*inputs, *claim.outputs]
    terms = TermTable()
    goals: list[tuple[Term, Term]] = []
    symbols: dict[str, tuple[object, ...]] = {}
    for point in points(nodes, claim, here):
        grid = Grid(
            nodes,
            lineages,
            sorted(here.defined),
            claim.extents,
            claim.over,
            units,
            boundaries(claim),
            alike=alike,
            point=point,
        )
        meaning = Meaning(nodes, grid, here.opaque, terms, len(symbols))
        goals += _goals(meaning, claim)
        symbols |= {str(term.name): key for key, term in meaning.symbols.items()}
    return Obligation(tuple(goals), symbols)


def _goals(meaning: Meaning, claim: Claim) -> list[tuple[Term, Term]]:
    """What the operator gives, entry by entry, against what the outputs' lineages say."""
    terms = meaning.terms
    actual = _Semantics(meaning, claim).outputs()
    if len(actual) != len(claim.outputs):
        raise ShapeMismatch(f"{len(actual)} outputs, claimed {len(claim.outputs)}")
    goals: list[tuple[Term, Term]] = []
    for left, lineage in zip(actual, claim.outputs, strict=True):
        right = meaning.tensor(lineage)
        if left.dims != right.dims:
            raise Unsupported(
                f"a result of shape {list(left.shape)} represented as {left.dims}, "
                f"claimed as {right.dims}"
            )
        for a, b in zip(left.data.flat, right.data.flat, strict=True):
            if a is MASKED or b is MASKED:
                if a is not b:
                    goals.append((terms.zero, terms.one))
                continue
            goals.append((a, b))
    return goals


def points(nodes: NodeTable, claim: Claim, here: Cone) -> list[dict[str, int]]:
    """The members of a family at which its claim is stated.

    One is enough along a coordinate on which the members are one claim, moved.  Otherwise the
    first, the second and the last are stated: two decide an affine function, the last its range.
    """
    lineages = [x for x in (*claim.inputs, *claim.outputs) if x is not None]
    joined = {axis for axis, _ in claim.over}
    varied = set().union(*(attribute_axes(v) for v in claim.attrs.values()))
    varied |= {
        axis
        for axis in claim.extents
        if axis not in joined and not is_even(nodes, here, lineages, axis)
    }
    if claim.kind in ("reduce_scatter", "all_to_all") or joined & {
        axis for x in claim.outputs for axis in mentioned(x)
    }:
        varied |= joined
    axes = sorted(axis for axis in varied if claim.extents.get(axis, 1) > 1)
    places: dict[str, Callable[[str], int]] = {
        "second": lambda axis: 1,
        "first": lambda axis: 0,
        "last": lambda axis: claim.extents[axis] - 1,
    }
    result: list[dict[str, int]] = []
    for choice in places.values() if axes else ():
        here_now = {axis: choice(axis) for axis in axes}
        if here_now not in result:
            result.append(here_now)
    # Apart from moving together, every coordinate moves alone.
    result += [{a: 0 if a == axis else 1 for a in axes} for axis in axes[1:]]
    return result or [{}]


def mentioned(lineage: Lineage) -> set[str]:
    """The mesh coordinates that a lineage mentions."""
    found: set[str] = set()
    for view in lineage.terms:
        for atom in (*(a for d in view.layout.dims for a in d), *view.layout.fixed):
            found.update(atom.start.axes)
        for part in view.parts:
            found.update(part.start.axes)
    return found


class _Semantics:
    """The operator applied to tensors with the meaning of its inputs."""

    def __init__(self, meaning: Meaning, claim: Claim) -> None:
        self.meaning = meaning
        self.claim = claim
        self.grid = meaning.grid
        self.reading = SmallReading(meaning.terms, self.grid, coordinates=self.grid.coordinates)

    def outputs(self) -> list[Weighted]:
        claim = self.claim
        if claim.kind in ("op", "slice"):
            inputs = [None if x is None else self.meaning.tensor(x) for x in claim.inputs]
            if not claim.backward:
                return list(apply_forward(self.reading, claim.name, inputs, claim.attrs))
            wrt, arity = claim.attrs.get("wrt"), claim.attrs.get("arity")
            if not isinstance(wrt, tuple) or not isinstance(arity, int):
                raise Unsupported("a backward operator without wrt and arity")
            positions = [w for w in wrt if isinstance(w, int)]
            return list(
                apply_backward(
                    self.reading, claim.name, inputs[:arity], inputs[arity:], claim.attrs, positions
                )
            )
        if claim.kind == "accumulate":
            return [self.accumulate()]
        given = [x for x in claim.inputs if x is not None]
        if claim.kind in ("all_reduce", "reduce"):
            kind = str(claim.attrs.get("op", "sum"))
            return [self.total(given, claim.over, kind)] * len(claim.outputs)
        if claim.kind == "all_gather":
            return [self.gather(given, self.dim("dim", given[0]))] * len(claim.outputs)
        if claim.kind == "reduce_scatter":
            total = self.total(given, claim.over, str(claim.attrs.get("op", "sum")))
            dim = self.dim("dim", given[0])
            return [self.kept(total, dim, i) for i in range(claim.members)]
        if claim.kind == "all_to_all":
            return self.exchange(given)
        raise Unsupported(f"the meaning of {claim.kind} is not declared")

    def dim(self, key: str, x: Lineage) -> int:
        value = self.claim.attrs.get(key)
        if not isinstance(value, int) or not -len(x.shape) <= value < len(x.shape):
            raise ShapeMismatch(f"{key} {value} of a tensor of shape {list(x.shape)}")
        return value % len(x.shape)

    def family(self, x: Lineage, over: Over) -> list[tuple[Weighted, tuple[int, ...], int]]:
        """The members of a family along ``over``: (tensor, coordinates, multiplicity)."""
        members = []
        choices = [self.grid.coordinate(axis, extent) for axis, extent in over]
        for chosen in product(*choices):
            here = {axis: c for (axis, _), (c, _) in zip(over, chosen, strict=True)}
            self.grid.coordinates.update(here)
            tensor = self.meaning.tensor(concrete(x, here))
            members.append((tensor, tuple(here.values()), prod(w for _, w in chosen)))
        self.grid.reset()
        return members

    def total(self, inputs: Sequence[Lineage], over: Over, kind: str) -> Weighted:
        if kind not in ("sum", "max"):
            raise Unsupported(f"a reduction by {kind}")
        members = [m for x in inputs for m in self.family(x, over)]
        if kind == "max":
            stacked = np.stack([m[0].data for m in members], axis=-1)
            return Weighted(self.reading._amax(stacked, stacked.ndim - 1), members[0][0].dims)
        return self.reading.combine(
            [m[0] for m in members], [Fraction(m[2]) for m in members], Fraction(0)
        )

    def accumulate(self) -> Weighted:
        claim = self.claim
        addends = []
        for lineage, batched in zip(claim.inputs, claim.batched, strict=True):
            assert lineage is not None
            addends.append(self.total([lineage], claim.over if batched else (), "sum"))
        return self.reading.combine(addends, [Fraction(1)] * len(addends), Fraction(0))

    def gather(self, inputs: Sequence[Lineage], dim: int) -> Weighted:
        if not self.claim.over:
            return self.reading.concat([self.meaning.tensor(x) for x in inputs], dim)
        if len(inputs) != 1:
            raise Unsupported("a gather over explicit ranks and mesh axes together")
        members = self.family(inputs[0], self.claim.over)
        factors = tuple(
            tuple(w for _, w in self.grid.coordinate(axis, extent))
            for axis, extent in self.claim.over
        )
        data = np.concatenate([m[0].data for m in members], axis=dim)
        dims = members[0][0].dims
        grown = (*dims[:dim], (*factors, *dims[dim]), *dims[dim + 1 :])
        return Weighted(data, grown)

    def kept(self, x: Weighted, dim: int, position: int) -> Weighted:
        """The part of ``x`` that a member keeps when it is scattered."""
        members = self.claim.members
        for axis, extent in self.claim.over:
            position = position * extent + self.grid.coordinates[axis]
            members *= extent
        size = int(x.shape[dim])
        step = -(-size // members)
        return _narrow(x, dim, position * step, min(step, size - position * step))

    def exchange(self, inputs: Sequence[Lineage]) -> list[Weighted]:
        split, joined = self.dim("split_dim", inputs[0]), self.dim("concat_dim", inputs[0])
        if split == joined:
            raise Unsupported("an all-to-all that splits and joins the same dimension")
        whole = self.gather(inputs, joined)
        return [self.kept(whole, split, i) for i in range(self.claim.members)]


def _narrow(x: Weighted, dim: int, start: int, size: int) -> Weighted:
    cut, taken = narrow(x.dims[dim], start, size)
    return Weighted(
        x.data[(slice(None),) * dim + (taken,)], (*x.dims[:dim], cut, *x.dims[dim + 1 :])
    )

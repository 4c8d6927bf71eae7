"""Which positions of a claim's axes represent the others.

An axis of a reference node is read at several strides (a view splits it, a shard strides over it).
The grid writes its positions in mixed radix, one digit per stride that the claim uses, and cuts the
range of each digit at every interval boundary that the claim mentions.  Every piece between cuts
keeps at least `FEWEST` positions (as many as sums over ranges of its extent are multiplied with one
another, if those are more): single ones, and a last one that stands for the rest of the piece.
Digits of equal extent are cut alike, which relates the axes that an operator identifies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, product
from math import prod

from engine.affine import Affine
from engine.arrays.dims import Dim, Factor
from engine.cone import operand_nodes, operands
from engine.errors import Unsupported
from engine.lineage import ABSOLUTE, BROADCAST, Atom, Layout, Lineage, NodeTable, Part

#: Node and axis; axis -1 - l: reduced label l of the node's definition.  Node -1 - i: dimension of
#: the claim's lineage i.
Axis = tuple[int, int]
#: An axis and a stride along it, the same of another one, and how many positions they have in
#: common from there (`ABSOLUTE`: all).
Relation = tuple[Axis, int, Axis, int, int]
Interval = tuple[int, int]
Over = tuple[tuple[str, int], ...]

#: Positions that every piece of an axis keeps, or all that it has.
FEWEST = 2


def concrete(lineage: Lineage, here: Mapping[str, int]) -> Lineage:
    """The member of a family at the given coordinates."""

    def at(value: Affine) -> Affine:
        for axis, position in here.items():
            value = value.fix(axis, position)
        return value

    def atoms(dim: Iterable[Atom]) -> tuple[Atom, ...]:
        return tuple(a._replace(start=at(a.start)) for a in dim)

    terms = tuple(
        t._replace(
            layout=Layout(tuple(atoms(d) for d in t.layout.dims), atoms(t.layout.fixed)),
            parts=tuple(p._replace(start=at(p.start)) for p in t.parts),
        )
        for t in lineage.terms
    )
    return Lineage(lineage.shape, terms)


def degrees(nodes: NodeTable, defined: Sequence[int]) -> dict[int, int]:
    """By extent: how many sums over ranges of that extent are multiplied with one another, at most,
    in the definitions.  A function's argument is a polynomial of its own."""
    held = set(defined)
    outward: dict[int, dict[int, int]] = {}

    def degree(number: int) -> dict[int, int]:
        if number in outward or number not in held:
            return outward.get(number, {})
        outward[number] = {}
        parts = [degree(o) for o in operand_nodes(nodes, number)]
        outward[number] = _degree(nodes, number, parts)
        return outward[number]

    most: dict[int, int] = {}
    for number in defined:
        for extent, count in degree(number).items():
            most[extent] = max(most.get(extent, 0), count)
    return most


def _degree(nodes: NodeTable, number: int, parts: Sequence[Mapping[int, int]]) -> dict[int, int]:
    """The degree of a definition, given those of its operands."""
    node = nodes[number]
    found: dict[int, int] = {}
    for part in parts if node.kind in ("einsum", "combine") else ():
        for extent, count in part.items():
            before = found.get(extent, 0)
            found[extent] = before + count if node.kind == "einsum" else max(before, count)
    if node.kind in ("einsum", "amax"):
        outputs: Sequence[int] = node.payload[-1]  # type: ignore[assignment]
        reads = operands(nodes, number)
        reduced = {lb: e for o in reads for _, _, e, lb in o.atoms if lb not in outputs}
        for extent in reduced.values():
            found[extent] = found.get(extent, 0) + 1
    return found


class Grid:
    """The represented positions of one claim.  Raises `Unsupported` where boundaries cut through
    the digits of an axis.

    ``extents``: of the mesh coordinates.  Coordinates in ``over`` are summed or gathered by the
    operator and are represented like a digit; any other takes one value.  ``boundaries``: (size of
    a local dimension, place) where the operator itself cuts or joins it.  ``related``: local
    dimensions that the operator takes for one another.  ``more``:
    how many positions every piece keeps beyond the fewest that it needs.  ``point``: the member of
    the family, where it is not the second along every coordinate.
    """

    def __init__(
        self,
        nodes: NodeTable,
        lineages: Sequence[Lineage],
        defined: Sequence[int],
        extents: Mapping[str, int],
        over: Over,
        more: int = 0,
        boundaries: Iterable[tuple[int, int]] = (),
        *,
        related: Sequence[Relation] | None = None,
        point: Mapping[str, int] | None = None,
    ) -> None:
        self.nodes = nodes
        self.more = more
        summed = {axis for axis, _ in over}
        self.generic = {
            axis: 0 if axis in summed or extent == 1 else 1 for axis, extent in extents.items()
        } | dict(point or {})
        self.sums: dict[int, int] = {}
        self.coordinates = dict(self.generic)
        self.strides: dict[Axis, set[int]] = {}
        self.full: dict[Axis, int] = {}
        self.cuts: dict[int, set[int]] = {}
        self.radix: dict[Axis, tuple[tuple[int, int], ...]] = {}
        self.local: dict[int, Dim] = {}
        self.places: dict[int, int] = {}
        local: list[Relation] = []
        if related is not None:
            self.places = {id(lineage): -1 - i for i, lineage in enumerate(lineages)}
            local = [*related, *self._views(lineages)]
        self._note_strides(lineages, extents)
        self._relate(defined, local)
        for _, extent in over:
            self.cuts.setdefault(extent, set()).update((0, extent))
        for extent, place in boundaries:
            self.cuts.setdefault(extent, {0, extent}).add(place)
        self._note_cuts(lineages)
        if related is not None:
            self._note_absolute(lineages)
        self._note_local(lineages)
        self._check_joined(lineages, over)

    def reset(self) -> None:
        """Put all coordinates back to their one value."""
        self.coordinates.update(self.generic)

    def at(self, value: Affine) -> int:
        return value.at(self.coordinates)

    # -- strides ----------------------------------------------------------------------------

    def _note_strides(self, lineages: Sequence[Lineage], extents: Mapping[str, int]) -> None:
        for lineage in lineages:
            for term in lineage.terms:
                for atom in (*(a for d in term.layout.dims for a in d), *term.layout.fixed):
                    if atom.axis != BROADCAST:
                        key = (term.node, atom.axis)
                        self._stride(key, atom.stride, atom.extent)
                        self._family_strides(key, atom.stride, atom.start, extents)
                for part in term.parts:
                    key = self._range(part)
                    self._stride(key, 1, part.extent)
                    self._family_strides(key, 1, part.start, extents)

    def _range(self, part: Part) -> Axis:
        """The reduced label that a part is of."""
        token = self.nodes.tokens[part.token]
        while token.kind == "via":
            token = self.nodes.tokens[token.inner]
        return token.node, -1 - token.where

    def _stride(self, key: Axis, stride: int, extent: int) -> None:
        held = self.strides.setdefault(key, {1})
        held.add(stride)
        if extent != ABSOLUTE:
            held.add(stride * extent)
            self.full[key] = max(self.full.get(key, 0), stride * extent)

    def _family_strides(
        self, key: Axis, stride: int, start: Affine, extents: Mapping[str, int]
    ) -> None:
        for axis, coefficient in start.terms:
            self.strides[key].add(stride * abs(coefficient))
            self.strides[key].add(stride * abs(coefficient) * extents[axis])

    @staticmethod
    def _views(lineages: Sequence[Lineage]) -> Iterator[Relation]:
        """Local dimensions and the axes that they are views of."""
        for i, lineage in enumerate(lineages):
            for term in lineage.terms:
                for d, dim in enumerate(term.layout.dims):
                    inner = 1
                    for atom in reversed(dim):
                        if atom.axis != BROADCAST and atom.size > 1:
                            axis = (term.node, atom.axis)
                            yield (-1 - i, d), inner, axis, atom.stride, atom.size
                        inner *= atom.size

    def _relate(self, numbers: Sequence[int], local: Sequence[Relation]) -> None:
        """Carry strides between axes that a definition or the operator identifies, until nothing
        changes."""
        relations: list[Relation] = []
        for number in sorted(numbers):
            relations += self._relations(number)
        self._check(relations)
        self.sums = degrees(self.nodes, numbers)
        for label, _, axis, stride, extent in relations:
            self._stride(axis, stride, extent)
            self._stride(label, 1, extent)
        relations += local
        for one, stride, other, _, extent in local:
            if one == other and extent == 1:
                self.strides.setdefault(one, {1}).add(stride)
        changed = True
        while changed:
            changed = False
            for one, a, other, b, extent in relations:
                changed |= self._carry(one, a, other, b, extent)
                changed |= self._carry(other, b, one, a, extent)

    def _carry(self, source: Axis, a: int, target: Axis, b: int, extent: int) -> bool:
        """Strides of one axis from ``a`` on, as strides of another from ``b`` on."""
        found = {
            s // a * b
            for s in self.strides.get(source, ())
            if s % a == 0 and (extent == ABSOLUTE or s <= a * extent)
        }
        held = self.strides.setdefault(target, {1})
        if found <= held:
            return False
        held |= found
        return True

    @staticmethod
    def _check(relations: Sequence[Relation]) -> None:
        """Refuse definitions that this representation does not cover: a label with two ranges."""
        ranges: dict[Axis, int] = {}
        for label, _, _, _, extent in relations:
            if ranges.setdefault(label, extent) != extent:
                raise Unsupported("a definition that reads two ranges as one")

    def _relations(self, number: int) -> list[Relation]:
        node = self.nodes[number]
        if node.kind in ("unary", "onehot"):
            operand = node.payload[2] if node.kind == "unary" else node.payload[1]
            axes = self.nodes[operand].extents  # type: ignore[index]
            return [((number, i), 1, (operand, i), 1, n) for i, n in enumerate(axes)]  # type: ignore[misc]
        reads = operands(self.nodes, number)
        outputs: Sequence[int] = node.payload[-1] if reads else ()  # type: ignore[assignment]
        place = {label: i for i, label in enumerate(outputs)}
        return [
            ((number, place.get(label, -1 - label)), 1, (o.node, axis), stride, extent)
            for o in reads
            for axis, stride, extent, label in o.atoms
        ]

    def _digits(self, key: Axis) -> tuple[tuple[int, int], ...]:
        """(stride, extent) of the digits of an axis, innermost first; extent 0: unbounded."""
        if key not in self.radix:
            bounds = sorted(self.strides.get(key, {1}))
            full = self.full.get(key, 0)
            result = []
            for low, high in pairwise(bounds):
                if high % low:
                    raise Unsupported(f"an axis read at strides {low} and {high}")
                result.append((low, high // low))
            if not full:
                result.append((bounds[-1], 0))
            self.radix[key] = tuple(result)
        return self.radix[key]

    def _within(self, key: Axis, stride: int, extent: int) -> list[tuple[int, int]]:
        """The digits of an axis from ``stride`` up to ``stride * extent``."""
        return [
            (s, e)
            for s, e in self._digits(key)
            if s >= stride and (extent == ABSOLUTE or s < stride * extent)
        ]

    def _intervals(
        self, digits: Sequence[tuple[int, int]], start: int, size: int
    ) -> list[Interval]:
        """The interval of each digit, innermost first, that [start, start + size) is made of."""
        low, high = start, start + size
        result: list[Interval] = []
        single = False
        for _, extent in digits:
            if single:
                value = low % extent if extent else low
                result.append((value, value + 1))
                low = low // extent if extent else 0
            elif extent and low % extent == 0 and high % extent == 0:
                result.append((0, extent))
                low, high = low // extent, high // extent
            elif not extent or low // extent == (high - 1) // extent:
                first = low % extent if extent else low
                result.append((first, first + high - low))
                low = low // extent if extent else 0
                single = True
            else:
                raise Unsupported(f"positions {start} to {start + size} cut through a block")
        return result

    # -- cuts -------------------------------------------------------------------------------

    def _note_cuts(self, lineages: Sequence[Lineage]) -> None:
        for lineage in lineages:
            for term in lineage.terms:
                for atom in (*(a for d in term.layout.dims for a in d), *term.layout.fixed):
                    if atom.axis == BROADCAST:
                        continue
                    self._cut(
                        (term.node, atom.axis),
                        atom.stride,
                        atom.extent,
                        self.at(atom.start),
                        atom.size,
                    )
                for part in term.parts:
                    self._cut(self._range(part), 1, part.extent, self.at(part.start), part.size)

    def _check_joined(self, lineages: Sequence[Lineage], over: Over) -> None:
        """A coordinate that is summed over represents the digit that a part moves along: refuse one
        that is represented by few positions of what are several digits."""
        for part in (p for x in lineages for term in x.terms for p in term.parts):
            for axis, extent in over:
                step = abs(part.start.coefficient(axis))
                within = (s for s in self.strides[self._range(part)] if step < s < step * extent)
                if any(within) and len(self._blocks(extent)) < extent:
                    raise Unsupported(f"a sum along {axis} over several digits of a range")

    def _cut(self, key: Axis, stride: int, extent: int, start: int, size: int) -> None:
        digits = self._within(key, stride, extent)
        for (_, e), (low, high) in zip(digits, self._intervals(digits, start, size), strict=True):
            self.cuts.setdefault(e, set()).update((low, high))

    def _note_absolute(self, lineages: Sequence[Lineage]) -> None:
        """Absolute positions are cut where the dimensions that count them are."""
        for lineage in lineages:
            for term in lineage.terms:
                for atom in (a for dim in term.layout.dims for a in dim):
                    if atom.axis != BROADCAST and atom.extent == ABSOLUTE:
                        start = self.at(atom.start)
                        places = self.cuts.get(atom.size, set())
                        self.cuts[ABSOLUTE] |= {start + place for place in places}

    def _blocks(self, extent: int) -> list[tuple[int, int]]:
        """(first position, length) of the blocks of a digit's range."""
        bounds = sorted(self.cuts.get(extent, set()) | ({0, extent} if extent else set()))
        blocks: list[tuple[int, int]] = []
        units = max(FEWEST, self._degree(extent)) + self.more
        for low, high in pairwise(bounds):
            singles = min(units - 1, high - low - 1)
            blocks += [(low + i, 1) for i in range(singles)]
            blocks.append((low + singles, high - low - singles))
        return blocks

    def _degree(self, extent: int) -> int:
        """How many sums over a range are multiplied; the most of all where dimensions of different
        ranges (positions and what they count) have to be represented alike."""
        return max(self.sums.values(), default=0) if self.places else self.sums.get(extent, 0)

    def _kept(self, extent: int, interval: Interval) -> list[tuple[int, int]]:
        """(position, multiplicity) of the represented positions of a digit in an interval."""
        result = []
        for first, length in self._blocks(extent):
            begin, end = max(first, interval[0]), min(first + length, interval[1])
            if begin < end:
                result.append((begin, end - begin))
        return result

    # -- what claims ask for ----------------------------------------------------------------

    def positions(
        self, key: Axis, stride: int, extent: int, size: int, parts: Sequence[Part] = ()
    ) -> list[tuple[int, int]]:
        """(position, multiplicity) that represent [0, size) of a label's range, where ``parts``
        hold (of stride 1)."""
        if key not in self.strides:
            self._stride(key, stride, extent)
        digits = self._within(key, stride, extent)
        intervals = self._intervals(digits, 0, size)
        for part in parts:
            inner = self._within(key, stride, part.extent)
            if prod(e for _, e in inner) != part.extent:
                raise Unsupported(f"a range that repeats every {part.extent} positions")
            # The intervals of the digits inside a period; those outside are not restricted.
            found = self._intervals(inner, self.at(part.start), part.size)
            for k, (low, high) in enumerate(found):
                intervals[k] = max(low, intervals[k][0]), min(high, intervals[k][1])
        places = [
            [(p * s // stride, w) for p, w in self._kept(e, interval)]
            for (s, e), interval in zip(digits, intervals, strict=True)
        ]
        places.reverse()
        result = []
        for chosen in product(*places):
            weight = 1
            for _, w in chosen:
                weight *= w
            result.append((sum(p for p, _ in chosen), weight))
        return result

    def digits(self, key: Axis, atom: Atom) -> list[tuple[Factor, list[int]]]:
        """For each digit of an atom, outermost first: multiplicities, and the places along the
        node's axis of its represented positions (the places of all digits add up)."""
        digits = self._within(key, atom.stride, atom.extent)
        intervals = self._intervals(digits, self.at(atom.start), atom.size)
        result = []
        for (s, e), interval in zip(digits, intervals, strict=True):
            kept = self._kept(e, interval)
            result.append((tuple(w for _, w in kept), [p * s for p, _ in kept]))
        result.reverse()
        return result

    def _note_local(self, lineages: Sequence[Lineage]) -> None:
        """How local dimensions are represented, for tensors that are constant along them."""
        for lineage in lineages:
            for term in lineage.terms:
                for dim, size in zip(term.layout.dims, lineage.shape, strict=True):
                    if any(a.axis == BROADCAST for a in dim) or size in self.local:
                        continue
                    factors = [f for a in dim for f, _ in self.digits((term.node, a.axis), a)]
                    self.local[size] = tuple(factors)

    def broadcast_dim(self, lineage: Lineage, dim: int, inner: int, size: int) -> Dim:
        """``size`` positions of a local dimension, ``inner`` apart, along which a tensor does not
        vary: represented as what the operator takes it for."""
        key = (self.places.get(id(lineage), 0), dim)
        if key[0] >= 0 or key not in self.strides:
            return self.constant_dim(size)
        bounds = {s // inner for s in self.strides[key] if s % inner == 0}
        steps = sorted({1, size} | {s for s in bounds if s < size})
        if any(high % low for low, high in pairwise(steps)):
            raise Unsupported(f"a dimension of {size} in blocks of {steps}")
        factors = [tuple(w for _, w in self._blocks(h // low)) for low, h in pairwise(steps)]
        return tuple(reversed(factors))

    def constant_dim(self, size: int) -> Dim:
        """A dimension of ``size`` along which a tensor is constant, represented like any other
        of its size."""
        known = self.local.get(size)
        return known if known is not None else (tuple(w for _, w in self._blocks(size)),)

    def coordinate(self, axis: str, extent: int) -> list[tuple[int, int]]:
        """(position, multiplicity) of the represented coordinates along a mesh axis."""
        return self._blocks(extent)

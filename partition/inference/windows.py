"""Intervals of different axes, or of one axis in different places, that one label runs along.

``x[:h] * x[h:]`` reads two blocks of one axis by one label; so do the query and the key of a fused
projection.  A *window* of each is chosen, all of one size, in which the intervals lie alike.  The
single-device program's are what it reads; a parallel program's are those of the single device that
its intervals lie in.  A window that is one of several equal ones is a fixed position (which of
them) beside a label that runs inside; any other is a block (`engine.lineage.blocks`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import gcd
from typing import NamedTuple

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.lineage.blocks import Block, extents
from shardproof.engine.lineage.expressions import Restrict
from shardproof.engine.lineage.layout import Misaligned, constant_atom
from shardproof.engine.lineage.lineage import ABSOLUTE, BROADCAST, Atom, Term
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.partition.inference.views import join

#: Where an interval may run, in positions of its atom: (start, size).
Window = tuple[int, int]
#: Ways to choose windows that are looked at.
MOST_CHOICES = 256


class Settled(NamedTuple):
    """``joined``: where the label runs (of no axis: there is none); for each view its atom, a
    position of its axis that is fixed, and a block of its axis that it is about."""

    joined: Atom
    atoms: tuple[Atom | None, ...]
    fixed: tuple[Atom | None, ...]
    blocks: tuple[Block | None, ...]


class Windows:
    """Chooses windows; ``defining``: of the single-device program, which says what they are."""

    def __init__(self, table: NodeTable, defining: bool, mesh: Mapping[str, int]) -> None:
        self.table = table
        self.defining = defining
        self.mesh = mesh

    def settle(
        self, position: Sequence[Atom | None], nodes: Sequence[int], *, closed: bool = False
    ) -> Settled:
        """Aligned atoms that are no common interval as one label (``closed``: which runs along what
        they are, no further); raises `Misaligned` where they are none."""
        none = (None,) * len(position)
        held = [i for i, a in enumerate(position) if a is not None and a.axis != BROADCAST]
        atoms = [a for a in position if a is not None and a.axis != BROADCAST]
        if len({a.size for a in atoms}) > 1:
            raise Misaligned
        windows = self._windows(atoms, [nodes[i] for i in held], closed)
        result: list[Atom | None] = list(position)
        fixed: list[Atom | None] = list(none)
        blocks: list[Block | None] = list(none)
        for i, atom, window in zip(held, atoms, windows, strict=True):
            result[i], fixed[i], blocks[i] = _inside(atom, window)
        size = windows[0][1]
        if size == 1:
            return Settled(constant_atom(1), none, tuple(fixed), tuple(blocks))
        first = result[held[0]]
        assert first is not None
        return Settled(first, tuple(result), tuple(fixed), tuple(blocks))

    def _windows(
        self, atoms: Sequence[Atom], nodes: Sequence[int], closed: bool
    ) -> Sequence[Window]:
        exact = not any(a.start.terms for a in atoms)
        if exact and (self.defining or closed):
            found: Sequence[Window] = [(a.start.const, a.size) for a in atoms]
            self._note(atoms, nodes, found)
            return found
        known = [self._known(a, n) for a, n in zip(atoms, nodes, strict=True)]
        for count, chosen in enumerate(product(*known)):
            if count > MOST_CHOICES:
                break
            if self._alike(atoms, chosen):
                return chosen
        if exact:
            return [(a.start.const, a.size) for a in atoms]
        return self._equal_blocks(atoms)

    def _note(self, atoms: Sequence[Atom], nodes: Sequence[int], found: Sequence[Window]) -> None:
        for atom, node, (start, size) in zip(atoms, nodes, found, strict=True):
            held = self.table.blocks.setdefault((node, atom.axis, _period(atom)), [])
            window = start * atom.stride, size * atom.stride
            if window not in held:
                held.append(window)
                held.sort(key=lambda w: (w[1], w[0]))

    def _known(self, atom: Atom, node: int) -> list[Window]:
        """Windows of the single-device program that an interval lies in, the smallest first."""
        low, high = self._span(atom.start)
        noted = self.table.blocks.get((node, atom.axis, _period(atom)), ())
        scaled = [
            (start // atom.stride, size // atom.stride)
            for start, size in noted
            if start % atom.stride == 0 and size % atom.stride == 0
        ]
        if atom.extent != ABSOLUTE:
            scaled.append((0, atom.extent))
        return [w for w in scaled if w[0] <= low and high + atom.size <= w[0] + w[1]]

    def _span(self, start: Affine) -> tuple[int, int]:
        try:
            return start.span(self.mesh)
        except KeyError:
            raise Misaligned from None

    def _alike(self, atoms: Sequence[Atom], windows: Sequence[Window]) -> bool:
        if len({size for _, size in windows}) > 1:
            return False
        return len({a.start - start for a, (start, _) in zip(atoms, windows, strict=True)}) == 1

    def _equal_blocks(self, atoms: Sequence[Atom]) -> list[Window]:
        """The largest blocks into which all axes divide, if each interval is in one of them."""
        size = 0
        for atom in atoms:
            apart = atom.start - atoms[0].start
            if apart.terms or atom.extent == ABSOLUTE:
                raise Misaligned
            size = gcd(size, atom.extent, apart.const)
        windows = []
        for atom in atoms:
            low, high = self._span(atom.start)
            start = low // size * size
            if high + atom.size > start + size:
                raise Misaligned
            windows.append((start, size))
        if not self._alike(atoms, windows):
            raise Misaligned
        return windows


def _period(atom: Atom) -> int:
    return atom.stride * atom.extent if atom.extent != ABSOLUTE else ABSOLUTE


def _inside(atom: Atom, window: Window) -> tuple[Atom | None, Atom | None, Block | None]:
    """An atom as an interval of a window: its atom there, a fixed position, a block."""
    start, size = window
    if (start, size) == (0, atom.extent):
        return atom, None, None
    inner = Atom(atom.axis, atom.stride, size, atom.start - start, atom.size)
    if atom.extent != ABSOLUTE and start % size == 0 and atom.extent % size == 0:
        outer = atom.stride * size, atom.extent // size
        return inner, Atom(atom.axis, *outer, Affine(start // size), 1), None
    stride = atom.stride
    return inner, None, Block(atom.axis, start * stride, size * stride, _period(atom))


def compressed(atom: Atom, blocks: Sequence[Block]) -> Atom:
    """An atom of an axis as one of what ``blocks`` leave of it: a block of them is what the atom
    runs in, or lies inside or outside of."""
    stride = atom.stride
    for block in blocks:
        if block.axis == atom.axis and block.extent and atom.stride >= block.extent:
            if atom.stride % block.extent:
                raise Misaligned
            stride = stride // block.extent * block.size
    return atom._replace(stride=stride)


class Reads:
    """How a definition reads the views that it is made of, label by label."""

    def __init__(self, windows: Windows, terms: Sequence[Term]) -> None:
        self.windows = windows
        self.terms = terms
        self._atoms: list[list[tuple[Atom, int]]] = [[] for _ in terms]
        self._fixed: dict[int, list[Atom]] = {}
        self._blocks: dict[int, list[Block]] = {}

    def label(
        self,
        label: int,
        position: Sequence[Atom | None],
        owners: Sequence[int],
        *,
        closed: bool = False,
    ) -> Atom:
        """Note a label that runs along one atom of each of the views ``owners``, and where it runs;
        raises `Misaligned`."""
        if not closed:
            try:
                joined = join(position)
            except Misaligned:
                pass
            else:
                if joined.axis != BROADCAST:
                    for k, atom in zip(owners, position, strict=True):
                        if atom is not None and atom.axis != BROADCAST:
                            self._atoms[k].append((atom._replace(extent=joined.extent), label))
                return joined
        nodes = [self.terms[k].node for k in owners]
        found = self.windows.settle(position, nodes, closed=closed)
        for i, k in enumerate(owners):
            atom, fixed, block = found.atoms[i], found.fixed[i], found.blocks[i]
            if atom is not None and atom.axis != BROADCAST:
                self._atoms[k].append((atom._replace(extent=found.joined.extent), label))
            if fixed is not None:
                self._fixed.setdefault(k, []).append(fixed)
            if block is not None:
                self._blocks.setdefault(k, []).append(block)
        return found.joined

    def settled(self) -> tuple[list[Term], list[tuple[tuple[Atom, int], ...]]]:
        """The views, over the blocks of nodes that are read and at the positions that are fixed,
        and their atoms with labels."""
        if not self._fixed and not self._blocks:
            return list(self.terms), [tuple(own) for own in self._atoms]
        terms, atoms = [], []
        for k, (term, own) in enumerate(zip(self.terms, self._atoms, strict=True)):
            blocks = self._blocks.get(k, ())
            fixed = (*term.layout.fixed, *self._fixed.get(k, ()))
            held = tuple(compressed(atom, blocks) for atom in fixed)
            node = self._block(term, blocks) if blocks else term.node
            terms.append(term._replace(node=node, layout=term.layout._replace(fixed=held)))
            atoms.append(tuple((compressed(atom, blocks), label) for atom, label in own))
        return terms, atoms

    def _block(self, term: Term, found: Sequence[Block]) -> int:
        if term.parts:
            raise Misaligned  # a part is of the whole node
        blocks = tuple(sorted(found, key=lambda b: (b.axis, b.extent == ABSOLUTE, b.extent)))
        held = self.windows.table[term.node]
        try:
            full = extents(blocks, held.extents)
        except ValueError:
            raise Misaligned from None
        return self.windows.table.define(Restrict(term.node, blocks), full, held.coordinates)

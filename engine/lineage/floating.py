"""Positions that belong to no dimension: one of many.

A tensor of one head of eight has a position on the axis of heads, but no dimension for it: a
view may put it anywhere, or leave it out.  `settled` is the form of a layout that does not depend
on where it was put.
"""

from __future__ import annotations

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.lineage.layout import is_block, merge, split
from shardproof.engine.lineage.lineage import BROADCAST, Atom, Dim, Layout


def is_floating(atom: Atom) -> bool:
    """Whether an atom is one position of many."""
    return atom.size == 1 and atom.axis != BROADCAST and not atom.full


def floating(layout: Layout) -> tuple[tuple[Dim, ...], tuple[Atom, ...]]:
    """The dimensions of a layout without positions of one of many, and these."""
    dims = tuple(tuple(a for a in dim if a.size != 1) for dim in layout.dims)
    single = [a for dim in layout.dims for a in dim if is_floating(a)]
    return dims, (*single, *layout.fixed)


def within(atom: Atom, outer: Atom) -> tuple[Atom, Atom, Affine] | None:
    """An atom as (which of as many blocks as ``outer`` is one of, where inside, how far that begins
    from where ``outer`` says); None if its axis has no such blocks."""
    if atom.extent <= 0 or outer.extent <= 1 or atom.extent % outer.extent:
        return None
    inner = atom.extent // outer.extent
    if inner < atom.size:
        return None
    rest = atom.start - outer.start * inner
    which = Atom(atom.axis, atom.stride * inner, outer.extent, outer.start, 1)
    return which, Atom(atom.axis, atom.stride, inner, rest, atom.size), rest


def settled(layout: Layout) -> Layout:
    """A layout in the form that all layouts of the same view share."""
    dims, single = floating(layout)
    pool = list(single)
    result: list[Dim] = []
    for dim in dims:
        atoms: list[Atom] = []
        for atom in merge(dim):
            atom = _absorbed(atom, pool)
            if is_block(atom):
                outer, atom = split(atom, atom.size)
                pool.append(outer)
            atoms.append(atom)
        result.append(merge(atoms))
    return Layout(tuple(result), _merged(pool))


def sunk(layout: Layout) -> Layout:
    """The same view, where a position just outside of what a dimension runs along is in it: an
    interval in place of all of a digit and one position of the digit outside."""
    dims, single = floating(layout)
    pool = list(single)
    found = []
    for dim in dims:
        atoms: list[Atom] = []
        for atom in dim:
            while outer := next((o for o in pool if atom.extent and _is_outside(o, atom)), None):
                pool.remove(outer)
                (atom,) = merge([outer, atom])
            atoms.append(atom)
        found.append(merge(atoms))
    if len(pool) == len(single):
        return layout
    return Layout(tuple(found), tuple(pool))


def _absorbed(atom: Atom, pool: list[Atom]) -> Atom:
    """An atom that is not all of its range, with the position just outside of it taken in."""
    while not atom.full and atom.axis != BROADCAST and atom.extent:
        outer = next((o for o in pool if _is_outside(o, atom)), None)
        if outer is None:
            break
        pool.remove(outer)
        (atom,) = merge([outer, atom])
    return atom


def _is_outside(outer: Atom, inner: Atom) -> bool:
    return (
        outer.axis == inner.axis
        and outer.extent > 0
        and outer.stride == inner.stride * inner.extent
    )


def _merged(pool: list[Atom]) -> tuple[Atom, ...]:
    found = sorted(pool, key=lambda a: (a.axis, -a.stride, a.extent, str(a.start)))
    result: list[Atom] = []
    for atom in found:
        if result and atom.extent and _is_outside(result[-1], atom):
            (joined,) = merge([result.pop(), atom])
            result.append(joined)
        else:
            result.append(atom)
    return tuple(result)

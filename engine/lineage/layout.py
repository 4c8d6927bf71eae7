"""The algebra of views: splitting, merging, aligning and regrouping atoms.

Pure functions over `engine.lineage.lineage` values.  Where a view cannot be expressed exactly (an
interval that does not start at a block boundary), they raise `Misaligned`; the caller then takes
the tensor as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import prod

from shardproof.engine.algebra.affine import ZERO, Affine, affine
from shardproof.engine.lineage.lineage import ABSOLUTE, BROADCAST, Atom, Dim, Layout


class Misaligned(Exception):
    """The result is no strided view."""


def constant_atom(size: int) -> Atom:
    """An atom along which the tensor does not vary."""
    return Atom(BROADCAST, 0, size, ZERO, size)


def split(atom: Atom, inner: int) -> tuple[Atom, Atom]:
    """The atom as (outer, inner) with ``inner`` positions in the inner one."""
    if atom.size % inner:
        raise Misaligned
    if atom.axis == BROADCAST:
        return constant_atom(atom.size // inner), constant_atom(inner)
    if atom.extent == ABSOLUTE or atom.extent % inner or not atom.start.divisible(inner):
        raise Misaligned
    outer = Atom(
        atom.axis,
        atom.stride * inner,
        atom.extent // inner,
        atom.start // inner,
        atom.size // inner,
    )
    return outer, Atom(atom.axis, atom.stride, inner, ZERO, inner)


def is_block(atom: Atom) -> bool:
    """Whether an atom is one of several equal blocks of its axis, not all of it."""
    return (
        atom.axis != BROADCAST
        and atom.extent != ABSOLUTE
        and not atom.full
        and atom.extent % atom.size == 0
        and atom.start.divisible(atom.size)
    )


def merge(atoms: Sequence[Atom]) -> Dim:
    """Adjacent atoms of one dimension joined where the outer one strides over the whole inner."""
    if len(atoms) < 2:
        return tuple(atoms)
    result: list[Atom] = []
    for atom in atoms:
        if result:
            joined = _join(result[-1], atom)
            if joined is not None:
                result[-1] = joined
                continue
        result.append(atom)
    return tuple(result)


def _join(outer: Atom, inner: Atom) -> Atom | None:
    if outer.axis != inner.axis:
        return None
    if outer.axis == BROADCAST:
        return constant_atom(outer.size * inner.size)
    if inner.extent == ABSOLUTE or outer.extent == ABSOLUTE:
        return None
    if outer.stride != inner.stride * inner.extent:
        return None
    if inner.full:
        return Atom(
            inner.axis,
            inner.stride,
            outer.extent * inner.extent,
            outer.start * inner.extent,
            outer.size * inner.extent,
        )
    if outer.size == 1:
        return Atom(
            inner.axis,
            inner.stride,
            outer.extent * inner.extent,
            outer.start * inner.extent + inner.start,
            inner.size,
        )
    return None


def align(dims: Sequence[Dim]) -> list[list[Atom | None]]:
    """Refine views of one dimension to common factors.

    Returns positions, outermost first; each lists one atom per view (None where the view has no
    atom of that size: a broadcast dimension of size 1).
    """
    if all(len(d) == 1 for d in dims) and len({d[0].size for d in dims}) == 1:
        return [[d[0] for d in dims]]
    stacks = [list(d) for d in dims]
    positions: list[list[Atom | None]] = []
    while any(stacks):
        sizes = [s[-1].size for s in stacks if s]
        smallest = min(sizes)
        if smallest == 1:
            position: list[Atom | None] = [
                s.pop() if s and s[-1].size == 1 else None for s in stacks
            ]
        else:
            if not all(stacks):
                raise Misaligned
            position = []
            for stack in stacks:
                atom = stack.pop()
                if atom.size != smallest:
                    outer, atom = split(atom, smallest)
                    stack.append(outer)
                position.append(atom)
            _split_blocks(stacks, position)
        positions.append(position)
    positions.reverse()
    return positions


def _split_blocks(stacks: Sequence[list[Atom]], position: list[Atom | None]) -> None:
    """Where one view says which block it is (an atom of size 1 outside), make the others say so."""
    says = any(s and s[-1].size == 1 and s[-1].axis != BROADCAST and not s[-1].full for s in stacks)
    for k, (stack, atom) in enumerate(zip(stacks, position, strict=True)):
        if says and not stack and atom is not None and is_block(atom):
            outer, position[k] = split(atom, atom.size)
            stack.append(outer)


def regroup(layout: Layout, shape: tuple[int, ...]) -> Layout:
    """Row-major reshape of a view."""
    atoms = [atom for dim in layout.dims for atom in dim]
    atoms.reverse()
    dims: list[Dim] = []
    for size in shape:
        taken: list[Atom] = []
        have = 1
        if size == 1 and atoms:
            if atoms[-1].size == 1:
                taken.append(atoms.pop())
            elif is_block(atoms[-1]):
                # One block of a larger axis: the new dimension is which block it is.
                outer, inner = split(atoms[-1], atoms[-1].size)
                taken.append(outer)
                atoms[-1] = inner
        while have < size:
            if not atoms:
                raise Misaligned
            atom = atoms.pop()
            need = size // have
            if (
                size % have
                or (atom.size > need and atom.size % need)
                or (atom.size < need and need % atom.size)
            ):
                raise Misaligned
            if atom.size > need:
                outer, inner = split(atom, atom.size // need)
                atoms.append(inner)
                atom = outer
            taken.append(atom)
            have *= atom.size
        dims.append(merge(taken))
    if any(atom.size != 1 for atom in atoms):
        raise Misaligned
    rest = tuple(a for a in reversed(atoms) if a.axis != BROADCAST)
    return Layout(tuple(dims), layout.fixed + rest)


def narrow(dim: Dim, start: Affine, size: int) -> Dim:
    """Positions [start, start + size) of a dimension: an interval of its outermost atom, or of the
    inner ones at one position of it."""
    lead = next((i for i, atom in enumerate(dim) if atom.size != 1), len(dim) - 1)
    if lead < 0:
        return dim
    rest = dim[lead + 1 :]
    inner = prod(atom.size for atom in rest)
    if size % inner or not start.divisible(inner):
        within = affine(start.const % inner)
        if within.const + size > inner:
            raise Misaligned
        start -= within
        rest = narrow(rest, within, size)
        size = inner
    if not start.divisible(inner):
        raise Misaligned
    if dim[lead].axis == BROADCAST:
        cut = constant_atom(size // inner)
    else:
        cut = dim[lead]._replace(start=dim[lead].start + start // inner, size=size // inner)
    return merge((*dim[:lead], cut, *rest))


def adjoin(dims: Sequence[Dim]) -> Dim:
    """Dimensions one after the other, where together they are one interval of a view."""
    if all(len(d) == 1 and d[0].axis == BROADCAST for d in dims):
        return (constant_atom(sum(d[0].size for d in dims)),)
    if not all(dims):
        raise Misaligned
    if any(d[1:] != dims[0][1:] for d in dims):
        if any(d[0].size != 1 for d in dims):
            raise Misaligned
        runs = [(h, [d[1:] for d in run]) for h, run in groupby(dims, key=lambda d: d[0])]
        dims = [(head, *adjoin(rests)) for head, rests in runs]
        if len(dims) == 1:
            return merge(dims[0])
    return _adjoin_heads(dims)


def _adjoin_heads(dims: Sequence[Dim]) -> Dim:
    """`adjoin` of dimensions that differ in their outermost atom only."""
    head, *rest = dims[0]
    if any(list(d[1:]) != rest for d in dims) or head.axis == BROADCAST:
        raise Misaligned
    if not all(a.axis == BROADCAST or a.full for a in rest):
        raise Misaligned
    end = head.start
    for atom, *_ in dims:
        if atom[:3] != head[:3] or atom.start != end:
            raise Misaligned
        end = atom.start + atom.size
    return merge((head._replace(size=sum(d[0].size for d in dims)), *rest))

"""Views of nodes: made, joined and put side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from shardproof.engine.algebra.affine import ZERO, Affine
from shardproof.engine.lineage.expressions import Comparison, Constant
from shardproof.engine.lineage.layout import Misaligned, adjoin, constant_atom, merge
from shardproof.engine.lineage.lineage import (
    ABSOLUTE,
    BROADCAST,
    Atom,
    Dim,
    Layout,
    Lineage,
    Term,
    box_view,
)
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.ops.primitives import CONSTANTS


def lineage_axes(lineage: Lineage, table: NodeTable) -> frozenset[str]:
    """The mesh coordinates on which the values of a lineage may depend."""
    axes: set[str] = set()
    for term in lineage.terms:
        axes |= table[term.node].coordinates
        for dim in term.layout.dims:
            for atom in dim:
                axes.update(atom.start.axes)
        for atom in term.layout.fixed:
            axes.update(atom.start.axes)
        for part in term.parts:
            axes.update(part.start.axes)
    return frozenset(axes)


def constant_layout(shape: tuple[int, ...]) -> Layout:
    """The view of a scalar as a tensor of ``shape``."""
    return Layout(tuple(() if n == 1 else (constant_atom(n),) for n in shape))


def local_view(node: int, shape: tuple[int, ...]) -> Lineage:
    """All of a node whose axes are the dimensions of ``shape`` that exceed 1."""
    return box_view(node, shape, shape, (ZERO,) * len(shape))


def causal_view(table: NodeTable, queries: int, keys: int, mask: Comparison) -> Lineage:
    """The first positions of the mask, which is as large as it has to be."""
    node = table.define(mask, (ABSOLUTE, ABSOLUTE))
    dims = tuple(
        (Atom(axis, 1, ABSOLUTE, ZERO, size),) for axis, size in enumerate((queries, keys))
    )
    return Lineage((queries, keys), (Term(Fraction(1), node, Layout(dims)),))


def constant_view(table: NodeTable, name: str) -> Lineage:
    """All of a table of constants."""
    array = CONSTANTS[name]
    shape = (len(array), len(array[0]), len(array[0][0]))
    return local_view(table.define(Constant(name), shape), shape)


def join(position: Sequence[Atom | None]) -> Atom:
    """The common interval of aligned atoms: all that vary must agree on it."""
    found: Atom | None = None
    broadcast: Atom | None = None
    for atom in position:
        if atom is None or atom.axis == BROADCAST:
            broadcast = broadcast or atom
        elif found is None:
            found = atom
        else:
            if atom.start != found.start or atom.size != found.size:
                raise Misaligned
            if found.extent == ABSOLUTE:
                found = atom
            elif atom.extent not in (found.extent, ABSOLUTE):
                raise Misaligned
    if found is not None:
        return found
    return broadcast if broadcast is not None else constant_atom(1)


def adjoin_terms(xs: Sequence[Lineage], dim: int) -> list[Term]:
    """The terms of a concatenation whose parts are consecutive in one view."""
    first = xs[0]
    if any(len(x.terms) != len(first.terms) for x in xs):
        raise Misaligned
    result = []
    for column in zip(*(x.terms for x in xs), strict=True):
        head = column[0]
        for term in column[1:]:
            same = (
                term.factor == head.factor
                and term.node == head.node
                and term.parts == head.parts
                and not term.places
                and not head.places
                and term.layout.fixed == head.layout.fixed
            )
            others = [
                a == b
                for i, (a, b) in enumerate(zip(term.layout.dims, head.layout.dims, strict=True))
                if i != dim
            ]
            if not same or not all(others):
                raise Misaligned
        dims = list(head.layout.dims)
        dims[dim] = adjoin([t.layout.dims[dim] for t in column])
        result.append(head._replace(layout=head.layout._replace(dims=tuple(dims))))
    return result


def result_layout(
    dims: Sequence[Sequence[int | Atom]],
    labels: Mapping[int, tuple[int, int, int]],
    outputs: Sequence[int],
    intervals: Mapping[int, Atom],
) -> Layout:
    """The view of a node as a tensor: ``dims`` are labels of its definition or broadcasts,
    ``labels`` and ``outputs`` as in `partition.inference.canonical.Canonical`, ``intervals`` where
    each label runs."""
    result: list[Dim] = []
    for dim in dims:
        atoms: list[Atom] = []
        for item in dim:
            if isinstance(item, Atom):
                atoms.append(item)
            else:
                number, stride, extent = labels[item]
                interval = intervals[item]
                atoms.append(
                    Atom(outputs.index(number), stride, extent, interval.start, interval.size)
                )
        result.append(merge(atoms))
    return Layout(tuple(result))


def lies_in(view: Term, box: Term, mesh: Mapping[str, int]) -> bool:
    """Whether all that a view reads of a node is what another view of it reads too, at every
    coordinate."""
    own = [*(a for dim in view.layout.dims for a in dim), *view.layout.fixed]
    for atom in (*(a for dim in box.layout.dims for a in dim), *box.layout.fixed):
        if atom.axis == BROADCAST or atom.full:
            continue
        low, size = atom.start * atom.stride, atom.size * atom.stride
        period = atom.stride * atom.extent
        if not any(
            a.axis == atom.axis
            and a.stride * a.extent == period
            and _within(a.start * a.stride - low, size - a.size * a.stride, mesh)
            for a in own
        ):
            return False
    return True


def _within(value: Affine, most: int, mesh: Mapping[str, int]) -> bool:
    try:
        low, high = value.span(mesh)
    except KeyError:
        return False
    return low >= 0 and high <= most

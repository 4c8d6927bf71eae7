"""Whether two lineages are one, however sums and positions of one of many are written.

A sum is a node or its terms; the sum of all entries of a sum is the sum of the sums; a position of
one of many may be in a dimension or in none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from shardproof.engine.algebra.affine import ZERO
from shardproof.engine.lineage.expressions import Combine, Einsum, Operand
from shardproof.engine.lineage.floating import settled
from shardproof.engine.lineage.lineage import BROADCAST, Atom, Layout, Lineage, Term
from shardproof.engine.lineage.nodes import Node, NodeTable
from shardproof.engine.lineage.sums import collect


def placed_alike(have: Lineage, want: Lineage) -> bool:
    """Whether two lineages are equal, wherever positions of one of many are put."""
    if have.shape != want.shape or len(have.terms) != len(want.terms):
        return False
    return have == want or all(
        a._replace(layout=settled(a.layout)) == b._replace(layout=settled(b.layout))
        for a, b in zip(have.terms, want.terms, strict=True)
    )


def same_number(nodes: NodeTable, have: Lineage | None, want: Lineage | None) -> bool:
    """Whether two lineages of one element are equal, however its dimensions are written."""
    if have is None or want is None or any(n != 1 for n in (*have.shape, *want.shape)):
        return False
    return same_terms(nodes, _scalar(have), _scalar(want))


def _scalar(x: Lineage) -> Lineage:
    """One element without dimensions, where these say nothing."""
    if any(dim for term in x.terms for dim in term.layout.dims):
        return x
    return Lineage((), tuple(t._replace(layout=t.layout._replace(dims=())) for t in x.terms))


def same_terms(nodes: NodeTable, have: Lineage, want: Lineage) -> bool:
    """Whether two lineages are one, whether a sum is a node or its terms, and wherever positions
    of one of many are put."""
    left, right = (
        collect([t._replace(layout=settled(t.layout)) for t in _unfolded(nodes, x.terms)])
        for x in (have, want)
    )
    return have.shape == want.shape and set(left) == set(right)


def _unfolded(nodes: NodeTable, terms: Iterable[Term]) -> Iterator[Term]:
    """Terms with sums in place of the nodes that are defined as these."""
    for term in terms:
        inner = _operands(nodes[term.node], term) or _summands(nodes, term)
        if inner:
            yield from _unfolded(nodes, inner)
        else:
            yield term


def _operands(node: Node, term: Term) -> list[Term]:
    """A view of a sum as the views of its operands (none: it is no sum, or one whose operands do
    not have its axes as they are)."""
    total = node.definition
    if not isinstance(total, Combine) or node.coordinates or term.parts:
        return []
    labels = total.outputs
    found = []
    for factor, operand in zip(total.factors, total.operands, strict=True):
        axes = {label: axis for axis, _, _, label in operand.atoms}
        plain = [
            (stride, extent) == (1, node.extents[labels.index(label)])
            for _, stride, extent, label in operand.atoms
        ]
        own = {axis for axis, _, _, _ in operand.atoms}
        if operand.fixed or not all(plain) or not len(own) == len(axes) == len(labels):
            return []
        layout = term.layout

        def moved(atoms: Iterable[Atom], axes: Mapping[int, int] = axes) -> tuple[Atom, ...]:
            return tuple(
                a if a.axis == BROADCAST else a._replace(axis=axes[labels[a.axis]]) for a in atoms
            )

        view = Layout(tuple(moved(dim) for dim in layout.dims), moved(layout.fixed))
        found.append(Term(term.factor * factor, operand.node, view, places=term.places))
    return found


def _summands(nodes: NodeTable, term: Term) -> list[Term]:
    """The sum of all entries of a sum as the sums of its operands (none: it is no such sum, or one
    whose operands do not have all its axes, or are summed nowhere)."""
    total = nodes[term.node].definition
    if not isinstance(total, Einsum) or len(total.operands) != 1 or total.outputs or term.parts:
        return []
    (read,) = total.operands
    if read != _all_of(nodes, read.node):
        return []
    each = nodes[read.node]
    extents = each.extents
    axes = tuple(Atom(i, 1, n, ZERO, n) for i, n in enumerate(extents))
    inner = _operands(each, Term(term.factor, read.node, Layout(tuple((a,) for a in axes))))
    found = []
    for one in inner:
        number = nodes.find(Einsum((_all_of(nodes, one.node),), ()))
        if number is None:
            return []
        found.append(term._replace(factor=one.factor, node=number))
    return found


def _all_of(nodes: NodeTable, number: int) -> Operand:
    """How the sum of all entries of a node reads it."""
    extents = nodes[number].extents
    return Operand(number, tuple((axis, 1, n, axis) for axis, n in enumerate(extents)))

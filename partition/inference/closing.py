"""Sums over part of a range, taken as the values that they are.

A sum over a constant block of a range is a partial sum as long as it is added to others: two halves
are the whole.  Where it is used as a value (by a function, a maximum), it is complete over that
block: the sum of the same product over the block alone.  The single-device program says which
blocks those are; a parallel program's partial sum is taken for such a value only where the
single-device program has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

from shardproof.engine.algebra.affine import ZERO
from shardproof.engine.lineage.expressions import Einsum, Operand
from shardproof.engine.lineage.layout import Misaligned, merge
from shardproof.engine.lineage.lineage import BROADCAST, Atom, Dim, Layout, Part, Term
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.ops.primitives import labels

ONE = Fraction(1)
#: (spec of an einsum, terms of its operands, labels that run along what these have) -> its term.
Product = Callable[[str, Sequence[Term], frozenset[str]], Term]


def closed(nodes: NodeTable, term: Term, product: Product) -> Term:
    """A view of a partial sum as a view of a complete one; raises `Misaligned` where its parts are
    no constant intervals."""
    if not term.parts:
        return term
    definition = nodes[term.node].definition
    if not isinstance(definition, Einsum) or any(p.start.terms for p in term.parts):
        raise Misaligned
    operands, outputs = definition.operands, definition.outputs
    own: dict[int, Part] = {}
    inner: dict[int, list[Part]] = {}
    for part in term.parts:
        token = nodes.tokens[part.token]
        if token.kind == "via":
            inner.setdefault(token.where, []).append(part._replace(token=token.inner))
        elif token.kind != "sum" or token.where in own:
            raise Misaligned
        else:
            own[token.where] = part
    count = len({label for o in operands for *_, label in o.atoms})
    names = labels(count)
    reads = [
        closed(nodes, _view(o, own, tuple(inner.get(i, ()))), product)
        for i, o in enumerate(operands)
    ]
    left = ",".join("".join(names[label] for *_, label in o.atoms) for o in operands)
    spec = left + "->" + "".join(names[label] for label in outputs)
    whole = product(spec, reads, frozenset(names[label] for label in own))
    return _composed(term, whole)


def _view(operand: Operand, own: Mapping[int, Part], parts: tuple[Part, ...]) -> Term:
    """An operand as a view with a dimension for each of its labels."""
    dims: list[Dim] = []
    for axis, stride, extent, label in operand.atoms:
        part = own.get(label)
        if part is None:
            dims.append((Atom(axis, stride, extent, ZERO, extent),))
        elif part.extent != extent:
            raise Misaligned  # every so many positions
        else:
            dims.append((Atom(axis, stride, extent, part.start, part.size),))
    fixed = tuple(Atom(a, s, e, start, 1) for a, s, e, start in operand.fixed)
    return Term(ONE, operand.node, Layout(tuple(dims), fixed), parts)


def _composed(view: Term, of: Term) -> Term:
    """A view of a node, where that node is a view of another one."""
    if of.parts:
        raise Misaligned

    def moved(atom: Atom) -> Atom:
        if atom.axis == BROADCAST:
            return atom
        dim = of.layout.dims[atom.axis]
        if len(dim) != 1 or not dim[0].full or dim[0].axis == BROADCAST:
            raise Misaligned
        return atom._replace(axis=dim[0].axis, stride=atom.stride * dim[0].stride)

    dims = tuple(merge([moved(a) for a in dim]) for dim in view.layout.dims)
    fixed = tuple(moved(a) for a in view.layout.fixed) + of.layout.fixed
    return Term(view.factor * of.factor, of.node, Layout(dims, fixed))

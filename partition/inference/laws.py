"""The laws of `engine.ops.laws` over lineages: the node that a value is written as.

``1 / exp(x)`` is a view of the node ``exp(-x)``; a product in which ``exp(x)`` meets ``exp(-x)`` is
the product of its other factors, also where they meet in products of products.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import prod
from typing import NamedTuple

from shardproof.engine.lineage.expressions import Einsum, Operand, Unary
from shardproof.engine.lineage.layout import constant_atom
from shardproof.engine.lineage.lineage import Atom, Layout, Term
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.ops.laws import of_constant

#: Products of products that are looked into, one inside the other.
DEEPEST = 4


class Factor(NamedTuple):
    """A view of a node in a product: its atoms with the labels that they run along."""

    term: Term
    atoms: tuple[tuple[Atom, int], ...]


def rewritten(table: NodeTable, function: str, term: Term) -> Term | None:
    """A function of a term, where a law says what it is: ``1 / c``, ``1 / exp(x)``."""
    if term.node == table.one:
        value = of_constant(function, term.factor)
        return None if value is None else term._replace(factor=value)
    node, power = table[term.node], _exponential(table, term.node)
    if function != "inv" or power is None or not term.factor or table.is_masked(power.node):
        return None
    opposite = table.define(_opposite(power), node.extents, node.coordinates)
    return Term(1 / term.factor, opposite, term.layout)


class Left(NamedTuple):
    """What is left of a product: its factor, the terms and their atoms, the dimensions of the
    result, with broadcasts where nothing varies any more, and the labels that are left: those of
    the result, and the extents of all."""

    factor: Fraction
    terms: list[Term]
    atoms: list[tuple[tuple[Atom, int], ...]]
    dims: list[list[int | Atom]]
    outputs: frozenset[int]
    extents: dict[int, int]


def left(
    table: NodeTable,
    factor: Fraction,
    factors: Sequence[Factor],
    dims: Sequence[Sequence[int | Atom]],
    outputs: frozenset[int],
    extents: Mapping[int, int],
    intervals: Mapping[int, Atom],
) -> Left | None:
    """What is left of a product where some of its factors cancel; None if none do.  A label that
    is summed and that nothing varies along any more is counted."""
    if all(_exponential(table, x.term.node) is None for x in factors):
        return None
    flat = [x for one in factors for x in _flat(table, one, DEEPEST)]
    kept: list[Factor] = []
    for one in flat:
        other = next((x for x in kept if _cancel(table, x, one)), None)
        if other is None:
            kept.append(one)
        else:
            kept.remove(other)
    if len(kept) == len(flat):
        return None
    held = frozenset(label for x in kept for _, label in x.atoms)
    spread = [
        [x if isinstance(x, Atom) or x in held else constant_atom(intervals[x].size) for x in dim]
        for dim in dims
    ]
    factor *= prod(intervals[label].size for label in extents.keys() - held - outputs)
    kept_extents = {label: n for label, n in extents.items() if label in held}
    terms, atoms = [x.term for x in kept], [x.atoms for x in kept]
    return Left(factor, terms, atoms, spread, outputs & held, kept_extents)


def _exponential(table: NodeTable, number: int) -> Unary | None:
    """The definition of a node that is an exponential."""
    definition = table[number].definition
    return definition if isinstance(definition, Unary) and definition.function == "exp" else None


def _opposite(power: Unary) -> Unary:
    """``exp(-x)`` for ``exp(x)``."""
    return Unary("exp", -power.factor, power.node)


def _cancel(table: NodeTable, one: Factor, other: Factor) -> bool:
    """Whether two factors are ``exp(x)`` and ``exp(-x)``, read alike."""
    power = _exponential(table, one.term.node)
    if power is None or table[other.term.node].definition != _opposite(power):
        return False
    return (
        not table.is_masked(power.node)
        and not one.term.parts
        and not other.term.parts
        and one.term.layout.fixed == other.term.layout.fixed
        and sorted(one.atoms) == sorted(other.atoms)
    )


def _flat(table: NodeTable, factor: Factor, depth: int) -> list[Factor]:
    """The factors of a product without sums, in the labels of the whole; itself if it is none."""
    product = table[factor.term.node].definition
    inner = factor.term.parts or factor.term.layout.fixed or not depth
    if not isinstance(product, Einsum) or inner:
        return [factor]
    operands, outputs = product.operands, product.outputs
    read = {outputs[atom.axis]: (atom, label) for atom, label in factor.atoms}
    whole = len(read) == len(factor.atoms) and all(a.stride == 1 for a, _ in factor.atoms)
    if not whole or any(not _reads(o, read) for o in operands):
        return [factor]
    found = []
    for o in operands:
        atoms = []
        for axis, _, extent, name in o.atoms:
            atom, label = read[name]
            atoms.append((Atom(axis, 1, extent, atom.start, atom.size), label))
        term = Term(Fraction(1), o.node, Layout(()))
        found += _flat(table, Factor(term, tuple(atoms)), depth - 1)
    return found


def _reads(operand: Operand, read: Mapping[int, tuple[Atom, int]]) -> bool:
    """Whether an operand is read along whole axes, all of which the product has."""
    return not operand.fixed and all(
        name in read and stride == 1 and extent == read[name][0].extent
        for _, stride, extent, name in operand.atoms
    )

"""Sums over classes of a one-hot of ids that are all among them: such a sum is 1.

What ids are among the plan says of its inputs; places that a choice gives are those of its row.
Like all of inference that is a claim; the obligation of the operator states it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from fractions import Fraction
from string import ascii_letters

from shardproof.engine.algebra.affine import ZERO
from shardproof.engine.lineage.expressions import Einsum, Onehot, Operand, Restrict
from shardproof.engine.lineage.lineage import ABSOLUTE, Addend, Lineage, StridedInterval, View
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.partition.inference.substitution import Labels, Read, TooLarge
from shardproof.partition.inference.views import view_of_constant


def complete(table: NodeTable, read: Operand | Read) -> int | None:
    """The label along which a one-hot is read at all classes that its ids are among, and at no
    fixed one; None where it is none.

    Example: label 1 of ``onehot(n2)[a:4, b:8]``, where ``n2`` is among the integers from 0 to 7.
    """
    number, start, full = read.node, 0, ABSOLUTE
    definition = table[number].definition
    if isinstance(definition, Restrict):
        (block,) = definition.blocks if len(definition.blocks) == 1 else (None,)
        if block is None or block.axis != len(table[definition.node].extents) - 1:
            return None
        start, full, number = block.start, block.size, definition.node
        definition = table[number].definition
    if not isinstance(definition, Onehot) or definition.factor != 1:
        return None
    among, axis = table.domain(definition.node), len(table[number].extents) - 1
    own = [i for i in read.intervals if i[0] == axis]
    if among is None or len(own) != 1 or any(f[0] == axis for f in read.fixed):
        return None
    ((_, stride, extent, label),) = own
    if stride != 1 or (full not in (ABSOLUTE, extent)):
        return None
    return label if start <= among[0] and among[1] <= start + extent else None


def alone(table: NodeTable, reads: Sequence[Operand | Read], kept: Iterable[int]) -> list[int]:
    """Which factors of a product are one-hots that add up to 1: nothing else is read along their
    classes, which are summed; ``kept``: labels that are not.

    Example: the first of ``onehot(n2)[a, b:8] n5[a]``, not of ``onehot(n2)[a, b:8] n5[b]``.
    """
    outside = set(kept)
    result = []
    for place, read in enumerate(reads):
        label = complete(table, read)
        if label is None or label in outside:
            continue
        others = (x for k, o in enumerate(reads) if k != place for *_, x in o.intervals)
        if label not in others:
            result.append(place)
    return result


def has_named(table: NodeTable, definition: Einsum) -> bool:
    """Whether a product has one-hots that add up to 1.

    Example: ``onehot(n2)[a, b:8] n5[a]`` has, if it is summed over ``b``.
    """
    return bool(alone(table, _factors(table, definition)[0], definition.outputs))


def without(
    table: NodeTable, definition: Einsum, einsum: Callable[[str, Lineage], Lineage]
) -> tuple[Lineage, frozenset[int]] | None:
    """A product without its one-hots that add up to 1, over all its axes, and the nodes that show
    it; None where it has none.

    Example: of ``onehot(n2)[a, b:8] n5[a]``, summed over ``b``, ``n5[a]``.
    """
    reads, opened = _factors(table, definition)
    left = alone(table, reads, definition.outputs)
    classes = {complete(table, reads[place]) for place in left}
    if not left or any(not n and x not in classes for o in reads for *_, n, x in o.intervals):
        return None
    labels = dict.fromkeys(x for o in reads for *_, x in o.intervals)
    if len(labels) > len(ascii_letters):
        return None
    names = {x: ascii_letters[n] for n, x in enumerate(labels)}
    kept = [_without_classes(o, classes) if place in left else o for place, o in enumerate(reads)]
    spelled = ("".join(names[x] for *_, x in o.intervals) for o in kept)
    output = "".join(names[x] for x in definition.outputs)
    factors = [_view(table.one if place in left else o.node, o) for place, o in enumerate(kept)]
    own = (shown(table, reads[place].node) for place in left)
    return einsum(f"{','.join(spelled)}->{output}", *factors), opened.union(*own)


def _factors(table: NodeTable, definition: Einsum) -> tuple[list[Read], frozenset[int]]:
    """What is multiplied, products factor by factor, also those that are summed already; and these
    products."""
    reads, opened, labels = list[Read](), set[int](), Labels()
    for _ in range(1 + max((x for o in definition.operands for *_, x in o.intervals), default=0)):
        labels.new(ABSOLUTE)
    for operand in definition.operands:
        read = _from_the_first(table, Read(operand.node, operand.intervals, operand.fixed))
        inner = _multiplied(table, read, labels)
        reads += inner or [read]
        opened |= {operand.node, read.node} if inner else set()
    return reads, frozenset(opened)


def _multiplied(table: NodeTable, read: Read, labels: Labels) -> list[Read]:
    """The factors of a product that is read; none where it is no product, or one in which one-hots
    add up to 1 already: what that is its own operator's claim says."""
    inner = table[read.node].definition
    if not isinstance(inner, Einsum) or alone(table, inner.operands, inner.outputs):
        return []
    summed = dict[int, int]()
    try:
        return [
            labels.substituted(o, read, inner.outputs, summed, place)
            for place, o in enumerate(inner.operands)
        ]
    except TooLarge:
        return []


def _from_the_first(table: NodeTable, read: Read) -> Read:
    """What is read of the first positions of an axis without an end, as read of the node itself."""
    definition = table[read.node].definition
    if not isinstance(definition, Restrict) or len(definition.blocks) != 1:
        return read
    (block,) = definition.blocks
    own = [i[:3] for i in read.intervals if i[0] == block.axis]
    first = (block.start, block.extent) == (0, ABSOLUTE) and own == [(block.axis, 1, block.size)]
    return read._replace(node=definition.node) if first else read


def shown(table: NodeTable, number: int) -> frozenset[int]:
    """What a one-hot, or a block of one, is made of that tells the classes of its ids.

    Example: of the classes 8 to 15 of a one-hot both nodes.
    """
    definition = table[number].definition
    return frozenset({number, definition.node} if isinstance(definition, Restrict) else {number})


def _without_classes(read: Read, classes: Collection[int | None]) -> Read:
    """A one-hot's ids, as it reads them."""
    return read._replace(
        intervals=tuple(i for i in read.intervals if i[3] not in classes), fixed=()
    )


def _view(number: int, read: Read) -> Lineage:
    """A node, or the constant 1, with a dimension for each label that is read."""
    shape = tuple(n for *_, n, _ in read.intervals)
    dims = tuple((StridedInterval(a, s, n, ZERO, n),) for a, s, n, _ in read.intervals)
    fixed = tuple(StridedInterval(a, s, n, at, 1) for a, s, n, at in read.fixed)
    view = View(dims, fixed) if number else view_of_constant(shape)
    return Lineage(shape, (Addend(Fraction(1), number, view),))

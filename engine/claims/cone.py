"""The cone of a claim: which nodes are taken as they are, and whose definitions are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from shardproof.engine.errors import Unsupported
from shardproof.engine.lineage.expressions import Comparison, Einsum, Operand, Restrict, Unary
from shardproof.engine.lineage.lineage import Lineage
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.ops.laws import exponent_of

#: Definitions that a claim may span before it is too large to state.
MOST_NODES = 200

#: Definitions that a claim may span before it is stated behind its inputs, where it spans fewer.
MOST_DIRECT = 24


#: How far the cut of a claim lies behind its inputs: by so many definitions everywhere, or behind
#: these nodes.
Cut: TypeAlias = int | frozenset[int]


class Cone(NamedTuple):
    """Which nodes a claim takes as symbols, and whose definitions it reads.

    Example: of "the all-reduce of partial ``n3 = einsum(n1, n2)`` is ``n3``", ``n1`` and ``n2`` are
    opaque, and ``n3`` is opened and defined.

    ``opaque``: nodes whose entries are free symbols; ``opened``: nodes whose partial sums are
    read addend by addend; ``defined``: all nodes whose definitions the claim reads.
    """

    opaque: frozenset[int]
    opened: frozenset[int]
    defined: frozenset[int]


def operands(nodes: NodeTable, number: int) -> tuple[Operand, ...]:
    """How a multilinear definition (or a maximum, or a choice) reads its operands.

    Example: of ``einsum(n1[a:4, b:16], n2[c:8, b:16] -> a c)`` the operands ``n1[a:4, b:16]`` and
    ``n2[c:8, b:16]``; of an input none.
    """
    return nodes[number].definition.reads()


def operand_nodes(nodes: NodeTable, number: int) -> tuple[int, ...]:
    """The nodes that a definition reads.

    Example: of ``exp(-1*n3)`` node 3; of a product of a node with itself that node twice.
    """
    return nodes[number].definition.children()


def cone(
    nodes: NodeTable,
    inputs: Sequence[Lineage],
    outputs: Sequence[Lineage],
    *,
    adds: bool,
    widened: Cut = 0,
) -> Cone:
    """The cone of a claim; raises `Unsupported` if it is too large.

    Example: the claim of ``y = linear(x, w)`` has the node of ``y`` as defined, and those of ``x``
    and ``w`` as opaque, whatever they are made of; ``widened=1`` opens what these are defined as.

    ``adds``: the operator adds its inputs up, so that partial sums have to be opened.
    ``widened``: by how many definitions the cut is moved away from the inputs, or behind which
    nodes (whatever they are: the claim follows from the one that is stated); then partial sums
    are opened, too.  A partial sum that is taken for a complete one, over a block or in the
    definition of a result, always has to be; and one is where fewer definitions are read then (a
    sum over a block is the complete sum of another node).
    """
    adds = adds or bool(widened)
    partials = [partial for x in inputs for addend in x.addends for partial in addend.partials]
    try:
        narrow = _cone(nodes, inputs, outputs, adds, widened)
        if not widened and len(narrow.defined) > MOST_DIRECT:
            return _nearer(nodes, inputs, outputs, len(narrow.defined)) or narrow
    except Unsupported:
        if not widened:
            if nearer := _nearer(nodes, inputs, outputs, MOST_NODES):
                return nearer
            if behind := _powers(nodes, inputs):
                return cone(nodes, inputs, outputs, adds=adds, widened=behind)
        if adds or not partials:
            raise
        return _cone(nodes, inputs, outputs, True, widened)
    if adds or not partials:
        return narrow
    sums = {nodes.reductions[partial.reduction].node for partial in partials}
    completed = any(
        isinstance(nodes[number].definition, Restrict)
        or not sums.isdisjoint(operand_nodes(nodes, number))
        for number in narrow.defined
    )
    opened = _cone(nodes, inputs, outputs, True, widened)
    return opened if completed or len(opened.defined) < len(narrow.defined) else narrow


def _nearer(
    nodes: NodeTable, inputs: Sequence[Lineage], outputs: Sequence[Lineage], most: int
) -> Cone | None:
    """The cone behind inputs that are made of what the results are made of, too, where it is
    smaller: the result of ``1 - n3`` with ``n3 = 1 - n2`` is ``n2``, and that of ``1 / n5`` with
    ``n5 = n4 n4`` a product of two ``inv(n4)``, whatever ``n2`` and ``n4`` are made of."""
    read = {addend.node for x in inputs for addend in x.addends}
    near = list(dict.fromkeys(addend.node for x in outputs for addend in x.addends))
    for number in near:
        if len(near) < MOST_DIRECT:
            near += [n for n in dict.fromkeys(operand_nodes(nodes, number)) if n not in near]
    made = set(near) - {nodes.one}
    behind = frozenset(n for n in read if not made.isdisjoint(operand_nodes(nodes, n)))
    if not behind:
        return None
    try:
        nearer = _cone(nodes, inputs, outputs, True, behind)
    except Unsupported:
        return None
    return nearer if len(nearer.defined) < most else None


def _cone(
    nodes: NodeTable,
    inputs: Sequence[Lineage],
    outputs: Sequence[Lineage],
    adds: bool,
    widened: Cut,
) -> Cone:
    opaque, opened, masked = _cut(nodes, inputs, adds, widened)
    return Cone(
        frozenset(opaque),
        frozenset(opened),
        frozenset(_defined(nodes, inputs, outputs, opened | masked, opaque)),
    )


def _cut(
    nodes: NodeTable, inputs: Sequence[Lineage], adds: bool, widened: Cut
) -> tuple[set[int], set[int], set[int]]:
    """The nodes that a claim takes as symbols, those whose partial sums it opens, and the masked
    ones (where the cut is moved, all that compare positions), whose definitions it reads."""
    opened: set[int] = set()
    opaque: set[int] = set()

    def open_sum(number: int) -> None:
        reduction = nodes.reductions[number]
        opened.add(reduction.node)
        for position, operand in enumerate(operands(nodes, reduction.node)):
            if reduction.kind == "via" and position == reduction.where:
                open_sum(reduction.inner)
            else:
                opaque.add(operand.node)

    for lineage in inputs:
        for addend in lineage.addends:
            if adds and addend.partials:
                for partial in addend.partials:
                    open_sum(partial.reduction)
            else:
                opaque.add(addend.node)
    opaque = _unblocked(nodes, opaque) - opened
    compared = bool(widened)
    if isinstance(widened, frozenset):
        opaque = _unblocked(nodes, _behind(nodes, opaque, widened))
        widened = 0
    for _ in range(widened):
        inner = {o for n in opaque for o in operand_nodes(nodes, n)}
        leaves = {n for n in opaque if not operand_nodes(nodes, n)}
        opaque = _unpowered(nodes, _unblocked(nodes, inner | leaves))
    masked = {n for n in opaque if nodes.is_masked(n)}
    for number in sorted(masked):
        opaque |= {o for o in operand_nodes(nodes, number) if not nodes.is_masked(o)}
    opaque = _unblocked(nodes, opaque) - masked
    if compared:
        # What compares positions is the same entry moved along its diagonal.
        orders = {n for n in opaque if isinstance(nodes[n].definition, Comparison)}
        opaque, masked = opaque - orders, masked | orders
    return opaque, opened, masked


def _behind(nodes: NodeTable, numbers: set[int], opens: frozenset[int]) -> set[int]:
    """Nodes, where one is of ``opens``, those that it is made of."""
    cut, seen, todo = set[int](), set(numbers), list(numbers)
    while todo:
        number = todo.pop()
        inner = operand_nodes(nodes, number) if number in opens else ()
        if not inner:
            cut.add(number)
        todo += [n for n in dict.fromkeys(inner) if n not in seen]
        seen.update(inner)
    return cut


def recomputed(nodes: NodeTable, inputs: Sequence[Lineage]) -> frozenset[int]:
    """Behind which nodes the cut of a claim lies where all that other symbols determine is read by
    its definition: what partial sums in the inputs are made of, the operator may compute again.

    Example: the gradient of a gate, of which parts of the sum over ``onehot(select(x w))`` arrive:
    the onehot, the choice and the product are read as they are defined, and ``x`` and ``w`` are
    symbols.
    """
    opaque = frozenset(_cut(nodes, inputs, True, 0)[0])
    return frozenset().union(*(_determined(nodes, n, opaque) for n in sorted(opaque)))


def _determined(nodes: NodeTable, number: int, opaque: frozenset[int]) -> set[int]:
    """The definitions by which other symbols determine one (none: they do not, or by too many)."""
    behind, todo = {number}, [number]
    while todo and len(behind) <= MOST_NODES:
        inner = operand_nodes(nodes, todo.pop())
        if not inner:
            return set()
        fresh = {n for n in inner if n != nodes.one} - behind - opaque
        behind |= fresh
        todo += sorted(fresh)
    return behind if len(behind) <= MOST_NODES else set()


def _unblocked(nodes: NodeTable, numbers: set[int]) -> set[int]:
    """Nodes, where one is a block of another, that other one: its entries are no more free."""
    opaque = set(numbers)
    while blocks := {n for n in opaque if isinstance(nodes[n].definition, Restrict)}:
        opaque = (opaque - blocks) | {o for n in blocks for o in operand_nodes(nodes, n)}
    return opaque


def _unpowered(nodes: NodeTable, numbers: set[int]) -> set[int]:
    """Nodes, where one is a power or a product with powers in it, those that it is of: laws join
    powers of one base."""
    opaque = set(numbers)
    while powers := {n for n in opaque if _has_power(nodes, n)}:
        opaque = (opaque - powers) | {o for n in powers for o in operand_nodes(nodes, n)}
    return opaque


def _powers(nodes: NodeTable, inputs: Sequence[Lineage]) -> frozenset[int]:
    """The nodes of inputs that are powers: the result of ``g / sqrt(s)`` reads ``rsqrt(s)``, and
    ``s`` by its definition, whatever that takes, where ``sqrt(s)`` alone is a symbol."""
    read = {addend.node for x in inputs for addend in x.addends}
    return frozenset(n for n in read if _has_power(nodes, n))


def _has_power(nodes: NodeTable, number: int) -> bool:
    match nodes[number].definition:
        case Unary(function=function):
            return exponent_of(function) is not None
        case Einsum(operands=reads, outputs=outputs):
            labels = {label for o in reads for *_, label in o.intervals}
            return labels <= set(outputs) and any(_has_power(nodes, o.node) for o in reads)
    return False


def compares(nodes: NodeTable, here: Cone) -> bool:
    """Whether a claim reads a causal mask or order, which compare positions.

    Example: a claim of masked attention scores reads ``causal mask``, that of a linear layer does
    not.
    """
    read = (nodes[number].definition for number in here.opaque | here.defined)
    return any(isinstance(definition, Comparison) for definition in read)


#: Operators that take a power of an operand: what they give may be known by a law.
_POWERS: Final = frozenset({"div", "log", "pow", "reciprocal", "rsqrt", "sqrt"})


def lawful(nodes: NodeTable, here: Cone, operator: str) -> bool:
    """Whether a claim may need the laws of `engine.ops.laws`: it reads a power, a logarithm, or an
    exponential with a negative factor, which another may be the inverse of.

    Example: a claim of the operator ``rsqrt`` may, one of ``linear`` over two inputs may not.
    """
    read = (nodes[number].definition for number in here.opaque | here.defined)
    return (
        operator in _POWERS
        or any(
            isinstance(d, Unary)
            and (
                exponent_of(d.function) is not None
                or d.function == "log"
                or (d.function == "exp" and d.factor < 0)
            )
            for d in read
        )
        or exponentials(nodes, here, operator)
    )


def exponentials(nodes: NodeTable, here: Cone, operator: str) -> bool:
    """Whether a claim reads several exponentials, the operator's own among them, or one with a
    negative factor: that of a sum may be the product of others.

    Example: a claim that reads ``exp(n3)`` and ``exp(n4)`` does, and one that reads ``exp(-1*n3)``.
    """
    read = (nodes[number].definition for number in here.opaque | here.defined)
    powers = [d for d in read if isinstance(d, Unary) and d.function == "exp"]
    several = len(powers) + (operator == "softmax") > 1
    return several or any(d.factor < 0 for d in powers)


def _defined(
    nodes: NodeTable,
    inputs: Sequence[Lineage],
    outputs: Sequence[Lineage],
    opened: set[int],
    opaque: set[int],
) -> set[int]:
    todo = [*sorted(opened), *(t.node for x in (*inputs, *outputs) for t in x.addends)]
    defined: set[int] = set()
    while todo:
        number = todo.pop()
        if number in defined or number in opaque:
            continue
        defined.add(number)
        if len(defined) > MOST_NODES:
            raise Unsupported(f"a claim over more than {MOST_NODES} definitions")
        todo += operand_nodes(nodes, number)
    return defined

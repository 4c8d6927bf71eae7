"""Behind which nodes laws join the factors of a product.

``(S / a^2) * (a / sqrt(S))`` is ``sqrt(S) / a``: laws join powers of one base, and exponentials,
wherever these stand in the products that are multiplied.  A claim that takes the two products as
symbols does not hold; behind them, with ``S`` as a symbol, it does.
"""

from __future__ import annotations

from shardproof.engine.lineage.expressions import Einsum, Unary
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.obligations.obligation import Claim
from shardproof.engine.ops.laws import exponent_of

#: Nodes up to which a product is taken apart.
_MOST = 24


def factors(nodes: NodeTable, claim: Claim) -> frozenset[int]:
    """The products that a product multiplies, and the powers and exponentials that these are made
    of; none where the operator is no product, or reads no product with such a factor.

    Example: of ``n16 * n13`` with ``n16 = n9 * n15`` and ``n13 = n7 * rsqrt(n9)`` the nodes of
    ``n16``, ``n13``, ``rsqrt(n9)``, and ``n7``, if that is an exponential.
    """
    if claim.name not in ("mul", "div") or len(claim.inputs) < 2:
        return frozenset()
    read = {addend.node for x in claim.inputs if x is not None for addend in x.addends}
    todo, opened, inside = sorted(read), set[int](), False
    while todo:
        number = todo.pop()
        definition = nodes[number].definition
        powers = isinstance(definition, Unary) and (
            definition.function == "exp" or exponent_of(definition.function) is not None
        )
        if number in opened or not (powers or _multiplies(definition)):
            continue
        opened.add(number)
        inside |= powers and number not in read
        todo += definition.children()
        if len(opened) > _MOST:
            return frozenset()
    return frozenset(opened) if inside else frozenset()


def _multiplies(definition: object) -> bool:
    """Whether a definition is a product of several nodes that sums nothing up."""
    if not isinstance(definition, Einsum) or len(definition.operands) < 2:
        return False
    labels = {label for o in definition.operands for *_, label in o.intervals}
    return labels <= set(definition.outputs)

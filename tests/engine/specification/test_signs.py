"""What definitions say about signs, and which domains lie in which."""

from __future__ import annotations

from fractions import Fraction

import pytest

from shardproof.engine.lineage.expressions import Causal, Combine, Einsum, Input, Operand, Unary
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.specification.definedness import Domain, Signs, domain

ONE = Fraction(1)


def table() -> tuple[NodeTable, dict[str, int]]:
    """x; x x; x x + 1; exp(x); the sum of exp(x); x masked, and exp of that."""
    nodes = NodeTable()
    atoms = ((0, 1, 4, 0),)
    x = nodes.define(Input("x"), (4,))
    own = Operand(x, atoms)
    found = {"x": x, "square": nodes.define(Einsum((own, own), (0,)), (4,))}
    one = Operand(nodes.one, ())
    both = (one, Operand(found["square"], atoms))
    found["above"] = nodes.define(Combine((ONE, ONE), both, (0,)), (4,))
    found["below"] = nodes.define(Combine((ONE, -ONE), both, (0,)), (4,))
    found["exp"] = nodes.define(Unary("exp", -ONE, x), (4,))
    found["total"] = nodes.define(Einsum((Operand(found["exp"], atoms),), ()))
    mask = nodes.define(Causal(), (0, 0))
    read = (own, Operand(mask, ((0, 1, 0, 0), (1, 1, 0, 1))))
    found["masked"] = nodes.define(Combine((ONE, ONE), read, (0, 1)), (4, 4))
    found["decayed"] = nodes.define(Unary("exp", ONE, found["masked"]), (4, 4))
    return nodes, found


@pytest.mark.parametrize(
    ("name", "positive", "nonnegative"),
    [
        ("x", False, False),
        ("square", False, True),
        ("above", True, True),
        ("below", False, False),
        ("exp", True, True),
        ("total", True, True),
        ("masked", False, False),
        ("decayed", False, True),
    ],
)
def test_signs(name: str, positive: bool, nonnegative: bool) -> None:
    nodes, found = table()
    signs = Signs(nodes)
    assert signs.positive(found[name]) == positive
    assert signs.nonnegative(found[name]) == nonnegative


def test_a_factor_decides_with_the_sign() -> None:
    nodes, found = table()
    signs = Signs(nodes)
    above = found["above"]
    assert signs.within(ONE, above, Domain.POSITIVE)
    assert signs.within(-ONE, above, Domain.NONZERO)
    assert not signs.within(-ONE, above, Domain.POSITIVE)
    assert not signs.within(Fraction(0), above, Domain.NONZERO)
    assert signs.within(ONE, found["square"], Domain.NONNEGATIVE)
    assert not signs.within(ONE, found["square"], Domain.NONZERO)


def test_domains() -> None:
    assert domain("rsqrt") is domain("log") is domain("pow:-3/2") is Domain.POSITIVE
    assert domain("inv") is domain("pow:-2") is Domain.NONZERO
    assert domain("sqrt") is domain("pow:1/3") is Domain.NONNEGATIVE
    assert Domain.POSITIVE.lies_in(Domain.NONZERO)
    assert Domain.POSITIVE.lies_in(Domain.NONNEGATIVE)
    assert not Domain.NONNEGATIVE.lies_in(Domain.POSITIVE)
    assert not Domain.NONZERO.lies_in(Domain.POSITIVE)


def test_what_is_neither_negative_nor_zero_is_positive() -> None:
    """Of a masked exponential, which may be zero, one over it says that it is not; of any number it
    does not say which sign it has."""
    nodes, found = table()
    signs = Signs(nodes)
    decayed, x = found["decayed"], found["x"]
    assert not signs.within(ONE, decayed, Domain.POSITIVE)
    assert signs.follows(Domain.NONZERO, ONE, decayed, Domain.POSITIVE)
    assert not signs.follows(Domain.NONZERO, -ONE, decayed, Domain.POSITIVE)
    assert not signs.follows(Domain.NONNEGATIVE, ONE, decayed, Domain.POSITIVE)
    assert not signs.follows(Domain.NONZERO, ONE, x, Domain.POSITIVE)
    assert not signs.follows(Domain.NONNEGATIVE, ONE, x, Domain.NONZERO)
    assert signs.follows(Domain.POSITIVE, ONE, x, Domain.NONNEGATIVE)

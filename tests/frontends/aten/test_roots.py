"""Squares of norms: what is squared again is a sum of squares, and nothing else is."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest

from shardproof.engine.algebra.affine import ZERO
from shardproof.engine.errors import Unsupported
from shardproof.engine.plan.ir import Shard
from shardproof.frontends.aten import Const, Lowering, rule_of
from shardproof.frontends.aten.irrational import rooted
from shardproof.frontends.aten.lowering import Real
from shardproof.frontends.aten.roots import maker, origin, square


def rule(lo: Lowering, name: str, shape: tuple[int, ...], *args: Any) -> Any:
    found = rule_of(name)
    assert found is not None
    lo.expected = [(shape, "float32")]
    return found(lo, *args)


def given(lo: Lowering) -> Real:
    return lo.hold(Shard("x", (4,), (4,), (ZERO,), "float32"))


def norm(lo: Lowering, x: Real) -> Any:
    return rule(lo, "aten.linalg_vector_norm.default", (), x, 2.0)


def test_a_norm_that_is_squared_is_a_sum_of_squares() -> None:
    lo = Lowering()
    x = given(lo)
    squared = rule(lo, "aten.pow.Tensor_Scalar", (), norm(lo, x), 2.0)
    op = maker(lo, squared.number)
    assert op is not None
    assert op.name == "sum"
    (product,) = op.inputs
    assert maker(lo, product).inputs == (x.number, x.number)  # type: ignore[union-attr]


def test_the_norm_of_stacked_norms_reads_no_root() -> None:
    lo = Lowering()
    stacked = rule(lo, "aten.stack.default", (2,), [norm(lo, given(lo)), norm(lo, given(lo))])
    found = square(lo, stacked)
    assert found is not None
    assert (found.shape, square(lo, found)) == ((2,), None)


@pytest.mark.parametrize("other", ["root of x", "negative", "sum", "difference of squares"])
def test_what_may_be_negative_has_no_such_square(other: str) -> None:
    """The root of a value that may be negative is no number there: its square is not the value."""
    lo = Lowering()
    x = given(lo)
    squares = lo.mul(x, x)
    inner = {
        "root of x": x,
        "negative": lo.scale(squares, Fraction(-1)),
        "sum": lo.sum(x, (0,)),
        "difference of squares": lo.add(squares, squares, Fraction(-2)),
    }[other]
    assert square(lo, lo.unary("sqrt", inner)) is None
    assert square(lo, lo.unary("sqrt", squares)) == squares


@pytest.mark.parametrize("parts", [2, 3, 8])
def test_a_root_of_a_fraction_is_read_as_that_and_said(parts: int) -> None:
    lo = Lowering()
    scaled = rule(lo, "aten.div.Tensor", (), norm(lo, given(lo)), math.pow(parts, 0.5))
    found = square(lo, scaled)
    assert found is not None
    op = maker(lo, found.number)
    assert op is not None
    assert op.attrs["other"] == Fraction(1, parts)
    assert [f"the root of 1/{parts}," in note for note in lo.notes] == [True]


def test_any_other_factor_is_squared_as_it_is() -> None:
    lo = Lowering()
    found = square(lo, lo.scale(norm(lo, given(lo)), Fraction("0.7071")))
    assert found is not None
    assert maker(lo, found.number).attrs["other"] == Fraction("0.7071") ** 2  # type: ignore[union-attr]
    assert not lo.notes


def test_what_a_deep_model_computes_is_not_looked_through() -> None:
    """Forty residual blocks: each value is read twice, and paths double with every block."""
    lo = Lowering()
    x = given(lo)
    for _ in range(40):
        x = lo.add(x, lo.mul(x, x))
    assert square(lo, x) is None
    assert square(lo, rule(lo, "aten.view.default", (2, 2), x, [2, 2])) is None


def test_the_root_of_a_number_is_a_number() -> None:
    """A scale that a model makes of constants, before there is an input: Gemma 3n's."""
    lo = Lowering()
    two = Const(Fraction(2), (), "float32")
    scale = rule(lo, "aten.rsqrt.default", (), two)
    assert scale == Const(rooted(Fraction(repr(2**-0.5))), (), "float32")
    assert rule(lo, "aten.sqrt.default", (), Const(Fraction(9, 4), (), "float32")).value == 1.5
    with pytest.raises(Unsupported):
        rule(lo, "aten.rsqrt.default", (), Const(Fraction(0), (), "float32"))


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("name", ["sqrt", "rsqrt"])
def test_a_root_times_a_root_of_a_fraction_is_one_root(name: str, moved: bool) -> None:
    """Adam's correction, before and after the root; a number that is no root stays outside."""
    lo = Lowering()
    operand = given(lo)
    root = lo.unary(name, operand)
    root = lo.reshape(root, (2, 2)) if moved else root
    one = rule(lo, "aten.div.Tensor", root.shape, root, math.sqrt(1 - 0.999))
    op = origin(lo, one.number)
    assert op is not None
    assert op.name == name
    inner = maker(lo, op.inputs[0])
    assert inner is not None
    assert inner.attrs["other"] == (1000 if name == "sqrt" else Fraction(1, 1000))
    assert inner.inputs == (operand.number,)
    other = rule(lo, "aten.mul.Tensor", root.shape, root, 3.0)
    assert maker(lo, other.number).attrs["other"] == 3  # type: ignore[union-attr]

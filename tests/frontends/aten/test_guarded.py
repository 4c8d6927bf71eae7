"""Quotients that are 0 where they are divided by 0 are these quotients; other choices are choices."""

from __future__ import annotations

from typing import Any

import pytest

from shardproof.engine.algebra.affine import ZERO
from shardproof.engine.plan.ir import Shard
from shardproof.frontends.aten import Lowering, rule_of
from shardproof.frontends.aten.lowering import Real
from shardproof.frontends.aten.positive import LEFT_OUT


def ruled(lo: Lowering, name: str, *args: Any, dtype: str = "float32") -> Any:
    rule = rule_of(name)
    assert rule is not None
    lo.expected = [((4,), dtype)]
    return rule(lo, *args)


def given(lo: Lowering, name: str) -> Real:
    return lo.hold(Shard(name, (4,), (4,), (ZERO,), "float32"))


@pytest.mark.parametrize("way", ["masked_fill", "where", "where not"])
def test_a_quotient_that_is_0_where_its_divisor_is(way: str) -> None:
    lo = Lowering()
    g, n = given(lo, "g"), given(lo, "n")
    quotient = ruled(lo, "aten.div.Tensor", g, n)
    mask = ruled(lo, f"aten.{'ne' if 'not' in way else 'eq'}.Scalar", n, 0, dtype="bool")
    made = {
        "masked_fill": lambda: ruled(lo, "aten.masked_fill_.Scalar", quotient, mask, 0),
        "where": lambda: ruled(lo, "aten.where.ScalarSelf", mask, 0.0, quotient),
        "where not": lambda: ruled(lo, "aten.where.ScalarOther", mask, quotient, 0.0),
    }[way]()
    assert made == quotient
    assert LEFT_OUT in lo.notes


@pytest.mark.parametrize("other", ["ne", "gt", "of g", "one", "1 for 0", "product"])
def test_other_choices_are_no_quotients(other: str) -> None:
    lo = Lowering()
    g, n = given(lo, "g"), given(lo, "n")
    quotient = ruled(lo, f"aten.{'mul' if other == 'product' else 'div'}.Tensor", g, n)
    name = other if other in ("ne", "gt") else "eq"
    of, against = g if other == "of g" else n, 1 if other == "one" else 0
    mask = ruled(lo, f"aten.{name}.Scalar", of, against, dtype="bool")
    filler = 1.0 if other == "1 for 0" else 0.0
    made = ruled(lo, "aten.masked_fill_.Scalar", quotient, mask, filler)
    assert made != quotient
    assert lo.ops[-1].outputs == (made.number,)

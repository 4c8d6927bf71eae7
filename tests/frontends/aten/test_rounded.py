"""Numbers that are decimals in single precision are read as these; no other number is."""

from __future__ import annotations

from typing import Any

import pytest

from shardproof.engine.algebra.affine import ZERO
from shardproof.engine.plan.ir import Shard
from shardproof.frontends.aten import Lowering, rule_of
from shardproof.frontends.aten.rounded import decimal


@pytest.mark.parametrize(
    ("number", "read"),
    [(9.999999747378752e-06, 1e-5), (9.999999974752427e-07, 1e-6), (-0.10000000149011612, -0.1)],
)
def test_a_decimal_in_single_precision_is_that_and_printed(number: float, read: float) -> None:
    lo = Lowering()
    assert decimal(lo, number) == read
    assert list(lo.notes) == [f"{number!r} is read as {read!r}, which it is in single precision"]


@pytest.mark.parametrize(
    "number",
    [0.0, 0.75, 1e-5, 1e-300, 3.0, 1 / 3, 0.10000000149, 1.0000001192092896, 1e300, 7, "x", None],
)
def test_any_other_number_is_itself(number: Any) -> None:
    lo = Lowering()
    assert decimal(lo, number) is number
    assert not lo.notes


def test_what_is_added_is_the_decimal() -> None:
    lo = Lowering()
    x = lo.hold(Shard("x", (4,), (4,), (ZERO,), "float32"))
    lo.expected = [((4,), "float32")]
    add = rule_of("aten.add_.Scalar")
    assert add is not None
    add(lo, x, 9.999999747378752e-06)
    assert float(lo.ops[-1].attrs["other"]) == 1e-5  # type: ignore[arg-type]

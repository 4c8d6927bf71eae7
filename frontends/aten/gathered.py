"""Values that ids bring together: their sum or mean at every place (`scatter_reduce`).

Source: PyTorch's documentation of ``Tensor.scatter_reduce_``.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten.lowering import Const, Lowered, Lowering
from shardproof.frontends.aten.masks import inverse
from shardproof.frontends.aten.rules import lowers, rule_of

ONE = Fraction(1)


@lowers("aten.scatter_reduce.two")
def _reduced(
    lo: Lowering,
    x: Lowered,
    dim: int,
    index: Lowered,
    source: Lowered,
    reduce: str,
    *,
    include_self: bool = True,
) -> Any:
    """Sums and means; what was there is one of the values, or stays where none is brought."""
    if reduce not in ("sum", "mean"):
        raise Unsupported(f"values that ids bring together, by {reduce}")
    add = rule_of("aten.scatter_add.default")
    assert add is not None
    zero = Const(Fraction(0), x.shape, x.dtype)
    total = add(lo, x if include_self else zero, dim, index, source)
    if include_self and reduce == "sum":
        return total
    count = lo.real(add(lo, zero, dim, index, Const(ONE, source.shape, x.dtype)))
    if include_self:
        return lo.div(total, lo.shift(count, ONE))
    more = lo.unary("relu", lo.shift(count, -ONE))
    if reduce == "mean":
        total = lo.div(total, lo.shift(more, ONE))
    return lo.add(total, lo.mul(x, inverse(lo, lo.real(lo.sub(count, more)))))

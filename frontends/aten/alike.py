"""Which values of a body are the same by the operators that make them."""

from __future__ import annotations

from typing import Any

from shardproof.frontends.aten.lowering import Const, Lowering, Real


def alike(lo: Lowering, x: Any, y: Any) -> bool:
    """Whether two values are one: the same value, equal constants, or the same operators of values
    that are so.  Operators of plans draw no random numbers, so those are equal.

    Example: ``1 - (a > b)`` that is computed twice; not ``1 - (a > b)`` and ``b >= a``.
    """
    makers = {n: (op, at) for op in lo.ops for at, n in enumerate(op.outputs)}
    same = dict[tuple[int, int], bool]()

    def one(a: int, b: int) -> bool:
        if a == b or (a, b) in same:
            return a == b or same[a, b]
        same[a, b] = False
        if a in makers and b in makers:
            (p, i), (q, j) = makers[a], makers[b]
            same[a, b] = (
                (i, p.name, p.attrs, p.backward, len(p.inputs))
                == (j, q.name, q.attrs, q.backward, len(q.inputs))
                and lo.values[a].shape == lo.values[b].shape
                and all(one(c, d) for c, d in zip(p.inputs, q.inputs, strict=True))
            )
        return same[a, b]

    if isinstance(x, Const) and isinstance(y, Const):
        return (x.value, x.shape) == (y.value, y.shape)
    if isinstance(x, Real) and isinstance(y, Real):
        return x.shape == y.shape and one(x.number, y.number)
    return False

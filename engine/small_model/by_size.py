"""Whether the size of a dimension along which a tensor does not vary says how to represent it.

By itself it is represented as any other one of its size (`Representatives.constant_dim`).
"""

from __future__ import annotations

from collections.abc import Sequence

from shardproof.engine.claims.claim import Claim
from shardproof.engine.lineage.lineage import BROADCAST
from shardproof.engine.small_model.mixed_radix import Axis, Relation


def misleads(claim: Claim, relations: Sequence[Relation]) -> bool:
    """Whether a dimension along which a tensor does not vary has the size of one of several digits
    that the operator does not take it for, by what it takes for one another (``relations``).

    Example: a constant [6, 6], of which labels [2 x 3] pick from 6 classes: these are no 2 x 3.
    """
    above = dict[Axis, Axis]()
    for one, _, other, _, _ in relations:
        first, second = _of(above, one), _of(above, other)
        if first != second:
            above[second] = first
    split, constant = dict[int, set[Axis]](), list[tuple[int, Axis]]()
    for i, lineage in enumerate((*(x for x in claim.inputs if x is not None), *claim.outputs)):
        for dims in (addend.view.dims for addend in lineage.addends):
            for d, dim in enumerate(dims):
                own = _of(above, (-1 - i, d))
                if any(a.axis == BROADCAST for a in dim):
                    constant.append((lineage.shape[d], own))
                elif sum(a.size > 1 for a in dim) > 1:
                    split.setdefault(lineage.shape[d], set()).add(own)
    return any(split.get(size, {own}) != {own} for size, own in constant if size > 1)


def _of(above: dict[Axis, Axis], axis: Axis) -> Axis:
    while axis in above:
        axis = above[axis]
    return axis

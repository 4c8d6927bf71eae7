"""Integers that are written into a tensor and read again as they were written.

A loop that is differentiated keeps, round by round, the words that it looked up, and the loop of
its derivative reads them: ``dynamic-update-slice`` of ids, then ``dynamic-slice`` of the same box.
What is read is what was written there last, so ids stay ids.  Whatever else reads such a tensor
reads numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardproof.frontends.graphs.graph import Node, PerRank, Shape
from shardproof.frontends.hlo import either, movement
from shardproof.frontends.hlo.items import Either, Ids, Item, Tensor
from shardproof.frontends.hlo.known import Known
from shardproof.frontends.hlo.state import Lowering
from shardproof.frontends.hlo.written import Starts, Written


def update(low: Lowering, node: Node, xs: Sequence[Item]) -> Item | None:
    """A tensor with integers written into a known box; None: another operator, or a box of others.

    Example: ``dynamic-update-slice`` of ids ``s32[1,6]`` at (2, 0) into zeros ``s32[4,6]``.
    """
    if node.target != "dynamic-update-slice" or "starts" not in node.attrs:
        return None
    around, part = xs[0], xs[1]
    of_ids = isinstance(part, Ids | Either) or isinstance(around, Written)
    if not of_ids or not isinstance(part, Ids | Either | Known):
        return None
    if part.shape == low.shape(node):
        return part
    return Written(around, part, tuple(node.attrs["starts"]), low.shape(node))


def last(low: Lowering, node: Node, x: Item) -> Item:
    """What a slice of such a tensor is a slice of: the tensor as it was before writes beside the
    box, and of the box itself what was written there.

    Example: rows [2, 3) after row 2 and then row 3 were written: what was written as row 2.
    """
    if node.target not in ("slice", "dynamic-slice") or not isinstance(x, Written):
        return x
    starts: Starts | None = node.attrs.get("starts")
    if node.target == "slice":
        if any(step != 1 for _, _, step in node.attrs["slice"]):
            return x
        starts = tuple(first for first, _, _ in node.attrs["slice"])
    if starts is None:
        return x
    now: Item = x
    while isinstance(now, Written) and _apart(low, now, starts, low.shape(node)):
        now = now.around
    return now


def read(low: Lowering, node: Node, x: Item) -> Item | None:
    """What a slice of a tensor (that of `last`) gives, where it is just what was written there;
    None: it is another box.

    Example: row 2, of which ids were the last thing that was written: these ids.
    """
    if node.target not in ("slice", "dynamic-slice") or not isinstance(x, Written):
        return None
    starts = node.attrs.get("starts") or tuple(s for s, _, _ in node.attrs.get("slice", ()))
    if starts != x.starts or x.part.shape != low.shape(node):
        return None
    part: Item = x.part
    return part


def plain(low: Lowering, item: Item) -> Item:
    """Such a tensor as the numbers that it is; other items as they are.

    Example: of ids at (2, 0) in zeros ``s32[4,6]``, ``concat`` of zeros, the ids and zeros.
    """
    chain = []
    while isinstance(item, Written) and item.value < 0:
        chain.append(item)
        item = item.around
    if isinstance(item, Written):
        item = Tensor(item.value)
    for write in reversed(chain):
        part = low.tensor(either.number(low, write.part))
        around = either.number(low, item)
        write.value = movement.placed(low, around, part, write.starts, write.shape)
        item = Tensor(write.value)
    return item


def _apart(low: Lowering, write: Written, starts: Starts, sizes: Shape) -> bool:
    """Whether a box has no position that was written, on any rank."""
    own = write.part.shape
    return any(
        all(
            a + n <= b or b + m <= a
            for a, b in zip(_each(low, first), _each(low, other), strict=True)
        )
        for first, n, other, m in zip(starts, sizes, write.starts, own, strict=True)
    )


def _each(low: Lowering, start: int | PerRank) -> Sequence[int]:
    return start.values if isinstance(start, PerRank) else (start,) * low.graph.ranks

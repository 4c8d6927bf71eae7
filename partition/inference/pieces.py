"""Operators on tensors whose parts are different values: region by region.

Places (`engine.lineage.lineage.Place`) divide a tensor into regions in each of which every addend
is all there or not at all.  An elementwise operator is applied in each region to what is there; a
product to each pair of regions that meet; results are put side by side again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise, product
from math import prod
from string import ascii_letters
from typing import NamedTuple

from shardproof.engine.algebra.affine import affine
from shardproof.engine.lineage.cutting import cut_up
from shardproof.engine.lineage.joining import joined
from shardproof.engine.lineage.lineage import Addend, Lineage
from shardproof.engine.lineage.places import MOST_REGIONS, cuts, placed, radix, split, unsplit
from shardproof.engine.lineage.views import Misaligned
from shardproof.partition.inference.alone import known_position

Shape = tuple[int, ...]
#: (start, stop) along every dimension.
Region = tuple[tuple[int, int], ...]
#: Choices of one box of each operand of a product that are looked at; far fewer of them meet.
MOST_CHOICES = 1 << 16


class _Spread(NamedTuple):
    """Terms of tensors of one shape, its dimensions split; ``sizes``: into what, ``bounds``: where
    regions begin and end along each part."""

    addends: tuple[tuple[Addend, ...], ...]
    sizes: tuple[Shape, ...]
    bounds: tuple[tuple[int, ...], ...]


def _split(addend: Addend, sizes: Sequence[Shape]) -> Addend:
    for dim in reversed(range(len(sizes))):
        addend = split(addend, dim, sizes[dim])
    return addend


def _unsplit(addend: Addend, sizes: Sequence[Shape]) -> Addend:
    for dim, parts in enumerate(sizes):
        addend = unsplit(addend, dim, parts)
    return addend


def _clip(addend: Addend, region: Sequence[tuple[int, int]], shape: Shape) -> list[Addend]:
    """What an addend is in a region, (start, stop) along every dimension: one addend, or several
    side by side where blocks in another order are cut elsewhere than between them."""
    for place in addend.places:
        start, stop = region[place.dim]
        apart = place.start >= stop or place.start + place.size <= start
        if apart and place.extent == shape[place.dim]:
            return []
    parts = [addend]
    for dim, (start, stop) in enumerate(region):
        if stop - start < shape[dim]:
            size = stop - start
            parts = [c for t in parts for c in cut_up(t, shape, dim, affine(start), size)]
    return parts


def _region(addends: Sequence[Addend], region: Sequence[tuple[int, int]], shape: Shape) -> Lineage:
    """A tensor in a region. A region of one position along a dimension is of that position alone:
    what is made of it (of a class token) is no entry of what would be made of all positions."""
    size = tuple(stop - start for start, stop in region)
    single = [dim for dim, n in enumerate(size) if n == 1]
    clipped = (c for t in addends for c in _clip(t, region, shape))
    return Lineage(size, tuple(known_position(c, single) for c in clipped))


def _put(x: Lineage, region: Sequence[tuple[int, int]], shape: Shape) -> list[Addend]:
    """The addends of a region as addends of the tensor; ``region`` is of its first dimensions."""
    result = []
    for addend in x.addends:
        for dim, (start, stop) in enumerate(region):
            addend = placed(addend, dim, start, stop - start, shape[dim])
        result.append(addend)
    return result


def _regions(bounds: Sequence[Sequence[int]]) -> list[tuple[tuple[int, int], ...]]:
    if prod(len(b) - 1 for b in bounds) > MOST_REGIONS:
        raise Misaligned
    return list(product(*(list(pairwise(b)) for b in bounds)))


def _spread(xs: Sequence[Lineage]) -> _Spread:
    every = [t for x in xs for t in x.addends]
    shape = xs[0].shape
    sizes = tuple(radix(every, dim, size) for dim, size in enumerate(shape))
    addends = tuple(tuple(_split(t, sizes) for t in x.addends) for x in xs)
    whole = [n for parts in sizes for n in parts]
    flat = [t for x in addends for t in x]
    return _Spread(addends, sizes, tuple(tuple(cuts(flat, d, n)) for d, n in enumerate(whole)))


def each(
    xs: Sequence[Lineage], make: Callable[[Sequence[Lineage]], Lineage], inner: int = 0
) -> Lineage:
    """An operator on tensors of one shape, applied region by region; the result has their
    dimensions but for the last ``inner`` ones, which are not divided, and perhaps others behind.
    Raises `Misaligned` where there are no regions.

    Example: ``exp`` of ``n1[...] in 1[0 +8 of 16] + n2[...] in 1[8 +8 of 16]``, two tensors side by
    side, is ``exp(n1)`` and ``exp(n2)`` side by side.
    """
    outer = len(xs[0].shape) - inner
    if any(p.dim >= outer for x in xs for t in x.addends for p in t.places):
        raise Misaligned
    spread = _spread(xs)
    virtual = tuple(n for parts in spread.sizes for n in parts)
    addends: list[Addend] = []
    behind: Shape = ()
    for region in _regions(spread.bounds):
        lineages = [_region(own, region, virtual) for own in spread.addends]
        made = make(lineages)
        kept = len(virtual) - inner
        behind = made.shape[kept:]
        addends += _put(made, region[:kept], virtual)
    back = [_unsplit(t, spread.sizes[:outer]) for t in joined(addends)]
    return Lineage((*xs[0].shape[:outer], *behind), tuple(joined(back)))


def summed(x: Lineage, make: Callable[[Lineage], Lineage]) -> Lineage:
    """What ``make`` gives of a tensor where addends lie over each other, region by region; nothing
    where there are none.  What lies beside something else is not cut where that is.  Raises
    `Misaligned` where there are no regions.

    Example: queries of the first position beside those of the others, and keys of all positions in
    other columns: the keys are one region.
    """
    spread = _spread([x])
    virtual = tuple(n for parts in spread.sizes for n in parts)
    addends: list[Addend] = []
    for boxes in _apart(_together(spread.addends[0], virtual)):
        own = [t for _, there in boxes for t in there]
        bounds = [sorted({end for box, _ in boxes for end in box[d]}) for d in range(len(virtual))]
        for region in _regions(bounds):
            there = _region(own, region, virtual)
            if there.addends:
                addends += _put(make(there), region, virtual)
    back = [_unsplit(t, spread.sizes) for t in joined(addends)]
    return Lineage(x.shape, tuple(joined(back)))


def _apart(boxes: Mapping[Region, list[Addend]]) -> list[list[tuple[Region, list[Addend]]]]:
    """Boxes in groups of which none meets a box of another one."""
    groups: list[list[tuple[Region, list[Addend]]]] = []
    for one in boxes.items():
        met = [g for g in groups if any(_meet(one[0], box) for box, _ in g)]
        groups = [g for g in groups if g not in met]
        groups.append([one, *(each for g in met for each in g)])
    return groups


def _meet(one: Region, other: Region) -> bool:
    return all(a < d and c < b for (a, b), (c, d) in zip(one, other, strict=True))


def _together(addends: Sequence[Addend], shape: Shape) -> dict[Region, list[Addend]]:
    """Addends by the box in which they are not zero."""
    result: dict[Region, list[Addend]] = {}
    for addend in addends:
        box = [(0, n) for n in shape]
        for place in addend.places:
            if place.extent != shape[place.dim]:
                raise Misaligned
            start, stop = box[place.dim]
            box[place.dim] = max(start, place.start), min(stop, place.start + place.size)
        result.setdefault(tuple(box), []).append(addend)
    return result


def _meeting(
    names: Sequence[str], boxes: Sequence[Region], sizes: Mapping[str, int]
) -> dict[str, tuple[int, int]] | None:
    """Where boxes of several tensors are along every label; None: they do not meet."""
    at = {a: (0, n) for a, n in sizes.items()}
    for own, box in zip(names, boxes, strict=True):
        for a, (start, stop) in zip(own, box, strict=True):
            at[a] = max(at[a][0], start), min(at[a][1], stop)
    return at if all(start < stop for start, stop in at.values()) else None


def multiplied(
    names: Sequence[str],
    output: str,
    xs: Sequence[Lineage],
    sizes: Mapping[str, int],
    make: Callable[[str, Sequence[Lineage], Mapping[str, int]], Lineage],
) -> Lineage:
    """A sum of products (`engine.ops.primitives.Interpreter.einsum`): of every choice of one box of
    each operand, where these meet; the addends of the result may overlap.  Raises `Misaligned`
    where addends are in no boxes.

    Example: that tensor times a weight of 16 inputs is the product of ``n1`` with the first eight
    inputs plus that of ``n2`` with the others.
    """
    parts: dict[str, Shape] = {}
    for name, size in sizes.items():
        operands = [
            t._replace(
                places=tuple(p._replace(dim=0) for p in t.places if p.dim == own.index(name))
            )
            for own, x in zip(names, xs, strict=True)
            if name in own
            for t in x.addends
        ]
        parts[name] = radix(operands, 0, size)
    letters = iter(ascii_letters)
    try:
        spelled = {n: "".join(next(letters) for _ in parts_of) for n, parts_of in parts.items()}
    except StopIteration:
        raise Misaligned from None
    whole = {a: n for name, own in spelled.items() for a, n in zip(own, parts[name], strict=True)}
    left = ["".join(spelled[n] for n in own) for own in names]
    right = "".join(spelled[n] for n in output)
    spread = [
        [_split(t, [parts[n] for n in own]) for t in x.addends]
        for own, x in zip(names, xs, strict=True)
    ]
    shapes = [tuple(whole[a] for a in own) for own in left]
    groups = [_together(own, shape) for own, shape in zip(spread, shapes, strict=True)]
    if prod(len(own) for own in groups) > MOST_CHOICES:
        raise Misaligned
    choices = ((boxes, _meeting(left, boxes, whole)) for boxes in product(*groups))
    meeting = [(boxes, at) for boxes, at in choices if at is not None]
    if len(meeting) > MOST_REGIONS:
        raise Misaligned
    parts_of: list[Addend] = []
    for boxes, at in meeting:
        lineages = [
            _region(groups[n][box], tuple(at[a] for a in own), shapes[n])
            for n, (own, box) in enumerate(zip(left, boxes, strict=True))
        ]
        if all(x.addends for x in lineages):
            each_size = {a: stop - start for a, (start, stop) in at.items()}
            made = make(",".join(left) + "->" + right, lineages, each_size)
            parts_of += _put(made, [at[a] for a in right], tuple(whole[a] for a in right))
    result = tuple(sizes[n] for n in output)
    return Lineage(result, tuple(_unsplit(t, [parts[n] for n in output]) for t in parts_of))

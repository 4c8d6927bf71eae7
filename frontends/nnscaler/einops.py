"""``einops.rearrange``, ``repeat`` and ``reduce`` by their pattern: the declared ``rearrange``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from typing import Final

from shardproof.frontends.nnscaler.calls import Operands, Refused, shown
from shardproof.frontends.nnscaler.records import Constant, Tensor

_TOKENS: Final = re.compile(r"\(|\)|\.\.\.|…|[A-Za-z_]\w*|\d+")
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
#: Axes on one side of a pattern: a letter is left for each dimension without one.
_MOST_AXES: Final = 12
#: Functions that have a meaning here.
PATTERNED: Final = ("rearrange", "repeat", "reduce")

Groups = list[list[str]]


def lower(
    name: str, inputs: tuple[Constant, ...], kwargs: Mapping[str, Constant]
) -> tuple[str, Operands]:
    """A call of an einops function; raises `Refused` naming what is not understood.

    Example: ``rearrange(x, "b (h d) -> b h d", h=3)`` of x [2, 12] splits it into (2, 3, 4).
    """
    given = dict(zip(("tensor", "pattern", "reduction"), inputs, strict=False))
    if name != "reduce" and len(inputs) > 2:
        raise Refused(f"{len(inputs)} operands")
    axes = {**{k: v for k, v in kwargs.items() if k not in ("pattern", "reduction", "tensor")}}
    given.update({k: v for k, v in kwargs.items() if k not in axes})
    x, pattern = given.get("tensor"), given.get("pattern")
    if not isinstance(x, Tensor) or not isinstance(pattern, str) or pattern.count("->") != 1:
        raise Refused(f"pattern {shown(pattern)}")
    sizes: dict[str, int] = {}
    for key, value in axes.items():
        if type(value) is not int or value < 1:
            raise Refused(f"{key} {shown(value)}")
        sizes[key] = value
    left, right = (_side(text) for text in pattern.split("->"))
    left, right = _unfold(left, right, len(x.shape))
    split = _sizes(x.shape, left, sizes)
    return _written(name, x, left, right, split, sizes, given.get("reduction"))


def _side(text: str) -> Groups:
    """The dimensions of one side, each the names of its parts; ``1`` is no part."""
    if _TOKENS.sub("", text).strip():
        raise Refused(f"pattern {shown(text)}")
    groups: Groups = []
    inside = False
    for token in _TOKENS.findall(text):
        if token == "(":
            if inside:
                raise Refused(f"pattern {shown(text)}")
            inside = True
            groups.append([])
        elif token == ")":
            if not inside:
                raise Refused(f"pattern {shown(text)}")
            inside = False
        elif inside:
            groups[-1].append(token)
        else:
            groups.append([token])
    axes = [axis for group in groups for axis in group]
    if inside or len(axes) > _MOST_AXES or any(len(a) > 9 for a in axes if a.isdigit()):
        raise Refused(f"pattern {shown(text)}")
    return [[axis for axis in group if axis != "1"] for group in groups]


def _unfold(left: Groups, right: Groups, rank: int) -> tuple[Groups, Groups]:
    """The dimensions that an ellipsis stands for, by names of their own."""
    dots = ("...", "…")
    if any(axis in dots for group in left if len(group) > 1 for axis in group):
        raise Refused("an ellipsis in parentheses")
    places = [i for i, group in enumerate(left) if group and group[0] in dots]
    if len(places) > 1:
        raise Refused("two ellipses")
    names = [f".{i}" for i in range(rank - len(left) + 1)] if places else []
    if places:
        left = [*left[: places[0]], *([n] for n in names), *left[places[0] + 1 :]]
    groups: Groups = []
    for group in right:
        if group and len(group) == 1 and group[0] in dots:
            groups += [[n] for n in names]
        else:
            groups.append([n for axis in group for n in (names if axis in dots else [axis])])
    if len(left) != rank:
        raise Refused(f"{len(left)} dimensions for a tensor of {rank}")
    return left, groups


def _sizes(shape: tuple[int, ...], left: Groups, sizes: dict[str, int]) -> list[int]:
    """The size of every part of the left side, of which ``sizes`` has some already."""
    split: list[int] = []
    for size, group in zip(shape, left, strict=True):
        unknown = [axis for axis in group if axis not in sizes]
        known = prod(sizes[axis] for axis in group if axis in sizes)
        if len(unknown) > 1 or size % known or (not unknown and known != size):
            raise Refused(f"a dimension of {size} as ({' '.join(group)})")
        for axis in unknown:
            sizes[axis] = size // known
        split += [sizes[axis] for axis in group] or [1]
    return split


def _written(
    name: str,
    x: Tensor,
    left: Groups,
    right: Groups,
    split: list[int],
    sizes: Mapping[str, int],
    reduction: Constant,
) -> tuple[str, Operands]:
    old, new = [a for group in left for a in group], [a for group in right for a in group]
    gone, added = [a for a in old if a not in new], [a for a in new if a not in old]
    if len(set(old)) < len(old) or len(set(new)) < len(new):
        raise Refused("an axis twice")
    if (gone and name != "reduce") or (added and name != "repeat"):
        raise Refused(f"axis {(gone or added)[0]} on one side")
    unused = sorted(set(sizes) - {*old, *new})
    if unused:
        raise Refused(unused[0])
    if name == "reduce" and reduction not in ("sum", "mean"):
        raise Refused(f"reduction {shown(reduction)}")
    letters = iter(_LETTERS)
    label: dict[str, str] = {}
    # A dimension of one position has a part without a name; the sum over it is it.
    source = "".join(
        "".join(label.setdefault(a, next(letters)) for a in group) if group else next(letters)
        for group in left
    )
    counts = [a if a in sizes else "" for a in added]
    if "" in counts and not all(a in sizes or a.isdigit() for a in added):
        raise Refused(f"no size for axis {added[counts.index('')]}")
    fresh: list[int] = []
    target, merge = "", []
    for group in right:
        for axis in group:
            if axis not in label:
                label[axis] = next(letters)
                fresh.append(sizes[axis] if axis in sizes else int(axis))
            target += label[axis]
        if not group:
            target += next(letters)
            fresh.append(1)
        merge.append(max(1, len(group)))
    operands: Operands = {
        "input": x, "groups": tuple(max(1, len(group)) for group in left), "split": tuple(split),
        "equation": f"{source}->{target}", "sizes": tuple(fresh), "merge": tuple(merge),
    }  # fmt: skip
    count = prod(sizes[a] for a in gone)
    if name == "reduce" and reduction == "mean" and count != 1:
        operands["divisor"] = count
    return "rearrange", operands

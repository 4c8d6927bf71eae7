"""All-to-all as XLA writes it, put together again.

XLA's array form splits and joins one dimension; JAX's ``all_to_all(split, concat)`` becomes that,
then a reshape that takes the members out as a dimension, a transpose that puts it before the
dimension to be joined, and a reshape that merges both.  `Exchanged` is what is there after the
first steps; the last one makes one ``all_to_all`` of them.  Anything else that is done with it
makes the plain form of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardproof.frontends.graphs.graph import Groups, Shape
from shardproof.frontends.graphs.recorder import GROUP, Recorder


@dataclass(frozen=True, slots=True)
class Exchanged:
    """An all-to-all that is not put together yet: ``value`` with dimension ``split`` cut among the
    members of each group.

    Example: ``Exchanged(0, 0, ((0, 1, 2, 3),), (8, 6))`` is ``f32[8,6]`` cut into four along
    dimension 0; after a reshape to ``[4, 2, 6]`` its order is (-1, 0, 1).

    ``order``: None before the members are a dimension (``shape`` is the value's); then, for every
    dimension of ``shape``, which one of the value it is, -1 being the members. The dimension that
    is cut is none of them where each member has one position of it.
    """

    value: int
    split: int
    groups: Groups
    shape: Shape
    order: tuple[int, ...] | None = None

    @property
    def members(self) -> int:
        """How many devices each group has."""
        return len(self.groups[0])


def reshaped(recorder: Recorder, x: Exchanged, shape: Shape) -> Exchanged | int | None:
    """An all-to-all after a reshape: with the members as a dimension, or put together; None: the
    reshape does something else.

    Example: cut in four along dimension 0, ``f32[8,6]`` as ``[4, 2, 6]`` has the members first;
    that transposed to ``[2, 4, 6]`` and then as ``[2, 24]`` is ``all_to_all`` with ``split_dim=0``
    and ``concat_dim=1``.
    """
    own = recorder.shape(x.value)
    if x.order is None:
        d, n = x.split, x.members
        if shape == (*own[:d], n, own[d] // n, *own[d + 1 :]):
            order = (*range(d), -1, *range(d, len(own)))
            return Exchanged(x.value, x.split, x.groups, shape, order)
        single = _single(recorder, x)
        return None if single is None else reshaped(recorder, single, shape)
    assert x.order is not None
    at = x.order.index(-1)
    others = x.order[:at] + x.order[at + 1 :]
    kept = tuple(d for d in range(len(own)) if d in others)
    if others != kept or at == len(others):
        return None
    merged = (*x.shape[:at], x.shape[at] * x.shape[at + 1], *x.shape[at + 2 :])
    dim = others[at]
    if shape != merged or dim == x.split:
        return None
    attrs = {GROUP: x.groups, "split_dim": x.split, "concat_dim": dim}
    sizes = [n // x.members if d == x.split else n for d, n in enumerate(own)]
    sizes[dim] *= x.members
    dtype = recorder.values[x.value].dtype
    joined = recorder.append("all_to_all", [x.value], tuple(sizes), dtype, attrs)
    if tuple(sizes) == shape:
        return joined
    return recorder.op("view", joined, size=shape, dtype=dtype)


def _single(recorder: Recorder, x: Exchanged) -> Exchanged | None:
    """An all-to-all of one position for each member, with these positions as the members; None:
    each has several."""
    own, d = recorder.shape(x.value), x.split
    if x.order is not None or own[d] != x.members:
        return None
    order = (*range(d), -1, *range(d + 1, len(own)))
    return Exchanged(x.value, d, x.groups, own, order)


def transposed(recorder: Recorder, x: Exchanged, dims: tuple[int, ...]) -> Exchanged | None:
    """An all-to-all after a transpose; None: the members are no dimension yet.

    Example: shape ``[4, 2, 6]`` in the order (-1, 0, 1), transposed by (1, 0, 2), is ``[2, 4, 6]``
    in the order (0, -1, 1).
    """
    single = x if x.order is not None else _single(recorder, x)
    if single is None or single.order is None:
        return None
    return Exchanged(
        x.value,
        x.split,
        x.groups,
        tuple(x.shape[d] for d in dims),
        tuple(single.order[d] for d in dims),
    )


def plain(recorder: Recorder, x: Exchanged) -> int:
    """An all-to-all as an operator of its own, whatever follows: the members are exchanged for a
    dimension of one position.

    Example: ``f32[8,6]`` among four is viewed as ``[1, 4, 2, 6]``, exchanged to ``[4, 1, 2, 6]``
    and viewed as ``[8, 6]`` again.
    """
    own, d, n = recorder.shape(x.value), x.split, x.members
    dtype = recorder.values[x.value].dtype
    before, after = own[:d], own[d + 1 :]
    wide = recorder.op("view", x.value, size=(*before, 1, n, own[d] // n, *after), dtype=dtype)
    attrs = {GROUP: x.groups, "split_dim": d + 1, "concat_dim": d}
    joined = (*before, n, 1, own[d] // n, *after)
    result = recorder.append("all_to_all", [wide], joined, dtype, attrs)
    if x.order is None or d not in x.order:
        result = recorder.op("view", result, size=own, dtype=dtype)
        dims = tuple(d if k == -1 else k for k in x.order or range(len(own)))
        if dims == tuple(range(len(own))):
            return result
        return recorder.op("permute", result, dims=dims, dtype=dtype)
    result = recorder.op("view", result, size=(*before, n, own[d] // n, *after), dtype=dtype)
    natural = (*range(d), -1, *range(d, len(own)))
    if x.order == natural:
        return result
    dims = tuple(natural.index(k) for k in x.order)
    return recorder.op("permute", result, dims=dims, dtype=dtype)

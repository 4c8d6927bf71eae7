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
    dimension of ``shape``, which one of the value it is, -1 being the members.
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
        if shape != (*own[:d], n, own[d] // n, *own[d + 1 :]):
            return None
        order = (*range(d), -1, *range(d, len(own)))
        return Exchanged(x.value, x.split, x.groups, shape, order)
    at = x.order.index(-1)
    if x.order[:at] + x.order[at + 1 :] != tuple(range(len(own))) or at == len(own):
        return None
    merged = (*x.shape[:at], x.shape[at] * x.shape[at + 1], *x.shape[at + 2 :])
    if shape != merged or at == x.split:
        return None
    attrs = {GROUP: x.groups, "split_dim": x.split, "concat_dim": at}
    return recorder.append("all_to_all", [x.value], shape, recorder.values[x.value].dtype, attrs)


def transposed(x: Exchanged, dims: tuple[int, ...]) -> Exchanged | None:
    """An all-to-all after a transpose; None: the members are no dimension yet.

    Example: shape ``[4, 2, 6]`` in the order (-1, 0, 1), transposed by (1, 0, 2), is ``[2, 4, 6]``
    in the order (0, -1, 1).
    """
    if x.order is None:
        return None
    return Exchanged(
        x.value,
        x.split,
        x.groups,
        tuple(x.shape[d] for d in dims),
        tuple(x.order[d] for d in dims),
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
    if x.order is None:
        return recorder.op("view", result, size=own, dtype=dtype)
    result = recorder.op("view", result, size=(*before, n, own[d] // n, *after), dtype=dtype)
    natural = (*range(d), -1, *range(d, len(own)))
    if x.order == natural:
        return result
    dims = tuple(natural.index(k) for k in x.order)
    return recorder.op("permute", result, dims=dims, dtype=dtype)

"""Known positions that nothing else is read at: values alone, not members of a family of positions.

What is made of one position of an axis is usually one entry of what is made of all of them: one
head of eight, one expert of four.  A table of which only one row is ever read (token types, where
all tokens are of type 0) has no such family, and what is made of that row is no entry of anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.lineage.floating import is_floating
from shardproof.engine.lineage.lineage import Addend, Dim, Lineage, StridedInterval, View
from shardproof.engine.plan.ir import Attr
from shardproof.engine.schedule.instances import Unrolled


def known_positions(unrolled: Unrolled) -> dict[int, int]:
    """The results of slices of one known position of an input, of which no other position is sliced
    out along that dimension: each with the dimension.

    Example: of ``types[0:1]`` alone the result's number with 0; of ``types[0:1]`` and
    ``types[1:2]`` neither.
    """
    inputs = {v for i in unrolled.instances if i.kind == "shard" for v in i.outputs}
    made: dict[tuple[int, int], dict[int, int]] = {}
    others: set[tuple[int, int]] = set()
    for instance in unrolled.instances:
        if instance.name != "slice" or instance.kind != "op" or instance.backward:
            continue
        given, result = instance.inputs[0], instance.outputs[0]
        if given not in inputs:
            continue
        dim, start, size = _sliced(instance.attrs)
        if size == 1 and not start.terms:
            made.setdefault((given, dim), {})[result] = start.const
        else:
            others.add((given, dim))
    return {
        result: dim
        for (given, dim), starts in made.items()
        if (given, dim) not in others and len(set(starts.values())) == 1
        for result in starts
    }


def _sliced(attrs: Mapping[str, Attr]) -> tuple[int, Affine, int]:
    dim, start, size = attrs["dim"], attrs["start"], attrs["size"]
    assert isinstance(dim, int)
    assert isinstance(start, int | Affine)
    assert isinstance(size, int)
    return dim, start if isinstance(start, Affine) else Affine(start), size


def at_known_position(x: Lineage, dim: int) -> Lineage:
    """A tensor of one position along a dimension, which is in no dimension any more.

    Example: ``n3[a0[0 +1 of 2], a1[16]]`` is ``n3[1, a1[16]] at a0[0 +1 of 2]``.
    """
    return Lineage(x.shape, tuple(known_position(t, [dim]) for t in x.addends))


def known_position(addend: Addend, dims: Sequence[int]) -> Addend:
    """The same view, without dimensions for the known positions of one of many in ``dims``, each of
    size 1.

    Example: of ``n3[a0[0 +1 of 2], a1[16]]`` and its first dimension it is ``n3[1, a1[16]] at
    a0[0 +1 of 2]``; ``n3[a0[<tp> +1 of 2], a1[16]]``, which is a rank's, stays.
    """
    result: list[Dim] = list(addend.view.dims)
    out: list[StridedInterval] = []
    for dim in dims:
        if any(a.start.terms for a in result[dim]):
            continue
        out += filter(is_floating, result[dim])
        result[dim] = ()
    return addend._replace(view=View(tuple(result), (*out, *addend.view.fixed))) if out else addend

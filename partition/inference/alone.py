"""Known positions by themselves: values alone, not members of a family of positions.

What is made of one position of an axis is usually one entry of what is made of all of them: one
head of eight, one expert of four.  A class token beside patches has no such family: what is made of
it is no entry of anything.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardproof.engine.lineage.floating import is_floating
from shardproof.engine.lineage.lineage import Addend, Dim, StridedInterval, View


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

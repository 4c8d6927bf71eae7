"""Dynamic slices and updates that begin where data says."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from shardproof.engine.errors import Unsupported
from shardproof.frontends.graphs.graph import Node
from shardproof.frontends.hlo.indices import reshaped
from shardproof.frontends.hlo.items import Ids, Item, Tensor
from shardproof.frontends.hlo.known import Known
from shardproof.frontends.hlo.lookups import clamped, gathered
from shardproof.frontends.hlo.scatters import writers
from shardproof.frontends.hlo.state import Lowering


def dynamic(low: Lowering, node: Node, xs: Sequence[Item], first: int) -> tuple[int, Ids]:
    """Where a dynamic slice or update of one position begins: the dimension in which data says so,
    and the scalar id of the position. Raises `Unsupported` unless it begins at 0 in all other
    dimensions.

    Example: of ``dynamic-slice(x, i, 0)`` with an id ``i``, dimension 0 and ``i``; two ids are
    refused.
    """
    starts = xs[first:]
    moving = [d for d, x in enumerate(starts) if not isinstance(x, Known)]
    still = [x.number() for x in starts if isinstance(x, Known)]
    if len(moving) != 1 or any(still):
        raise Unsupported("starts that depend on data")
    chosen = starts[moving[0]]
    if not isinstance(chosen, Ids):
        raise Unsupported("starts that depend on data")
    return moving[0], chosen


def dynamic_slice(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """A dynamic slice of one row, whose number is an id.

    Example: ``dynamic-slice(x, i, 0)`` of ``f32[5,6]`` as ``[1, 6]``: the ``onehot`` of ``i`` and
    ``einsum`` by ``v,va->a``; as ``[2, 6]`` it is refused.
    """
    dim, chosen = dynamic(low, node, xs, 1)
    shape = low.recorder.shape(low.tensor(xs[0]))
    whole = tuple(1 if d == dim else n for d, n in enumerate(shape))
    if low.shape(node) != whole:
        raise Unsupported("a slice of several positions that begins where data says")
    attrs = {
        "offset_dims": tuple(range(len(shape) - 1)),
        "collapsed_slice_dims": (dim,),
        "start_index_map": (dim,),
        "index_vector_dim": 0,
        "slice_sizes": whole,
    }
    rest = tuple(n for d, n in enumerate(shape) if d != dim)
    rows = gathered(low, attrs, low.tensor(xs[0]), chosen, (), rest)
    row = reshaped(rows, whole)
    if row is None:
        raise Unsupported("a slice of one position that begins where data says")
    return row


def dynamic_update(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """A dynamic update of one row, whose number is an id (clamped).

    Example: ``f32[1,6]`` at row ``i`` of ``x = f32[5,6]`` is ``h * u + x * (1 - h)`` where ``h`` is
    the one-hot of ``i`` along the rows.
    """
    dim, chosen = dynamic(low, node, xs, 2)
    shape, part = low.shape(node), low.tensor(xs[1])
    if low.recorder.shape(part) != tuple(1 if d == dim else n for d, n in enumerate(shape)):
        raise Unsupported("an update of several positions that begins where data says")
    functions = clamped(chosen, shape[dim])
    onehot = low.values.onehot(
        chosen.origin,
        writers(low, Ids(chosen.origin, chosen.axes, chosen.shape, functions), shape[dim]),
        shape[dim],
    )
    line = low.values.view(onehot, (shape[dim],))
    hit = low.values.broadcast(line, (dim,), shape)
    wide = low.op("expand", part, size=shape).value
    written = low.op("mul", hit, wide).value
    if isinstance(xs[0], Known) and xs[0].number() == 0:
        return Tensor(written)
    missed = low.op("add", low.op("mul", hit, other=Fraction(-1)).value, other=Fraction(1)).value
    return low.op("add", low.op("mul", low.tensor(xs[0]), missed).value, written)

"""The largest scores of a vocabulary that ranks divide, and where they are.

Each rank chooses the largest of its own scores and says where they are among all; both are
gathered, and of these the largest are chosen (greedy decoding, ``top_k`` of gathered ``top_k``, and
what XLA makes of an ``argmax`` over a dimension that is divided)::

    value, place = scores.max(-1), scores.argmax(-1) + axis_index("tp") * n
    values, places = all_gather(value, "tp"), all_gather(place, "tp")
    word = take_along_axis(places, values.argmax(0)[None], 0)[0]

The largest of the ranks' largest are those of all scores, and where ranks have consecutive scores
in the order of the group, they are at these places: of equal scores ``argmax`` and ``top_k`` take
the first one on a rank and of the ranks, so that of all.  They are read as the choice from the
gathered scores.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from shardproof.frontends.builder import piecewise
from shardproof.frontends.graphs.graph import Groups, Node
from shardproof.frontends.graphs.recorder import GROUP, Recorded
from shardproof.frontends.hlo.items import Ids, Item, per_rank
from shardproof.frontends.hlo.state import Lowering, Pick
from shardproof.frontends.hlo.written import Spots


class OfAll(NamedTuple):
    """The largest scores of a group, and where they are; ``pick``: what a rank chose of its own.

    Example: of two ranks with eight scores in each of four rows, values of shape (4, 1).
    """

    values: int
    places: int
    pick: Pick


def chosen(low: Lowering, x: int, count: int, dim: int, largest: bool) -> tuple[int, int]:
    """The largest (smallest) entries along a dimension, and where they are.

    Example: the two largest of ``f32[4,8]`` along dimension 1 are two values of shape (4, 2).
    """
    key = ("chosen", x, count, dim, largest)
    known = low.recorder.known((*key, 0)), low.recorder.known((*key, 1))
    if known[0] is not None and known[1] is not None:
        return known[0], known[1]
    values, places = low.recorder.several(
        "topk", x, dtypes=("float32", "int64"), topk=count, dim=dim, largest=largest
    )
    low.distinct[places] = dim
    low.picks[values] = low.picks[places] = Pick(x, count, dim, largest, values, places)
    return low.recorder.once((*key, 0), values), low.recorder.once((*key, 1), places)


def _maker(low: Lowering, value: int) -> Recorded | None:
    """The operator of the body that a value is the result of; None for an input."""
    return next((op for op in reversed(low.recorder.ops) if value in op.outputs), None)


def _base(low: Lowering, value: int) -> int:
    """What a value is a view of."""
    op = _maker(low, value)
    while op is not None and op.name == "view":
        value = op.inputs[0]
        op = _maker(low, value)
    return value


def picked(low: Lowering, ids: Ids) -> Pick | None:
    """The choice whose places ids are, in their order, as they are on every rank; None: these are
    others.

    Example: of the places of ``argmax``, that choice; of these plus 8 None.
    """
    (count, *more) = {(f[0].low, f[-1].high) for f in ids.functions}
    plain = not more and all(f == piecewise.identity(*count) for f in ids.functions)
    return _in_order(low, ids) if plain else None


def _in_order(low: Lowering, ids: Ids) -> Pick | None:
    shape = low.recorder.shape(ids.origin)
    pick = low.picks.get(_base(low, ids.origin))
    in_order = [a for a in ids.axes if a >= 0] == [a for a, n in enumerate(shape) if n != 1]
    places = pick is not None and pick.places == _base(low, ids.origin)
    return pick if in_order and places and prod(ids.shape) == prod(shape) else None


def spots(low: Lowering, x: Item, node: Node, dim: int) -> Spots | None:
    """Places of ranks' own largest scores, among those of their group, that are gathered; None:
    something else is.

    Example: of ``argmax(scores) + 8 * partition-id`` of eight scores on each rank, `Spots`.
    """
    pick = _in_order(low, x) if isinstance(x, Ids) else None
    if pick is None or not isinstance(x, Ids):
        return None
    count = low.recorder.shape(pick.scores)[pick.dim]
    functions = per_rank(x.functions, low.graph.ranks)
    first = piecewise.identity(0, count)
    for group in node.groups:
        for place, rank in enumerate(group):
            start = piecewise.constant(first, place * count)
            if functions[rank] != piecewise.combine("add", first, start):
                return None
    return Spots(x, dim, node.groups, low.shape(node))


def largest(low: Lowering, x: int, of_ranks: Pick, places: Spots | None = None) -> OfAll | None:
    """What the largest of the ranks' largest scores, gathered as ``x``, are of all scores;
    ``of_ranks``: what is chosen of them; ``places``: those that are gathered beside them.  None:
    these are no such scores.

    Example: see above.
    """
    op = _maker(low, x)
    if op is None or op.name != "all_gather":
        return None
    (given,), dim, groups = op.inputs, op.attrs["dim"], op.attrs[GROUP]
    pick = _pick(low, given, places)
    if pick is None:
        return None
    if (of_ranks.dim, of_ranks.largest) != (dim, pick.largest):
        return None
    size = low.recorder.shape(pick.scores)[pick.dim]
    # One of each row is in the order of rows, in whatever shape; several are where they were.
    one = pick.most == of_ranks.most == 1 == low.recorder.shape(given)[dim] and places is not None
    several = given == pick.values and pick.dim == dim
    if not (one or several) or pick.most < min(of_ranks.most, size):
        return None
    if places is not None and not _beside(low, places, pick, dim, groups):
        return None
    return _of_all(low, pick, of_ranks.most, groups)


def _pick(low: Lowering, value: int, places: Spots | None) -> Pick | None:
    """What choice gave a value; where it is a maximum beside places, the choice of these."""
    base = _base(low, value)
    pick, op = low.picks.get(base), _maker(low, base)
    if pick is not None or places is None or op is None or op.name != "amax":
        return pick if pick is not None and pick.values == base else None
    own = _in_order(low, places.ids)
    alike = own is not None and own.scores == op.inputs[0] and (own.dim,) == tuple(op.attrs["dim"])
    return own if own is not None and alike and own.largest and own.most == 1 else None


def _beside(low: Lowering, places: Spots, pick: Pick, dim: int, groups: Groups) -> bool:
    """Whether places are those of a choice, and were gathered as its values were."""
    own = _in_order(low, places.ids)
    return own == pick and (places.dim, places.groups) == (dim, groups)


def _of_all(low: Lowering, pick: Pick, count: int, groups: Groups) -> OfAll:
    """The choice of so many of the gathered scores."""
    key = ("scores of all", pick.scores, pick.dim, groups)
    value = low.recorder.known(key)
    if value is None:
        shape = list(low.recorder.shape(pick.scores))
        shape[pick.dim] *= len(groups[0])
        attrs = {GROUP: groups, "dim": pick.dim}
        value = low.recorder.append("all_gather", [pick.scores], tuple(shape), "float32", attrs)
        low.recorder.once(key, value)
    values, places = chosen(low, value, count, pick.dim, pick.largest)
    return OfAll(values, places, pick)

"""What members of a process group have after a collective, as `torch.distributed` does it.

Written from that semantics alone, on purpose: the rest of the project has a table of collectives of
its own, and tests hold the two against each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Final, TypeVar

from engine.affine import Affine
from engine.errors import ShapeMismatch, Unsupported
from engine.ir import Attr, Op
from engine.reading import Reading

T = TypeVar("T")

#: The attributes that a communication has, beside those of `_OF_RANKS`.
ATTRIBUTES: Final[Mapping[str, frozenset[str]]] = {
    "all_reduce": frozenset({"op"}),
    "all_gather": frozenset({"dim"}),
    "reduce_scatter": frozenset({"op", "dim"}),
    "all_to_all": frozenset({"split_dim", "concat_dim"}),
    "broadcast": frozenset({"root"}),
    "reduce": frozenset({"op", "root"}),
    "send": frozenset({"peer", "self"}),
    "recv": frozenset({"peer", "self"}),
    "chunk": frozenset({"dim"}),
    "load_batch": frozenset(),
}
COLLECTIVES: Final = frozenset(ATTRIBUTES) - {"send", "recv", "chunk", "load_batch"}
#: Who takes part and in which place, and what the plan records about the result.
_OF_RANKS: Final = frozenset({"group", "position", "claimed"})


class Stuck(Exception):
    """The program contradicts itself: says how."""


def check(op: Op) -> None:
    """Raise `Stuck` unless a communication has the operands and the attributes that it can have."""
    strange = op.attrs.keys() - ATTRIBUTES[op.name] - _OF_RANKS
    if strange:
        raise Stuck(f"{op.name} has the attribute {min(strange)}, which means nothing there")
    given = {"load_batch": (0,), "recv": (0,), "broadcast": (0, 1)}.get(op.name, (1,))
    if len(op.inputs) not in given or op.backward:
        raise Stuck(f"{op.name} has {len(op.inputs)} operands")


def exchanged(
    reading: Reading[T], ranks: Sequence[int], members: Sequence[tuple[Op, T | None]]
) -> list[list[T]]:
    """The outputs of every member, in the order of ``ranks``."""
    op = members[0][0]
    if len({(o.name, _kind(o.attrs)) for o, _ in members}) > 1:
        raise Stuck(f"ranks {list(ranks)} join in different collectives")
    given = [x for _, x in members if x is not None]
    if op.name in ("broadcast", "reduce"):
        return _rooted(reading, ranks, members, given)
    if len(given) < len(members):
        raise Stuck(f"ranks {list(ranks)}: {op.name} without an input")
    count = len(members)
    if op.name == "all_gather":
        places = [o.attrs.get("position") for o, _ in members]
        order = sorted(range(count), key=lambda i: _place(places, i))
        joined = reading.concat([given[i] for i in order], _dim(reading, op, "dim", given[0]))
        return [[joined]] * count
    shapes = [tuple(map(int, reading.shape(x))) for x in given]
    if len(set(shapes)) > 1:
        raise ShapeMismatch(f"{op.name} of shapes {shapes}")
    if op.name == "all_reduce":
        return [[_reduced(reading, op, given)]] * count
    if op.name == "reduce_scatter":
        total, dim = _reduced(reading, op, given), _dim(reading, op, "dim", given[0])
        return [[_part(reading, total, dim, i, count)] for i in range(count)]
    split = _dim(reading, op, "split_dim", given[0])
    into = _dim(reading, op, "concat_dim", given[0])
    return [
        [reading.concat([_part(reading, x, split, i, count) for x in given], into)]
        for i in range(count)
    ]


def _place(places: Sequence[Attr], i: int) -> int:
    known = [p for p in places if isinstance(p, int)]
    return known[i] if len(known) == len(places) else i


def _rooted(
    reading: Reading[T],
    ranks: Sequence[int],
    members: Sequence[tuple[Op, T | None]],
    given: Sequence[T],
) -> list[list[T]]:
    """One rank gives to all, or takes from all: the one that the attribute names, if it does."""
    op = members[0][0]
    gives = op.name == "broadcast"
    roots = [i for i, (o, _) in enumerate(members) if (o.inputs if gives else o.outputs)]
    if len(roots) != 1:
        raise Stuck(f"ranks {list(ranks)}: {op.name} with {len(roots)} roots")
    if gives:
        return [[given[0]] * len(o.outputs) for o, _ in members]
    return [[_reduced(reading, op, given)] if i == roots[0] else [] for i in range(len(members))]


def _kind(attrs: Mapping[str, Attr]) -> str:
    return str(sorted((k, str(v)) for k, v in attrs.items() if k not in _OF_RANKS))


def _dim(reading: Reading[T], op: Op, key: str, x: T) -> int:
    dim, rank = op.attrs.get(key), len(reading.shape(x))
    if isinstance(dim, bool) or not isinstance(dim, int) or not -rank <= dim < rank:
        raise ShapeMismatch(f"{key} {dim} of a tensor of {rank} dimensions")
    return dim % rank


def _reduced(reading: Reading[T], op: Op, given: Sequence[T]) -> T:
    kind = op.attrs.get("op", "sum")
    if kind == "sum":
        return reading.combine(given, [Fraction(1)] * len(given), Fraction(0))
    if kind != "max":
        raise Unsupported(f"{op.name} with {kind}")
    stacked = [reading.reshape(x, (1, *reading.shape(x))) for x in given]
    return reading.amax(reading.concat(stacked, 0), 0)


def _part(reading: Reading[T], x: T, dim: int, position: int, count: int) -> T:
    size, rest = divmod(int(reading.shape(x)[dim]), count)
    if rest:
        raise ShapeMismatch(f"{size * count + rest} positions divided among {count} ranks")
    return reading.slice(x, dim, Affine(position * size), size)


def chunked(reading: Reading[T], op: Op, x: T, position: int, count: int) -> T:
    """What `torch.chunk` gives the member at this position: the last ones may have less."""
    dim = _dim(reading, op, "dim", x)
    whole = int(reading.shape(x)[dim])
    step = -(-whole // count)
    start = min(position * step, whole)
    return reading.slice(x, dim, Affine(start), min(step, whole - start))

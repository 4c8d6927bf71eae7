"""What members of a process group have after a collective, as `torch.distributed` does it.

Written from that semantics alone, on purpose: the rest of the project has a table of collectives of
its own, and tests hold the two against each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Final, TypeVar

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.engine.ops.primitives import Interpreter
from shardproof.engine.plan.ir import Attr, Op

T = TypeVar("T")

#: Collectives, and what else is no single operator: the attributes that this file reads.
COLLECTIVES: Final[Mapping[str, frozenset[str]]] = {
    "all_reduce": frozenset({"group", "op"}),
    "reduce": frozenset({"group", "op", "root"}),
    "broadcast": frozenset({"group", "root"}),
    "all_gather": frozenset({"group", "dim", "position"}),
    "reduce_scatter": frozenset({"group", "dim", "op"}),
    "all_to_all": frozenset({"group", "split_dim", "concat_dim"}),
}
OTHERS: Final[Mapping[str, frozenset[str]]] = {
    "send": frozenset({"peer", "self"}),
    "recv": frozenset({"peer", "self"}),
    "post_recv": frozenset({"peer", "self"}),
    "chunk": frozenset({"group", "dim", "claimed"}),
    "load_batch": frozenset(),
}
#: How many operands each has; one, where it is not named.
_OPERANDS: Final = {"load_batch": (0,), "recv": (0,), "post_recv": (0,), "broadcast": (0, 1)}


class Stuck(Exception):
    """The program contradicts itself: says how."""


def understood(op: Op) -> None:
    """Raise `Unsupported` for an attribute that nothing here reads, `Stuck` for operands that a
    communication cannot have.

    Example: ``all_reduce`` with ``async_op`` is refused: "all_reduce has the attribute async_op,
    which means nothing there".
    """
    known = COLLECTIVES.get(op.name, OTHERS.get(op.name))
    if known is None:
        return
    for key in sorted(op.attrs.keys() - known):
        raise Unsupported(f"{op.name} has the attribute {key}, which means nothing there")
    if len(op.inputs) not in _OPERANDS.get(op.name, (1,)) or op.backward:
        raise Stuck(f"{op.name} has {len(op.inputs)} operands")


def exchanged(
    interpreter: Interpreter[T],
    ranks: Sequence[int],
    members: Sequence[tuple[Op, T | None]],
    root: Attr,
) -> list[list[T]]:
    """What every member has after a collective, in the order of ``ranks``; ``root``: the rank that
    the members name as the root.

    Example: a ``reduce_scatter`` of [1, 2] and [3, 4] along dimension 0 is [4] on the first and [6]
    on the second rank.
    """
    op = members[0][0]
    if len({(o.name, _kind(interpreter, o.attrs, x)) for o, x in members}) > 1:
        raise Stuck(f"ranks {list(ranks)} join in different collectives")
    given = [x for _, x in members if x is not None]
    if op.name in ("broadcast", "reduce"):
        return _rooted(interpreter, ranks, members, root)
    if len(given) < len(members):
        raise Stuck(f"ranks {list(ranks)}: {op.name} without an input")
    count = len(members)
    if op.name == "all_gather":
        places = [o.attrs.get("position") for o, _ in members]
        order = sorted(range(count), key=lambda i: _place(places, i))
        dim = _dim(interpreter, op, "dim", given[0])
        beside = [tuple(map(int, interpreter.shape(x))) for x in given]
        if len({(*shape[:dim], *shape[dim + 1 :]) for shape in beside}) > 1:
            raise ShapeMismatch(f"{op.name} of shapes {beside}")
        joined = interpreter.concat([given[i] for i in order], dim)
        return [[joined]] * count
    shapes = [tuple(map(int, interpreter.shape(x))) for x in given]
    if len(set(shapes)) > 1:
        raise ShapeMismatch(f"{op.name} of shapes {shapes}")
    if op.name == "all_reduce":
        return [[_reduced(interpreter, op, given)]] * count
    if op.name == "reduce_scatter":
        total, dim = _reduced(interpreter, op, given), _dim(interpreter, op, "dim", given[0])
        return [[_part(interpreter, total, dim, i, count)] for i in range(count)]
    split = _dim(interpreter, op, "split_dim", given[0])
    into = _dim(interpreter, op, "concat_dim", given[0])
    return [
        [interpreter.concat([_part(interpreter, x, split, i, count) for x in given], into)]
        for i in range(count)
    ]


def _place(places: Sequence[Attr], i: int) -> int:
    known = [p for p in places if isinstance(p, int)]
    return known[i] if len(known) == len(places) else i


def _rooted(
    interpreter: Interpreter[T],
    ranks: Sequence[int],
    members: Sequence[tuple[Op, T | None]],
    root: Attr,
) -> list[list[T]]:
    """The root gives what all have, or takes what all give: nobody else knows what is in his
    buffer afterwards."""
    op, values = members[0][0], [x for _, x in members]
    if root not in ranks:
        raise Stuck(f"ranks {list(ranks)}: {op.name} whose root is rank {root}")
    if op.name == "broadcast":
        value = values[ranks.index(root)]
        if value is None:
            raise Stuck(f"ranks {list(ranks)}: {op.name} without an input on rank {root}")
        return [[value] * len(o.outputs) for o, _ in members]
    given = [x for x in values if x is not None]
    if len(given) < len(values):
        raise Stuck(f"ranks {list(ranks)}: {op.name} without an input")
    shapes = [tuple(map(int, interpreter.shape(x))) for x in given]
    if len(set(shapes)) > 1:
        raise ShapeMismatch(f"{op.name} of shapes {shapes}")
    total = _reduced(interpreter, op, given)
    undefined = interpreter.unary("log", interpreter.combine([total], [Fraction(0)], Fraction(-1)))
    return [
        [total if rank == root else undefined] * len(o.outputs)
        for rank, (o, _) in zip(ranks, members, strict=True)
    ]


def _kind(interpreter: Interpreter[T], attrs: Mapping[str, Attr], x: T | None) -> str:
    """What ranks agree on in a collective: what is not said is as by default, and a dimension is
    the same counted from either end."""
    agreed = {"op": "sum", **attrs}
    rank = 0 if x is None else len(interpreter.shape(x))
    for key in ("dim", "split_dim", "concat_dim"):
        dim = agreed.get(key)
        if isinstance(dim, int) and -rank <= dim < 0:
            agreed[key] = dim + rank
    return str(sorted((k, str(v)) for k, v in agreed.items() if k not in ("group", "position")))


def _dim(interpreter: Interpreter[T], op: Op, key: str, x: T) -> int:
    dim, rank = op.attrs.get(key), len(interpreter.shape(x))
    if isinstance(dim, bool) or not isinstance(dim, int) or not -rank <= dim < rank:
        raise ShapeMismatch(f"{key} {dim} of a tensor of {rank} dimensions")
    return dim % rank


def _reduced(interpreter: Interpreter[T], op: Op, given: Sequence[T]) -> T:
    kind = op.attrs.get("op", "sum")
    if kind == "sum":
        return interpreter.combine(given, [Fraction(1)] * len(given), Fraction(0))
    if kind != "max":
        raise Unsupported(f"{op.name} with {kind}")
    stacked = [interpreter.reshape(x, (1, *interpreter.shape(x))) for x in given]
    return interpreter.amax(interpreter.concat(stacked, 0), 0)


def _part(interpreter: Interpreter[T], x: T, dim: int, position: int, count: int) -> T:
    size, rest = divmod(int(interpreter.shape(x)[dim]), count)
    if rest:
        raise ShapeMismatch(f"{size * count + rest} positions divided among {count} ranks")
    return interpreter.slice(x, dim, Affine(position * size), size)


def chunked(interpreter: Interpreter[T], op: Op, x: T, position: int, count: int) -> T:
    """What `torch.chunk` gives the member at this position: the last ones may have less.

    Example: [1, 2, 3, 4, 5] for four ranks is [1, 2], [3, 4] and [5], and the fourth one is
    refused.
    """
    dim = _dim(interpreter, op, "dim", x)
    whole = int(interpreter.shape(x)[dim])
    step = -(-whole // count)
    start = position * step
    if whole and start >= whole:
        raise Stuck(f"chunk {position} of {-(-whole // step)}")
    return interpreter.slice(x, dim, Affine(start), min(step, whole - start))

"""Collectives and messages, as the recorder's functional form names them (``comm.*``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from shardproof.engine.errors import Unsupported
from shardproof.engine.plan.ir import Attr, Group
from shardproof.frontends.aten.lowering import Const, Lowered, Lowering, Real, fraction
from shardproof.frontends.aten.rules import lowers


def _issued(lo: Lowering, name: str, x: Real, ranks: Sequence[int], **attrs: Any) -> Real:
    if name != "all_reduce" and list(ranks) != sorted(ranks):
        raise Unsupported(f"a group whose members are not ordered by rank: {list(ranks)[:16]}")
    shape, _ = lo.expected[0]
    output = lo.value(shape, x.dtype, name)
    group = {"group": Group(tuple(ranks))}
    lo.append(name, [x.number], [output.number], {**attrs, **group})
    return output


def _reduction(op: str, count: int) -> tuple[str, Fraction]:
    """The engine's reduction, and the factor afterwards, which a group of one rank has, too."""
    if op == "avg":
        return "sum", Fraction(1, count)
    name, _, before = op.partition(" ")
    if name == "premul_sum" and before:
        return "sum", fraction(float(before))
    if op not in ("sum", "max"):
        raise Unsupported(f"a reduction by {op}")
    return op, Fraction(1)


def _alone(lo: Lowering, x: Lowered, op: str) -> Any:
    """What one rank reduces by itself: nothing is added, but what multiplies first does."""
    return lo.scale(x, _reduction(op, 1)[1]) if op.startswith("premul_sum") else x


@lowers("comm.all_reduce")
def _all_reduce(lo: Lowering, x: Lowered, ranks: Sequence[int], op: str) -> Any:
    if len(ranks) == 1:
        return _alone(lo, x, op)
    if op == "min":
        most = _issued(lo, "all_reduce", lo.real(lo.scale(x, Fraction(-1))), ranks, op="max")
        return lo.scale(most, Fraction(-1))
    kind, factor = _reduction(op, len(ranks))
    return lo.scale(_issued(lo, "all_reduce", lo.real(x), ranks, op=kind), factor)


@lowers("comm.all_gather")
def _all_gather(lo: Lowering, x: Lowered, ranks: Sequence[int], dim: int) -> Any:
    """The parts of all ranks.  Where this one has a constant, and its reader will ask whether the
    others gather the same one at the same place of the group's collectives, it is that constant."""
    if len(ranks) == 1:
        return x
    if isinstance(x, Const) and lo.agreed is not None:
        shape, _ = lo.expected[0]
        issued = sum(op.attrs.get("group") == Group(tuple(ranks)) for op in lo.ops)
        lo.agreed.append((tuple(ranks), issued, x))
        return Const(x.value, shape, x.dtype)
    return _issued(lo, "all_gather", lo.real(x), ranks, dim=dim)


@lowers("comm.reduce_scatter")
def _reduce_scatter(lo: Lowering, x: Lowered, ranks: Sequence[int], op: str, dim: int) -> Any:
    kind, factor = _reduction(op, len(ranks))
    if kind != "sum":
        raise Unsupported(f"a reduce-scatter by {op}")
    if len(ranks) == 1:
        return _alone(lo, x, op)
    return lo.scale(_issued(lo, "reduce_scatter", lo.real(x), ranks, dim=dim), factor)


@lowers("comm.all_to_all")
def _all_to_all(lo: Lowering, x: Lowered, ranks: Sequence[int]) -> Any:
    if len(ranks) == 1:
        return x
    # Split and joined along two dimensions, of which the second one is new: what rank i sent to
    # this one is the i-th part of the result.
    count, (shape, dtype) = len(ranks), lo.expected[0]
    parts = (count, shape[0] // count, *shape[1:])
    real = lo.real(lo.reshape(lo.real(x), (count, 1, *parts[1:])))
    lo.expected = [((1, *parts), dtype)]
    received = _issued(lo, "all_to_all", real, ranks, split_dim=0, concat_dim=1)
    lo.expected = [(shape, dtype)]
    return lo.reshape(received, shape)


@lowers("comm.broadcast")
def _broadcast(lo: Lowering, x: Lowered | None, ranks: Sequence[int], root: int) -> Any:
    if len(ranks) == 1:
        return x
    shape, dtype = lo.expected[0]
    output = lo.value(shape, dtype, "broadcast")
    inputs = [] if x is None else [lo.real(x).number]
    attrs: dict[str, Attr] = {"group": Group(tuple(ranks)), "root": root}
    lo.append("broadcast", inputs, [output.number], attrs)
    return output if x is None else lo.holding(output, lo.real(x))


# -- as functional collectives name them -------------------------------------------------------


def _named(lo: Lowering, tag: str, count: int | None = None) -> Sequence[int]:
    """The ranks of a named group."""
    if tag not in lo.groups:
        raise Unsupported(f"a group named {tag!r}, of which nothing says who is in it")
    ranks = lo.groups[tag]
    if count is not None and len(ranks) != count:
        raise Unsupported(f"group {tag!r} of {len(ranks)} ranks where {count} are told")
    return ranks


@lowers("_c10d_functional.wait_tensor.default")
def _wait(lo: Lowering, x: Lowered) -> Any:
    return x


@lowers("_c10d_functional.all_reduce.default")
def _reduce_by_name(lo: Lowering, x: Lowered, op: str, tag: str) -> Any:
    return _all_reduce(lo, x, _named(lo, tag), op)


@lowers("vllm.all_reduce.default")
def _reduce_in_vllm(lo: Lowering, x: Lowered, tag: str) -> Any:
    return _all_reduce(lo, x, _named(lo, tag), "sum")


@lowers(
    "_c10d_functional.all_gather_into_tensor.default",
    "_c10d_functional_autograd.all_gather_into_tensor.default",
)
def _gather_by_name(lo: Lowering, x: Lowered, count: int, tag: str) -> Any:
    return _all_gather(lo, x, _named(lo, tag, count), 0)


@lowers(
    "_c10d_functional.reduce_scatter_tensor.default",
    "_c10d_functional_autograd.reduce_scatter_tensor.default",
)
def _scatter_by_name(lo: Lowering, x: Lowered, op: str, count: int, tag: str) -> Any:
    return _reduce_scatter(lo, x, _named(lo, tag, count), op, 0)


@lowers(
    "_c10d_functional.all_to_all_single.default",
    "_c10d_functional_autograd.all_to_all_single.default",
)
def _exchange_by_name(
    lo: Lowering, x: Lowered, received: Sequence[int], sent: Sequence[int], tag: str
) -> Any:
    """``received``, ``sent``: how many rows come from and go to each member; here all alike."""
    ranks = _named(lo, tag)
    if len(received) != len(ranks) or len(sent) != len(ranks):
        raise Unsupported(f"an all-to-all of {len(sent)} parts in group {tag!r} of {len(ranks)}")
    if {*received, *sent} != {x.shape[0] // len(ranks)}:
        raise Unsupported("an all-to-all of parts of different sizes")
    return _all_to_all(lo, x, ranks)


def _coalesced(name: str, rule: Callable[..., Any]) -> None:
    @lowers(f"_c10d_functional.{name}_coalesced.default")
    def each(lo: Lowering, xs: Sequence[Lowered], *rest: Any) -> Any:
        """The collective of every tensor of a list, in order."""
        results, made = lo.expected, []
        for x, own in zip(xs, results, strict=True):
            lo.expected = [own]
            made.append(rule(lo, x, *rest))
        lo.expected = results
        return tuple(made)


_coalesced("all_reduce", _reduce_by_name)
_coalesced("all_gather_into_tensor", _gather_by_name)
_coalesced("reduce_scatter_tensor", _scatter_by_name)


@lowers("_c10d_functional.broadcast.default")
def _broadcast_by_name(lo: Lowering, x: Lowered, root: int, tag: str) -> Any:
    """``root`` is a member of the group, by its number there."""
    ranks = _named(lo, tag)
    if not 0 <= root < len(ranks):
        raise Unsupported(f"a broadcast from member {root} of group {tag!r}, of {len(ranks)}")
    return _broadcast(lo, x, ranks, ranks[root])


@lowers("comm.send")
def _send(lo: Lowering, x: Lowered, peer: int) -> Any:
    lo.append("send", [lo.real(x).number], [], {"peer": peer})
    return ()


@lowers("comm.post_recv")
def _post_recv(lo: Lowering, peer: int) -> Any:
    lo.append("post_recv", [], [], {"peer": peer})
    return ()


@lowers("comm.recv")
def _recv(lo: Lowering, peer: int) -> Any:
    shape, dtype = lo.expected[0]
    output = lo.value(shape, dtype, "recv")
    lo.append("recv", [], [output.number], {"peer": peer})
    return output

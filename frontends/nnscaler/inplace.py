"""Functions that write into their operand: what they give.

Such a function gives its operand with other entries, which is a value like any other.  That it
writes them into memory that others may read is another matter: `frontends.nnscaler.memory`.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from shardproof.frontends.nnscaler import composed
from shardproof.frontends.nnscaler.calls import (
    Arguments,
    Composed,
    Drawn,
    Operands,
    Refused,
    operand,
    shown,
)
from shardproof.frontends.nnscaler.chain import Chain
from shardproof.frontends.nnscaler.lowerings import box, wholes
from shardproof.frontends.nnscaler.records import Constant, Tensor


def setitem(arguments: Arguments) -> Composed:
    """``x[slicers] = value``: the tensor with other entries in a box, or where a mask is true.

    Example: ``setitem(x, slice(None), slice(0, 2), 5)`` of x [3, 4] is ``full`` of [3, 2] and the
    ``concat`` of it with the slice from 2 on; by a tensor of integers it is refused.
    """
    rest = arguments.get("*rest", ())
    rest = rest if isinstance(rest, tuple) else (rest,)
    if len(rest) < 2:
        raise Refused("no value")
    slicers, value = rest[:-1], rest[-1]
    if len(slicers) == 1 and isinstance(slicers[0], tuple):
        # As Python's own operator is called.
        slicers = slicers[0]
    x = operand(arguments, "input")
    if len(slicers) == 1 and isinstance(slicers[0], Tensor):
        return _where(x, slicers[0], value)
    _, attrs = box(x, slicers)
    boxed = {key: value for key, value in attrs.items() if not isinstance(value, Drawn)}
    starts, given, kept = (wholes(boxed[name], name) for name in ("starts", "sizes", "kept"))
    sizes = [n if s == -1 else s for n, s in zip(x.shape, given, strict=True)]
    chain = Chain(x, value) if isinstance(value, Tensor) else Chain(x)
    if 0 in sizes:
        chain("identity", 0)
        return chain.done()
    assumed = ""
    if isinstance(value, Tensor):
        _fits(x, value)
        new = _spread(chain, 1, [1 if k == -1 else sizes[k] for k in kept], sizes)
    else:
        number, assumed = _number(x, value, "setitem")
        new = chain("full", size=tuple(sizes), value=number)
    chain("identity", _put(chain, 0, new, starts, sizes, 0))
    return chain.done(assumed)


def _put(
    chain: Chain, x: int, new: int, starts: Sequence[int], sizes: Sequence[int], dim: int
) -> int:
    """``x``, whose dimensions before ``dim`` are those of the box, with ``new`` in the box."""
    shape = chain.shapes[x]
    if tuple(sizes[dim:]) == shape[dim:]:
        return new
    start, size = starts[dim], sizes[dim]
    if size == shape[dim]:
        return _put(chain, x, new, starts, sizes, dim + 1)
    inside = new
    if tuple(sizes[dim + 1 :]) != shape[dim + 1 :]:
        own = chain("slice", x, dim=dim, start=start, size=size)
        inside = _put(chain, own, new, starts, sizes, dim + 1)
    parts = [inside]
    if start:
        parts.insert(0, chain("slice", x, dim=dim, start=0, size=start))
    if start + size < shape[dim]:
        after = shape[dim] - start - size
        parts.append(chain("slice", x, dim=dim, start=start + size, size=after))
    return chain("concat", *parts, dim=dim)


def _spread(chain: Chain, value: int, target: Sequence[int], sizes: Sequence[int]) -> int:
    """A value that is given for a box, in its shape: dimensions of size 1 are repeated, and those
    that lead beyond the box's own are dropped."""
    shape = chain.shapes[value]
    while len(shape) > len(target) and shape[0] == 1:
        shape = shape[1:]
    if len(shape) > len(target):
        raise Refused(f"a value {list(shape)} for {list(target)}")
    if shape != chain.shapes[value]:
        value = chain("view", value, size=shape)
    if shape != tuple(target):
        name = "expand" if len(shape) == len(target) else "broadcast_to"
        value = chain(name, value, size=tuple(target))
    return chain("view", value, size=tuple(sizes)) if list(target) != list(sizes) else value


def _where(x: Tensor, mask: Tensor, value: Constant) -> Composed:
    """A number where a mask of the leading dimensions is true."""
    if mask.dtype != "bool" or mask.shape != x.shape[: len(mask.shape)]:
        raise Refused(f"an index {mask.dtype} {list(mask.shape)}")
    if isinstance(value, Tensor):
        raise Refused("a tensor where a mask is true")
    number, assumed = _number(x, value, "setitem")
    chain = Chain(x, mask)
    places = chain("view", 1, size=(*mask.shape, *(1 for _ in x.shape[len(mask.shape) :])))
    chain("masked_fill", 0, places, value=number)
    return chain.done(assumed)


def _fits(x: Tensor, value: Tensor) -> None:
    """Refuse a value that is rounded when it is written."""
    if x.dtype != value.dtype and not x.dtype.startswith(("float", "bfloat")):
        raise Refused(f"a value {value.dtype} into {x.dtype}")


def _number(x: Tensor, value: Constant, name: str) -> tuple[int | Fraction, str]:
    if x.dtype == "bool" or isinstance(value, bool):
        if not isinstance(value, bool):
            raise Refused(f"a value {shown(value)} into {x.dtype}")
        return int(value), ""
    if isinstance(value, float) and not x.dtype.startswith(("float", "bfloat")):
        raise Refused(f"a value {shown(value)} into {x.dtype}")
    return composed.filling({"value": value}, "value", name)


def fill(arguments: Arguments) -> Composed:
    """A number in the shape of the operand, which is not read.

    Example: ``fill_(x, 2.5)`` of x [3, 4] is ``full`` of [3, 4].
    """
    x = operand(arguments, "input")
    number, assumed = _number(x, arguments.get("value"), "fill_")
    chain = Chain(x)
    chain("full", size=x.shape, value=number)
    return chain.done(assumed)


def masked_fill(arguments: Arguments) -> tuple[str, Operands] | Composed:
    """As the function that writes nowhere: a number where a mask is true.

    Example: ``masked_fill_(x, mask, 2.0)`` is the declared operator ``masked_fill``; of integers by
    2.5 it is refused.
    """
    _number(operand(arguments, "input"), arguments.get("value"), "masked_fill_")
    return composed.masked_fill(arguments)

"""Functions of the registry that look entries up, choose them, or put others beside them.

What is looked up by numbers of the input is a product with a one-hot: nothing depends on which
numbers they are.  A choice (`topk`, `max` along a dimension) is the declared operator ``topk``.
"""

from __future__ import annotations

from shardproof.frontends.nnscaler.calls import (
    Arguments,
    Composed,
    Operands,
    Refused,
    operand,
    shown,
    unless,
)
from shardproof.frontends.nnscaler.chain import Chain, exact_number
from shardproof.frontends.nnscaler.lowerings import (
    Lowered,
    box,
    dim_of,
    kept,
    real,
    whole,
    wholes,
)
from shardproof.frontends.nnscaler.records import Constant, Tensor

_LETTERS = "abcdefghijklmnop"
#: What is assumed of numbers that PyTorch would count from behind if they were negative.
FROM_THE_FRONT = "no number that indexes a tensor (x[ids]) is negative: none counts from behind"


# -- by numbers ------------------------------------------------------------------------------------


def _rows(chain: Chain, x: int, index: int, dim: int) -> int:
    """``x`` with the rows along ``dim`` that an index of any shape names, its dimensions there."""
    rank, given = len(chain.shapes[x]), len(chain.shapes[index])
    if rank + given > len(_LETTERS):
        raise Refused(f"{rank + given} dimensions")
    names, new = _LETTERS[:rank], _LETTERS[rank : rank + given]
    chosen = chain("onehot", index, start=0, size=chain.shapes[x][dim])
    after = names[:dim] + new + names[dim + 1 :]
    return chain("einsum", chosen, x, equation=f"{new}{names[dim]},{names}->{after}")


def index_select(arguments: Arguments) -> Composed:
    """Rows of a table by number.

    Example: rows [2] of a table [8, 3] along 0 are ``embedding``, of shape [2, 3].
    """
    unless(arguments, "out", None)
    x, index = operand(arguments, "input"), _index(arguments.get("index"))
    dim = dim_of(whole(arguments, "dim"), len(x.shape))
    if len(index.shape) != 1:
        raise Refused(f"an index of {len(index.shape)} dimensions")
    if dim == 0 and len(x.shape) == 2:
        chain = Chain(index, x)
        chain("embedding", 0, 1)
        return chain.done()
    chain = Chain(index, x)
    _rows(chain, 1, 0, dim)
    return chain.done()


def _index(value: Constant) -> Tensor:
    if not isinstance(value, Tensor) or not value.dtype.startswith("int"):
        raise Refused(f"index {value.dtype if isinstance(value, Tensor) else shown(value)}")
    return value


def gather(arguments: Arguments) -> Composed:
    """``y[i, j] = x[i, index[i, j]]`` along a dimension, of as many rows as the index has.

    Example: along 1, x [2, 4] by ids [2, 3] is ``onehot`` of the ids [2, 3, 4] and the ``einsum``
    "acb,ab->ac".
    """
    unless(arguments, "out", None)
    unless(arguments, "sparse_grad", False)
    x, index = operand(arguments, "input"), _index(arguments.get("index"))
    rank = len(x.shape)
    dim = dim_of(whole(arguments, "dim"), rank)
    if len(index.shape) != rank or rank >= len(_LETTERS):
        raise Refused(f"an index of {len(index.shape)} dimensions")
    chain = Chain(index, x)
    source = 1
    for other, (have, want) in enumerate(zip(x.shape, index.shape, strict=True)):
        if other != dim and have != want:
            source = chain("slice", source, dim=other, start=0, size=want)
    names, new = _LETTERS[:rank], _LETTERS[rank]
    after = names[:dim] + new + names[dim + 1 :]
    chosen = chain("onehot", 0, start=0, size=x.shape[dim])
    chain("einsum", chosen, source, equation=f"{after}{names[dim]},{names}->{after}")
    return chain.done()


def fullslice(arguments: Arguments) -> Lowered | Composed:
    """``x[slicers]`` by integers, slices, None, and at most one tensor of integers.

    Example: ``x[:, 1:3]`` of x [2, 4] is ``index`` with starts (0, 1) and sizes (2, 2).
    """
    slicers = arguments.get("*slicers", ())
    slicers = slicers if isinstance(slicers, tuple) else (slicers,)
    places = [i for i, slicer in enumerate(slicers) if isinstance(slicer, Tensor)]
    x = operand(arguments, "input")
    if not places:
        return box(x, slicers)
    if len(places) > 1 or any(type(slicer) is int for slicer in slicers):
        raise Refused("several indices")
    at = places[0]
    index = _index(slicers[at])
    name, attrs = box(x, [*slicers[:at], slice(None), *slicers[at + 1 :]])
    chain = Chain(index, x)
    kept = {k: v for k, v in attrs.items() if k != "input"}
    rows = chain(name, 1, **kept)  # type: ignore[arg-type]
    _rows(chain, rows, 0, at)
    return chain.done(FROM_THE_FRONT)


# -- the largest -----------------------------------------------------------------------------------


def topk(arguments: Arguments) -> Lowered:
    """The k largest (or smallest) entries along a dimension, with their ids.

    Example: ``topk(x, 2)`` of x [2, 4] is the declared operator along dimension 1.
    """
    unless(arguments, "out", None)
    unless(arguments, "sorted", True, False)
    unless(arguments, "largest", True, False)
    x, dim = operand(arguments, "input"), arguments.get("dim")
    dim = dim_of(-1 if dim is None else whole(arguments, "dim"), len(x.shape))
    operands: Operands = {"input": x, "topk": whole(arguments, "k"), "dim": dim}
    return "topk", operands | ({"largest": False} if arguments.get("largest") is False else {})


def sort(arguments: Arguments) -> Lowered:
    """All entries along a dimension in order, with their ids.

    Example: ``sort(x)`` of x [2, 4] is ``topk`` of all four, the smallest first.
    """
    unless(arguments, "out", None)
    unless(arguments, "stable", None, True, False)
    unless(arguments, "descending", True, False)
    x = operand(arguments, "input")
    dim = dim_of(whole(arguments, "dim", -1), len(x.shape))
    operands: Operands = {"input": x, "topk": x.shape[dim], "dim": dim}
    return "topk", operands | ({} if arguments.get("descending") else {"largest": False})


def maximum(arguments: Arguments) -> Lowered | Composed:
    """The larger of two tensors, the largest entry of one, or that along a dimension with its
    id.

    Example: ``max(x, y)`` is ``relu(x - y) + y``; ``max(x, 1)`` is ``topk`` of one entry along
    dimension 1.
    """
    return _best(arguments, 1)


def minimum(arguments: Arguments) -> Lowered | Composed:
    """The smaller of two tensors, the smallest entry of one, or that along a dimension with its
    id.

    Example: ``min(x)`` is minus ``amax`` of minus x.
    """
    return _best(arguments, -1)


def _best(arguments: Arguments, sign: int) -> Lowered | Composed:
    """The larger (``sign`` -1: smaller) of two tensors, the largest entry of one, or the largest
    along a dimension with its place."""
    unless(arguments, "out", None)
    unless(arguments, "keepdim", True, False)
    x = operand(arguments, "input")
    given = [arguments[k] for k in ("other_or_dim", "dim", "other") if k in arguments]
    other = given[0] if given else None
    if len(given) > 1:
        raise Refused("dim and other")
    if given and other is None:
        raise Refused("other None")
    if not given and "keepdim" in arguments:
        raise Refused("keepdim without dim")
    if isinstance(other, Tensor):
        chain = Chain(x, other)
        # max(x, y) = y + relu(x - y), min(x, y) = y - relu(y - x).
        gap = chain("sub", 0, 1) if sign > 0 else chain("sub", 1, 0)
        chain("add" if sign > 0 else "sub", 1, chain("relu", gap))
        return chain.done()
    if other is None:
        chain = Chain(x)
        if sign > 0:
            chain("amax", 0)
        else:
            chain("mul", chain("amax", chain("mul", 0, other=-1)), other=-1)
        return chain.done()
    if type(other) is not int:
        raise Refused(f"dim {shown(other)}")
    operands: Operands = {"input": x, "topk": 1, "dim": dim_of(other, len(x.shape))}
    operands |= {} if sign > 0 else {"largest": False}
    return "topk", operands | ({} if arguments.get("keepdim") is True else {"dropped": True})


# -- beside others ---------------------------------------------------------------------------------


def pad(arguments: Arguments) -> Composed:
    """A number around the last dimensions (negative: cut away).

    Example: ``pad(x, (1, 2))`` of x [2, 4] is [2, 7]; ``pad(x, (0, -1))`` is the slice [2, 3].
    """
    unless(arguments, "mode", "constant")
    x, given = operand(arguments, "input"), wholes(arguments.get("pad"), "pad")
    value = exact_number(kept(real(arguments, "value", 0), x.dtype, "value"))
    if len(given) % 2 or len(given) > 2 * len(x.shape):
        raise Refused(f"pad {list(given)}")
    chain = Chain(x)
    current = chain("identity", 0)
    for number, ends in enumerate(zip(given[::2], given[1::2], strict=True)):
        dim = len(x.shape) - 1 - number
        low, high = (max(0, -n) for n in ends)
        size = chain.shapes[current][dim] - low - high
        if size < 0:
            raise Refused(f"pad {list(given)}")
        if low or high:
            current = chain("slice", current, dim=dim, start=low, size=size)
        parts = [current]
        for place, n in enumerate(ends):
            if n > 0:
                beside = list(chain.shapes[current])
                beside[dim] = n
                parts.insert(place * len(parts), chain("full", size=tuple(beside), value=value))
        current = chain("concat", *parts, dim=dim) if len(parts) > 1 else current
    return chain.done()

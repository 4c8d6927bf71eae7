"""Functions of the registry that are several declared operators: comparisons, choices, attention.

All of them are exact over the reals; where a derivative has a jump (a comparison at equality, a
clamp at its bounds) it is that of `step`, which is 0 at 0.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final

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
from shardproof.frontends.nnscaler.lowerings import add as total
from shardproof.frontends.nnscaler.lowerings import real
from shardproof.frontends.nnscaler.records import Tensor

#: What stands for minus infinity where it hides an entry: its exponential is 0 in any format.
HIDDEN: Final = -(10**30)
#: The largest number that stands for itself.
LARGEST: Final = 10**29
#: The root of 2/pi, a double.
_BETA: Final = Fraction("0.7978845608028654")
_HIDES: Final = (
    "{name} with minus infinity hides entries: it is taken for -1e30, of which every exponential "
    "is 0 too, and no row, nor a rank's part of one, is hidden as a whole"
)


# -- comparisons and choices -----------------------------------------------------------------------


def _pair(arguments: Arguments) -> tuple[Chain, int]:
    """The difference of two operands, of which one may be a number."""
    unless(arguments, "out", None)
    x, y = arguments.get("input"), arguments.get("other")
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        chain = Chain(x, y)
        return chain, chain("sub", 0, 1)
    if isinstance(x, Tensor):
        chain = Chain(x)
        return chain, chain("sub", 0, other=exact_number(real(arguments, "other", 0)))
    raise Refused(f"input {shown(x)}")


def greater(arguments: Arguments) -> Composed:
    """x > y as 1 or 0: step(x - y), where step(0) is 0.

    Example: of [1, 2, 3] and 2 it is [0, 0, 1].
    """
    chain, gap = _pair(arguments)
    chain("step", gap)
    return chain.done()


def less(arguments: Arguments) -> Composed:
    """x < y as 1 or 0: step(y - x).

    Example: of [1, 2, 3] and 2 it is [1, 0, 0].
    """
    chain, gap = _pair(arguments)
    chain("step", chain("mul", gap, other=-1))
    return chain.done()


def at_least(arguments: Arguments) -> Composed:
    """x >= y as 1 or 0: 1 - step(y - x).

    Example: of [1, 2, 3] and 2 it is [0, 1, 1].
    """
    chain, gap = _pair(arguments)
    chain("affine", chain("step", chain("mul", gap, other=-1)), factor=-1, shift=1)
    return chain.done()


def at_most(arguments: Arguments) -> Composed:
    """x <= y as 1 or 0: 1 - step(x - y).

    Example: of [1, 2, 3] and 2 it is [1, 1, 0].
    """
    chain, gap = _pair(arguments)
    chain("affine", chain("step", gap), factor=-1, shift=1)
    return chain.done()


def unequal(arguments: Arguments) -> Composed:
    """x != y as 1 or 0: step(x - y) + step(y - x).

    Example: of [1, 2, 3] and 2 it is [1, 0, 1].
    """
    chain, gap = _pair(arguments)
    chain("add_n", chain("step", gap), chain("step", chain("mul", gap, other=-1)))
    return chain.done()


def equal(arguments: Arguments) -> Composed:
    """x == y as 1 or 0: 1 minus whether they are unequal.

    Example: of [1, 2, 3] and 2 it is [0, 1, 0].
    """
    chain, gap = _pair(arguments)
    other = chain("add_n", chain("step", gap), chain("step", chain("mul", gap, other=-1)))
    chain("affine", other, factor=-1, shift=1)
    return chain.done()


def sign(arguments: Arguments) -> Composed:
    """1, 0 or -1: step(x) - step(-x).

    Example: of [-3, 0, 3] it is [-1, 0, 1].
    """
    unless(arguments, "out", None)
    chain = Chain(operand(arguments, "input"))
    chain("sub", chain("step", 0), chain("step", chain("mul", 0, other=-1)))
    return chain.done()


def filling(arguments: Arguments, name: str, function: str) -> tuple[int | Fraction, str]:
    """The number that entries are replaced by, and what is assumed of it.

    Example: for 2.5 it is 5/2, of which nothing is assumed; for minus infinity -1e30, with what the
    verdict then assumes.
    """
    if arguments.get(name) == -math.inf:
        return HIDDEN, _HIDES.format(name=function)
    if arguments.get(name) is None:
        raise Refused(f"{name} None")
    return exact_number(real(arguments, name, 0)), ""


def masked_fill(arguments: Arguments) -> tuple[str, Operands] | Composed:
    """A number where a mask is true.

    Example: by 2.0 it is the declared operator; by minus infinity it is that by -1e30, with an
    assumption that says so.
    """
    x, mask = operand(arguments, "input"), operand(arguments, "mask")
    value, assumed = filling(arguments, "value", "masked_fill")
    if not assumed:
        return "masked_fill", {"input": x, "mask": mask, "value": arguments["value"]}
    chain = Chain(x, mask)
    chain("masked_fill", 0, 1, value=value)
    return chain.done(assumed)


def _like(chain: Chain, x: int, other: int) -> int:
    """``x`` in the shape that it has beside ``other``, whose dimensions it is repeated along."""
    have, beside = chain.shapes[x], chain.shapes[other]
    rank = max(len(have), len(beside))
    padded = [(1,) * (rank - len(shape)) + shape for shape in (have, beside)]
    target = tuple(b if a == 1 else a for a, b in zip(*padded, strict=True))
    if target == have:
        return x
    return chain("expand" if rank == len(have) else "broadcast_to", x, size=target)


def where(arguments: Arguments) -> Composed:
    """One of two operands for each element, by a condition of truth values.

    Example: ``where(c, x, y)`` is ``x c + y (1 - c)``; a condition of float32 is refused.
    """
    assumed = ""
    condition = operand(arguments, "condition")
    if condition.dtype != "bool":
        raise Refused(f"a condition of type {condition.dtype}")
    x, y = arguments.get("input"), arguments.get("other")
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        chain = Chain(condition, x, y)
        chosen = chain("mul", 1, 0)
        other = chain("mul", 2, chain("affine", 0, factor=-1, shift=1))
        chosen = _like(chain, chosen, other)
        chain("add_n", chosen, _like(chain, other, chosen))
    elif isinstance(x, Tensor):
        chain = Chain(condition, x)
        other = chain("affine", 0, factor=-1, shift=1)
        value, assumed = filling(arguments, "other", "where")
        chain("masked_fill", _like(chain, 1, 0), other, value=value)
    elif isinstance(y, Tensor):
        chain = Chain(condition, y)
        value, assumed = filling(arguments, "input", "where")
        chain("masked_fill", _like(chain, 1, 0), 0, value=value)
    elif x is None or y is None:
        raise Refused("a condition alone")
    else:
        chain = Chain(condition)
        one, two = (exact_number(real(arguments, name, 0)) for name in ("input", "other"))
        chain("affine", 0, factor=one - two, shift=two)
    return chain.done(assumed)


def add(arguments: Arguments) -> tuple[str, Operands] | Composed:
    """x + alpha y; of two truth values whether one of them is true, as PyTorch adds these.

    Example: of [0, 1, 1] and [0, 0, 1] it is [0, 1, 2] as int64, and [0, 1, 1] as bool.
    """
    given = [arguments.get(name) for name in ("input", "other")]
    if all(isinstance(x, Tensor) and x.dtype == "bool" for x in given):
        unless(arguments, "alpha", 1)
        return bitwise_or(arguments)
    return total(arguments)


def gelu(arguments: Arguments) -> tuple[str, Operands] | Composed:
    """x times the normal distribution function, or its approximation by `tanh`.

    Example: with ``approximate="tanh"`` it is x (1 + tanh(b (x + 0.044715 x^3))) / 2, where b is
    the root of 2/pi as PyTorch has it.
    """
    unless(arguments, "approximate", "none", "tanh")
    x = operand(arguments, "input")
    if arguments.get("approximate") != "tanh":
        return "gelu", {"input": x}
    chain = Chain(x)
    cube = chain("mul", chain("mul", 0, 0), 0)
    inner = chain("add_n", 0, chain("mul", cube, other=Fraction("0.044715")))
    bent = chain("tanh", chain("mul", inner, other=_BETA))
    half = chain("mul", 0, other=Fraction(1, 2))
    chain("mul", half, chain("affine", bent, factor=1, shift=1))
    return chain.done()


def square(arguments: Arguments) -> Composed:
    """x times x.

    Example: of [-3, 2] it is [9, 4].
    """
    unless(arguments, "out", None)
    chain = Chain(operand(arguments, "input"))
    chain("mul", 0, 0)
    return chain.done()


def clamp(arguments: Arguments) -> Composed:
    """min(max(x, low), high), by `relu`.

    Example: ``clamp(x, 0, 6)`` of [-1, 3, 9] is [0, 3, 6]; without a bound it is refused.
    """
    unless(arguments, "out", None)
    chain = Chain(operand(arguments, "input"))
    low, high = _bound(arguments, "min", -math.inf), _bound(arguments, "max", math.inf)
    none = arguments.get("min") is None and arguments.get("max") is None
    if none or (low is not None and high is not None and low > high):
        raise Refused("bounds")
    x = 0 if low is not None or high is not None else chain("identity", 0)
    if low is not None:
        x = chain("affine", chain("relu", chain("affine", x, factor=1, shift=-low)), factor=1,
                  shift=low)  # fmt: skip
    if high is not None:
        above = chain("relu", chain("affine", x, factor=-1, shift=high))
        chain("affine", above, factor=-1, shift=high)
    return chain.done()


def _bound(arguments: Arguments, name: str, beyond: float) -> int | Fraction | None:
    """A bound, or None where every number is within it."""
    value = arguments.get(name)
    return None if value is None or value == beyond else exact_number(value)


def ceil(arguments: Arguments) -> Composed:
    """The least whole number that is not below the entry.

    Example: of [-1.5, 1.5] it is [-1, 2].
    """
    return _rounded(arguments, "ceil")


def floor(arguments: Arguments) -> Composed:
    """The largest whole number that is not above the entry.

    Example: of [-1.5, 1.5] it is [-2, 1].
    """
    return _rounded(arguments, "floor")


def _rounded(arguments: Arguments, name: str) -> Composed:
    unless(arguments, "out", None)
    chain = Chain(operand(arguments, "input"))
    chain(name, 0)
    return chain.done()


def fmod(arguments: Arguments) -> Composed:
    """x - y trunc(x / y), by a number.

    Example: ``fmod(x, 2.5)`` is ``mul`` by 2/5, ``trunc``, ``mul`` by 5/2, and ``sub`` from x: of
    -3 it is -0.5.
    """
    unless(arguments, "out", None)
    by = exact_number(real(arguments, "other", 0))
    if not by:
        raise Refused("other 0")
    chain = Chain(operand(arguments, "input"))
    whole_times = chain("trunc", chain("mul", 0, other=Fraction(1) / by))
    chain("sub", 0, chain("mul", whole_times, other=by))
    return chain.done()


def floor_divide(arguments: Arguments) -> Composed:
    """The floor of x / y, by a number.

    Example: of [-3, 3] by 2 it is [-2, 1]; by 0 it is refused.
    """
    unless(arguments, "out", None)
    by = exact_number(real(arguments, "other", 0))
    if not by:
        raise Refused("other 0")
    chain = Chain(operand(arguments, "input"))
    chain("floor", chain("mul", 0, other=Fraction(1) / by))
    return chain.done()


def is_nan(arguments: Arguments) -> Composed:
    """Whether an entry is no number: nowhere.

    Example: of [1, 2] it is [0, 0], with an assumption that says so.
    """
    unless(arguments, "out", None)
    chain = Chain(operand(arguments, "input"))
    chain("full", size=chain.shapes[0], value=0)
    return chain.done("what isnan reads is a number everywhere")


def is_infinite(arguments: Arguments) -> Composed:
    """Whether an entry is infinite: |x| > 1e29, since 1e30 stands for what is.

    Example: of [1, 2] it is [0, 0]; of what `masked_fill` hid by minus infinity, 1.
    """
    unless(arguments, "out", None)
    chain = Chain(operand(arguments, "input"))
    chain("step", chain("affine", chain("abs", 0), factor=1, shift=-LARGEST))
    return chain.done(
        "no number that isinf reads is beyond 1e29, of either sign, but an infinite one"
    )


def finite(arguments: Arguments) -> Composed:
    """The tensor, in which nothing is infinite or no number (``nan_to_num``).

    Example: of [1, 2] it is [1, 2], with an assumption that says so.
    """
    unless(arguments, "out", None)
    chain = Chain(operand(arguments, "input"))
    chain("identity", 0)
    return chain.done("what nan_to_num reads is a finite number everywhere")


def _truths(arguments: Arguments, *names: str) -> list[Tensor]:
    operands = [operand(arguments, name) for name in names]
    for x in operands:
        if x.dtype != "bool":
            raise Refused(f"bits of {x.dtype}")
    return operands


def bitwise_not(arguments: Arguments) -> Composed:
    """not x, of truth values as 0 and 1.

    Example: of [0, 1] it is [1, 0]; of int64 it is refused.
    """
    unless(arguments, "out", None)
    chain = Chain(*_truths(arguments, "input"))
    chain("affine", 0, factor=-1, shift=1)
    return chain.done()


def bitwise_or(arguments: Arguments) -> Composed:
    """Of truth values: x + y - x y.

    Example: of [0, 1, 1] and [0, 0, 1] it is [0, 1, 1].
    """
    unless(arguments, "out", None)
    chain = Chain(*_truths(arguments, "input", "other"))
    chain("sub", chain("add", 0, 1), chain("mul", 0, 1))
    return chain.done()


def bitwise_and(arguments: Arguments) -> Composed:
    """x and y, of truth values as 0 and 1: their product.

    Example: of [0, 1, 1] and [0, 0, 1] it is [0, 0, 1].
    """
    unless(arguments, "out", None)
    chain = Chain(*_truths(arguments, "input", "other"))
    chain("mul", 0, 1)
    return chain.done()


# -- attention -------------------------------------------------------------------------------------


def attention(arguments: Arguments) -> tuple[str, Operands] | Composed:
    """As PyTorch's; with a mask, or with several query heads to a key, as several operators.

    Example: with ``is_causal=True`` it is the declared operator; with a mask of numbers:
    ``einsum``, ``mul`` by the scale, ``add``, ``softmax``, ``einsum``.
    """
    unless(arguments, "dropout_p", 0, 0.0)
    unless(arguments, "enable_gqa", True, False)
    unless(arguments, "is_causal", True, False)
    query, key, value = (operand(arguments, name) for name in ("query", "key", "value"))
    size = query.shape[-1]
    scale = real(arguments, "scale", 1 / math.sqrt(size) if size else 1)
    mask, grouped = arguments.get("attn_mask"), arguments.get("enable_gqa") is True
    causal = arguments.get("is_causal", False)
    if mask is None and not grouped:
        operands: Operands = {"query": query, "key": key, "value": value}
        return "scaled_dot_product_attention", {**operands, "scale": scale, "is_causal": causal}
    if causal and mask is not None:
        raise Refused("attn_mask with is_causal")
    masks = [] if mask is None else [operand(arguments, "attn_mask")]
    if any(not x.dtype.startswith(("float", "bfloat", "bool")) for x in masks):
        raise Refused(f"attn_mask of {masks[0].dtype}")
    chain = Chain(query, key, value, *masks)
    keys, values = 1, 2
    times = query.shape[-3] // key.shape[-3] if grouped and len(query.shape) > 2 else 1
    if times > 1:
        dim = len(query.shape) - 3
        keys, values = (chain("repeat_interleave", x, repeats=times, dim=dim) for x in (1, 2))
    if mask is None:
        chain("scaled_dot_product_attention", 0, keys, values, scale=exact_number(scale),
              is_causal=causal is True)  # fmt: skip
        return chain.done()
    lead = "abcdefgh"[: len(query.shape) - 2]
    scores = chain("einsum", 0, keys, equation=f"{lead}mk,{lead}nk->{lead}mn")
    scores, assumed = chain("mul", scores, other=exact_number(scale)), ""
    if masks[0].dtype == "bool":
        # True is where attention is paid.
        hidden = chain("affine", 3, factor=-1, shift=1)
        scores = chain("masked_fill", scores, hidden, value=HIDDEN)
        assumed = _HIDES.format(name="scaled_dot_product_attention")
    else:
        scores = chain("add", scores, 3)
    weights = chain("softmax", scores, dim=len(query.shape) - 1)
    chain("einsum", weights, values, equation=f"{lead}mn,{lead}nk->{lead}mk")
    return chain.done(assumed)

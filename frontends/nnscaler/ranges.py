"""Tensors of known numbers: one number everywhere, even steps, lists of one number, diagonals.

The numbers 0, 1, 2, ... are sums over rows of a triangle of ones, less one: a declared value of
both sides, no input that might be anything.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from shardproof.frontends.nnscaler.calls import (
    Arguments,
    Composed,
    Function,
    Operands,
    Refused,
    operand,
    rewritten,
    shown,
    unless,
)
from shardproof.frontends.nnscaler.chain import Chain, exact_number
from shardproof.frontends.nnscaler.lowerings import Lowered, kept, real, whole, wholes
from shardproof.frontends.nnscaler.records import Constant
from shardproof.frontends.untrusted.inert import DType

#: Numbers that one call may make.
_MOST_NUMBERS: Final = 1 << 24


def constant_of(value: int | None) -> Function:
    """``zeros``, ``ones`` and ``full``; a scalar, such as ``zeros(())``, has one position, as
    nnScaler makes it."""

    def rewrite(arguments: Arguments) -> Lowered:
        unless(arguments, "requires_grad", False)
        size = wholes(arguments.get("size"), "size") or (1,)
        return "full", {"size": size, "value": _filling(arguments, value, "")}

    names = "size fill_value dtype requires_grad" if value is None else "size dtype requires_grad"
    return rewritten(rewrite, names)


def constant_like(value: int | None) -> Function:
    """``zeros_like`` and the like; ``ones_like``, for example, with the value 1."""

    def rewrite(arguments: Arguments) -> Lowered:
        unless(arguments, "requires_grad", False)
        unless(arguments, "memory_format", None)
        x = operand(arguments, "input")
        return "full", {"size": x.shape, "value": _filling(arguments, value, x.dtype)}

    names = "dtype layout device requires_grad memory_format"
    return rewritten(rewrite, f"input {'fill_value ' if value is None else ''}{names}")


def _filling(arguments: Arguments, value: int | None, like: str) -> int | float:
    """The number that a tensor is filled with, as its type holds it; ``like``: the type where
    none is given."""
    given = arguments.get("fill_value") if value is None else value
    return kept(given, _kind(arguments, like), "fill_value")


def _kind(arguments: Arguments, default: str) -> str:
    dtype = arguments.get("dtype")
    return dtype.name if isinstance(dtype, DType) else default


def arange(arguments: Arguments) -> Composed:
    """Numbers from ``start`` on, ``step`` apart, below ``end``.

    Example: ``arange(1, 8, 3)`` is [1, 4, 7]; ``arange(3)`` is [0, 1, 2].
    """
    _plain(arguments)
    start, end, step = (exact_number(real(arguments, name, default)) for name, default in (
        ("start", 0), ("end", 0), ("step", 1)))  # fmt: skip
    if arguments.get("end") is None:
        start, end = 0, start
    if not step:
        raise Refused("step 0")
    dtype = arguments.get("dtype")
    whole_numbers = all(isinstance(x, int) for x in (start, end, step))
    if isinstance(dtype, DType) and dtype.name.startswith(("int", "uint")) and not whole_numbers:
        raise Refused("numbers that are rounded")
    return _steps(start, step, -((start - end) // Fraction(step)))


def linspace(arguments: Arguments) -> Composed:
    """``steps`` numbers from ``start`` to ``end``, both among them.

    Example: ``linspace(0, 1, 5)`` is [0, 1/4, 1/2, 3/4, 1].
    """
    _plain(arguments)
    dtype = arguments.get("dtype")
    if isinstance(dtype, DType) and not dtype.name.startswith(("float", "bfloat")):
        raise Refused(f"dtype {shown(dtype)}")
    start, end = (exact_number(real(arguments, name, 0)) for name in ("start", "end"))
    steps = whole(arguments, "steps")
    return _steps(start, Fraction(end - start) / max(1, steps - 1), steps)


def _plain(arguments: Arguments) -> None:
    unless(arguments, "out", None)
    unless(arguments, "requires_grad", False)


def _steps(start: int | Fraction, step: int | Fraction, count: int | Fraction) -> Composed:
    if not 1 <= count <= _MOST_NUMBERS:
        raise Refused(f"{count} numbers")
    chain = Chain()
    size = int(count)
    triangle = chain("tril", chain("full", size=(size, size), value=1))
    chain("affine", chain("sum", triangle, dim=(1,)), factor=step, shift=start - step)
    return chain.done()


def tensor(arguments: Arguments) -> tuple[str, Operands]:
    """A number, or a list of one number over and over; what differs is refused.

    Example: ``tensor([[0.5, 0.5]])`` is ``full`` of the size (1, 2); ``tensor(2)`` of the size
    (1,), as nnScaler makes scalars.
    """
    _plain(arguments)
    shape: list[int] = []
    numbers = [arguments.get("data")]
    while any(isinstance(x, tuple) for x in numbers):
        rows = [x for x in numbers if isinstance(x, tuple)]
        lengths = {len(row) for row in rows}
        if len(rows) != len(numbers) or len(lengths) != 1 or lengths == {0}:
            raise Refused("data of several lengths")
        shape += lengths
        numbers = [item for row in rows for item in row]
    if len({_number(x) for x in numbers}) != 1:
        raise Refused("data of different numbers")
    number = kept(numbers[0], _kind(arguments, ""), "data")
    return "full", {"size": tuple(shape) or (1,), "value": number}


def _number(value: Constant) -> int | Fraction:
    return int(value) if isinstance(value, bool) else exact_number(value)


def diag(arguments: Arguments) -> Composed:
    """The main diagonal of a matrix, or the matrix of a diagonal.

    Example: of [[1, 2], [3, 4]] it is [1, 4]; of [1, 4] it is [[1, 0], [0, 4]].
    """
    unless(arguments, "out", None)
    unless(arguments, "diagonal", 0)
    x = operand(arguments, "input")
    if len(x.shape) > 2 or len(set(x.shape)) != 1:
        raise Refused(f"input {list(x.shape)}")
    chain = Chain(x)
    low = chain("tril", chain("full", size=(x.shape[0], x.shape[0]), value=1))
    same = chain("mul", low, chain("transpose", low, dim0=0, dim1=1))
    chain("einsum", 0, same, equation="ab,ab->a" if len(x.shape) == 2 else "a,ab->ab")
    return chain.done()

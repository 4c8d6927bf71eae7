"""Sums, means, norms and softmaxes of the registry: over which dimensions, and in which type."""

from __future__ import annotations

from shardproof.frontends.nnscaler.calls import (
    Arguments,
    Composed,
    Refused,
    Rewrite,
    operand,
    shown,
    unless,
)
from shardproof.frontends.nnscaler.chain import Chain
from shardproof.frontends.nnscaler.lowerings import Lowered, whole, wholes
from shardproof.frontends.nnscaler.records import Tensor
from shardproof.frontends.untrusted.inert import DType


def reduction(name: str) -> Rewrite:
    """The declared reduction ``name`` (``sum``, ``mean``, ``amax``) of a tensor.

    Example: ``sum(x, 1, True)`` has ``dim`` 1 and ``keepdim``; ``sum(x, ())`` is over all
    dimensions, as PyTorch has it.
    """

    def rewrite(arguments: Arguments) -> Lowered:
        unless(arguments, "out", None)
        x = operand(arguments, "input")
        _typed(arguments, x)
        return name, {"input": x, **_over(arguments, x)}

    return rewrite


def softmax(name: str) -> Rewrite:
    """``softmax`` or ``log_softmax`` along a dimension that is named.

    Example: ``softmax(x, -1, dtype=torch.float32)`` has ``dim`` -1; without a dimension, which
    PyTorch then chooses by the number of dimensions, it is refused.
    """

    def rewrite(arguments: Arguments) -> Lowered:
        x = operand(arguments, "input")
        _typed(arguments, x)
        return name, {"input": x, "dim": whole(arguments, "dim")}

    return rewrite


def norm(arguments: Arguments) -> Lowered:
    """The root of the sum of squares, for example 5 of [3, 4]; of one dimension that is any norm of
    order 2."""
    unless(arguments, "p", "fro", 2, 2.0)
    unless(arguments, "dtype", None)
    unless(arguments, "out", None)
    x = operand(arguments, "input")
    return "norm", {"input": x, **_over(arguments, x)}


def some(arguments: Arguments) -> Composed:
    """Whether any of the truth values is true, of all or along dimensions.

    Example: of [[0, 1], [0, 0]] along 1 it is [1, 0]: ``sum`` and ``step``.
    """
    unless(arguments, "out", None)
    x = operand(arguments, "input")
    if x.dtype != "bool":
        raise Refused(f"bits of {x.dtype}")
    if arguments.get("dim") == ():
        # Of no dimension it is of none or of all, by the version of PyTorch.
        raise Refused("dim of no dimension")
    chain = Chain(x)
    chain("step", chain("sum", 0, **_over(arguments, x)))
    return chain.done()


def _over(arguments: Arguments, x: Tensor) -> dict[str, tuple[int, ...] | bool]:
    """The dimensions that are reduced, as attributes: none, or an empty list, is all of them."""
    unless(arguments, "keepdim", True, False)
    given = arguments.get("dim")
    dims = () if given is None else wholes(given, "dim")
    keepdim = arguments.get("keepdim") is True
    if not dims and keepdim:
        dims = tuple(range(len(x.shape)))
    attrs: dict[str, tuple[int, ...] | bool] = {"dim": dims} if dims else {}
    if keepdim:
        attrs["keepdim"] = True
    return attrs


def _typed(arguments: Arguments, x: Tensor) -> None:
    """Refuse a type in which other numbers are computed: the operand is cast to it first."""
    kind = arguments.get("dtype")
    if kind is None:
        return
    name = kind.name if isinstance(kind, DType) else ""
    counts = name == "int64" and (x.dtype == "bool" or x.dtype.startswith("int"))
    if not counts and not name.startswith(("float", "bfloat")):
        raise Refused(f"dtype {shown(kind)}")

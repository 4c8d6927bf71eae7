"""What operators of ATen give for known numbers, by NumPy.

A rule takes the node, whose shape and element type are the result's, and the operator's arguments
by the names of its schema; other arguments are refused by Python itself.  What says how a tensor
lies in memory is left out before.  A result is an array, or a list of them; `computed.fitting`
gives it the node's element type.  For example the rule of ``aten.triu.default`` is ``numpy.triu``
of the operand and the diagonal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardproof.frontends.aten.rules import wrapped
from shardproof.frontends.fx.records import Node

Array = NDArray[Any]
Rule = Callable[..., Any]

#: Arguments that change nothing about the numbers of a result, whose element type the node has.
IRRELEVANT: Final = frozenset(
    {"dtype", "device", "layout", "pin_memory", "memory_format", "non_blocking", "copy"}
)
#: Element types in which numbers are computed, by torch's names.
TYPES: Final[Mapping[str, type[np.generic]]] = {
    "bool": np.bool_,
    "uint8": np.uint8,
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int64,
    "float16": np.float32,
    "bfloat16": np.float32,
    "float32": np.float32,
    "float64": np.float64,
    "complex64": np.complex64,
    "complex128": np.complex128,
}
#: Operators that read no number of their first operand: its shape at most, and that the result has.
SHAPE_ALONE: Final = frozenset(
    [f"aten.new_{name}.default" for name in ("full", "zeros", "ones")]
    + [f"aten.{name}_like.default" for name in ("full", "zeros", "ones")]
)
RULES: Final[dict[str, Rule]] = {}


def rule_for(*names: str) -> Callable[[Rule], Rule]:
    """Registers a rule under names of ATen's overloads.

    Example: ``@rule_for("triu.default")`` above the rule of ``aten.triu.default``.
    """

    def register(rule: Rule) -> Rule:
        RULES.update((f"aten.{name}", rule) for name in names)
        return rule

    return register


def shape_of(node: Node) -> tuple[int, ...]:
    """The shape that a node has.

    Example: of a node of float32 [2, 3] it is (2, 3).
    """
    return tuple(node.shape or ())


# -- tensors of nothing --------------------------------------------------------------------------


@rule_for("arange.default")
def _arange(node: Node, end: float) -> Any:
    return _steps(node, 0, end, 1)


@rule_for("arange.start", "arange.start_step")
def _arange_from(node: Node, start: float, end: float, step: float = 1) -> Any:
    return _steps(node, start, end, step)


def _steps(node: Node, start: float, end: float, step: float) -> Any:
    if shape_of(node) != (max(0, ceil((end - start) / step)),):
        raise ValueError("another number of positions than the node has")
    if not any(name in (node.dtype or "") for name in ("float", "complex")):
        start, step = int(start), int(step)  # PyTorch cuts both before it counts
    return start + step * np.arange(*shape_of(node))


@rule_for("full.default", "new_full.default", "full_like.default")
def _full(node: Node, *sizes_and_number: Any) -> Any:
    return np.full(shape_of(node), sizes_and_number[-1])


@rule_for("zeros.default", "zeros_like.default", "new_zeros.default")
def _zeros(node: Node, *_: Any) -> Any:
    return np.zeros(shape_of(node))


@rule_for("ones.default", "ones_like.default", "new_ones.default")
def _ones(node: Node, *_: Any) -> Any:
    return np.ones(shape_of(node))


@rule_for("scalar_tensor.default")
def _scalar(node: Node, number: Any) -> Any:
    return np.asarray(number)


@rule_for("eye.default", "eye.m")
def _eye(node: Node, *_: int) -> Any:
    rows, columns = shape_of(node)
    return np.eye(rows, columns)


@rule_for("linspace.default")
def _linspace(node: Node, start: float, end: float, steps: int) -> Any:
    return np.linspace(start, end, steps)


@rule_for("tril_indices.default")
def _tril_indices(node: Node, row: int, col: int, offset: int = 0) -> Any:
    return np.stack(np.tril_indices(row, offset, col))


@rule_for("triu_indices.default")
def _triu_indices(node: Node, row: int, col: int, offset: int = 0) -> Any:
    return np.stack(np.triu_indices(row, offset, col))


# -- entry by entry ------------------------------------------------------------------------------


def _unary(function: Callable[[Any], Any], *names: str) -> None:
    @rule_for(*(f"{name}.default" for name in names))
    def rule(node: Node, x: Array) -> Any:
        # Of whole numbers of few bits NumPy's functions give floats of few bits.
        wide = x.dtype.kind in "iub" and "float" in (node.dtype or "")
        return function(x.astype(np.float64) if wide else x)


for _function, _names in (
    (np.abs, ("abs",)),
    (np.negative, ("neg",)),
    (np.cos, ("cos",)),
    (np.sin, ("sin",)),
    (np.tan, ("tan",)),
    (np.arcsin, ("asin",)),
    (np.arccos, ("acos",)),
    (np.arctan, ("atan",)),
    (np.sinh, ("sinh",)),
    (np.cosh, ("cosh",)),
    (np.tanh, ("tanh",)),
    (np.exp, ("exp",)),
    (np.exp2, ("exp2",)),
    (np.expm1, ("expm1",)),
    (np.log, ("log",)),
    (np.log2, ("log2",)),
    (np.log10, ("log10",)),
    (np.log1p, ("log1p",)),
    (np.sqrt, ("sqrt",)),
    (lambda x: 1 / x, ("reciprocal",)),
    (np.square, ("square",)),
    (np.floor, ("floor",)),
    (np.ceil, ("ceil",)),
    (np.trunc, ("trunc",)),
    (np.rint, ("round",)),
    (np.sign, ("sign", "sgn")),
    (np.logical_not, ("logical_not",)),
    (np.invert, ("bitwise_not",)),
):
    _unary(_function, *_names)


@rule_for("rsqrt.default")
def _rsqrt(node: Node, x: Array) -> Any:
    return 1 / np.sqrt(x.astype(np.float64))


@rule_for("sigmoid.default")
def _sigmoid(node: Node, x: Array) -> Any:
    return 1 / (1 + np.exp(-x.astype(np.float64)))


@rule_for("relu.default")
def _relu(node: Node, x: Array) -> Any:
    return np.maximum(x, 0)


def _typed(node: Node, *operands: Any) -> list[Any]:
    """Operands in the element type of the result, in which PyTorch computes with them."""
    dtype = TYPES[node.dtype or ""]
    return [np.asarray(x).astype(dtype, copy=False) for x in operands]


def _binary(function: Callable[[Any, Any], Any], *names: str) -> None:
    @rule_for(*names)
    def rule(node: Node, x: Any, y: Any) -> Any:
        return function(*_typed(node, x, y))


def _predicate(function: Callable[[Any, Any], Any], *names: str) -> None:
    """Two operands with a truth value, which are compared in their own types."""

    @rule_for(*names)
    def rule(node: Node, x: Any, y: Any) -> Any:
        return function(_beside(x, y), _beside(y, x))


def _beside(number: Any, array: Any) -> Any:
    """A whole number, or an array without dimensions of one, in the type of the array of whole
    numbers that it is compared with: it keeps the lowest bits, as in PyTorch."""
    kinds = [np.asarray(x).dtype.kind for x in (number, array)]
    if np.ndim(number) or not np.ndim(array) or not all(kind in "iu" for kind in kinds):
        return number
    return np.asarray(wrapped(int(number), np.asarray(array).dtype.name))


def _whole(*numbers: Any) -> bool:
    return all(np.asarray(n).dtype.kind in "iub" for n in numbers)


def _no_zero(x: Any, y: Any) -> None:
    """Whole numbers by zero are an error, where NumPy has a number."""
    if _whole(x, y) and not np.all(y):
        raise ZeroDivisionError


def _remainder(x: Any, y: Any) -> Any:
    _no_zero(x, y)
    return np.remainder(x, y)


def _fmod(x: Any, y: Any) -> Any:
    _no_zero(x, y)
    return np.fmod(x, y)


def _floor_divide(x: Any, y: Any) -> Any:
    _no_zero(x, y)
    return np.floor_divide(x, y)


def _both(name: str) -> tuple[str, str]:
    return f"{name}.Tensor", f"{name}.Scalar"


for _pair, _named in (
    (np.multiply, _both("mul")),
    (_remainder, (*_both("remainder"), "remainder.Scalar_Tensor")),
    (_fmod, _both("fmod")),
    (_floor_divide, ("floor_divide.default", "floor_divide.Scalar")),
    (np.power, ("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar")),
    (np.maximum, ("maximum.default", "max.other")),
    (np.minimum, ("minimum.default", "min.other")),
    (np.arctan2, ("atan2.default",)),
    (np.bitwise_and, (*_both("bitwise_and"), *_both("__and__"))),
    (np.bitwise_or, (*_both("bitwise_or"), *_both("__or__"))),
    (np.bitwise_xor, (*_both("bitwise_xor"), *_both("__xor__"))),
    (np.matmul, ("matmul.default", "mm.default", "bmm.default", "mv.default", "dot.default")),
    (np.multiply.outer, ("outer.default",)),
):
    _binary(_pair, *_named)

for _pair, _named in (
    (np.equal, _both("eq")),
    (np.not_equal, _both("ne")),
    (np.less, _both("lt")),
    (np.less_equal, _both("le")),
    (np.greater, _both("gt")),
    (np.greater_equal, _both("ge")),
    (np.logical_and, ("logical_and.default",)),
    (np.logical_or, ("logical_or.default",)),
    (np.logical_xor, ("logical_xor.default",)),
):
    _predicate(_pair, *_named)


@rule_for("add.Tensor", "add.Scalar")
def _add(node: Node, x: Any, y: Any, alpha: float = 1) -> Any:
    x, y = _typed(node, x, y)
    return x + alpha * y if alpha != 1 else x + y


@rule_for("sub.Tensor", "sub.Scalar")
def _sub(node: Node, x: Any, y: Any, alpha: float = 1) -> Any:
    x, y = _typed(node, x, y)
    return x - alpha * y


@rule_for("rsub.Tensor", "rsub.Scalar")
def _rsub(node: Node, x: Any, y: Any, alpha: float = 1) -> Any:
    x, y = _typed(node, x, y)
    return y - alpha * x


@rule_for("div.Tensor", "div.Scalar", "div.Tensor_mode", "div.Scalar_mode")
def _div(node: Node, x: Any, y: Any, rounding_mode: str | None = None) -> Any:
    x, y = _typed(node, x, y)
    if rounding_mode == "floor":
        return _floor_divide(x, y)
    if rounding_mode == "trunc" and _whole(x, y):
        return np.sign(x) * np.sign(y) * _floor_divide(np.abs(x), np.abs(y))
    quotient = np.true_divide(x, y)
    return quotient if rounding_mode is None else {"trunc": np.trunc}[rounding_mode](quotient)


@rule_for("clamp.default", "clamp.Tensor")
def _clamp(node: Node, x: Array, min: Any = None, max: Any = None) -> Any:
    return np.clip(x, min, max)


@rule_for("clamp_min.default")
def _clamp_min(node: Node, x: Array, min: Any) -> Any:
    return np.maximum(x, min)


@rule_for("clamp_max.default")
def _clamp_max(node: Node, x: Array, max: Any) -> Any:
    return np.minimum(x, max)


@rule_for("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")
def _where(node: Node, condition: Array, x: Any, y: Any) -> Any:
    return np.where(condition, x, y)


@rule_for("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(node: Node, x: Array, mask: Array, number: Any) -> Any:
    return np.where(mask, number, x)


@rule_for("tril.default")
def _tril(node: Node, x: Array, diagonal: int = 0) -> Any:
    return np.tril(x, diagonal)


@rule_for("triu.default")
def _triu(node: Node, x: Array, diagonal: int = 0) -> Any:
    return np.triu(x, diagonal)


# -- over a dimension ----------------------------------------------------------------------------


def _over(function: Callable[..., Any], *names: str) -> None:
    @rule_for(*names)
    def rule(
        node: Node, x: Array, dim: Sequence[int] | int | None = None, keepdim: bool = False
    ) -> Any:
        axes = dim if isinstance(dim, int) else tuple(dim or ()) or None
        adds = function in (np.sum, np.mean)
        return function(*(_typed(node, x) if adds else [x]), axis=axes, keepdims=keepdim)


for _reduce, _overloads in (
    (np.sum, ("sum.default", "sum.dim_IntList")),
    (np.mean, ("mean.default", "mean.dim")),
    (np.max, ("amax.default",)),
    (np.min, ("amin.default",)),
    (np.all, ("all.default", "all.dim", "all.dims")),
    (np.any, ("any.default", "any.dim", "any.dims")),
):
    _over(_reduce, *_overloads)


@rule_for("max.default")
def _max(node: Node, x: Array) -> Any:
    return np.max(x)


@rule_for("min.default")
def _min(node: Node, x: Array) -> Any:
    return np.min(x)


@rule_for("einsum.default")
def _einsum(node: Node, equation: str, xs: Sequence[Array]) -> Any:
    return np.einsum(equation, *xs)


@rule_for("cumsum.default")
def _cumsum(node: Node, x: Array, dim: int) -> Any:
    (own,) = _typed(node, x)
    return np.cumsum(own, dim) if own.ndim else own

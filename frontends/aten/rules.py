"""The rules that lower ATen overloads, by the overloads' names.

Comes in: functions that the other files of this folder declare with `lowers`. Goes out: `rule_of`,
the rule of an overload, and `typed`, its result with the element type that PyTorch gives it.

Example: ``rule_of("aten.add_.Tensor")`` is the rule of ``aten.add.Tensor``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import wraps
from math import isfinite
from typing import Any, Final, TypeAlias

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten.aliases import ALIASES
from shardproof.frontends.aten.integral import keeps_type, whole
from shardproof.frontends.aten.lowering import Const, Lowered, Lowering, Real, Undefined, floating

#: (lowering, arguments ...) -> results.
Rule: TypeAlias = Callable[..., Any]

TABLE: dict[str, Rule] = {}

#: Types whose sums and products wrap around, or are no sums.
NARROW: Final = frozenset({"bool", "uint8", "int8", "int16"})
#: Bits of the types of whole numbers.
BITS: Final = {"uint8": 8, "int8": 8, "int16": 16, "int32": 32, "int64": 64}
#: Operators that PyTorch gives their numbers in the type of the tensors that they meet.
IN_TYPE: Final = frozenset(
    {
        *(
            f"aten.{name}.{kind}"
            for name in ("eq", "ne", "lt", "le", "gt", "ge")
            for kind in ("Tensor", "Scalar")
        ),
        *(f"aten.{name}.default" for name in ("clamp", "clamp_min", "clamp_max")),
        *(f"aten.{name}.Tensor" for name in ("clamp", "clamp_min", "clamp_max")),
        *(f"aten.{name}.default" for name in ("maximum", "minimum")),
        *(f"aten.where.{kind}" for kind in ("self", "ScalarOther", "ScalarSelf")),
        *("aten.bitwise_and.Scalar", "aten.__and__.Scalar"),
    }
)


def lowers(*names: str) -> Callable[[Rule], Rule]:
    """Decorator: how the ATen overloads ``names`` are written; arguments as in ATen's schema.

    Example: ``@lowers("aten.t.default")`` above ``def _t(lo, x)``; a second rule of that name is a
    ``ValueError``.
    """

    def register(rule: Rule) -> Rule:
        for name in names:
            if name in TABLE:
                raise ValueError(f"{name} is lowered twice")
            TABLE[name] = _in_type(rule) if name in IN_TYPE else rule
        return rule

    return register


def rule_of(name: str) -> Rule | None:
    """The rule of an overload; one that writes its operand has that of the one that does not, one
    over lists that of the one over tensors, item by item; a second name that of the first.

    Example: "aten.add_.Tensor" has the rule of "aten.add.Tensor", "aten._foreach_neg.default" that
    of "aten.neg.default" for each item; "aten.nonsense.default" has none.
    """
    if name in TABLE:
        return TABLE[name]
    first = ALIASES.get(name.removeprefix("aten."))
    if first is not None:
        return TABLE[f"aten.{first}"]
    namespace, _, rest = name.partition(".")
    base, _, overload = rest.partition(".")
    base = base.removesuffix("_")
    if base.startswith("_foreach_"):
        single = base.removeprefix("_foreach_")
        kind = _FOREACH.get(overload, "")
        kinds = (_NUMBER_SECOND.get(single, kind) if kind == "Scalar" else kind, "default")
        rules = [r for r in (TABLE.get(f"{namespace}.{single}.{kind}") for kind in kinds) if r]
        return _each(rules[0]) if rules else None
    if overload == "out":
        # What it writes, and nothing else, sets it apart.
        kinds = ("default", "Tensor")
        return next((r for k in kinds if (r := TABLE.get(f"{namespace}.{base}.{k}"))), None)
    plain = f"{base}.{overload.removesuffix('_out')}"
    return TABLE.get(f"{namespace}.{ALIASES.get(plain, plain)}")


def without_entries(lo: Lowering) -> list[Undefined]:
    """The results of an operator, if none of them has an entry: whatever it is, there is one such
    tensor of a shape.  Else nothing.

    Example: the gradient of a rank that holds none of a parameter's rows, times a number.
    """
    if any(0 not in shape for shape, _ in lo.expected):
        return []
    return [Undefined(shape, dtype) for shape, dtype in lo.expected]


def typed(lo: Lowering, x: Any, dtype: str) -> Any:
    """What a rule made of a tensor, as the element type that PyTorch gives the result: what is
    computed of whole numbers need not be whole, and a reader of it goes by its type.  Raises
    `Unsupported` where whole numbers are expected of what has fractions, or may leave its type.

    Example: ``ids / 2`` is float32, so that ``(ids / 2).long()`` drops a fraction;
    ``x.sum(dtype=torch.int64)`` of floats, whose rule adds fractions up, is refused, and so is
    ``avg_pool1d`` of whole numbers, whose means PyTorch cuts to whole ones.
    """
    if not isinstance(x, (Real, Const)) or not dtype:
        return x
    if x.dtype != dtype and not floating(dtype) and (floating(x.dtype) or dtype in NARROW):
        raise Unsupported(f"{dtype} computed of {x.dtype}")
    if not floating(dtype):
        _check_whole(lo, x, dtype)
    return x if x.dtype == dtype else replace(x, dtype=dtype)


def _check_whole(lo: Lowering, x: Real | Const, dtype: str) -> None:
    """Raises `Unsupported` for what is none of a type of whole numbers."""
    if isinstance(x, Const):
        if x.value.denominator != 1:
            raise Unsupported(f"{x.value} as {dtype}")
        return
    if x.domain is None and x.number not in lo.integral and dtype != "bool":
        if dtype in NARROW and not keeps_type(lo, x.number, dtype):
            raise Unsupported(f"arithmetic of {dtype}")
        if not whole(lo, x.number):
            raise Unsupported(f"{dtype} computed of fractions")
    lo.integral.add(x.number)


def written_as(lo: Lowering, source: Lowered, dtype: str) -> Any:
    """What is written into a tensor of an element type, which is cast to that.

    Example: 0.7, written into a tensor of whole numbers, is 0.
    """
    return source if source.dtype == dtype else TABLE["move.cast"](lo, source, dtype)


def number_as(number: Any, dtype: str) -> Any:
    """A number of Python's as a tensor of an element type has it; what is none is returned.

    Example: 1.5 is 1 in a tensor of whole numbers, and true in one of truth values.
    """
    if not isinstance(number, (int, float)):
        return number
    if dtype == "bool":
        return int(bool(number))
    if floating(dtype) or not isfinite(number):
        return number
    return wrapped(int(number), dtype)


def wrapped(number: int, dtype: str) -> int:
    """A whole number as one of a type, whose lowest bits it keeps.

    Example: -1 is 255 as uint8, and 200 is -56 as int8.
    """
    if dtype not in BITS:
        return number
    least = 0 if dtype.startswith("u") else -(1 << BITS[dtype] - 1)
    return (number - least) % (1 << BITS[dtype]) + least


def _in_type(rule: Rule) -> Rule:
    """A rule whose numbers, and tensors without dimensions, have the type of the tensors of whole
    numbers that they meet, as PyTorch has it: ``bytes > -1`` compares with 255."""

    @wraps(rule)
    def with_numbers(lo: Lowering, *args: Any, **kwargs: Any) -> Any:
        dtype = _met([*args, *kwargs.values()])
        if dtype is not None:
            args = tuple(_of_type(x, dtype) for x in args)
            kwargs = {key: _of_type(x, dtype) for key, x in kwargs.items()}
        return rule(lo, *args, **kwargs)

    return with_numbers


def _met(operands: Sequence[Any]) -> str | None:
    """The type that numbers get beside tensors; None: they stay what they are.

    Example: int8 beside a tensor of int8; none where one of them is a fraction.
    """
    tensors = [x for x in operands if hasattr(x, "shape") and x.dtype != "bool"]
    types: set[str] = {x.dtype for x in tensors if x.shape}
    kinds = (*types, *(x.dtype for x in tensors))
    if len(types) != 1 or any(isinstance(x, float) for x in operands) or any(map(floating, kinds)):
        return None
    return types.pop()


def _of_type(x: Any, dtype: str) -> Any:
    """A number, or a tensor without dimensions, in a type of whole numbers."""
    if isinstance(x, int) and not isinstance(x, bool):
        return wrapped(x, dtype)
    if not hasattr(x, "shape") or x.shape or x.dtype in (dtype, "bool"):
        return x
    if isinstance(x, Const) and x.value.denominator == 1:
        return Const(Fraction(wrapped(int(x.value), dtype)), x.shape, dtype)
    if dtype in NARROW:
        raise Unsupported(f"a number of {x.dtype} beside numbers of {dtype}")
    return x


#: Overloads over lists of tensors, and those over tensors.
_FOREACH = {"Scalar": "Scalar", "ScalarList": "Scalar", "List": "Tensor", "Tensor": "Tensor"}
#: Those whose overload with a number as the first operand is another function.
_NUMBER_SECOND = {"pow": "Tensor_Scalar"}


def _each(rule: Rule) -> Rule:
    """A rule for lists: each item of lists, what is no list for all of them."""

    def each(lo: Lowering, xs: Sequence[Lowered], *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        results = []
        expected = lo.expected
        for i, x in enumerate(xs):
            own = [a[i] if isinstance(a, (list, tuple)) else a for a in args]
            lo.expected = expected[i : i + 1]
            none = without_entries(lo)
            results.append(none[0] if none else rule(lo, x, *own, **kwargs))
        lo.expected = expected
        return tuple(results)

    return each


def scratch(lo: Lowering, index: int) -> Undefined | None:
    """What an operator gives beside its results for its derivative alone, as the result of this
    number: how it is laid out, each device decides.  None: nobody names it.

    Example: the second result of ``log_sigmoid_forward``, which is empty on GPUs.
    """
    if index >= len(lo.expected):
        return None
    return Undefined(*lo.expected[index], "what an operator keeps for its derivative")

"""Operators on rows in an order that data decide (`frontends.aten.arranged`): what does not depend
on the order is computed of the rows as they were before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten.arranged import ORDERED, Arranged, Inverse, Numbers, again, settled
from shardproof.frontends.aten.lowering import Const, Lowering
from shardproof.frontends.aten.rules import Rule, rule_of

#: Operators of which an entry of the result depends on the entries at its place alone.
ENTRYWISE: Final = frozenset(
    f"aten.{name}"
    for names, overloads in (
        ("add sub mul div rsub eq ne lt le gt ge", ("Tensor", "Scalar")),
        ("pow", ("Tensor_Scalar",)),
        ("neg silu gelu relu sigmoid tanh exp log sqrt rsqrt square reciprocal", ("default",)),
        ("abs clamp clamp_min clamp_max softplus elu leaky_relu hardtanh", ("default",)),
        ("silu_backward gelu_backward sigmoid_backward tanh_backward", ("default",)),
        ("threshold_backward elu_backward softplus_backward clone detach alias", ("default",)),
        ("hardtanh_backward leaky_relu_backward _to_copy logical_not where", ("default", "self")),
        ("masked_fill bitwise_and bitwise_or", ("Scalar", "Tensor")),
        ("to", ("dtype",)),
        ("minimum maximum logical_and logical_or addcmul addcdiv mish hardswish", ("default",)),
        (
            "hardswish_backward mish_backward log1p expm1 erf sin cos sign sgn lerp",
            ("default", "Tensor"),
        ),
    )
    for name in (f"{n}.{o}" for n in names.split() for o in overloads)
)
#: What moves a tensor that is no value yet by itself, where it can be.
_MOVES: Final = frozenset(f"move.{name}" for name in ("reshape", "slice", "permute", "expand"))
#: What reads of a tensor nothing but its shape and its type.
_LIKE: Final = frozenset(
    f"aten.{name}.default"
    for name in ("new_zeros", "new_empty", "new_full", "zeros_like", "ones_like", "empty_like")
)
#: Operators that have a meaning in an order alone, and what is said where there is none.
_UNREAD: Final = {
    "aten._grouped_mm.default": "products of groups whose rows are not in the order of their ids"
}


def applied(
    lo: Lowering, rule: Rule | None, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """The result of an operator, of rows in an order where its operands are, else by its ``rule``.

    Example: ``silu`` of rows in an order is ``silu`` of the rows, in that order.
    """
    plain = plain_name(name)
    result = None
    if plain in ORDERED:
        result = ORDERED[plain](lo, *args, **kwargs)
    if result is None and plain in ENTRYWISE and rule is not None:
        result = _by_entry(lo, rule, args, kwargs)
    if result is not None:
        return result
    if rule is None:
        raise Unsupported(_UNREAD.get(name) or f"operator {name} has no lowering")
    if plain in _MOVES or plain in _LIKE:
        return rule(lo, *args, **kwargs)
    given = [settled(lo, x) for x in args]
    return rule(lo, *given, **{key: settled(lo, x) for key, x in kwargs.items()})


def is_read(name: str) -> bool:
    """Whether there is a meaning of an operator: a rule of its own, or one in an order.

    Example: ``is_read("aten._grouped_mm.default")`` is True, "aten.nonsense.default" has none.
    """
    return rule_of(name) is not None or plain_name(name) in ORDERED


def plain_name(name: str) -> str:
    """The name of the overload that does not write its operand.

    Example: of "aten.add_.Tensor" it is "aten.add.Tensor".
    """
    namespace, _, rest = name.partition(".")
    base, dot, overload = rest.partition(".")
    return f"{namespace}.{base.removesuffix('_')}{dot}{overload}"


def _by_entry(lo: Lowering, rule: Rule, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """An operator by entries on rows in one order, beside what all rows read alike."""
    like = next((x for x in args if isinstance(x, Arranged)), None)
    if like is None or any(isinstance(x, Arranged) for x in kwargs.values()):
        return None
    back = len(like.shape) - like.at
    if not all(_alike(x, like, back) for x in args):
        return None
    bases = [x.base if isinstance(x, Arranged) else x for x in args]
    if any(isinstance(x, Numbers) for x in bases):
        return None
    return again(lo, rule(lo, *bases, **kwargs), like, -back)


def _alike(x: Any, like: Arranged, back: int) -> bool:
    """Whether an operand is in the order, that many dimensions before the last, or the same for
    every row."""
    if isinstance(x, Arranged):
        return x.order is like.order and len(x.shape) - x.at == back
    if isinstance(x, (list, tuple, Inverse)):
        return False
    shape = getattr(x, "shape", ())
    return isinstance(x, Const) or len(shape) < back or shape[-back] == 1

"""What a plan computes that is no tensor: sizes, and numbers made of sizes.

A model that reads ``x.size(0)`` has in its plan an operator that gives an object, and operators
whose arguments that object is among.  A size on a device is that of the part that it has.  Other
objects, such as what a data loader gives beside tensors, are not known, nor are those that another
device made: what reads one is refused by name.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from shardproof.frontends.nnscaler.cells import ForwardOp
from shardproof.frontends.nnscaler.records import MAX_ID, Constant, ObjectRef, Tensor

_MOST_ITEMS: Final = 64


class Objects:
    """The objects that a device knows, those of all its segments; one that two of these make unlike
    is not known.

    Example: after ``note({5: 4})`` and ``note({5: 2})`` object 5 is not known.
    """

    def __init__(self) -> None:
        self.known: dict[int, Constant] = {}
        self._unlike: set[int] = set()

    def note(self, made: Mapping[int, Constant]) -> None:
        """Remember the objects that a body made."""
        for number, value in made.items():
            if self.known.setdefault(number, value) != value:
                self._unlike.add(number)
        for number in self._unlike:
            self.known.pop(number, None)


class _Unknown(Exception):
    """An object that is not known, or a call that is not understood."""


def resolved(op: ForwardOp, known: Mapping[int, Constant]) -> ForwardOp:
    """An operator with the objects that are known in the place of their names.

    Example: ``view(x, size=(size_5, 4))``, where object 5 is 2, is ``view(x, size=(2, 4))``.
    """
    inputs = _filled(op.inputs, known)
    kwargs = {key: _filled(value, known) for key, value in op.kwargs.items()}
    if inputs == op.inputs and kwargs == op.kwargs:
        return op
    assert isinstance(inputs, tuple)
    return replace(op, inputs=inputs, kwargs=kwargs)


def _filled(value: Constant, known: Mapping[int, Constant]) -> Constant:
    if isinstance(value, ObjectRef):
        return known.get(value.id, value)
    if isinstance(value, tuple):
        return tuple(_filled(item, known) for item in value)
    if isinstance(value, slice):
        return slice(*(_filled(x, known) for x in (value.start, value.stop, value.step)))
    return value


def computed(op: ForwardOp) -> dict[int, Constant] | None:
    """The objects that an operator gives, by their numbers; None for an operator that gives
    tensors, or that is not understood.

    Example: ``torch.Tensor.size`` of x [2, 4] with ``dim=1``, whose result is object 5, is {5: 4}.
    """
    function = _FUNCTIONS.get(op.signature)
    if function is None or not op.outputs or any(isinstance(x, Tensor) for x in op.outputs):
        return None
    made: dict[int, Constant] = {}
    try:
        result = _plain(function(*op.inputs, **op.kwargs))
        # Several results are listed, or are one object.
        if len(op.outputs) == 1:
            _bind(op.outputs[0], result, made)
        else:
            _bind(op.outputs, result, made)
    except (_Unknown, TypeError, ValueError, ArithmeticError, IndexError):
        return None
    return made


def _bind(name: Constant, value: Constant, made: dict[int, Constant]) -> None:
    if isinstance(name, ObjectRef):
        made[name.id] = value
    elif isinstance(name, tuple) and isinstance(value, tuple) and len(name) == len(value):
        for own, item in zip(name, value, strict=True):
            _bind(own, item, made)
    else:
        raise _Unknown


def _plain(value: Any) -> Constant:
    """Numbers and short lists and slices of them."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) <= MAX_ID:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, (tuple, list)) and len(value) <= _MOST_ITEMS:
        return tuple(map(_plain, value))
    if isinstance(value, slice):
        return slice(*map(_plain, (value.start, value.stop, value.step)))
    raise _Unknown


def _shape(x: Any) -> tuple[int, ...]:
    """The sizes of a tensor.  One of shape (1,) may be a scalar, which has none."""
    if not isinstance(x, Tensor) or x.shape == (1,):
        raise _Unknown
    return x.shape


def _size(x: Any, dim: Any = None) -> Any:
    return _shape(x) if dim is None else _item(_shape(x), dim)


def _attribute(x: Any, name: Any) -> Any:
    if name != "shape":
        raise _Unknown
    return _shape(x)


def _item(x: Any, index: Any) -> Any:
    if not isinstance(x, tuple) or not isinstance(index, (int, slice)):
        raise _Unknown
    return x[index]


def _of_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of numbers alone: of a text or a list ``*`` would be something else."""

    def call(*numbers: Any) -> Any:
        if not all(isinstance(x, (int, float)) for x in numbers):
            raise _Unknown
        return function(*numbers)

    return call


def _is(x: Any, y: Any) -> bool:
    """Whether one thing is another: of None and truth values, of which there is one each."""
    one = (x is None or isinstance(x, bool)), (y is None or isinstance(y, bool))
    if not any(one) or isinstance(x, ObjectRef) or isinstance(y, ObjectRef):
        raise _Unknown
    return x is y


def _listed(x: Any) -> Any:
    if not isinstance(x, tuple):
        raise _Unknown
    return x


_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "torch.Tensor.size": _size,
    "torch.Tensor.dim": lambda x: len(_shape(x)),
    "torch.Tensor.numel": lambda x: math.prod(_shape(x)),
    "builtins.getattr": _attribute,
    "builtins.len": lambda x: len(_listed(x)),
    "builtins.tuple": _listed,
    "builtins.list": _listed,
    "builtins.slice": lambda *ends: slice(*ends),
    "_operator.getitem": _item,
    "_operator.is_": _is,
    "_operator.is_not": lambda x, y: not _is(x, y),
    "nnscaler.runtime.function.ifexpr": lambda condition, yes, no: (
        yes if _plain(condition) is True else no
    ),
    **{
        f"_operator.{name}": _of_numbers(getattr(operator, name))
        for name in (
            "add", "sub", "mul", "floordiv", "truediv", "mod", "neg",
            "eq", "ne", "lt", "le", "gt", "ge",
        )
    },
    **{
        f"math.{name}": _of_numbers(getattr(math, name))
        for name in ("sqrt", "exp", "log", "ceil", "floor")
    },
    **{f"builtins.{f.__name__}": _of_numbers(f) for f in (int, float, min, max)},
}  # fmt: skip

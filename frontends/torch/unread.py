"""What Python reads of a tensor whose value nobody knows while a step is recorded.

A loss is read to be printed, kept, averaged or divided by.  No value of it is there, so Python gets
an object that stands for the number: it is printed as "nan", what is calculated of it is calculated
of the tensor that was read, and where it meets a tensor it is that tensor.  Who compares it, counts
by it or takes a float of it is refused, since the step would go another way with another value.
Whether one number is finite has an answer: numbers are real.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, NoReturn

import torch
from torch._subclasses.fake_tensor import FakeTensor

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.torch.record import place
from shardproof.frontends.torch.standins import replace

#: What is printed where a step asks whether numbers are finite.
FINITE = "stand-in: whether numbers of the step are finite: they are, where it asks"


class Unread:
    """The number that Python read at ``where`` of a tensor of one element; ``tensor``: that element
    (None: nobody can say).

    Example: of ``loss.item() / 2`` the text is "nan"; ``x / count.item()`` divides by the count;
    ``loss.item() < 2`` is refused.
    """

    def __init__(self, where: str, tensor: torch.Tensor | None) -> None:
        self.where = where
        self.tensor = tensor

    def __repr__(self) -> str:
        return "nan"

    def __format__(self, spec: str) -> str:
        return format(math.nan, spec)

    def __hash__(self) -> int:
        return id(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return float, ("nan",)

    def refused(self, *_: object) -> NoReturn:
        """Raises `InvalidInput`: what follows would depend on the value."""
        raise InvalidInput(
            "Python reads the value of a tensor that depends on the inputs of the step (.item() at "
            f"{self.where}), and does what depends on it"
        )

    def computed(self, kind: str, *others: object) -> Any:
        """What an operator of tensors gives; a tensor where one takes part in it."""
        if self.tensor is None:
            return Unread(self.where, None)
        numbers = [x.tensor if isinstance(x, Unread) else x for x in others]
        if not all(isinstance(x, (float, int, torch.Tensor)) for x in numbers):
            return NotImplemented
        result = getattr(torch.Tensor, kind)(self.tensor, *numbers)
        met = any(isinstance(x, torch.Tensor) for x in others)
        return result if met else Unread(self.where, result)


#: What asks for the value.
ASKING = (
    *("eq", "ne", "lt", "le", "gt", "ge", "bool"),
    *("int", "float", "index", "trunc", "floor", "ceil", "round", "complex"),
)
#: What gives another number, of tensors alike.
COMPUTING = (
    *("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv"),
    *("pow", "rpow", "neg", "abs"),
)


#: What writes its first operand; Python would make a new tensor where that fails.
IN_PLACE = ("__iadd__", "__isub__", "__imul__", "__itruediv__", "__ipow__")


def _computing(kind: str) -> Callable[..., Any]:
    def method(self: Unread, *others: object) -> Any:
        return self.computed(kind, *others)

    return method


for _name in ASKING:
    setattr(Unread, f"__{_name}__", Unread.refused)
for _name in COMPUTING:
    setattr(Unread, f"__{_name}__", _computing(f"__{_name}__"))


def install(note: Callable[[str], None]) -> None:
    """Let ``.item()`` and formats of tensors of one number give such numbers, in this process, for
    good; ``note`` is told where a step asks whether numbers are finite.

    Example: ``print(f"{loss.item():.3f} {loss:.3f}")`` prints "nan nan", and
    ``torch.tensor(loss.item())`` is the loss.
    """
    item: Callable[[torch.Tensor], Any] = torch.Tensor.item
    text: Callable[[torch.Tensor, str], str] = torch.Tensor.__format__

    def read(x: torch.Tensor) -> Any:
        try:
            return item(x)
        except InvalidInput:
            if x.dtype is torch.bool:
                raise
            plain = isinstance(x, (FakeTensor, torch.nn.Parameter)) or type(x) is torch.Tensor
            own = x.detach().reshape(()).clone() if plain else None
            return Unread(place(sys._getframe(1))[0], own)

    def formatted(x: torch.Tensor, spec: str) -> str:
        return format(x.item(), spec) if x.dim() == 0 else text(x, spec)

    replace(torch.Tensor, "item", read)
    replace(torch.Tensor, "__format__", formatted)
    replace(torch, "tensor", _made(torch.tensor))
    for kind in IN_PLACE:
        replace(torch.Tensor, kind, _written(getattr(torch.Tensor, kind)))
    for name, value in (("isnan", False), ("isinf", False), ("isfinite", True)):
        replace(math, name, _finite(getattr(math, name), value, note))
        for owner in (torch, torch.Tensor):
            replace(owner, name, _all_finite(getattr(owner, name), value, note))


def _written(operator: Callable[..., Any]) -> Callable[..., Any]:
    """An operator that writes its first operand, with the tensor that such a number was read of."""

    @wraps(operator)
    def written(x: torch.Tensor, other: Any) -> Any:
        if not isinstance(other, Unread):
            return operator(x, other)
        if other.tensor is None:
            other.refused()
        return operator(x, other.tensor)

    return written


def _made(tensor: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """``torch.tensor`` of such numbers, alone or in a list: what they were read of."""

    @wraps(tensor)
    def made(data: Any, *args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Any:
        numbers = data if isinstance(data, (list, tuple)) else [data]
        read = [x for x in numbers if isinstance(x, Unread)]
        own = [x.tensor for x in read if x.tensor is not None]
        if not read or len(own) < len(read) or args:
            return tensor(data, *args, dtype=dtype, **kwargs)
        floating = any(x.is_floating_point() for x in own) or len(read) < len(numbers)
        dtype = dtype or (torch.get_default_dtype() if floating else torch.int64)
        parts = [
            x.tensor.to(dtype).clone()
            if isinstance(x, Unread) and x.tensor is not None
            else tensor(x, dtype=dtype)
            for x in numbers
        ]
        result = torch.stack(parts) if numbers is data else parts[0]
        return result.requires_grad_(bool(kwargs.get("requires_grad")))

    return made


def _finite(
    function: Callable[[Any], bool], value: bool, note: Callable[[str], None]
) -> Callable[[Any], bool]:
    @wraps(function)
    def answer(x: Any) -> bool:
        if not isinstance(x, Unread):
            return function(x)
        note(FINITE)
        return value

    return answer


def _all_finite(
    function: Callable[..., torch.Tensor], value: bool, note: Callable[[str], None]
) -> Callable[..., torch.Tensor]:
    @wraps(function)
    def answer(x: torch.Tensor) -> torch.Tensor:
        # PyTorch asks for a shape; or scores are asked for, which a mask makes infinite.
        if x.is_meta or x.dim():
            return function(x)
        note(FINITE)
        return torch.full(x.shape, value, dtype=torch.bool, device=x.device)

    return answer

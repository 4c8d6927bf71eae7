"""``max`` and ``min`` of numbers that nobody knows while a step is recorded.

Python compares its operands one by one and takes a branch, so ``min(1.0, 1.0 / norm)`` would be
refused.  But which of them it takes does not matter, since the result is the number that
`Tensor.clamp` gives.  So these names in the program's modules, and in those of libraries that are
listed here, are functions that ask PyTorch where a number is `Unread`, or a tensor of one element
that depends on the inputs and of which no gradient is asked.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

import torch

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.torch.refusals import answered
from shardproof.frontends.torch.unread import Unread

#: Modules of libraries that do so, for torch 2.13 and transformers 5.23: the optimizer Adafactor.
LIBRARIES = ("torch.optim._adafactor", "transformers.optimization")

#: What is printed where one of them is a tensor: Python's would be the same object.
OWN = "stand-in: max and min of tensors of one element are new tensors; none is written later"
_NOTES: list[Callable[[str], None]] = []


def install(note: Callable[[str], None]) -> None:
    """Tell ``note`` where such a tensor is made.

    Example: a step that scales by ``min(1.0, 1.0 / norm)``, where ``norm`` is a tensor.
    """
    _NOTES[:] = [note]


def _extreme(own: Callable[..., Any], largest: bool) -> Callable[..., Any]:
    def extreme(*args: Any, **kwargs: Any) -> Any:
        several = len(args) > 1 and not kwargs and all(map(_is_number, args))
        if not several or not any(map(_may_be_unknown, args)):
            return own(*args, **kwargs)
        if not any(isinstance(x, Unread) for x in args):
            # Where it depends on the inputs which of them it is, that is refused.
            try:
                return own(*args)
            except InvalidInput as error:
                answered(error)
        return _number(args, largest)

    extreme.__name__ = extreme.__qualname__ = own.__name__
    return extreme


def _number(args: tuple[Any, ...], largest: bool) -> Any:
    """The number, as a tensor where one of them is a tensor."""
    read = [x for x in args if isinstance(x, Unread)]
    for x in read:
        if x.tensor is None:
            x.refused()
    numbers: list[Any] = [x.tensor if isinstance(x, Unread) else x for x in args]
    tensors: list[torch.Tensor] = [x for x in numbers if isinstance(x, torch.Tensor)]
    rest = [x for x in numbers if not isinstance(x, torch.Tensor)]
    result = tensors[0]
    for x in (*tensors[1:], *rest):
        result = _two(result, x, largest)
    if len(read) == len(tensors):
        return Unread(read[0].where, result)
    for note in _NOTES:
        note(OWN)
    return result


def _two(a: torch.Tensor, b: Any, largest: bool) -> torch.Tensor:
    if not isinstance(b, torch.Tensor):
        return a.clamp(min=b) if largest else a.clamp(max=b)
    dtype = torch.promote_types(a.dtype, b.dtype)
    return (torch.maximum if largest else torch.minimum)(a.to(dtype), b.to(dtype))


def _is_number(x: object) -> bool:
    return isinstance(x, (int, float, Unread)) or _is_element(x)


def _is_element(x: object) -> bool:
    if not isinstance(x, torch.Tensor) or x.dim() or x.is_complex():
        return False
    return not x.requires_grad


def _may_be_unknown(x: object) -> bool:
    return isinstance(x, (Unread, torch.Tensor))


#: By the name that a module has for it.
NAMES = {
    "max": _extreme(builtins.max, True),
    "min": _extreme(builtins.min, False),
}

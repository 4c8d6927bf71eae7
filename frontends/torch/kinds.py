"""``type(x)`` in the program's own code, where ``float`` is another class and numbers are unknown.

A program asks ``type(lr) is float``, ``type(x) is torch.Tensor``, or for a type's name, and goes
the way of these.  So the name ``type`` of its modules is a class, too: of a float it gives what
``float`` is there, of what stands for a number, a tensor or a text the type that this has on the
cluster.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensor

from shardproof.frontends.torch.texts import Text
from shardproof.frontends.torch.unread import Unread
from shardproof.frontends.torch.watched import Watched

#: Types by names of the program's modules, and of what stands for something else, its type.
NAMED: Final[dict[type, type]] = {FakeTensor: torch.Tensor, Watched: int, Text: str}


def _type(x: Any) -> type:
    if type(x) is Unread:
        return x.kind
    if type(x) is FakeTensor and isinstance(x, torch.nn.Parameter):
        return torch.nn.Parameter
    return type(x)


class _Asked(type):
    """Calls give types; what is a type is one of it."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is not Type:
            return super().__call__(*args, **kwargs)
        if len(args) != 1 or kwargs:
            return type(*args, **kwargs)
        own = _type(args[0])
        return NAMED.get(own, own)

    def __instancecheck__(cls, x: object) -> bool:
        return isinstance(x, type) if cls is Type else super().__instancecheck__(x)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, type) if cls is Type else super().__subclasscheck__(other)

    def __getitem__(cls, item: Any) -> Any:
        return type[item]

    def __eq__(cls, other: object) -> bool:
        return other is cls or (cls is Type and other is type)

    def __hash__(cls) -> int:
        return hash(type) if cls is Type else super().__hash__()


class Type(type, metaclass=_Asked):
    """What ``type`` is in the modules of a program that is recorded.

    Example: ``type(loss.item()) is float`` and ``type(1.0) is float`` are true, as ever.
    """


NAMED[type] = Type
Type.__name__ = "type"

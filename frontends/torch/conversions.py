"""``float(loss)`` in the program's own code.

Python makes a plain float of whatever it asks for one, so a number that nobody knows would be
forgotten.  So the name ``float`` of the program's modules is a class that gives an `Unread` number
for such a tensor, and else does what ``float`` does.  Code of libraries has the one of Python, for
which such a number is refused.  ``max`` and ``min`` are replaced alike (`extremes`), ``type``
(`kinds`), ``set``, ``frozenset`` and ``sorted`` (`unordered`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, MutableMapping
from functools import wraps
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import Any

import torch

from shardproof.frontends.torch import extremes, unordered
from shardproof.frontends.torch.kinds import NAMED, Type
from shardproof.frontends.torch.standins import replace
from shardproof.frontends.torch.unread import Unread, read_back


class _Reading(type):
    """Calls give floats and `Unread` numbers; of both one may ask whether they are floats."""

    def __call__(cls, *args: Any) -> Any:
        if len(args) == 1:
            x = args[0]
            if isinstance(x, Unread):
                return x
            if isinstance(x, torch.Tensor):
                value = x.item()
                return value if isinstance(value, Unread) else float(value)
            if isinstance(x, str):
                read_back(x, sys._getframe(1))
        return float(*args)

    def __instancecheck__(cls, x: object) -> bool:
        return x.kind is float if type(x) is Unread else isinstance(x, float)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, float)

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is float

    def __hash__(cls) -> int:
        return hash(float)


class Float(float, metaclass=_Reading):
    """What ``float`` is in the modules of a program that is recorded.

    Example: ``float(loss)`` prints as "n/a", ``float("inf")`` and ``isinstance(1.0, float)`` are as
    ever.
    """


Float.__name__ = "float"
NAMED[float] = Float

#: What these names are in the program's modules.
NAMES = {"float": Float, "type": Type, **extremes.NAMES, **unordered.NAMES}


def install(step: Callable[..., Any], own: Callable[[str], bool]) -> None:
    """Put it into the modules that are there, those that are imported later, and the globals of the
    step; ``own`` says whether a file is the program's.

    Example: after it, ``float(loss)`` in train.py gives a number that prints as "n/a".
    """
    for module in list(sys.modules.values()):
        _name_it(module, own)
    spaces: Any = getattr(step, "__globals__", None)
    if isinstance(spaces, MutableMapping):
        _give(spaces)
    load = SourceFileLoader.exec_module

    @wraps(load)
    def exec_module(self: SourceFileLoader, module: ModuleType) -> None:
        load(self, module)
        _name_it(module, own)

    replace(SourceFileLoader, "exec_module", exec_module)


def _name_it(module: ModuleType, own: Callable[[str], bool]) -> None:
    file = getattr(module, "__file__", None)
    ours = getattr(module, "__name__", "").split(".")[0] == "shardproof"
    if isinstance(file, str) and not ours and own(file):
        _give(vars(module))
    if module.__name__ in extremes.LIBRARIES:
        _give(vars(module), extremes.NAMES)


def _give(space: MutableMapping[str, Any], names: Mapping[str, Any] = NAMES) -> None:
    for name, value in names.items():
        space.setdefault(name, value)

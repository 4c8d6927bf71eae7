"""Where tensors lie: addresses of tensors that have no memory while a step is recorded.

A program asks whether two tensors have the same memory by `Tensor.data_ptr`, to reduce a tied
weight once.  Fake tensors all say 0.  So each memory has an address of its own here, for whoever
asks but PyTorch itself, which tells fake tensors by the 0.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from shardproof.frontends.torch.places import is_machinery
from shardproof.frontends.torch.standins import replace

#: Where the first memory lies, and of how many bytes addresses are multiples.
FIRST, ALIGNED = 1 << 40, 64


class Addresses:
    """Addresses of memories, in the order in which somebody asks; each is kept alive.

    Example: of two memories of 100 bytes the first is at 2^40, the second one 128 bytes behind it.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, torch.UntypedStorage]] = {}
        self._next = FIRST

    def of(self, memory: torch.UntypedStorage) -> int:
        """Where a memory begins; 0 where it has no bytes.

        Example: two views of one tensor have one memory, and one address.
        """
        size = memory.nbytes()
        if not size:
            return 0
        if memory._cdata not in self._known:
            self._known[memory._cdata] = self._next, memory
            self._next += -(-size // ALIGNED) * ALIGNED
        return self._known[memory._cdata][0]


def install() -> None:
    """Let tensors without memory have addresses, in this process, for good.

    Example: ``a.weight.data_ptr() == b.weight.data_ptr()`` holds of tied weights alone.
    """
    addresses = Addresses()
    of_tensor: Callable[[torch.Tensor], int] = torch.Tensor.data_ptr
    of_memory: Callable[[torch.UntypedStorage], int] = torch.UntypedStorage.data_ptr

    def tensor(x: torch.Tensor) -> int:
        own = of_tensor(x)  # without memory, how many bytes behind its beginning
        if not isinstance(x, FakeTensor) or x.is_meta or not x.numel() or _by_torch():
            return own
        return own + addresses.of(x.untyped_storage())

    def memory(x: torch.UntypedStorage) -> int:
        own = of_memory(x)
        return own if own or _by_torch() else addresses.of(x)

    def typed(x: Any) -> int:
        own = of_memory(x._untyped_storage)
        return own if own or _by_torch() else addresses.of(x._untyped_storage)

    replace(torch.Tensor, "data_ptr", tensor)
    replace(torch.UntypedStorage, "data_ptr", memory)
    replace(torch.TypedStorage, "data_ptr", typed)


def _by_torch() -> bool:
    """Whether PyTorch asks, and not the program or another library."""
    return is_machinery(sys._getframe(2).f_code.co_filename)

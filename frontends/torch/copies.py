"""Tensors of ordinary memory in the place of those that strides do not say: conjugates, and the
zeros without memory that derivatives of `sgn` make.

A view shows what is written to its base later, and writes to it; a copy does neither. So a step
that does one of these is refused.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from shardproof.frontends.torch.refusals import refuse

_ATEN = torch.ops.aten


#: What is recorded in the place of operators whose results are no memory of strides.
_ORDINARY = {
    _ATEN._conj.default: _ATEN.conj_physical.default,
    _ATEN._efficientzerotensor.default: _ATEN.zeros.default,
}


def copying(func: Any) -> Any:
    """The operator that makes a tensor of its own of what ``func`` only shows or says; None: there
    is nothing to mend.

    Example: ``aten._conj`` is recorded as ``aten.conj_physical``.
    """
    return _ORDINARY.get(func)


class Copies:
    """Which storages are copies, and of which.

    Example: after ``w = z.conj(); z.add_(1)`` a use of ``w`` is refused; ``w.add_(1)`` is, too.
    """

    def __init__(self) -> None:
        self.bases: dict[int, int] = {}
        self.stale: set[int] = set()

    def used(
        self, read: Collection[int], written: Collection[int], copies: Collection[int]
    ) -> None:
        """An operator reads storages and writes some; ``copies``: it copies what it reads there.
        Raises `InvalidInput` where a copy is not what the view would be."""
        if self.bases:
            if not self.stale.isdisjoint(read) or any(n in self.bases for n in written):
                refuse("memory is written that a conjugate shows")
            self.stale.update(copy for copy, base in self.bases.items() if base in written)
        self.bases.update((copy, base) for copy in copies for base in read)

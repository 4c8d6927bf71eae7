"""Copies in the place of views that strides do not say: conjugates, diagonals, and windows that
overlap.

A view shows what is written to its base later, and writes to it; a copy does neither. So a step
that does one of these is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from shardproof.engine.errors import InvalidInput

_ATEN = torch.ops.aten


def copying(func: Any, args: Sequence[Any]) -> Any:
    """The operator that copies what a view shows; None: the view is one of strides.

    Example: ``aten._conj`` is recorded as ``aten.conj_physical``, ``x.unfold(0, 3, 1)`` as
    ``aten.unfold_copy``; ``x.unfold(0, 2, 2)`` is ``x`` in another shape.
    """
    if func is _ATEN._conj.default:
        return _ATEN.conj_physical.default
    if func is _ATEN.diagonal.default:
        return _ATEN.diagonal_copy.default
    if func is _ATEN.unfold.default and args[3] < args[2]:
        return _ATEN.unfold_copy.default
    return None


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
                raise InvalidInput(
                    "memory is written that a view shows (a conjugate, a diagonal, or windows)"
                )
            self.stale.update(copy for copy, base in self.bases.items() if base in written)
        for copy in copies:
            (self.bases[copy],) = read

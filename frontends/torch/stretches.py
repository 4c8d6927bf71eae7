"""Rows that Python cuts by counts of ids, and puts one after the other again.

``rows.split(counts)``, where Python read the counts from ``bincount(ids)``, has as many rows in
each part as data say.  Whatever the rows are, part ``i`` of them is ``back[ids == i]``, where
``back`` has the rows where the stable order of the ids puts them: row ``j`` of it is the one at the
place of ``ids[j]`` among the sorted ids.  So that is what is recorded, and parts that are joined
again are written where ``ids == i``, and put in that order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from numbers import Integral
from typing import Any, Final

import numpy as np
import torch

from shardproof.frontends.torch.standins import replace
from shardproof.frontends.torch.tallies import Tallies, Tally

#: Functions that put tensors one after the other.
_JOINING: Final = ("cat", "concat", "concatenate")
#: What functions that cut tensors call the sizes of the parts.
_SIZES: Final = ("split_size", "split_sizes")


class Stretches:
    """The parts of rows by counts of ids, in one recorded step.

    Example: after ``counts = torch.bincount(ids, minlength=4).tolist()`` the third of
    ``rows.split(counts)`` has the rows of which the sorted ids are 2.
    """

    def __init__(self, tallies: Tallies, key_of: Callable[[torch.Tensor], int]) -> None:
        self.tallies, self.key_of = tallies, key_of
        self._installed = False

    def install(self) -> None:
        """From here on such parts are recorded so, in this process, for good.

        Example: once Python read counts of ids; a step that reads none is left alone.
        """
        if self._installed:
            return
        self._installed = True
        for name in ("split", "split_with_sizes"):
            replace(torch.Tensor, name, self._cut(getattr(torch.Tensor, name)))
        replace(torch, "split_with_sizes", self._cut(torch.split_with_sizes))
        replace(torch.Tensor, "__getitem__", self._sliced(torch.Tensor.__getitem__))
        for name in _JOINING:
            replace(torch, name, self._joined(getattr(torch, name)))

    # -- what Python calls ------------------------------------------------------------------

    def _cut(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def cut(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            named = [kwargs[name] for name in _SIZES if name in kwargs]
            sizes: Any = next(iter((*args[:1], *named)), None)
            dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
            several = isinstance(sizes, (list, tuple, np.ndarray))
            tally = self._counted(sizes) if several else None
            if tally is None or not self._of(tally, x) or dim not in (0, -x.dim()):
                return plain(x, *args, **kwargs)
            back = self._back(tally, x)
            return tuple(back[mask] for mask in tally.masks)

        return cut

    def _sliced(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def sliced(x: torch.Tensor, index: Any) -> Any:
            plainly = not isinstance(index, slice) or index.step is not None
            part = None if plainly else self._stretch(x, index.start, index.stop)
            if part is None:
                return plain(x, index)
            tally, at = part
            return plain(self._back(tally, x), tally.masks[at])

        return sliced

    def _joined(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def joined(tensors: Any, dim: Any = 0, **more: Any) -> Any:
            tally = self._parts(tensors) if not more and dim == 0 else None
            return plain(tensors, dim, **more) if tally is None else _together(tally, tensors)

        return joined

    # -- what they are ----------------------------------------------------------------------

    def _read(self) -> list[Tally]:
        """The counts that Python read, of ids that are still those that were counted."""
        known = self.tallies.known.values()
        return [t for t in known if t.numbers and self.key_of(t.ids) == t.key]

    def _counted(self, sizes: Sequence[Any]) -> Tally | None:
        """The counts that sizes are, all of them in their order."""
        if not all(isinstance(n, Integral) for n in sizes):
            return None
        return next((t for t in self._read() if t.numbers == list(sizes)), None)

    def _of(self, tally: Tally, x: torch.Tensor) -> bool:
        """Whether a tensor has a row for each of the ids."""
        return x.dim() > 0 and x.shape[0] == tally.ids.numel()

    def _stretch(self, x: torch.Tensor, start: Any, stop: Any) -> tuple[Tally, int] | None:
        """The id of which a slice has the rows, by the counts of all ids up to it."""
        start, last = 0 if start is None else start, stop is None
        if not isinstance(start, Integral) or not (last or isinstance(stop, Integral)):
            return None
        for tally in self._read():
            ends = [0, *accumulate(tally.numbers)]
            if self._of(tally, x) and start in ends[:-1]:
                at = ends.index(int(start))
                if ends[at + 1] == (ends[-1] if last else stop):
                    return tally, at
        return None

    def _parts(self, tensors: Any) -> Tally | None:
        """The counts of which tensors, one after the other, have as many rows as each."""
        rows = isinstance(tensors, (list, tuple)) and all(
            isinstance(x, torch.Tensor) and x.dim() > 0 for x in tensors
        )
        if not rows or len({x.shape[1:] for x in tensors}) != 1:
            return None
        return self._counted([x.shape[0] for x in tensors])

    def _back(self, tally: Tally, x: torch.Tensor) -> torch.Tensor:
        """Each row where its id is."""
        return x[torch.argsort(_order(tally))]


def _order(tally: Tally) -> torch.Tensor:
    return torch.argsort(tally.ids.flatten(), stable=True)


def _together(tally: Tally, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Parts, each where its ids are, in the order of the ids."""
    made = tensors[0].new_zeros((tally.ids.numel(), *tensors[0].shape[1:]))
    for mask, rows in zip(tally.masks, tensors, strict=True):
        made = made.index_put((mask,), rows)
    return made[_order(tally)]

"""How many ids are each, while a step is recorded: what Python reads of `bincount`.

A count of ids that depend on the inputs is how many rows the mask chooses that compares them with
one number, and has the number that stands for that (`counted`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import torch

from shardproof.frontends.torch.trace import Event, Tensor

BINCOUNT: Final = "aten.bincount.default"
#: Operators of which the result has the entries of their operand.
_COPIES: Final = ("aten._to_copy.default", "aten.clone.default", "aten.detach.default")
#: Ids that are counted one by one.
MOST_COUNTED: Final = 1024


class Recorded(Protocol):
    """What records a step (`counted.Recorded`)."""

    def tensor(self, x: torch.Tensor) -> Tensor:
        """The number of a tensor as it lies in its memory."""

    def is_known(self, x: torch.Tensor) -> bool:
        """Whether a tensor depends on no input."""


@dataclass(slots=True)
class Tally:
    """Counts of the ids below ``size`` among ``ids``, whose ``key`` says what they are computed of;
    ``made``: the tensor of counts; ``numbers``: what stands for them, once Python reads them.

    Example: of ``torch.bincount(ids, minlength=2)``, once it was read, the size 2 and the numbers
    4194319 and 2097169.
    """

    ids: torch.Tensor
    key: int
    size: int
    made: torch.Tensor
    numbers: list[int] = field(default_factory=list)

    @property
    def masks(self) -> list[torch.Tensor]:
        """Which ids are 0, 1, 2, ...

        Example: of the ids [1, 0, 1] and the size 2, [False, True, False] and the inverse of it.
        """
        flat = self.ids.flatten()
        return [flat == i for i in range(self.size)]


class Tallies:
    """The counts of ids in one recorded step.

    Example: after ``counts = torch.bincount(ids, minlength=4)`` the list ``counts.tolist()`` has
    four numbers that stand for how many rows ``ids == 0`` chooses, and so on.
    """

    def __init__(self, recorder: Recorded) -> None:
        self.recorder = recorder
        self.known: dict[int, Tally] = {}

    def counted(
        self,
        key_of: Callable[[torch.Tensor], int],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> torch.Tensor | None:
        """What ``bincount`` gives, on fake tensors; None: of ids that are known, with weights, or
        without a ``minlength``.

        Example: of ids [6] and ``minlength=4`` it is of shape [4].
        """
        ids, weights, size = (*args, *(None, kwargs.get("minlength", 0))[len(args) - 1 :])[:3]
        if self.recorder.is_known(ids) or (weights, kwargs.get("weights")) != (None, None):
            return None
        if not 1 < size <= MOST_COUNTED:
            return None
        made = torch.empty((size,), dtype=torch.int64)
        tally = Tally(ids, key_of(ids), size, made)
        self.known[self.recorder.tensor(made).number] = tally
        return made

    def of(
        self,
        number: int,
        last: Callable[[int], Event | None],
        key_of: Callable[[torch.Tensor], int],
    ) -> Tally | None:
        """The counts of which a tensor of a number has some; None: it has others, or the ids are
        other ones by now.

        Example: of ``counts[1]`` those of ``counts``.
        """
        event = last(number)
        while event is not None and event.name in _COPIES:
            (source,) = (a for a in event.args[:1] if isinstance(a, Tensor))
            event = last(source.number)
        if event is None or event.name != BINCOUNT:
            return None
        (made,) = (a.number for a in event.outputs if isinstance(a, Tensor))
        tally = self.known.get(made)
        return tally if tally is not None and key_of(tally.ids) == tally.key else None

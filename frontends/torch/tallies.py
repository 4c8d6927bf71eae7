"""How many ids are each, while a step is recorded: what Python reads of `bincount`, or of the sum
of rows that have a 1 at each of their ids (``F.one_hot``, ``zeros.scatter(1, ids, 1)``).

A count of ids that depend on the inputs is how many rows the mask chooses that compares them with
one number, and has the number that stands for that (`counted`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

import torch

from shardproof.frontends.torch.trace import CONSTANT, Event, StridedTensor, Tensor, tensors_of

BINCOUNT: Final = "aten.bincount.default"
_SUM: Final = "aten.sum.dim_IntList"
#: What writes a number at ids, and what makes the zeros that it writes it into.
_WRITES: Final = ("aten.scatter.value", "aten.scatter_.value")
_ZEROS: Final = ("aten.zeros.default", "aten.new_zeros.default", "aten.zeros_like.default")
#: What gives unlike ids along its dimension.
_UNLIKE: Final = "aten.topk.default"
#: What compares ids with classes, and what all classes are made by.
_EQUALS: Final = "aten.eq.Tensor"
_RANGES: Final = ("aten.arange.default",)
#: Operators at whose ids there are ones, by the operand that has these.
_AT: Final = {_EQUALS: 0, **dict.fromkeys(_WRITES, 2)}
#: What chooses ids along a dimension, by the operand that says along which.
_CHOICES: Final = {_UNLIKE: 2, "aten.argmax.default": 1, "aten.max.dim": 1}
#: Operators of which the result has the entries of their operand.
_COPIES: Final = ("aten._to_copy.default", "aten.clone.default", "aten.detach.default")
#: Ids that are counted one by one.
MOST_COUNTED: Final = 1024

KeyOf: TypeAlias = Callable[[torch.Tensor], int]
#: The events that wrote the memory of a tensor, in their order.
Writers: TypeAlias = Callable[[int], Sequence[Event]]
NONE: Final[tuple[torch.Tensor | None, int]] = (None, 0)


class Recorded(Protocol):
    """What records a step (`counted.Recorded`)."""

    @property
    def tensors(self) -> Sequence[StridedTensor]:
        """All tensors so far, by their numbers."""

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
        #: Ids at which a number was written, and what they were computed of, by their numbers.
        self._ids: dict[int, tuple[torch.Tensor, int]] = {}

    def of_ones(
        self,
        name: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        writers: Writers,
        key_of: KeyOf,
    ) -> torch.Tensor | None:
        """What the sum of rows that have a 1 at each of their ids gives, on fake tensors; None: it
        is another operator.  The ids of a row have to be unlike, for a 1 is written once.

        Example: of ``torch.zeros(6, 4, dtype=torch.int64).scatter(1, ids, 1)``, where ``ids`` [6,
        2] are of ``topk``, the sum over all rows is of shape [4].
        """
        if name in _AT:
            ids = args[_AT[name]]
            if not self.recorder.is_known(ids):
                self._ids[self.recorder.tensor(ids).number] = ids, key_of(ids)
        if name != _SUM or len(args) != 2 or kwargs:
            return None
        ones, dims = args
        whole = ones.dtype in (torch.int64, torch.bool) and ones.dim() > 1
        if (
            not whole
            or dims is None
            or sorted(d % ones.dim() for d in dims) != list(range(ones.dim() - 1))
        ):
            return None
        of, key = self._at_which(self.recorder.tensor(ones).number, writers)
        if of is None or key_of(of) != key or not 1 < ones.shape[-1] <= MOST_COUNTED:
            return None
        made = torch.empty((ones.shape[-1],), dtype=torch.int64)
        self.known[self.recorder.tensor(made).number] = Tally(of, key, ones.shape[-1], made)
        return made

    def _at_which(self, number: int, writers: Writers) -> tuple[torch.Tensor | None, int]:
        """The ids at which a tensor has ones among zeros, and what they were computed of; None: it
        is another tensor."""
        event = self._maker(number, writers)
        if event is not None and event.name == _EQUALS:
            ids, classes = event.args
            if not isinstance(ids, Tensor) or not isinstance(classes, Tensor):
                return NONE
            hot = self._is_one_hot(ids.number, classes.number, writers)
            return self._ids.get(ids.number, NONE) if hot else NONE
        if event is None or event.name not in _WRITES or len(event.args) != 4:
            return NONE
        zeros, dim, ids, one = event.args
        if not isinstance(zeros, Tensor) or not isinstance(ids, Tensor) or one != 1:
            return NONE
        whole, rows = (self.recorder.tensors[x.number].shape for x in (zeros, ids))
        if dim not in (-1, len(whole) - 1) or whole[:-1] != rows[:-1]:
            return NONE
        unlike = rows[-1] == 1 or self._are_unlike(ids.number, writers)
        before = [e for e in writers(zeros.number) if e is not event]
        return self._ids.get(ids.number, NONE) if unlike and _is_alone(before, _ZEROS) else NONE

    def _is_one_hot(self, ids: int, classes: int, writers: Writers) -> bool:
        """Whether ids, one in a row, are compared with all classes that they may be."""
        (*_, one), size = (self.recorder.tensors[n].shape for n in (ids, classes))
        every = writers(classes)
        if one != 1 or not _is_alone(every, _RANGES) or every[0].args != size:
            return False
        while (made := writers(ids)) and made[-1].name in _COPIES:
            (ids,) = tensors_of(*made[-1].args[:1])
        if not made or made[-1].name not in _CHOICES:
            return False
        (scores, *_), place = tensors_of(*made[-1].args), _CHOICES[made[-1].name]
        along = made[-1].args[place] if len(made[-1].args) > place else -1
        return isinstance(along, int) and (self.recorder.tensors[scores].shape[along],) == size

    def _are_unlike(self, number: int, writers: Writers) -> bool:
        """Whether ids are what the largest along their last dimension are chosen by."""
        event = self._maker(number, writers)
        if event is None or event.name != _UNLIKE:
            return False
        last = len(self.recorder.tensors[number].shape) - 1
        return len(event.args) < 3 or event.args[2] in (-1, last)

    def _maker(self, number: int, writers: Writers) -> Event | None:
        """What made all of a tensor as it lies, behind its copies; None: something made more."""
        while events := writers(number):
            own = self.recorder.tensors[number]
            outputs = (self.recorder.tensors[n] for n in tensors_of(*events[-1].outputs))
            if not any(_lie_alike(own, x) for x in outputs):
                return None
            if events[-1].name not in _COPIES:
                return events[-1]
            (number,) = tensors_of(*events[-1].args[:1])
        return None

    def counted(
        self, key_of: KeyOf, args: Sequence[Any], kwargs: Mapping[str, Any]
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

    def of(self, number: int, writers: Writers, key_of: KeyOf) -> Tally | None:
        """The counts of which a tensor of a number has some; None: it has others, or the ids are
        other ones by now.

        Example: of ``counts[1]`` those of ``counts``.
        """
        while (events := writers(number)) and events[-1].name in _COPIES:
            (number,) = tensors_of(*events[-1].args[:1])
        if not events or events[-1].name not in (BINCOUNT, _SUM):
            return None
        (made,) = tensors_of(*events[-1].outputs)
        tally = self.known.get(made)
        return tally if tally is not None and key_of(tally.ids) == tally.key else None


def _lie_alike(one: StridedTensor, other: StridedTensor) -> bool:
    """Whether two tensors are the same entries of their memory, in the same order."""
    places = [(x.storage, x.offset, x.shape, x.strides, x.dtype) for x in (one, other)]
    return places[0] == places[1]


def _is_alone(events: Sequence[Event], names: Sequence[str]) -> bool:
    """Whether a tensor was made by an operator of some names, and is what it was."""
    made = [event.name for event in events if event.name != CONSTANT]
    return len(made) == 1 and made[0] in names

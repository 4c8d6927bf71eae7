"""How many rows data choose, while a step is recorded: numbers that stand for it.

`nonzero` of a mask that depends on the inputs has as many rows as data say.  It is given a number
of rows of its own, a large prime, by which its size is known wherever it goes; masks that are
computed alike have one number.  A step must be the same for every number: it is recorded with two
rows too, with all, and with one, and the recordings are compared (`agreed`).  Which of two masks
has more rows differs, too.  That there is at least one row is assumed, and printed.
"""

from __future__ import annotations

import operator
import sys
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, Protocol

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.aten.ordered import ENTRYWISE, plain_name
from shardproof.frontends.torch.checks import PASSES, passing
from shardproof.frontends.torch.draws import kind_of
from shardproof.frontends.torch.places import place
from shardproof.frontends.torch.stretches import Stretches
from shardproof.frontends.torch.tallies import BINCOUNT, Tallies
from shardproof.frontends.torch.trace import (
    CHOSEN,
    DRAW,
    MOST_MASKS,
    Arg,
    Event,
    Items,
    StridedTensor,
    Tensor,
    tensors_of,
)

#: The series of numbers with which a step is recorded: primes; 2; 1; all rows of the first mask,
#: and numbers that fall.
SERIES: Final = (0, 1, 2, 3)
#: Numbers begin here: beyond every size of a test, and of most dimensions of models.
FIRST: Final = 1 << 21
#: Operators by which masks are told to be computed alike: what is before them is the same tensor.
_DEPTH: Final = 12
NONZERO: Final = "aten.nonzero.default"
#: Comparisons with a number.
COMPARED: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    f"aten.{name}.Scalar": getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
#: Operators that read or write entries at indices, and those by a mask itself.
_INDICES: Final = (
    *("aten.index.Tensor", "aten.index_put", "aten._unsafe_index_put", "aten._index_put_impl"),
)
#: Operators that say of rows of a mask whether there is any, or how many.
_COUNTING: Final = ("aten.sum.", "aten.any.")
#: Operators that take a tensor apart, and where their dimension is among their arguments.
_APART: Final = {"aten.unbind.int": 1, "aten.split.Tensor": 2}
_BY_MASKS: Final = (*_INDICES, "aten.masked_select.", "aten.masked_scatter.")

OVER_ROWS: Final = "a loop over rows that a mask chooses, by each of them (at {})"
ALL_HIT: Final = "each of the {} numbers that a loop takes from a mask is chosen by data: at {}"


def numbers(series: int, index: int, entries: int) -> int:
    """The number of a series for the mask after ``index`` others, of so many ``entries``.

    Example: of the series 0 they are 4194319, 2097169, 2097211, ..., of the series 1 all are 2, and
    of the series 3, of masks of 6 entries, 6, 1048575, 1048574, ...
    """
    if series == 0:
        return _primes(index - 1) if index else _LARGEST
    if series == 3:
        return FIRST // 2 - index if index else max(entries, 2)
    return 3 - series


#: The prime of the first mask: more than those of all others.
_LARGEST: Final = 4194319
_PRIMES: list[int] = []


def _primes(index: int) -> int:
    """The primes from `FIRST` on, by their place."""
    candidates = count((_PRIMES[-1] if _PRIMES else FIRST) + 1)
    while len(_PRIMES) <= index:
        number = next(candidates)
        if all(number % divisor for divisor in range(2, int(number**0.5) + 1)):
            _PRIMES.append(number)
    return _PRIMES[index]


def _require_few(name: str, args: Sequence[Any]) -> None:
    """Raises `InvalidInput` where a tensor is taken apart into more parts than any step has: it is
    one of rows that a mask chooses, or what is left of such a one without its first rows.

    Example: ``for i in torch.where(keep)[0][1:]`` takes 4194318 numbers apart.
    """
    if name not in _APART:
        return
    size = args[1] if name == "aten.split.Tensor" else 1
    dim = next(iter(args[_APART[name] :]), 0)
    if size and args[0].dim() and args[0].shape[dim] // size > FIRST // 2:
        raise InvalidInput(OVER_ROWS.format(place(sys._getframe(3))[0]))


class Recorded(Protocol):
    """What records a step, such as `shardproof.frontends.torch.record.Recorder`."""

    tensors: list[StridedTensor]
    events: list[Event]
    notes: dict[str, None]

    def tensor(self, x: torch.Tensor) -> Tensor:
        """The number of a tensor as it lies in its memory."""

    def is_known(self, x: torch.Tensor) -> bool:
        """Whether a tensor depends on no input."""

    def __enter__(self) -> Any:
        """What is dispatched from here on is recorded."""

    def __exit__(self, *_: Any) -> Any:
        """Nothing is recorded any more."""


@dataclass(slots=True)
class _Loop:
    """A loop over what has any rows; ``rows``: the memory of the masks that choose them; ``left``:
    of how many the step has not chosen rows."""

    rows: int
    left: int
    where: str


class Masks:
    """The masks that choose rows in one recorded step, by what they are computed of.

    Example: ``logits[labels != -100]`` and ``labels[labels != -100]`` have two masks that are
    computed alike, and so one number of rows.
    """

    def __init__(self, recorder: Recorded, series: int) -> None:
        self.recorder, self.series = recorder, series
        self.known: dict[int, int] = {}
        self.sizes: list[int] = []
        #: Masks of which Python asked whether any entry is true, and where.
        self.questions: dict[int, str] = {}
        #: Of memory with positions: among how many entries a mask of one dimension chooses.
        self._among: dict[int, tuple[int, Any, int]] = {}
        self._loops: list[_Loop] = []
        self._keys: dict[tuple[Any, ...], int] = {}
        self._written: dict[int, list[int]] = {}
        self._seen = 0
        self.tallies = Tallies(recorder)
        self.stretches = Stretches(self.tallies, self._key_of)

    # -- dispatch ---------------------------------------------------------------------------

    def positions(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> torch.Tensor | None:
        """What ``nonzero`` of a mask that is not known gives, on fake tensors, and ``bincount`` of
        ids that are not known, which are taken to be below its ``minlength`` (the rule of it asks
        for that); None of any other operator.

        Example: of a mask [4, 6] it is of shape [2097169, 2].
        """
        if str(func) == BINCOUNT:
            return self.tallies.counted(self._key_of, args, kwargs)
        ones = self.tallies.of_ones(str(func), args, kwargs, self._writers, self._key_of)
        if ones is not None:
            return ones
        if str(func) != NONZERO or self.recorder.is_known(args[0]):
            return None
        mask = args[0]
        rows = self._rows(self._key_of(mask), mask)
        self.recorder.notes.setdefault(f"{CHOSEN}{place(sys._getframe(2))[0]}")
        made = torch.empty((rows, mask.dim()), dtype=torch.int64)
        storage = made.untyped_storage()
        for loop in self._loops:
            loop.left -= self._from(self.recorder.tensor(mask).number, loop.rows)
        counted = self._counted(mask) if mask.dim() == 1 else -1
        if counted >= 0:
            self._among[storage._cdata] = mask.shape[0], storage, counted
        return made

    def instead(self, func: Any, args: Sequence[Any]) -> Any:
        """What an operator by a mask that is not known gives: that of an operator by positions,
        which is recorded; None: it has none.

        Example: ``x[mask]`` is ``x[mask.nonzero().unbind(1)]``.
        """
        name = str(func)
        if name == "aten.unbind.int" and (len(args) < 2 or args[1] == 0):
            hit = self._hit(args[0])
            if hit is not None:
                return hit
        _require_few(name, args)
        if not name.startswith(_BY_MASKS):
            return None
        with self.recorder:
            if name == "aten.masked_select.default" and self._is_mask(args[1]):
                x, mask = torch.broadcast_tensors(*args)  # type: ignore[no-untyped-call]
                return torch.ops.aten.index.Tensor(x, [mask])
            if name == "aten.masked_scatter.default" and self._chooses(args[1], args[2].flatten()):
                flat = args[2].flatten()
                return torch.ops.aten.index_put.default(args[0], [args[1]], flat)
            return self._by_positions(func, args) if name.startswith(_INDICES) else None

    def _by_positions(self, func: Any, args: Sequence[Any]) -> Any:
        """An operator by indices, with positions for the masks among them; None: there are none."""
        puts = len(args) > 2
        if not any(self._is_mask(i) and (not puts or self._chooses(i, args[2])) for i in args[1]):
            return None
        made: list[Any] = []
        for index in args[1]:
            made += index.nonzero().unbind(1) if self._is_mask(index) else [index]
        return func(args[0], made, *args[2:])

    def numbers_in(self, x: torch.Tensor) -> torch.Tensor | None:
        """The numbers that stand for counts of ids, of which Python reads some; None: it is none.

        Example: of ``torch.bincount(ids, minlength=2)`` the numbers of rows that ``ids == 0`` and
        ``ids == 1`` choose.
        """
        if not self.tallies.known or not isinstance(x, FakeTensor) or x.dtype != torch.int64:
            return None
        return self._numbers(self.recorder.tensor(x).number)

    def listed(self, x: torch.Tensor) -> Any:
        """The numbers that stand for counts of ids, as a list; None: these are no counts.

        Example: of ``torch.bincount(ids, minlength=2)`` it is [4194319, 2097169].
        """
        numbers = self.numbers_in(x)
        with _disable_current_modes():
            return None if numbers is None else numbers.tolist()

    def _numbers(self, number: int) -> torch.Tensor | None:
        tally = self.tallies.of(number, self._writers, self._key_of)
        if tally is None:
            return None
        if not tally.numbers:
            with self.recorder:
                tally.numbers += [len(mask.nonzero()) for mask in tally.masks]
            self.stretches.install()
        own = self.recorder.tensors[number]
        with _disable_current_modes():
            return torch.tensor(tally.numbers).as_strided(own.shape, own.strides, own.offset)

    def answer(self, x: torch.Tensor) -> Any:
        """What Python reads of a tensor of one entry: a number that stands for a count, or such a
        one compared with a number; that a mask chooses some row.  None: it is none of these."""
        numbers = self.numbers_in(x)
        if numbers is not None:
            return _item(numbers)
        number = self.recorder.tensor(x).number
        event = self._last(number) if self.tallies.known else None
        if event is not None and event.name in COMPARED:
            of, other = event.args
            numbers = self._numbers(of.number) if isinstance(of, Tensor) else None
            if numbers is not None and numbers.numel() == 1:
                return COMPARED[event.name](_item(numbers), other)
        if x.dtype is torch.bool and (check := passing(sys._getframe(1))) is not None:
            self.recorder.notes.setdefault(PASSES.format(check[1]))
            return check[0]
        return True if self.any_of(x) else None

    def _last(self, number: int) -> Event | None:
        """What wrote a tensor last."""
        return next(reversed(self._writers(number)), None)

    def _writers(self, number: int) -> list[Event]:
        """The events that wrote a tensor's memory, in their order."""
        self._follow()
        written = self._written.get(self.recorder.tensors[number].storage, ())
        return [self.recorder.events[index] for index in written]

    def any_of(self, x: torch.Tensor) -> bool:
        """Whether Python asks of a mask whether it chooses any row: then it is answered, as it is
        assumed to; that it does choose rows has to follow (`check`)."""
        index, event = self._writer(self.recorder.tensor(x).number)
        if event is None or event.name != "aten.any.default":
            return False
        (mask,) = tensors_of(*event.args)
        self.questions[self._key(mask, index, flat=True)] = place(sys._getframe(2))[0]
        return True

    def _writer(self, number: int) -> tuple[int, Event | None]:
        """The event that wrote a tensor's memory last, with its place; none has."""
        self._follow()
        written = self._written.get(self.recorder.tensors[number].storage)
        return (written[-1], self.recorder.events[written[-1]]) if written else (-1, None)

    def _counted(self, mask: torch.Tensor) -> int:
        """The memory of which a mask says, of each of several parts, whether any entry is true:
        what is not chosen has no rows, so a loop over the others may take it; -1: another mask.

        Example: of ``expert_mask.sum((-1, -2)) > 0`` that of ``expert_mask``.
        """
        _, event = self._writer(self.recorder.tensor(mask).number)
        if event is not None and event.name == "aten.gt.Scalar" and event.args[1:] == (0,):
            _, event = self._writer(*tensors_of(*event.args))
        elif event is not None and not event.name.startswith("aten.any."):
            return -1
        of = None
        while event is not None and event.name.startswith(_COUNTING):
            number = next(iter(tensors_of(*event.args)))
            of = self.recorder.tensors[number]
            _, event = self._writer(number)
        return of.storage if of is not None and of.dtype.startswith(("int", "bool")) else -1

    def _from(self, number: int, storage: int, depth: int = 4) -> bool:
        """Whether a tensor lies in some memory, or is computed of it by so many operators."""
        _, event = self._writer(number)
        known = () if event is None or not depth else tensors_of(*event.args)
        own = self.recorder.tensors[number].storage == storage
        return own or any(self._from(n, storage, depth - 1) for n in known)

    def check(self) -> None:
        """Raises `InvalidInput` where Python asked whether masks have any true entry, and
        the step does not choose rows by them."""
        for loop in self._loops:
            if loop.left > 0:
                raise InvalidInput(OVER_ROWS.format(loop.where))
        for key, where in self.questions.items():
            if key not in self.known:
                raise InvalidInput(
                    "Python reads the value of a tensor that depends on the inputs of the step "
                    f"(.item(), bool() or tolist() at {where})"
                )

    def _is_mask(self, x: Any) -> bool:
        """Whether an index is a mask that is not known."""
        is_bool = isinstance(x, torch.Tensor) and x.dtype == torch.bool
        return is_bool and not self.recorder.is_known(x)

    def _chooses(self, mask: Any, values: torch.Tensor) -> bool:
        """Whether values have as many entries, along a dimension, as a mask chooses."""
        return self._is_mask(mask) and self.known.get(self._key_of(mask)) in values.shape

    def _hit(self, x: torch.Tensor) -> Any:
        """The numbers that a loop takes from the positions of a mask of one dimension, all of whose
        entries are assumed to be true; None: these are no such positions."""
        if x.untyped_storage()._cdata not in self._among or x.dim() > 2:
            if self.series == 0 and x.dim() and x.shape[0] in self.sizes:
                raise InvalidInput(OVER_ROWS.format(place(sys._getframe(3))[0]))
            return None
        entries, storage, counted = self._among[x.untyped_storage()._cdata]
        if x.numel() * x.element_size() != storage.nbytes() or x.stride(0) != 1:
            raise InvalidInput("a loop over some of the numbers that a mask chooses")
        where = place(sys._getframe(3))[0]
        self.recorder.notes.setdefault(ALL_HIT.format(entries, where))
        self._loops.append(_Loop(counted, entries, where))
        with _disable_current_modes():
            return [torch.full(x.shape[1:], number) for number in range(entries)]

    def _rows(self, key: int, mask: torch.Tensor) -> int:
        """How many rows a mask has."""
        if key not in self.known:
            large = mask.numel() > FIRST and mask.numel() not in self.sizes
            if len(self.known) >= MOST_MASKS or large:
                raise InvalidInput(
                    f"more than {MOST_MASKS} masks, or one of more than {FIRST} entries"
                )
            self.known[key] = numbers(self.series, len(self.known), mask.numel())
            self.sizes.append(self.known[key])
        return self.known[key]

    # -- what masks are computed of ---------------------------------------------------------

    def _key_of(self, x: torch.Tensor) -> int:
        """What a tensor is computed of, as a number: two that are computed alike have the same."""
        number = self.recorder.tensor(x).number
        self._follow()
        return self._key(number, len(self.recorder.events), flat=True)

    def _follow(self) -> None:
        """Note which events wrote which memory."""
        tensors, events = self.recorder.tensors, self.recorder.events
        for index in range(self._seen, len(events)):
            for storage in {tensors[n].storage for n in made(events[index], tensors)}:
                self._written.setdefault(storage, []).append(index)
        self._seen = len(events)

    def _key(self, number: int, before: int, depth: int = _DEPTH, flat: bool = False) -> int:
        """The key of a tensor as it is before an event, from that many operators before it;
        ``flat``: of its entries in their order, whatever its dimensions."""
        tensors = self.recorder.tensors
        tensor = tensors[number]
        written = self._written.get(tensor.storage, [])
        last = bisect_left(written, before)
        lies = _lies(tensor) if flat else (tensor.offset, tensor.shape, tensor.strides)
        if not last:
            return self._of("memory", tensor.storage, tensor.dtype, lies)
        index = written[last - 1]
        event = self.recorder.events[index]
        outputs = list(tensors_of(*event.outputs))
        own = [n for n in outputs if tensors[n].storage == tensor.storage]
        random = DRAW in event.kwargs or kind_of(event.name)
        plain = event.name.startswith("aten.") and not event.writes and not random
        if not plain or not own or not depth:
            return self._of("event", index, tensor.storage, tensor.dtype, lies)
        inner = flat and plain_name(event.name) in ENTRYWISE and _of_one_shape(event, tensors)

        def arg(x: Arg) -> Any:
            if isinstance(x, Tensor):
                return "t", self._key(x.number, index, depth - 1, flat=inner)
            return ("l", *map(arg, x.items)) if isinstance(x, Items) else (type(x).__name__, x)

        view = lies, tensor.dtype
        named = tuple((key, arg(x)) for key, x in sorted(event.kwargs.items()))
        return self._of(event.name, *map(arg, event.args), named, outputs.index(own[0]), view)

    def _of(self, *key: Any) -> int:
        return self._keys.setdefault(key, len(self._keys))


def _item(numbers: torch.Tensor) -> Any:
    """The only number of a tensor."""
    with _disable_current_modes():
        return numbers.item()


def _lies(tensor: StridedTensor) -> tuple[object, ...]:
    """Where the entries of a tensor lie, in their order: dimensions that one step goes through are
    one.

    Example: a mask [4, 6] and the view [24] of it are alike.
    """
    joined: list[tuple[int, int]] = []
    for size, stride in zip(tensor.shape, tensor.strides, strict=True):
        if size == 1:
            continue
        if joined and joined[-1][1] == size * stride:
            joined[-1] = joined[-1][0] * size, stride
        else:
            joined.append((size, stride))
    return tensor.offset, tuple(joined)


def _of_one_shape(event: Event, tensors: Sequence[StridedTensor]) -> bool:
    """Whether all tensors of an event have one shape, but for numbers."""
    numbers = tensors_of(*event.args, *event.kwargs.values(), *event.outputs)
    return len({tensors[n].shape for n in numbers if tensors[n].shape}) == 1


def made(event: Event, tensors: Sequence[StridedTensor]) -> list[int]:
    """The tensors whose memory an event writes: what it says, and results in memory of their own,
    which views have not; of a collective, or a mark, all.

    Example: of ``x.add_(1)`` it is ``x``, of ``x.view(-1)`` nothing.
    """
    if not event.name.startswith("aten."):
        return list(tensors_of(*event.args, *event.kwargs.values(), *event.outputs))
    read = {tensors[n].storage for n in tensors_of(*event.args, *event.kwargs.values())}
    new = [n for n in tensors_of(*event.outputs) if tensors[n].storage not in read]
    return [*event.writes, *new]

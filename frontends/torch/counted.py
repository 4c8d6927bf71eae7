"""How many rows data choose, while a step is recorded: numbers that stand for it.

`nonzero` of a mask that depends on the inputs has as many rows as data say.  It is given a number
of rows of its own, a large prime, by which its size is known wherever it goes; masks that are
computed alike have one number.  A step must be the same for every number: it is recorded with two
rows too, with all, and with one, and the recordings are compared (`agreed`).  Of one row PyTorch
takes other ways by itself (a dimension of one is any size), so it is compared by the operators of
each line and the numbers that they are given.  Which of two masks has more rows differs, too.  That
there is at least one row is assumed, and printed.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import prod
from typing import Any, Final, NoReturn, Protocol

import torch
from torch.utils._python_dispatch import _disable_current_modes

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.torch.draws import kind_of
from shardproof.frontends.torch.places import place
from shardproof.frontends.torch.trace import (
    CONSTANT,
    DRAW,
    MOST_MASKS,
    Arg,
    Event,
    Items,
    StridedTensor,
    Tensor,
    Trace,
    tensors_of,
)

#: The series of numbers with which a step is recorded: primes; 2; 1; all rows of the first mask,
#: and numbers that fall.
SERIES: Final = (0, 1, 2, 3)
#: Numbers begin here: beyond every size of a test, and of most dimensions of models.
_FIRST: Final = 1 << 21
#: Operators by which masks are told to be computed alike: what is before them is the same tensor.
_DEPTH: Final = 12
NONZERO: Final = "aten.nonzero.default"
#: Operators that read or write entries at indices, and those by a mask itself.
_INDICES: Final = (
    *("aten.index.Tensor", "aten.index_put", "aten._unsafe_index_put", "aten._index_put_impl"),
)
_BY_MASKS: Final = (*_INDICES, "aten.masked_select.", "aten.masked_scatter.")

ASSUMED: Final = "of rows whose number data say (nonzero, x[mask]) there is at least one: at "
ALL_HIT: Final = "each of the {} numbers that a loop takes from a mask is chosen by data: at {}"


def numbers(series: int, index: int, entries: int) -> int:
    """The number of a series for the mask after ``index`` others, of so many ``entries``.

    Example: of the series 0 they are 4194319, 2097169, 2097211, ..., of the series 1 all are 2, and
    of the series 3, of masks of 6 entries, 6, 1048575, 1048574, ...
    """
    if series == 0:
        return _primes(index - 1) if index else _LARGEST
    if series == 3:
        return _FIRST // 2 - index if index else max(entries, 2)
    return 3 - series


#: The prime of the first mask: more than those of all others.
_LARGEST: Final = 4194319
_PRIMES: list[int] = []


def _primes(index: int) -> int:
    """The primes from `_FIRST` on, by their place."""
    candidates = count((_PRIMES[-1] if _PRIMES else _FIRST) + 1)
    while len(_PRIMES) <= index:
        number = next(candidates)
        if all(number % divisor for divisor in range(2, int(number**0.5) + 1)):
            _PRIMES.append(number)
    return _PRIMES[index]


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
        self._among: dict[int, tuple[int, Any]] = {}
        self._keys: dict[tuple[Any, ...], int] = {}
        self._written: dict[int, list[int]] = {}
        self._seen = 0

    # -- dispatch ---------------------------------------------------------------------------

    def positions(self, func: Any, args: Sequence[Any]) -> torch.Tensor | None:
        """What ``nonzero`` of a mask that is not known gives, on fake tensors; None of any other
        operator.

        Example: of a mask [4, 6] it is of shape [2097169, 2].
        """
        if str(func) != NONZERO or self.recorder.is_known(args[0]):
            return None
        mask = args[0]
        rows = self._rows(self._key_of(mask), mask)
        self.recorder.notes.setdefault(f"{ASSUMED}{place(sys._getframe(2))[0]}")
        made = torch.empty((rows, mask.dim()), dtype=torch.int64)
        storage = made.untyped_storage()
        if mask.dim() == 1:
            self._among[storage._cdata] = mask.shape[0], storage
        return made

    def instead(self, func: Any, args: Sequence[Any]) -> Any:
        """What an operator by a mask that is not known gives: that of an operator by positions,
        which is recorded; None: it has none.

        Example: ``x[mask]`` is ``x[mask.nonzero().unbind(1)]``.
        """
        name = str(func)
        if name == "aten.unbind.int" and (len(args) < 2 or args[1] == 0):
            return self._hit(args[0])
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

    def any_of(self, x: torch.Tensor) -> bool:
        """Whether Python asks of a mask whether it chooses any row: then it is answered, as it is
        assumed to; that it does choose rows has to follow (`check`)."""
        recorder = self.recorder
        number = recorder.tensor(x).number
        self._follow()
        written = self._written.get(recorder.tensors[number].storage)
        event = recorder.events[written[-1]] if written else None
        if written is None or event is None or event.name != "aten.any.default":
            return False
        (mask,) = tensors_of(*event.args)
        self.questions[self._key(mask, written[-1])] = place(sys._getframe(2))[0]
        return True

    def check(self) -> None:
        """Raises `InvalidInput` where Python asked of a mask whether any entry is true, and the
        step does not choose rows by it."""
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
            return None
        entries, storage = self._among[x.untyped_storage()._cdata]
        if x.numel() * x.element_size() != storage.nbytes() or x.stride(0) != 1:
            raise InvalidInput("a loop over some of the numbers that a mask chooses")
        where = place(sys._getframe(3))[0]
        self.recorder.notes.setdefault(ALL_HIT.format(entries, where))
        with _disable_current_modes():
            return [torch.full(x.shape[1:], number) for number in range(entries)]

    def _rows(self, key: int, mask: torch.Tensor) -> int:
        """How many rows a mask has."""
        if key not in self.known:
            if len(self.known) >= MOST_MASKS or mask.numel() > _FIRST:
                raise InvalidInput(
                    f"more than {MOST_MASKS} masks, or one of more than {_FIRST} entries"
                )
            self.known[key] = numbers(self.series, len(self.known), mask.numel())
            self.sizes.append(self.known[key])
        return self.known[key]

    # -- what masks are computed of ---------------------------------------------------------

    def _key_of(self, x: torch.Tensor) -> int:
        """What a tensor is computed of, as a number: two that are computed alike have the same."""
        number = self.recorder.tensor(x).number
        self._follow()
        return self._key(number, len(self.recorder.events))

    def _follow(self) -> None:
        """Note which events wrote which memory."""
        tensors, events = self.recorder.tensors, self.recorder.events
        for index in range(self._seen, len(events)):
            for storage in {tensors[n].storage for n in _made(events[index], tensors)}:
                self._written.setdefault(storage, []).append(index)
        self._seen = len(events)

    def _key(self, number: int, before: int, depth: int = _DEPTH) -> int:
        """The key of a tensor as it is before an event, from that many operators before it."""
        tensors = self.recorder.tensors
        tensor = tensors[number]
        written = self._written.get(tensor.storage, [])
        last = bisect_left(written, before)
        if not last:
            return self._of("memory", tensor)
        index = written[last - 1]
        event = self.recorder.events[index]
        outputs = list(tensors_of(*event.outputs))
        own = [n for n in outputs if tensors[n].storage == tensor.storage]
        random = DRAW in event.kwargs or kind_of(event.name)
        plain = event.name.startswith("aten.") and not event.writes and not random
        if not plain or not own or not depth:
            return self._of("event", index, tensor)

        def arg(x: Arg) -> Any:
            if isinstance(x, Tensor):
                return "t", self._key(x.number, index, depth - 1)
            return ("l", *map(arg, x.items)) if isinstance(x, Items) else (type(x).__name__, x)

        view = tensor.offset, tensor.shape, tensor.strides, tensor.dtype
        named = tuple((key, arg(x)) for key, x in sorted(event.kwargs.items()))
        return self._of(event.name, *map(arg, event.args), named, outputs.index(own[0]), view)

    def _of(self, *key: Any) -> int:
        return self._keys.setdefault(key, len(self._keys))


def _made(event: Event, tensors: Sequence[StridedTensor]) -> list[int]:
    """The tensors whose memory an event writes: what it says, and results in memory of their own,
    which views have not; of a collective, or a mark, all."""
    if not event.name.startswith("aten."):
        return list(tensors_of(*event.args, *event.kwargs.values(), *event.outputs))
    read = {tensors[n].storage for n in tensors_of(*event.args, *event.kwargs.values())}
    new = [n for n in tensors_of(*event.outputs) if tensors[n].storage not in read]
    return [*event.writes, *new]


def check(traces: Sequence[Trace], again: Callable[[Sequence[int], int], Sequence[Trace]]) -> None:
    """Raises `InvalidInput` where a step is another one with other numbers of rows; ``again`` gives
    the traces of ranks with those of another series.

    Example: a step without such rows is not recorded again.
    """
    counting = {t.rank: [t] for t in traces if t.counts}
    for series in SERIES[1:] if counting else ():
        for other in again(list(counting), series):
            counting[other.rank].append(other)
    for recorded in counting.values():
        agreed(recorded)


def agreed(traces: Sequence[Trace]) -> None:
    """Raises `InvalidInput` where recordings of one rank with other numbers of rows are not one
    step; ``traces`` are in the order of `SERIES`.

    Example: a step with ``if len(rows) > 3`` is another one with one row.
    """
    first, two, one, rest = traces
    for other in (two, rest):
        pair = _Pair(first, other, dict(zip(first.counts, other.counts, strict=False)))
        ours, theirs = _kept(first), _kept(other)
        for a, b in zip(ours, theirs, strict=False):
            if not pair.one(a, b):
                _refuse(first, a)
        if len(ours) != len(theirs) or len(first.counts) != len(other.counts):
            _refuse(first, first.events[-1])
    for trace, other in ((first, one), (one, first)):
        known = {_at(event, other) for event in _kept(other)}
        for event in _kept(trace):
            own = event.name in _OF_ONE or (event.backward and trace is one)
            own = own or _sums_rows(event, trace)
            if not own and _at(event, trace) not in known:
                _refuse(trace, event)
    for other in (two, one, rest):
        left = Counter(key for key, _ in _constants(other))
        for key, event in _constants(first):
            left[key] -= 1
            if left[key] < 0:
                _refuse(first, event)


#: What PyTorch makes of one row in another way: values that are written have fewer dimensions, over
#: which their gradients are added up, and masks are no positions.
_OF_ONE: Final = (NONZERO, CONSTANT, "aten.zeros.default")


def _at(event: Event, trace: Trace) -> tuple[object, ...]:
    """An operator, its line, and the numbers that it is given; how many rows there are is 1.

    Example: of ``x / len(rows)`` the number is 1 in every recording.
    """
    given = [x for x in (*event.args, *event.kwargs.values()) if isinstance(x, (int, float))]
    numbers = (repr(_times(x, trace.counts)) for x in given)
    return event.name, trace.sources[event.source], *numbers


def _sums_rows(event: Event, trace: Trace) -> bool:
    """Whether an event is a sum over nothing but rows that data choose: of one row it is that row,
    and the gradient of what every row reads alike is not added up.

    Example: in the gradient of ``z - z.mean(0, keepdim=True)``.
    """
    if event.name != "aten.sum.dim_IntList" or len(event.args) < 2:
        return False
    x, dims = event.args[:2]
    if not isinstance(x, Tensor) or not isinstance(dims, Items):
        return False
    shape = trace.tensors[x.number].shape
    sizes = [shape[d] for d in dims.items if isinstance(d, int)]
    return bool(sizes) and all(n >= _FIRST and n in trace.counts for n in sizes)


def _times(number: float, sizes: Sequence[int]) -> float:
    """How many times there are so many rows a number is; itself, if it is no such multiple."""
    if isinstance(number, bool) or not isinstance(number, int):
        return number
    return next((number // n for n in sizes if number and number % n == 0 and n >= _FIRST), number)


def _constants(trace: Trace) -> list[tuple[tuple[str, str, bytes], Event]]:
    """The values of constants that are not of a size that data choose, with their lines; those of
    one number as this number."""
    constants = []
    for event in trace.events:
        if event.name == CONSTANT:
            tensor = trace.tensors[next(iter(tensors_of(*event.outputs)))]
            raw, alike = _values(event, trace), _one_number(event, trace)
            if not any(n >= _FIRST and _times(n, trace.counts) != n for n in tensor.shape):
                value = raw[: len(raw) // prod(tensor.shape)] if alike else raw
                constants.append(((trace.sources[event.source], tensor.dtype, value), event))
    return constants


def _kept(trace: Trace) -> list[Event]:
    """The events of a recording but for views, which are as the tensors say that are read, and the
    values of tensors of one number (`_constants`)."""
    made = [e for e in trace.events if _made(e, trace.tensors) or not e.outputs or e.boxes]
    return [e for e in made if e.name != CONSTANT or not _one_number(e, trace)]


def _one_number(event: Event, trace: Trace) -> bool:
    """Whether the values of a constant are one number many times."""
    raw = _values(event, trace)
    (number,) = tensors_of(*event.outputs)
    entries = prod(trace.tensors[number].shape)
    return entries > 1 and raw == raw[: len(raw) // entries] * entries


def _values(event: Event, trace: Trace) -> bytes:
    """The numbers of a constant."""
    data = event.kwargs["data"]
    return trace.constants[data] if isinstance(data, int) else b""


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two recordings of a rank, and their numbers of rows; ``memory``: that of the other by that of
    the first."""

    first: Trace
    other: Trace
    sizes: Mapping[int, int]
    memory: dict[int, int] = field(default_factory=dict)

    def one(self, a: Event, b: Event) -> bool:
        """Whether two events are one, but for sizes."""
        if (a.name, a.kwargs.keys(), a.boxes, a.work) != (b.name, b.kwargs.keys(), b.boxes, b.work):
            return False
        if self.first.sources[a.source] != self.other.sources[b.source]:
            return False
        if a.name == CONSTANT:
            values = _values(a, self.first), _values(b, self.other)
            return values[0] == values[1] and self.same(a.outputs, b.outputs)
        given = [(e.args, tuple(e.kwargs.values()), e.outputs) for e in (a, b)]
        return self.same(*given)

    def same(self, a: Any, b: Any) -> bool:
        """Whether arguments are the same but for sizes that stand for how many rows there are."""
        if isinstance(a, Items) and isinstance(b, Items):
            return self.same(a.items, b.items)
        if isinstance(a, tuple) and isinstance(b, tuple):
            pairs = zip(a, b, strict=False)
            return len(a) == len(b) and all(self.same(x, y) for x, y in pairs)
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            x, y = self.first.tensors[a.number], self.other.tensors[b.number]
            known = self.memory.setdefault(x.storage, y.storage)
            lies = [(t.shape, t.strides, t.offset) for t in (x, y)]
            return self.same(*lies) and x.dtype == y.dtype and known == y.storage
        if type(a) is not type(b) or isinstance(a, bool) or not isinstance(a, int):
            return type(a) is type(b) and (a == b or (a != a and b != b))
        mapped = (a // size * n for size, n in self.sizes.items() if a % size == 0)
        return a == b or b in mapped


def _refuse(trace: Trace, event: Event) -> NoReturn:
    raise InvalidInput(
        "what the step does depends on how many rows data choose, by more than sizes "
        f"({event.name} at {trace.sources[event.source]})",
        f"rank {trace.rank}",
    )

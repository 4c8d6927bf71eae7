"""Whether recordings of a step with other numbers of rows are one step (`counted`).

A step must be the same for every number: it is recorded with two rows too, with all, and with one,
and the recordings are compared, event by event.  Of one row PyTorch takes other ways by itself (a
dimension of one is any size), so it is compared by the operators of each line and the numbers that
they are given.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final, NoReturn

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.torch.counted import FIRST, NONZERO, SERIES, made
from shardproof.frontends.torch.trace import CONSTANT, Event, Items, Tensor, Trace, tensors_of


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
        ours = _kept(first)
        theirs = _beside(ours, _kept(other), other)
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
    return bool(sizes) and all(n >= FIRST and n in trace.counts for n in sizes)


def _times(number: float, sizes: Sequence[int]) -> float:
    """How many times there are so many rows a number is; itself, if it is no such multiple."""
    if isinstance(number, bool) or not isinstance(number, int):
        return number
    return next((number // n for n in sizes if number and number % n == 0 and n >= FIRST), number)


def _constants(trace: Trace) -> list[tuple[tuple[str, str, bytes], Event]]:
    """The values of constants that are not of a size that data choose, with their lines; those of
    one number as this number."""
    constants = []
    for event in trace.events:
        if event.name == CONSTANT:
            tensor = trace.tensors[next(iter(tensors_of(*event.outputs)))]
            raw, alike = _values(event, trace), _one_number(event, trace)
            if not any(n >= FIRST and _times(n, trace.counts) != n for n in tensor.shape):
                value = raw[: len(raw) // prod(tensor.shape)] if alike else raw
                constants.append(((trace.sources[event.source], tensor.dtype, value), event))
    return constants


def _kept(trace: Trace) -> list[Event]:
    """The events of a recording but for views, which are as the tensors say that are read, and the
    values of tensors of one number (`_constants`)."""
    kept = [e for e in trace.events if made(e, trace.tensors) or not e.outputs or e.boxes]
    return [e for e in kept if e.name != CONSTANT or not _one_number(e, trace)]


def _beside(ours: Sequence[Event], theirs: Sequence[Event], other: Trace) -> list[Event]:
    """The events of another recording without the values of the numbers of rows, which are none
    where there are too many rows.

    Example: of ``torch.arange(len(rows))`` with two rows 0 and 1.
    """
    left: list[Event] = []
    for event in theirs:
        place = len(left)
        constant = place < len(ours) and ours[place].name == CONSTANT
        if constant or event.name != CONSTANT or not _numbers_rows(event, other):
            left.append(event)
    return left


def _numbers_rows(event: Event, trace: Trace) -> bool:
    """Whether the values of a constant are 0, 1, 2, ..., of as many as there are rows."""
    (number,) = tensors_of(*event.outputs)
    tensor = trace.tensors[number]
    if tensor.dtype != "int64" or len(tensor.shape) != 1 or tensor.shape[0] not in trace.counts:
        return False
    return _values(event, trace) == array("q", range(tensor.shape[0])).tobytes()


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

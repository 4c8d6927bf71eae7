"""Whether memory is as it was when NumPy got an array of it.

An array that ``Tensor.numpy`` gives is the tensor's memory; what is copied out of it (``.copy()``,
``array[0]``, ``.tolist()``) keeps the numbers of that time.  An array of objects is copied without
its numbers being told, so a number that has left the array is known as long as nothing has written
the memory since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from shardproof.frontends.torch.record import Recorder
from shardproof.frontends.torch.state import WAIT_TENSOR
from shardproof.frontends.torch.trace import WAIT, Event, tensors_of


def unchanged(recorder: Recorder, x: torch.Tensor) -> Callable[[], bool]:
    """What says whether the memory of a tensor is as it is now, as far as the recorder has seen.

    Example: of ``x`` [4] it says so until ``x.mul_(2)``, or until the wait for an all-reduce of
    ``x``.
    """
    storage = recorder.tensors[recorder.tensor(x).number].storage
    seen = len(recorder.events)
    changed = False

    def answer() -> bool:
        nonlocal seen, changed
        later, seen = recorder.events[seen:], len(recorder.events)
        numbers = (n for event in later for n in _written(recorder.events, event))
        changed = changed or any(recorder.tensors[n].storage == storage for n in numbers)
        return not changed

    return answer


def _written(events: list[Event], event: Event) -> Iterator[int]:
    """The tensors whose memory an event writes, or for which it waits."""
    yield from event.writes
    if event.name.startswith("c10d.") or event.name == WAIT_TENSOR:
        yield from tensors_of(*event.args[:1])
    if event.name == WAIT:
        issued = (e for e in events if e.work and e.work == event.kwargs["work"])
        yield from (n for e in issued for n in tensors_of(*e.args[:1]))

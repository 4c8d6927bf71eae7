"""Parameters that a step writes and that nothing compares, since no optimizer was given.

A step may update its parameters by hand, or by an optimizer that `job.start` is not given.  What
they are afterwards is compared with an optimizer only, so the verdict says of which it is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardproof.frontends.torch.trace import START, Event, StridedTensor

#: What is printed; so many parameters are named.
UNTOLD = (
    "the step writes parameters ({}): what they are afterwards is not compared, since job.start "
    "was given no optimizer (outputs of job.end are compared)"
)
LISTED = 3


def untold(
    events: Sequence[Event],
    tensors: Sequence[StridedTensor],
    begun: Mapping[str, int],
    ended: Mapping[str, int],
) -> str:
    """The sentence about parameters that the step writes, or gives another memory ("": there are
    none); ``begun``, ``ended``: the numbers of their tensors by name, before and after.

    Example: "the step writes parameters (a.weight): ..." after ``a.weight -= 0.1 * a.weight.grad``.
    Whoever sends parameters to the others (``broadcast``) updates none.
    """
    first = max((n for n, event in enumerate(events) if event.name == START), default=0)
    written = {
        tensors[number].storage
        for event in events[first:]
        if not event.name.startswith("c10d.")
        for number in event.writes
    }
    moved = {name for name in begun if tensors[begun[name]].storage != tensors[ended[name]].storage}
    names = sorted(moved.union(n for n in begun if tensors[begun[n]].storage in written))
    if not names:
        return ""
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return UNTOLD.format(", ".join(names[:LISTED]) + more)

"""What states of optimizers begin with: an input of both sides, that is the same number on both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.torch.trace import PARAMETER, Trace

#: The number that a state has in all places, among what the job says of it, and whether its
#: parameter has that, too: then it may be a copy, which begins with anything.
BEGINS, COPIES = "begins", "copies"


def check(single: Trace, ranks: Sequence[Trace]) -> None:
    """Raise `InvalidInput` where a state is one number before the step, and another one there on
    the single side.

    Example: Adagrad with ``initial_accumulator_value=0.1`` beside Adagrad without; what may be a
    copy of the parameter on both sides may be another number.
    """
    first = {name: (number, copies) for name, number, copies in _begins(single)}
    for trace in ranks:
        for name, number, copies in _begins(trace):
            other, copied = first.get(name, (number, copies))
            if other != number and not (copies and copied):
                raise InvalidInput(
                    f"rank {trace.rank}: the state {name} is {number} before the step, on the "
                    f"single side it is {other}; give both sides the same before job.start"
                )


def _begins(trace: Trace) -> Iterator[tuple[str, float, bool]]:
    """States that are one number before the step, by the name of the full one, and whether they
    may be copies of their parameters."""
    for event in trace.events:
        number = event.kwargs.get(BEGINS) if event.name == PARAMETER else None
        if isinstance(number, float) and event.boxes:
            yield event.boxes[0].name, number, event.kwargs.get(COPIES) is True

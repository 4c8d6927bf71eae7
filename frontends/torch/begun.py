"""What states of optimizers begin with: an input of both sides, that is the same number on both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.torch.memory import Functional
from shardproof.frontends.torch.trace import PARAMETER, Trace

#: The number that a state has in all places, among what the job says of it, and whether its
#: parameter has that, too: then it may be a copy, which begins with anything.
BEGINS, COPIES = "begins", "copies"


def check(single: Functional, ranks: Sequence[Functional]) -> None:
    """Raise `InvalidInput` where a state is one number before the step, and on the other side
    another one there, or what is drawn.

    Example: Adagrad with ``initial_accumulator_value=0.1`` beside Adagrad without, an average of
    weights that begins with zeros beside one that begins as their copy; what may be a copy of the
    parameter on both sides may be another number.
    """
    first = _begins(single.trace)
    for step in ranks:
        own = _begins(step.trace)
        for name in sorted({*first, *own}):
            here, there = (
                _beginning(name, numbers, of) for numbers, of in ((own, step), (first, single))
            )
            if here and there and here != there and not _copies(name, own, first):
                raise InvalidInput(
                    f"rank {step.trace.rank}: the state {name} is {here} before the step, on the "
                    f"single side it is {there}; give both sides the same before job.start"
                )


#: The number of each state that is one, and whether it may be a copy of its parameter.
_Numbers: TypeAlias = dict[str, tuple[float, bool]]


def _begins(trace: Trace) -> _Numbers:
    """States that are one number before the step, by the name of the full one."""
    numbers: _Numbers = {}
    for event in trace.events:
        number = event.kwargs.get(BEGINS) if event.name == PARAMETER else None
        if isinstance(number, float) and event.boxes:
            numbers[event.boxes[0].name] = number, event.kwargs.get(COPIES) is True
    return numbers


def _beginning(name: str, numbers: _Numbers, step: Functional) -> str:
    """What a state begins with; "" where that is not known."""
    if name in numbers:
        return str(numbers[name][0])
    return "drawn or made of the parameter" if name in step.drawn else ""


def _copies(name: str, *sides: _Numbers) -> bool:
    """Whether a state may be a copy of its parameter wherever it is a number."""
    return all(numbers[name][1] for numbers in sides if name in numbers)

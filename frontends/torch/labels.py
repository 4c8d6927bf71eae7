"""Labels of which nobody states that each is a class: where a loss leaves some out, they are
classes or the number that is left out, and that number is read as a mark (docs/soundness.md,
5.10)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from shardproof.frontends.torch.lower import Side
from shardproof.frontends.torch.memory import Functional, Input

#: A step, and it lowered.
Lowered = tuple[Functional, Side]


def marked(
    sides: Mapping[int, Lowered], alone: int, again: Callable[[int, Functional, Side], Side]
) -> dict[int, Lowered] | None:
    """All sides with the labels that the single side's (``alone``) loss reads as classes and a
    mark; None: it has no such labels, or an operator would not be understood that is now.

    Example: labels without a domain, of a cross-entropy over 12 classes, are in [-1, 12), where -1
    stands for -100.  Where an embedding reads them too, they stay as they are: -100 is no row.
    """
    labels = sides[alone][1].labels
    if not labels:
        return None
    result = {}
    for number, (step, side) in sides.items():
        inputs = [_marked(x, *labels[x.shard]) if x.shard in labels else x for x in step.inputs]
        own = replace(step, inputs=inputs)
        result[number] = own, again(number, own, side)
        if not result[number][1].gaps.keys() <= side.gaps.keys():
            return None
    return result


def _marked(x: Input, mark: int, classes: int) -> Input:
    return x._replace(low=-1, high=min(x.high or classes, classes), mark=mark)


def noted(step: Functional) -> list[str]:
    """What labels with a mark are, for the verdict.

    Example: "labels batch t are classes from 0 to 11, or -100, which the loss leaves out: it has no
    meaning for others".
    """
    return [
        f"labels {x.shard} are classes from 0 to {(x.high or 0) - 1}, or {x.mark}, which the loss "
        "leaves out: it has no meaning for others"
        for x in step.inputs
        if x.mark is not None
    ]

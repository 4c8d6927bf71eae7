"""Labels of which nobody states that each is a class: where the single side's loss leaves a number
out, or the step tells labels from one and then looks rows up by them, labels are classes or that
number, which is read as a mark (docs/soundness.md, 5.10)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from shardproof.frontends.aten.labels import Labels
from shardproof.frontends.torch.lower import Side
from shardproof.frontends.torch.memory import Functional, Input

#: A step, and it lowered.
Lowered = tuple[Functional, Side]
#: Classes of which only the mark is known yet.
MOST = 1 << 30
#: How often the single side is read again with what was learned.
READINGS = 3


def marked(
    sides: Mapping[int, Lowered], alone: int, again: Callable[[int, Functional, Side], Side]
) -> dict[int, Lowered] | None:
    """All sides with the labels of the single side (``alone``) as classes and a mark; None: it has
    no such labels, or an operator would not be understood that is now.

    Example: labels without a domain, of a cross-entropy over 12 classes, are in [-1, 12), where -1
    stands for -100.  Where an embedding reads them too, they stay as they are: -100 is no row.
    """
    labels = _learned(*sides[alone], lambda step, side: again(alone, step, side))
    if labels is None:
        return None
    result = {}
    for number, (step, side) in sides.items():
        own = _with_marks(step, labels)
        result[number] = own, again(number, own, side)
        if not result[number][1].gaps.keys() <= side.gaps.keys():
            return None
    return result


def _learned(
    step: Functional, side: Side, again: Callable[[Functional, Side], Side]
) -> Labels | None:
    """Marks and how many classes there are, of every input that has both; None: there is none."""
    labels = Labels()
    for _ in range(READINGS):
        before = dict(labels.marks), dict(labels.rows)
        for name, mark in side.labels.marks.items():
            labels.marked(name, mark)
        for name, rows in side.labels.rows.items():
            labels.choosing(name, rows)
        if (labels.marks, labels.rows) == before or not labels.marks:
            break
        if labels.marks.keys() <= labels.rows.keys():
            break
        side = again(_with_marks(step, labels), side)
    labels.marks = {name: mark for name, mark in labels.marks.items() if name in labels.rows}
    return labels if labels.marks else None


def _with_marks(step: Functional, labels: Labels) -> Functional:
    return replace(step, inputs=[_input(x, labels) for x in step.inputs])


def _input(x: Input, labels: Labels) -> Input:
    mark = labels.marks.get(x.shard)
    if mark is None:
        return x
    high = min(x.high or MOST, labels.rows.get(x.shard, MOST))
    return x._replace(low=-1, high=high, mark=mark)


def noted(step: Functional) -> list[str]:
    """What labels with a mark are, for the verdict.

    Example: "labels batch t are classes from 0 to 11, or -100, which does not count: the step has
    no meaning for others".
    """
    return [
        f"labels {x.shard} are classes from 0 to {(x.high or 0) - 1}, or {x.mark}, which does not "
        "count: the step has no meaning for others"
        for x in step.inputs
        if x.mark is not None
    ]

"""Whether ranks that add up rows choose the same ones, where data say how many there are.

What ranks add up place by place are rows at the same positions only if the masks are equal that
choose them.  They are if they are computed alike, from the first input on: the same operators of
the same parts of named inputs and constants, and of results that a collective gives to all ranks of
its group, at the same place of what is issued there.  What is drawn, and what a rank receives
otherwise, is like nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Final

from shardproof.frontends.torch.draws import KINDS
from shardproof.frontends.torch.memory import CONSTANT, INPUT, UNDEFINED, Functional, Op
from shardproof.frontends.torch.trace import Arg, Items, Ranks, Tensor, tensors_of

#: Collectives of which the results are the same on all ranks of the group.
_SAME: Final = frozenset({"comm.all_reduce", "comm.all_gather", "comm.broadcast"})
#: Collectives that may add up rows.
ADDING: Final = "comm.all_reduce"


def rows_alike(steps: Mapping[int, Functional]) -> bool:
    """Whether all ranks of every group that adds up such rows choose them by masks that are
    computed alike.  Ranks that were not captured are those of the assumption about these.

    Example: experts whose inner dimension is divided, of which each adds up its tokens' rows.
    """
    if not any(_adds_rows(op, step) for step in steps.values() for op in step.ops):
        return False
    masks = {rank: _masks(rank, step) for rank, step in steps.items()}
    for rank, step in steps.items():
        for op in step.ops:
            for size in _adds_rows(op, step):
                own = masks[rank].get(size)
                others = [masks[r].get(size) for r in _group(op) if r in masks]
                if own is None or any(other != own for other in others):
                    return False
    return True


def _adds_rows(op: Op, step: Functional) -> list[int]:
    """The numbers of rows that an operator adds up over ranks."""
    if op.name != ADDING:
        return []
    shapes = [step.values[n].shape for n in tensors_of(*op.args)]
    return [n for shape in shapes for n in shape for size in step.trace.counts if n % size == 0]


def _group(op: Op) -> tuple[int, ...]:
    return next((a.ranks for a in op.args if isinstance(a, Ranks)), ())


def _masks(rank: int, step: Functional) -> dict[int, bytes]:
    """What the mask of each number of rows is computed of."""
    made, masks = computed(rank, step), dict[int, bytes]()
    for op in step.ops:
        if op.name == "aten.nonzero.default":
            size = step.values[op.outputs[0]].shape[0]
            alone = f"of rank {rank}".encode()
            masks.setdefault(size, made.get(next(tensors_of(*op.args)), alone))
    return masks


def computed(rank: int, step: Functional) -> dict[int, bytes]:
    """What values of a rank are computed of: two that are the same, of one rank or two, are
    computed alike.

    Example: ``labels != -100`` on ranks that read all labels.
    """
    inputs = {i.value: i for i in step.inputs}
    made: dict[int, bytes] = {}
    issued: dict[tuple[int, ...], bytes] = {}
    alone = f"of rank {rank}".encode()

    def form(arg: Arg) -> str:
        if isinstance(arg, Tensor):
            return f"t{made.get(arg.number, alone).hex()}"
        return f"[{','.join(map(form, arg.items))}]" if isinstance(arg, Items) else repr(arg)

    for place, op in enumerate(step.ops):
        given = [form(a) for a in op.args], sorted((k, form(v)) for k, v in op.kwargs.items())
        apart = op.name in KINDS or op.name == UNDEFINED or op.name.startswith("comm.")
        text = f"{op.name} {given}"
        if op.name == INPUT:
            own = inputs[op.outputs[0]]
            text = f"input {own._replace(value=0)}"
        elif op.name == CONSTANT:
            text = f"constant {step.constants[op.outputs[0]]!r}"
        elif op.name.startswith("comm.") and (group := _group(op)):
            shapes = [step.values[n] for n in op.outputs if n >= 0]
            text = f"{op.name} {shapes} {group} {issued.get(group, b'').hex()}"
            issued[group] = sha256(text.encode()).digest()
            apart = op.name not in _SAME
        if apart:
            text = f"{text} of rank {rank} at {place}"
        for index, value in enumerate(op.outputs):
            if value >= 0:
                like = step.values[value]
                made[value] = sha256(f"{text} {index} {like}".encode()).digest()
    return made

"""Memory that nothing has written, where it is read on the way to nothing that is compared.

``torch.distributed.pipelining`` runs each stage once on empty tensors, to see shapes: under tensor
parallelism with its collectives, which every rank has to join.  What is read there is taken for
numbers of its own, provided that no compared value of any rank depends on them, whatever crosses
ranks included; else the operator that reads it stays without a meaning.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import Final

from shardproof.engine.algebra.affine import affine
from shardproof.engine.plan.ir import Program, Shard
from shardproof.engine.schedule.messages import Event, match
from shardproof.frontends.aten import Undefined

MEMORY: Final = "unwritten memory "


def numbers(number: int, x: Undefined) -> Shard:
    """An input for what lies in memory.

    Example: the first of a step that reads 4 rows of 16 is "unwritten memory 0 (float32[4,16])".
    """
    sizes = ",".join(map(str, x.shape))
    name = f"{MEMORY}{number} ({x.dtype}[{sizes}])"
    zero = tuple(affine(0) for _ in x.shape)
    return Shard(name, x.shape, x.shape, zero, x.dtype, trainable=False, kind="constant")


def is_read(programs: Iterable[Program]) -> bool:
    """Whether any of these programs has such an input.

    Example: False of an MLP's step.
    """
    return any(s.name.startswith(MEMORY) for program in programs for s in program.shards)


def reaches(programs: Sequence[Program], compared: Sequence[Set[int]]) -> bool:
    """Whether a compared value depends on such an input, on any rank; ``compared``: by program,
    values of its body.

    Example: False where a stage is run on empty tensors to see shapes; True where its output is the
    loss, or is sent to a rank whose loss it is.
    """
    if not is_read(programs):
        return False
    pairs = zip(compared, _dependent(programs), strict=True)
    return any(not own.isdisjoint(values) for own, values in pairs)


def _dependent(programs: Sequence[Program]) -> list[set[int]]:
    """By program, the values of its body that depend on such an input."""
    matching = match(programs)
    dependent = [_inputs(program) for program in programs]
    crossing: set[Event] = set()
    meetings: set[int] = set()
    known = -1
    while known < len(crossing) + len(meetings):
        known = len(crossing) + len(meetings)
        for p, program in enumerate(programs):
            (body,) = program.bodies
            for o, op in enumerate(body.ops):
                event = (p, 0, o)
                meeting = matching.groups.get(event)
                if not dependent[p].isdisjoint(op.inputs):
                    crossing.add(event)
                    meetings.update([] if meeting is None else [meeting])
                sent = event in crossing or matching.partner.get(event) in crossing
                if sent or meeting in meetings:
                    dependent[p].update(op.outputs)
    return dependent


def _inputs(program: Program) -> set[int]:
    (body,) = program.bodies
    return {v for v, n in body.shards if program.shards[n].name.startswith(MEMORY)}

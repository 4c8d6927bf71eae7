"""A plan as its records have it: which of its operators are other ones then.

By default groups are in the order of their ranks, as the runtime makes them.  The records of a plan
may tell of another order, which is what the user may state, and the first repair that is tried for
a plan that is wrong.  What is different then is noted while the plan is written, so that nobody has
to read it again: operators one by one, and programs as a whole where gradients that arrive are of
other values as recorded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from shardproof.engine.plan.ir import Body, Op, Plan, Program
from shardproof.engine.plan_files import store
from shardproof.frontends.errors import UnreadablePlan
from shardproof.frontends.nnscaler.cells import Prim
from shardproof.frontends.nnscaler.primitives import Step, Steps

#: What a rank does with its part of a group: by rank, and as recorded.
CHUNK, SLICE, GATHER = "chunk", "slice", "all_gather"
#: The primitives of which the records have an account of their own.
_BY: Final = {"ChunkPrim": CHUNK, "AllGatherPrim": GATHER}


class Change(NamedTuple):
    """An operator of a body that is another one: a slice with ``attrs``, or an all-gather that has
    these, too.

    Example: ``Change(1, 7, 0, {"dim": 2, "start": 1024, "size": 512})``: the first operator of body
    7 of program 1, a chunk by rank, takes 512 positions from 1024 on.
    """

    program: int
    body: int
    op: int
    attrs: Mapping[str, int]


class Otherwise:
    """The changes of one device's program, as they are met, such as one for each of its chunks;
    ``known``: whether these are all."""

    def __init__(self, program: int) -> None:
        self.changes: list[Change] = []
        self.known = True
        self._program = program

    def note(self, body: int, op: int, prim: Prim, made: Steps) -> None:
        """Note what ``prim`` is as recorded; ``op``: the number of its operator, written next."""
        if prim.kind not in _BY:
            return
        try:
            step = recorded(prim, made).steps[0]
        except (UnreadablePlan, LookupError):
            self.known = False
            return
        attrs = {key: value for key, value in step.attrs.items() if isinstance(value, int)}
        if step.name == GATHER:
            attrs = {"position": attrs["position"]}
        self.changes.append(Change(self._program, body, op, attrs))


def recorded(prim: Prim, made: Steps) -> Steps:
    """A primitive by the user's word on groups: see `frontends.nnscaler.convert.convert`.

    Example: a chunk of 2048 positions whose output's index map begins at 1024 is the slice from
    1024 on; by rank (``made``) it is what the rank's position in its group says.
    """
    if prim.kind == "ChunkPrim":
        return Steps((_slice(prim),), 1)
    if prim.kind == "AllGatherPrim":
        dim = prim.number("dim")
        attrs = {**made.steps[0].attrs, "position": prim.inputs[0].box[dim][0]}
        return Steps((made.steps[0]._replace(attrs=attrs),), 1)
    return made


def _slice(prim: Prim) -> Step:
    """A chunk taken where its output's index map says, whatever the rank (a stated assumption)."""
    dim = prim.number("dim")
    if len(prim.inputs) != 1 or len(prim.outputs) != 1 or not 0 <= dim < len(prim.outputs[0].box):
        raise UnreadablePlan(f"expected one input and one output with dimension {dim} in a chunk")
    low, high = prim.outputs[0].box[dim]
    start = low - prim.inputs[0].box[dim][0]
    return Step("slice", {"dim": dim, "start": start, "size": high - low})


class AsRecorded(NamedTuple):
    """What is different in a plan as its records have it: operators, and whole programs;
    ``joined``: full tensors to which several stages contribute then, of whose parts nothing is
    recorded (what by rank is nobody's part has no record then, either: it is evidence alone).

    Example: of a Llama of 16 stages, whose last but one gives an adapter's result the name of what
    it read, the programs of that stage's devices, and chunks of all others.
    """

    changes: tuple[Change, ...]
    programs: tuple[Program, ...] = ()
    joined: tuple[int, ...] = ()


def packed(otherwise: AsRecorded | None, microbatches: int) -> bytes:
    """What is different in a plan of so many microbatches, as bytes; None: it is not known.

    Example: ``b"null\\n"`` for None.
    """
    if otherwise is None:
        return b"null\n"
    programs = b""
    if otherwise.programs:
        none = Program("none", (), ())
        programs = store.to_bytes(Plan("as recorded", none, otherwise.programs, microbatches))
    line = json.dumps([otherwise.changes, len(programs), otherwise.joined])
    return line.encode() + b"\n" + programs


def unpacked(data: bytes) -> tuple[AsRecorded | None, bytes]:
    """What `packed` made bytes of, and what comes after it; raises `InvalidInput`.

    Example: ``(None, b"rest")`` of ``b"null\\nrest"``.
    """
    line, _, rest = data.partition(b"\n")
    known = json.loads(line)
    if known is None:
        return None, rest
    rows, size, joined = known
    programs = store.from_bytes(rest[:size]).programs if size else ()
    changes = tuple(Change(*row) for row in rows)
    return AsRecorded(changes, programs, tuple(joined)), rest[size:]


def changed(programs: Sequence[Program], otherwise: AsRecorded) -> tuple[Program, ...]:
    """The programs as recorded.

    Example: ``changed((program,), AsRecorded((Change(0, 7, 0, {"position": 512}),)))`` is the
    program whose body 7 begins with an all-gather of a position.
    """
    others = {program.base: program for program in otherwise.programs}
    joined = set(otherwise.joined)
    bodies: dict[tuple[int, int], dict[int, Mapping[str, int]]] = {}
    for program, body, op, attrs in otherwise.changes:
        if program not in others:
            bodies.setdefault((program, body), {})[op] = attrs
    known = [others.get(program.base, program) for program in programs]
    return tuple(
        replace(
            program,
            bodies=tuple(
                unclaimed(_changed(body, bodies.get((number, place), {})), joined)
                for place, body in enumerate(program.bodies)
            ),
        )
        for number, program in enumerate(known)
    )


def unclaimed(body: Body, fulls: set[int]) -> Body:
    """The body without what is recorded about parts of some full tensors.

    Example: with ``fulls`` {26} the index maps of the parts of full tensor 26 are dropped.
    """
    if not fulls or not any(x is not None and x.full in fulls for x in body.claims):
        return body
    kept = [x if x is None or x.full not in fulls else None for x in body.claims]
    return replace(body, claims=tuple(kept))


def _changed(body: Body, changes: Mapping[int, Mapping[str, int]]) -> Body:
    if not changes:
        return body
    ops = list(body.ops)
    for number, attrs in changes.items():
        ops[number] = _op(ops[number], attrs)
    return replace(body, ops=tuple(ops))


def _op(op: Op, attrs: Mapping[str, int]) -> Op:
    if op.name == GATHER:
        return replace(op, attrs={**op.attrs, **attrs})
    if op.name != CHUNK:
        raise AssertionError(f"{op.name} is no part of a group")
    return replace(op, name=SLICE, attrs=dict(attrs))

"""Data flow between the calls of a program, and the microbatch that each call belongs to.

A slot is a name: its reader sees the last write before it in issue order.  Calls are labelled with
the microbatch whose data flows through them, through messages as well; microbatches that all flow
alike can be one instance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardproof.engine.findings import Finding
from shardproof.engine.plan.ir import Body, Program
from shardproof.engine.schedule.messages import Event, Matching, communication


class Structure(Exception):
    """The program contradicts itself; carries the finding."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


#: Where an input of a call comes from: ("call", call, output position), ("seed", loss slot's call,
#: output position) or ("saved", call, value).
Origin = tuple[str, int, int]


@dataclass(slots=True)
class Flow:
    """Data flow between the calls of one program.

    Example: of ``call 0() -> 0``, ``call 1(1)`` with ``seed 1 of 0``, where body 1 is the backward
    of body 0, ``inputs`` is ``[(), (("seed", 0, 0),)]`` and ``paired`` ``[-1, 0]``.

    ``inputs[c]``: the origin of each input of call c; ``paired[c]``: the forward call whose saved
    contexts a backward call reads (-1: none); ``final``: the last write of each slot.
    """

    inputs: list[tuple[Origin, ...]]
    paired: list[int]
    final: dict[int, tuple[int, int]]


def flow(program: Program) -> Flow:
    """Resolve slots to the calls that last wrote them; raises `Structure` where a slot is read
    before it is written.

    Example: of a backward call without the seed that it reads, "rank 0: backward reads gradient 7,
    which nothing has written".
    """
    written: dict[int, tuple[int, int]] = {}
    seeds = dict(program.seeds)
    forward_calls: dict[int, list[int]] = {}
    backward_count: dict[int, int] = {}
    result = Flow([], [], written)
    for c, call in enumerate(program.calls):
        body = program.bodies[call.body]
        origins: list[Origin] = []
        for position, slot in enumerate(call.inputs):
            if slot in written:
                origins.append(("call", *written[slot]))
            elif slot in seeds and seeds[slot] in written:
                origins.append(("seed", *written[seeds[slot]]))
            else:
                name = body.values[body.inputs[position]].name or f"slot {slot}"
                raise Structure(
                    Finding(
                        "read before write",
                        f"rank {program.base}: {body.name} reads {name}, which nothing has written",
                        operator=body.name,
                        ranks=(program.base,),
                    )
                )
        result.inputs.append(tuple(origins))
        result.paired.append(_pair(program, c, body, forward_calls, backward_count))
        forward_calls.setdefault(call.body, []).append(c)
        for position, slot in enumerate(call.outputs):
            written[slot] = (c, position)
    return result


def _pair(
    program: Program,
    c: int,
    body: Body,
    forward_calls: Mapping[int, list[int]],
    backward_count: dict[int, int],
) -> int:
    if body.forward_body < 0:
        return -1
    number = program.calls[c].body
    k = backward_count.get(number, 0)
    backward_count[number] = k + 1
    earlier = forward_calls.get(body.forward_body, [])
    if k >= len(earlier):
        raise Structure(
            Finding(
                "read before write",
                f"rank {program.base}: {body.name} runs backward for the {k + 1}. time, its "
                f"forward has run {len(earlier)} times",
                operator=body.name,
                ranks=(program.base,),
            )
        )
    return earlier[k]


def label(
    programs: Sequence[Program], flows: Sequence[Flow], matching: Matching
) -> list[list[int]] | None:
    """The microbatch of every call (-1: of none); None if a call mixes microbatches.

    Example: of forward, backward, forward, backward and the reducer ``[0, 0, 1, 1, -1]``: only the
    forward calls say their microbatch.
    """
    labels = [[call.microbatch for call in program.calls] for program in programs]
    incoming = _incoming(programs, flows, matching)
    changed = True
    while changed:
        changed = _label_receivers(labels, matching)
        for p, program in enumerate(programs):
            for c in range(len(program.calls)):
                microbatches = {labels[q][d] for q, d in incoming[p][c]} - {-1, labels[p][c]}
                if not microbatches:
                    continue
                if labels[p][c] >= 0 or len(microbatches) > 1:
                    return None
                labels[p][c] = microbatches.pop()
                changed = True
    return labels


def _incoming(
    programs: Sequence[Program], flows: Sequence[Flow], matching: Matching
) -> list[list[list[tuple[int, int]]]]:
    """For each call of each program: the calls whose data it reads."""
    incoming: list[list[list[tuple[int, int]]]] = [
        [[] for _ in program.calls] for program in programs
    ]
    for p, data in enumerate(flows):
        for c, origins in enumerate(data.inputs):
            incoming[p][c].extend((p, source) for _, source, _ in origins)
            if data.paired[c] >= 0:
                incoming[p][c].append((p, data.paired[c]))
    for (p, c, _), (q, d, _) in matching.partner.items():
        incoming[p][c].append((q, d))
    return incoming


def _label_receivers(labels: list[list[int]], matching: Matching) -> bool:
    """Who only receives in a collective belongs to the microbatch that it receives; whether that
    labelled anyone."""
    changed = False
    for members in matching.members:
        known = [labels[q][d] for q, d, _ in members if labels[q][d] >= 0]
        for q, d, _ in members if known else ():
            if labels[q][d] < 0:
                labels[q][d] = known[0]
                changed = True
    return changed


def is_symbolic(
    programs: Sequence[Program],
    flows: Sequence[Flow],
    matching: Matching,
    labels: Sequence[Sequence[int]],
    microbatches: int,
) -> bool:
    """Whether all microbatches flow alike, so that one instance stands for all.

    Example: a program whose two microbatches each are a forward and a backward call is, and is not
    where the reducer runs after each of them.
    """
    meetings: dict[int, object] = {}
    for p, program in enumerate(programs):
        by_body: dict[int, dict[int, int]] = {}
        for c, call in enumerate(program.calls):
            m = labels[p][c]
            if m < 0:
                continue
            # A reducer changes what is there when it runs: one in every microbatch is no family.
            if m in by_body.setdefault(call.body, {}) or program.bodies[call.body].reduced:
                return False
            by_body[call.body][m] = c
        signatures: dict[int, object] = {}
        for number, calls in by_body.items():
            if sorted(calls) != list(range(microbatches)):
                return False
            issued = communication(program.bodies[number])
            for m, c in calls.items():
                signature = _signature(programs, flows, matching, labels, p, c, m, issued, meetings)
                if signature is None or signatures.setdefault(number, signature) != signature:
                    return False
        if not _gradients_complete(program):
            return False
    return True


def _signature(
    programs: Sequence[Program],
    flows: Sequence[Flow],
    matching: Matching,
    labels: Sequence[Sequence[int]],
    p: int,
    c: int,
    m: int,
    issued: Sequence[int],
    meetings: dict[int, object],
) -> object:
    """What call c reads and whom it meets, with the microbatch taken out (None: another one's).
    ``issued``: the communication of its body; ``meetings``: who meets in the collectives that were
    looked at."""
    program = programs[p]
    parts: list[object] = []
    sources = [(kind, d, i) for kind, d, i in flows[p].inputs[c]]
    if flows[p].paired[c] >= 0:
        sources.append(("saved", flows[p].paired[c], 0))
    for kind, d, i in sources:
        if labels[p][d] != m:
            return None
        parts.append((kind, program.calls[d].body, i))
    for o in issued:
        event = (p, c, o)
        number = matching.groups.get(event)
        if number is None:
            sender = matching.partner.get(event)
            met = () if sender is None else _met(programs, labels, (sender,), m)
        else:
            if number not in meetings:
                meetings[number] = _met(programs, labels, matching.members[number], m)
            met = meetings[number]
        if met is None:
            return None
        parts.append(met)
    return tuple(parts)


def _met(
    programs: Sequence[Program],
    labels: Sequence[Sequence[int]],
    members: Sequence[Event],
    m: int,
) -> object:
    """Who meets, with the microbatch taken out (None: calls of another one are among them)."""
    if any(labels[q][d] != m for q, d, _ in members):
        return None
    return tuple([(q, programs[q].calls[d].body, i) for q, d, i in members])


def _gradients_complete(program: Program) -> bool:
    """Whether every reducer runs after all contributions to what it reduces."""
    reduced: set[int] = set()
    for call in program.calls:
        body = program.bodies[call.body]
        if any(shard in reduced for _, shard in body.gradients):
            return False
        reduced.update(shard for _, _, shard in body.reduced)
    return True

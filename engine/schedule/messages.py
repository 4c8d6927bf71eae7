"""Which messages meet, by the order in which ranks issue them.

Names play no part here.  Sends and receives match by issue order per (source, destination),
collectives by issue order per group; only then are kinds and dimensions compared.  A simulation of
that order finds ranks that wait for each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shardproof.engine.findings import Finding
from shardproof.engine.plan.ir import Body, Group, Op, Program

#: Operators that join ranks.  ``chunk`` is local but takes the rank's position in its group.
COLLECTIVES = frozenset(
    {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce"}
)
COMMUNICATION = COLLECTIVES | {"send", "recv"}

Event = tuple[int, int, int]  # program, call, operator of its body


def communication(body: Body) -> list[int]:
    """Numbers of the operators of a body that join ranks, in order."""
    return [i for i, op in enumerate(body.ops) if op.name in COMMUNICATION]


def _group_attr(op: Op) -> Group:
    group = op.attrs.get("group")
    return group if isinstance(group, Group) else Group()


def rank_order(program: Program, axes: Sequence[str]) -> tuple[str, ...] | None:
    """Mesh axes of a group, slowest first, so that members along them are ordered by rank.

    None if an axis is repeated or no axis of the program, or if ranks along the axes interleave.
    """
    steps = {name: (stride, extent) for name, extent, stride in program.axes}
    if len(set(axes)) < len(axes) or any(axis not in steps for axis in axes):
        return None
    ordered = sorted(axes, key=lambda axis: -steps[axis][0])
    reach = 0
    for axis in reversed(ordered):
        stride, extent = steps[axis]
        if extent > 1 and stride <= reach:
            return None
        reach += stride * (extent - 1)
    return tuple(ordered)


def mesh(program: Program) -> list[tuple[str, int, int]]:
    """Where the ranks of a program lie relative to its first one."""
    return sorted(axis for axis in program.axes if axis[1] > 1)


def _fault(kind: str, message: str, ranks: tuple[int, ...], op: Op) -> Finding:
    place = op.source.location or op.source.cell
    return Finding(kind, message, op.name, op.source.module, place, ranks)


class Matching(NamedTuple):
    """``partner``: receive -> send; ``groups``: event -> number of its collective;
    ``members``: the events of each collective, in rank order."""

    partner: dict[Event, Event]
    groups: dict[Event, int]
    members: list[tuple[Event, ...]]
    findings: list[Finding]


def match(programs: Sequence[Program]) -> Matching:
    """Pair messages by issue order; what has no partner, or a partner of another kind, is a
    finding."""
    bases = {program.base: i for i, program in enumerate(programs)}
    sends: dict[tuple[int, int], list[Event]] = {}
    receives: dict[tuple[int, int], list[Event]] = {}
    collectives: dict[tuple[tuple[int, ...], tuple[str, ...]], dict[int, list[Event]]] = {}
    findings: list[Finding] = []
    faults: dict[tuple[int, tuple[int, ...]], str] = {}
    per_body = [[communication(body) for body in program.bodies] for program in programs]
    for p, program in enumerate(programs):
        for c, call in enumerate(program.calls):
            body = program.bodies[call.body]
            for o in per_body[p][call.body]:
                op = body.ops[o]
                event = (p, c, o)
                if op.name in ("send", "recv"):
                    peer = op.attrs.get("peer")
                    fault = _peer_fault(programs, bases, program, op)
                    if fault or not isinstance(peer, int):
                        findings.append(
                            _fault("peer", f"rank {program.base}: {fault}", (program.base,), op)
                        )
                        continue
                    channel = (program.base, peer) if op.name == "send" else (peer, program.base)
                    (sends if op.name == "send" else receives).setdefault(channel, []).append(event)
                    continue
                group = _group_attr(op)
                ranks = tuple(sorted(group.ranks)) or (program.base,)
                axes = rank_order(program, group.axes)
                if (p, ranks) not in faults:
                    faults[p, ranks] = _group_fault(programs, bases, program, ranks)
                fault = faults[p, ranks]
                if fault or axes is None:
                    findings.append(
                        _fault(
                            "group",
                            f"rank {program.base} issues {op.name} over ranks {list(ranks)}"
                            + (f" along {list(group.axes)}" if group.axes else "")
                            + ": "
                            + (fault or "these axes give its members no order"),
                            (program.base,),
                            op,
                        )
                    )
                    continue
                collectives.setdefault((ranks, axes), {}).setdefault(p, []).append(event)
    findings += _uneven_axes(programs, sends, receives, collectives, bases)
    if findings:
        return Matching({}, {}, [], findings)
    partner = _pair_messages(programs, sends, receives, findings)
    groups, members = _pair_collectives(programs, bases, collectives, findings)
    return Matching(partner, groups, members, findings)


def _uneven_axes(
    programs: Sequence[Program],
    sends: Mapping[tuple[int, int], list[Event]],
    receives: Mapping[tuple[int, int], list[Event]],
    collectives: Mapping[tuple[tuple[int, ...], tuple[str, ...]], dict[int, list[Event]]],
    bases: Mapping[int, int],
) -> list[Finding]:
    """Programs that meet must have the same axes: a rank's partners are shifted like itself."""
    meetings = {tuple(sorted(channel)) for channel in (*sends, *receives)}
    meetings |= {ranks for ranks, _ in collectives}
    findings = []
    for ranks in sorted(meetings):
        axes = {programs[bases[rank]].axes for rank in ranks}
        unknown = {
            axis
            for (members, names), _ in collectives.items()
            if members == ranks
            for axis in names
            if axis not in programs[bases[ranks[0]]].extents
        }
        if len(axes) > 1 or unknown:
            findings.append(
                Finding(
                    "group",
                    f"ranks {list(ranks)} communicate, but "
                    + (
                        f"have no axis {sorted(unknown)}"
                        if unknown
                        else "their programs are replicated differently"
                    ),
                    ranks=ranks,
                )
            )
    return findings


def _peer_fault(
    programs: Sequence[Program], bases: Mapping[int, int], program: Program, op: Op
) -> str:
    """What is wrong with whom a message names ("" if nothing)."""
    peer, named = op.attrs.get("peer"), op.attrs.get("self", program.base)
    if named != program.base:
        return f"{op.name} is written down for rank {named}"
    if not isinstance(peer, int) or peer not in bases:
        return f"{op.name} names rank {peer}, which runs no program"
    if mesh(programs[bases[peer]]) != mesh(program):
        return f"{op.name} names rank {peer}, whose program runs on ranks laid out otherwise"
    return ""


def _group_fault(
    programs: Sequence[Program], bases: Mapping[int, int], program: Program, ranks: Sequence[int]
) -> str:
    """What is wrong with the explicit ranks of a group ("" if nothing)."""
    missing = [r for r in ranks if r not in bases]
    if missing:
        return f"ranks {missing} run no program"
    if program.base not in ranks or len(set(ranks)) != len(ranks):
        return "it must be in its own group, once"
    apart = [r for r in ranks if mesh(programs[bases[r]]) != mesh(program)]
    return f"the programs of ranks {apart} run on ranks laid out otherwise" if apart else ""


def _root_fault(ranks: Sequence[int], ops: Sequence[Op]) -> str:
    """Whether a rooted collective gives from, or to, another rank than its root."""
    root = ops[0].attrs.get("root")
    if ops[0].name == "broadcast":
        found = [rank for rank, op in zip(ranks, ops, strict=True) if op.inputs]
        return "" if found == [root] else f"ranks {found} give what is to come from rank {root}"
    if ops[0].name == "reduce":
        found = [rank for rank, op in zip(ranks, ops, strict=True) if op.outputs]
        return "" if found == [root] else f"ranks {found} take what goes to rank {root}"
    return ""


def _op(programs: Sequence[Program], event: Event) -> Op:
    p, c, o = event
    return programs[p].bodies[programs[p].calls[c].body].ops[o]


def _pair_messages(
    programs: Sequence[Program],
    sends: Mapping[tuple[int, int], list[Event]],
    receives: Mapping[tuple[int, int], list[Event]],
    findings: list[Finding],
) -> dict[Event, Event]:
    partner: dict[Event, Event] = {}
    for channel in sorted(set(sends) | set(receives)):
        out, into = sends.get(channel, []), receives.get(channel, [])
        for send, receive in zip(out, into, strict=False):
            partner[receive] = send
        for event in out[len(into) :] + into[len(out) :]:
            op = _op(programs, event)
            lack = "receive" if op.name == "send" else "send"
            findings.append(
                _fault(
                    "unmatched message",
                    f"rank {channel[0]} to rank {channel[1]}: a {op.name} has no {lack} "
                    f"({len(out)} sends, {len(into)} receives)",
                    channel,
                    op,
                )
            )
    return partner


def _pair_collectives(
    programs: Sequence[Program],
    bases: Mapping[int, int],
    collectives: Mapping[tuple[tuple[int, ...], tuple[str, ...]], dict[int, list[Event]]],
    findings: list[Finding],
) -> tuple[dict[Event, int], list[tuple[Event, ...]]]:
    groups: dict[Event, int] = {}
    members: list[tuple[Event, ...]] = []
    for (ranks, _), issued in collectives.items():
        lists = [issued.get(bases[rank], []) for rank in ranks]
        count = min(len(events) for events in lists)
        if any(len(events) != count for events in lists):
            short = [r for r, events in zip(ranks, lists, strict=True) if len(events) == count]
            long = next(events for events in lists if len(events) > count)
            op = _op(programs, long[count])
            findings.append(
                _fault(
                    "unmatched collective",
                    f"{op.name} over ranks {list(ranks)} is not issued by ranks {short}",
                    ranks,
                    op,
                )
            )
        for joined in zip(*lists, strict=False):
            ops = [_op(programs, event) for event in joined]
            kinds = sorted({_collective_kind(op) for op in ops})
            if len(kinds) > 1:
                findings.append(
                    _fault(
                        "collective mismatch",
                        f"ranks {list(ranks)} join in different collectives: {' and '.join(kinds)}",
                        ranks,
                        ops[0],
                    )
                )
                continue
            fault = _root_fault(ranks, ops)
            if fault:
                findings.append(
                    _fault(
                        "root", f"{ops[0].name} over ranks {list(ranks)}: {fault}", ranks, ops[0]
                    )
                )
                continue
            for event in joined:
                groups[event] = len(members)
            members.append(tuple(joined))
    return groups, members


def _collective_kind(op: Op) -> str:
    attrs = {k: v for k, v in op.attrs.items() if k not in ("group", "position")}
    return op.name + "".join(f" {k}={v}" for k, v in sorted(attrs.items(), key=lambda i: i[0]))


def deadlock(programs: Sequence[Program], matching: Matching) -> Finding | None:
    """Run the order of communication alone; a finding if ranks wait for each other.

    Sends do not wait for their receive (eager), receives and collectives wait for all partners.
    """
    events: list[list[Event]] = []
    for p, program in enumerate(programs):
        per_body = [communication(body) for body in program.bodies]
        events.append(
            [(p, c, o) for c, call in enumerate(program.calls) for o in per_body[call.body]]
        )
    position = [0] * len(programs)
    sent: set[Event] = set()
    waiting: dict[int, set[int]] = {}
    woken: dict[Event, int] = {}
    ready = deque(range(len(programs)))
    while ready:
        p = ready.popleft()
        while position[p] < len(events[p]):
            event = events[p][position[p]]
            op = _op(programs, event)
            if op.name == "send":
                sent.add(event)
                if event in woken:
                    ready.append(woken.pop(event))
            elif op.name == "recv":
                partner = matching.partner.get(event)
                if partner is not None and partner not in sent:
                    woken[partner] = p
                    break
            else:
                number = matching.groups.get(event)
                if number is not None:
                    arrived = waiting.setdefault(number, set())
                    arrived.add(p)
                    if len(arrived) < len(matching.members[number]):
                        break
                    for other in arrived - {p}:
                        position[other] += 1
                        ready.append(other)
            position[p] += 1
    stuck = [p for p in range(len(programs)) if position[p] < len(events[p])]
    if not stuck:
        return None
    event = events[stuck[0]][position[stuck[0]]]
    op = _op(programs, event)
    ranks = tuple(programs[p].base for p in stuck)
    return _fault(
        "deadlock",
        f"ranks {list(ranks)} wait for each other; rank {ranks[0]} waits in {op.name}",
        ranks,
        op,
    )

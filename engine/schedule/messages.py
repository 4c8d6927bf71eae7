"""Which messages meet, by the order in which ranks issue them.

Names play no part here.  Sends and receives match by issue order per (source, destination),
collectives by issue order per group; only then are kinds and dimensions compared.  Whether ranks
wait for each other in that order, `engine.schedule.liveness` finds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shardproof.engine.findings import Finding
from shardproof.engine.plan.collectives import COMMUNICATION, PARTS, TABLE, Wire, signature
from shardproof.engine.plan.ir import Body, Group, Op, Program

Event = tuple[int, int, int]  # program, call, operator of its body
#: Source and destination of messages; explicit ranks and mesh axes of a group.
Channel = tuple[int, int]
Meeting = tuple[tuple[int, ...], tuple[str, ...]]
#: An operator of a body, and the list of events that every call of it adds one to (None: it has to
#: be looked at each time).
Step = tuple[int, Op, "list[Event] | None"]


def communication(body: Body) -> list[int]:
    """Numbers of the operators of a body that join ranks, in order.

    Example: of a body whose fifth operator is its only all-reduce ``[4]``.
    """
    return [i for i, op in enumerate(body.ops) if op.name in COMMUNICATION]


def rank_order(program: Program, axes: Sequence[str]) -> tuple[str, ...] | None:
    """Mesh axes of a group, slowest first, so that members along them are ordered by rank.

    None if an axis is repeated or no axis of the program, or if ranks along the axes interleave.

    Example: where ``dp`` has stride 4 and ``tp`` stride 1, a group over (``tp``, ``dp``) is ordered
    (``dp``, ``tp``).
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
    """Where the ranks of a program lie relative to its first one.

    Example: of ``axes: dp=2*4 tp=2*1 pp=1*1`` ``[("dp", 2, 4), ("tp", 2, 1)]``.
    """
    return sorted(axis for axis in program.axes if axis[1] > 1)


def fault(kind: str, message: str, ranks: tuple[int, ...], op: Op) -> Finding:
    """A finding about an operator of the plan.

    Example: of the kind "deadlock", at the ``recv`` of a module ``layers.1`` in ``model.py:7``.
    """
    place = op.source.location or op.source.cell
    return Finding(kind, message, op.name, op.source.module, place, ranks)


class Matching(NamedTuple):
    """Which sends and receives meet, and which ranks' collectives are one.

    Example: of two ranks with one all-reduce each, the fifth operator of their first call:
    ``members`` is ``[((0, 0, 4), (1, 0, 4))]``, (program, call, operator) of each.

    ``partner``: receive -> send; ``groups``: event -> number of its collective;
    ``members``: the events of each collective, in rank order; ``posts``: event that posts a receive
    -> the receive that takes what arrives.
    """

    partner: dict[Event, Event]
    groups: dict[Event, int]
    members: list[tuple[Event, ...]]
    findings: list[Finding]
    posts: dict[Event, Event]


class _Issued:
    """What all programs issue, in order, by channel (source, destination) and by group (explicit
    ranks, mesh axes); what is wrong with any of it goes to ``findings``."""

    def __init__(self, programs: Sequence[Program]) -> None:
        self.programs = programs
        self.bases = {program.base: i for i, program in enumerate(programs)}
        self.sends: dict[Channel, list[Event]] = {}
        self.receives: dict[Channel, list[Event]] = {}
        self.open: dict[Channel, deque[Event]] = {}
        self.posts: dict[Event, Event] = {}
        self.collectives: dict[Meeting, dict[int, list[Event]]] = {}
        self.findings: list[Finding] = []
        self._faults: dict[tuple[int, tuple[int, ...]], str] = {}
        self.posting = any(
            TABLE[op.name].wire is Wire.POST
            for program in programs
            for body in program.bodies
            for op in body.ops
            if op.name in COMMUNICATION
        )
        for p, program in enumerate(programs):
            known: dict[int, list[Step]] = {}
            for c, call in enumerate(program.calls):
                if call.body not in known:
                    known[call.body] = self._steps(p, program, program.bodies[call.body])
                for o, op, into in known[call.body]:
                    if into is None:
                        self._event((p, c, o), program, op)
                    else:
                        into.append((p, c, o))
            for number in dict.fromkeys(call.body for call in program.calls):
                for op in program.bodies[number].ops:
                    # A chunk waits for nobody, and is of a group all the same.
                    if op.name in PARTS:
                        self._group(p, program, op)

    def _steps(self, p: int, program: Program, body: Body) -> list[Step]:
        """What every call of a body issues."""
        return [(o, body.ops[o], self._into(p, program, body.ops[o])) for o in communication(body)]

    def _into(self, p: int, program: Program, op: Op) -> list[Event] | None:
        """The list to which an operator adds an event in every call; None where each event has to
        be looked at (it is at fault, or takes what was posted)."""
        wire = TABLE[op.name].wire
        if wire is Wire.GROUP:
            group = self._meeting(p, program, op)
            return None if group is None else self._joiners(p, program, group)
        peer = op.attrs.get("peer")
        wrong = _peer_fault(self.programs, self.bases, program, op)
        if wrong or not isinstance(peer, int):
            return None
        if wire is Wire.SEND:
            return self.sends.setdefault((program.base, peer), [])
        return None if self.posting else self.receives.setdefault((peer, program.base), [])

    def _joiners(self, p: int, program: Program, group: Meeting) -> list[Event]:
        """What a program issues in a group."""
        ranks, axes = group
        # Along an axis of one position nobody meets.
        spanned = tuple(axis for axis in axes if program.extents[axis] > 1)
        return self.collectives.setdefault((ranks, spanned), {}).setdefault(p, [])

    def _event(self, event: Event, program: Program, op: Op) -> None:
        wire = TABLE[op.name].wire
        if wire is Wire.GROUP:
            self._joined(event, program, op)
            return
        peer = op.attrs.get("peer")
        wrong = _peer_fault(self.programs, self.bases, program, op)
        if wrong or not isinstance(peer, int):
            self.findings.append(
                fault("peer", f"rank {program.base}: {wrong}", (program.base,), op)
            )
            return
        if wire is Wire.SEND:
            self.sends.setdefault((program.base, peer), []).append(event)
            return
        channel = (peer, program.base)
        waiting = self.open.setdefault(channel, deque())
        if wire is Wire.POST:
            waiting.append(event)
            return
        # A receive takes what was posted first; where nothing is, it posts itself.
        self.receives.setdefault(channel, []).append(event)
        if waiting:
            self.posts[waiting.popleft()] = event

    def _joined(self, event: Event, program: Program, op: Op) -> None:
        group = self._group(event[0], program, op)
        if group is not None:
            self._joiners(event[0], program, group).append(event)

    def _group(self, p: int, program: Program, op: Op) -> Meeting | None:
        """The group that an operator names, in order; None, and a finding, if it is none."""
        meeting = self._meeting(p, program, op)
        if meeting is not None:
            return meeting
        group = group_of(op)
        ranks = explicit(program, group)
        wrong = self._faults[p, ranks]
        along = f" along {list(group.axes)}" if group.axes else ""
        self.findings.append(
            fault(
                "group",
                f"rank {program.base} issues {op.name} over ranks {list(ranks)}{along}: "
                + (wrong or "these axes give its members no order"),
                (program.base,),
                op,
            )
        )
        return None

    def _meeting(self, p: int, program: Program, op: Op) -> Meeting | None:
        """The group that an operator names, in order; None if it is none."""
        group = group_of(op)
        ranks = explicit(program, group)
        axes = rank_order(program, group.axes)
        if (p, ranks) not in self._faults:
            self._faults[p, ranks] = _group_fault(self.programs, self.bases, program, ranks)
        return None if self._faults[p, ranks] or axes is None else (ranks, axes)


def group_of(op: Op) -> Group:
    """The group of an operator: this program alone, where it names none.

    Example: of ``all_reduce(%5) {group=group(ranks=(0 1), axes=())}`` ``Group((0, 1))``.
    """
    group = op.attrs.get("group")
    return group if isinstance(group, Group) else Group()


def explicit(program: Program, group: Group) -> tuple[int, ...]:
    """The explicit ranks of a group, in order.

    Example: of ``Group((1, 0))`` (0, 1); of ``Group(axes=("tp",))`` in the program of rank 4 (4,).
    """
    return tuple(sorted(group.ranks)) or (program.base,)


def match(programs: Sequence[Program]) -> Matching:
    """Pair messages by issue order; what has no partner, or a partner of another kind, is a
    finding.

    Example: "rank 0 to rank 1: a send has no receive (1 sends, 0 receives)"; "ranks [0, 1] join in
    different collectives: all_gather dim=0 and all_reduce".
    """
    issued = _Issued(programs)
    findings = issued.findings + _uneven_axes(issued)
    if findings:
        return Matching({}, {}, [], findings, {})
    partner = _pair_messages(issued, findings)
    groups, members = _pair_collectives(issued, findings)
    return Matching(partner, groups, members, findings, issued.posts)


def _uneven_axes(issued: _Issued) -> list[Finding]:
    """Programs that meet must lie on the mesh alike: a rank's partners are shifted like itself."""
    meetings = {tuple(sorted(channel)) for channel in (*issued.sends, *issued.receives)}
    meetings |= {ranks for ranks, _ in issued.collectives}
    findings = []
    for ranks in sorted(meetings):
        laid = {tuple(mesh(issued.programs[issued.bases[rank]])) for rank in ranks}
        if len(laid) > 1:
            message = (
                f"ranks {list(ranks)} communicate, but their programs are replicated differently"
            )
            findings.append(Finding("group", message, ranks=ranks))
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
    root, rooted = ops[0].attrs.get("root"), TABLE[ops[0].name].root
    if rooted == "gives":
        givers = [rank for rank, op in zip(ranks, ops, strict=True) if op.inputs]
        return "" if root in givers else f"ranks {givers} give what is to come from rank {root}"
    if rooted == "takes":
        givers = [rank for rank, op in zip(ranks, ops, strict=True) if op.outputs]
        return "" if givers == [root] else f"ranks {givers} take what goes to rank {root}"
    return ""


def operator(programs: Sequence[Program], event: Event) -> Op:
    """The operator that an event issues.

    Example: of (0, 0, 4) operator 4 of the body that the first call of program 0 issues.
    """
    p, c, o = event
    return programs[p].bodies[programs[p].calls[c].body].ops[o]


def _pair_messages(issued: _Issued, findings: list[Finding]) -> dict[Event, Event]:
    partner: dict[Event, Event] = {}
    for channel in sorted(set(issued.sends) | set(issued.receives) | set(issued.open)):
        out, into = issued.sends.get(channel, []), issued.receives.get(channel, [])
        for send, receive in zip(out, into, strict=False):
            partner[receive] = send
        for event in out[len(into) :] + into[len(out) :]:
            op = operator(issued.programs, event)
            lack = "receive" if op.name == "send" else "send"
            findings.append(
                fault(
                    "unmatched message",
                    f"rank {channel[0]} to rank {channel[1]}: a {op.name} has no {lack} "
                    f"({len(out)} sends, {len(into)} receives)",
                    channel,
                    op,
                )
            )
        for event in issued.open.get(channel, ()):
            findings.append(
                fault(
                    "unmatched message",
                    f"rank {channel[0]} to rank {channel[1]}: a receive is posted, and nothing "
                    "waits for it",
                    channel,
                    operator(issued.programs, event),
                )
            )
    return partner


def _pair_collectives(
    issued: _Issued, findings: list[Finding]
) -> tuple[dict[Event, int], list[tuple[Event, ...]]]:
    groups: dict[Event, int] = {}
    members: list[tuple[Event, ...]] = []
    programs, bases = issued.programs, issued.bases
    bodies = [[call.body for call in program.calls] for program in programs]
    for (ranks, _), calls in issued.collectives.items():
        # What meets once meets alike in every call of the same bodies.
        sound: set[tuple[tuple[int, int], ...]] = set()
        lists = [calls.get(bases[rank], []) for rank in ranks]
        count = min(len(events) for events in lists)
        if any(len(events) != count for events in lists):
            short = [r for r, events in zip(ranks, lists, strict=True) if len(events) == count]
            long = next(events for events in lists if len(events) > count)
            op = operator(programs, long[count])
            findings.append(
                fault(
                    "unmatched collective",
                    f"{op.name} over ranks {list(ranks)} is not issued by ranks {short}",
                    ranks,
                    op,
                )
            )
        for joined in zip(*lists, strict=False):
            alike = tuple([(bodies[p][c], o) for p, c, o in joined])
            if alike not in sound:
                wrong = _join_fault(programs, ranks, joined)
                if wrong is not None:
                    findings.append(wrong)
                    continue
                sound.add(alike)
            for event in joined:
                groups[event] = len(members)
            members.append(tuple(joined))
    return groups, members


def _join_fault(
    programs: Sequence[Program], ranks: tuple[int, ...], joined: Sequence[Event]
) -> Finding | None:
    """What is wrong with what ranks issue together."""
    ops = [operator(programs, event) for event in joined]
    kinds = sorted({_kind(programs, event) for event in joined})
    if len(kinds) > 1:
        message = f"ranks {list(ranks)} join in different collectives: {' and '.join(kinds)}"
        return fault("collective mismatch", message, ranks, ops[0])
    wrong = _root_fault(ranks, ops)
    if wrong:
        return fault("root", f"{ops[0].name} over ranks {list(ranks)}: {wrong}", ranks, ops[0])
    return None


def _kind(programs: Sequence[Program], event: Event) -> str:
    """What ranks that meet must agree on."""
    p, c, _ = event
    op = operator(programs, event)
    values = programs[p].bodies[programs[p].calls[c].body].values
    return signature(op, len(values[op.inputs[0]].shape) if op.inputs else 0)

"""Whether ranks mean the same where they meet: one process group, root, reduction, type and tag.

Comes in: recorded steps of ranks, whose collectives and messages name their group as
``torch.distributed`` does. Goes out: findings where members of a group do not agree.

A process group is known by its name, not by who is in it: ``new_group`` numbers groups in the order
in which a rank makes them, so all ranks have to make all groups in the same order. Ranks 0 and 1
that each hold a group of ranks 0 and 1, one named "1" and the other named "2", wait for each other
for ever. Plans know groups by their ranks only, and match what is issued to them in order; that is
the same as long as members use groups with the same ranks in the same order, which is checked here.
So is that a name means the same ranks everywhere: where ranks 0 and 1 make their group alone, and
2 and 3 theirs, both are named "1", and ranks get each other's numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from shardproof.engine.errors import InvalidInput
from shardproof.engine.findings import Finding
from shardproof.frontends.torch.collectives import reduction
from shardproof.frontends.torch.exchanges import parted, parted_in
from shardproof.frontends.torch.trace import Event, Ranks, Trace, tensors_of
from shardproof.frontends.torch.ways import Group

#: Where ranks meet: a group's ranks and "collective", or a sender, its receiver and "message".
Meeting: TypeAlias = tuple[tuple[int, ...], str]

#: Collectives of which one member is the root: from it, or to it.
_ROOTED = frozenset({"broadcast", "scatter", "reduce", "gather"})


def mismatched(traces: Sequence[Trace]) -> list[Finding]:
    """Where ranks that meet name unlike groups, roots, reductions or types of elements; raises
    `InvalidInput` where their messages carry unlike tags.

    Example: rank 0 makes the group of ranks 0 and 1 before that of ranks 2 and 3, rank 1 after it:
    the first all-reduce of rank 1 is found, which it issues to group "2" and rank 0 to group "1".
    """
    groups = parted(traces)
    uses = {trace.rank: _uses(trace, groups) for trace in traces}
    issuers = {trace.rank: trace for trace in traces}
    findings = []
    for rank, own in uses.items():
        for meeting, events in own.items():
            first = next(r for r in uses if meeting in uses[r])
            if first == rank:
                continue
            _tagged(meeting, uses[first][meeting], events)
            for theirs, ours in zip(uses[first][meeting], events, strict=False):
                ends = (issuers[rank], ours), (issuers[first], theirs)
                if (what := _unlike(theirs, ours) or _typed_unlike(*ends)) is not None:
                    findings.append(_finding(*ends, what))
                    break
    return findings or _left_alone(uses, issuers) or _named_alike(uses, issuers)


def _left_alone(
    uses: Mapping[int, Mapping[Meeting, Sequence[Event]]], issuers: Mapping[int, Trace]
) -> list[Finding]:
    """The first barrier to which another member of its group does not come: who waits there waits
    for ever.  Other collectives that are not issued by all are found where plans match them."""
    for rank, own in uses.items():
        for meeting, events in own.items():
            met = {r: uses[r].get(meeting, ()) for r in meeting[0] if r in uses}
            fewest = min(met, key=lambda r: len(_barriers(met[r])))
            waiting = _barriers(events)[len(_barriers(met[fewest])) :]
            if waiting:
                there = f"rank {fewest} comes to {len(_barriers(met[fewest]))} barriers of this "
                what = f"{there}group, and rank {rank} to {len(_barriers(events))}"
                return [_finding((issuers[rank], waiting[0]), None, what)]
    return []


def _barriers(events: Sequence[Event]) -> list[Event]:
    return [event for event in events if name_of(event) == "barrier"]


def _named_alike(
    uses: Mapping[int, Mapping[Meeting, Sequence[Event]]], issuers: Mapping[int, Trace]
) -> list[Finding]:
    """The first use of a group that has the name of a group of other ranks."""
    first: dict[str, tuple[Trace, Event, tuple[int, ...]]] = {}
    for rank, own in uses.items():
        for events in own.values():
            for event in events:
                ranks = next(a.ranks for a in event.args if isinstance(a, Ranks))
                trace, theirs, others = first.setdefault(
                    event.communicator, (issuers[rank], event, ranks)
                )
                if ranks != others:
                    what = (
                        f"process group {event.communicator!r} is of ranks {list(ranks)} for one "
                        f"and of ranks {list(others)} for the other: all ranks have to make all "
                        "groups, in the same order"
                    )
                    return [_finding((issuers[rank], event), (trace, theirs), what)]
    return []


def _uses(trace: Trace, groups: frozenset[Group]) -> dict[Meeting, list[Event]]:
    """What a rank issues to groups of several ranks, in order; an all-to-all that is read as
    messages (those of ``groups``) stands among the messages of every two of them, too."""
    uses: dict[Meeting, list[Event]] = {}
    for event in trace.events:
        meeting = meeting_of(trace.rank, event)
        if meeting is not None:
            uses.setdefault(meeting, []).append(event)
        for other in parted_in(trace, event, groups):
            if other != trace.rank:
                for ends in ((trace.rank, other), (other, trace.rank)):
                    uses.setdefault((ends, "message"), []).append(event)
    return uses


def meeting_of(rank: int, event: Event) -> Meeting | None:
    """Where a rank meets others in an event; None where it meets nobody.

    Example: ``dist.send(x, 1)`` of rank 0 is the message ((0, 1), "message").
    """
    group = next((a.ranks for a in event.args if isinstance(a, Ranks)), ())
    if not event.communicator or len(group) < 2 or rank not in group:
        return None
    name = name_of(event)
    if name not in ("send", "recv"):
        return group, "collective"
    peer = _numbers(event)[:1]
    if not peer or not 0 <= peer[0] < len(group):
        return None
    other = group[peer[0]]
    return ((rank, other) if name == "send" else (other, rank)), "message"


def collectives_of(rank: int, events: Sequence[Event], group: tuple[int, ...]) -> int:
    """How many collectives of a group are among events of a rank.

    Example: 2 of ranks (0, 1) after two all-reduces of theirs; messages do not count.
    """
    return sum(meeting_of(rank, event) == (group, "collective") for event in events)


def messages_of(rank: int, events: Sequence[Event], source: int, target: int) -> int:
    """How many messages from one rank to another, and collectives of both, are among events of a
    rank.

    Example: 2 from 0 to 1 after an all-reduce of ranks (0, 1, 2) and ``dist.send(x, 1)`` of rank 0.
    """
    meetings = [meeting for event in events if (meeting := meeting_of(rank, event))]
    return sum(
        ranks == (source, target) if kind == "message" else {source, target}.issubset(ranks)
        for ranks, kind in meetings
    )


def _tagged(meeting: Meeting, first: Sequence[Event], second: Sequence[Event]) -> None:
    """Raise `InvalidInput` where messages between two ranks carry unlike tags: some backends match
    messages by their tags, others in the order in which they are sent."""
    if meeting[1] == "message":
        for theirs, ours in zip(first, second, strict=False):
            tags = _tag(theirs), _tag(ours)
            if tags[0] != tags[1]:
                raise InvalidInput(
                    f"messages from rank {meeting[0][0]} to rank {meeting[0][1]}: tag {tags[0]} of "
                    f"{name_of(theirs)} stands where tag {tags[1]} of {name_of(ours)} does, and "
                    "messages are followed in one order only"
                )


def _tag(event: Event) -> list[int] | str:
    """The tag of a message; an all-to-all has none, and meets no message."""
    return _numbers(event)[1:2] if name_of(event) in ("send", "recv") else "none"


def _unlike(theirs: Event, ours: Event) -> str | None:
    """What two operators that meet differ in, in words; None: in nothing."""
    if theirs.communicator != ours.communicator:
        return (
            f"process group {ours.communicator!r} for one and {theirs.communicator!r} for the "
            "other: these groups have the same ranks and do not know each other; all ranks have to "
            "make groups, and to use them, in the same order"
        )
    names = name_of(ours), name_of(theirs)
    if len({name.startswith(("alltoall", "all_to_all")) for name in names}) == 2:
        return f"{names[0]} for one and {names[1]} for the other"
    if names[0] != names[1] and "barrier" in names:
        return f"{names[0]} for one and {names[1]} for the other"
    roots = _numbers(ours)[:1], _numbers(theirs)[:1]
    if names[0] == names[1] and names[0] in _ROOTED and roots[0] != roots[1]:
        return f"root {roots[0]} for one and {roots[1]} for the other"
    # ``dist.all_reduce`` and its functional form have other names, and meet.
    if all("reduce" in name for name in names) and reduction(ours) != reduction(theirs):
        return f"reduction {reduction(ours)!r} for one and {reduction(theirs)!r} for the other"
    return None


def _typed_unlike(own: tuple[Trace, Event], other: tuple[Trace, Event]) -> str | None:
    """The element types of tensors that meet, in words; None: they are the same, or one has no
    elements.  Backends move bytes: what is sent as bfloat16 is no float32."""
    for ours, theirs in zip(own[1].args, other[1].args, strict=False):
        tensors = [
            [trace.tensors[n] for n in tensors_of(argument)]
            for trace, argument in ((own[0], ours), (other[0], theirs))
        ]
        for one, met in zip(*tensors, strict=False):
            if one.dtype != met.dtype and 0 not in (*one.shape, *met.shape):
                return f"elements of {one.dtype} for one and of {met.dtype} for the other"
    return None


def _numbers(event: Event) -> list[int]:
    return [a for a in event.args if isinstance(a, int) and not isinstance(a, bool)]


def name_of(event: Event) -> str:
    """What a collective, or a message, is called.

    Example: "broadcast" of ``c10d.broadcast_.default``.
    """
    return event.name.split(".")[1].strip("_")


def _finding(own: tuple[Trace, Event], other: tuple[Trace, Event] | None, what: str) -> Finding:
    trace, event = own
    source, meets = trace.sources[event.source], "is met by nobody"
    if other is not None:
        first, theirs = other
        at = first.sources[theirs.source]
        meets = f"meets rank {first.rank}'s {name_of(theirs)} at {at}"
    return Finding(
        "unlike collectives",
        f"rank {trace.rank}'s {name_of(event)} at {source} {meets}: {what}",
        operator=event.name,
        layer=trace.modules[event.module],
        source=source,
        ranks=(trace.rank,),
    )

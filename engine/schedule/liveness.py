"""Whether ranks wait for each other for ever, under both protocols by which messages are sent.

*Buffered* (eager): a send goes on at once.  *Synchronous* (rendezvous): a send goes on once its
receive is posted, which it is when its rank arrives at it, or before that by a ``post_recv``
(``irecv``).  A plan that gets on under the second one gets on under the first.  Two ranks that both
send first get on only if sends are buffered, or if each issues its send and its receive together
(``batch_isend_irecv``): that is an assumption, and `statement` says so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from shardproof.engine.findings import Finding
from shardproof.engine.plan.assumption import Assumption
from shardproof.engine.plan.assumptions import some
from shardproof.engine.plan.collectives import TABLE, Wire
from shardproof.engine.plan.ir import Op, Plan, Program
from shardproof.engine.schedule.messages import (
    Event,
    Matching,
    communication,
    fault,
    match,
    operator,
)

#: A program that does not come to its end, and the operator in which it waits.
Waits = tuple[int, Op]


def deadlock(
    programs: Sequence[Program], matching: Matching, *, synchronous: bool = False
) -> Finding | None:
    """The finding that ranks wait for each other, if they do, by the order of communication alone.

    Example: two ranks that both receive before they send: "ranks [0, 1] wait for each other; rank 0
    waits in recv"; two that both send first do so only with ``synchronous``.
    """
    waiters = _stuck(programs, matching, synchronous)
    if not waiters:
        return None
    ranks = tuple(programs[p].base for p, _ in waiters)
    op = waiters[0][1]
    return fault(
        "deadlock",
        f"ranks {list(ranks)} wait for each other; rank {ranks[0]} waits in {op.name}",
        ranks,
        op,
    )


def waiting(programs: Sequence[Program], matching: Matching) -> tuple[Waits, ...]:
    """Where programs would wait for ever if every send waited for its receive.

    Example: of two ranks that both send first, ((0, send to 1), (1, send to 0)).
    """
    return tuple(_stuck(programs, matching, True))


def statement(plan: Plan, waits: Sequence[Waits] | None = None) -> tuple[Assumption, ...]:
    """The assumption under which nobody waits for ever, where that takes one: a sentence with the
    place at which ranks would hang if every send waited for its receive.

    Example: "a send does not wait for its receive: it is buffered, or issued in one group with the
    receives beside it (batch_isend_irecv); if it waited, ranks 0, 1 would wait for each other, rank
    0 in a send to rank 1".

    ``waits``: what `waiting` gives, where the plan was unrolled and has no faults.
    """
    if not any(_sends(program) for program in plan.programs):
        return ()
    if waits is None:
        matching = match(plan.programs)
        waits = () if matching.findings else waiting(plan.programs, matching)
    if not waits:
        return ()
    ranks = some([str(plan.programs[p].base) for p, _ in waits])
    first, op = plan.programs[waits[0][0]].base, waits[0][1]
    where = op.source.module or op.source.location or op.source.cell
    text = (
        "a send does not wait for its receive: it is buffered, or issued in one group with the "
        f"receives beside it (batch_isend_irecv); if it waited, ranks {ranks} would wait for each "
        f"other, rank {first} in {_waits(op)}{f' of {where}' if where else ''}"
    )
    return (Assumption("framework", "sends", where, text),)


def _sends(program: Program) -> bool:
    called = {call.body for call in program.calls}
    return any(op.name == "send" for b in called for op in program.bodies[b].ops)


def _waits(op: Op) -> str:
    """What a rank waits in, in words."""
    wire = TABLE[op.name].wire
    if wire is Wire.GROUP:
        return op.name
    return f"a {op.name} {'to' if wire is Wire.SEND else 'from'} rank {op.attrs.get('peer')}"


def _stuck(
    programs: Sequence[Program], matching: Matching, synchronous: bool
) -> list[tuple[int, Op]]:
    """The programs that do not come to their end, and where each of them waits."""
    ranks = _Ranks(programs, matching, synchronous)
    ranks.run()
    return [
        (p, operator(programs, events[place]))
        for p, (events, place) in enumerate(zip(ranks.events, ranks.place, strict=True))
        if place < len(events)
    ]


class _Ranks:
    """One rank of every program, and how far it has come.

    ``told``: sends that were begun and receives that were posted; ``asleep``: which program waits
    for one of these; ``arrived``: who is in a collective.
    """

    def __init__(self, programs: Sequence[Program], matching: Matching, synchronous: bool) -> None:
        self.matching = matching
        self.synchronous = synchronous
        self.events: list[list[Event]] = []
        self.wires: list[list[Wire]] = []
        for p, program in enumerate(programs):
            issued = [
                [(o, TABLE[body.ops[o].name].wire) for o in communication(body)]
                for body in program.bodies
            ]
            self.events.append([])
            self.wires.append([])
            for c, call in enumerate(program.calls):
                self.events[p] += [(p, c, o) for o, _ in issued[call.body]]
                self.wires[p] += [wire for _, wire in issued[call.body]]
        self.receive = {send: receive for receive, send in matching.partner.items()}
        self.place = [0] * len(programs)
        self.happened: set[Event] = set()
        self.asleep: dict[Event, int] = {}
        self.arrived: dict[int, set[int]] = {}
        self.ready = deque(range(len(programs)))

    def run(self) -> None:
        """Go on until nobody can."""
        while self.ready:
            p = self.ready.popleft()
            events, wires = self.events[p], self.wires[p]
            while self.place[p] < len(events):
                if not self.passes(p, events[self.place[p]], wires[self.place[p]]):
                    break
                self.place[p] += 1

    def passes(self, p: int, event: Event, wire: Wire) -> bool:
        """Whether program p gets on beyond an event of its own."""
        if wire is Wire.GROUP:
            return self.joins(p, event)
        if wire is Wire.POST:
            self.tell(self.matching.posts[event])
            return True
        self.tell(event)
        if wire is Wire.SEND:
            return not self.synchronous or self.knows(p, self.receive[event])
        return self.knows(p, self.matching.partner[event])

    def tell(self, event: Event) -> None:
        self.happened.add(event)
        if event in self.asleep:
            self.ready.append(self.asleep.pop(event))

    def knows(self, p: int, event: Event) -> bool:
        if event in self.happened:
            return True
        self.asleep[event] = p
        return False

    def joins(self, p: int, event: Event) -> bool:
        """Whether all members are there; then the others get on too."""
        number = self.matching.groups[event]
        if len(self.matching.members[number]) == 1:
            return True
        arrived = self.arrived.setdefault(number, set())
        arrived.add(p)
        if len(arrived) < len(self.matching.members[number]):
            return False
        for other in arrived - {p}:
            self.place[other] += 1
            self.ready.append(other)
        return True

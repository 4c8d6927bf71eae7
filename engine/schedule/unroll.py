"""From programs to one order of operator instances: values by version, messages matched.

The parallel program means what its runtime does.  A slot is a name: its reader sees the last write
before it in issue order.  Calls are labelled with the microbatch whose data flows through them;
where all microbatches flow alike, one instance stands for all of them (the coordinate ``mb``),
otherwise each is unrolled.  The result, `Unrolled`, lists instances in an order in which everything
is written before it is read: operators of one program, and communication that joins the programs of
a group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardproof.engine.findings import UNSUPPORTED, Finding
from shardproof.engine.plan.collectives import TABLE, Effect, Wire, refused, spans
from shardproof.engine.plan.ir import MICROBATCH, Attr, Body, Group, Op, Program, Source
from shardproof.engine.plan.recorded import RecordedSlice
from shardproof.engine.schedule.chunks import chunk
from shardproof.engine.schedule.dataflow import Structure
from shardproof.engine.schedule.instances import NOWHERE, Instance, Result, Tensor, Unrolled
from shardproof.engine.schedule.messages import Event, rank_order
from shardproof.engine.schedule.order import Order, order
from shardproof.engine.schedule.rejoin import rejoined


class _Emitter:
    """Replays calls in issue order and writes instances; see `unroll`."""

    def __init__(
        self,
        programs: Sequence[Program],
        microbatches: int,
        given: Order,
    ) -> None:
        self.microbatches = microbatches
        self.programs = programs
        self.flows = given.flows
        self.matching = given.matching
        self.labels = given.labels
        self.symbolic = given.symbolic
        self.out = Unrolled(symbolic=given.symbolic)
        self.values: dict[tuple[int, int], dict[int, int]] = {}
        self.shards: dict[tuple[int, int], int] = {}
        self.seeds: dict[tuple[int, int, int], int] = {}
        self.pending: dict[tuple[int, int], list[int]] = {}
        self.settled: dict[tuple[int, int], int] = {}
        self.sent: dict[Event, int] = {}
        self.arrived: dict[int, dict[int, tuple[int, ...]]] = {}

    def tensor(
        self,
        program: int,
        shape: tuple[int, ...],
        name: str,
        batched: bool,
        claim: RecordedSlice | None = None,
    ) -> int:
        self.out.tensors.append(Tensor(program, shape, name, batched, claim))
        return len(self.out.tensors) - 1

    def instance(
        self,
        kind: str,
        name: str,
        programs: tuple[int, ...],
        inputs: Sequence[int],
        outputs: Sequence[int],
        attrs: Mapping[str, Attr] | None = None,
        *,
        source: Source = NOWHERE,
        backward: bool = False,
        over: tuple[tuple[str, int], ...] = (),
        microbatch: int = -1,
    ) -> None:
        self.out.instances.append(
            Instance(
                kind,
                name,
                programs,
                tuple(inputs),
                tuple(outputs),
                attrs or {},
                source,
                backward,
                over,
                microbatch,
            )
        )

    def label(self, p: int, c: int) -> int:
        """The microbatch that instances of this call are written for (-1: all, or none)."""
        return -1 if self.symbolic else self.labels[p][c]

    # -- binding a call ---------------------------------------------------------------------

    def bind(self, p: int, c: int) -> None:
        """Give the inputs, shards and saved contexts of a call their values."""
        program = self.programs[p]
        call = program.calls[c]
        body = program.bodies[call.body]
        values: dict[int, int] = {}
        self.values[p, c] = values
        for value, (kind, d, i) in zip(body.inputs, self.flows[p].inputs[c], strict=True):
            if kind == "seed":
                values[value] = self.seed(p, c, d, i, body.values[value].shape)
            else:
                other = program.bodies[program.calls[d].body]
                values[value] = self.value_in_body(
                    p, other, other.outputs[i], self.values[p, d], None
                )
        for value, shard in body.shards:
            values[value] = self.shard(p, shard)
        paired = self.flows[p].paired[c]
        for value, there in body.saved:
            other = program.bodies[body.forward_body]
            values[value] = self.value_in_body(p, other, there, self.values[p, paired], None)
        for value, _, shard in body.reduced:
            values[value] = self.settle(p, shard)

    def seed(self, p: int, c: int, d: int, i: int, shape: tuple[int, ...]) -> int:
        if (p, d, i) not in self.seeds:
            value = self.tensor(p, shape, "loss gradient", True)
            self.seeds[p, d, i] = value
            self.instance("seed", "loss gradient", (p,), (), (value,), microbatch=self.label(p, c))
        return self.seeds[p, d, i]

    def shard(self, p: int, number: int) -> int:
        if (p, number) not in self.shards:
            shard = self.programs[p].shards[number]
            value = self.tensor(p, shard.shape, shard.name, False)
            self.shards[p, number] = value
            self.instance("shard", shard.name, (p,), (), (value,), {"shard": number})
        return self.shards[p, number]

    def settle(self, p: int, shard: int) -> int:
        """The gradient of a shard so far: what was accumulated since the last reduction, and it."""
        inputs = self.pending.pop((p, shard), [])
        before = self.settled.get((p, shard))
        if not inputs:
            if before is None:
                before = self.settled[p, shard] = self.zero(p, shard)
            return before
        over: tuple[tuple[str, int], ...] = ()
        if self.symbolic and any(self.out.tensors[v].batched for v in inputs):
            over = ((MICROBATCH, self.microbatches),)
        if before is not None:
            inputs = [before, *inputs]
        box = self.programs[p].shards[shard]
        value = self.tensor(p, box.shape, f"gradient of {box.name}", False)
        self.instance("accumulate", box.name, (p,), inputs, (value,), over=over)
        self.settled[p, shard] = value
        return value

    def zero(self, p: int, shard: int) -> int:
        """The gradient that a shard starts with: a sum of nothing."""
        box = self.programs[p].shards[shard]
        value = self.tensor(p, box.shape, f"gradient of {box.name}", False)
        self.instance("accumulate", box.name, (p,), (), (value,), {"shard": shard})
        return value

    # -- operators --------------------------------------------------------------------------

    def step(self, p: int, c: int, o: int) -> bool:
        """Emit operator o of call c; False if it waits for other programs."""
        program = self.programs[p]
        body = program.bodies[program.calls[c].body]
        op = body.ops[o]
        values = self.values[p, c]
        declared = TABLE.get(op.name)
        wire = Wire.LOCAL if declared is None else declared.wire
        if wire is Wire.SEND:
            self.sent[p, c, o] = self.value_in_body(p, body, op.inputs[0], values, op)
        if wire in (Wire.SEND, Wire.POST):
            return True
        if wire is Wire.RECEIVE:
            return self.receive(p, c, o, op, values)
        if wire is Wire.GROUP:
            return self.collective(p, c, o)
        self.local(p, c, op, None if declared is None else declared.effect)
        return True

    def local(self, p: int, c: int, op: Op, effect: Effect | None) -> None:
        """Emit an operator that waits for nobody."""
        program = self.programs[p]
        body = program.bodies[program.calls[c].body]
        values = self.values[p, c]
        inputs = [self.value_in_body(p, body, v, values, op) if v >= 0 else -1 for v in op.inputs]
        batched = self.labels[p][c] >= 0
        outputs = [self.fresh(p, body, v, values, batched) for v in op.outputs]
        kind, name, attrs = "op", op.name, op.attrs
        if effect is Effect.INPUT:
            self.instance(
                "load",
                name,
                (p,),
                inputs,
                outputs,
                attrs,
                source=op.source,
                microbatch=self.loaded(p, c, op),
            )
            return
        if effect is Effect.PART:
            cut = chunk(program, op, self.shape(inputs[0]))
            kind, name, attrs = "slice", "slice", cut.attrs
            if cut.finding is not None:
                self.out.findings.append(cut.finding)
        self.instance(
            kind,
            name,
            (p,),
            inputs,
            outputs,
            attrs,
            source=op.source,
            backward=op.backward,
            microbatch=self.label(p, c),
        )

    def loaded(self, p: int, c: int, op: Op) -> int:
        """The microbatch that a call loads (-1: each its own); raises `Structure` if there is no
        such microbatch.  Where there is one only, it need not be named."""
        program = self.programs[p]
        number = program.calls[c].microbatch
        if number < 0 and self.microbatches == 1:
            number = 0
        if not 0 <= number < self.microbatches:
            which = f"microbatch {number}" if number >= 0 else "no microbatch"
            raise Structure(
                Finding(
                    "microbatch",
                    f"rank {program.base} loads the batch in a call of {which}, expected one of "
                    f"{self.microbatches}",
                    operator=op.name,
                    source=op.source.location or op.source.cell,
                    ranks=(program.base,),
                )
            )
        return -1 if self.symbolic else number

    def value_in_body(
        self, p: int, body: Body, value: int, values: Mapping[int, int], op: Op | None
    ) -> int:
        """What a value of the body holds; raises `Structure` if nothing has written it."""
        if value in values:
            return values[value]
        reader = op.name if op is not None else body.name
        raise Structure(
            Finding(
                "read before write",
                f"rank {self.programs[p].base}: {reader} reads {body.values[value].name}, which "
                "nothing has written",
                operator=reader,
                layer=op.source.module if op else "",
                source=(op.source.location or op.source.cell) if op else "",
                ranks=(self.programs[p].base,),
            )
        )

    def fresh(self, p: int, body: Body, value: int, values: dict[int, int], batched: bool) -> int:
        declared = body.values[value]
        claim = body.claims[value] if body.claims else None
        values[value] = self.tensor(p, declared.shape, declared.name, batched, claim)
        return values[value]

    def shape(self, value: int) -> tuple[int, ...]:
        return self.out.tensors[value].shape

    def receive(self, p: int, c: int, o: int, op: Op, values: dict[int, int]) -> bool:
        partner = self.matching.partner.get((p, c, o))
        if partner is None or partner not in self.sent:
            return False
        sent = self.sent[partner]
        body = self.programs[p].bodies[self.programs[p].calls[c].body]
        declared = body.values[op.outputs[0]]
        if declared.shape != self.shape(sent):
            raise Structure(
                Finding(
                    "shape",
                    f"rank {self.programs[p].base} receives shape {list(declared.shape)}, "
                    f"rank {self.programs[partner[0]].base} sends {list(self.shape(sent))}",
                    operator="recv",
                    ranks=(self.programs[p].base, self.programs[partner[0]].base),
                    source=op.source.location or op.source.cell,
                )
            )
        claim = body.claims[op.outputs[0]] if body.claims else None
        value = self.tensor(p, declared.shape, declared.name, self.labels[p][c] >= 0, claim)
        values[op.outputs[0]] = value
        self.instance(
            "recv",
            "recv",
            (partner[0], p),
            (sent,),
            (value,),
            source=op.source,
            microbatch=self.label(p, c),
        )
        return True

    def collective(self, p: int, c: int, o: int) -> bool:
        """Join a collective; the last member to arrive writes the instance for all."""
        event = (p, c, o)
        number = self.matching.groups.get(event)
        if number is None:
            return False
        arrived = self.arrived.setdefault(number, {})
        if p in arrived:
            return len(arrived) == len(self.matching.members[number])
        op = self._op(event)
        body = self.programs[p].bodies[self.programs[p].calls[c].body]
        reads = op.inputs
        if TABLE[op.name].root == "gives" and op.attrs.get("root") != self.programs[p].base:
            reads = ()  # Where a value goes to, what was there is overwritten.
        arrived[p] = tuple(self.value_in_body(p, body, v, self.values[p, c], op) for v in reads)
        members = self.matching.members[number]
        if len(arrived) < len(members):
            return False
        inputs = [v for q, _, _ in self.in_order(members) for v in arrived[q]]
        outputs: list[int] = []
        for q, d, i in members:
            other = self._op((q, d, i))
            body = self.programs[q].bodies[self.programs[q].calls[d].body]
            batched = self.labels[q][d] >= 0
            outputs += [self.fresh(q, body, v, self.values[q, d], batched) for v in other.outputs]
        group = op.attrs.get("group")
        extents = self.programs[p].extents
        axes = rank_order(self.programs[p], group.axes) if isinstance(group, Group) else ()
        self.instance(
            op.name,
            op.name,
            tuple(q for q, _, _ in members),
            inputs,
            outputs,
            op.attrs,
            source=op.source,
            # Along an axis of one position nobody meets.
            over=tuple((axis, extents[axis]) for axis in axes or () if extents[axis] > 1),
            microbatch=self.label(p, c),
        )
        return True

    def in_order(self, members: Sequence[Event]) -> list[Event]:
        """The members of a group: by rank, or by their stated ``position`` if all have one."""
        places = [self._op(event).attrs.get("position") for event in members]
        known = [p for p in places if isinstance(p, int)]
        if len(known) < len(members):
            return list(members)
        return [event for _, event in sorted(zip(known, members, strict=True))]

    def _op(self, event: Event) -> Op:
        p, c, o = event
        return self.programs[p].bodies[self.programs[p].calls[c].body].ops[o]

    # -- the replay ---------------------------------------------------------------------------

    def finish(self, p: int, c: int) -> None:
        """After a call: results, gradients to accumulate, reduced gradients."""
        program = self.programs[p]
        number = program.calls[c].body
        body = program.bodies[number]
        values = self.values[p, c]
        for value in body.losses:
            which = f"{body.name}: {body.values[value].name}"
            self.out.losses.append((p, which, self.value_in_body(p, body, value, values, None)))
        for value in dict.fromkeys((*body.losses, *body.results)):
            tensor = self.value_in_body(p, body, value, values, None)
            self.out.results.append(Result(p, number, value, tensor, self.label(p, c)))
        for value, shard in body.gradients:
            tensor = self.value_in_body(p, body, value, values, None)
            self.pending.setdefault((p, shard), []).append(tensor)
        for _, value, shard in body.reduced:
            self.settled[p, shard] = self.value_in_body(p, body, value, values, None)

    def run(self) -> Unrolled:
        """Replay every call (or those of one microbatch, if it stands for all)."""
        todo = [
            [c for c in range(len(program.calls)) if not self.symbolic or self.labels[p][c] < 1]
            for p, program in enumerate(self.programs)
        ]
        place = [(0, -1)] * len(self.programs)
        progress = True
        while progress:
            progress = False
            for p in range(len(self.programs)):
                moved = self.advance(p, todo[p], place)
                progress = progress or moved
        for p, (k, _) in enumerate(place):
            if k < len(todo[p]):
                raise Structure(
                    Finding(
                        "deadlock",
                        f"rank {self.programs[p].base} waits for a message that does not come",
                        ranks=(self.programs[p].base,),
                    )
                )
        for p, program in enumerate(self.programs):
            for number, shard in enumerate(program.shards):
                accumulated = (p, number) in self.pending or (p, number) in self.settled
                if shard.trainable and accumulated and shard.updated_as < 0:
                    self.out.gradients.append((p, number, self.settle(p, number)))
        return self.out

    def advance(self, p: int, todo: Sequence[int], place: list[tuple[int, int]]) -> bool:
        """Run program p until it waits; whether it moved."""
        moved = False
        k, o = place[p]
        while k < len(todo):
            c = todo[k]
            ops = self.programs[p].bodies[self.programs[p].calls[c].body].ops
            if o < 0:
                self.bind(p, c)
                o = 0
            while o < len(ops):
                if not self.step(p, c, o):
                    place[p] = (k, o)
                    return moved
                o += 1
                moved = True
            self.finish(p, c)
            k, o = k + 1, -1
            moved = True
        place[p] = (k, o)
        return moved


def count_instances(programs: Sequence[Program]) -> int:
    """Operators over all ranks and microbatches.

    Example: two replicas that each issue 26 operators are 52.
    """
    return sum(
        program.ranks * len(program.bodies[call.body].ops)
        for program in programs
        for call in program.calls
    )


def _unsupported(programs: Sequence[Program]) -> list[Finding]:
    """What programs say of communication and of their input that has no rule."""
    findings = []
    for program in programs:
        called = [program.bodies[b] for b in dict.fromkeys(c.body for c in program.calls)]
        for op in (op for body in called for op in body.ops if op.name in TABLE):
            reason = refused(op.name, op.attrs, *spans(op.attrs.get("group"), program.extents))
            if reason:
                layer, place = op.source.module, op.source.location or op.source.cell
                where = f"rank {program.base}: {op.name}" + (f" in {layer}" if layer else "")
                message = f"{where}: {reason}"
                findings.append(
                    Finding(UNSUPPORTED, message, op.name, layer, place, (program.base,))
                )
    return findings


def unroll(programs: Sequence[Program], microbatches: int, known: Order | None = None) -> Unrolled:
    """All operator instances of one side of a plan, in an order that respects data flow.

    Example: two replicas with two microbatches each, which flow alike: one instance of each
    ``linear`` for all of them, and of the reducer an all-reduce ``over=(("dp", 2),)``.

    Structural faults (unmatched messages, deadlock, reads before writes, groups without their
    rank) are returned in ``faults``; instances are then incomplete.  ``findings`` are
    contradictions between what the plan records and what it does, which are no fault by themselves.
     Where something is ``unsupported``, nothing else is said.  ``known``: the order of these
    programs, where that is there already.
    """
    unsupported = _unsupported(programs)
    if unsupported:
        return Unrolled(unsupported=unsupported, total=count_instances(programs))
    given = order(programs, microbatches) if known is None else known
    if given.faults:
        return Unrolled(faults=list(given.faults), total=count_instances(programs))
    try:
        result = _Emitter(programs, microbatches, given).run()
        result.instances = rejoined(result.instances, result.tensors)
        result.waits, result.order = given.waits, given
    except Structure as error:
        result = Unrolled(faults=[error.finding])
    result.total = count_instances(programs)
    return result

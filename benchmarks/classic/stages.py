"""Mistakes between pipeline stages: peers, microbatches, tied weights, layers; a ring of keys."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from benchmarks.classic.cases import BATCH, EPS, HIDDEN, SEQUENCE, Case, add
from shardproof.engine.plan.ir import Group, Plan, Program
from shardproof.frontends.builder.builder import BodyBuilder, ProgramBuilder

MICROBATCHES = 2


def layer(made: ProgramBuilder, body: BodyBuilder, x: int, number: int, eps: Fraction = EPS) -> int:
    """One layer, of parameters of its own."""
    with body.module(f"layers.{number}"):
        norm = body.parameter(made.parameter(f"layers.{number}.norm", (HIDDEN,)))
        weight = body.parameter(made.parameter(f"layers.{number}.weight", (HIDDEN, HIDDEN)))
        return body.add(x, body.silu(body.linear(body.rms_norm(x, norm, eps), weight)))


def lanes(mistake: str, wrong: bool) -> Plan:
    """Two stages of two ranks each, which hold halves of a layer's columns; every rank sends to its
    peer.  With the mistake a stage computes or receives something else."""
    bad = mistake if wrong else ""

    def single() -> Program:
        made = ProgramBuilder("single")
        body = made.body("forward")
        (x,) = body.load_batch(("x", (BATCH, SEQUENCE, HIDDEN), "float32"))
        for number in range(4):
            x = layer(made, body, x, number)
        tail(made, body, x)
        made.schedule(body, body.backward(), 1)
        return made.build()

    def tail(made: ProgramBuilder, body: BodyBuilder, x: int) -> None:
        with body.module("loss"):
            total = body.sum(body.mul(x, x))
            body.loss(body.mul_constant(total, Fraction(1, BATCH * SEQUENCE * HIDDEN)))

    def stage(rank: int) -> Program:
        made = ProgramBuilder(f"stage {rank}", base=rank)
        rows = BATCH // MICROBATCHES
        shape = (rows, SEQUENCE, HIDDEN)
        body = made.body("forward")
        if rank == 0:
            (x,) = body.load_batch(("x", shape, "float32"))
            before = layer(made, body, x, 0)
            x = layer(made, body, before, 1)
            body.send(before if bad == "sent" else x, 1)
        elif rank == 1:
            x = body.recv(shape, 0)
            x = layer(made, body, x, 2, Fraction(1, 10) if bad == "eps" else EPS)
            body.send(x, 2)
        else:
            x = body.recv(shape, 1)
            if bad != "skipped":
                x = layer(made, body, x, 3)
            else:
                for name, size in (("norm", (HIDDEN,)), ("weight", (HIDDEN, HIDDEN))):
                    made.parameter(f"layers.3.{name}", size)
            tail(made, body, x)
        backward = body.backward()
        losses = [made.slot() for _ in range(MICROBATCHES)] if rank == 2 else []
        for m in range(MICROBATCHES):
            made.call(body, (), losses[m : m + 1], m if rank == 0 else -1)
        for m in range(MICROBATCHES):
            made.call(backward, [made.seed(losses[m])] if rank == 2 else ())
        return made.build()

    return Plan(f"lanes-{mistake}", single(), tuple(stage(n) for n in range(3)), MICROBATCHES)


def tied(wrong: bool) -> Plan:
    """A weight that the first and the last stage use, and whose gradients are summed, or not."""

    def table(made: ProgramBuilder) -> int:
        return made.parameter("table", (HIDDEN, HIDDEN))

    def single() -> Program:
        made = ProgramBuilder("single")
        body = made.body("forward")
        (x,) = body.load_batch(("x", (BATCH, SEQUENCE, HIDDEN), "float32"))
        tensor = body.parameter(table(made))
        with body.module("embed"):
            x = body.silu(body.linear(x, tensor))
        with body.module("head"):
            y = body.linear(x, tensor)
        with body.module("loss"):
            total = body.sum(body.mul(y, y))
            body.loss(body.mul_constant(total, Fraction(1, BATCH * SEQUENCE * HIDDEN)))
        made.schedule(body, body.backward(), 1)
        return made.build()

    def stage(rank: int) -> Program:
        made = ProgramBuilder(f"stage {rank}", base=rank)
        shape = (BATCH, SEQUENCE, HIDDEN)
        number = table(made)
        body = made.body("forward")
        if rank == 0:
            (x,) = body.load_batch(("x", shape, "float32"))
            with body.module("embed"):
                x = body.silu(body.linear(x, body.parameter(number)))
            body.send(x, 1)
        else:
            x = body.recv(shape, 0)
            with body.module("head"):
                y = body.linear(x, body.parameter(number))
            with body.module("loss"):
                total = body.sum(body.mul(y, y))
                body.loss(body.mul_constant(total, Fraction(1, BATCH * SEQUENCE * HIDDEN)))
        backward = body.backward()
        slots = [made.slot()] if rank else []
        made.call(body, (), slots, 0 if rank == 0 else -1)
        made.call(backward, [made.seed(slots[0])] if rank else ())
        if not wrong:
            made.reduce([(number, Group(ranks=(0, 1)))])
        return made.build()

    return Plan("tied", single(), (stage(0), stage(1)), 1)


def halves(mistake: str, wrong: bool) -> Plan:
    """Two ranks compute halves of the batch's rows; two others go on with them; rank 2 and rank 3
    receive from 0 and 1, with the mistake the other way round (or microbatches exchanged)."""
    bad = mistake if wrong else ""
    rows = BATCH // 2

    def write(made: ProgramBuilder, body: BodyBuilder, x: int) -> int:
        with body.module("first"):
            w = body.parameter(made.parameter("first.weight", (HIDDEN, HIDDEN)))
            return body.silu(body.linear(x, w))

    def end(made: ProgramBuilder, body: BodyBuilder, x: int, places: int) -> None:
        with body.module("second"):
            x = body.mul(x, places)
            y = body.linear(x, body.parameter(made.parameter("second.weight", (HIDDEN, HIDDEN))))
        with body.module("loss"):
            total = body.sum(body.mul(y, y))
            body.loss(body.mul_constant(total, Fraction(1, BATCH * SEQUENCE * HIDDEN)))

    return _two_by_two(bad, rows, write, end)


def _two_by_two(
    bad: str,
    rows: int,
    write: Callable[[ProgramBuilder, BodyBuilder, int], int],
    end: Callable[[ProgramBuilder, BodyBuilder, int, int], None],
) -> Plan:
    batch = ("x", "places")

    def load(body: BodyBuilder, n: int) -> tuple[int, ...]:
        return body.load_batch(*((name, (n, SEQUENCE, HIDDEN), "float32") for name in batch))

    single = ProgramBuilder("single")
    body = single.body("forward")
    x, places = load(body, BATCH)
    end(single, body, write(single, body, x), places)
    single.schedule(body, body.backward(), 1)

    def first() -> Program:
        made = ProgramBuilder("first", base=0)
        source = made.body("load")
        x, places = load(source, rows)
        source.output(x)
        source.output(places)
        body = made.body("forward")
        x = body.input((rows, SEQUENCE, HIDDEN), "x")
        places = body.input((rows, SEQUENCE, HIDDEN), "places")
        body.send(write(made, body, x), 1)
        body.send(places, 1)
        backward = body.backward()
        slots = [(made.slot(), made.slot()) for _ in range(2)]
        for m in range(2):
            made.call(source, (), slots[m], m)
        for m in range(2):
            at = slots[1 - m] if bad == "order" else slots[m]
            made.call(body, (at[0], slots[m][1]))
        for _ in range(2):
            made.call(backward)
        return made.build()

    def second() -> Program:
        made = ProgramBuilder("second", base=1)
        body = made.body("forward")
        x = body.recv((rows, SEQUENCE, HIDDEN), 0)
        places = body.recv((rows, SEQUENCE, HIDDEN), 0, name="places", gradient=False)
        end(made, body, x, places)
        backward = body.backward()
        slots = [made.slot() for _ in range(2)]
        for m in range(2):
            made.call(body, (), (slots[m],))
        for m in range(2):
            made.call(backward, (made.seed(slots[m]),))
        return made.build()

    return Plan(f"halves-{bad}", single.build(), (first(), second()), 2)


def ring(mistake: str, wrong: bool) -> Plan:
    """Two ranks hold halves of a sequence and pass their values on in a ring; each weights them by
    where they are."""
    bad = mistake if wrong else ""
    half = SEQUENCE // 2

    def single() -> Program:
        made = ProgramBuilder("single")
        places = made.parameter("places", (SEQUENCE, HIDDEN))
        body = made.body("forward")
        (x,) = body.load_batch(("x", (BATCH, SEQUENCE, HIDDEN), "float32"))
        with body.module("values"):
            v = body.silu(x)
        with body.module("mix"):
            total = body.mul(v, body.parameter(places))
        with body.module("loss"):
            total = body.sum(body.mul(body.sum(total, 1), body.sum(total, 1)))
            body.loss(total)
        made.schedule(body, body.backward(), 1)
        return made.build()

    def rank(me: int) -> Program:
        made = ProgramBuilder(f"rank {me}", base=me)
        places = made.parameter("places", (SEQUENCE, HIDDEN))
        body = made.body("forward")
        (x,) = body.load_batch(("x", (BATCH, SEQUENCE, HIDDEN), "float32"))
        mine = body.op("slice", x, dim=1, start=me * half, size=half)
        with body.module("values"):
            v = body.silu(mine)
        if me == 0:
            body.send(v, 1)
            other = body.recv(body.shape(v), 1)
        else:
            other = body.recv(body.shape(v), 0)
            body.send(v, 0)
        pair = (v, other) if me == 0 else (other, v)
        if bad == "order":
            pair = (v, other)
        if bad == "twice":
            pair = (v, v)
        whole = body.op("concat", *pair, dim=1)
        with body.module("mix"):
            total = body.mul(whole, body.parameter(places))
        with body.module("loss"):
            one = body.sum(body.mul(body.sum(total, 1), body.sum(total, 1)))
            body.loss(one)
        backward = body.backward()
        slot = made.slot()
        made.call(body, (), (slot,), 0)
        made.call(backward, (made.seed(slot),))
        return made.build()

    return Plan(f"ring-{mistake}", single(), (rank(0), rank(1)), 1)


def _add(
    name: str, what: str, operator: str, layer: str, cause: str, plan: Callable[[bool], Plan]
) -> None:
    add(Case(name, what, tuple(operator.split("|")), layer, tuple(cause.split("|")), plan))


_add(
    "stage-epsilon",
    "epsilon is another one on one stage",
    "rms_norm",
    "layers.2",
    "wrong constant",
    lambda wrong: lanes("eps", wrong),
)
_add(
    "stage-sends-its-input",
    "a stage sends what it was given",
    "rms_norm|recv|linear|add",
    "layers",
    "wrong tensor",
    lambda wrong: lanes("sent", wrong),
)
_add(
    "stage-skips-its-layer",
    "the last stage leaves its layer out",
    "mul",
    "loss",
    "missing operator",
    lambda wrong: lanes("skipped", wrong),
)
_add(
    "tied-gradient-not-summed",
    "the gradient of a tied weight is not summed over the stages",
    "gradient of table",
    "table",
    "gradient that is not reduced",
    tied,
)
_add(
    "microbatches-exchanged",
    "a stage runs the microbatches in another order than its peer",
    "mul|linear",
    "second|first",
    "wrong order of microbatches",
    lambda wrong: halves("order", wrong),
)

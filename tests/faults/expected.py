"""Plans with a table of expectations of their own: no batch to load, outputs, written-out backward.

One linear layer and what may be expected of it, laid out over ranks; each function takes the fault
as an argument, so that the right plan and the wrong one differ in that alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from shardproof.engine.algebra.affine import Affine, affine
from shardproof.engine.plan.ir import Group, Plan, Program, Shard
from shardproof.frontends.builder.builder import BodyBuilder, ProgramBuilder, along
from shardproof.frontends.builder.expecting import Table, term

ROWS, IN, OUT = 4, 8, 16


def linear(
    *,
    expected: str = "equal",
    offset: Mapping[str, int] | None = None,
    reduced: bool = True,
    factor: Fraction = Fraction(1),
) -> Plan:
    """``y = x w`` with rows of ``w`` over two ranks: every rank has half of the columns of y; and
    ``sum(y^2)`` of all of them, ``reduced`` or not.  ``expected``: how the sum combines over tp;
    ``offset``: where the table has a rank's columns begin; ``factor``: of the parallel sum."""

    def forward(program: ProgramBuilder, scale: Fraction) -> tuple[BodyBuilder, int, int]:
        x = program.named("x", (ROWS, IN))
        weight = program.parameter("w", (OUT, IN), {0: "tp"})
        body = program.body("forward")
        y = body.linear(body.parameter(x), body.parameter(weight), name="y")
        norm = body.sum(body.mul(y, y))
        if scale != 1:
            norm = body.mul_constant(norm, scale)
        if "tp" in program.extents and reduced:
            norm = body.reduce_from(norm, along("tp"))
        program.call(body)
        return body, y, norm

    single, ranks = ProgramBuilder("single"), ProgramBuilder("ranks", axes=(("tp", 2, 1),))
    one, y1, n1 = forward(single, Fraction(1))
    many, y2, n2 = forward(ranks, factor)
    table = Table(single, ranks)
    columns = (Affine(), affine(0, {"tp": OUT // 2} if offset is None else offset))
    table.row("output", "y", term(one, y1), term(many, y2), offset=columns)
    over = {} if expected == "equal" else {"tp": expected}
    table.row("output", "norm", term(one, n1), term(many, n2, **over))
    return table.plan("linear")


def apart(*, wrong: int = -1, left_out: int = -1, starts: Sequence[int] = (0, 8)) -> Plan:
    """The same with a program for each rank, and an output that both have in full; rank ``wrong``
    adds 0.1 of x to it, and the table says nothing of y on rank ``left_out``."""

    def program(rank: int) -> tuple[ProgramBuilder, BodyBuilder, int, int]:
        made = ProgramBuilder(f"rank {rank}", base=max(rank, 0))
        x = made.named("x", (ROWS, IN))
        body = made.body("forward")
        read = body.parameter(x)
        if rank < 0:
            y = body.linear(read, body.parameter(made.parameter("w", (OUT, IN))))
        else:
            program_builder = ProgramBuilder("", axes=(("tp", 2, 1),))
            number = program_builder.parameter("w", (OUT, IN), {0: "tp"})
            shard = program_builder.shards[number]
            offset = (affine(starts[rank]), shard.offset[1])
            y = body.linear(read, body.parameter(made.shard(replace(shard, offset=offset))))
        z = body.silu(read)
        if rank == wrong and rank >= 0:
            z = body.add(z, body.mul_constant(read, Fraction(1, 10)))
        made.call(body)
        return made, body, y, z

    single, one, y1, z1 = program(-1)
    built = [program(0), program(1)]
    table = Table(single, *(made for made, *_ in built))
    for rank, (_, body, y, z) in enumerate(built):
        if rank != left_out:
            table.row(
                "output", "y", term(one, y1), term(body, y), offset=(Affine(), affine(8 * rank))
            )
        else:
            body.result(y)
        table.row("output", "z", term(one, z1), term(body, z))
    return table.plan("apart")


def graded(*, whole: bool = True, told: str = "right", scale: Fraction = Fraction(1)) -> Plan:
    """``loss = sum(t x w)`` with its backward written out, as a recorded program has it: the
    gradient is ``t x``, whatever w is.  Every rank holds half of the columns of w.

    ``whole``: every rank ends with all of the gradient, though it holds half of the parameter (else
    with its half); ``told``: what the table has of it: where it is ("right"), the other half, the
    whole, or nothing; ``scale``: of the parallel gradient.
    """

    def step(program: ProgramBuilder, factor: Fraction) -> tuple[BodyBuilder, int, int]:
        x, t = program.named("x", (ROWS, IN)), program.named("t", (ROWS, OUT))
        weight = program.parameter("w", (OUT, IN), {1: "tp"})
        body = program.body("step")
        read, upstream = body.parameter(x), body.parameter(t)
        own = read
        if "tp" in program.extents:
            start = affine(0, {"tp": IN // 2})
            own = body.op("slice", read, dim=1, start=start, size=IN // 2)
        y = body.linear(own, body.parameter(weight))
        if "tp" in program.extents:
            y = body.reduce_from(y, along("tp"))
        loss = body.sum(body.mul(upstream, y))
        gradient = body.matmul(body.transpose(upstream, 0, 1), read if whole else own)
        if factor != 1:
            gradient = body.mul_constant(gradient, factor)
        program.call(body)
        return body, loss, gradient

    single, ranks = ProgramBuilder("single"), ProgramBuilder("ranks", axes=(("tp", 2, 1),))
    one, l1, g1 = step(single, Fraction(1))
    many, l2, g2 = step(ranks, scale)
    table = Table(single, ranks)
    table.row("loss", "loss", term(one, l1), term(many, l2))
    half = affine(IN // 2, {"tp": -IN // 2}) if told == "other" else affine(0, {"tp": IN // 2})
    offset = () if whole or told == "whole" else (Affine(), half)
    held = () if told == "nothing" else (term(many, g2),)
    table.row("gradient", "w", term(one, g1), *held, offset=() if told == "nothing" else offset)
    return table.plan("graded")


def embedded(*, start: int = 16, domain: tuple[int, int] = (0, 32), reduced: bool = True) -> Plan:
    """An embedding whose table is divided over two ranks, the second one's rows from ``start`` on,
    forward only; the ids are a named input with a ``domain``."""

    def forward(program: ProgramBuilder) -> tuple[BodyBuilder, int]:
        ids = program.named("ids", (ROWS, IN), dtype="int64", domain=domain)
        rows = program.parameter("table", (32, 6), {0: "tp"})
        body = program.body("forward")
        parallel = "tp" in program.extents
        first = affine(0, {"tp": start}) if parallel else Affine()
        y = body.embedding(body.parameter(ids), body.parameter(rows), first)
        if parallel and reduced:
            y = body.reduce_from(y, along("tp"))
        program.call(body)
        return body, y

    single, ranks = ProgramBuilder("single"), ProgramBuilder("ranks", axes=(("tp", 2, 1),))
    one, y1 = forward(single)
    many, y2 = forward(ranks)
    table = Table(single, ranks)
    table.row("output", "y", term(one, y1), term(many, y2))
    return table.plan("embedded")


def terms(
    *, weights: Sequence[Fraction] = (Fraction(1), Fraction(1, 2)), told: bool = True
) -> Plan:
    """The loss is ``sum(x w) + sum(x^2) / 2``; a rank of its own computes each term.  ``weights``:
    with which the table counts them; ``told``: whether it does, or every rank has all of it."""

    def program(rank: int) -> tuple[ProgramBuilder, BodyBuilder, list[int]]:
        made = ProgramBuilder(f"rank {rank}", base=max(rank, 0))
        x = made.named("x", (ROWS, IN))
        weight = made.parameter("w", (OUT, IN), trainable=False) if rank < 1 else -1
        body = made.body("forward")
        read = body.parameter(x)
        losses = []
        if rank < 1:
            losses.append(body.sum(body.linear(read, body.parameter(weight))))
        if rank != 0:
            losses.append(body.sum(body.mul(read, read)))
        made.call(body)
        return made, body, losses

    single, one, both = program(-1)
    (first, left, (main,)), (second, right, (other,)) = program(0), program(1)
    expected = (term(one, both[0]), term(one, both[1], Fraction(1, 2)))
    table = Table(single, first, second)
    held = term(left, main, weights[0]), term(right, other, weights[1])
    if told:
        table.row("loss", "loss", expected, *held)
    else:
        table.row("loss", "loss", expected, held[0])
        table.row("loss", "loss", expected, held[1])
    return table.plan("terms")


def called(
    names: tuple[str, str] = ("forward", "forward"), *, factor: Fraction = Fraction(1)
) -> Plan:
    """Two microbatches of a layer, each run by a body of its own, forward and backward; ``factor``:
    of the second one's loss."""

    def program(single: bool) -> Program:
        made = ProgramBuilder("program")
        weight = made.parameter("w", (OUT, IN))
        for m, name in enumerate(names[:1] if single else names):
            body = made.body(name)
            (x,) = body.load_batch(("x", (2 * ROWS if single else ROWS, IN), "float32"))
            loss = body.sum(body.linear(x, body.parameter(weight)))
            body.loss(loss if not m or factor == 1 else body.mul_constant(loss, factor))
            slot = made.slot()
            made.call(body, (), (slot,), m)
            made.call(body.backward(f"{name} backward"), (made.seed(slot),))
        return made.build()

    return Plan("called", program(True), (program(False),), 2)


def regularised(*, own_body: bool = True, factor: Fraction = Fraction(1)) -> Plan:
    """A loss of two microbatches and a regulariser ``sum(w^2)`` that counts once, in a body of its
    own; ``factor``: of the parallel regulariser."""

    def program(single: bool) -> Program:
        made = ProgramBuilder("program")
        weight = made.parameter("w", (OUT, IN))
        body = made.body("forward")
        (x,) = body.load_batch(("x", (2 * ROWS if single else ROWS, IN), "float32"))
        loss = body.sum(body.linear(x, body.parameter(weight)))
        count = 1 if single else 2
        if single and not own_body:
            tensor = body.parameter(weight)
            loss = body.add(loss, body.sum(body.mul(tensor, tensor)))
        body.loss(loss)
        made.schedule(body, body.backward(), count)
        if not single or own_body:
            penalty = made.body("penalty")
            tensor = penalty.parameter(weight)
            own = penalty.sum(penalty.mul(tensor, tensor))
            scale = Fraction(1) if single else factor
            penalty.loss(own if scale == 1 else penalty.mul_constant(own, scale))
            slot = made.slot()
            made.call(penalty, (), (slot,))
            made.call(penalty.backward("penalty backward"), (made.seed(slot),))
        return made.build()

    return Plan("regularised", program(True), (program(False),), 2)


def two_products(
    *, expected: str = "partial", factor: Fraction = Fraction(1), swapped: bool = False
) -> Plan:
    """``y = x w + 2 z v`` where both products are partial over two ranks, and nothing adds them up;
    ``factor``: of the second one on the ranks; ``swapped``: z is multiplied by w there."""

    def forward(program: ProgramBuilder, scale: Fraction) -> tuple[BodyBuilder, int]:
        body = program.body("forward")
        x, z = (body.parameter(program.named(n, (ROWS, IN), {1: "tp"})) for n in "xz")
        w, v = (body.parameter(program.parameter(n, (OUT, IN), {1: "tp"})) for n in "wv")
        other = body.linear(z, w if swapped and program.axes else v)
        y = body.add(body.linear(x, w), body.mul_constant(other, 2 * scale))
        program.call(body)
        return body, y

    single, ranks = ProgramBuilder("single"), ProgramBuilder("ranks", axes=(("tp", 2, 1),))
    one, y1 = forward(single, Fraction(1))
    many, y2 = forward(ranks, factor)
    table = Table(single, ranks)
    over = {} if expected == "equal" else {"tp": expected}
    table.row("output", "y", term(one, y1), term(many, y2, **over))
    return table.plan("two products")


def passed_on(*, twice: bool = False) -> Plan:
    """A loss whose inner dimension is divided over two ranks: both the partial loss and its
    all-reduce are called a loss, as records of one tensor have it; ``twice``: another copy, too."""

    def step(program: ProgramBuilder) -> Program:
        weight = program.parameter("w", (OUT, IN), {1: "tp"}, trainable=False)
        body = program.body("forward")
        (x,) = body.load_batch(("x", (ROWS, IN), "float32"))
        if program.axes:
            start = affine(0, {"tp": IN // 2})
            x = body.op("slice", x, dim=1, start=start, size=IN // 2)
        loss = body.sum(body.linear(x, body.parameter(weight)))
        body.loss(loss)
        if program.axes:
            whole = body.reduce_from(loss, along("tp"))
            body.loss(whole)
            if twice:
                body.loss(body.mul_constant(whole, Fraction(1)))
        program.call(body, (), [program.slot() for _ in body.outputs], 0)
        return program.build()

    ranks = ProgramBuilder("ranks", axes=(("tp", 2, 1),))
    return Plan("passed on", step(ProgramBuilder("single")), (step(ranks),), 1)


def two_sums(*, terms_of: int = 2, factor: Fraction = Fraction(1)) -> Plan:
    """The loss is ``sum(silu(x w)) + sum(x^2)`` over two replicas, which all-reduce it; ``factor``:
    of the second sum on the ranks; ``terms_of``: how many of the sums they have."""

    def forward(program: ProgramBuilder, scale: Fraction) -> tuple[BodyBuilder, int]:
        x = program.named("x", (ROWS, IN), {0: "dp"})
        weight = program.parameter("w", (OUT, IN))
        body = program.body("forward")
        read = body.parameter(x)
        loss = body.sum(body.silu(body.linear(read, body.parameter(weight))))
        more = body.sum(body.mul(read, read))
        more = more if scale == 1 else body.mul_constant(more, scale)
        loss = body.add(loss, more) if terms_of == 2 or not program.axes else loss
        program.call(body)
        return body, loss

    single, ranks = ProgramBuilder("single"), ProgramBuilder("ranks", axes=(("dp", 2, 1),))
    one, l1 = forward(single, Fraction(1))
    many, l2 = forward(ranks, factor)
    table = Table(single, ranks)
    table.row("loss", "loss", term(one, l1), term(many, l2, dp="sum"))
    return table.plan("two sums")


def shaped(size: tuple[int, ...], *, own: bool = False, factor: Fraction = Fraction(1)) -> Plan:
    """A loss of one element that is written with other dimensions on the ranks; ``own``: stated in
    a table, forward only; ``factor``: of it there."""

    def step(made: ProgramBuilder, single: bool) -> tuple[BodyBuilder, int]:
        rows = ROWS if single else ROWS // 2
        body = made.body("forward")
        weight = body.parameter(made.parameter("w", (OUT, IN)))
        if own:
            x = body.parameter(made.named("x", (ROWS, IN), {0: "dp"}))
        else:
            (x,) = body.load_batch(("x", (rows, IN), "float32"))
        loss = body.sum(body.silu(body.linear(x, weight)))
        if not single:
            loss = body.view(loss, *size)
            loss = loss if factor == 1 else body.mul_constant(loss, factor)
        if own:
            made.call(body)
            return body, loss
        body.loss(loss)
        made.schedule(body, body.backward(), 1)
        if not single:
            made.reduce([(0, along("dp"))])
        return body, loss

    single, ranks = ProgramBuilder("single"), ProgramBuilder("ranks", axes=(("dp", 2, 1),))
    one, l1 = step(single, True)
    many, l2 = step(ranks, False)
    if not own:
        return Plan("shaped", single.build(), (ranks.build(),), 1, ("dp",))
    table = Table(single, ranks)
    table.row("loss", "loss", term(one, l1), term(many, l2, dp="sum"))
    return table.plan("shaped")


def halves(*, single: bool = False, ranks: str = "whole and halves", start: int = 8) -> Plan:
    """A parameter whole on one rank and in halves on two others, which add up what they have; or
    in halves on the single device, too.  ``start``: of the second half."""

    def held(made: ProgramBuilder, first: int, size: int) -> int:
        return made.shard(Shard("w", (OUT, IN), (size, IN), (affine(first), Affine())))

    def program(rank: int) -> Program:
        made = ProgramBuilder(f"rank {rank}", base=max(rank, 0))
        body = made.body("forward")
        (x,) = body.load_batch(("x", (ROWS, IN), "float32"))
        if rank < 0 and single:
            parts = [(0, 8), (8, 8)]
        elif rank < 0 or (rank == 0 and ranks == "whole and halves"):
            parts = [(0, 16)]
        elif ranks == "whole and halves":
            parts = [(0, 8), (start, 8)]
        else:
            parts = [(0, 8), (start, 8)][rank : rank + 1]
        sums = [body.sum(body.silu(body.linear(x, body.parameter(held(made, *p))))) for p in parts]
        loss = sums[0] if len(sums) == 1 else body.add(*sums)
        if rank >= 0 and ranks == "halves":
            loss = body.reduce_from(loss, Group(ranks=(0, 1)))
        body.loss(loss)
        made.schedule(body, body.backward(), 1)
        return made.build()

    return Plan("halves", program(-1), (program(0), program(1)), 1)


def logarithm(
    shift: int = 0, sign: int = 1, *, factor: Fraction = Fraction(1), square: bool = False
) -> Plan:
    """The output is ``log(sign x + shift)`` of a named input (``square``: of its square), each rank
    its half of the rows; ``factor``: of the parallel one."""

    def forward(program: ProgramBuilder, scale: Fraction) -> tuple[BodyBuilder, int]:
        body = program.body("forward")
        x = body.parameter(program.named("x", (ROWS, IN), {0: "dp"}))
        inner = body.mul(x, x) if square else x
        inner = body.mul_constant(inner, Fraction(sign))
        if shift:
            inner = body.op("add", inner, other=Fraction(shift))
        out = body.log(inner)
        if scale != 1:
            out = body.mul_constant(out, scale)
        program.call(body)
        return body, out

    single, ranks = ProgramBuilder("single"), ProgramBuilder("ranks", axes=(("dp", 2, 1),))
    one, y1 = forward(single, Fraction(1))
    many, y2 = forward(ranks, factor)
    table = Table(single, ranks)
    table.row("output", "y", term(one, y1), term(many, y2), split={0: "dp"})
    return table.plan("logarithm")

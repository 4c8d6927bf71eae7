"""Plans written by hand with the zoo's builder, one for each kind of order that can go wrong.

Their calls are given as data, so that a test states the order it wants.  Parameters of plans that
only run forward are frozen: the loss is all there is to conclude.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from shardproof.engine.algebra.affine import ZERO, Affine, affine
from shardproof.engine.plan.ir import Attr, Group, Plan, Program, Shard
from shardproof.frontends.builder.builder import BodyBuilder, ProgramBuilder, along

WIDTH = 6
ROWS = 3

#: What one rank of `stages` does next: (body, microbatch), and where it reads and writes.
Step = tuple[str, int, tuple[int, ...], tuple[int, ...]]


def batch(rows: int) -> tuple[tuple[str, tuple[int, ...], str], ...]:
    """Features and the weights of their loss; both real, so that their pairing matters."""
    return (("x", (rows, WIDTH), "float32"), ("t", (rows, WIDTH), "float32"))


# -- one rank, two segments, forward and backward
# ---------------------------------------------------


def segments(order: Sequence[tuple[str, int]], microbatches: int = 2) -> Plan:
    """One rank runs ``silu(x w1)`` and ``sum(t * (h w2)^2)`` as two segments with a backward each.

    ``order``: (body, microbatch whose tensors it is given); contexts are first in, first out.
    """

    def program(rows: int, count: int, calls: Sequence[tuple[str, int]]) -> Program:
        made = ProgramBuilder("rank 0")
        w1, w2 = (made.parameter(name, (WIDTH, WIDTH)) for name in ("w1", "w2"))
        load = made.body("load")
        x, t = load.load_batch(*batch(rows))
        load.output(x)
        load.output(t)
        first = made.body("first")
        x = first.input((rows, WIDTH), "x")
        first.output(first.silu(first.linear(x, first.parameter(w1)), name="h"))
        second = made.body("second")
        h = second.input((rows, WIDTH), "h", differentiable=True)
        t = second.input((rows, WIDTH), "t")
        y = second.linear(h, second.parameter(w2))
        second.loss(second.sum(second.mul(t, second.mul(y, y))))
        bodies = {
            "load": load,
            "first": first,
            "second": second,
            "first backward": first.backward("first backward"),
            "second backward": second.backward("second backward"),
        }
        x_at, t_at, h_at, loss_at, g_at = ([made.slot() for _ in range(count)] for _ in range(5))
        seeds = [made.seed(slot) for slot in loss_at]
        for name, m in calls:
            inputs, outputs = {
                "load": ((), (x_at[m], t_at[m])),
                "first": ((x_at[m],), (h_at[m],)),
                "second": ((h_at[m], t_at[m]), (loss_at[m],)),
                "second backward": ((seeds[m],), (g_at[m],)),
                "first backward": ((g_at[m],), ()),
            }[name]
            made.call(bodies[name], inputs, outputs, m if name == "load" else -1)
        return made.build()

    return Plan(
        "segments",
        program(ROWS * microbatches, 1, [(name, 0) for name in PASS]),
        (program(ROWS, microbatches, order),),
        microbatches,
    )


#: One microbatch from its load to its gradients.
PASS = ("load", "first", "second", "second backward", "first backward")


# -- two ranks, messages
# ----------------------------------------------------------------------------


def stages(first: Sequence[Step], second: Sequence[Step], idle: bool = False) -> Plan:
    """Rank 0 computes ``h = x w1`` and sends it; rank 1 receives it and computes
    ``sum(t * (h w2))``.  Frozen parameters, two microbatches; ``idle``: a third rank does nothing.
    """

    def program(rank: int, steps: Sequence[Step]) -> Program:
        made = ProgramBuilder(f"rank {rank}", base=rank)
        bodies = _stage_bodies(made, rank)
        for name, m, inputs, outputs in steps:
            made.call(bodies[name], inputs, outputs, m if name == "load" else -1)
        return made.build()

    single = ProgramBuilder("single")
    w1, w2 = (single.parameter(n, (WIDTH, WIDTH), trainable=False) for n in ("w1", "w2"))
    body = single.body("forward")
    x, t = body.load_batch(*batch(2 * ROWS))
    y = body.linear(body.linear(x, body.parameter(w1)), body.parameter(w2))
    body.loss(body.sum(body.mul(t, y)))
    single.call(body, (), (single.slot(),), 0)
    programs = [program(0, first), program(1, second)]
    if idle:
        programs.append(ProgramBuilder("rank 2", base=2).build())
    return Plan("stages", single.build(), tuple(programs), 2)


def _stage_bodies(made: ProgramBuilder, rank: int) -> dict[str, BodyBuilder]:
    shape = (ROWS, WIDTH)
    load = made.body("load")
    for value in load.load_batch(*batch(ROWS)):
        load.output(value)
    bodies = {"load": load}
    if rank == 0:
        weight = made.parameter("w1", (WIDTH, WIDTH), trainable=False)
        compute = made.body("compute")
        compute.output(compute.linear(compute.input(shape, "x"), compute.parameter(weight)))
        bodies["compute"] = compute
        for peer in (1, 2):
            send = made.body(f"send to {peer}")
            send.send(send.input(shape, "h"), peer)
            bodies[send.name] = send
        receive = made.body("receive acknowledgement")
        receive.recv((1,), 1, name="acknowledgement", gradient=False)
        bodies["receive acknowledgement"] = receive
        return bodies
    weight = made.parameter("w2", (WIDTH, WIDTH), trainable=False)
    receive = made.body("receive")
    receive.output(receive.recv(shape, 0, name="h", gradient=False))
    compute = made.body("compute")
    h, t = compute.input(shape, "h"), compute.input(shape, "t")
    compute.loss(compute.sum(compute.mul(t, compute.linear(h, compute.parameter(weight)))))
    acknowledge = made.body("acknowledge")
    acknowledge.send(acknowledge.input((1,), "loss"), 0)
    return {**bodies, "receive": receive, "compute": compute, "acknowledge": acknowledge}


# -- two ranks, parts in group order
# ----------------------------------------------------------------


def parts(
    sizes: tuple[int, int] = (4, 4),
    starts: tuple[int, int] = (0, 4),
    ranks: tuple[tuple[int, ...], tuple[int, ...]] = ((0, 1), (0, 1)),
    *,
    claimed: tuple[int, int] | None = None,
    full: int = 8,
) -> Plan:
    """Each rank takes its chunk of a frozen row vector's copy, multiplies its part of the weights
    [start, start + size) into it, and the parts are gathered; a last weighting by position makes
    their order matter.  ``claimed``: where the plan records that chunks begin."""

    def program(rank: int | None) -> Program:
        made = ProgramBuilder("single" if rank is None else f"rank {rank}", base=rank or 0)
        size, start = (full, 0) if rank is None else (sizes[rank], starts[rank])
        weight = made.shard(Shard("w", (full,), (size,), (affine(start),), trainable=False))
        places = made.shard(Shard("places", (full,), (full,), (ZERO,), trainable=False))
        body = made.body("forward")
        x, _ = body.load_batch(("x", (ROWS, full), "float32"), ("t", (ROWS, full), "float32"))
        if rank is not None:
            group = Group(ranks=ranks[rank])
            out = body.value((ROWS, size), "part")
            attrs: dict[str, Attr] = {"group": group, "dim": 1}
            if claimed is not None:
                attrs["claimed"] = claimed[rank]
            body.append("chunk", [x], [out], attrs)
            x = body.mul(out, body.parameter(weight))
            joined = body.value((ROWS, full), "joined")
            body.append("all_gather", [x], [joined], {"group": group, "dim": 1})
        else:
            joined = body.mul(x, body.parameter(weight))
        body.loss(body.sum(body.mul(joined, body.parameter(places))))
        made.call(body, (), (made.slot(),), 0)
        return made.build()

    return Plan("parts", program(None), (program(0), program(1)), 1)


def mesh(order: tuple[str, ...], held: dict[str, int]) -> Plan:
    """Four ranks on a 2 x 2 mesh (a, b), b the faster axis, hold rows of w by ``held`` and gather
    along both axes in the ``order`` that the plan lists."""

    def program(single: bool) -> Program:
        axes = () if single else (("a", 2, 2), ("b", 2, 1))
        made = ProgramBuilder("single" if single else "ranks", axes=axes)
        rows = Affine() if single else affine(0, held)
        weight = made.shard(Shard("w", (16, 8), (16 if single else 4, 8), (rows, ZERO)))
        body = made.body("forward")
        (x,) = body.load_batch(("x", (4, 8), "float32"))
        y = body.linear(x, body.parameter(weight))
        if not single:
            y = body.all_gather(y, 1, Group(axes=order), shared=True)
        body.loss(body.sum(body.linear(y, body.parameter(made.parameter("v", (16, 16))))))
        made.schedule(body, body.backward(), 1)
        return made.build()

    return Plan("mesh", program(True), (program(False),), 1)


# -- replicas of one layer
# --------------------------------------------------------------------------


def layer(body: BodyBuilder, weight: int, x: int) -> int:
    """``sum(x w) / 8``"""
    return body.mul_constant(body.sum(body.linear(x, body.parameter(weight))), Fraction(1, 8))


def replicas(*, spare: bool = False) -> Plan:
    """Two replicas of a layer with two microbatches; ``spare``: both sides hold a parameter that
    the loss does not depend on."""

    def program(single: bool) -> Program:
        axes = () if single else (("dp", 2, 1),)
        made = ProgramBuilder("single" if single else "ranks", axes=axes)
        weight = made.parameter("w", (16, 8))
        if spare:
            made.parameter("spare", (16, 8))
        body = made.body("forward")
        (x,) = body.load_batch(("x", (8 if single else 2, 8), "float32"))
        body.loss(layer(body, weight, x))
        made.schedule(body, body.backward(), 1 if single else 2)
        if not single:
            made.reduce([(weight, along("dp"))])
        return made.build()

    return Plan("replicas", program(True), (program(False),), 2, ("dp",))

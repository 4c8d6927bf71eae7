"""A two-layer network as a plan, written directly in the IR, right and wrong in chosen ways.

``y = w2 silu(w1 x)``, the loss is the sum (or mean) of y over a batch of real vectors.  It is laid
out over two ranks that divide the inner dimension (``row_parallel``), or over replicas
(``replicas``).
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from shardproof.engine.algebra.affine import affine
from shardproof.engine.plan.ir import (
    Attr,
    Body,
    Call,
    Group,
    Op,
    Plan,
    Program,
    Shard,
    Value,
    whole,
)
from shardproof.engine.schedule.instances import Unrolled
from shardproof.engine.schedule.unroll import unroll

WIDTH, INNER, BATCH = 8, 16, 12


def step(
    *,
    rows: int = BATCH,
    inner: int = INNER,
    starts: tuple[int, int] = (0, 0),
    rank: int = 0,
    axes: tuple[tuple[str, int, int], ...] = (),
    microbatches: int = 1,
    reduce: Group | None = None,
    reducer: Group | None = None,
    loss: str = "sum",
    factor: Fraction = Fraction(1),
) -> Program:
    """One rank's program: it holds ``inner`` inner positions from ``starts`` on (of w1 and w2),
    all-reduces y over ``reduce`` and gradients over ``reducer``; ``factor`` multiplies y."""
    shards = (
        replace(
            whole("w1", (INNER, WIDTH)), shape=(inner, WIDTH), offset=(affine(starts[0]), affine(0))
        ),
        replace(
            whole("w2", (WIDTH, INNER)), shape=(WIDTH, inner), offset=(affine(0), affine(starts[1]))
        ),
    )
    shapes = [
        (rows, WIDTH),
        (inner, WIDTH),
        (WIDTH, inner),
        (rows, inner),
        (rows, inner),
        (rows, WIDTH),
        (rows, WIDTH),
        (rows, WIDTH),
        (1,),
    ]
    x, w1, w2, h, a, y, total, scaled, result = range(9)
    reduced: dict[str, Attr] = {"group": reduce} if reduce else {}
    forward = Body(
        "forward",
        tuple(Value(s, name=f"value {i}") for i, s in enumerate(shapes)),
        (
            Op("load_batch", (), (x,)),
            Op("linear", (x, w1), (h,)),
            Op("silu", (h,), (a,)),
            Op("linear", (a, w2), (y,)),
            Op("all_reduce" if reduce else "identity", (y,), (total,), reduced),
            Op("mul", (total,), (scaled,), {"other": factor}),
            Op(loss, (scaled,), (result,)),
        ),
        outputs=(result,),
        shards=((w1, 0), (w2, 1)),
        losses=(result,),
    )
    return Program(
        f"rank {rank}",
        (forward, _backward(shapes, loss, factor), *_reducer(shapes, reducer)),
        (
            *(
                call
                for m in range(microbatches)
                for call in (Call(0, (), (0,), m), Call(1, (1,), ()))
            ),
            *((Call(2),) if reducer else ()),
        ),
        shards,
        rank,
        axes,
        seeds=((1, 0),),
    )


def _backward(shapes: list[tuple[int, ...]], loss: str, factor: Fraction) -> Body:
    x, w1, w2, h, a, total, scaled, g, gs, gy, ga, gw2, gh, gw1 = range(14)
    held = [
        *(shapes[i] for i in (0, 1, 2, 3, 4, 6, 7, 8)),
        *(shapes[i] for i in (7, 6, 4, 2, 3, 1)),
    ]

    def back(name: str, arity: int, wrt: tuple[int, ...], more: dict[str, Attr]) -> dict[str, Attr]:
        return {"arity": arity, "wrt": wrt, **more}

    return Body(
        "backward",
        tuple(Value(s, name=f"gradient {i}") for i, s in enumerate(held)),
        (
            Op(loss, (scaled, g), (gs,), back(loss, 1, (0,), {}), True),
            Op("mul", (total, gs), (gy,), back("mul", 1, (0,), {"other": factor}), True),
            Op("linear", (a, w2, gy), (ga, gw2), back("linear", 2, (0, 1), {}), True),
            Op("silu", (h, ga), (gh,), back("silu", 1, (0,), {}), True),
            Op("linear", (x, w1, gh), (gw1,), back("linear", 2, (1,), {}), True),
        ),
        inputs=(g,),
        shards=((w1, 0), (w2, 1)),
        forward_body=0,
        saved=((x, 0), (h, 3), (a, 4), (total, 6), (scaled, 7)),
        gradients=((gw1, 0), (gw2, 1)),
    )


def _reducer(shapes: list[tuple[int, ...]], group: Group | None) -> tuple[Body, ...]:
    if group is None:
        return ()
    values = tuple(Value(shapes[1 + i // 2]) for i in range(4))
    ops = tuple(Op("all_reduce", (i,), (i + 1,), {"group": group}) for i in (0, 2))
    return (Body("reducer", values, ops, reduced=((0, 1, 0), (2, 3, 1))),)


def row_parallel(
    *, reduce: bool = True, second: tuple[int, int] = (8, 8), factor: Fraction = Fraction(1)
) -> Plan:
    """Two ranks divide the inner dimension; ``second``: where rank 1 begins; ``factor`` is wrong on
    rank 1 unless it is 1."""
    group = Group(ranks=(0, 1)) if reduce else None
    first = (8 - second[0], 8 - second[1])
    ranks = tuple(
        step(
            inner=8, starts=starts, rank=rank, reduce=group, factor=factor if rank else Fraction(1)
        )
        for rank, starts in enumerate((first, second))
    )
    return Plan("row parallel", step(), ranks, 1)


def replicas(
    *, reduced: bool = True, loss: str = "sum", factor: Fraction = Fraction(1), count: int = 2
) -> Plan:
    """Replicas with two microbatches each."""
    rows = BATCH // count // 2
    ranks = step(
        rows=rows,
        axes=(("dp", count, 1),),
        microbatches=2,
        loss=loss,
        factor=factor,
        reducer=Group(axes=("dp",)) if reduced else None,
    )
    return Plan("replicas", step(loss=loss), (ranks,), 2, ("dp",), loss)


def gathered(*, positions: tuple[int, int] | None = None, weights: str = "given") -> Plan:
    """One linear layer whose outputs two ranks divide and gather; ``positions``: the order in which
    the ranks' parts are joined, if stated.  A weighting of positions makes the order matter."""

    def rank(number: int, parts: int) -> Program:
        size = WIDTH // parts
        shards = (
            Shard("w", (WIDTH, WIDTH), (size, WIDTH), (affine(number * size), affine(0))),
            whole(weights, (WIDTH,)),
        )
        group: dict[str, Attr] = {"group": Group(ranks=tuple(range(parts))), "dim": 1}
        if positions is not None and parts > 1:
            group["position"] = positions[number]
        shapes = [
            (BATCH, WIDTH),
            (size, WIDTH),
            (WIDTH,),
            (BATCH, size),
            (BATCH, WIDTH),
            (BATCH, WIDTH),
            (1,),
        ]
        ops = (
            Op("load_batch", (), (0,)),
            Op("linear", (0, 1), (3,)),
            Op("all_gather" if parts > 1 else "identity", (3,), (4,), group if parts > 1 else {}),
            Op("mul", (4, 2), (5,)),
            Op("sum", (5,), (6,)),
        )
        body = Body(
            "forward",
            tuple(Value(s) for s in shapes),
            ops,
            outputs=(6,),
            shards=((1, 0), (2, 1)),
            losses=(6,),
        )
        return Program(f"rank {number}", (body,), (Call(0, (), (0,), 0),), shards, number)

    return Plan("gathered", rank(0, 1), (rank(0, 2), rank(1, 2)), 1)


def sides(plan: Plan) -> tuple[Unrolled, Unrolled]:
    """Both sides, unrolled, which must be without faults."""
    single, parallel = unroll([plan.single], 1), unroll(plan.programs, plan.microbatches)
    assert not single.faults
    assert not parallel.faults
    return single, parallel

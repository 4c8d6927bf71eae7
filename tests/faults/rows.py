"""Plans of one operator or a few: rows of a batch divided over two ranks, weights held by both.

The single device runs ``compute`` on all rows, each rank on its own; the loss is ``sum(t * y)``,
and the weights' gradients are all-reduced.
"""

from __future__ import annotations

from collections.abc import Callable

from shardproof.engine.plan.ir import Plan, Program
from shardproof.frontends.builder.builder import BodyBuilder, ProgramBuilder, along

#: Rows of a rank, their length.
ROWS, WIDTH = 4, 6

#: What a side computes of its rows ``[rows, WIDTH]`` and a weight ``[WIDTH, WIDTH]``: of the shape
#: of the rows.
Compute = Callable[[BodyBuilder, int, int], int]


def side(program: ProgramBuilder, rows: int, compute: Compute) -> Program:
    """One side of `plan`."""
    weight = program.parameter("w", (WIDTH, WIDTH))
    body = program.body("forward")
    x, t = body.load_batch(("x", (rows, WIDTH), "float32"), ("t", (rows, WIDTH), "float32"))
    with body.module("layer"):
        y = compute(body, x, body.parameter(weight))
    with body.module("loss"):
        body.loss(body.sum(body.mul(t, y)))
    program.schedule(body, body.backward(), 1)
    if program.extents:
        program.reduce([(weight, along("dp"))])
    return program.build()


def plan(compute: Compute, other: Compute | None = None, ranks: int = 2) -> Plan:
    """Both sides; ``other``: what the ranks compute, if it is something else."""
    single = side(ProgramBuilder("single"), ranks * ROWS, compute)
    ranked = ProgramBuilder("ranks", axes=(("dp", ranks, 1),))
    return Plan("rows", single, (side(ranked, ROWS, other or compute),), 1, ("dp",))

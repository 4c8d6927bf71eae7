"""Mistakes between replicas and microbatches: means, counts, gradients, accumulation."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from benchmarks.classic.cases import (
    BATCH,
    EPS,
    FFN,
    HIDDEN,
    SEQUENCE,
    Case,
    Side,
    add,
    case,
)
from shardproof.engine.plan.ir import Plan
from shardproof.frontends.builder.builder import along

DP = {"dp": 2}
COUNT = BATCH * SEQUENCE * HIDDEN


def block(side: Side, x: int) -> int:
    """A feed-forward block that every rank holds whole."""
    body = side.body
    with side.module("mlp"):
        h = body.silu(body.linear(x, side.parameter("mlp.up", FFN, HIDDEN)))
        return body.linear(h, side.parameter("mlp.down", HIDDEN, FFN))


@case(
    "the mean over a replica's own tokens, and gradients summed",
    mesh=DP,
    operator="mul|mean",
    layer="loss",
    cause="wrong scale|wrong constant",
)
def local_mean(side: Side) -> None:
    y = block(side, side.load())
    side.squared(y, Fraction(1, COUNT // side.ranks("dp")) if side.wrong else None)


@case(
    "the local mean by `mean`, and gradients summed",
    mesh=DP,
    operator="mul|mean",
    layer="loss",
    cause="wrong scale|wrong constant",
)
def local_mean_operator(side: Side) -> None:
    body = side.body
    y = block(side, side.load())
    with side.module("loss"):
        square = body.mul(y, y)
        attrs = {} if side.wrong or not side.parallel else {"count": COUNT}
        body.loss(body.op("mean", square, **attrs))


@case(
    "the sum of losses where the mean is declared",
    mesh=DP,
    operator="mul|sum",
    layer="loss",
    cause="wrong scale of the loss",
)
def sum_for_mean(side: Side) -> None:
    body = side.body
    y = block(side, side.load())
    with side.module("loss"):
        total = body.sum(body.mul(y, y))
        body.loss(total if side.wrong else body.mul_constant(total, Fraction(1, COUNT)))


@case(
    "gradients are averaged over replicas though the loss is the global mean",
    mesh=DP,
    operator="all_reduce|mul|add_n",
    layer="",
    cause="wrong scale|wrong constant",
)
def averaged_twice(side: Side) -> None:
    side.squared(block(side, side.load()), Fraction(1, COUNT * (2 if side.wrong else 1)))


@case(
    "the loss of a microbatch lacks the number of microbatches",
    mesh=DP,
    microbatches=2,
    operator="mul",
    layer="loss",
    cause="wrong scale|wrong constant",
)
def microbatch_scale(side: Side) -> None:
    y = block(side, side.load())
    side.squared(y, Fraction(side.calls, COUNT) if side.wrong else None)


@case(
    "a gradient is left out of the reduction over replicas",
    mesh=DP,
    operator="gradient of mlp.down|backward of linear",
    layer="mlp",
    cause="gradient that is not reduced",
)
def gradient_not_reduced(side: Side) -> None:
    side.squared(block(side, side.load()))
    if side.wrong:
        side.reduced["mlp.down"] = ()


@case(
    "a gradient is reduced over replicas twice",
    mesh=DP,
    operator="all_reduce|gradient of mlp.down",
    layer="mlp",
    cause="collective too many",
)
def gradient_reduced_twice(side: Side) -> None:
    side.squared(block(side, side.load()))
    if side.wrong:
        side.reduced["mlp.down"] = ("dp", "dp")


@case(
    "gradients are reduced over the replicas only, not over the context-parallel ranks",
    mesh={"dp": 2, "cp": 2},
    operator="gradient of mlp.up|backward of linear",
    layer="mlp",
    cause="gradient that is not reduced|missing reduction|wrong group",
)
def gradient_not_over_context(side: Side) -> None:
    body = side.body
    x = side.load()
    if side.parallel:
        x = body.chunk(x, 1, along("cp"))
    y = block(side, x)
    with side.module("loss"):
        total = side.reduce_from(body.sum(body.mul(y, y)), "cp")
        body.loss(body.mul_constant(total, Fraction(1, COUNT)))
    for name in ("mlp.up", "mlp.down"):
        side.reduced[name] = ("dp", "cp")
    if side.wrong:
        side.reduced["mlp.up"] = ("dp",)


@case(
    "the loss is multiplied by the context-parallel ranks though it is summed over them",
    mesh={"cp": 2},
    operator="mul",
    layer="loss",
    cause="wrong scale|wrong constant",
)
def loss_times_context(side: Side) -> None:
    body = side.body
    x = side.load()
    if side.parallel:
        x = body.chunk(x, 1, along("cp"))
    y = block(side, x)
    with side.module("loss"):
        total = side.reduce_from(body.sum(body.mul(y, y)), "cp")
        body.loss(body.mul_constant(total, Fraction(2 if side.wrong else 1, COUNT)))
    for name in ("mlp.up", "mlp.down"):
        side.reduced[name] = ("cp",)


@case(
    "each context-parallel rank divides by its own number of tokens",
    mesh={"cp": 2},
    operator="div|all_reduce",
    layer="loss",
    cause="missing reduction",
)
def local_token_count(side: Side) -> None:
    body = side.body
    x, mask = body.load_batch(
        ("x", (side.rows, SEQUENCE, HIDDEN), "float32"),
        ("mask", (side.rows, SEQUENCE, HIDDEN), "float32"),
    )
    if side.parallel:
        x, mask = (body.chunk(v, 1, along("cp")) for v in (x, mask))
    y = block(side, x)
    with side.module("loss"):
        total = side.reduce_from(body.sum(body.mul(body.mul(y, y), mask)), "cp")
        count = body.sum(mask)
        if side.parallel and not side.wrong:
            count = body.all_reduce(count, along("cp"))
        body.loss(body.op("div", total, count))
    for name in ("mlp.up", "mlp.down"):
        side.reduced[name] = ("cp",)


@case(
    "a dropout mask that is not applied",
    mesh=DP,
    operator="mul|linear|silu",
    layer="",
    cause="missing operator|wrong tensor",
)
def dropout_absent(side: Side) -> None:
    body = side.body
    x, mask = body.load_batch(
        ("x", (side.rows, SEQUENCE, HIDDEN), "float32"),
        ("mask", (side.rows, SEQUENCE, FFN), "float32"),
    )
    with side.module("mlp"):
        h = body.silu(body.linear(x, side.parameter("mlp.up", FFN, HIDDEN)))
        h = h if side.wrong else body.mul(h, mask)
        y = body.linear(h, side.parameter("mlp.down", HIDDEN, FFN))
    side.squared(y)


@case(
    "a layer's residual connection is missing",
    mesh=DP,
    operator="add|linear|rms_norm|mul",
    layer="",
    cause="missing operator|wrong tensor",
)
def residual_missing(side: Side) -> None:
    body = side.body
    x = side.load()
    with side.module("norm"):
        x = body.rms_norm(x, side.parameter("norm.weight", HIDDEN), EPS)
    y = block(side, x)
    with side.module("residual"):
        y = y if side.wrong else body.add(x, y)
    with side.module("last"):
        y = body.rms_norm(y, side.parameter("last.weight", HIDDEN), EPS)
    side.squared(y)


def _accumulation(wrong: bool) -> Plan:
    """Two microbatches; with the mistake only the last one runs backward."""
    plan = CASES_PLAN(False)
    if not wrong:
        return plan
    (program,) = plan.programs
    backward = next(n for n, b in enumerate(program.bodies) if b.forward_body >= 0)
    first = next(n for n, call in enumerate(program.calls) if call.body == backward)
    calls = (*program.calls[:first], *program.calls[first + 1 :])
    return replace(plan, programs=(replace(program, calls=calls),))


def _two_microbatches() -> Case:
    from benchmarks.classic.cases import CASES

    return CASES["microbatch-scale"]


CASES_PLAN = _two_microbatches().plan
add(
    Case(
        "accumulation-keeps-one-microbatch",
        "gradients of one microbatch only are accumulated",
        ("all_reduce", "backward"),
        "",
        ("missing call",),
        _accumulation,
    )
)

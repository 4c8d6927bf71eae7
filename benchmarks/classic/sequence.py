"""Mistakes of sequence parallelism: norms that work on this rank's part of the sequence."""

from __future__ import annotations

from fractions import Fraction

from benchmarks.classic.cases import BATCH, EPS, HIDDEN, SEQUENCE, Side, case
from benchmarks.classic.tensor_parallel import TP, down, norm, up
from shardproof.frontends.builder.builder import along


def sequence_parallel(side: Side, mistake: str = "") -> None:
    """A block between norms that work on this rank's part of the sequence."""
    body = side.body
    wrong = mistake if side.wrong else ""
    x = side.load()
    if side.parallel:
        x = body.chunk(x, 1, along("tp"))
    x = norm(side, x)
    with side.module("mlp"):
        if wrong == "chunk":
            inner = side.gather(x, 1, "tp", shared=True)
        elif wrong == "gather":
            inner = side.gather(x, 0, "tp")
            inner = body.view(inner, side.rows, SEQUENCE, HIDDEN)
        else:
            inner = side.gather(x, 1, "tp")
        h = body.silu(up(side, inner))
        y = down(side, h)
        if wrong == "scatter":
            y = body.view(side.scatter(y, 0, "tp"), side.rows, SEQUENCE // 2, HIDDEN)
        elif wrong == "bias":
            y = side.scatter(body.add(y, side.parameter("mlp.bias", HIDDEN)), 1, "tp")
        else:
            y = side.scatter(y, 1, "tp")
        if mistake == "bias":
            side.reduced["mlp.bias"] = ("tp",)
            y = y if wrong else body.add(y, side.parameter("mlp.bias", HIDDEN))
        x = body.add(x, y)
    for name in ("norm.weight", "last.weight"):
        side.reduced[name] = ("tp",)
    if wrong == "norm":
        side.reduced["norm.weight"] = ()
    with side.module("last"):
        y = body.rms_norm(x, side.parameter("last.weight", HIDDEN), EPS)
    with side.module("loss"):
        total = side.reduce_from(body.sum(body.mul(y, y)), "tp")
        body.loss(body.mul_constant(total, Fraction(1, BATCH * SEQUENCE * HIDDEN)))


@case(
    "sequence parallel: the gradient of a norm is not summed over the ranks",
    mesh=TP,
    operator="gradient of norm.weight|backward of rms_norm",
    layer="norm",
    cause="gradient that is not reduced|missing reduction",
)
def sequence_parallel_norm(side: Side) -> None:
    sequence_parallel(side, "norm")


@case(
    "sequence parallel: gathered, and its gradient only cut",
    mesh=TP,
    operator="chunk|backward of rms_norm|add_n",
    layer="",
    cause="wrong collective|missing collective|missing reduction",
)
def sequence_parallel_gradient_cut(side: Side) -> None:
    sequence_parallel(side, "chunk")


@case(
    "sequence parallel: gathered along the batch",
    mesh=TP,
    operator="view|linear|all_gather",
    layer="mlp",
    cause="wrong dimension",
)
def sequence_parallel_gathered_along_batch(side: Side) -> None:
    sequence_parallel(side, "gather")


@case(
    "sequence parallel: reduce-scatter along the batch",
    mesh=TP,
    operator="view|add|reduce_scatter",
    layer="mlp",
    cause="wrong dimension",
)
def sequence_parallel_scattered_along_batch(side: Side) -> None:
    sequence_parallel(side, "scatter")


@case(
    "sequence parallel: the bias is added before the reduce-scatter",
    mesh=TP,
    operator="add",
    layer="mlp",
    cause="bias before the reduction",
)
def sequence_parallel_bias(side: Side) -> None:
    sequence_parallel(side, "bias")

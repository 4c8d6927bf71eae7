"""Mistakes within a tensor-parallel block: reductions, biases, shards, halves, heads, sequences."""

from __future__ import annotations

from fractions import Fraction

from benchmarks.classic.cases import BATCH, EPS, FFN, HEADS, HIDDEN, SEQUENCE, Side, case
from shardproof.engine.algebra.affine import affine
from shardproof.frontends.builder.builder import along

TP = {"tp": 2}
BOTH = {"dp": 2, "tp": 2}
SIZE = HIDDEN // HEADS


def up(side: Side, x: int, name: str = "up") -> int:
    """Column-parallel: this rank's part of the feed-forward width."""
    return side.body.linear(x, side.parameter(f"mlp.{name}", FFN, HIDDEN, split={0: "tp"}))


def down(side: Side, h: int) -> int:
    """Row-parallel: an addend of the block's result."""
    return side.body.linear(h, side.parameter("mlp.down", HIDDEN, FFN, split={1: "tp"}))


def norm(side: Side, x: int, name: str = "norm", eps: Fraction = EPS) -> int:
    with side.module(name):
        return side.body.rms_norm(x, side.parameter(f"{name}.weight", HIDDEN), eps)


def head(side: Side, x: int) -> None:
    """A norm and the loss, so that whatever is before them has to be whole."""
    side.squared(norm(side, x, "last"))


@case(
    "no all-reduce after the row-parallel product",
    mesh=TP,
    operator="linear|rms_norm|add",
    layer="",
    cause="missing reduction",
)
def row_parallel_without_all_reduce(side: Side) -> None:
    x = side.load()
    with side.module("mlp"):
        y = down(side, side.body.silu(up(side, side.copy_to(x, "tp"))))
        x = side.body.add(x, y if side.wrong else side.reduce_from(y, "tp"))
    head(side, x)


@case(
    "a partial product is squared: no residual and no norm behind it",
    mesh=BOTH,
    operator="mul",
    layer="loss",
    cause="missing reduction",
)
def squared_without_all_reduce(side: Side) -> None:
    x = side.load()
    with side.module("mlp"):
        y = down(side, side.body.silu(up(side, side.copy_to(x, "tp"))))
    side.squared(y if side.wrong else side.reduce_from(y, "tp"))


@case(
    "the bias is added by every rank, before the all-reduce",
    mesh=TP,
    operator="add",
    layer="mlp",
    cause="bias before the reduction",
)
def bias_before_all_reduce(side: Side) -> None:
    x = norm(side, side.load())
    with side.module("mlp"):
        y = down(side, side.body.silu(up(side, side.copy_to(x, "tp"))))
        bias = side.parameter("mlp.bias", HIDDEN)
        if side.wrong:
            y = side.reduce_from(side.body.add(y, bias), "tp")
        else:
            y = side.body.add(side.reduce_from(y, "tp"), bias)
    head(side, y)


@case(
    "the row-parallel linear is given its bias",
    mesh=TP,
    operator="linear|all_reduce",
    layer="mlp",
    cause="bias before the reduction",
)
def bias_in_row_parallel_linear(side: Side) -> None:
    x = norm(side, side.load())
    with side.module("mlp"):
        h = side.body.silu(up(side, side.copy_to(x, "tp")))
        weight = side.parameter("mlp.down", HIDDEN, FFN, split={1: "tp"})
        bias = side.parameter("mlp.bias", HIDDEN)
        if side.wrong or not side.parallel:
            y = side.reduce_from(side.body.linear(h, weight, bias), "tp")
        else:
            y = side.body.add(side.reduce_from(side.body.linear(h, weight), "tp"), bias)
    head(side, y)


@case(
    "the residual is added by every rank, before the all-reduce",
    mesh=TP,
    operator="add",
    layer="mlp",
    cause="bias before the reduction",
)
def residual_before_all_reduce(side: Side) -> None:
    x = norm(side, side.load())
    with side.module("mlp"):
        y = down(side, side.body.silu(up(side, side.copy_to(x, "tp"))))
        if side.wrong:
            x = side.reduce_from(side.body.add(x, y), "tp")
        else:
            x = side.body.add(x, side.reduce_from(y, "tp"))
    head(side, x)


@case(
    "no all-reduce of the gradient where the block is entered",
    mesh=TP,
    operator="backward of rms_norm|backward of linear|gradient of norm.weight",
    layer="norm|mlp",
    cause="missing reduction|gradient that is not reduced",
)
def entered_without_copy(side: Side) -> None:
    x = norm(side, side.load())
    with side.module("mlp"):
        x = x if side.wrong else side.copy_to(x, "tp")
        y = side.reduce_from(down(side, side.body.silu(up(side, x))), "tp")
    head(side, y)


@case(
    "the loss is divided by the number of tensor-parallel ranks",
    mesh=TP,
    operator="mul",
    layer="loss",
    cause="wrong constant|wrong scale",
)
def loss_over_tp(side: Side) -> None:
    x = norm(side, side.load())
    with side.module("mlp"):
        y = side.reduce_from(down(side, side.body.silu(up(side, side.copy_to(x, "tp")))), "tp")
    count = BATCH * SEQUENCE * HIDDEN * (side.ranks("tp") if side.wrong else 1)
    side.squared(norm(side, y, "last"), Fraction(1, count))


@case(
    "the block's result is reduced twice",
    mesh=TP,
    operator="all_reduce|rms_norm|add",
    layer="",
    cause="collective too many",
)
def reduced_twice(side: Side) -> None:
    x = norm(side, side.load())
    with side.module("mlp"):
        y = side.reduce_from(down(side, side.body.silu(up(side, side.copy_to(x, "tp")))), "tp")
        y = side.reduce_from(y, "tp") if side.wrong else y
        x = side.body.add(x, y)
    head(side, x)


@case(
    "the all-reduce runs over the replicas, not over the tensor-parallel ranks",
    mesh=BOTH,
    operator="all_reduce|add|rms_norm",
    layer="",
    cause="wrong group",
)
def reduced_over_replicas(side: Side) -> None:
    x = norm(side, side.load())
    with side.module("mlp"):
        y = down(side, side.body.silu(up(side, side.copy_to(x, "tp"))))
        x = side.body.add(x, side.reduce_from(y, "dp" if side.wrong else "tp"))
    head(side, x)


@case(
    "the all-reduce takes the maximum, not the sum",
    mesh=TP,
    operator="all_reduce|rms_norm|add",
    layer="",
    cause="wrong reduction operator|wrong collective",
)
def maximum_for_sum(side: Side) -> None:
    x = norm(side, side.load())
    with side.module("mlp"):
        y = down(side, side.body.silu(up(side, side.copy_to(x, "tp"))))
        if side.parallel:
            out = side.body.value(side.body.shape(y), "all_reduce")
            op = "max" if side.wrong else "sum"
            side.body.append("all_reduce", [y], [out], {"group": along("tp"), "op": op})
            side.body.step([out], [y], lambda r, g: [g[0]])
            y = out
        x = side.body.add(x, y)
    head(side, x)


@case(
    "each rank holds the other rank's rows of the down projection",
    mesh=TP,
    operator="linear|all_reduce|add",
    layer="mlp",
    cause="wrong shard",
)
def shard_of_another_rank(side: Side) -> None:
    x = norm(side, side.load())
    with side.module("mlp"):
        h = side.body.silu(up(side, side.copy_to(x, "tp")))
        other = affine(FFN // 2, {"tp": -FFN // 2}) if side.wrong else None
        weight = side.parameter("mlp.down", HIDDEN, FFN, split={1: "tp"}, offset=other)
        y = side.reduce_from(side.body.linear(h, weight), "tp")
    head(side, y)


@case(
    "every rank holds rank 0's columns of the up projection",
    mesh=TP,
    operator="linear|all_reduce|add",
    layer="mlp",
    cause="wrong shard",
)
def every_rank_the_first_shard(side: Side) -> None:
    x = norm(side, side.load())
    with side.module("mlp"):
        first = affine(0) if side.wrong else None
        weight = side.parameter("mlp.up", FFN, HIDDEN, split={0: "tp"}, offset=first)
        h = side.body.silu(side.body.linear(side.copy_to(x, "tp"), weight))
        y = side.reduce_from(down(side, h), "tp")
    head(side, y)


@case(
    "gate and up exchanged: silu(up) times gate",
    mesh=TP,
    operator="silu",
    layer="mlp",
    cause="parameters exchanged|wrong tensor",
)
def gate_and_up_exchanged(side: Side) -> None:
    x = norm(side, side.load())
    with side.module("mlp"):
        x = side.copy_to(x, "tp")
        gate, upper = up(side, x, "gate"), up(side, x, "up")
        if side.wrong:
            gate, upper = upper, gate
        h = side.body.mul(side.body.silu(gate), upper)
        y = side.reduce_from(down(side, h), "tp")
    head(side, y)


def attention(side: Side, x: int, mistake: str = "", heads: int = HEADS) -> int:
    """Causal attention over this rank's heads, up to the row-parallel projection."""
    body = side.body
    here = heads // side.ranks("tp")
    x = side.copy_to(x, "tp")
    wrong = mistake if side.wrong else ""

    def project(name: str) -> int:
        weight = side.parameter(f"attention.{name}", HIDDEN, HIDDEN, split={0: "tp"})
        return body.view(body.linear(x, weight), side.rows, SEQUENCE, here, HIDDEN // heads)

    q, k, v = project("q"), project("k"), project("v")
    if wrong == "exchanged":
        q, k = k, q
    if wrong == "value":
        v = k
    keys = body.transpose(body.transpose(k, 1, 2), 2, 3)
    scores = body.matmul(body.transpose(q, 1, 2), keys, name="scores")
    scores = body.div_constant(scores, Fraction(4 if wrong == "scale" else 2))
    if wrong == "unmasked":
        weights = body.softmax(scores)
    elif wrong == "queries":
        weights = body.softmax(body.causal_mask(scores, k), dim=-2)
    else:
        weights = body.softmax(body.causal_mask(scores, k))
    mixed = body.matmul(weights, body.transpose(v, 1, 2))
    if wrong != "heads":
        mixed = body.transpose(mixed, 1, 2)
    joined = body.view(mixed, side.rows, SEQUENCE, HIDDEN // side.ranks("tp"))
    out = side.parameter("attention.out", HIDDEN, HIDDEN, split={1: "tp"})
    return side.reduce_from(body.linear(joined, out), "tp")


def attention_with(mistake: str) -> None:
    """Register attention with one mistake in it."""
    what, operator, cause = ATTENTION[mistake]

    def write(side: Side) -> None:
        x = norm(side, side.load())
        with side.module("attention"):
            y = attention(side, x, mistake)
        head(side, y)

    write.__name__ = f"attention_{mistake}"
    case(what, mesh=TP, operator=operator, layer="attention", cause=cause)(write)


ATTENTION = {
    "exchanged": (
        "queries and keys exchanged",
        "transpose|matmul",
        "parameters exchanged|wrong tensor|inputs in the wrong order",
    ),
    "value": ("keys in place of values", "transpose|matmul", "wrong tensor"),
    "scale": ("scores divided by another head size's root", "div", "wrong constant"),
    "unmasked": ("no causal mask", "softmax", "missing operator"),
    "queries": ("softmax over the queries", "softmax", "wrong constant"),
    "heads": (
        "heads are not moved back before they are joined",
        "view|linear",
        "missing operator|wrong tensor",
    ),
}
for _mistake in ATTENTION:
    attention_with(_mistake)


@case(
    "the gradients of shared keys are not summed over the ranks of their queries",
    mesh=TP,
    operator="gradient of attention.k|backward of linear",
    layer="attention",
    cause="gradient that is not reduced|missing reduction",
)
def shared_keys_not_reduced(side: Side) -> None:
    body, here = side.body, HEADS // side.ranks("tp")
    x = norm(side, side.load())
    with side.module("attention"):
        inner = side.copy_to(x, "tp")
        weight = side.parameter("attention.q", HIDDEN, HIDDEN, split={0: "tp"})
        q = body.view(body.linear(inner, weight), side.rows, SEQUENCE, here, SIZE)
        k = body.linear(inner, side.parameter("attention.k", SIZE, HIDDEN), name="k")
        v = body.linear(inner, side.parameter("attention.v", SIZE, HIDDEN), name="v")
        q = body.view(body.transpose(q, 1, 2), side.rows, here * SEQUENCE, SIZE)
        weights = body.softmax(body.matmul(q, body.transpose(k, 1, 2)))
        mixed = body.view(body.matmul(weights, v), side.rows, here, SEQUENCE, SIZE)
        joined = body.view(body.transpose(mixed, 1, 2), side.rows, SEQUENCE, here * SIZE)
        out = side.parameter("attention.out", HIDDEN, HIDDEN, split={1: "tp"})
        y = side.reduce_from(body.linear(joined, out), "tp")
        side.reduced["attention.k"] = () if side.wrong else ("tp",)
        side.reduced["attention.v"] = ("tp",)
    head(side, y)


@case(
    "column-parallel results gathered along the sequence",
    mesh=TP,
    operator="all_gather|silu|linear|rms_norm",
    layer="",
    cause="wrong dimension",
)
def gathered_along_the_sequence(side: Side) -> None:
    body = side.body
    x = norm(side, side.load())
    with side.module("mlp"):
        weight = side.parameter("mlp.up", FFN, HIDDEN, split={0: "tp"})
        h = body.linear(side.copy_to(x, "tp"), weight)
        h = side.gather(h, 1 if side.wrong else 2, "tp", shared=True)
        y = body.silu(body.view(h, side.rows, SEQUENCE, FFN))
        y = body.linear(y, side.parameter("mlp.down", HIDDEN, FFN))
    head(side, y)


@case(
    "the norm over a divided hidden dimension takes the local mean",
    mesh=TP,
    operator="sum|all_reduce|mul|add|rsqrt",
    layer="norm",
    cause="missing reduction",
)
def norm_with_local_mean(side: Side) -> None:
    body = side.body
    x = side.load()
    with side.module("mlp"):
        weight = side.parameter("mlp.up", HIDDEN, HIDDEN, split={0: "tp"})
        h = body.linear(side.copy_to(x, "tp"), weight)
    with side.module("norm"):
        total = body.sum(body.mul(h, h), -1, keepdim=True)
        if not side.wrong and side.parallel:
            total = body.all_reduce(total, along("tp"))
        count = HIDDEN // side.ranks("tp") if side.wrong else HIDDEN
        scale = body.op(
            "rsqrt", body.op("add", body.mul_constant(total, Fraction(1, count)), other=EPS)
        )
        h = body.mul(h, scale)
    with side.module("out"):
        weight = side.parameter("out.weight", HIDDEN, HIDDEN, split={1: "tp"})
        y = side.reduce_from(body.linear(h, weight), "tp")
    head(side, y)


@case(
    "epsilon of a norm is another one",
    mesh=TP,
    operator="rms_norm",
    layer="norm",
    cause="wrong constant",
)
def epsilon_of_a_norm(side: Side) -> None:
    x = norm(side, side.load(), eps=Fraction(1, 100) if side.wrong else EPS)
    with side.module("mlp"):
        y = side.reduce_from(down(side, side.body.silu(up(side, side.copy_to(x, "tp")))), "tp")
    head(side, y)

"""Mistakes of sharded optimizers and parameters (ZeRO, FSDP)."""

from __future__ import annotations

from fractions import Fraction

from benchmarks.classic.cases import BATCH, FFN, HIDDEN, SEQUENCE, Case, Side, add, case
from shardproof.engine.algebra.affine import ZERO, affine
from shardproof.engine.plan.ir import Plan, Shard
from shardproof.frontends.builder.builder import ProgramBuilder, Scatter, along

DP = {"dp": 2}


def gathered(side: Side, name: str, *shape: int, dim: int = 0, at: str = "") -> int:
    """A parameter whose parts the replicas hold, gathered for use."""
    offset = {"next": affine(shape[0] // 2, {"dp": -shape[0] // 2}), "first": ZERO}.get(at)
    held = side.parameter(name, *shape, split={0: "dp"}, offset=offset)
    side.reduced[name] = ()
    if not side.parallel:
        return held
    return side.body.gather_parameter(held, dim, along("dp"))


def block(side: Side, mistake: str) -> None:
    body = side.body
    wrong = mistake if side.wrong else ""
    x = side.load()
    with side.module("mlp"):
        dim = 1 if wrong == "dimension" else 0
        weight = gathered(side, "mlp.up", HIDDEN, HIDDEN, dim=dim, at=wrong)
        if wrong == "dimension":
            weight = body.view(weight, HIDDEN, HIDDEN)
        h = body.silu(body.linear(x, weight))
        down = gathered(side, "mlp.down", HIDDEN, HIDDEN)
        y = body.linear(h, down)
    factor = Fraction(1, BATCH * SEQUENCE * HIDDEN)
    side.squared(y, factor / 2 if wrong == "averaged" else factor)


MISTAKES = {
    "next": (
        "each replica stores the next one's part of a parameter",
        "linear|all_gather",
        "mlp",
        "wrong shard",
    ),
    "first": (
        "every replica stores the first part of a parameter",
        "linear|all_gather",
        "mlp",
        "wrong shard",
    ),
    "dimension": (
        "a parameter is gathered along its other dimension",
        "view|linear|all_gather",
        "mlp",
        "wrong dimension",
    ),
    "averaged": (
        "gradients are averaged by the scatter and by the loss",
        "mul",
        "loss",
        "wrong scale|wrong constant",
    ),
}


def _sharded(mistake: str) -> None:
    what, operator, layer, cause = MISTAKES[mistake]

    def write(side: Side) -> None:
        block(side, mistake)

    write.__name__ = f"sharded_{mistake}"
    case(what, mesh=DP, operator=operator, layer=layer, cause=cause)(write)


for _mistake in MISTAKES:
    _sharded(_mistake)


def optimizer(mistake: str, wrong: bool) -> Plan:
    """ZeRO stage 1: replicas add gradients up and each keeps its part."""

    def program(single: bool) -> object:
        made = ProgramBuilder(
            "single" if single else "ranks", axes=() if single else (("dp", 2, 1),)
        )
        weight = made.parameter("mlp.up", (FFN, HIDDEN))
        body = made.body("forward")
        rows = BATCH if single else BATCH // 2
        (x,) = body.load_batch(("x", (rows, SEQUENCE, HIDDEN), "float32"))
        with body.module("mlp"):
            y = body.silu(body.linear(x, body.parameter(weight)))
        with body.module("loss"):
            total = body.sum(body.mul(y, y))
            body.loss(body.mul_constant(total, Fraction(1, BATCH * SEQUENCE * FFN)))
        backward = body.backward()
        if not single:
            half = FFN // 2
            offset = affine(0, {"dp": half})
            if wrong and mistake == "offset":
                offset = affine(half, {"dp": -half})
            part = Shard("mlp.up", (FFN, HIDDEN), (half, HIDDEN), (offset, ZERO))
            owned = made.shard(part)
            made.shards[weight] = Shard(
                "mlp.up", (FFN, HIDDEN), (FFN, HIDDEN), (ZERO, ZERO), updated_as=owned
            )
        made.schedule(body, backward, 1)
        if not single:
            made.reduce([Scatter(weight, along("dp"), 0, owned)])
        return made.build()

    return Plan(f"optimizer-{mistake}", program(True), (program(False),), 1, ("dp",))


add(
    Case(
        "optimizer-offset",
        "each replica updates the part whose gradient another one has",
        ("reduce_scatter", "gradient of mlp.up"),
        "mlp",
        ("wrong shard", "wrong offset"),
        lambda wrong: optimizer("offset", wrong),
    )
)

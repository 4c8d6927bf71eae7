"""Mistakes of mixtures of experts and of expert parallelism."""

from __future__ import annotations

from fractions import Fraction

from benchmarks.classic.cases import BATCH, HIDDEN, SEQUENCE, Side, case
from shardproof.engine.algebra.affine import affine
from shardproof.frontends.builder.builder import along

EXPERTS, WIDTH, CHOSEN = 4, 8, 2
EP = {"dp": 2}


def mixture(side: Side, mistake: str) -> None:
    """Router, dispatch, experts over the replicas, combination, with one mistake or none."""
    body = side.body
    wrong = mistake if side.wrong else ""
    x = side.load()
    with side.module("router"):
        weight = side.parameter("router.weight", EXPERTS, HIDDEN)
        scores = body.softmax(body.linear(x, weight))
        chosen = body.op("choose_experts", scores, n_groups=1, topk_groups=1, topk=CHOSEN)
        weights = body.mul(scores, chosen)
    with side.module("experts"):
        routed = body.op("dispatch_tokens", x, chosen)
        if wrong == "dims":
            routed = side.exchange(routed, 1, 0, "dp")
            routed = body.view(routed, EXPERTS // 2, BATCH, SEQUENCE, HIDDEN)
        elif mistake == "sequence":
            routed = side.exchange(routed, 0, 1, "dp")
        else:
            routed = side.exchange(routed, 0, 1, "dp")
        other = affine(EXPERTS // 2, {"dp": -EXPERTS // 2}) if wrong == "offset" else None
        up = side.parameter("experts.up", EXPERTS, WIDTH, HIDDEN, split={0: "dp"})
        down = side.parameter("experts.down", EXPERTS, HIDDEN, WIDTH, split={0: "dp"}, offset=other)
        side.reduced["experts.up"] = side.reduced["experts.down"] = ()
        if wrong == "reduced":
            side.reduced["experts.up"] = ("dp",)
        h = body.silu(body.op("expert_linear", routed, up))
        y = body.op("expert_linear", h, down)
        if wrong == "back":
            y = side.exchange(y, 2, 0, "dp")
            y = body.view(y, EXPERTS, BATCH // 2, SEQUENCE, HIDDEN)
        else:
            y = side.exchange(y, 1, 0, "dp")
        y = body.op(
            "combine_experts",
            y,
            body.mul_constant(weights, Fraction(3 if wrong == "weights" else 2)),
        )
    if wrong == "router":
        side.reduced["router.weight"] = ()
    factor = Fraction(1, BATCH * SEQUENCE * HIDDEN)
    side.squared(y, factor)


MISTAKES = {
    "offset": (
        "each rank holds the down projections of other experts",
        "expert_linear",
        "experts",
        "wrong shard",
    ),
    "dims": (
        "the all-to-all to the experts exchanges its dimensions",
        "view|all_to_all|expert_linear",
        "experts",
        "wrong dimension",
    ),
    "back": (
        "the all-to-all back is along the sequence",
        "view|all_to_all|combine_experts",
        "experts",
        "wrong dimension",
    ),
    "reduced": (
        "gradients of experts are added up over the ranks that hold others",
        "all_reduce|gradient of experts.up",
        "experts",
        "collective too many",
    ),
    "weights": (
        "the weights of experts are scaled by another factor",
        "mul",
        "experts",
        "wrong constant",
    ),
    "router": (
        "the gradient of the router is not added up",
        "gradient of router.weight",
        "router",
        "gradient that is not reduced",
    ),
}


def _mixture(mistake: str) -> None:
    what, operator, layer, cause = MISTAKES[mistake]

    def write(side: Side) -> None:
        mixture(side, mistake)

    write.__name__ = f"experts_{mistake}"
    case(what, mesh=EP, operator=operator, layer=layer, cause=cause)(write)


for _mistake in MISTAKES:
    _mixture(_mistake)


@case(
    "the load-balancing loss multiplies each rank's own means",
    mesh={"cp": 2},
    operator="mul|all_reduce",
    layer="balance",
    cause="missing reduction",
)
def balance_per_rank(side: Side) -> None:
    body = side.body
    x = side.load()
    if side.parallel:
        x = body.chunk(x, 1, along("cp"))
    with side.module("router"):
        weight = side.parameter("router.weight", EXPERTS, HIDDEN)
        side.reduced["router.weight"] = ("cp",)
        scores = body.softmax(body.linear(x, weight))
        chosen = body.op("choose_experts", scores, n_groups=1, topk_groups=1, topk=CHOSEN)
    with side.module("balance"):
        counts = body.sum(body.sum(chosen, 0), 0)
        shares = body.sum(body.sum(scores, 0), 0)
        if side.parallel and not side.wrong:
            counts = body.all_reduce(counts, along("cp"))
        total = body.sum(body.mul(counts, shares))
        total = side.reduce_from(total, "cp")
        body.loss(body.mul_constant(total, Fraction(1, BATCH * SEQUENCE)))


@case(
    "local experts begin at the wrong one",
    mesh={"tp": 2},
    operator="nnscaler_moe_gmm|all_reduce",
    layer="experts",
    cause="wrong offset",
)
def local_expert_start(side: Side) -> None:
    body = side.body
    (x,) = body.load_batch(("x", (side.rows, HIDDEN), "float32"))
    with side.module("router"):
        weight = side.parameter("router.weight", EXPERTS, HIDDEN)
        weights, indices = body.apply(
            "gate_fw",
            x,
            weight,
            score_func="softmax",
            n_groups=1,
            topk_groups=1,
            topk=CHOSEN,
            route_scale=Fraction(1),
        )
        weights = side.copy_to(weights, "tp")
    with side.module("experts"):
        start = side.start("tp", EXPERTS)
        if side.wrong:
            start = affine(EXPERTS // 2, {"tp": -EXPERTS // 2})
        held = [
            side.parameter(f"experts.{name}", EXPERTS, *shape, split={0: "tp"})
            for name, shape in (
                ("gate", (WIDTH, HIDDEN)),
                ("up", (WIDTH, HIDDEN)),
                ("down", (HIDDEN, WIDTH)),
            )
        ]
        y = body.op(
            "nnscaler_moe_gmm",
            side.copy_to(x, "tp"),
            indices,
            weights,
            *held,
            local_expert_start=start,
        )
        y = side.reduce_from(y, "tp")
    with side.module("loss"):
        total = body.sum(body.mul(y, y))
        body.loss(body.mul_constant(total, Fraction(1, BATCH * HIDDEN)))

"""Mistakes of a vocabulary that is divided over ranks: embeddings, logits, cross entropy."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from benchmarks.classic.cases import (
    BATCH,
    EPS,
    HIDDEN,
    SEQUENCE,
    VOCABULARY,
    Side,
    case,
)
from shardproof.engine.algebra.affine import ZERO, Affine, affine
from shardproof.frontends.builder.builder import along
from shardproof.frontends.builder.tape import Reverse

TP = {"tp": 2}
BOTH = {"dp": 2, "tp": 2}


def embed(side: Side, tokens: int, start: Affine, *, reduced: bool = True) -> int:
    """Rows of a table that is divided by rows."""
    with side.module("embed"):
        table = side.parameter("embed.table", VOCABULARY, HIDDEN, split={0: "tp"})
        x = side.body.embedding(tokens, table, start)
        return side.reduce_from(x, "tp") if reduced else x


def losses(side: Side, logits: int, targets: int, mistake: str, start: Affine) -> int:
    """Cross entropy of divided logits, with one mistake or none."""
    body, group, read = side.body, along("tp"), {}

    def compute() -> int:
        top = body.amax(logits, -1, keepdim=True)
        if mistake != "maximum":
            top = body.all_reduce(top, group, "max")
        shifted = body.sub(logits, top, name="shifted")
        read["e"] = body.exp(shifted)
        total = body.sum(read["e"], -1)
        read["total"] = total if mistake == "sum" else body.reduce_from(total, group)
        picked = body.op("pick", shifted, targets, start=start)
        if mistake != "picked":
            picked = body.reduce_from(picked, group)
        return body.sub(body.log(read["total"]), picked, name="cross_entropy")

    def pullback(reverse: Reverse, gradients: Sequence[int]) -> list[int]:
        inputs = [reverse.saved(v) for v in (read["e"], read["total"], targets)]
        return [reverse.tape.op("cross_entropy_grad", *inputs, gradients[0], start=start)]

    return body.function([logits], compute, pullback)


def model(side: Side, mistake: str) -> None:
    """Embedding, norm, divided logits and their loss."""
    body = side.body
    wrong = mistake if side.wrong else ""
    tokens, targets = side.tokens()
    first = side.start("tp", VOCABULARY)
    shift = {"embedding": first + 1, "first": ZERO}.get(wrong, first)
    x = embed(side, tokens, shift, reduced=wrong != "unreduced")
    with side.module("norm"):
        x = body.rms_norm(x, side.parameter("norm.weight", HIDDEN), EPS)
    with side.module("head"):
        inner = x if wrong == "copy" else side.copy_to(x, "tp")
        weight = side.parameter("head.weight", VOCABULARY, HIDDEN, split={0: "tp"})
        logits = body.linear(inner, weight)
    with side.module("loss"):
        if side.parallel:
            at = {"targets": first + 1, "unshifted": ZERO}.get(wrong, first)
            each = losses(side, logits, targets, wrong, at)
        else:
            each = body.cross_entropy(logits, targets)
        count = BATCH * SEQUENCE
        if wrong == "replicated":
            each = body.reduce_from(each, along("tp"))
        body.loss(body.mul_constant(body.sum(each), Fraction(1, count)))


MISTAKES = {
    "embedding": ("the embedding's first row is off by one", "embedding", "embed", "wrong offset"),
    "first": ("every rank takes its rows for the first ones", "embedding", "embed", "wrong offset"),
    "unreduced": (
        "embeddings are not added up over the ranks",
        "rms_norm",
        "norm",
        "missing reduction",
    ),
    "copy": (
        "no all-reduce of the gradient where the logits are entered",
        "backward of rms_norm|backward of linear",
        "norm|head",
        "missing reduction",
    ),
    "maximum": (
        "each rank subtracts the maximum of its own logits",
        "sub|exp|sum|all_reduce|log",
        "loss",
        "missing reduction",
    ),
    "sum": (
        "each rank divides by the sum of its own exponentials",
        "log",
        "loss",
        "missing reduction",
    ),
    "picked": (
        "the target's logit is not added up over the ranks",
        "sub|sum",
        "loss",
        "missing reduction",
    ),
    "targets": ("the targets' first id is off by one", "pick|all_reduce", "loss", "wrong offset"),
    "unshifted": (
        "every rank takes its logits for the first ones",
        "pick|all_reduce",
        "loss",
        "wrong offset",
    ),
    "replicated": (
        "losses that all ranks have are added up over them",
        "all_reduce|mul",
        "loss",
        "collective too many|wrong scale",
    ),
}


def _vocabulary(mistake: str) -> None:
    what, operator, layer, cause = MISTAKES[mistake]

    def write(side: Side) -> None:
        model(side, mistake)

    write.__name__ = f"vocabulary_{mistake}"
    case(what, mesh=TP, operator=operator, layer=layer, cause=cause)(write)


for _mistake in MISTAKES:
    _vocabulary(_mistake)


@case(
    "a rank's offset counts all ranks, not those of its group",
    mesh=BOTH,
    operator="embedding",
    layer="embed",
    cause="wrong offset",
)
def vocabulary_global_rank(side: Side) -> None:
    tokens, _ = side.tokens()
    first = side.start("tp", VOCABULARY)
    if side.wrong:
        first = affine(0, {"dp": VOCABULARY, "tp": VOCABULARY // 2})
    x = embed(side, tokens, first)
    with side.module("norm"):
        x = side.body.rms_norm(x, side.parameter("norm.weight", HIDDEN), EPS)
    side.squared(x)


@case(
    "label smoothing over the local vocabulary",
    mesh=TP,
    operator="mul|sum|sub|add",
    layer="loss",
    cause="wrong constant|missing reduction|wrong scale",
)
def label_smoothing_local(side: Side) -> None:
    body = side.body
    x = side.load()
    with side.module("head"):
        weight = side.parameter("head.weight", VOCABULARY, HIDDEN, split={0: "tp"})
        logits = body.linear(side.copy_to(x, "tp"), weight)
    with side.module("loss"):
        share = VOCABULARY // side.ranks("tp") if side.wrong else VOCABULARY
        smooth = body.mul_constant(body.sum(body.exp(logits), -1), Fraction(1, share))
        smooth = side.reduce_from(smooth, "tp")
        body.loss(body.mul_constant(body.sum(smooth), Fraction(1, BATCH * SEQUENCE)))

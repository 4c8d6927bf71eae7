"""Mistakes where the sequence is divided: positions, masks, keys of other ranks, all-to-alls."""

from __future__ import annotations

from fractions import Fraction

from benchmarks.classic.cases import BATCH, HEADS, HIDDEN, SEQUENCE, Side, case
from shardproof.frontends.builder.builder import along

CP = {"cp": 2}
SIZE = HIDDEN // HEADS


def attention(side: Side, mistake: str) -> None:
    """Attention whose keys and values are gathered over the ranks of a sequence."""
    body = side.body
    wrong = mistake if side.wrong else ""
    here = SEQUENCE // side.ranks("cp")
    x = side.load()
    whole = x
    if side.parallel:
        x = body.chunk(x, 1, along("cp"))

    def project(name: str, x: int) -> int:
        weight = side.parameter(f"attention.{name}", HIDDEN, HIDDEN)
        side.reduced[f"attention.{name}"] = ("cp",)
        return body.view(body.linear(x, weight), side.rows, body.shape(x)[1], HEADS, SIZE)

    with side.module("attention"):
        q, k, v = (project(name, x) for name in "qkv")
        table = side.parameter("frequencies", SEQUENCE, SIZE // 2, 2, trainable=False)
        if side.parallel:
            if wrong == "rotary":
                table = body.op("slice", table, dim=0, start=0, size=here)
            else:
                table = body.chunk(table, 0, along("cp"))
        q, k = body.rotary(q, k, table)
        if wrong == "keys":
            v = side.gather(v, 1, "cp")
            k = body.op("concat", k, k, dim=1)
        elif wrong == "batch":
            k = body.view(side.gather(k, 0, "cp"), side.rows, SEQUENCE, HEADS, SIZE)
            v = side.gather(v, 1, "cp")
        else:
            k, v = side.gather(k, 1, "cp"), side.gather(v, 1, "cp")
        mask = body.op("create_mask", whole, whole, name="mask")
        if side.parallel:
            if wrong == "mask":
                mask = body.op("slice", mask, dim=2, start=0, size=here)
            else:
                mask = body.chunk(mask, 2, along("cp"))
        keys = body.transpose(body.transpose(k, 1, 2), 2, 3)
        scores = body.matmul(body.transpose(q, 1, 2), keys)
        weights = body.softmax(body.op("apply_mask", scores, mask))
        mixed = body.transpose(body.matmul(weights, body.transpose(v, 1, 2)), 1, 2)
        y = body.view(mixed, side.rows, here, HIDDEN)
        y = body.linear(y, side.parameter("attention.out", HIDDEN, HIDDEN))
        side.reduced["attention.out"] = ("cp",)
    with side.module("loss"):
        total = side.reduce_from(body.sum(body.mul(y, y)), "cp")
        body.loss(body.mul_constant(total, Fraction(1, BATCH * SEQUENCE * HIDDEN)))


MISTAKES = {
    "rotary": (
        "every rank rotates by the first positions",
        "slice|apply_rotary_emb",
        "attention",
        "wrong offset|wrong collective|wrong slice",
    ),
    "mask": (
        "every rank masks as if its queries were the first",
        "slice|apply_mask",
        "attention",
        "wrong offset|wrong collective|wrong slice",
    ),
    "keys": (
        "each rank repeats its own keys",
        "concat|transpose|matmul",
        "attention",
        "wrong tensor|missing collective",
    ),
    "batch": (
        "keys are gathered along the batch",
        "view|transpose|matmul|all_gather",
        "attention",
        "wrong dimension",
    ),
}


def _attention(mistake: str) -> None:
    what, operator, layer, cause = MISTAKES[mistake]

    def write(side: Side) -> None:
        attention(side, mistake)

    write.__name__ = f"context_{mistake}"
    case(what, mesh=CP, operator=operator, layer=layer, cause=cause)(write)


for _mistake in MISTAKES:
    _attention(_mistake)


@case(
    "learned positions are those of the first rank",
    mesh=CP,
    operator="slice|add",
    layer="positions",
    cause="wrong offset|wrong collective|wrong slice",
)
def context_positions(side: Side) -> None:
    body = side.body
    here = SEQUENCE // side.ranks("cp")
    x = side.load()
    with side.module("positions"):
        table = side.parameter("positions.table", SEQUENCE, HIDDEN)
        side.reduced["positions.table"] = ("cp",) if side.wrong else ()
        if side.parallel:
            x = body.chunk(x, 1, along("cp"))
            if side.wrong:
                table = body.op("slice", table, dim=0, start=0, size=here)
            else:
                table = body.chunk(table, 0, along("cp"))
        x = body.add(x, table)
    with side.module("loss"):
        total = side.reduce_from(body.sum(body.mul(x, body.mul(x, x))), "cp")
        body.loss(body.mul_constant(total, Fraction(1, BATCH * SEQUENCE * HIDDEN)))


@case(
    "the all-to-all back to the sequence exchanges its dimensions",
    mesh=CP,
    operator="all_to_all|view|linear",
    layer="attention",
    cause="wrong dimension",
)
def ulysses_back(side: Side) -> None:
    body = side.body
    here = SEQUENCE // side.ranks("cp")
    x = side.load()
    if side.parallel:
        x = body.chunk(x, 1, along("cp"))

    def project(name: str) -> int:
        weight = side.parameter(f"attention.{name}", HIDDEN, HIDDEN)
        side.reduced[f"attention.{name}"] = ("cp",)
        y = body.view(body.linear(x, weight), side.rows, here, HEADS, SIZE)
        return side.exchange(y, 2, 1, "cp")

    with side.module("attention"):
        q, k, v = (body.transpose(project(name), 1, 2) for name in "qkv")
        scores = body.matmul(q, body.transpose(k, 2, 3))
        weights = body.softmax(scores)
        mixed = body.transpose(body.matmul(weights, v), 1, 2)
        if side.wrong:
            mixed = side.exchange(mixed, 0, 2, "cp")
            y = body.view(mixed, side.rows, here, HIDDEN)
        else:
            y = body.view(side.exchange(mixed, 1, 2, "cp"), side.rows, here, HIDDEN)
    with side.module("out"):
        y = body.linear(y, side.parameter("out.weight", HIDDEN, HIDDEN))
        side.reduced["out.weight"] = ("cp",)
    with side.module("loss"):
        total = side.reduce_from(body.sum(body.mul(body.mul(y, y), x)), "cp")
        body.loss(body.mul_constant(total, Fraction(1, BATCH * SEQUENCE * HIDDEN)))

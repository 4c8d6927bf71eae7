"""Partial sums by another route, the gradient of what is repeated, and positions of one of many."""

from __future__ import annotations

from fractions import Fraction

import pytest

from shardproof.engine.algebra.affine import ZERO, affine
from shardproof.engine.plan.ir import Group, Plan, Program, Shard
from shardproof.frontends.builder.builder import BodyBuilder, ProgramBuilder, along
from tests.partition.formulas import Formula, Given, Weight, not_proved, pair, proved
from tests.partition.truth import truth

ROWS, WIDTH, HALF = 8, 6, 8
BATCH = [(ROWS, WIDTH), (ROWS, HALF)]
WEIGHTS = {"w": Weight((HALF, WIDTH), over=("dp",))}
DEEP = {**WEIGHTS, "v": Weight((HALF, HALF), over=("dp",))}


def hidden(b: BodyBuilder, given: Given) -> int:
    return b.silu(b.linear(given.batch[0], given["w"]))


def whole(b: BodyBuilder, given: Given) -> int:
    return b.sum(b.mul(given.batch[1], hidden(b, given)))


def twice(b: BodyBuilder, given: Given) -> int:
    return b.sum(b.sum(b.mul(given.batch[1], hidden(b, given)), 1))


def columns(b: BodyBuilder, given: Given) -> int:
    y = b.mul(given.batch[1], hidden(b, given))
    return b.sum(b.op("slice", b.sum(y, 1), dim=0, start=1, size=b.shape(y)[0] - 1))


def mean(b: BodyBuilder, given: Given) -> int:
    return b.op("mean", hidden(b, given))


def local_means(right: bool) -> Formula:
    """The mean of the rows' means, divided by the number of replicas."""

    def formula(b: BodyBuilder, given: Given) -> int:
        share = Fraction(1, 2) if right else Fraction(1)
        return b.mul_constant(b.op("mean", b.op("mean", hidden(b, given), dim=1)), share)

    return formula


def deep(b: BodyBuilder, given: Given) -> int:
    y = b.linear(given.batch[0], given["w"])
    return b.linear(b.linear(y, given["v"]), given["v"])


def weighted(b: BodyBuilder, given: Given) -> int:
    """Three times y t, squared."""
    z = b.mul_constant(b.mul(deep(b, given), given.batch[1]), Fraction(3))
    return b.sum(b.mul(z, z))


def in_three(right: bool) -> Formula:
    """The same as y t + (y - t) t + (y + t) t: one product is multiplied out from y t, the others
    from y, and y is higher above the inputs than anything is multiplied out."""

    def formula(b: BodyBuilder, given: Given) -> int:
        y, t = deep(b, given), given.batch[1]
        less = b.mul(b.op("sub", y, t) if right else b.add(y, t), t)
        z = b.add(b.add(b.mul(y, t), less), b.mul(b.add(y, t), t))
        return b.sum(b.mul(z, z))

    return formula


def repeated(times: int, dim: int) -> Formula:
    def formula(b: BodyBuilder, given: Given) -> int:
        z = b.repeat_interleave(hidden(b, given), times, dim)
        return b.sum(b.mul(z, z)) if times == 2 else b.sum(b.silu(z))

    return formula


@pytest.mark.parametrize(
    ("single", "right", "wrong"),
    [
        (whole, twice, columns),
        (twice, whole, columns),
        (mean, local_means(True), local_means(False)),
        (weighted, in_three(True), in_three(False)),
        (repeated(2, 0), repeated(2, 0), repeated(3, 0)),
        (repeated(2, 1), repeated(2, 1), repeated(3, 1)),
    ],
    ids=["sum of sums", "sum", "local means", "in three", "repeated rows", "repeated columns"],
)
def test_another_route(single: Formula, right: Formula, wrong: Formula) -> None:
    def made(formula: Formula) -> Plan:
        weights = DEEP if single is weighted else WEIGHTS
        return pair(single, formula, weights, BATCH, axes={"dp": 2}, replicas=("dp",))

    proved(made(right))
    not_proved(made(wrong))


def heads(query: int, key: int, size: int, ranks: int, *, shared: bool = True) -> Plan:
    """Grouped-query attention on ranks that each hold some query heads, and the key and value heads
    that these read; with more ranks than key heads several ranks hold one.  Every rank is a program
    of its own.  ``shared``: gradients of a head that several ranks hold are added up."""
    sequence, width = 4, 6

    def program(rank: int | None) -> Program:
        made = ProgramBuilder("single" if rank is None else f"rank {rank}", base=rank or 0)
        here, count = (0, 1) if rank is None else (rank, ranks)
        own, kept = query // count, max(1, key // count)
        first = here * key // count

        def held(name: str, full: tuple[int, int], dim: int, start: int, some: int) -> int:
            shape, offset = list(full), [ZERO, ZERO]
            shape[dim], offset[dim] = some, affine(start)
            return made.shard(Shard(name, full, tuple(shape), tuple(offset)))

        q = held("q", (query * size, width), 0, here * own * size, own * size)
        k, v = (held(n, (key * size, width), 0, first * size, kept * size) for n in "kv")
        o = held("o", (width, query * size), 1, here * own * size, own * size)
        b = made.body("forward")
        shape = (1, sequence, width)
        x, t = b.load_batch(("x", shape, "float32"), ("t", shape, "float32"))
        group = Group(ranks=tuple(range(ranks)))
        inner = x if rank is None else b.copy_to(x, group)
        queries, keys, values = (
            b.view(b.linear(inner, b.parameter(w)), 1, sequence, n, size)
            for w, n in ((q, own), (k, kept), (v, kept))
        )
        keys, values = (b.repeat_interleave(z, own // kept, 2) for z in (keys, values))
        queries, keys, values = (b.transpose(z, 1, 2) for z in (queries, keys, values))
        scores = b.softmax(b.matmul(queries, b.transpose(keys, 2, 3)))
        mixed = b.view(b.transpose(b.matmul(scores, values), 1, 2), 1, sequence, own * size)
        y = b.linear(mixed, b.parameter(o))
        y = y if rank is None else b.reduce_from(y, group)
        b.loss(b.sum(b.mul(t, b.silu(y))))
        made.schedule(b, b.backward(), 1)
        if rank is not None and ranks > key and shared:
            same = tuple(i for i in range(ranks) if i * key // ranks == first)
            made.reduce([(k, Group(ranks=same)), (v, Group(ranks=same))])
        return made.build()

    return Plan("heads", program(None), tuple(program(rank) for rank in range(ranks)), 1)


@pytest.mark.parametrize(
    ("query", "key", "ranks"),
    [(4, 4, 4), (8, 2, 4), *(pytest.param(4, n, 4, marks=pytest.mark.slow) for n in (1, 2))],
)
def test_heads_on_ranks(query: int, key: int, ranks: int) -> None:
    plan = heads(query, key, 2, ranks)
    assert truth(plan).wrong == ()
    proved(plan)
    if ranks > key:
        not_proved(heads(query, key, 2, ranks, shared=False))


def test_one_head_on_every_rank_of_a_family() -> None:
    """Ranks that run one program: the position of a head is the coordinate."""
    count, size, sequence = 4, 2, 4

    def formula(b: BodyBuilder, given: Given) -> int:
        x, t = given.batch
        own = count // given.extents.get("tp", 1)
        inner = b.copy_to(x, along("tp")) if given.extents else x
        q, k, v = (
            b.transpose(b.view(b.linear(inner, given[n]), sequence, own, size), 0, 1) for n in "qkv"
        )
        mixed = b.matmul(b.softmax(b.matmul(q, b.transpose(k, 1, 2))), v)
        y = b.linear(b.view(b.transpose(mixed, 0, 1), sequence, own * size), given["o"])
        y = b.reduce_from(y, along("tp")) if given.extents else y
        return b.sum(b.mul(t, b.silu(y)))

    weights = {n: Weight((count * size, WIDTH), {0: "tp"}) for n in "qkv"}
    weights["o"] = Weight((HALF, count * size), {1: "tp"})
    shapes = [(sequence, WIDTH), (sequence, HALF)]
    plan = pair(formula, formula, weights, shapes, axes={"tp": count})
    assert truth(plan).wrong == ()
    proved(plan)

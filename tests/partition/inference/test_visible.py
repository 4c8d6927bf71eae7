"""Blocks under a causal mask: blocks of which it hides nothing, sums that it ends, and masks moved
along their diagonal."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import pytest

from shardproof.engine.algebra.affine import ZERO
from shardproof.engine.claims.claim import Claim
from shardproof.engine.lineage.blocks import Block
from shardproof.engine.lineage.expressions import (
    Causal,
    Combine,
    Einsum,
    Input,
    Operand,
    Order,
    Restrict,
    Unary,
)
from shardproof.engine.lineage.lineage import (
    ABSOLUTE,
    Addend,
    Lineage,
    PartialRange,
    StridedInterval,
    View,
)
from shardproof.engine.lineage.nodes import NodeTable, Reduction
from shardproof.engine.obligations.obligation import build
from shardproof.engine.plan.ir import Plan
from shardproof.frontends.builder.builder import BodyBuilder
from shardproof.partition.inference.masked_sums import vanished
from shardproof.partition.inference.masks import rows_behind
from shardproof.solvers import Portfolio, Query
from tests.partition.formulas import Formula, Given, Weight, not_proved, pair, proved
from tests.partition.truth import truth

SIZE, BLOCK = 64, 16
ONE = Fraction(1)


@pytest.fixture(scope="module")
def solver() -> Iterator[Portfolio]:
    with Portfolio("z3", timeout=30) as portfolio:
        yield portfolio


class Masked:
    """Scores, a causal mask, their sum, its exponentials, and the sums of these over keys and over
    queries."""

    def __init__(self) -> None:
        self.nodes = NodeTable()
        whole = (SIZE, SIZE)
        self.scores = self.nodes.define(Input("scores"), whole)
        self.mask = self.nodes.define(Causal(), (ABSOLUTE, ABSOLUTE))
        atoms = ((0, 1, SIZE, 0), (1, 1, SIZE, 1))
        both = (Operand(self.scores, atoms), Operand(self.mask, atoms))
        self.total = self.nodes.define(Combine((ONE, ONE), both, (0, 1)), whole)
        self.weights = self.nodes.define(Unary("exp", ONE, self.total), whole)
        read = (Operand(self.weights, atoms),)
        self.over = {1 - kept: self.nodes.define(Einsum(read, (kept,)), (SIZE,)) for kept in (0, 1)}

    def block(self, node: int, *starts: int, size: int = BLOCK) -> Lineage:
        """A block of a node."""
        extent = ABSOLUTE if node == self.mask else SIZE
        dims = tuple(
            (StridedInterval(axis, 1, extent, ZERO + start, size),)
            for axis, start in enumerate(starts)
        )
        return Lineage((size,) * len(starts), (Addend(ONE, node, View(dims)),))

    def holds(
        self, solver: Portfolio, name: str, given: list[Lineage], out: Lineage, **attributes: object
    ) -> bool:
        """Whether an operator gives what is claimed."""
        claim = Claim("op", name, attributes, False, (), 1, tuple(given), (out,), {})
        goals = build(self.nodes, claim, widened=frozenset(range(len(self.nodes)))).goals
        return solver.solve(Query.of("", goals)).verdict == "unsat"


@pytest.mark.parametrize(
    ("query", "key", "right"),
    [(16, 0, True), (15, 0, True), (48, 32, True), (14, 0, False), (0, 0, False), (0, 16, False)],
)
def test_a_mask_hides_nothing_of_earlier_keys(
    solver: Portfolio, query: int, key: int, right: bool
) -> None:
    m = Masked()
    given, out = m.block(m.scores, query, key), m.block(m.weights, query, key)
    assert m.holds(solver, "exp", [given], out) == right


@pytest.mark.parametrize(
    ("scores", "mask", "out", "right"),
    [
        ((16, 16), (0, 0), (16, 16), True),
        ((48, 48), (16, 16), (48, 48), True),
        ((16, 16), (0, 1), (16, 16), False),
        ((16, 16), (1, 0), (16, 16), False),
        ((16, 0), (0, 0), (16, 0), False),
        ((16, 16), (0, 0), (32, 32), False),
    ],
)
def test_a_mask_is_the_same_along_its_diagonal(
    solver: Portfolio,
    scores: tuple[int, int],
    mask: tuple[int, int],
    out: tuple[int, int],
    right: bool,
) -> None:
    m = Masked()
    given = [m.block(m.scores, *scores), m.block(m.mask, *mask)]
    assert m.holds(solver, "add", given, m.block(m.total, *out)) == right


@pytest.mark.parametrize(
    ("over", "query", "key", "right"),
    [
        (1, 0, 0, True),  # all keys that the first queries see
        (1, 1, 0, False),  # the last query sees one more
        (1, 16, 16, False),  # earlier keys are left out
        (0, 48, 48, True),  # all queries that see the last keys
        (0, 48, 47, False),  # the query at 47 sees the first of these keys
        (0, 0, 0, False),
    ],
)
def test_a_sum_ends_where_all_else_is_hidden(
    solver: Portfolio, over: int, query: int, key: int, right: bool
) -> None:
    m = Masked()
    given = m.block(m.weights, query, key)
    out = m.block(m.over[over], key if over == 0 else query)
    assert m.holds(solver, "sum", [given], out, dim=(over,), keepdim=False) == right


@pytest.mark.parametrize(
    ("over", "query", "key", "right"),
    [
        (0, 0, 16, True),  # queries before these keys
        (0, 1, 16, False),  # the last query sees the first of them
        (1, 16, 32, True),  # keys behind these queries
        (1, 17, 32, False),
        (0, 32, 16, False),
    ],
)
def test_a_sum_of_what_is_hidden_is_zero(
    solver: Portfolio, over: int, query: int, key: int, right: bool
) -> None:
    m = Masked()
    given, nothing = m.block(m.weights, query, key), Lineage((BLOCK,), ())
    assert m.holds(solver, "sum", [given], nothing, dim=(over,), keepdim=False) == right
    token = m.nodes.reduction(Reduction("sum", m.over[over], over))
    part = PartialRange(token, ZERO + (query if over == 0 else key), BLOCK, SIZE)
    (whole,) = m.block(m.over[over], key if over == 0 else query).addends
    assert (vanished(m.nodes, whole._replace(partials=(part,))) is not None) == right


ROWS, LENGTH, WIDTH = 2, 8, 4


def masked(b: BodyBuilder, scores: int, x: int) -> int:
    """Scores of ``x`` with a causal mask."""
    shape = b.shape(scores)
    mask = b.op("create_mask", b.sum(x, 2), x)
    return b.view(b.op("apply_mask", b.view(scores, 1, *shape), mask), *shape)


def attention(b: BodyBuilder, given: Given) -> int:
    """Causal attention."""
    x, t = given.batch
    q, k, v = (b.linear(x, given[n]) for n in "qkv")
    scores = masked(b, b.matmul(q, b.transpose(k, 1, 2)), x)
    return b.sum(b.mul(t, b.silu(b.matmul(b.softmax(scores), v))))


def in_blocks(mistake: str = "") -> Formula:
    """The same by exponentials of two blocks of queries and keys."""

    def formula(b: BodyBuilder, given: Given) -> int:
        x, t = given.batch
        half = LENGTH // 2

        def part(y: int, at: int) -> int:
            return b.op("slice", y, dim=1, start=at * half, size=half)

        def rows(name: str, at: int) -> int:
            return b.linear(part(x, at), given[name])

        losses = []
        for query in (0, 1):
            outs, norms = [], []
            for key in (0, 1) if mistake == "later keys" else range(query + 1):
                scores = b.matmul(rows("q", query), b.transpose(rows("k", key), 1, 2))
                if key == query or mistake == "earlier keys masked":
                    scores = masked(b, scores, part(x, query))
                weights = b.exp(scores)
                outs.append(b.matmul(weights, rows("v", key)))
                norms.append(b.sum(weights, 2, keepdim=True))
            if mistake == "norm of the first":
                norms = norms[:1]
            out = b.op("div", _sum(b, outs), _sum(b, norms))
            losses.append(b.sum(b.mul(part(t, query), b.silu(out))))
        return _sum(b, losses)

    return formula


def _sum(b: BodyBuilder, parts: list[int]) -> int:
    total = parts[0]
    for part in parts[1:]:
        total = b.add(total, part)
    return total


def test_attention_in_blocks() -> None:
    weights = {n: Weight((WIDTH, WIDTH)) for n in "qkv"}
    batch = [(ROWS, LENGTH, WIDTH), (ROWS, LENGTH, WIDTH)]

    def made(mistake: str = "") -> Plan:
        return pair(attention, in_blocks(mistake), weights, batch, axes={"tp": 1})

    assert truth(made()).wrong == ()
    proved(made())
    for mistake in ("later keys", "earlier keys masked", "norm of the first"):
        assert truth(made(mistake)).wrong == ()
        not_proved(made(mistake))


def test_a_block_of_another_value_is_no_order_of_positions() -> None:
    nodes = NodeTable()
    order = nodes.define(Order(), (ABSOLUTE, ABSOLUTE))
    other = nodes.define(Input("x"), (4, 4, 4))
    blocks = [nodes.define(Restrict(order, (Block(1, 1, 2, 0),)), (ABSOLUTE, ABSOLUTE))]
    blocks.append(nodes.define(Restrict(other, (Block(2, 1, 2, 0),)), (4, 4, 4)))
    assert [rows_behind(nodes, block) for block in (order, *blocks)] == [0, -1, None]

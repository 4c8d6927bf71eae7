"""Lineages and definitions of nodes as text."""

from __future__ import annotations

from fractions import Fraction

import pytest

from shardproof.engine.algebra.affine import ZERO, affine
from shardproof.engine.algebra.selection import Selection
from shardproof.engine.lineage.blocks import Block
from shardproof.engine.lineage.expressions import (
    KINDS,
    AcrossRanks,
    Amax,
    AtCoordinate,
    Causal,
    Combine,
    Concatenated,
    Constant,
    Einsum,
    Expression,
    Input,
    Maximum,
    Most,
    One,
    Onehot,
    Opaque,
    Operand,
    Order,
    Restrict,
    Select,
    Unary,
)
from shardproof.engine.lineage.lineage import (
    ABSOLUTE,
    BROADCAST,
    Addend,
    Lineage,
    PartialRange,
    Place,
    StridedInterval,
    View,
)
from shardproof.engine.lineage.nodes import Node, Reduction

MATRIX = Operand(3, ((0, 1, 4, 0), (1, 1, 8, 1)))
VECTOR = Operand(4, ((0, 1, 8, 1),))
DIGIT = Operand(5, ((0, 4, 2, 0),), ((1, 1, 8, affine(1, {"tp": 2})),))
VIEW = Addend(Fraction(1), 6, View(((StridedInterval(0, 1, 4, ZERO, 4),),)))

TEXTS: dict[str, Expression] = {
    "input 'w'": Input("w"),
    "1": One(),
    "constant rope": Constant("rope"),
    "causal mask": Causal(),
    "causal order": Order(),
    "einsum(n3[a:4, b:8], n4[b:8] -> a)": Einsum((MATRIX, VECTOR), (0,)),
    "sum(n3[a:4, b:8], -1/2*n5[a0/4=a:2, a1=<2*tp + 1> of 8] -> a b)": Combine(
        (Fraction(1), Fraction(-1, 2)), (MATRIX, DIGIT), (0, 1)
    ),
    "exp(-1*n7)": Unary("exp", Fraction(-1), 7),
    "max(-1*n4[b:8] -> 1)": Amax(-1, VECTOR, ()),
    "n3 where a1[0 +2 of 8], a1[0 +1 of *]": Restrict(
        3, (Block(1, 0, 2, 8), Block(1, 0, 1, ABSOLUTE))
    ),
    "onehot(2*n7)": Onehot(Fraction(2), 7),
    "select(n3[a:4, b:8] -> a along b, " + f"{Selection(2)})": Select(
        Fraction(1), MATRIX, 1, Selection(2), (0,)
    ),
    "stack(n6[a0[4]], n6[a0[4]] along 0)": Concatenated(0, (VIEW, VIEW)),
    "piece(n6[a0[4]] + n6[a0[4]])": Opaque((VIEW, VIEW)),
    "most(-2*n3[a:4, b:8], n4[b:8] -> a b)": Most(
        (Fraction(-2), Fraction(1)), (MATRIX, VECTOR), (0, 1)
    ),
    "maximum(n6[a0[4]], n6[a0[4]])": Maximum((VIEW, VIEW)),
    "sum of n7 over tp=4": AcrossRanks("tp", 4, "sum", 7),
    "n7 at tp=1": AtCoordinate("tp", 1, 7),
}


@pytest.mark.parametrize(("text", "definition"), TEXTS.items())
def test_a_definition_reads_as_it_should(text: str, definition: Expression) -> None:
    assert str(definition) == text


def test_every_kind_of_definition_has_a_text_of_its_own() -> None:
    assert {type(definition) for definition in TEXTS.values()} == set(KINDS.values())
    assert len({str(definition) for definition in TEXTS.values()}) == len(TEXTS)


def test_a_lineage_reads_as_a_sum_of_views() -> None:
    rows = (StridedInterval(0, 1, 4, affine(0, {"tp": 2}), 2),)
    columns = (StridedInterval(1, 4, 2, ZERO, 2), StridedInterval(BROADCAST, 1, 3, ZERO, 3))
    view = View((rows, columns, ()), (StridedInterval(2, 1, ABSOLUTE, affine(5), 1),))
    first = Addend(Fraction(1, 2), 3, view, (PartialRange(0, ZERO, 4, 8),), (Place(1, 0, 6, 12),))
    assert str(Lineage((2, 12, 1), (first, VIEW))) == (
        "[2, 12, 1] = 1/2*n3[a0[<2*tp> +2 of 4], a1/4[2] x _[3], 1] at a2[5 +1 of *]"
        " part #0[0 +4 of 8] in 1[0 +6 of 12] + n6[a0[4]]"
    )
    assert str(Lineage((4,), ())) == "[4] = 0"


def test_a_node_and_what_is_partial_of_it() -> None:
    node = Node(Unary("exp", Fraction(1), 3), (4, ABSOLUTE), frozenset({"tp", "dp"}))
    assert str(node) == "[4, *] by dp tp = exp(n3)"
    assert str(Reduction("sum", 3, 1)) == "sum over b in n3"
    assert str(Reduction("via", 4, 0, 2)) == "#2 in operand 0 of n4"


def test_another_definition_reads_otherwise() -> None:
    """Definitions that differ in a node, a factor or a label differ as text, and are not equal."""
    for one, other in (
        (Unary("exp", Fraction(1), 3), Unary("exp", Fraction(1), 4)),
        (Input("w"), Constant("w")),
        (Einsum((MATRIX,), (0,)), Einsum((MATRIX,), (1,))),
        (Onehot(Fraction(1), 3), Onehot(Fraction(2), 3)),
    ):
        assert one != other
        assert str(one) != str(other)

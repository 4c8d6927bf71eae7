"""Which positions a represented dimension has: choices and masks tell by them what they read."""

from __future__ import annotations

import numpy as np
import pytest

from shardproof.engine.algebra.terms import Term, TermTable
from shardproof.engine.interpreters import Weighted
from shardproof.engine.interpreters.dims import Dim, Extent, Joined
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.obligations.small_terms import SmallInterpreter
from shardproof.engine.ops.primitives import Selection
from shardproof.engine.small_model.representatives import Representatives
from shardproof.solvers.smtlib import emit

TABLE = TermTable()
SMALL = SmallInterpreter(TABLE, Representatives(NodeTable(), [], [], {}, ()))
SCORES = [TABLE.symbol(name) for name in "abcd"]


def chosen(dim: Dim) -> Term:
    """The first choice of a row of the scores that represent it."""
    row = np.array([SCORES[: sum(1 for factor in dim for _ in factor)]], dtype=object)
    entry = SMALL.select(Weighted(row, (((1,),), dim)), Selection(topk=1)).data[0, 0]
    assert isinstance(entry, Term)
    return entry


def test_a_choice_is_named_by_how_its_row_is_represented() -> None:
    rows: list[Dim] = [((1, 1, 2),), ((1, 2, 1),), ((1, 1, 1, 1),)]
    names = [str(chosen(dim).name) for dim in rows]
    place = f"{Selection(topk=1)}:0"
    assert names == [f"select:4 at 0 1 2*2:{place}", f"select:4 at 0 1*2 3:{place}",
                     f"select:4:{place}"]  # fmt: skip
    text = emit([(chosen(dim), chosen(dim)) for dim in rows], [], "linear")
    assert text.count("declare-fun |select:4") == 3


@pytest.mark.parametrize(
    ("dim", "places"),
    [
        (((1, 3), (1, 2)), (0, 1, 3, 4)),
        ((Joined([((2,),), ((1, 3), (1, 2))]),), (0, 2, 3, 5, 6)),
        ((Joined([((2,),), ((1, 1),)]), (1, 2)), (0, 1, 6, 7, 9, 10)),
    ],
)
def test_positions_of_parts_side_by_side_are_those_of_each_part(
    dim: Dim, places: tuple[int, ...]
) -> None:
    """Counted by their weights, what stands for positions of two digits lay behind where it is."""
    assert SMALL.absolute(5, Extent(dim))[1] == tuple(5 + place for place in places)

"""Positions of indexed axes that stand for as many true ones."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from shardproof.engine.algebra.affine import ZERO
from shardproof.engine.errors import Unsupported
from shardproof.engine.interpreters import FloatInterpreter, Weighted
from shardproof.engine.interpreters.dims import Extent, exact
from shardproof.engine.schedule.unroll import unroll
from shardproof.engine.simulation.simulate import simulate, simulate_again
from shardproof.engine.simulation.standing import StandingInterpreter
from shardproof.engine.specification.gradients import recorded
from tests.faults.plans import attrs, edit_op, llama

#: Eight positions, of which two are kept, and four rows of two such factors.
EIGHT, SPLIT = ((4, 4),), ((2, 2), (1, 1))


def test_a_lookup_among_classes_that_stand_for_others_is_the_row() -> None:
    reader = StandingInterpreter()
    chosen = reader.onehot(exact(np.array([4.0, 0.0, 3.0])), ZERO, Extent(EIGHT))
    assert chosen.data.tolist() == [[0, 0.25], [0.25, 0], [0, 0]]
    table = Weighted(np.array([[1.0, 2.0], [3.0, 4.0]]), (EIGHT, ((1, 1),)))
    assert reader.einsum("iv,vd->id", chosen, table).data.tolist() == [[3, 4], [1, 2], [0, 0]]
    with pytest.raises(Unsupported, match="not given"):
        FloatInterpreter().onehot(exact(np.zeros(1)), ZERO, Extent(EIGHT))


def test_positions_come_one_after_the_other() -> None:
    reader = StandingInterpreter()
    assert reader.order(Extent(EIGHT), Extent(EIGHT)).data.tolist() == [[1, 0], [1, 1]]
    with pytest.raises(Unsupported, match="positions of"):
        reader.causal(Extent(SPLIT), Extent(SPLIT))


@pytest.mark.parametrize("right", [True, False])
def test_a_plan_whose_positions_stand_for_others(right: bool) -> None:
    made = llama(tp=2, sequence=16)
    if not right:
        made = edit_op(made, "rms_norm", attrs(eps=Fraction(2)), nth=1)
    single = recorded(made, unroll([made.single], 1))
    parallel = unroll(made.programs, 1)
    fewer = simulate(made, single, parallel)
    assert fewer.fewer
    standing = simulate_again(fewer, made, single, parallel, standing=True)
    assert (standing.failure, standing.fewer) == ("", ())
    assert fewer.differs == standing.differs != right

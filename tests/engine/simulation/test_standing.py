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
from shardproof.engine.simulation.small_shapes import small_shapes
from shardproof.engine.simulation.standing import StandingInterpreter
from shardproof.engine.specification.gradients import recorded
from tests.faults.plans import attrs, edit_op, llama

#: Eight positions, of which two are kept, or of each half the first by itself, and four rows of two
#: such factors.
EIGHT, CLASSES, SPLIT = ((4, 4),), ((1, 3, 1, 3),), ((2, 2), (1, 1))


def test_a_class_that_ids_choose_stands_for_itself() -> None:
    reader = StandingInterpreter()
    chosen = reader.onehot(exact(np.array([4.0, 0.0, 8.0])), ZERO, Extent(CLASSES))
    assert chosen.data.tolist() == [[0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
    table = Weighted(np.arange(8.0).reshape(4, 2), (CLASSES, ((1, 1),)))
    assert reader.einsum("iv,vd->id", chosen, table).data.tolist() == [[4, 5], [0, 1], [0, 0]]
    assert reader.einsum("iv->i", reader.unary("exp", chosen)).data[0] == pytest.approx(7 + np.e)
    with pytest.raises(Unsupported, match="stand for others"):
        reader.onehot(exact(np.array([1.0])), ZERO, Extent(CLASSES))
    with pytest.raises(Unsupported, match="not given"):
        FloatInterpreter().onehot(exact(np.zeros(1)), ZERO, Extent(EIGHT))


def test_positions_come_one_after_the_other() -> None:
    reader = StandingInterpreter()
    assert reader.order(Extent(EIGHT), Extent(EIGHT)).data.tolist() == [[1, 0], [1, 1]]
    with pytest.raises(Unsupported, match="positions of"):
        reader.causal(Extent(SPLIT), Extent(SPLIT))


@pytest.mark.parametrize("filled", [True, False])
def test_positions_of_a_mask_that_one_number_fills_keep_their_sizes(filled: bool) -> None:
    """Their sum under the mask, ``tril(ones)``, is one over every true position."""
    made = llama(tp=2, sequence=16)
    sizes = small_shapes(made, unroll([made.single], 1), unroll(made.programs, 1))
    axes = sizes.recorder.axes
    (masked,) = (axis for axis in axes.unsplit() if axes[axis].ordered)
    if filled:
        axes.fill(axes.factor(masked, 16))
    assert (sizes.divisor(masked) == 1) == filled


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

"""Rows that have representatives of their own are cut anywhere, and put together in one way."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.errors import Unsupported
from shardproof.engine.interpreters import Dim, Extent, FloatInterpreter
from shardproof.engine.interpreters.dims import normal
from tests.engine.interpreters.writing_out import assert_same, dimensions, expand, seeds, tensor

FLOAT = FloatInterpreter()


@given(dimensions, st.data(), seeds)
def test_any_positions_of_rows_that_are_represented_one_by_one(
    b: Dim, data: st.DataObject, seed: int
) -> None:
    """Rows of which each has representatives of its own are cut anywhere within them, and what is
    put together again is represented in one way."""
    rows = normal(((1,) * data.draw(st.integers(1, 4)), *b))
    x = tensor(FLOAT, [rows], seed)
    size = Extent(rows)
    bounds = sorted(data.draw(st.lists(st.integers(0, size), max_size=4)))
    try:
        pieces = [
            FLOAT.slice(x, 0, Affine(low), high - low)
            for low, high in pairwise([0, *bounds, size])
            if low < high
        ]
    except Unsupported:
        assume(any(weight > 1 for factor in b for weight in factor))
        return
    places = iter(pairwise(dict.fromkeys([0, *bounds, size])))
    for piece, (low, high) in zip(pieces, places, strict=True):
        np.testing.assert_array_equal(expand(piece).data, expand(x).data[low:high])
    whole = FLOAT.concat(pieces, 0)
    assert_same(whole, expand(x))
    again = FLOAT.concat([pieces[0], *([FLOAT.concat(pieces[1:], 0)] if pieces[1:] else [])], 0)
    assert again.dims == whole.dims


def test_rows_that_are_joined_otherwise_are_represented_alike() -> None:
    """Some one by one and then many that are one: cut behind the first row or within it."""
    rows = ((1, 1, 31), (1, 2, 1))
    x = tensor(FLOAT, [rows], 0)
    aligned = [FLOAT.slice(x, 0, Affine(at), n) for at, n in ((2, 6), (8, 124))]
    whole = FLOAT.slice(x, 0, Affine(2), 130)
    assert whole.dims == FLOAT.concat(aligned, 0).dims
    np.testing.assert_array_equal(whole.data, x.data[1:])

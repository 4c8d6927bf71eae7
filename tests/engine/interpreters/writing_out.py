"""Dimensions that are represented by fewer positions than they have, written out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from shardproof.engine.interpreters import Dim, FieldInterpreter, Weighted, exact
from shardproof.engine.interpreters.dims import Joined, count, normal

factors = st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple)
dimensions = st.lists(factors, max_size=2).map(lambda parts: normal(tuple(parts)))
seeds = st.integers(0, 2**32)


def representative(dim: Dim) -> NDArray[np.int64]:
    """For each true position its representative."""
    index = np.zeros(1, dtype=np.int64)
    for factor in dim:
        inner = np.repeat(np.arange(len(factor)), factor)
        if isinstance(factor, Joined):
            starts = [0, *accumulate(map(count, factor.parts))]
            own = [
                start + representative(part)
                for start, part in zip(starts, factor.parts, strict=False)
            ]
            inner = np.concatenate(own)
        index = (index[:, None] * len(factor) + inner).ravel()
    return index


def expand(x: Weighted) -> Weighted:
    """The tensor that ``x`` stands for, every position written out."""
    return exact(x.data[np.ix_(*(representative(dim) for dim in x.dims))])


def tensor(reading: Any, dims: Sequence[Dim], seed: int) -> Weighted:
    rng = np.random.default_rng(seed)
    shape = [count(normal(dim)) for dim in dims]
    if isinstance(reading, FieldInterpreter):
        return Weighted(rng.integers(0, reading.prime, shape), tuple(dims))
    return Weighted(rng.normal(size=shape), tuple(dims))


def assert_same(found: Weighted, expected: Weighted) -> None:
    """Fail unless ``found`` stands for ``expected``."""
    np.testing.assert_allclose(expand(found).data, expected.data, rtol=1e-9, atol=1e-9)

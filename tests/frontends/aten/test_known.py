"""Rows by ids that are known, masks and tensors of zero and one other number, against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from shardproof.engine.algebra.affine import ZERO
from shardproof.engine.plan.ir import Shard
from shardproof.frontends.aten import Lowering, rule_of
from shardproof.frontends.aten.known import MOST_RUNS, Run, runs
from shardproof.frontends.aten.levels import constant
from tests.frontends.aten.evaluated import evaluated


def known(lo: Lowering, array: Any) -> Any:
    return constant(lo, array.tobytes(), array.shape, str(array.dtype))


def rows_of(lo: Lowering, name: str, *shape: int) -> Any:
    return lo.hold(Shard(name, shape, shape, (ZERO,) * len(shape), "float64"))


def runs_of_ids(random: np.random.Generator, rows: int) -> Any:
    """Ids that rise in stretches and stand still in others."""
    parts = []
    for _ in range(int(random.integers(1, 4))):
        first, count = int(random.integers(rows)), int(random.integers(1, 5))
        rises = random.integers(2) and first + count <= rows
        parts.append(first + np.arange(count) * int(rises))
    return np.concatenate(parts)


@pytest.mark.parametrize("seed", range(20))
def test_rows_and_their_gradients_are_pytorchs(seed: int) -> None:
    random = np.random.default_rng(seed)
    rows, width = 6, 3
    ids = runs_of_ids(random, rows)
    if seed % 2:
        ids = np.broadcast_to(ids[:, None] if seed % 4 == 1 else ids, (len(ids),) * 2).copy()
    lo = Lowering()
    table, given = rows_of(lo, "table", rows, width), rows_of(lo, "given", *ids.shape, width)
    index = known(lo, ids)
    chosen = lo.real(rule_of("aten.embedding.default")(lo, table, index))
    added = lo.real(
        rule_of("aten.embedding_dense_backward.default")(lo, given, index, rows, -1, False)
    )
    assert not any(op.name == "embedding" for op in lo.ops)
    a, b = random.normal(size=(rows, width)), random.normal(size=(*ids.shape, width))
    values = evaluated(lo, {table.number: a, given.number: b})
    weight = torch.tensor(a, requires_grad=True)
    expected = torch.nn.functional.embedding(torch.tensor(ids), weight)
    expected.backward(torch.tensor(b))
    np.testing.assert_allclose(values[chosen.number], expected.detach().numpy())
    assert weight.grad is not None
    np.testing.assert_allclose(values[added.number], weight.grad.numpy())


@pytest.mark.parametrize("seed", range(10))
def test_places_of_a_dimension_and_sums_into_them_are_pytorchs(seed: int) -> None:
    random = np.random.default_rng(seed)
    ids, dim = runs_of_ids(random, 5), seed % 2
    shape = (5, 4) if dim == 0 else (4, 5)
    lo = Lowering()
    x, index = rows_of(lo, "x", *shape), known(lo, ids)
    chosen = lo.real(rule_of("aten.index_select.default")(lo, x, dim, index))
    added = lo.real(rule_of("aten.index_add.default")(lo, x, dim, index, chosen, 2))
    a = torch.tensor(random.normal(size=shape))
    values = evaluated(lo, {x.number: a.numpy()})
    picked = a.index_select(dim, torch.tensor(ids))
    np.testing.assert_allclose(values[chosen.number], picked.numpy())
    total = a.index_add(dim, torch.tensor(ids), picked, alpha=2)
    np.testing.assert_allclose(values[added.number], total.numpy())


def test_runs_rise_as_long_as_they_can() -> None:
    assert runs(np.array([0, 0, 0, 1]), 2) == [Run(0, 0, 2), Run(0, 1, 2)]
    assert runs(np.array([2, 3, 3, 3]), 4) == [Run(2, 1, 2), Run(3, 0, 2)]
    assert runs(np.array([3, 1]), 4) == [Run(3, 0, 1), Run(1, 0, 1)]


def test_ids_of_no_row_and_of_many_runs_are_left() -> None:
    assert runs(np.array([0, 4]), 4) is None
    assert runs(np.array([-1, 0]), 4) is None
    assert runs(np.array([1, 0] * MOST_RUNS), 4) is None


MASKS = {
    "a stretch": np.array([0, 0, 2.0, 2.0, 0]),
    "a column": np.array([[1.0], [0], [0]]) * np.ones((3, 4)),
    "a triangle": np.tril(np.full((4, 4), 0.5)),
    "a triangle above": np.triu(np.ones((4, 4)), 1),
    "a window": np.tril(np.ones((5, 5))) - np.tril(np.ones((5, 5)), -2),
    "three dimensions": np.ones((2, 1, 1)) * np.tril(np.ones((3, 3))),
}


@pytest.mark.parametrize("name", MASKS)
def test_zero_and_one_other_number_are_no_table(name: str) -> None:
    lo = Lowering()
    x = rows_of(lo, "x", 2)
    result = lo.real(known(lo, MASKS[name]))
    assert not lo.tables
    values = evaluated(lo, {x.number: np.ones(2)})
    np.testing.assert_array_equal(values[result.number], MASKS[name])


@pytest.mark.parametrize(
    "array",
    [np.array([0.1, 0.3]), np.array([0, 1.0, 2.0]), np.repeat([1.0, 0] * 10, range(1, 21))],
)
def test_other_numbers_and_many_stretches_are_a_table(array: Any) -> None:
    lo = Lowering()
    rows_of(lo, "x", 2)
    known(lo, array)
    assert [x.tolist() for x in lo.contents.values()] == [array.tolist()]


@pytest.mark.parametrize("seed", range(10))
def test_what_a_mask_of_one_dimension_zeroes_is_zero(seed: int) -> None:
    random = np.random.default_rng(seed)
    bits = random.integers(0, 2, 6).astype(bool)
    bits[0], bits[-1] = True, False
    lo = Lowering()
    x = rows_of(lo, "x", 6, 2)
    hidden = known(lo, np.broadcast_to(bits[:, None], (6, 2)).copy())
    lo.expected = [((6, 2), "float64")]
    filled = lo.real(rule_of("aten.masked_fill.Scalar")(lo, x, hidden, 0.25))
    assert not lo.contents
    a = random.normal(size=(6, 2))
    expected = np.where(bits[:, None], 0.25, a)
    np.testing.assert_allclose(evaluated(lo, {x.number: a})[filled.number], expected)


@pytest.mark.parametrize("seed", range(12))
def test_pairs_of_known_places_and_their_gradients_are_pytorchs(seed: int) -> None:
    """``x[..., i, j]``, as the pairs above a diagonal, any order and some of them again."""
    random = np.random.default_rng(seed)
    lead = tuple(int(n) for n in random.integers(1, 4, seed % 3))
    shape = (*lead, 3, 4, *random.integers(1, 4, seed % 2).tolist())
    upper = np.stack(np.triu_indices(3, 0, 4))
    pairs = upper if seed % 4 else upper[:, random.integers(0, upper.shape[1], 5)]
    pairs = pairs - np.array([[3], [4]]) * (seed % 5 == 1)
    rest = shape[len(lead) + 2 :]
    lo = Lowering()
    x = rows_of(lo, "x", *shape)
    given = rows_of(lo, "given", *lead, pairs.shape[1], *rest)
    index = [*[None] * len(lead), known(lo, pairs[0].copy()), known(lo, pairs[1].copy())]
    picked = lo.real(rule_of("aten.index.Tensor")(lo, x, index))
    added = lo.real(rule_of("aten.index_put.default")(lo, x, index, given, True))
    a, b = random.normal(size=shape), random.normal(size=given.shape)
    values = evaluated(lo, {x.number: a, given.number: b})
    places = (*(slice(None),) * len(lead), *map(torch.tensor, pairs))
    np.testing.assert_allclose(values[picked.number], torch.tensor(a)[places].numpy())
    named = [*[None] * len(lead), *map(torch.tensor, pairs)]
    expected = torch.ops.aten.index_put(torch.tensor(a), named, torch.tensor(b), True)
    np.testing.assert_allclose(values[added.number], expected.numpy())

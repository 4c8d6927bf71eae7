"""Masked scores of which a mask writes numbers where they are minus infinity, against PyTorch."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from shardproof.engine.algebra.affine import ZERO
from shardproof.engine.errors import Unsupported
from shardproof.engine.plan.ir import Shard
from shardproof.frontends.aten import Lowering, rule_of
from shardproof.frontends.aten.bits import Additive, Bits
from shardproof.frontends.aten.lowering import Const
from shardproof.frontends.aten.scores import nothing
from tests.frontends.aten.evaluated import evaluated

SHAPE = (3, 5)


def rule(lo: Lowering, name: str, *args: Any) -> Any:
    found = rule_of(name)
    assert found is not None
    return found(lo, *args)


def _lowering() -> tuple[Lowering, Any, Any]:
    lo = Lowering()
    zero = (ZERO, ZERO)
    x, y = (lo.hold(Shard(name, SHAPE, SHAPE, zero, "float64")) for name in "xy")
    lo.expected = ((SHAPE, "float64"),)
    return lo, x, y


def _number(lo: Lowering, given: dict[int, Any], wanted: Any) -> Any:
    result = lo.real(wanted)
    return evaluated(lo, given)[result.number]


@pytest.mark.parametrize("value", [0, 2.5])
@pytest.mark.parametrize("way", ["masked_fill", "where", "where not"])
def test_numbers_where_a_mask_hides_are_pytorchs(value: float, way: str) -> None:
    random = np.random.default_rng(3)
    a, b = random.normal(size=SHAPE), random.normal(size=SHAPE)
    lo, x, y = _lowering()
    hidden = rule(lo, "aten.gt.Tensor", x, y)
    scores = rule(lo, "aten.masked_fill.Scalar", x, hidden, -np.inf)
    logs = rule(lo, "aten._log_softmax.default", scores, 1)
    again = rule(lo, "aten.gt.Tensor", x, y)
    if way == "masked_fill":
        result = rule(lo, "aten.masked_fill.Scalar", logs, again, value)
    elif way == "where":
        result = rule(lo, "aten.where.ScalarSelf", again, value, logs)
    else:
        shown = rule(lo, "aten.logical_not.default", again)
        equal = rule(lo, "aten.lt.Tensor", y, x)  # but computed otherwise
        left = rule(lo, "aten.masked_fill.Scalar", logs, equal, value)
        with pytest.raises(Unsupported, match="masked scores"):
            lo.real(left)
        with pytest.raises(Unsupported, match="a tensor"):
            rule(lo, "aten.where.self", again, logs, x)
        result = rule(lo, "aten.where.ScalarOther", shown, logs, value)
    mask = torch.tensor(a > b)
    expected = torch.tensor(a).masked_fill(mask, -torch.inf).log_softmax(1)
    expected = expected.masked_fill(mask, value)
    assert mask.any()
    found = _number(lo, {x.number: a, y.number: b}, result)
    np.testing.assert_allclose(np.asarray(found, float), expected.numpy(), atol=1e-12)


@pytest.mark.parametrize("name", ["lt", "le", "gt", "ge", "eq", "ne"])
@pytest.mark.parametrize("number", [0.0, 0.25, np.inf, -np.inf])
@pytest.mark.parametrize("is_mask", [False, True])
def test_masked_scores_beside_a_number_are_pytorchs(
    name: str, number: float, is_mask: bool
) -> None:
    """What is hidden is minus infinity; ``is_mask``: what is not is 0."""
    random = np.random.default_rng(4)
    a, b = random.normal(size=SHAPE).round(), random.normal(size=SHAPE)
    lo, x, y = _lowering()
    given = Const(Fraction(0), SHAPE, "float64") if is_mask else x
    scores = rule(lo, "aten.masked_fill.Scalar", given, rule(lo, "aten.gt.Scalar", y, 0), -np.inf)
    lo.expected = ((SHAPE, "bool"),)
    result = rule(lo, f"aten.{name}.Scalar", scores, number)
    numbers = np.where(b > 0, -np.inf, 0 if is_mask else a)
    expected = getattr(torch, name)(torch.tensor(numbers), number)
    got = _number(lo, {x.number: a, y.number: b}, result)
    np.testing.assert_array_equal(np.broadcast_to(got, SHAPE), expected.numpy())


def test_other_numbers_and_other_masks_are_refused() -> None:
    lo, x, _ = _lowering()
    hides = Bits(np.arange(15).reshape(SHAPE) % 4 == 1)
    logs = rule(lo, "aten._log_softmax.default", _masked(lo, x, hides), 1)
    other = Bits(np.arange(15).reshape(SHAPE) % 4 == 2)
    with pytest.raises(Unsupported, match="masked scores"):
        lo.real(rule(lo, "aten.masked_fill.Scalar", logs, other, 0))
    with pytest.raises(Unsupported, match="some become inf"):
        rule(lo, "aten.masked_fill.Scalar", logs, hides, float("inf"))
    assert rule(lo, "aten.masked_fill.Scalar", logs, hides, 0) is not None


def _masked(lo: Lowering, x: Any, hides: Bits) -> Any:
    return rule(lo, "aten.masked_fill.Scalar", x, hides, -np.inf)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("count", [1, 2])
def test_scores_that_ids_hide_are_pytorchs(dim: int, count: int) -> None:
    """``count`` ids beside each other, of which some are equal: fewer than there are scores, so that
    the largest of the others is a number."""
    random = np.random.default_rng(5)
    shape = [count if d == dim else size for d, size in enumerate(SHAPE)]
    a, places = random.normal(size=SHAPE), random.integers(0, 2, size=shape)
    lo, x, _ = _lowering()
    ids = Shard("ids", tuple(shape), tuple(shape), (ZERO, ZERO), "int64", domain=(0, SHAPE[dim]))
    at = lo.hold(ids)
    scores = rule(lo, "aten.scatter.value", x, dim, at, -np.inf)
    made = _number(
        lo, {x.number: a, at.number: places}, rule(lo, "aten._softmax.default", scores, dim)
    )
    expected = torch.tensor(a).scatter(dim, torch.tensor(places), -torch.inf).softmax(dim)
    np.testing.assert_allclose(np.asarray(made, float), expected.numpy(), atol=1e-12)
    lo.expected = ()
    most, _ = rule(lo, "aten.max.dim", scores, dim)
    made = _number(lo, {x.number: a, at.number: places}, most)
    largest = torch.tensor(a).scatter(dim, torch.tensor(places), -torch.inf).amax(dim)
    np.testing.assert_allclose(np.asarray(made, float), largest.numpy(), atol=1e-12)


@pytest.mark.parametrize("count", [1, SHAPE[1]])
def test_the_largest_of_what_may_be_hidden_altogether_is_no_number(count: int) -> None:
    """By as many ids as there are scores, or by one beside a mask that hides all others."""
    lo, x, _ = _lowering()
    shape = (SHAPE[0], count)
    ids = Shard("ids", shape, shape, (ZERO, ZERO), "int64", domain=(0, SHAPE[1]))
    hides = Additive(Bits(np.arange(15).reshape(SHAPE) % 5 > 0), "float64")
    scores = rule(lo, "aten.scatter.value", hides if count == 1 else x, 1, lo.hold(ids), -np.inf)
    most, _ = rule(lo, "aten.max.dim", scores, 1)
    with pytest.raises(Unsupported, match="minus infinity"):
        lo.real(most)


@pytest.mark.parametrize("target", ["nothing", "causal", "masked"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_number_by_ids_over_masked_scores_is_pytorchs(target: str, count: int) -> None:
    """Whether nothing is kept there, or some by an operator or by a mask; ids may be equal."""
    random = np.random.default_rng(5)
    a, places = random.normal(size=SHAPE), random.integers(0, 5, size=(SHAPE[0], count))
    lo, x, _ = _lowering()
    later = Bits(np.triu(np.ones(SHAPE, bool), 1) if target == "causal" else a > 0)
    hidden = torch.tensor(a)
    if target == "nothing":
        scores, hidden = nothing(lo, SHAPE, "float64"), torch.full(SHAPE, -torch.inf)
    else:
        scores, hidden = (
            _masked(lo, x, later),
            hidden.masked_fill(torch.tensor(later.array), -np.inf),
        )
    ids = Shard("ids", places.shape, places.shape, (ZERO, ZERO), "int64", domain=(0, 5))
    at = lo.hold(ids)
    written = rule(lo, "aten.scatter.value", scores, 1, at, 0.5)
    made = _number(
        lo, {x.number: a, at.number: places}, rule(lo, "aten._softmax.default", written, 1)
    )
    expected = hidden.double().scatter(1, torch.tensor(places), 0.5).softmax(1)
    np.testing.assert_allclose(np.asarray(made, float), expected.numpy(), atol=1e-12)
    with pytest.raises(Unsupported, match="some become inf"):
        rule(lo, "aten.scatter.value", scores, 1, at, np.inf)


def test_the_largest_of_causal_scores_are_pytorchs() -> None:
    """Which an operator hides: a choice reads what is kept of their exponentials."""
    a = np.random.default_rng(5).normal(size=SHAPE)
    lo, x, _ = _lowering()
    later = np.triu(np.ones(SHAPE, bool), 3)
    scores = _masked(lo, x, Bits(later))
    assert scores.number in lo.hides
    lo.expected = (((3, 2), "float64"), ((3, 2), "int64"))
    _, place = rule(lo, "aten.topk.default", scores, 2, 1)
    expected = torch.tensor(a).masked_fill(torch.tensor(later), -torch.inf).topk(2, 1).indices
    assert (np.asarray(_number(lo, {x.number: a}, place), int) == expected.numpy()).all()


@pytest.mark.parametrize("value", [0, -1e3, 2.5])
@pytest.mark.parametrize("way", ["masked_fill", "where"])
def test_numbers_that_another_mask_writes_are_pytorchs(value: float, way: str) -> None:
    """Rows in which such a number is all that is left are among these."""
    random = np.random.default_rng(5)
    a, b = random.normal(size=SHAPE), random.normal(size=SHAPE)
    a[0], b[0] = abs(a[0]), [-1, 1, 1, 1, 1]
    lo, x, y = _lowering()
    scores = rule(lo, "aten.masked_fill.Scalar", y, rule(lo, "aten.gt.Scalar", x, 0), -np.inf)
    other = rule(lo, "aten.lt.Scalar", y, 0)
    if way == "masked_fill":
        scores = rule(lo, "aten.masked_fill.Scalar", scores, other, value)
    else:
        scores = rule(lo, "aten.where.ScalarSelf", other, value, scores)
    result = rule(lo, "aten._softmax.default", scores, 1, False)
    left = torch.tensor(b).masked_fill(torch.tensor(a > 0), -torch.inf)
    expected = left.masked_fill(torch.tensor(b < 0), value).softmax(1)
    assert not expected.isnan().any()
    got = _number(lo, {x.number: a, y.number: b}, result)
    np.testing.assert_allclose(np.asarray(got, float), expected.numpy(), atol=1e-12)


@pytest.mark.parametrize("way", ["masked_fill", "where"])
@pytest.mark.parametrize("start", [2, 3])
def test_numbers_over_all_that_constants_hide_are_pytorchs(way: str, start: int) -> None:
    """The mask that writes has the one that hides, and may have more."""
    a = np.random.default_rng(6).normal(size=SHAPE)
    lo, x, _ = _lowering()
    columns = np.broadcast_to(np.arange(5), SHAPE)
    logs = rule(lo, "aten._log_softmax.default", _masked(lo, x, Bits(columns >= 3)), 1)
    over = Bits(columns >= start)
    if way == "masked_fill":
        result = rule(lo, "aten.masked_fill.Scalar", logs, over, 0)
    else:
        result = rule(lo, "aten.where.ScalarOther", over.inverse(), logs, 0)
    expected = torch.tensor(a[:, :3]).log_softmax(1)
    expected = torch.nn.functional.pad(expected[:, :start], (0, 5 - start))
    got = _number(lo, {x.number: a}, result)
    np.testing.assert_allclose(np.asarray(got, float), expected.numpy(), atol=1e-12)

"""Right plans that compute a value by another route are proved; wrong ones beside them refuted.

Both sides of a plan here are formulas over two weights, a batch and a target; the parallel side
runs its own formula on two replicas.  The value is then used by functions and by the loss, so that
a route that is not recognised is missed by every conclusion.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest

from shardproof.checker import check
from shardproof.engine.plan.ir import Plan, Program
from shardproof.frontends.builder.builder import BodyBuilder, ProgramBuilder, along
from shardproof.partition.stages.partition import _unfolded, partition
from tests.faults.plans import assert_proved, verify

WIDTH = 6
ROWS = 4
HALF = Fraction(1, 2)

#: (body, x, t, w1, w2) -> value; all of them [rows, width], the weights [width, width].
Formula = Callable[[BodyBuilder, int, int, int, int], int]


def plan(single: Formula, parallel: Formula, replicas: int = 2, rows: int = ROWS) -> Plan:
    def program(formula: Formula, rows: int, axes: tuple[tuple[str, int, int], ...]) -> Program:
        made = ProgramBuilder("ranks", axes=axes)
        w1, w2 = (made.parameter(name, (WIDTH, WIDTH)) for name in ("w1", "w2"))
        body = made.body("forward")
        x, t = body.load_batch(("x", (rows, WIDTH), "float32"), ("t", (rows, WIDTH), "float32"))
        y = formula(body, x, t, body.parameter(w1), body.parameter(w2))
        body.loss(body.sum(body.mul(t, body.silu(y))))
        made.schedule(body, body.backward(), 1)
        if axes:
            made.reduce([(w1, along("dp")), (w2, along("dp"))])
        return made.build()

    return Plan(
        "routes",
        program(single, rows * replicas, ()),
        (program(parallel, rows, (("dp", replicas, 1),)),),
        1,
        ("dp",),
    )


def two_products(b: BodyBuilder, x: int, t: int, w1: int, w2: int) -> int:
    return b.add(b.matmul(x, w1), b.matmul(x, w2))


def product_of_sum(b: BodyBuilder, x: int, t: int, w1: int, w2: int) -> int:
    return b.matmul(x, b.add(w1, w2))


def product_of_difference(b: BodyBuilder, x: int, t: int, w1: int, w2: int) -> int:
    return b.matmul(x, b.sub(w1, w2))


def from_the_left(b: BodyBuilder, x: int, t: int, w1: int, w2: int) -> int:
    return b.matmul(b.matmul(x, w1), w2)


def from_the_right(b: BodyBuilder, x: int, t: int, w1: int, w2: int) -> int:
    return b.matmul(x, b.matmul(w1, w2))


def other_order(b: BodyBuilder, x: int, t: int, w1: int, w2: int) -> int:
    return b.matmul(x, b.matmul(w2, w1))


def sum_of_squares(b: BodyBuilder, x: int, t: int, w1: int, w2: int) -> int:
    """(p + q) (p - q) of p = x w1, q = x w2."""
    p, q = b.matmul(x, w1), b.matmul(x, w2)
    return b.mul(b.add(p, q), b.sub(p, q))


def difference_of_squares(b: BodyBuilder, x: int, t: int, w1: int, w2: int) -> int:
    p, q = b.matmul(x, w1), b.matmul(x, w2)
    return b.sub(b.mul(p, p), b.mul(q, q))


def other_difference(b: BodyBuilder, x: int, t: int, w1: int, w2: int) -> int:
    p, q = b.matmul(x, w1), b.matmul(x, w2)
    return b.sub(b.mul(p, p), b.mul(p, q))


def pairs(b: BodyBuilder, x: int, t: int, w1: int, w2: int) -> int:
    """(x + t) + (x w1 + x w2)"""
    return b.add(b.add(x, t), b.add(b.matmul(x, w1), b.matmul(x, w2)))


def chain(b: BodyBuilder, x: int, t: int, w1: int, w2: int) -> int:
    return b.add(b.add(b.add(x, b.matmul(x, w2)), t), b.matmul(x, w1))


def chain_without_one(b: BodyBuilder, x: int, t: int, w1: int, w2: int) -> int:
    return b.add(b.add(b.add(x, b.matmul(x, w2)), x), b.matmul(x, w1))


def scaled_after(b: BodyBuilder, x: int, t: int, w1: int, w2: int) -> int:
    return b.mul_constant(b.add(b.matmul(x, w1), b.matmul(t, w2)), HALF)


def scaled_before(b: BodyBuilder, x: int, t: int, w1: int, w2: int) -> int:
    return b.add(b.matmul(b.mul_constant(x, HALF), w1), b.matmul(t, b.mul_constant(w2, HALF)))


def scaled_once(b: BodyBuilder, x: int, t: int, w1: int, w2: int) -> int:
    return b.add(b.matmul(b.mul_constant(x, HALF), w1), b.matmul(t, w2))


def straight(b: BodyBuilder, x: int, t: int, w1: int, w2: int) -> int:
    return b.add(b.matmul(x, w1), b.matmul(t, w2))


def there_and_back(b: BodyBuilder, x: int, t: int, w1: int, w2: int) -> int:
    """x (w1 + w2) + t w2 - x w2"""
    return b.sub(b.add(b.matmul(x, b.add(w1, w2)), b.matmul(t, w2)), b.matmul(x, w2))


def there_and_elsewhere(b: BodyBuilder, x: int, t: int, w1: int, w2: int) -> int:
    return b.sub(b.add(b.matmul(x, b.add(w1, w2)), b.matmul(t, w2)), b.matmul(t, w2))


def _normaliser(b: BodyBuilder, x: int, w: int) -> int:
    """1 plus the sum of exponentials of a row."""
    total = b.sum(b.exp(b.matmul(x, w)), 1, keepdim=True)
    return b.op("add", total, other=Fraction(1))


def quotient(b: BodyBuilder, x: int, t: int, w1: int, w2: int) -> int:
    return b.op("div", b.exp(b.matmul(x, w1)), _normaliser(b, x, w2))


def less_a_logarithm(b: BodyBuilder, x: int, t: int, w1: int, w2: int) -> int:
    return b.exp(b.sub(b.matmul(x, w1), b.log(_normaliser(b, x, w2))))


def less_another_logarithm(b: BodyBuilder, x: int, t: int, w1: int, w2: int) -> int:
    return b.exp(b.sub(b.matmul(x, w1), b.log(_normaliser(b, x, w1))))


def _of_targets(b: BodyBuilder, t: int) -> int:
    return b.sum(b.exp(t), 1, keepdim=True)


def times_normaliser(b: BodyBuilder, x: int, t: int, w1: int, w2: int) -> int:
    return b.mul(b.exp(b.matmul(b.matmul(x, w1), w2)), _of_targets(b, t))


def and_a_logarithm(b: BodyBuilder, x: int, t: int, w1: int, w2: int) -> int:
    return b.exp(b.add(b.log(_of_targets(b, t)), b.matmul(b.matmul(x, w1), w2)))


def and_another_logarithm(b: BodyBuilder, x: int, t: int, w1: int, w2: int) -> int:
    return b.exp(b.add(b.log(_of_targets(b, x)), b.matmul(b.matmul(x, w1), w2)))


def exponential(b: BodyBuilder, x: int, t: int, w1: int, w2: int) -> int:
    return b.mul(b.exp(b.matmul(x, w1)), b.matmul(x, w2))


def one_less_one_less(b: BodyBuilder, x: int, t: int, w1: int, w2: int) -> int:
    return b.mul(_less_from_one(b, _less_from_one(b, b.exp(b.matmul(x, w1)))), b.matmul(x, w2))


def one_less(b: BodyBuilder, x: int, t: int, w1: int, w2: int) -> int:
    return b.mul(_less_from_one(b, b.exp(b.matmul(x, w1))), b.matmul(x, w2))


def _less_from_one(b: BodyBuilder, x: int) -> int:
    return b.op("add", b.mul_constant(x, -1), other=Fraction(1))


def function_of_one(b: BodyBuilder, x: int, t: int, w1: int, w2: int) -> int:
    return b.silu(b.matmul(x, w1))


def function_of_a_difference(b: BodyBuilder, x: int, t: int, w1: int, w2: int) -> int:
    p, q = b.matmul(x, w1), b.exp(b.matmul(x, w2))
    return b.silu(b.sub(b.add(p, q), q))


def function_of_another_difference(b: BodyBuilder, x: int, t: int, w1: int, w2: int) -> int:
    p, q = b.matmul(x, w1), b.exp(b.matmul(x, w2))
    return b.silu(b.sub(b.add(p, q), p))


ROUTES = [
    pytest.param(two_products, product_of_sum, product_of_difference, id="distribution"),
    pytest.param(from_the_left, from_the_right, other_order, id="order of products"),
    pytest.param(difference_of_squares, sum_of_squares, other_difference, id="a formula"),
    pytest.param(pairs, chain, chain_without_one, id="groups of a sum"),
    pytest.param(scaled_after, scaled_before, scaled_once, id="place of a scale"),
    pytest.param(straight, there_and_back, there_and_elsewhere, id="what cancels"),
    pytest.param(quotient, less_a_logarithm, less_another_logarithm, id="less a logarithm"),
    pytest.param(times_normaliser, and_a_logarithm, and_another_logarithm, id="and a logarithm"),
    pytest.param(exponential, one_less_one_less, one_less, id="1 - (1 - x)"),
    pytest.param(
        function_of_one,
        function_of_a_difference,
        function_of_another_difference,
        id="(p + q) - q",
    ),
]


@pytest.mark.parametrize(("one", "other", "wrong"), ROUTES)
def test_another_route_is_proved(one: Formula, other: Formula, wrong: Formula) -> None:
    assert_proved(plan(one, other))
    assert_proved(plan(other, one))


@pytest.mark.parametrize(("one", "other", "wrong"), ROUTES)
def test_a_wrong_route_is_refuted(one: Formula, other: Formula, wrong: Formula) -> None:
    for single in (one, other):
        result = verify(plan(single, wrong))
        assert result.verdict == "refuted"
        assert result.findings[0].kind == "mismatch"


def test_what_another_route_rests_on_is_checked_and_holds_for_every_instance(
    tmp_path: Path,
) -> None:
    found = partition(plan(difference_of_squares, sum_of_squares))
    assert found.guessed
    assert found.wider
    result = verify(plan(difference_of_squares, sum_of_squares), exhaustive=True, out=tmp_path)
    assert (result.verdict, result.reason) == ("proved", "")
    assert [str(p) for p in check(tmp_path).problems] == []


def test_a_claim_that_is_too_large_is_stated_behind_its_inputs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the inputs of the last product, its result is many products; of what they are made of,
    few."""
    made = plan(difference_of_squares, sum_of_squares)
    monkeypatch.setattr("shardproof.engine.obligations.obligation.MOST_PRODUCTS", 40)
    with monkeypatch.context() as patch:
        patch.setattr("shardproof.partition.stages.partition.WIDEST", 0)
        patch.setattr(
            "shardproof.partition.stages.partition._unfolded",
            lambda result, claim, _: _unfolded(result, claim, frozenset()),
        )
        assert "a claim over more than 40 products" in _problems(made)
    assert _problems(made) == set()
    assert_proved(made)
    assert verify(plan(difference_of_squares, other_difference)).verdict == "refuted"


def _problems(made: Plan) -> set[str]:
    return {stage.problem for stage in partition(made).stages if stage.live and stage.problem}


def test_a_plan_by_the_same_route_guesses_nothing() -> None:
    found = partition(plan(sum_of_squares, sum_of_squares))
    assert not found.guessed
    assert not found.wider

"""Readings over arrays: weighted dimensions mean what they stand for; each reading's own rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardproof.engine.algebra.affine import Affine, affine
from shardproof.engine.algebra.terms import TermTable
from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.engine.interpreters import (
    MASKED,
    Dim,
    Extent,
    FieldInterpreter,
    FloatInterpreter,
    TermInterpreter,
    Weighted,
    exact,
)
from shardproof.engine.interpreters.dims import normal, regroup, unit
from shardproof.engine.interpreters.field import MASK
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.obligations.small_terms import SmallInterpreter
from shardproof.engine.ops import apply_backward, apply_forward
from shardproof.engine.ops.primitives import Interpreter, Selection
from shardproof.engine.small_model.representatives import Representatives
from tests.engine.interpreters.writing_out import (
    assert_same,
    dimensions,
    expand,
    factors,
    representative,
    seeds,
    tensor,
)

ONE, ZERO = Fraction(1), Fraction(0)
FLOAT = FloatInterpreter()
FIELD = FieldInterpreter(seed=1)
TERMS = TermInterpreter(TermTable())

numeric = st.sampled_from([FLOAT, FIELD])


def commutes(interpreter: Interpreter[Weighted], run: Callable[..., Any], *xs: Weighted) -> None:
    """Fail unless ``run(reading, ...)`` on ``xs`` stands for its result on what they stand for."""
    for x, y in zip(run(interpreter, *xs), run(interpreter, *map(expand, xs)), strict=True):
        assert_same(x, y)


# -- weighted dimensions --------------------------------------------------------------------------


@given(st.lists(factors, max_size=4).map(tuple))
def test_normal_form_stands_for_the_same_positions(dim: Dim) -> None:
    np.testing.assert_array_equal(representative(normal(dim)), representative(dim))
    assert normal(normal(dim)) == normal(dim)


@given(st.lists(factors, min_size=2, max_size=4).map(tuple), st.integers(1, 3))
def test_normal_form_does_not_depend_on_grouping(dim: Dim, cut: int) -> None:
    assert normal((*normal(dim[:cut]), *normal(dim[cut:]))) == normal(dim)


@given(st.lists(dimensions, max_size=3), st.data(), seeds)
def test_reshape_to_factors_and_back(dims: list[Dim], data: st.DataObject, seed: int) -> None:
    """Whatever is merged, can be split again."""
    x = tensor(FLOAT, dims, seed)
    parts = [factor for dim in dims for factor in dim]
    sizes = [sum(factor) for factor in parts]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sizes)), max_size=3)))
    merged = [prod(sizes[a:b]) for a, b in zip([0, *cuts], [*cuts, len(sizes)], strict=True)]
    for shape in (merged, sizes):
        commutes(FLOAT, lambda r, t, shape=shape: [r.reshape(t, tuple(shape))], x)
    there = FLOAT.reshape(x, tuple(merged))
    back = FLOAT.reshape(there, tuple(int(n) for n in x.shape))
    assert_same(back, expand(x))


@given(st.permutations([2, 2, 3, 3, 5]), st.permutations([2, 2, 3, 3, 5]), st.integers(1, 4))
def test_exact_dimensions_reshape_freely(left: list[int], right: list[int], cut: int) -> None:
    x = exact(np.arange(180.0).reshape(prod(left[:cut]), -1))
    shape = (prod(right[:cut]), 1, prod(right[cut:]))
    found = FLOAT.reshape(x, shape)
    np.testing.assert_array_equal(found.data, x.data.reshape(shape))
    assert found.shape == shape


@given(dimensions, dimensions, st.data(), seeds)
def test_slices_and_their_concatenation(a: Dim, b: Dim, data: st.DataObject, seed: int) -> None:
    x = tensor(FLOAT, [a, b], seed)
    inner = prod(sum(factor) for factor in b[1:])
    outer = Extent(b) // inner
    start = data.draw(st.integers(0, outer)) * inner
    size = data.draw(st.integers(0, outer - start // inner)) * inner

    def parts(r: Any, t: Weighted) -> list[Weighted]:
        cuts = [(0, start), (start, size), (start + size, Extent(b) - start - size)]
        pieces = [r.slice(t, 1, Affine(at), n) for at, n in cuts]
        return [*pieces, r.concat(pieces, 1)]

    commutes(FLOAT, parts, x)
    assert_same(parts(FLOAT, x)[-1], expand(x))


def test_a_cut_through_an_inner_factor_is_unsupported() -> None:
    dim = ((2,), (1, 1, 1))
    with pytest.raises(Unsupported, match="cut through a factor"):
        FLOAT.slice(tensor(FLOAT, [dim], 0), 0, Affine(1), 3)
    for factor in ((1, 2, 3), (1, 2, 2, 1)):
        with pytest.raises(Unsupported, match=r"cannot be split into 2 x 3"):
            regroup([(factor,)], (2, 3))
    with pytest.raises(Unsupported, match=r"to \[3, 2\]"):
        regroup([dim], (3, 2))
    # Parts that are represented differently lie one after the other, each as it is.
    parts = [tensor(FLOAT, [dim], 0), tensor(FLOAT, [((1, 2),)], 0)]
    joined = FLOAT.concat(parts, 0)
    assert FLOAT.shape(joined) == (6 + 3,)
    np.testing.assert_array_equal(joined.data, np.concatenate([part.data for part in parts]))


# -- weighted operators ---------------------------------------------------------------------------


@given(numeric, dimensions, dimensions, dimensions, seeds)
def test_primitives_commute_with_expansion(reading: Any, m: Dim, n: Dim, k: Dim, seed: int) -> None:
    def run(r: Any, x: Weighted, y: Weighted) -> list[Weighted]:
        rows, depth = r.shape(x)
        product = r.einsum("mk,kn->nm", x, y)
        return [
            product,
            r.einsum("mk,kn->", x, y),
            r.einsum("mk->km", x),
            r.einsum("mk->akmb", x, sizes={"a": r.shape(y)[1], "b": 2}),
            r.combine([x, r.einsum("mk->mk", x)], [Fraction(2, 3), Fraction(-1)], Fraction(1, 7)),
            r.unary("tanh", x),
            r.amax(product, 0),
            r.einsum("m->mk", r.einsum("mk->m", x), sizes={"k": depth}),
            r.reshape(x, (rows * depth,)),
        ]

    commutes(reading, run, tensor(reading, [m, k], seed), tensor(reading, [k, n], seed + 1))


@given(numeric, dimensions, dimensions, dimensions, seeds)
def test_operators_commute_with_expansion(reading: Any, b: Dim, s: Dim, k: Dim, seed: int) -> None:
    """Operator code broadcasts to shapes it has seen; those carry their weights."""
    eps = {"eps": Fraction(1, 1000)}

    def run(r: Any, x: Weighted, w: Weighted, v: Weighted) -> list[Weighted]:
        (y,) = apply_forward(r, "rms_norm", [x, v], eps)
        return [
            y,
            *apply_forward(r, "mean", [x], {"dim": (0, -1)}),
            *apply_forward(r, "softmax", [y], {"dim": -1}),
            *apply_forward(r, "linear", [x, w, v], {}),
            *apply_forward(r, "layernorm", [x, v, v], eps),
            *apply_backward(r, "linear", [x, w, v], [y], {}, [0, 1, 2]),
            *apply_backward(r, "layernorm", [x, v, v], [y], eps, [0, 1, 2]),
            *apply_backward(r, "softmax", [x], [y], {"dim": 1}, [0]),
        ]

    xs = [tensor(reading, dims, seed + i) for i, dims in enumerate([(b, s, k), (k, k), (k,)])]
    commutes(reading, run, *xs)


@pytest.mark.parametrize("reading", [FLOAT, FIELD], ids=["float", "field"])
def test_a_wrong_weight_is_found(reading: Any) -> None:
    """The twin of the two tests above: they fail where a sum forgets what it stands for."""

    def forgetful(r: Any, x: Weighted) -> list[Weighted]:
        return [r.einsum("k->", exact(x.data))]

    x = tensor(reading, [((2, 1),)], 0)
    commutes(reading, lambda r, t: [r.einsum("k->", t)], x)
    with pytest.raises(AssertionError):
        commutes(reading, forgetful, x)


def test_operands_have_to_agree() -> None:
    x, y = tensor(FLOAT, [((2, 1),)], 0), tensor(FLOAT, [((1, 2),)], 0)
    with pytest.raises(Unsupported, match="one dimension represented as"):
        FLOAT.einsum("k,k->", x, y)
    with pytest.raises(Unsupported, match="one dimension represented as"):
        FLOAT.combine([x, y], [ONE, ONE], ZERO)
    with pytest.raises(ShapeMismatch, match="sizes 3 and 2"):
        FLOAT.einsum("k,k->", x, exact(np.ones(2)))
    with pytest.raises(ShapeMismatch, match="operand of shape"):
        FLOAT.einsum("ab->", x)
    with pytest.raises(ShapeMismatch, match="tensors of shapes"):
        FLOAT.combine([x, exact(np.ones((3, 1)))], [ONE, ONE], ZERO)
    with pytest.raises(ShapeMismatch, match=r"reshape of \[3\] to \[2, 2\]"):
        FLOAT.reshape(x, (2, 2))
    with pytest.raises(ValueError, match="cannot have dims"):
        Weighted(np.ones(3), (((2, 1),),))
    with pytest.raises(ValueError, match="weights below 1"):
        Weighted(np.ones(2), (((2, 0),),))


def test_plain_sizes_are_represented_as_told() -> None:
    interpreter = FloatInterpreter(extents={6: ((2, 1), (2,))})
    found = interpreter.einsum("->ab", exact(np.array(1.0)), sizes={"a": 6, "b": 5})
    assert found.dims == (normal(((2, 1), (2,))), unit(5))
    with pytest.raises(ValueError, match="do not represent 7"):
        FloatInterpreter(extents={7: ((2, 1), (2,))})


def test_positions_are_absolute() -> None:
    dim: Dim = ((2, 1, 3),)
    interpreter = FloatInterpreter(
        extents={6: dim}, positions={(0, 6): (1, 2, 4), (10, 6): (10, 12, 15)}
    )
    full = np.triu(np.full((6, 6), -np.inf), 1)
    found = interpreter.causal(6, 6)
    np.testing.assert_array_equal(found.data, full[np.ix_([1, 2, 4], [1, 2, 4])])
    assert found.shape == (6, 6)
    np.testing.assert_array_equal(FLOAT.causal(2, 4).data, full[:2, :4])
    hot = interpreter.onehot(exact(np.array([12.0, 11.0])), affine(8, {"tp": 2}).fix("tp", 1), 6)
    np.testing.assert_array_equal(hot.data, [[0, 1, 0], [0, 0, 0]])
    with pytest.raises(Unsupported, match="are not given"):
        interpreter.onehot(exact(np.zeros(1)), Affine(3), 6)
    with pytest.raises(Unsupported, match="do not fit"):
        FloatInterpreter(positions={(0, 6): (1, 2)}).causal(6, 6)


def test_affine_attributes_need_their_coordinates() -> None:
    start = affine(0, {"tp": 2})
    x = exact(np.arange(4.0))
    found = FloatInterpreter(coordinates={"tp": 1}).slice(x, 0, start, 2)
    np.testing.assert_array_equal(found.data, [2, 3])
    with pytest.raises(Unsupported, match="unknown coordinate 'tp'"):
        FLOAT.slice(x, 0, start, 2)
    with pytest.raises(ShapeMismatch, match="positions 3 to 5 of a dimension of 4"):
        FLOAT.slice(x, 0, Affine(3), 2)


# -- each reading's own rules
# -----------------------------------------------------------------------


@pytest.mark.parametrize("reading", [FLOAT, FIELD, TERMS], ids=["float", "field", "terms"])
def test_what_is_not_declared_is_unsupported(reading: Any) -> None:
    zero = reading.causal(1, 1)
    with pytest.raises(Unsupported, match="function gamma is not declared"):
        reading.unary("gamma", zero)
    with pytest.raises(Unsupported, match="constant pi is not declared"):
        reading.constant("pi")
    with pytest.raises(ShapeMismatch, match="a choice"):
        reading.select(zero, Selection(topk=2))
    with pytest.raises(Unsupported, match="every expert is needed"):
        reading.select(Weighted(zero.data, ((), ((2,),))), Selection(topk=1))


@pytest.mark.parametrize("reading", [FIELD, TERMS], ids=["field", "terms"])
def test_masks_are_no_numbers(reading: Any) -> None:
    hidden = MASK if reading is FIELD else MASKED
    mask = reading.causal(2, 2)
    shifted = reading.combine([mask], [Fraction(3)], Fraction(5))
    assert shifted.data[0, 1] == hidden
    e = reading.unary("exp", shifted)
    assert e.data[0, 1] == (0 if reading is FIELD else reading.table.zero)
    assert reading.amax(shifted, 1).data[0] == shifted.data[0, 0]
    assert reading.einsum("qk->q", shifted).data[0] == hidden
    assert reading.einsum("qk->kq", shifted).data[1, 0] == hidden
    hopeless: list[Callable[[], object]] = [
        lambda: reading.unary("sigmoid", mask),
        lambda: reading.combine([mask], [Fraction(-1)], ZERO),
        lambda: reading.combine([mask], [ZERO], ZERO),
        lambda: reading.einsum("qk,qk->qk", mask, mask),
        lambda: reading.amax(reading.slice(mask, 1, Affine(1), 1), 1),
        lambda: reading.select(mask, Selection(topk=1)),
    ]
    for run in hopeless:
        with pytest.raises(Unsupported):
            run()


def test_the_masked_entry_absorbs_sums_and_positive_factors_only() -> None:
    t = TERMS.table.symbol("t")
    for sum_ in (MASKED + t, t + MASKED, MASKED - t, MASKED + MASKED):
        assert sum_ is MASKED
    for product in (2 * MASKED, MASKED * Fraction(1, 2), TERMS.table.const(3) * MASKED):
        assert product is MASKED
    hopeless: list[Callable[[], object]] = [
        lambda: t * MASKED,
        lambda: -1 * MASKED,
        lambda: -MASKED,
        lambda: t - MASKED,
        lambda: MASKED - MASKED,
    ]
    for run in hopeless:
        with pytest.raises(Unsupported):
            run()


def entry(x: Weighted) -> Any:
    """The entry of a tensor without dimensions."""
    return x.data[()]


def terms(*names: str) -> Weighted:
    return exact(np.array([TERMS.table.symbol(name) for name in names], dtype=object))


def test_a_maximum_of_terms_is_that_of_all_distinct_entries() -> None:
    whole = TERMS.amax(terms("a", "b", "c", "a"), 0)
    left, right = TERMS.amax(terms("b", "a"), 0), TERMS.amax(terms("c", "b"), 0)
    pair = TERMS.concat([TERMS.reshape(right, (1,)), TERMS.reshape(left, (1,))], 0)
    assert entry(TERMS.amax(pair, 0)) is entry(whole)
    assert entry(whole).name == "max3"
    assert [str(a) for a in entry(whole).args] == ["a", "b", "c"]
    assert entry(TERMS.amax(terms("a", "a"), 0)) is TERMS.table.symbol("a")


@given(st.lists(st.integers(0, FIELD.prime - 1), min_size=2, max_size=6), st.integers(1, 5))
def test_a_maximum_in_the_field_keeps_the_laws_of_maxima(entries: list[int], cut: int) -> None:
    def top(values: Sequence[int]) -> int:
        return int(FIELD.amax(exact(np.array(values)), 0).data)

    parts = [part for part in (entries[:cut], entries[cut:]) if part]
    assert top(entries) == top([top(part) for part in parts]) == top([*entries[::-1], entries[0]])
    assert top(entries) in entries


def test_terms_name_positions_choices_and_multiplicities() -> None:
    hot = TERMS.onehot(terms("i"), affine(4), 2)
    assert [[(e.name, *map(str, e.args)) for e in row] for row in hot.data] == [
        [("is", "i", "4"), ("is", "i", "5")]
    ]
    selection = Selection(topk=2)
    chosen = TERMS.select(TERMS.reshape(terms("p", "q", "r"), (1, 3)), selection)
    assert [e.name for e in chosen.data[0]] == [f"select:{selection}:{j}" for j in range(2)]
    assert [str(a) for a in chosen.data[0, 1].args] == ["p", "q", "r"]
    x = Weighted(terms("x", "y").data, (((3, 1),),))
    a, b = x.data
    assert entry(TERMS.einsum("k->", x)) is 3 * a + b
    assert entry(TERMS.einsum("k,k->", x, x)) is 3 * (a * a) + b * b


def test_a_choice_among_hidden_scores_is_not_understood() -> None:
    scores = Weighted(np.array([[TERMS.table.symbol("a"), MASKED]]), (((1,),), ((1, 1),)))
    small = SmallInterpreter(TermTable(), Representatives(NodeTable(), [], [], {}, ()))
    for interpreter in (TERMS, small):
        with pytest.raises(Unsupported, match="masked entries"):
            interpreter.select(scores, Selection(topk=1))


def test_the_field_is_exact_and_its_functions_are_functions() -> None:
    p = FIELD.prime
    big = exact(np.array([p - 1, p - 2, 5]))
    assert int(FIELD.einsum("k,k,k->", big, big, big).data) == (-1 - 8 + 125) % p
    third = FIELD.combine([big], [Fraction(1, 3)], Fraction(-1, 2))
    back = FIELD.combine([third], [Fraction(3)], Fraction(3, 2))
    np.testing.assert_array_equal(back.data, big.data)
    y = FIELD.unary("exp", big)
    np.testing.assert_array_equal(y.data, FIELD.unary("exp", big).data)
    others = [
        FIELD.unary("tanh", big),
        FieldInterpreter(seed=2).unary("exp", big),
        FIELD.onehot(big, affine(3), 1),
        FIELD.select(FIELD.reshape(big, (3, 1)), Selection(topk=1)),
    ]
    results = [y, *others]
    assert len({tuple(x.data.ravel()) for x in results}) == len(results)
    assert all(((x.data >= 0) & (x.data < p)).all() for x in results)
    with pytest.raises(Unsupported, match="modulo"):
        FIELD.combine([big], [Fraction(1, p)], ZERO)
    with pytest.raises(ValueError, match="prime"):
        FieldInterpreter(prime=2**61 - 1)


def test_choices_are_in_descending_order_and_ties_go_to_the_first() -> None:
    scores = exact(np.array([[1.0, 3.0, 3.0, 2.0, 0.0, 3.5]]))
    cases: list[tuple[Selection, list[int]]] = [
        (Selection(4), [5, 1, 2, 3]),
        (Selection(2, groups=3, topk_groups=1, group_score="max"), [5, 4]),
        (Selection(2, groups=3, topk_groups=1, group_score="top2"), [2, 3]),
        (Selection(3, groups=3, topk_groups=2, group_score="max"), [5, 1, 0]),
    ]
    for selection, expected in cases:
        assert FLOAT.select(scores, selection).data[0].tolist() == expected
    wide = exact(np.array([[5.0, 0.0, 0.0, 3.0, 3.0, -9.0]]))
    best = FLOAT.select(wide, Selection(2, groups=2, topk_groups=1, group_score="top2"))
    assert best.data[0].tolist() == [3, 4]
    for selection in (Selection(1, groups=4), Selection(3, groups=3), Selection(0)):
        with pytest.raises(ShapeMismatch):
            FLOAT.select(scores, selection)


@given(st.integers(0, 2**32), st.integers(1, 9), st.booleans())
def test_the_largest_are_those_of_a_stable_order(seed: int, size: int, equal: bool) -> None:
    """Of equal ones, of infinite ones and of what is no number, too."""
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 3, (4, size)) if equal else rng.normal(size=(4, size))
    scores = np.where(rng.random(scores.shape) < 0.1, rng.choice([-np.inf, np.nan]), scores)
    count = int(rng.integers(1, size + 1))
    chosen = FLOAT.select(exact(scores), Selection(count)).data
    ordered = np.argsort(np.where(np.isneginf(scores), np.inf, -scores), axis=1, kind="stable")
    assert chosen.tolist() == ordered[:, :count].tolist()


def test_large_products_are_those_of_a_loop_over_their_numbers() -> None:
    rng = np.random.default_rng(0)
    for spec, *shapes in (
        ("ah,edh->aed", (64, 8), (32, 4, 8)),
        ("abxy,abyz->abxz", (2, 2, 64, 4), (2, 2, 4, 64)),
        ("ab,ab->ab", (256, 256), (256, 256)),
        ("ab,cd->ac", (64, 8), (64, 8)),
    ):
        x, y = (rng.normal(size=shape) for shape in shapes)
        mine = FLOAT.einsum(spec, exact(x), exact(y)).data
        np.testing.assert_allclose(mine, np.einsum(spec, x, y), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("factor", [Fraction(1), Fraction(1, 2)])
def test_the_exponential_of_so_many_less_as_many_is_one(factor: Fraction) -> None:
    """A softmax of equal numbers is 1 by their count; of others it stays what it is."""
    table = TermTable()
    terms, x, y = TermInterpreter(table), table.symbol("x"), table.symbol("y")
    equal = exact(np.array([factor * x, factor * x, factor * x], dtype=object))
    (softmax,) = apply_forward(terms, "softmax", [equal], {"dim": 0})
    assert {entry.value for entry in softmax.data} == {Fraction(1, 3)}
    assert terms.applied_to("exp", factor * (x - x)) is table.one
    assert terms.applied_to("exp", factor * x - factor * x) is table.one
    for entry in (x - y, x + x, 2 * x - x, factor * (y - x), x * y - x):
        assert terms.applied_to("exp", entry).kind == "app"


@given(st.integers(0, 2**32), st.integers(0, 6), st.integers(1, 6))
def test_a_product_with_a_one_hot_is_the_rows_that_it_chooses(
    seed: int, start: int, size: int
) -> None:
    """Ids before and behind the table's have rows of zeros; what is made of a one-hot is an array
    like others, and so is a product with it that chooses no rows."""
    rng = np.random.default_rng(seed)
    ids, table = rng.integers(-2, 10, (2, 3)), rng.normal(size=(size, 4))
    chosen = FLOAT.onehot(exact(ids.astype(float)), affine(start), size)
    dense = (ids[..., None] == np.arange(start, start + size)).astype(float)
    np.testing.assert_array_equal(chosen.data, dense)
    for spec in ("aby,yz->abz", "aby,yz->zba", "aby,yz->az"):
        mine = FLOAT.einsum(spec, chosen, exact(table)).data
        np.testing.assert_allclose(mine, np.einsum(spec, dense, table), rtol=1e-12)
    twice = FLOAT.combine([chosen], [Fraction(2)], ZERO)
    mine = FLOAT.einsum("aby,yz->abz", twice, exact(table)).data
    np.testing.assert_allclose(mine, 2 * np.einsum("aby,yz->abz", dense, table), rtol=1e-12)


@pytest.mark.parametrize("divisor", [3, 4, 50257])
def test_quotients_of_large_whole_numbers_are_rounded_down(divisor: int) -> None:
    """A sum that is whole but for rounding is whole; 3/4 beyond 250 millions are no rounding."""
    numbers = np.arange(2**30 - 2 * divisor, 2**30, max(1, divisor // 7))
    down = FLOAT._unary("floor", numbers / divisor)
    assert np.array_equal(down, numbers // divisor)
    assert FLOAT._unary("floor", np.array([0.1 + 0.2 + 0.7 - 1e-16]))[0] == 1

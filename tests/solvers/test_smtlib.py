"""The text of an obligation: golden bytes, exact constants, names, sharing, depth."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardproof.engine.algebra.terms import TermTable
from shardproof.solvers.answers import Query
from shardproof.solvers.portfolio import Portfolio
from shardproof.solvers.smtlib import constant, decode_name, emit, encode_name, outline

LINEAR = """\
(set-logic QF_UFLRA)
(declare-fun d () Real)
(declare-fun inv (Real) Real)
(declare-fun prod (Real Real) Real)
(declare-fun x () Real)
(declare-fun |layers 0/w| () Real)
(define-fun ?0 () Real (inv d))
(assert (= (prod d ?0) 1.0))
(assert (not (and (= (+ x (* (- (/ 1 100000)) (prod (prod ?0 x) |layers 0/w|))) 2.0) (= x x))))
(check-sat)
"""

NONLINEAR = """\
(set-logic QF_UFNRA)
(declare-fun d () Real)
(declare-fun inv (Real) Real)
(declare-fun x () Real)
(declare-fun |layers 0/w| () Real)
(define-fun ?0 () Real (inv d))
(assert (= (* d ?0) 1.0))
(assert (not (and (= (+ x (* (- (/ 1 100000)) (* |layers 0/w| x ?0))) 2.0) (= x x))))
(check-sat)
"""


def golden(rung: str) -> str:
    table = TermTable()
    x, w, d = table.symbol("x"), table.symbol("layers 0/w"), table.symbol("d")
    inverse = table.app("inv", d)
    goals = [(x - table.const(1e-05) * (w * (x * inverse)), table.const(2)), (x, x)]
    return emit(goals, [(d * inverse, table.one)], rung)  # type: ignore[arg-type]


def test_the_text_of_both_rungs() -> None:
    assert golden("linear") == LINEAR
    assert golden("nonlinear") == NONLINEAR


@given(st.fractions())
def test_constants_are_exact_and_have_no_exponent(value: Fraction) -> None:
    text = constant(value)
    assert "e" not in text.lower()
    read = text.replace("(", " ").replace(")", " ").split()
    numbers = [Fraction(token) for token in read if token not in "-/"]
    exact = numbers[0] / numbers[1] if "/" in read else numbers[0]
    assert (-exact if "-" in read else exact) == value


@given(st.text(min_size=1), st.text(min_size=1))
def test_names_survive_spelling(first: str, second: str) -> None:
    assert decode_name(encode_name(first)) == first
    assert (encode_name(first) == encode_name(second)) == (first == second)


@given(st.sampled_from(["prod", "?0", "and", "abs", "exp", "a|b", "a\\b", "50%", "π", "-", "|"]))
def test_no_name_is_taken_for_something_else(name: str) -> None:
    table = TermTable()
    x = table.symbol("x")
    text = emit([(table.app(name, x, x) * x, x * x)], [], "linear")
    assert f"(declare-fun {encode_name(name)} (Real Real) Real)" in text
    assert encode_name(name) not in ("prod", "?0", "and", "abs", "exp", "-")
    assert text.isascii()


def test_operator_names_mean_nothing_to_either_solver() -> None:
    names = frozenset(
        [
            "exp",
            "log",
            "inv",
            "sqrt",
            "rsqrt",
            "silu",
            "gelu",
            "relu",
            "sigmoid",
            "tanh",
            "sin",
            "cos",
            "tan",
            "pi",
            "erf",
            "abs",
            "max",
            "min",
            "floor",
            "ceil",
            "round",
            "sign",
            "pow",
            "pow2",
            "exp2",
            "log2",
            "softmax",
            "topk",
            "sort",
            "argmax",
            "sum",
            "mean",
            "step",
            "select",
            "store",
            "where",
            "ite",
            "index",
            "gather",
            "concat",
            "map",
            "iand",
            "div",
            "mod",
            "to_int",
            "to_real",
            "is_int",
            "distinct",
            "implies",
            "iff",
            "set",
            "seq",
            "tuple",
            "lambda",
            "bag",
            "table",
            "rel",
            "update",
            "repeat",
            "re",
            "str",
            "char",
            "extract",
            "root-obj",
            "at-most",
            "pb",
            "const",
            "union",
            "inter",
            "member",
            "card",
            "len",
            "nth",
            "rev",
            "subset",
            "complement",
            "sets.max",
            "emptyset",
        ]
    )
    table = TermTable()
    x, y = table.symbol("x"), table.symbol("y")
    queries = [
        Query.of(f"{name}/{arity}", [(table.app(name, *args), table.const(n))])
        for n, name in enumerate(sorted(names))
        for arity, args in ((1, (x,)), (2, (x, y)))
    ]
    queries += [Query.of(name, [(table.symbol(name), table.const(3))]) for name in sorted(names)]
    with Portfolio("both", timeout=10) as portfolio:
        solved = portfolio.solve_batch(queries)
    assert {key: s.answers for key, s in solved.items() if s.verdict != "sat"} == {}
    assert "extract" in solved["extract"].model


def test_the_bytes_do_not_depend_on_the_order_of_creation() -> None:
    def build(table: TermTable) -> str:
        x, y = table.symbol("x"), table.symbol("y")
        return emit([(x * y + y * x, 2 * (y * x))], [], "linear")

    fresh, used = TermTable(), TermTable()
    used.app("f", used.symbol("y")) * used.symbol("y") + used.symbol("x")
    assert build(fresh) == build(used)


def test_goals_of_one_outline_have_one_text_and_others_another_outline() -> None:
    def goals(name: str = "x", constant: str = "1/3", fn: str = "inv", swapped: bool = False):  # type: ignore[no-untyped-def]
        table = TermTable()
        if swapped:
            table.symbol("y")  # made earlier: another number, the same place
        x, y = table.symbol(name), table.symbol("y")
        left, right = table.app(fn, x) * y + Fraction(constant), x * (y + x)
        return [(left, right), (x, y)]

    same = goals(), goals(swapped=True)
    assert outline(same[0]) == outline(same[1])
    assert Query.of("", same[0]) == Query.of("", same[1])
    others = [goals("z"), goals(constant="2/3"), goals(fn="exp"), goals()[::-1], goals()[:1]]
    texts = {Query.of("", each).nonlinear_text for each in (same[0], *others)}
    assert len({outline(each) for each in (same[0], *others)}) == len(texts) == 6


def test_factors_of_an_uninterpreted_product_have_one_order() -> None:
    table = TermTable()
    x, y, z = map(table.symbol, "xyz")
    text = emit([((x * y) * z, z * (y * x))], [], "linear")
    assert "(= (prod (prod x y) z) (prod (prod x y) z))" in text


def test_sums_are_written_flat_unless_shared() -> None:
    table = TermTable()
    x, y, z = map(table.symbol, "xyz")
    assert "(= (+ x y z x) (+ x (+ y z)))" not in emit([(((x + y) + z) + x, x)], [], "linear")
    assert "(= (+ x y z x) x)" in emit([(((x + y) + z) + x, x)], [], "linear")
    shared = x + y
    text = emit([(shared + z, shared)], [], "linear")
    assert "(define-fun ?0 () Real (+ x y))" in text
    assert "(= (+ ?0 z) ?0)" in text


@pytest.mark.parametrize("rung", ["linear", "nonlinear"])
def test_deep_terms_need_no_recursion_here_or_in_the_solvers(rung: str) -> None:
    table = TermTable()
    x = table.symbol("x")
    left = right = nested = x
    for _ in range(100_000):
        left, right, nested = left + x, x + right, table.app("f", nested)
    text = emit([(left, right), (nested, nested)], [], rung)  # type: ignore[arg-type]
    assert max(map(len, text.splitlines())) < 500_000
    with Portfolio("both", timeout=30) as portfolio:
        solved = portfolio.solve(Query("deep", text, ""))
    assert [a.verdict for a in solved.answers] == ["unsat", "unsat"]


def test_an_obligation_needs_a_goal_and_consistent_names() -> None:
    table = TermTable()
    x = table.symbol("x")
    with pytest.raises(ValueError, match="without goals"):
        emit([], [(x, x)], "linear")
    with pytest.raises(ValueError, match="'f' is used with 1 and with 2 arguments"):
        emit([(table.app("f", x), table.app("f", x, x))], [], "linear")
    with pytest.raises(ValueError, match="'x' is used with 0 and with 1 arguments"):
        emit([(x, table.app("x", x))], [], "linear")

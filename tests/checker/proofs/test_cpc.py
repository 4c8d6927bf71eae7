"""The proof checker: real proofs are followed, changed ones are rejected at the step."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from shardproof.checker.proofs.cpc import check_proof
from shardproof.checker.proofs.rules import RULES
from shardproof.checker.proofs.terms import NotCovered, Rejected
from shardproof.engine.algebra.terms import TermTable
from shardproof.solvers import Portfolio, Query

TEXT = """(set-logic QF_UFNRA)
(declare-fun x () Real)
(declare-fun y () Real)
(declare-fun f (Real Real) Real)
(define-fun ?0 () Real (+ x y))
(assert (not (and (= (* 2.0 ?0) (+ (* 2.0 y) (* 2.0 x))) (= (f ?0 x) (f (+ x y) x)))))
(check-sat)
"""

#: A proof by hand, with every rule but the trivial ones.
PROOF = """(
(declare-const x Real)
(declare-const y Real)
(declare-const f (-> Real Real Real))
(define ?0 () (+ x y))
(define @t1 () (= (* 2/1 ?0) (+ (* 2/1 y) (* 2/1 x))))
(define @t2 () (= (f ?0 x) (f (+ x y) x)))
(define @t3 () (not (and @t1 @t2)))
(assume @p1 @t3)
(step @p2 :rule arith_poly_norm :args (@t1))
(step @p3 :rule refl :args ((+ (* 2/1 y) (* 2/1 x))))
(step @p4 :rule cong :premises (@p2 @p3) :args (@t1))
(step @p5 :rule eq-refl :args ((+ (* 2/1 y) (* 2/1 x))))
(step @p6 (= @t1 true) :rule trans :premises (@p4 @p5))
(step @p7 :rule eq-refl :args ((f ?0 x)))
(step @p8 :rule nary_cong :premises (@p6 @p7) :args ((and @t1 @t2)))
(step @p9 :rule evaluate :args ((and true true)))
(step @p10 :rule trans :premises (@p8 @p9))
(step @p11 :rule cong :premises (@p10) :args (@t3))
(step @p12 :rule evaluate :args ((not true)))
(step @p13 :rule trans :premises (@p11 @p12))
(step @p14 false :rule eq_resolve :premises (@p1 @p13))
)
"""


def test_a_proof_by_hand_holds() -> None:
    found = check_proof(TEXT, PROOF)
    assert found.steps == 13
    assert found.rules["trans"] == 3


#: (what is replaced, by what, what is said)
CHANGES: dict[str, tuple[str, str, str]] = {
    "a definition that is another": (
        "(+ x y))\n(define @t1",
        "(+ x x))\n(define @t1",
        "@p1 assumes",
    ),
    "another assumption": ("(assume @p1 @t3)", "(assume @p1 false)", "@p1 assumes what the text"),
    "another polynomial": (
        "(* 2/1 y) (* 2/1 x))))\n(define @t2",
        "(* 2/1 y) x)))\n(define @t2",
        "assumes",
    ),
    "a wrong norm": (
        ":args (@t1))\n(step @p3",
        ":args ((= x y)))\n(step @p3",
        "@p2 does not follow",
    ),
    "a value that is another": ("(not true)", "(not false)", "@p13 does not follow by trans"),
    "a value with symbols": ("((and true true))", "((= x x))", "evaluate of a term with symbols"),
    "a premise too few": ("(@p4 @p5)", "(@p4)", "@p6 does not follow by trans: it says something"),
    "no premise": (":premises (@p4 @p5)", "", "@p6: trans takes other premises"),
    "premises in another order": ("(@p4 @p5)", "(@p5 @p4)", "@p6 does not follow by trans"),
    "premises about other operands": ("(@p6 @p7)", "(@p7 @p6)", "@p8 does not follow by nary_cong"),
    "a premise that comes later": ("(@p6 @p7)", "(@p6 @p9)", "@p8 rests on @p9"),
    "another statement": ("(= @t1 true)", "(= @t1 false)", "@p6 does not follow by trans"),
    "a resolution with another fact": (
        "(@p1 @p13)",
        "(@p2 @p13)",
        "@p14 does not follow by eq_res",
    ),
    "another end": ("(step @p14 false", "(step @p14 true", "@p14 does not follow"),
    "no end": ("(step @p14 false :rule eq_resolve :premises (@p1 @p13))", "", "is not false"),
    "false called true": (
        "(declare-const x Real)",
        "(define false () true)",
        "it says something else",
    ),
    "a rule of trust": (":rule refl", ":rule trust", "the rule trust"),
    "an unknown field": (":rule refl", ":rule refl :by nobody", "is no step"),
    "a parenthesis too few": ("(@p1 @p13))\n)", "(@p1 @p13))", "not a list of forms"),
    "a parenthesis too many": ("(@p1 @p13))\n)", "(@p1 @p13)))\n)", "more parentheses"),
    "a quote that is left open": ("(step @p9", "(step |p9", "not a list of forms"),
    "a number over 0": ("(= (* 2/1 ?0)", "(= (* 2/0 ?0)", "a number over 0"),
    "an assumption inside": (
        "(assume @p1 @t3)",
        "(assume-push @p1 @t3)",
        "the command assume-push",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_proof_is_not_accepted(name: str) -> None:
    old, new, said = CHANGES[name]
    assert old in PROOF
    changed = PROOF.replace(old, new, 1)
    with pytest.raises((Rejected, NotCovered)) as caught:
        check_proof(TEXT, changed)
    assert re.search(said, str(caught.value))


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.9, 0.99])
def test_a_truncated_proof_is_rejected(share: float) -> None:
    with pytest.raises(Rejected, match=r"not a list of forms|last step is not false"):
        check_proof(TEXT, PROOF[: int(len(PROOF) * share)])


def test_a_proof_of_another_text_is_rejected() -> None:
    with pytest.raises(Rejected, match="@p1 assumes what the text does not assert"):
        check_proof(TEXT.replace("2.0 x", "3.0 x"), PROOF)


def test_deep_nesting_is_rejected() -> None:
    deep = "(not " * 100_000 + "true" + ")" * 100_000
    with pytest.raises(Rejected, match="nested too deeply"):
        check_proof(TEXT, f"((assume @p1 {deep}))")


def test_a_polynomial_that_explodes_is_not_followed() -> None:
    many = " ".join(f"(+ a{i} b{i})" for i in range(64))
    claim = f"(= (* {many}) (* {many} 1/1))"
    with pytest.raises(NotCovered, match="large product"):
        check_proof(TEXT, f"((step @p1 :rule arith_poly_norm :args ({claim})))")


@pytest.mark.parametrize(
    ("claim", "holds"),
    [
        ("(= (and x (and y x)) (and y x))", True),
        ("(= (+ x (+ y x)) (+ y x x))", True),
        ("(= (+ x (+ y x)) (+ y x))", False),
        ("(= (and x y) (or x y))", False),
        ("(= (* x 1/1) x)", True),
    ],
)
def test_joining_is_by_sets_or_by_multisets(claim: str, holds: bool) -> None:
    proof = f"((step @p1 :rule aci_norm :args ({claim})))"
    with pytest.raises(
        Rejected, match="last step is not false" if holds else "do not join the same"
    ):
        check_proof(TEXT, proof)


@pytest.fixture(scope="module")
def cvc5() -> Iterator[Portfolio]:
    with Portfolio("cvc5", timeout=20) as portfolio:
        yield portfolio


def test_proofs_of_cvc5_are_followed(cvc5: Portfolio) -> None:
    """Of a sum over shards on the linear rung, and of distribution on the other."""
    table = TermTable()
    x, y, z = (table.symbol(name) for name in "xyz")
    f = table.app("f", x + y)
    linear = Query.of("", [(x * f + y * f, y * f + x * f), (x / 3 * 3 + y, y + x)]).linear_text
    square = Query.of("", [((x + y) * (z + f), x * z + y * z + f * x + f * y)]).nonlinear_text
    for text in (linear, square):
        answer = cvc5.prove(text)
        assert answer.verdict == "unsat"
        assert check_proof(text, answer.proof).rules.keys() <= RULES.keys()
        with pytest.raises(Rejected, match="assumes what the text does not assert"):
            check_proof(text.replace("(assert (not", "(assert (or", 1), answer.proof)


# -- found by fuzzing: what is no proof is said to be none, in bounded time ----------------------


def chain(first: str, links: str, length: int) -> str:
    """Definitions each of which says the one before it (and the one before that) more than once."""
    lines = [f"(define @a0 () {first})", f"(define @a1 () {first})"]
    for n in range(2, length):
        lines.append(f"(define @a{n} () {links.format(n - 1, n - 2)})")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("proof", "error", "says"),
    [
        ("(step @p1 :rule refl (a) b)", Rejected, "@p1 is no step"),
        ("(define @a () (let))", Rejected, "a let without names and a body"),
        ("(define @a () (let ((b 1))))", Rejected, "a let without names and a body"),
        (f"(define @a () {'1' * 5000})", NotCovered, "a number of more than 4000 digits"),
        (f"(define @a () 1/{'1' * 5000})", NotCovered, "a number of more than 4000 digits"),
        (
            chain("2", "(* @a{0} @a{0})", 60) + "(step @p1 :rule evaluate :args (@a59))",
            NotCovered,
            "a number of more than 4000 digits",
        ),
        (
            chain("2", "(* @a{0} @a{0})", 60)
            + "(step @p1 :rule arith_poly_norm :args ((= @a59 @a58)))",
            NotCovered,
            "a number of more than 4000 digits",
        ),
        (
            chain("x", "(+ @a{0} @a{1})", 90) + "(step @p1 :rule aci_norm :args ((= @a89 @a88)))",
            NotCovered,
            "aci_norm of a large term",
        ),
    ],
)
def test_what_is_no_proof_is_refused(proof: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        check_proof(TEXT, f"(declare-const x Real)\n{proof}")


def test_a_term_is_worked_out_once_however_often_it_occurs() -> None:
    text = "(assert (not (= 1 1)))"
    steps = """(assume @p1 (not (= 1 1)))
(step @p2 :rule evaluate :args ((= @a149 @a149)))
(step @p3 :rule evaluate :args ((not (= 1 1))))
(step @p4 false :rule eq_resolve :premises (@p1 @p3))"""
    assert check_proof(text, chain("0", "(+ @a{0} @a{1})", 150) + steps).steps == 3

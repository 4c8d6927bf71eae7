"""What the portfolio concludes: detections and their proved twins, the ladder, agreement."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardproof.engine.algebra.terms import Term, TermTable
from shardproof.solvers import child
from shardproof.solvers import portfolio as module
from shardproof.solvers.answers import Answer, Query, SolverDisagreement
from shardproof.solvers.configurations import CONFIGURATIONS, Configuration
from shardproof.solvers.portfolio import Mode, Portfolio


def symbols(table: TermTable, name: str, *shape: int) -> np.ndarray[Any, Any]:
    array = np.empty(shape, dtype=object)
    for index in np.ndindex(*shape):
        array[index] = table.symbol(name + "".join(map(str, index)))
    return array


def row_parallel(ranks: int, addends: int) -> list[tuple[Term, Term]]:
    """A linear layer over ``ranks`` shards of its input axis, of which ``addends`` are summed."""
    table = TermTable()
    x, w = symbols(table, "x", 2, 2 * ranks), symbols(table, "w", 3, 2 * ranks)
    whole = np.einsum("bk,nk->bn", x, w)
    shards = zip(np.split(x, ranks, axis=1), np.split(w, ranks, axis=1), strict=True)
    partial = [np.einsum("nk,bk->bn", w_i, x_i) for x_i, w_i in shards]
    return list(zip(whole.flat, sum(partial[:addends]).flat, strict=True))


def distributed() -> list[tuple[Term, Term]]:
    """An identity that needs products to be products."""
    x, y, z = three()
    return [((x + y) * z, x * z + y * z)]


def three() -> list[Term]:
    table = TermTable()
    return [table.symbol(name) for name in "xyz"]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no reason for a race: nobody joins before some seconds are over."""
    patient = tuple(replace(c, after=c.after * 100) for c in CONFIGURATIONS)
    monkeypatch.setattr(module, "CONFIGURATIONS", patient)


@pytest.fixture(scope="module")
def solver() -> Iterator[Portfolio]:
    with Portfolio(timeout=10) as portfolio:
        yield portfolio


@pytest.mark.parametrize("mode", ["portfolio", "z3", "cvc5", "both"])
def test_a_missing_addend_is_found_and_its_repair_is_proved(mode: Mode) -> None:
    with Portfolio(mode, timeout=10) as portfolio:
        solved = portfolio.solve_batch(
            [
                Query.of("all addends", row_parallel(4, 4)),
                Query.of("last addend missing", row_parallel(4, 3)),
            ]
        )
    proved, found = solved["all addends"], solved["last addend missing"]
    assert (proved.verdict, proved.rung) == ("unsat", "linear")
    assert (found.verdict, found.rung) == ("sat", "nonlinear")
    model = {name: Fraction(value) for name, value in found.model.items()}
    missing = [
        sum(model[f"x{b}{k}"] * model[f"w{n}{k}"] for k in (6, 7))
        for b in (0, 1)
        for n in (0, 1, 2)
    ]
    assert any(missing), "the counterexample must make the missing addend visible"
    solvers = {"both": ["z3", "cvc5"], "cvc5": ["cvc5"]}.get(mode, ["z3"])
    assert [a.solver for a in proved.answers][: len(solvers)] == solvers
    assert all(a.version and a.seconds > 0 and a.rss_mib > 1 for a in proved.answers)


def test_the_ladder_goes_on_when_products_must_be_products(solver: Portfolio) -> None:
    solved = solver.solve(Query.of("distribution", distributed()))
    assert (solved.verdict, solved.rung) == ("unsat", "nonlinear")
    assert [a.verdict for a in solved.answers] == ["sat", "unsat"]


def test_without_products_the_linear_rung_is_the_last(solver: Portfolio) -> None:
    x, y, _ = three()
    query = Query.of("linear", [(x + y, x + 2 * y)])
    assert query.nonlinear_text == ""
    solved = solver.solve(query)
    assert (solved.verdict, solved.rung) == ("sat", "linear")
    assert Fraction(solved.model["y"]) != 0


def test_hypotheses_are_used(solver: Portfolio) -> None:
    x, y, z = three()
    goal = [(x * z, y * z)]
    assert solver.solve(Query.of("without", goal)).verdict == "sat"
    assert solver.solve(Query.of("with", goal, [(x, y)])).verdict == "unsat"


def test_models_name_the_symbols_and_stay_exact() -> None:
    table = TermTable()
    w, y = table.symbol("layers.0/w|q"), table.symbol("y")
    goal = [(table.app("f", w), table.app("f", w) + y * y - 2)]
    for mode in ("z3", "cvc5"):
        with Portfolio(mode) as portfolio:  # type: ignore[arg-type]
            given_w = Query.of("third", goal, [(3 * w, table.const(1)), (2 * y, table.const(-3))])
            solved = portfolio.solve(given_w)
            irrational = portfolio.solve(Query.of("root", [(w, w + 1)], [(y * y, table.const(2))]))
        assert dict(solved.model) == {"layers.0/w|q": "1/3", "y": "-3/2"}
        assert irrational.verdict == "sat"
        assert irrational.model["y"]


def test_verdicts_come_one_by_one_in_order(solver: Portfolio) -> None:
    queries = [Query.of(f"layer {i}", row_parallel(2, 2 - i % 2)) for i in range(6)]
    keys = [key for key, _ in solver.solve_each(iter(queries))]
    assert keys == [q.key for q in queries]
    with pytest.raises(ValueError, match="'layer 0'"):
        solver.solve_batch([queries[0], queries[0]])


def test_repeated_runs_agree_to_the_last_value() -> None:
    def models() -> list[dict[str, str]]:
        with Portfolio("z3", seed=7) as portfolio:
            solved = portfolio.solve_batch([Query.of(str(i), row_parallel(3, i)) for i in (1, 2)])
        return [dict(s.model) for s in solved.values()]

    assert models() == models()


def answer(solver: Any, verdict: Any) -> Answer:
    return Answer(verdict, solver, "1.0", 0.001, 50.0)


def test_a_disagreement_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [answer("z3", "unsat"), answer("cvc5", "sat")]
    portfolio = Portfolio("both")
    monkeypatch.setattr(portfolio, "_solve_text", lambda text, rung, want_model: answers)
    with pytest.raises(SolverDisagreement) as caught:
        portfolio.solve_batch([Query("layers.0.attention.wq", "text", "")])
    assert str(caught.value) == (
        "the solvers disagree on layers.0.attention.wq (linear rung): "
        "z3 1.0 says unsat, cvc5 1.0 says sat"
    )


@pytest.mark.parametrize(
    ("mode", "first", "second", "expected"),
    [
        ("both", "unsat", "unsat", "unsat"),
        ("both", "unsat", "timeout", "timeout"),
        ("both", "unknown", "unsat", "unknown"),
        ("both", "sat", "sat", "sat"),
        ("portfolio", "unknown", "unsat", "unsat"),
        ("portfolio", "timeout", "memory", "timeout"),
    ],
)
def test_both_decides_only_what_both_decide(
    monkeypatch: pytest.MonkeyPatch, mode: Mode, first: str, second: str, expected: str
) -> None:
    portfolio = Portfolio(mode)
    answers = [answer("z3", first), answer("cvc5", second)]
    monkeypatch.setattr(portfolio, "_solve_text", lambda text, rung, want_model: answers)
    assert portfolio.solve(Query("q", "text", "")).verdict == expected


def test_slow_texts_are_raced_and_the_loser_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = tuple(replace(c, after=0.0) for c in CONFIGURATIONS)
    monkeypatch.setattr(module, "CONFIGURATIONS", at_once)
    with Portfolio(timeout=10) as portfolio:
        for i in range(4):
            solved = portfolio.solve(Query.of(str(i), row_parallel(2, 2)))
            assert solved.verdict == "unsat"


def test_cvc5_answers_where_z3_takes_long() -> None:
    table = TermTable()
    power = table.symbol("x")
    for _ in range(30):
        power = power * power
    query = Query.of("x to the 2**30", [(power, power)])
    with Portfolio(timeout=20) as portfolio:
        solved = portfolio.solve(Query(query.key, query.nonlinear_text, ""))
        assert solved.verdict == "unsat"
        assert [a.solver for a in solved.answers if a.verdict == "unsat"] == ["cvc5"]
        assert portfolio.solve(Query.of("next", row_parallel(2, 2))).verdict == "unsat"


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="'yices' is none of portfolio, z3, cvc5, both"):
        Portfolio("yices")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="limits must be positive"):
        Portfolio(timeout=0)


# -- configurations
# ---------------------------------------------------------------------------------


def test_the_cheapest_configuration_answers_alone(solver: Portfolio) -> None:
    solved = solver.solve(Query.of("distribution", distributed()))
    assert [a.configuration for a in solved.answers] == ["z3", "z3"]


def test_a_solver_that_is_not_up_yet_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Were the time that a solver takes to start that of the text, the other one would be started
    for the first text of every run on a busy machine."""
    slow = tmp_path / "worker.py"
    slow.write_text(
        "import runpy, sys, time\ntime.sleep(1.5)\n"
        f"runpy.run_path({child._WORKER!r}, run_name='__main__')\n"
    )
    monkeypatch.setattr(child, "_WORKER", str(slow))
    early = tuple(replace(c, after=1.0 if c.after else 0.0) for c in CONFIGURATIONS)
    monkeypatch.setattr(module, "CONFIGURATIONS", early)
    with Portfolio() as portfolio:
        solved = portfolio.solve(Query.of("distribution", distributed()))
        assert solved.verdict == "unsat"
        assert set(portfolio._children) == {"z3"}


@pytest.mark.parametrize("only", CONFIGURATIONS, ids=[c.name for c in CONFIGURATIONS])
def test_every_configuration_proves_and_refutes(
    only: Configuration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each by itself, on texts without functions; and it never proves what is false."""
    monkeypatch.setattr(module, "CONFIGURATIONS", (replace(only, after=0.0),))
    x, y, z = three()
    true = Query.of("true", [((x + y) * z, x * z + y * z)]).nonlinear_text
    false = Query.of("false", [((x + y) * z, x * z + y)]).nonlinear_text
    with Portfolio(only.solver, timeout=10) as portfolio:
        said = [portfolio._solve_text(t, "nonlinear", want_model=False) for t in (true, false)]
        assert [[(a.verdict, a.configuration) for a in answers] for answers in said] == [
            [("unsat", only.name)],
            [("sat", only.name)],
        ]
        assert ("z3 nlsat" in portfolio._children) is False


@pytest.mark.parametrize("only", CONFIGURATIONS, ids=[c.name for c in CONFIGURATIONS])
def test_no_configuration_takes_functions_for_symbols(
    only: Configuration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """x² = y² does not make f(x) = f(y); with x = y it does."""
    monkeypatch.setattr(module, "CONFIGURATIONS", (replace(only, after=0.0),))
    table = TermTable()
    x, y = table.symbol("x"), table.symbol("y")
    f_x, f_y = table.app("f", x), table.app("f", y)
    goal = [(f_x * x, f_y * y)]
    squares = Query.of("squares", goal, [(x * x, y * y)]).nonlinear_text
    same = Query.of("same", goal, [(x, y)]).nonlinear_text
    with Portfolio(only.solver, timeout=5) as portfolio:
        assert portfolio._solve_text(squares, "nonlinear", want_model=False)[0].verdict != "unsat"
        assert portfolio._solve_text(same, "nonlinear", want_model=False)[0].verdict != "sat"


def test_a_stubborn_text_is_given_to_further_configurations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    give_up = tuple(replace(c, after=0.0) for c in CONFIGURATIONS)
    monkeypatch.setattr(module, "CONFIGURATIONS", give_up)
    ask = Portfolio._ask

    def noted(self: Portfolio, configuration: Configuration, text: str, want: bool) -> Any:
        asked.append(configuration.name)
        return ask(self, configuration, text, want)

    monkeypatch.setattr(Portfolio, "_ask", noted)
    with Portfolio(timeout=10) as portfolio:
        solved = portfolio.solve(Query.of("distribution", distributed()))
        assert solved.verdict == "unsat"
        assert asked == ["z3", "cvc5", *(c.name for c in CONFIGURATIONS)]
        assert set(portfolio._children) <= {"z3", "cvc5"}


# -- proofs
# -----------------------------------------------------------------------------------------


def test_a_proof_comes_with_the_verdict(solver: Portfolio) -> None:
    text = Query.of("row parallel", row_parallel(2, 2)).linear_text
    answer = solver.prove(text)
    assert (answer.verdict, answer.solver, answer.configuration) == ("unsat", "cvc5", "cvc5")
    assert answer.proof.startswith("(")
    assert ":rule eq_resolve" in answer.proof
    assert "trust" not in answer.proof


def test_what_is_false_has_no_proof(solver: Portfolio) -> None:
    answer = solver.prove(Query.of("missing", row_parallel(2, 1)).linear_text)
    assert (answer.verdict, answer.proof) == ("sat", "")


def test_only_who_asks_gets_a_proof(solver: Portfolio) -> None:
    solved = solver.solve(Query.of("row parallel", row_parallel(2, 2)))
    assert all(a.proof == "" for a in solved.answers)

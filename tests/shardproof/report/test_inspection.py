"""`shardproof inspect`: what is in a plan or a run, as data and as tables."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest

from shardproof.cluster.settings import Settings
from shardproof.cluster.verdicts.ledger import Ledger, text_key
from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan_files import store
from shardproof.engine.records.certificate import Certificate, write_certificate
from shardproof.report import inspection as views
from shardproof.report import terminal as report
from shardproof.report.html.collect import collect
from shardproof.solvers import Answer, Query, Solved
from tests.shardproof.faces import assert_golden, proved, tiny


def text(data: views.Data) -> str:
    stream = StringIO()
    report.show(lambda to: views.write(data, to), stream)
    return stream.getvalue()


@pytest.fixture
def finished_run(tmp_path: Path) -> Path:
    """The directory of a run that has ended, with two verdicts on record."""
    folder = tmp_path / "run"
    queries = [Query(str(n), f"text {n}", "") for n in range(2)]
    answer = Answer("unsat", "z3", "5", 0.25, 10.0)
    with Ledger(folder) as ledger:
        for query in queries:
            solved = {text_key(query): Solved("unsat", "linear", (answer,))}
            ledger.append(solved, Settings().options)
    store.save(tiny(), folder / "plan")
    (folder / "result.json").write_text(proved().to_json())
    return folder


def test_a_plan_as_tables(tmp_path: Path) -> None:
    store.save(tiny(pp=2, layers=2), tmp_path / "plan")
    assert_golden("inspect-plan.txt", text(views.look(tmp_path / "plan")))


def test_a_plan_as_data(tmp_path: Path) -> None:
    store.save(tiny(), tmp_path / "plan")
    data = json.loads(json.dumps(views.look(tmp_path / "plan")))
    assert list(data) == [
        "kind",
        "name",
        "ranks",
        "microbatches",
        "replica_axes",
        "loss",
        "notes",
        "programs",
        "operators",
        "parameters",
        "communication",
    ]
    assert [(p["side"], p["ranks"]) for p in data["programs"]] == [("single", 1), ("parallel", 4)]
    for side in ("single", "parallel"):
        issued = sum(p["issued"] for p in data["programs"] if p["side"] == side)
        assert issued == sum(row[side] for row in data["operators"])
    weight = next(p for p in data["parameters"] if p["name"] == "output.weight")
    assert weight == {
        "name": "output.weight",
        "trainable": True,
        "shape": [10, 8],
        "parts": [[5, 8]],
        "ranks": 4,
    }
    assert data["communication"][0]["name"] == "all_reduce"


def test_an_nnscaler_plan_has_one_side(shared_plans: Path) -> None:
    path = next(shared_plans.glob("llama3_default_dp2_pp2_tp2_*"))
    data = views.look(path)
    assert {p["side"] for p in data["programs"]} == {"parallel"}
    assert data["ranks"] == 8
    assert {row["name"] for row in data["communication"]} >= {"send", "recv", "all_reduce"}


def test_a_run_as_tables(finished_run: Path) -> None:
    shown = text(views.look(finished_run))
    assert shown.startswith(
        "proved: the parallel plan computes what the single-device plan computes, for every input\n"
    )
    assert "\nverdicts  unsat 2\nsolvers   z3 2\ncached    0\nseconds   0.5\n" in shown
    assert "\nplan/programs.arrow " in shown


def test_a_run_as_data(finished_run: Path) -> None:
    data = views.look(finished_run)
    assert data["kind"] == "run"
    assert data["result"] == proved().to_dict()
    assert data["verdicts"] == {
        "verdicts": {"unsat": 2},
        "solvers": {"z3": 2},
        "cached": 0,
        "seconds": 0.5,
    }
    programs = next(f for f in data["files"] if f["name"] == "plan/programs.arrow")
    assert programs["rows"] == 2


def test_a_run_that_has_not_ended(finished_run: Path) -> None:
    (finished_run / "result.json").unlink()
    data = views.look(finished_run)
    assert data["result"] is None
    assert text(data).startswith(f"run {finished_run}: has not ended, or was interrupted\n")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("result.json", ": cannot be read: Expecting value: line 1 column 1 (char 0)"),
        ("verdicts.arrows", ": cannot be read: "),
        ("plan/programs.arrow", ": is no Arrow file: "),
    ],
)
def test_a_damaged_run_is_named(finished_run: Path, name: str, message: str) -> None:
    (finished_run / name).write_bytes(b"garbage")
    with pytest.raises(InvalidInput) as caught:
        views.look(finished_run)
    assert str(caught.value).startswith(f"{finished_run / name}{message}")


@pytest.mark.parametrize("verdict", ["proved", "refuted", "inconclusive"])
def test_a_result_has_the_verdict_of_its_certificate(finished_run: Path, verdict: str) -> None:
    own = Certificate(verdict=verdict, plan="", inputs={}, files={})
    write_certificate(finished_run, own)
    if verdict == "proved":
        assert views.look(finished_run)["result"] == proved().to_dict()
        return
    message = f"result.json: says proved, the certificate of the run {verdict}"
    for shown in (views.look, collect):
        with pytest.raises(InvalidInput, match=message):
            shown(finished_run)


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="expected a readable file"):
        views.look(tmp_path / "none")

"""A refutation is not believed either: the checker has to see a result that differs."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import shardproof
from shardproof.checker.result import Problems
from shardproof.checker.runtime import refuted
from shardproof.engine.findings import UNDECIDED
from shardproof.engine.plan_files import store
from shardproof.engine.plan_files.text import plan_text
from shardproof.engine.plan_files.text_parser import parse_plan
from shardproof.frontends.fx.files import side
from shardproof.frontends.fx.read import joined
from shardproof.frontends.graphs.relations import Relations
from tests.frontends.fx.graphs import Writer, labelled, reduced, write

AGREE = "the certificate says refuted, but run rank by rank both sides agree on each of 24 inputs"


def largest(rank: int = 0, ranks: int = 1, joins: bool = True) -> dict[str, Any]:
    """The largest rows of a, plus those of b, which every rank has; adding what is the same to all
    before the largest of all ranks is taken is right, and not known to be."""
    w = Writer(rank)
    a, b = w.given("a", (4 // ranks, 3)), w.given("b", (4, 3))
    rows = w.call("rows", "aten.amax.default", [a, [0]], (3,))
    others = w.call("others", "aten.amax.default", [b, [0]], (3,))
    total = w.call("total", "aten.add.Tensor", [rows, others], (3,))
    if ranks > 1 and joins:
        target = "_c10d_functional.all_reduce.default"
        total = w.call("sum", target, [total, "max", "7"], (3,))
        total = w.call("wait", "_c10d_functional.wait_tensor.default", [total], (3,))
    return w.output(total)


def run(folder: Path, joins: bool) -> str:
    """The verdict of a run in ``folder``/run."""
    single = write(folder / "single", [largest()])
    ranks = write(folder / "ranks", [largest(rank, 2, joins) for rank in range(2)])
    return shardproof.verify(single, ranks, out=folder / "run", cache=False).verdict


def test_a_refutation_is_seen_again(tmp_path: Path) -> None:
    assert run(tmp_path, joins=False) == "refuted"
    checked = shardproof.check(tmp_path / "run")
    assert checked.ok, checked.problems
    assert checked.notes == ()


def test_what_is_not_proved_cannot_be_called_refuted(tmp_path: Path) -> None:
    assert run(tmp_path, joins=True) == "inconclusive"
    path = tmp_path / "run" / "certificate.json"
    certificate = json.loads(path.read_text())
    path.write_text(json.dumps({**certificate, "verdict": "refuted"}))
    checked = shardproof.check(tmp_path / "run")
    assert not checked.ok
    assert AGREE in [problem.message for problem in checked.problems]


def beside(rank: int = 0, ranks: int = 1) -> dict[str, Any]:
    """sigmoid(-b), which ranks have as 1 - sigmoid(b), not known to be the same; and b, of which
    they have twice."""
    w = Writer(rank)
    b = w.given("b", (4, 3))
    negative = b if ranks > 1 else w.call("minus", "aten.neg.default", [b], (4, 3))
    gate = w.call("gate", "aten.sigmoid.default", [negative], (4, 3))
    if ranks > 1:
        gate = w.call("rest", "aten.rsub.Scalar", [gate, 1.0], (4, 3))
    twice = w.call("twice", "aten.mul.Scalar", [b, 1.0 * ranks], (4, 3))
    return w.output(gate, twice)


def test_rows_of_a_refutation_that_agree_are_no_other_conclusions(tmp_path: Path) -> None:
    single = write(tmp_path / "single", [beside()])
    ranks = write(tmp_path / "ranks", [beside(rank, 2) for rank in range(2)])
    result = shardproof.verify(single, ranks, out=tmp_path / "run", cache=False)
    assert result.verdict == "refuted"
    assert any(c.message.endswith(UNDECIDED) for c in result.conclusions)
    checked = shardproof.check(tmp_path / "run")
    assert checked.ok, checked.problems
    path = tmp_path / "run" / "result.json"
    path.write_text(path.read_text().replace(UNDECIDED, " (it agrees)"))
    checked = shardproof.check(tmp_path / "run")
    assert "result.json has other conclusions than the run" in [
        problem.message for problem in checked.problems
    ]


def small(rank: int = 0, ranks: int = 1, bound: float = 1e-4, out: str = "below") -> dict[str, Any]:
    """A square of small numbers, of which ranks cut off what is below a bound, or what is above."""
    w = Writer(rank)
    x = w.given("x", (4 // ranks,))
    y = w.call("y", "aten.mul.Tensor", [x, x], (4 // ranks,))
    if ranks > 1:
        both = [None, bound] if out == "above" else [bound]
        y = w.call("z", "aten.clamp.default", [y, *both], (4 // ranks,))
    return w.output(y)


@pytest.mark.parametrize(("bound", "out"), [(1e-5, "below"), (1e3, "above")])
def test_what_small_or_large_numbers_alone_show_is_seen(
    bound: float, out: str, tmp_path: Path
) -> None:
    (single,) = side(write(tmp_path / "single", [small()]))
    ranks = side(write(tmp_path / "ranks", [small(rank, 2, bound, out) for rank in range(2)]))
    problems = Problems()
    plan = joined(single, ranks, Relations())
    assert refuted.confirm(plan, problems) == ()
    assert not problems


def looked_up(rank: int = 0, ranks: int = 1) -> dict[str, Any]:
    """The one row of a table where an id is 2; on ranks twice of it."""
    w = Writer(rank)
    ids, zeros = w.given("ids", (4,), "int64"), w.given("zeros", (4,), "int64")
    table = w.given("table", (1, 3))
    rows = w.call("rows", "aten.embedding.default", [table, zeros], (4, 3))
    is_two = w.call("eq", "aten.eq.Scalar", [ids, 2], (4,), "bool")
    column = w.call("column", "aten.unsqueeze.default", [is_two, -1], (4, 1), "bool")
    kept = w.call("kept", "aten.mul.Tensor", [rows, column], (4, 3))
    return w.output(w.call("scaled", "aten.mul.Scalar", [kept, 1.0 * ranks], (4, 3)))


def test_ids_are_all_that_their_domain_has(tmp_path: Path) -> None:
    single = write(tmp_path / "single", [looked_up()])
    ranks = write(tmp_path / "ranks", [looked_up(rank, 2) for rank in range(2)])
    run, relations = tmp_path / "run", tmp_path / "relations.toml"
    relations.write_text("[domains]\nids = [0, 4]\nzeros = [0, 1]\n")
    result = shardproof.verify(single, ranks, relations=relations, out=run, cache=False)
    assert result.verdict == "refuted", result.reason
    checked = shardproof.check(run)
    assert checked.ok, checked.problems


def opaque(rank: int = 0, ranks: int = 1, wrong: str = "") -> dict[str, Any]:
    """An inverse, of which nothing is known, and a multiple of what it is taken of; ``wrong``:
    which of the two ranks have twice."""
    w = Writer(rank)
    a = w.given("a", (3, 3))
    times = {name: 2.0 if ranks > 1 and wrong == name else 1.0 for name in ("inverse", "plain")}
    inverse = w.call("inverse", "aten.linalg_inv.default", [a], (3, 3))
    inverse = w.call("scaled", "aten.mul.Scalar", [inverse, times["inverse"]], (3, 3))
    return w.output(inverse, w.call("plain", "aten.mul.Scalar", [a, times["plain"]], (3, 3)))


def called_refuted(run: Path) -> Any:
    """What the check says of a run once its certificate, and its result, say "refuted"."""
    result = json.loads((run / "result.json").read_text())
    told = {"verdict": "refuted", "reason": ""}
    (run / "result.json").write_text(json.dumps(result | told))
    certificate = json.loads((run / "certificate.json").read_text())
    reasons = [finding["message"] for finding in result["findings"]]
    changed = certificate | {"verdict": "refuted", "reasons": reasons}
    (run / "certificate.json").write_text(json.dumps(changed))
    return shardproof.check(run)


@pytest.mark.parametrize(("wrong", "verdict"), [("plain", "refuted"), ("inverse", "inconclusive")])
def test_a_difference_that_may_be_a_stand_ins_refutes_nothing(
    wrong: str, verdict: str, tmp_path: Path
) -> None:
    single = write(tmp_path / "single", [opaque()])
    ranks = write(tmp_path / "ranks", [opaque(rank, 2, wrong) for rank in range(2)])
    result = shardproof.verify(single, ranks, out=tmp_path / "run", cache=False)
    assert result.verdict == verdict, result.reason
    checked = shardproof.check(tmp_path / "run")
    assert checked.ok, checked.problems
    if verdict == "inconclusive":
        forged = called_refuted(tmp_path / "run")
        assert not forged.ok
        told = f"{AGREE} in all that depends on no stand-in"
        assert told in [problem.message for problem in forged.problems]


MEANINGLESS = {
    "operator": (("pick(%10", "pike(%10"), "operator pike is not declared"),
    "attribute": (("size=1, start=0}", "size=1, start=0, z=0}"), "attribute z of operator slice"),
    "collective": (('op="sum"', 'op="band"'), "all_reduce with band"),
    "single": (("= add(%7) {other=1/1}", "= div(%7) {other=0/1}"), "division by the constant zero"),
}


@pytest.mark.parametrize("change", ["", *MEANINGLESS])
def test_a_plan_without_a_meaning_is_not_refuted(change: str, tmp_path: Path) -> None:
    """Nothing differs where one side has no numbers."""
    single = write(tmp_path / "single", [labelled(0, 1)])
    ranks = write(tmp_path / "ranks", [labelled(rank, 2, own_mean=True) for rank in range(2)])
    run = tmp_path / "run"
    assert shardproof.verify(single, ranks, out=run, cache=False).verdict == "refuted"
    shutil.rmtree(tmp_path / "single")
    if not change:
        assert shardproof.check(run).ok
        return
    (before, after), message = MEANINGLESS[change]
    text = plan_text(store.load(run / "plan"))
    assert before in text
    plan = parse_plan(text.replace(before, after), "p")
    store.save(plan, run / "plan")
    certificate = json.loads((run / "certificate.json").read_text())
    (run / "certificate.json").write_text(json.dumps(certificate | {"plan": store.digest(plan)}))
    checked = shardproof.check(run)
    assert not checked.ok
    doubts = [problem.message for problem in checked.problems if problem.kind == "verdict"]
    assert any(message in doubt for doubt in doubts), checked.problems


def repeated(rank: int = 0, ranks: int = 1, first: bool = False) -> dict[str, Any]:
    """The exponential of the sum of two rows, repeated; ``first``: of the first row alone.  Each of
    two ranks has a row, and repeats it before it is added up."""
    w = Writer(rank)
    x = w.given("x", (2 // ranks, 8))
    if ranks == 1 and first:
        x = w.call("row", "aten.slice.Tensor", [x, 0, 0, 1], (1, 8))
    elif ranks == 1:
        x = w.call("row", "aten.sum.dim_IntList", [x, [0], True], (1, 8))
    x = w.call("rows", "aten.expand.default", [x, [4, 8]], (4, 8))
    x = reduced(w, "all", x, (4, 8)) if ranks > 1 else x
    return w.output(w.call("y", "aten.exp.default", [x], (4, 8)))


@pytest.mark.parametrize(("first", "verdict"), [(False, "proved"), (True, "refuted")])
def test_a_sum_over_ranks_of_what_no_single_device_has_has_its_extents(
    first: bool, verdict: str, tmp_path: Path
) -> None:
    """The first row is in no sum of the single device's: what ranks add up is a value of theirs."""
    single = write(tmp_path / "single", [repeated(first=first)])
    ranks = write(tmp_path / "ranks", [repeated(rank, 2) for rank in range(2)])
    result = shardproof.verify(single, ranks, out=tmp_path / "run", cache=False)
    assert result.verdict == verdict, result.reason
    checked = shardproof.check(tmp_path / "run")
    assert checked.ok, checked.problems


@pytest.mark.parametrize("changed", [False, True])
def test_nodes_of_another_run_are_rejected(changed: bool, tmp_path: Path) -> None:
    """They name sums that the run has not."""
    single = write(tmp_path / "single", [labelled(0, 1)])
    for name, own_mean in (("right", False), ("wrong", True)):
        ranks = [labelled(rank, 2, own_mean=own_mean) for rank in range(2)]
        both = single, write(tmp_path / f"ranks of {name}", ranks)
        shardproof.verify(*both, out=tmp_path / name, cache=False)
    run = tmp_path / "right"
    if changed:
        data = (tmp_path / "wrong" / "nodes.arrow").read_bytes()
        (run / "nodes.arrow").write_bytes(data)
        certificate = json.loads((run / "certificate.json").read_text())
        certificate["files"]["nodes.arrow"] = hashlib.sha256(data).hexdigest()
        (run / "certificate.json").write_text(json.dumps(certificate))
    checked = shardproof.check(run)
    assert checked.ok is not changed
    if changed:
        assert any("which there is not" in str(problem) for problem in checked.problems)

"""Every column of every table of a run, and every field of its certificate: another value of its
type is rejected, or it is said here why it decides nothing.

A few rows of every column are changed, each by itself, with the digests that follow from them; in
CI of two small runs, as slow tests of larger ones.
"""

from __future__ import annotations

import dataclasses
import json
import random
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import shardproof
from shardproof.checker import check
from shardproof.checker.solving import Solver, Texts
from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.assumption import Assumption, texts
from shardproof.engine.plan.assumptions import statements
from shardproof.engine.plan.ir import Plan
from shardproof.engine.plan_files import store
from shardproof.engine.records.certificate import SHAPES
from shardproof.engine.records.run import TABLES, Run, read_run
from shardproof.engine.reference_runtime import compare as runtime
from shardproof.frontends.zoo import build
from shardproof.run.result import Counts
from shardproof.solvers import Portfolio
from tests.checker.cells import (
    Cell,
    fresh,
    plan_cells,
    read_tables,
    sampled,
    store_changed,
    store_plan,
)
from tests.checker.conftest import SIZES
from tests.checker.record.test_files import edit_certificate
from tests.engine import small_plans
from tests.faults import expected, test_routes
from tests.frontends.zoo.test_moe import small as small_mixture

SEED = 7
Plans = dict[str, Callable[[], Plan]]

#: Two ranks that divide an inner dimension; a value by another route, whose templates' cuts were
#: moved back; outputs and gradients that a table of its own expects.
SMALL: Plans = {
    "two ranks": small_plans.row_parallel,
    "another route": lambda: test_routes.plan(
        test_routes.difference_of_squares, test_routes.sum_of_squares
    ),
    "a table of expectations": lambda: expected.graded(whole=False),
}
#: Everything that a plan of the zoo has: pieces of gradients (``updated_as``), messages, experts.
LARGE: Plans = {
    "ZeRO": lambda: dense("llama3-8b", zero=2),
    "pipeline": lambda: dense("llama3-8b", layers=2, pp=2),
    "experts": lambda: small_mixture("mixtral-8x7b", dp=2, ep=2, zero=1, balance_loss=False),
}
EVERY = SMALL | LARGE
RUNS = [*SMALL, *(pytest.param(name, marks=pytest.mark.slow) for name in LARGE)]


def dense(name: str, **changes: Any) -> Plan:
    """Small enough to be run rank by rank."""
    sizes = {"hidden": 24, "heads": 6, "kv_heads": 2, "ffn": 20, "vocabulary": 28}
    return build(name, **{**SIZES, **sizes, **changes})


@pytest.fixture(scope="module")
def stored(
    make_parts: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """A proved run of a plan, by name."""
    folders: dict[str, Path] = {}

    def of(name: str) -> Path:
        if name not in folders:
            folders[name] = tmp_path_factory.mktemp("run")
            make_parts(EVERY[name]()).store(folders[name])
        return folders[name]

    return of


@pytest.fixture(autouse=True, scope="module")
def solved_once() -> Any:
    """The same texts are asked in every check of this file: the solvers answer each once."""
    known: dict[Texts, str] = {}
    ask = Solver._ask

    def remembered(portfolio: Portfolio, texts: Texts) -> str:
        if texts not in known:
            known[texts] = ask(portfolio, texts)
        return known[texts]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Solver, "_ask", staticmethod(remembered))
        yield


@pytest.mark.parametrize("name", RUNS)
def test_the_run_as_it_is_is_accepted(name: str, stored: Callable[[str], Path]) -> None:
    assert check(stored(name)).problems == ()


# -- tables
# -----------------------------------------------------------------------------------------


def decides_nothing(before: Run, after: Run, cell: Cell) -> str:
    """Why a changed cell changes nothing that a verdict says ("": it does)."""
    match cell.table, cell.column:
        case "tokens", _ if not _is_named(before, cell.row):
            return "no lineage has a part of this sum"
        case "nodes", _ if cell.row not in _reached(before):
            return "no lineage is made of this node"
        case "templates", ("side" | "row"):
            side, row = after.templates[cell.row].side, after.templates[cell.row].row
            if any((s.side, s.row, s.template) == (side, row, cell.row) for s in before.stages):
                return "another example of the same template"
        case "stages", "problem" if (stage := before.stages[cell.row]).template < 0:
            return "" if stage.live else "why what nothing depends on has no obligation"
        case "stages", "opened":
            return "where a claim is cut: wherever it is, the claim is stated there, and follows"
        case (("atoms" | "parts"), "start") if _same_function(before, after):
            return "a coordinate that takes one value only"
    return ""


def _is_named(run: Run, number: int) -> bool:
    lineages = (x for x in (*run.single, *run.parallel) if x is not None)
    parts = (
        partial.reduction for x in lineages for addend in x.addends for partial in addend.partials
    )
    return number in parts or any(t.inner == number for t in run.nodes.reductions)


def _reached(run: Run) -> set[int]:
    """Nodes that lineages are made of, with all that these are defined by."""
    lineages = (x for x in (*run.single, *run.parallel) if x is not None)
    todo = [addend.node for x in lineages for addend in x.addends]
    found: set[int] = set()
    while todo:
        number = todo.pop()
        if number not in found:
            found.add(number)
            todo += run.nodes[number].definition.children()
    return found


def _same_function(before: Run, after: Run) -> bool:
    """Whether lineages are the same but for coordinates that are always 0."""
    extents = {axis: n for p in before.plan.programs for axis, n in p.extents.items()}
    single = {axis for axis, n in extents.items() if n == 1}
    single |= {"mb"} if before.plan.microbatches == 1 else set()

    def bare(run: Run) -> list[str]:
        pattern = re.compile(rf"\('(?:{'|'.join(sorted(single)) or '-'})', -?\d+\),? ?")
        return [pattern.sub("", repr(x)) for x in (*run.single, *run.parallel)]

    return bare(before) == bare(after)


#: What names the place: a file and its row, or what the run calls the thing.
PLACE = re.compile(
    r"(\.arrow(, row \d+)?:)|(\(row \d+\))|(\(tensor \d+\))|\b(node|template|row) \d+"
    r"|conclusion|the certificate"
)


@pytest.mark.parametrize("name", RUNS)
def test_another_value_in_a_cell_is_rejected_by_name(
    name: str, stored: Callable[[str], Path], tmp_path: Path
) -> None:
    run = stored(name)
    before, tables = read_run(run), read_tables(run)
    rng = random.Random(SEED)
    tried = 0
    for cell in sampled(tables, TABLES, 2, rng):
        changed = fresh(run, tmp_path / "changed")
        store_changed(changed, tables, cell)
        found = check(changed)
        tried += 1
        if found.ok:
            assert decides_nothing(before, read_run(changed), cell), cell
        else:
            assert any(PLACE.search(str(problem)) for problem in found.problems), (
                cell,
                found.problems,
            )
    assert tried > 100


# -- the plan of a run
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RUNS)
def test_another_plan_is_rejected_or_computes_the_same(
    name: str, stored: Callable[[str], Path], tmp_path: Path
) -> None:
    """Names, sources, records and types of numbers decide nothing; neither does what dead code
    reads. Whatever is accepted is run, rank by rank."""
    run = stored(name)
    plan = store.load(run / "plan")
    rejected = 0
    columns, cells = plan_cells(run, 1, random.Random(SEED))
    for cell in cells:
        changed = fresh(run, tmp_path / "changed")
        try:
            other = store_plan(changed, columns, cell)
        except InvalidInput:
            rejected += 1
            continue
        if other == plan:
            continue
        if check(changed).ok:
            assert runtime.fits(other), cell
            assert runtime.worst(other, 0)[0] < 1e-9, cell
        else:
            rejected += 1
        # Where the input is there to be read again, no plan passes for another one.
        said = [str(problem) for problem in check(changed, plan=plan).problems]
        other_plan = f"input: the plan {plan.name} is not the one of the run"
        assert other_plan in said or said[0].startswith("file: "), (cell, said)
    assert rejected > 30


# -- the certificate
# --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def verified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run as `verify` leaves it: record of verdicts, result, counts, proofs."""
    folder = tmp_path_factory.mktemp("verified")
    store.save(small_plans.replicas(), folder / "plan")
    result = shardproof.verify(folder / "plan", out=folder / "run", cache=False, proofs=True)
    assert result.verdict == "proved"
    return folder / "run"


#: Fields of a certificate with another value, and what a check says of it.
FIELDS: dict[str, tuple[Any, str]] = {
    "verdict": ("refuted", "the certificate says refuted, but everything is proved"),
    "plan": ("0" * 64, "is another plan than the certificate's"),
    "files": ({}, "names other files than the tables of a run"),
    "conclusions": ({}, "says other conclusions than their table"),
    "trusted": ([], "names another trusted base"),
    "format": ("shardproof run 0", "its format is"),
    "proofs": ([], "the run has no stored proofs"),
}
#: What decides nothing of a proof, and why nobody can tell it.
UNTOLD = {
    "solvers": "versions of solvers that were asked; all is asked again",
    "settings": "how they were asked, but for the sizes of obligations",
    "inputs": "which files the plan was read from: told where these are read again",
}


def test_every_field_of_a_certificate_is_looked_at(verified: Path) -> None:
    fields = json.loads((verified / "certificate.json").read_bytes()).keys()
    held_elsewhere = {"assumptions", "assumption_details", "counts", "reasons"}
    assert fields == FIELDS.keys() | UNTOLD.keys() | held_elsewhere
    assert check(verified, proofs=True).problems == ()


def told(run: Path, **options: Any) -> list[str]:
    found = check(run, **options)
    assert not found.ok
    return [str(problem) for problem in found.problems]


@pytest.mark.parametrize("name", FIELDS)
def test_another_field_of_a_certificate_is_rejected(
    name: str, verified: Path, tmp_path: Path
) -> None:
    value, message = FIELDS[name]
    run = fresh(verified, tmp_path / "run")
    (run / "result.json").unlink()
    edit_certificate(run, **{name: value})
    said = told(run, proofs=name == "proofs")
    assert any(message in line for line in said), said


def test_every_assumption_is_named_once_and_no_other(verified: Path, tmp_path: Path) -> None:
    run = fresh(verified, tmp_path / "run")
    (run / "result.json").unlink()  # it names them, too: this is about the plan
    right = list(read_run(run).certificate.assumptions)
    assert len(right) >= 4
    for number, line in enumerate(right):
        edit_certificate(run, assumptions=right[:number] + right[number + 1 :])
        said = told(run)
        assert f"assumption: the certificate does not name the assumption that {line}" in said
        edit_certificate(run, assumptions=[*right, line])
        assert told(run) == [f"assumption: the certificate names twice: {line}"]
    edit_certificate(run, assumptions=[*right, "the moon is full"])
    assert told(run) == ["assumption: the plan does not assume what is named: the moon is full"]
    details = read_run(run).certificate.assumption_details
    edit_certificate(run, **assumed(details[::-1]))
    assert check(run).ok
    edit_certificate(run, assumptions=right)
    assert told(run) == ["assumption: the certificate describes other assumptions than it names"]
    for number, one in enumerate(details):
        for other in (
            dataclasses.replace(one, kind="framework"),
            dataclasses.replace(one, about="another"),
            dataclasses.replace(one, where="elsewhere"),
        ):
            edit_certificate(run, **assumed((*details[:number], other, *details[number + 1 :])))
            said = told(run)
            assert len(said) == 1
            assert said[0].endswith(f"what the plan does not: {one.text[:200]}")


def assumed(details: Sequence[Assumption]) -> dict[str, Any]:
    """The fields of a certificate that say so."""
    return {
        "assumptions": texts(details),
        "assumption_details": [dataclasses.asdict(one) for one in details],
    }


def test_how_losses_combine_may_be_the_users_word(verified: Path, tmp_path: Path) -> None:
    run = fresh(verified, tmp_path / "run")
    (run / "result.json").unlink()
    edit_certificate(run, **assumed(statements(store.load(run / "plan"), chosen=True)))
    assert check(run).ok


def test_every_count_is_counted(verified: Path, tmp_path: Path) -> None:
    run = fresh(verified, tmp_path / "run")
    (run / "result.json").unlink()
    right = read_run(run).certificate.counts
    assert right.keys() == {field.name for field in dataclasses.fields(Counts)}
    for name, count in right.items():
        edit_certificate(run, counts={**right, name: count + 1})
        if name == "cached":  # of which texts another run had the verdict, no file tells
            assert check(run).ok
        else:
            says = f"verdict: the certificate counts {count + 1} {name}, there are {count}"
            assert told(run) == [says]
    edit_certificate(run, counts={**right, "wonders": 7})
    assert told(run) == ["verdict: the certificate counts 7 wonders, there are None"]


def test_reasons_are_those_of_the_result(verified: Path, tmp_path: Path) -> None:
    """A finding beside a proof can be taken from one of the two only if the check is to pass."""
    run = fresh(verified, tmp_path / "run")
    edit_certificate(run, reasons=["rank 0 records something else"])
    assert told(run) == ["verdict: result.json has other findings than the certificate"]


def test_other_sizes_are_other_obligations(verified: Path, tmp_path: Path) -> None:
    run = fresh(verified, tmp_path / "run")
    settings = dict(read_run(run).certificate.settings)
    for name, value in settings.items():
        edit_certificate(run, settings={**settings, name: "z3" if name == "mode" else value + 1})
        assert check(run).ok == (name != SHAPES), name


def test_other_inputs_are_told_where_they_are_read_again(verified: Path, tmp_path: Path) -> None:
    run = fresh(verified, tmp_path / "run")
    plan = store.load(run / "plan")
    assert check(run, inputs={}, plan=plan).ok
    edit_certificate(run, inputs={"single": "0" * 64})
    assert check(run).ok
    said = told(run, inputs={}, plan=plan)
    assert said == ["input: single is not the file that the run was made from"]


#: Fields of what a certificate says of a proof, with another value.
ENTRY: dict[str, tuple[Any, str]] = {
    "template": (10**6, "an entry about template 1000000, which is not there"),
    "rung": ("other", "the proof of template 0 is of another text"),
    "text": ("0" * 64, "the proof of template 0 is of another text"),
    "proof": ("0" * 64, "proof of template 0 is not the one that the certificate names"),
    "first": ("nobody", "template 0 was first proved by nobody"),
    "solvers": (["oracle"], "template 0 is proved by oracle"),
    "reason": ("too large", "template 0 has a proof, and a reason why it has none"),
}


@pytest.mark.parametrize("name", ENTRY)
def test_another_entry_about_a_proof_is_rejected(name: str, verified: Path, tmp_path: Path) -> None:
    run = fresh(verified, tmp_path / "run")
    entries = json.loads((run / "certificate.json").read_bytes())["proofs"]
    assert entries[0].keys() == ENTRY.keys()
    value, message = ENTRY[name]
    entries[0][name] = value
    edit_certificate(run, proofs=entries)
    said = told(run, proofs=True)
    assert any(message in line for line in said), said


def test_proofs_of_another_run_are_rejected(verified: Path, tmp_path: Path) -> None:
    store.save(small_plans.row_parallel(), tmp_path / "plan")
    other = tmp_path / "other"
    shardproof.verify(tmp_path / "plan", out=other, cache=False, proofs=True)
    run = fresh(verified, tmp_path / "run")
    theirs = json.loads((other / "certificate.json").read_bytes())
    files = json.loads((run / "certificate.json").read_bytes())["files"]
    shutil.copy(other / "proofs.arrow", run / "proofs.arrow")
    said = told(run, proofs=True)
    assert any("proofs.arrow: was changed" in line for line in said), said
    named = {**files, "proofs.arrow": theirs["files"]["proofs.arrow"]}
    edit_certificate(run, files=named, proofs=theirs["proofs"])
    said = told(run, proofs=True)
    assert any("is of another text" in line for line in said), said

"""Stored proofs: made by verify, checked by check, and rejected where anything was changed."""

from __future__ import annotations

import hashlib
import json
import shutil
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

import shardproof
from shardproof.checker import CheckResult, check
from shardproof.checker.proofs.check import Proofs, check_proofs
from shardproof.checker.proofs.ethos import Ethos
from shardproof.checker.result import Problems
from shardproof.checker.solving import Solver, Texts
from shardproof.cli import main
from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.ir import Plan
from shardproof.engine.plan_files import store
from shardproof.engine.records.run import read_run
from shardproof.run.recheck import read_again
from tests.checker.record.test_files import edit_certificate

#: The least plan that has a sum over shards and both rungs.
SMALL: dict[str, Any] = {"hidden": 24, "heads": 6, "kv_heads": 2, "ffn": 20, "vocabulary": 28}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, make_plan: Callable[..., Plan]) -> Path:
    """A plan and a run of it with proofs."""
    folder = tmp_path_factory.mktemp("proofs")
    store.save(make_plan(**SMALL, dp=1, microbatches=1), folder / "plan")
    result = shardproof.verify(folder / "plan", out=folder / "run", cache=False, proofs=True)
    assert result.verdict == "proved"
    return folder


@pytest.fixture
def run(folders: Path, tmp_path: Path) -> Path:
    shutil.copytree(folders / "run", tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture(scope="module")
def found(folders: Path) -> CheckResult:
    return check(folders / "run", proofs=True)


def certificate(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / "certificate.json").read_bytes()))


def test_every_template_has_a_proof_that_is_followed(folders: Path, found: CheckResult) -> None:
    entries = certificate(folders / "run")["proofs"]
    templates = found.counts["templates"]
    assert [entry["template"] for entry in entries] == list(range(templates))
    assert found.ok
    assert found.problems == ()
    assert found.counts["proofs"] == found.counts["proofs_followed"] == templates
    assert found.counts["single_solver"] == 0
    assert found.counts["asked_alone"] == 2 * templates
    assert {entry["first"] for entry in entries} <= {"z3", "cvc5"}
    assert {tuple(entry["solvers"]) for entry in entries} == {("cvc5", "z3")}
    assert {entry["rung"] for entry in entries} == {"linear", "nonlinear"}


def test_absence_of_ethos_is_said(found: CheckResult) -> None:
    if shutil.which("ethos") is None:
        assert "ethos is not installed here: no proof was given to it" in found.notes
        assert found.counts["proofs_by_ethos"] == 0


class Agreeable(Solver):
    """Says "unsat" of everything, at once; what the solvers say is tested above."""

    def __init__(self) -> None:
        super().__init__(1, "both", 1.0, 1 << 30, 1, lambda done, total: None)

    def solve(self, texts: Iterable[Texts]) -> None:
        self.verdicts |= dict.fromkeys(texts, "unsat")


def looked_at(run: Path, external: Ethos | None = None) -> tuple[Proofs, list[str]]:
    """What is found out about the proofs of a run, and what is wrong with them."""
    stored, problems = read_run(run), Problems()
    needed = range(len(stored.templates))
    try:
        found = check_proofs(stored, needed, (external, ""), lambda _: Agreeable(), problems)
    except InvalidInput as error:
        return Proofs(), [str(error)]
    return found, [str(problem) for problem in problems.all()]


def assert_rejected(run: Path, message: str, external: Ethos | None = None) -> None:
    told = looked_at(run, external)[1]
    assert any(message in line for line in told), told


def edit_entry(run: Path, number: int, **changes: Any) -> None:
    entries = certificate(run)["proofs"]
    entries[number] |= changes
    edit_certificate(run, proofs=entries)


def edit_proof(run: Path, number: int, change: Callable[[str], str]) -> None:
    """Change a proof, and every digest of it."""
    path = run / "proofs.arrow"
    table = pa.ipc.open_file(pa.py_buffer(path.read_bytes())).read_all()
    proofs = table["proof"].to_pylist()
    assert change(proofs[number]) != proofs[number]
    proofs[number] = change(proofs[number])
    field = table.schema.field("proof")
    changed = table.set_column(1, field, pa.array(proofs, field.type))
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(changed)
    files = certificate(run)["files"]
    files["proofs.arrow"] = hashlib.sha256(path.read_bytes()).hexdigest()
    edit_certificate(run, files=files)
    edit_entry(run, number, proof=hashlib.sha256(proofs[number].encode()).hexdigest())


def test_a_changed_step_is_rejected(run: Path) -> None:
    edit_proof(run, 3, lambda proof: proof.replace(":rule eq_resolve", ":rule trans"))
    assert_rejected(run, "proof: the proof of template 3 does not hold: @p")


def test_the_proof_of_another_template_is_rejected(run: Path) -> None:
    entries = certificate(run)["proofs"]
    table = pa.ipc.open_file(pa.py_buffer((run / "proofs.arrow").read_bytes())).read_all()
    other = next(n for n, e in enumerate(entries) if n > 3 and e["text"] != entries[3]["text"])
    edit_proof(run, 3, lambda _: str(table["proof"][other].as_py()))
    assert_rejected(
        run, "proof: the proof of template 3 does not hold: @p1 assumes what the text does not"
    )


def test_a_step_of_trust_is_no_step(run: Path) -> None:
    edit_proof(run, 3, lambda _: "((step @p1 false :rule trust :args (false)))")
    result, told = looked_at(run)
    assert told == []
    assert "template 3: not followed step by step: the rule trust" in result.notes
    assert result.counts["proofs_followed"] == result.counts["proofs"] - 1


def test_an_entry_of_another_text_is_rejected(run: Path) -> None:
    edit_entry(run, 2, text="0" * 64)
    assert_rejected(run, "proof: the proof of template 2 is of another text")


def test_what_a_solver_does_not_say_again_is_named(run: Path) -> None:
    class Silent(Agreeable):
        def solve(self, texts: Iterable[Texts]) -> None:
            self.verdicts |= dict.fromkeys(texts, "timeout")

    stored, problems = read_run(run), Problems()
    check_proofs(stored, [], (None, ""), lambda mode: Silent(), problems)
    assert problems.all()[0] == (
        "proof",
        "template 0: the certificate says that z3 proves it, z3 says timeout",
    )


def test_a_missing_entry_is_named(run: Path) -> None:
    entries = certificate(run)["proofs"]
    del entries[5]
    edit_certificate(run, proofs=entries)
    assert_rejected(run, "its proof of template 5 is not the one that the certificate names")


def test_an_entry_twice_is_named(run: Path) -> None:
    entries = certificate(run)["proofs"]
    edit_certificate(run, proofs=[*entries, entries[0]])
    assert_rejected(run, "proof: an entry about template 0, which is not there or had one")


def test_a_solver_that_is_none_is_named(run: Path) -> None:
    edit_entry(run, 1, solvers=["z3", "oracle"])
    assert_rejected(run, "proof: template 1 is proved by z3, oracle")


def test_a_changed_file_of_proofs_is_noticed(run: Path) -> None:
    data = bytearray((run / "proofs.arrow").read_bytes())
    data[len(data) // 2] ^= 1
    (run / "proofs.arrow").write_bytes(data)
    assert_rejected(run, "proofs.arrow: was changed")


def test_a_single_solver_case_is_named(run: Path) -> None:
    edit_entry(run, 4, solvers=["z3"])
    result, told = looked_at(run)
    assert told == []
    assert result.counts["single_solver"] == 1
    assert "template 4 is proved by z3 alone" in result.notes


def test_a_run_without_proofs_has_none_to_check(run: Path) -> None:
    files = certificate(run)["files"]
    del files["proofs.arrow"]
    edit_certificate(run, files=files, proofs=[])
    assert_rejected(run, "proof: the run has no stored proofs: it was made without --proofs")


# -- ethos
# ------------------------------------------------------------------------------------------


@pytest.fixture
def ethos(tmp_path: Path) -> Callable[[str], Ethos]:
    """A stand-in for ethos, as a shell script; and a calculus."""

    def make(script: str) -> Ethos:
        program, calculus = tmp_path / "ethos", tmp_path / "Cpc.eo"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        calculus.write_text("; the calculus\n")
        return Ethos(program, calculus)

    return make


def test_ethos_is_given_the_calculus_the_text_and_the_proof(
    run: Path, ethos: Callable[[str], Ethos]
) -> None:
    """The stand-in accepts exactly what has all three, and no outer parentheses."""
    script = (
        'head -1 "$1" | grep -q \'^(include "/.*/Cpc.eo")$\' || exit 1\n'
        'query=$(sed -n \'2s/^(reference "\\(.*\\)")$/\\1/p\' "$1")\n'
        'grep -q "^(check-sat)" "$query" || exit 1\n'
        'sed -n 4p "$1" | grep -q "^(de[cf]" || exit 1\n'
        "echo correct"
    )
    result, told = looked_at(run, ethos(script))
    assert told == []
    assert result.counts["proofs_by_ethos"] == result.counts["proofs"]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo incomplete", "ethos says 'incomplete' (exit status 0)"),
        (
            "echo 'Error: bad step'; exit 1",
            "ethos says 'Error: bad step' (exit status 1)",
        ),
        ("echo correct; exit 3", "ethos says 'correct' (exit status 3)"),
        ("kill -9 $$", "ethos says 'nothing' (exit status -9)"),
    ],
)
def test_what_ethos_does_not_accept_is_rejected(
    ethos: Callable[[str], Ethos], script: str, said: str
) -> None:
    assert ethos(script).check("(check-sat)", "()") == said


def test_ethos_must_be_where_it_is_said_to_be(run: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="expected the ethos checker, found no file"):
        check(run, proofs=True, ethos=tmp_path / "none", cpc=tmp_path / "none")


# -- the command
# ------------------------------------------------------------------------------------


def command(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["check", *arguments])
    return done.exit_code, done.output


def test_the_command_says_what_was_checked(folders: Path) -> None:
    code, said = command(str(folders / "run"), "--proofs")
    assert code == 0
    assert "followed step by step" in said
    assert "0 templates that one solver alone proves" in said
    assert said.endswith("the run holds: proved, and every template was proved again\n")
    code, said = command(str(folders / "run"), "--ethos", "x")
    assert code == 3


def test_the_input_is_read_again_where_it_was(folders: Path, run: Path) -> None:
    assert read_again(run, ()).note == ""
    there = read_again(run, [folders / "plan"])
    assert there.plan is not None
    assert store.digest(there.plan) == certificate(run)["plan"]
    (folders / "plan").rename(folders / "away")
    try:
        gone = read_again(run, ())
        assert gone.plan is None
        assert gone.note.endswith("/plan is not there any more")
        assert read_again(run, [folders / "away"]).plan == there.plan
        with pytest.raises(InvalidInput):
            read_again(run, [folders / "plan"])
    finally:
        (folders / "away").rename(folders / "plan")


def test_another_input_is_rejected(
    run: Path, tmp_path: Path, make_plan: Callable[..., Plan]
) -> None:
    store.save(make_plan(**SMALL, dp=1, microbatches=1, sequence=20), tmp_path / "other")
    code, said = command(str(run), "--inputs", str(tmp_path / "other"))
    assert code == 1
    assert "input: the plan llama3-8b dp1 tp2 pp1 mb1 is not the one of the run" in said


@pytest.mark.parametrize("data", [b"", b"{}", b"[" * 100_000, b'{"files": 3}'])
def test_what_the_run_was_asked_is_no_evidence(run: Path, data: bytes) -> None:
    """A run that does not say where its input was is checked without it, and that is said."""
    (run / "run.json").write_bytes(data)
    source = read_again(run, ())
    assert source.plan is None
    assert source.note == "the input was not read again: the run does not say where it is"


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b"])
def test_an_input_that_no_file_can_be_is_not_there(run: Path, name: str) -> None:
    """Found by fuzzing: asking the system for a name that is too long is an error of its own."""
    path = run / "run.json"
    said = json.loads(path.read_bytes())
    path.write_text(json.dumps(said | {"files": [name]}))
    note = read_again(run, ()).note
    assert note.endswith(" is not there any more")
    assert len(note) < 300

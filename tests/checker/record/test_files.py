"""Damaged, missing and exchanged files of a run, and tables that are not what they should be."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from shardproof.checker import check
from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.assumptions import expectation
from shardproof.engine.plan.ir import Plan
from shardproof.engine.plan_files import store
from shardproof.engine.records.run import SUFFIX, TABLES, read_run, text_digest
from shardproof.engine.small_model.kept_whole import kept_whole

FILES = sorted(name + SUFFIX for name in TABLES)


@pytest.fixture
def run(proved: Any, tmp_path: Path) -> Path:
    proved.store(tmp_path / "run")
    return tmp_path / "run"


def with_digests(run: Path) -> None:
    """Name the files as they are now in the certificate."""
    path = run / "certificate.json"
    certificate = json.loads(path.read_bytes())
    certificate["files"] = {
        name: hashlib.sha256((run / name).read_bytes()).hexdigest() for name in FILES
    }
    path.write_bytes(msgspec.json.encode(certificate))


def edit_certificate(run: Path, **changes: Any) -> None:
    path = run / "certificate.json"
    path.write_bytes(msgspec.json.encode({**json.loads(path.read_bytes()), **changes}))


def edit_table(run: Path, name: str, change: Callable[[pa.Table], pa.Table]) -> None:
    path = run / (name + SUFFIX)
    table = pa.ipc.open_file(pa.py_buffer(path.read_bytes())).read_all()
    changed = change(table)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, changed.schema) as writer:
        writer.write_table(changed)
    with_digests(run)


def set_cell(name: str, column: str, row: int, value: Any) -> Callable[[Path], None]:
    def change(table: pa.Table) -> pa.Table:
        index = table.schema.get_field_index(column)
        field = table.schema.field(index)
        cells = table[column].to_pylist()
        cells[row] = value(cells[row]) if callable(value) else value
        array = (
            pa.array(cells, pa.string()).dictionary_encode()
            if pa.types.is_dictionary(field.type)
            else pa.array(cells, field.type)
        )
        return table.set_column(index, field, array).replace_schema_metadata(table.schema.metadata)

    return lambda run: edit_table(run, name, change)


def assert_rejected(run: Path, message: str, kind: str = "file") -> None:
    found = check(run)
    assert not found.ok
    told = [str(problem) for problem in found.problems]
    assert any(re.search(f"^{kind}: .*{message}", line) for line in told), told


# -- round trips
# ------------------------------------------------------------------------------------


def test_what_is_stored_is_read_back(proved: Any, run: Path) -> None:
    found = read_run(run)
    assert found.plan == proved.plan
    assert found.nodes.nodes == proved.nodes.nodes
    assert found.nodes.reductions == proved.nodes.reductions
    assert list(found.single) == proved.single
    assert list(found.parallel) == proved.parallel
    assert list(found.stages) == proved.stages
    assert list(found.templates) == proved.templates
    assert list(found.conclusions) == proved.conclusions
    assert found.certificate.verdict == "proved"
    assert found.certificate.plan == store.digest(proved.plan)
    assert found.certificate.inputs == {"plan": "0" * 64}


def test_storing_twice_gives_the_same_bytes(proved: Any, run: Path, tmp_path: Path) -> None:
    proved.store(tmp_path / "again")
    for name in (*FILES, "certificate.json"):
        assert (run / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_a_run_may_lie_beside_other_files(proved: Any, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    proved.store(tmp_path)
    proved.store(tmp_path)
    assert read_run(tmp_path).certificate.verdict == "proved"
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_a_verdict_that_is_none_is_not_stored(proved: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="the verdict 'true' is none of a certificate"):
        proved.copy(verdict="true").store(tmp_path)


# -- files
# ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_a_changed_byte_is_noticed(run: Path, name: str) -> None:
    data = bytearray((run / name).read_bytes())
    data[len(data) // 2] ^= 1
    (run / name).write_bytes(data)
    assert_rejected(run, f"{name}: was changed")


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(run: Path, name: str) -> None:
    (run / name).unlink()
    assert_rejected(run, f"{name}: cannot be read")


#: Tables that are cut off, and after which share of their bytes.
TRUNCATED = ["stages.arrow", "templates.arrow", "nodes.arrow"]
SHARES = [0.0, 0.01, 0.3, 0.7, 0.99]


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("name", TRUNCATED)
def test_a_truncated_file_is_no_table(run: Path, name: str, share: float) -> None:
    data = (run / name).read_bytes()
    (run / name).write_bytes(data[: int(len(data) * share)])
    with_digests(run)
    assert_rejected(run, f"{name}: is no Arrow table")


@pytest.mark.parametrize("garbage", [b"", b"garbage", b"ARROW1\0\0" + b"\xff" * 4096, b"\0" * 99])
def test_garbage_is_no_table(run: Path, garbage: bytes) -> None:
    (run / "terms.arrow").write_bytes(garbage)
    with_digests(run)
    assert_rejected(run, "terms.arrow: is no Arrow table")


def test_a_table_in_the_place_of_another_is_noticed(run: Path) -> None:
    shutil.copy(run / "atoms.arrow", run / "parts.arrow")
    with_digests(run)
    assert_rejected(run, "parts.arrow: its metadata do not say")


def test_a_run_without_a_certificate_is_not_finished(run: Path) -> None:
    (run / "certificate.json").unlink()
    assert_rejected(run, "certificate.json: is missing: this is no finished run")


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    assert_rejected(tmp_path / "nowhere", "is no run directory")


CERTIFICATES: list[tuple[dict[str, Any], str]] = [
    ({"verdict": "true"}, "its verdict is 'true'"),
    ({"format": "shardproof run 0"}, "its format is 'shardproof run 0'"),
    ({"trusted": []}, "names another trusted base"),
    ({"files": {}}, "names other files than the tables of a run"),
    ({"more": 1}, "is no certificate"),
    ({"counts": {"stages": "many"}}, "is no certificate"),
    ({"plan": "0" * 64}, "is another plan than the certificate's"),
    ({"conclusions": {}}, "says other conclusions than their table"),
]


@pytest.mark.parametrize(("changes", "message"), CERTIFICATES)
def test_a_certificate_is_held_to_its_form(
    run: Path, changes: dict[str, Any], message: str
) -> None:
    edit_certificate(run, **changes)
    assert_rejected(run, message)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_a_certificate_that_is_none(run: Path, data: bytes) -> None:
    (run / "certificate.json").write_bytes(data)
    assert_rejected(run, "is no certificate")


# -- the plan
# ---------------------------------------------------------------------------------------


def test_another_plan_in_its_place_is_noticed(run: Path, make_plan: Callable[..., Plan]) -> None:
    store.save(make_plan(sequence=20), run / "plan")
    assert_rejected(run, "is another plan than the certificate's")


def test_another_plan_with_its_digest_is_noticed(run: Path, make_plan: Callable[..., Plan]) -> None:
    other = make_plan(sequence=20)
    store.save(other, run / "plan")
    edit_certificate(run, plan=store.digest(other))
    assert_rejected(run, "has shape", "lineage")


def test_a_plan_of_other_parameters_is_noticed(run: Path, make_plan: Callable[..., Plan]) -> None:
    other = make_plan(ffn=320)
    store.save(other, run / "plan")
    edit_certificate(run, plan=store.digest(other))
    assert_rejected(run, "has extents", "node")


def test_a_missing_plan_is_noticed(run: Path) -> None:
    shutil.rmtree(run / "plan")
    assert_rejected(run, "is no plan folder")


def test_a_damaged_plan_is_noticed(run: Path) -> None:
    path = run / "plan" / "ops.arrow"
    path.write_bytes(path.read_bytes()[:-40])
    assert_rejected(run, "ops.arrow")


def test_the_callers_inputs_are_held_against_the_certificate(
    proved: Any, run: Path, make_plan: Callable[..., Plan]
) -> None:
    assert check(run, inputs={"plan": "0" * 64}, plan=proved.plan).ok
    found = check(run, inputs={"plan": "1" * 64}, plan=make_plan(sequence=20))
    assert [str(p) for p in found.problems] == [
        "input: plan is not the file that the run was made from",
        "input: the plan llama3-8b dp2 tp2 pp1 mb2 is not the one of the run",
    ]
    assert not found.ok


# -- tables
# -----------------------------------------------------------------------------------------


def drop_column(table: pa.Table) -> pa.Table:
    return table.drop_columns(["problem"])


def first_row_again(table: pa.Table) -> pa.Table:
    return pa.concat_tables([table, table.slice(0, 1)], promote_options="none")


TABLE_EDITS: dict[str, tuple[Callable[[Path], None], str]] = {
    "a column dropped": (
        lambda run: edit_table(run, "stages", drop_column),
        "stages.arrow: has other columns than declared",
    ),
    "an atom twice": (
        lambda run: edit_table(run, "atoms", first_row_again),
        "atoms.arrow: has equal rows",
    ),
    "a lineage that no tensor has": (
        set_cell("tensors", "lineage", -1, 0),
        r"lineages.arrow, row \d+: is used by nothing",
    ),
    "a lineage that does not exist": (
        set_cell("tensors", "lineage", 0, 10**6),
        r"tensors.arrow, row 0: refers to row 1000000",
    ),
    "a tensor of no side": (
        set_cell("tensors", "side", 0, "both"),
        "tensors.arrow, row 0: side 'both'",
    ),
    "a term of no node": (set_cell("terms", "node", 2, 10**6), "terms.arrow, row 2: node 1000000"),
    "atoms of no dimension": (
        set_cell("terms", "dims", 0, lambda dims: [*dims, 1]),
        r"terms.arrow, row 0: \d+ atoms",
    ),
    "a factor that is none": (
        set_cell("terms", "factor", 1, "2/4"),
        "terms.arrow, row 1: factor '2/4'",
    ),
    "a start that is none": (
        set_cell("atoms", "start", 1, "[1, []]"),
        "atoms.arrow, row 1: .*another spelling",
    ),
    "an atom of no size": (set_cell("atoms", "size", 0, -1), "atoms.arrow, row 0: .*size -1"),
    "a part of no sum": (set_cell("parts", "token", 0, 10**6), "parts.arrow, row 0: token 1000000"),
    "a definition that is none": (
        set_cell("nodes", "payload", 3, "[1, 2, 3]"),
        "nodes.arrow, row 3: .*is not understood",
    ),
    "a node of no kind": (
        set_cell("nodes", "kind", 3, "oracle"),
        "nodes.arrow, row 3: .*unknown kind 'oracle'",
    ),
    "a node that is no longer first": (
        set_cell("nodes", "kind", 0, "causal"),
        "nodes.arrow, row 0: the constant 1 is node 0",
    ),
    "a token of no kind": (
        set_cell("tokens", "kind", 0, "product"),
        "tokens.arrow, row 0: .*is no partial sum",
    ),
    "a stage of no side": (
        set_cell("stages", "side", 0, "both"),
        "stages.arrow, row 0: side 'both'",
    ),
    "a stage of no template": (
        set_cell("stages", "template", 0, 10**6),
        "stages.arrow, row 0: .*template 1000000",
    ),
    "a template of another number": (
        set_cell("templates", "number", 2, 3),
        "templates.arrow, row 2: is numbered 3",
    ),
    "a text of another digest": (
        set_cell("templates", "linear", 2, "(check-sat)"),
        "templates.arrow, row 2: the texts do",
    ),
}


@pytest.mark.parametrize("name", TABLE_EDITS)
def test_a_table_is_held_to_its_form(run: Path, name: str) -> None:
    change, message = TABLE_EDITS[name]
    change(run)
    assert_rejected(run, message)


# -- leftovers
# --------------------------------------------------------------------------------------


def test_a_result_says_what_the_certificate_says(run: Path) -> None:
    (run / "result.json").write_text('{"verdict": "proved"}')
    assert check(run).ok
    (run / "result.json").write_text('{"verdict": "refuted"}')
    assert_rejected(run, "result.json says refuted, the certificate proved", "verdict")
    (run / "result.json").write_text("{")
    assert_rejected(run, "result.json: is no result")


def test_a_result_says_nothing_else_than_the_run(proved: Any, run: Path) -> None:
    certificate = read_run(run).certificate
    right: dict[str, Any] = {
        "verdict": "proved",
        "reason": "",
        "counts": {},
        "assumptions": list(certificate.assumptions),
        "kept_whole": list(kept_whole(proved.nodes)),
        "conclusions": [
            {"kind": c.kind, "name": c.name, "ranks": list(c.ranks), "holds": True, "message": ""}
            for c in proved.conclusions
        ],
        "findings": [],
    }

    def written(**changes: Any) -> None:
        (run / "result.json").write_bytes(msgspec.json.encode(right | changes))

    written()
    assert check(run).ok
    written(findings=[{"kind": "cache", "message": "an entry was damaged"}])
    assert check(run).ok
    for name in ("assumptions", "kept_whole", "conclusions"):
        written(**{name: right[name][1:]})
        assert_rejected(run, f"result.json has other {name} than the run", "verdict")
    written(counts={"templates": 1})
    assert_rejected(run, "result.json has other counts than the run", "verdict")
    for changes in ({"reason": "none"}, {"findings": [{"kind": "metadata", "message": "other"}]}):
        written(**changes)
        assert_rejected(run, "result.json has other findings than the certificate", "verdict")


def test_a_proof_that_lacks_what_was_expected_is_none(run: Path) -> None:
    """The result may be weaker than the certificate, where the user expected something."""
    (run / "result.json").write_text('{"verdict": "inconclusive", "reason": "not concluded"}')
    assert_rejected(run, "result.json says inconclusive, the certificate proved", "verdict")
    certificate = read_run(run).certificate
    expected = expectation(["norm.weight"])
    edit_certificate(
        run,
        assumptions=[*certificate.assumptions, expected.text],
        assumption_details=[asdict(a) for a in (*certificate.assumption_details, expected)],
    )
    assert check(run).ok
    (run / "result.json").write_text('{"verdict": "refuted"}')
    assert_rejected(run, "result.json says refuted, the certificate proved", "verdict")


Entry = tuple[str, str, int]


def used(parts: Any) -> list[int]:
    """The templates that the verdict rests on."""
    return sorted({s.template for s in parts.stages if s.template >= 0 and s.live})


def recorded(parts: Any) -> list[Entry]:
    """A record of verdicts as a run leaves it: key, verdict, options."""
    texts = [parts.templates[number] for number in used(parts)]
    keys = dict.fromkeys(text_digest(t.linear, t.nonlinear) for t in texts)
    return [(key, "unsat", 1) for key in keys]


def record(run: Path, entries: Sequence[Entry]) -> None:
    columns = dict(zip(("key", "verdict", "options"), zip(*entries, strict=True), strict=True))
    table = pa.table({name: list(cells) for name, cells in columns.items()})
    with (
        pa.OSFile(str(run / "verdicts.arrows"), "wb") as sink,
        pa.ipc.new_stream(sink, table.schema) as writer,
    ):
        writer.write_table(table)


def test_a_record_of_all_verdicts_is_accepted(proved: Any, run: Path) -> None:
    entries = recorded(proved)
    record(run, entries)
    assert check(run).ok
    # Tried again with other options, and by a run that also asked something else.
    record(run, [(entries[0][0], "unknown", 0), *entries, ("0" * 64, "sat", 1)])
    assert check(run).ok


def test_a_record_of_another_verdict_is_noticed(proved: Any, run: Path) -> None:
    first, *rest = recorded(proved)
    number = used(proved)[0]
    record(run, [(first[0], "sat", 1), *rest])
    assert_rejected(run, f"verdicts.arrows says that template {number} is sat", "verdict")
    record(run, [first, *rest, (first[0], "unknown", 2)])
    assert_rejected(run, f"verdicts.arrows says that template {number} is unknown", "verdict")
    (run / "verdicts.arrows").write_bytes(b"garbage")
    assert_rejected(run, "verdicts.arrows: is no record of verdicts")


def test_missing_and_repeated_verdicts_are_noticed(proved: Any, run: Path) -> None:
    first, *rest = recorded(proved)
    record(run, rest)
    assert_rejected(run, f"verdicts.arrows has no verdict on template {used(proved)[0]}", "verdict")
    record(run, [first, *rest, first])
    assert_rejected(run, f"two verdicts on {first[0]} with the same options")


def test_the_record_of_another_run_is_noticed(
    proved: Any, run: Path, make_parts: Callable[..., Any], make_plan: Any
) -> None:
    record(run, recorded(make_parts(make_plan(sequence=20))))
    assert_rejected(run, r"verdicts.arrows has no verdict on template \d+", "verdict")


def test_a_record_with_offsets_out_of_range_is_refused(proved: Any, run: Path) -> None:
    """Found by fuzzing: the text of a cell would be read at a negative length."""
    offsets = pa.py_buffer(b"".join(n.to_bytes(4, "little", signed=True) for n in (0, 9, 5)))
    cells = pa.StringArray.from_buffers(2, offsets, pa.py_buffer(b"unsat"))
    batch = pa.record_batch({"key": pa.array(["0", "1"]), "verdict": cells, "options": [1, 2]})
    with (
        pa.OSFile(str(run / "verdicts.arrows"), "wb") as sink,
        pa.ipc.new_stream(sink, batch.schema) as writer,
    ):
        writer.write_batch(batch)
    assert_rejected(run, "verdicts.arrows: is no record of verdicts")

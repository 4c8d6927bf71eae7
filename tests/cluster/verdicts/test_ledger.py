"""The ledger keeps what was recorded, whatever ends a run, and lets one writer in."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from shardproof.cluster.settings import Settings
from shardproof.cluster.verdicts.ledger import (
    FILE,
    SCHEMA,
    Ledger,
    LedgerError,
    from_batch,
    read,
    text_key,
)
from shardproof.solvers import Answer, Query, Solved
from tests.cluster.work import said

ROOT = Path(__file__).resolve().parents[3]
OPTIONS = Settings().options
KEYS = [hashlib.sha256(bytes([i])).hexdigest() for i in range(8)]
REFUTED = Solved(
    "sat",
    "nonlinear",
    (
        Answer("sat", "z3", "5.4", 0.25, 30.0),
        Answer("timeout", "z3", "5.4", 0.5, 40.0, reason="wall clock of 0.5 s reached"),
        Answer("sat", "cvc5", "1.4", 0.125, 20.0, {"layers.0/wq": "-3/2", "é|x": "0"}),
    ),
)


def written(folder: Path) -> Path:
    """A ledger of three batches, of 1, 2 and 1 verdicts."""
    with Ledger(folder) as ledger:
        ledger.append({KEYS[0]: said("unsat")}, OPTIONS)
        ledger.append({KEYS[1]: REFUTED, KEYS[2]: said("timeout", reason="late")}, OPTIONS)
        ledger.append({KEYS[3]: said("sat", {"x": "1/2"})}, OPTIONS, cached=True)
    return folder / FILE


def test_verdicts_come_back_as_they_were(tmp_path: Path) -> None:
    path = written(tmp_path)
    table = read(path)
    assert dict(from_batch(table)) == {
        KEYS[0]: said("unsat"),
        KEYS[1]: REFUTED,
        KEYS[2]: said("timeout", reason="late"),
        KEYS[3]: said("sat", {"x": "1/2"}),
    }
    with Ledger(tmp_path) as ledger:
        assert ledger.dropped_bytes == 0
        assert ledger.get(KEYS[1], OPTIONS) == REFUTED
        assert ledger.get(KEYS[4], OPTIONS) is None
        assert ledger.get(KEYS[1], dataclasses.replace(OPTIONS, seed=2)) is None


def test_a_closed_ledger_takes_nothing(tmp_path: Path) -> None:
    """A thread that solves ahead may come when the run is over."""
    with Ledger(tmp_path) as ledger:
        ledger.append({KEYS[0]: said("unsat")}, OPTIONS)
    with pytest.raises(ValueError, match="is closed"):
        ledger.append({KEYS[1]: said("unsat")}, OPTIONS)
    assert [key for key, _ in from_batch(read(tmp_path / FILE))] == [KEYS[0]]


def test_any_arrow_reader_opens_it(tmp_path: Path) -> None:
    path = written(tmp_path)
    with pa.OSFile(str(path)) as file:
        table = pa.ipc.open_stream(file).read_all()
    assert table.schema == SCHEMA
    row = table.to_pylist()[1]
    assert (row["solver"], row["version"], row["rung"]) == ("cvc5", "1.4", "nonlinear")
    assert (row["seconds"], row["rss_mib"]) == (0.875, 40.0)
    assert row["model"] == [
        {"symbol": "layers.0/wq", "value": "-3/2"},
        {"symbol": "é|x", "value": "0"},
    ]
    assert row["options"]["timeout"] == 30.0
    assert table.column("cached").to_pylist() == [False, False, False, True]


def test_cut_at_every_byte_of_the_last_batch_it_keeps_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)  # two thousand of them take a while
    with Ledger(tmp_path) as ledger:
        ledger.append({KEYS[0]: said("unsat")}, OPTIONS)
        ledger.append({KEYS[1]: REFUTED}, OPTIONS)
    path = tmp_path / FILE
    kept = path.read_bytes()
    with Ledger(tmp_path) as ledger:
        ledger.append({KEYS[2]: said("unsat")}, OPTIONS)
    whole = path.read_bytes()
    for length in range(len(kept), len(whole)):
        os.truncate(path, length)
        assert read(path).num_rows == 2
        assert path.stat().st_size == length
        with Ledger(tmp_path) as ledger:
            assert ledger.dropped_bytes == length - len(kept)
            assert ledger.get(KEYS[1], OPTIONS) == REFUTED
            ledger.append({KEYS[2]: said("unsat")}, OPTIONS)
        assert path.read_bytes() == whole


@pytest.mark.parametrize("tail", [bytes(100), b"\xff\xff\xff\xff", b"\xff" * 64, b"garbage " * 9])
def test_an_end_that_is_no_batch_is_dropped(tmp_path: Path, tail: bytes) -> None:
    path = written(tmp_path)
    sound = path.read_bytes()
    path.write_bytes(sound + tail)
    with Ledger(tmp_path) as ledger:
        assert ledger.dropped_bytes == len(tail)
    assert path.read_bytes() == sound


def test_cut_within_its_schema_it_begins_again(tmp_path: Path) -> None:
    whole = written(tmp_path).read_bytes()
    head = len(SCHEMA.serialize())
    for length in (0, 1, head - 1, head):
        (tmp_path / FILE).write_bytes(whole[:length])
        assert read(tmp_path / FILE).num_rows == 0
        written(tmp_path)
        assert (tmp_path / FILE).read_bytes() == whole


def test_a_changed_byte_is_never_a_changed_verdict(tmp_path: Path) -> None:
    path = written(tmp_path)
    whole = path.read_bytes()
    rows = list(from_batch(read(path)))
    for position in range(len(SCHEMA.serialize()), len(whole), 7):
        changed = bytearray(whole)
        changed[position] ^= 0x15
        path.write_bytes(changed)
        with contextlib.suppress(LedgerError):
            kept = list(from_batch(read(path)))
            assert kept == rows[: len(kept)]


def test_damage_before_the_end_is_said_with_its_place(tmp_path: Path) -> None:
    path = written(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"-3/2", b"-5/2", 1))
    message = r"verdicts\.arrows: batch 2, at byte \d+, does not have the checksum"
    with pytest.raises(LedgerError, match=message):
        read(path)
    with pytest.raises(LedgerError, match=message):
        Ledger(tmp_path)
    path.write_bytes(data)
    Ledger(tmp_path).close()


def test_another_file_is_no_ledger(tmp_path: Path) -> None:
    path = tmp_path / FILE
    path.write_bytes(b"PK\3\4 and so on")
    with pytest.raises(LedgerError, match="is not a ledger of this version"):
        Ledger(tmp_path)
    assert path.read_bytes() == b"PK\3\4 and so on"


def test_two_verdicts_on_one_text_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    with Ledger(tmp_path) as ledger:
        with pytest.raises(ValueError, match=f"already has a verdict on {KEYS[0]}"):
            ledger.append({KEYS[5]: said("sat"), KEYS[0]: said("sat")}, OPTIONS)
        assert ledger.get(KEYS[5], OPTIONS) is None
        ledger.append({KEYS[0]: said("sat")}, dataclasses.replace(OPTIONS, seed=2))
    data = path.read_bytes()
    path.write_bytes(data + data[len(SCHEMA.serialize()) :])
    with pytest.raises(LedgerError, match=f"holds two verdicts on {KEYS[0]} with the same options"):
        read(path)


def test_a_verdict_that_nobody_gave_is_refused(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger, pytest.raises(ValueError, match="has no answer behind it"):
        ledger.append({KEYS[0]: Solved("unsat", "linear", ())}, OPTIONS)


def test_a_second_writer_is_refused_and_told_of_the_first(tmp_path: Path) -> None:
    with Ledger(tmp_path):
        with pytest.raises(LedgerError, match=f"is being written by process {os.getpid()} on "):
            Ledger(tmp_path)
        other = subprocess.run(
            [sys.executable, "-c", OPEN, str(tmp_path)],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert other.returncode != 0
        assert "a ledger has one writer: wait for that run" in other.stderr
    Ledger(tmp_path).close()


OPEN = """
import sys
from pathlib import Path
from shardproof.cluster.verdicts.ledger import Ledger
with Ledger(Path(sys.argv[1])): pass
"""

ENDLESS = """
import sys
from pathlib import Path
from shardproof.cluster.verdicts.ledger import Ledger
from tests.cluster.verdicts.test_ledger import OPTIONS, said
ledger = Ledger(Path(sys.argv[1]))
for i in range(10**9):
    ledger.append({f"{i:064}": said("unsat")}, OPTIONS)
    print(i, flush=True)
"""


def test_a_killed_writer_leaves_what_it_recorded_and_no_lock(tmp_path: Path) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", ENDLESS, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    last = -1
    for line in writer.stdout:
        last = int(line)
        if last == 200:
            writer.send_signal(signal.SIGKILL)
    writer.wait()
    assert last >= 200
    with Ledger(tmp_path) as ledger:
        assert all(ledger.get(f"{i:064}", OPTIONS) == said("unsat") for i in range(last + 1))


def test_a_full_disk_leaves_the_ledger_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = written(tmp_path).read_bytes()
    write = os.pwrite

    def half(file: int, data: memoryview, at: int) -> int:
        if at > len(whole):
            raise OSError(28, "No space left on device")
        return write(file, data[: len(data) // 2], at)

    with Ledger(tmp_path) as ledger:
        monkeypatch.setattr(os, "pwrite", half)
        with pytest.raises(OSError, match="No space left"):
            ledger.append({KEYS[6]: said("unsat")}, OPTIONS)
        assert ledger.get(KEYS[6], OPTIONS) is None
        monkeypatch.undo()
        assert (tmp_path / FILE).read_bytes() == whole
        ledger.append({KEYS[6]: said("unsat")}, OPTIONS)
    assert read(tmp_path / FILE).num_rows == 5


def test_keys_depend_on_texts_alone() -> None:
    assert text_key(Query("a", "one", "two")) == text_key(Query("b", "one", "two"))
    assert text_key(Query("a", "one", "two")) != text_key(Query("a", "onetwo", ""))

"""Files that are none, too large, or larger inside: refused at once and in bounded memory."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from shardproof.checker import check
from shardproof.cluster.verdicts.ledger import FILE, LedgerError, read
from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan_files import store
from shardproof.engine.storage import files
from shardproof.inputs import assume
from tests.engine import small_plans

MIB = 1 << 20


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def folder(path: Path) -> None:
    path.mkdir()


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    store.save(small_plans.replicas(), tmp_path / "plan")
    return tmp_path / "plan"


@pytest.mark.parametrize("instead", [pipe, device, folder])
def test_what_is_no_file_is_refused_and_not_waited_for(
    instead: Callable[[Path], None], plan: Path, tmp_path: Path
) -> None:
    assert store.load(plan).name == small_plans.replicas().name
    (plan / "ops.arrow").unlink()
    instead(plan / "ops.arrow")
    with pytest.raises(InvalidInput, match=r"ops\.arrow: cannot be read: no regular file"):
        store.load(plan)
    instead(tmp_path / "assume.toml")
    with pytest.raises(InvalidInput, match="cannot be read: "):
        assume.read(tmp_path / "assume.toml")
    instead(tmp_path / FILE)
    with pytest.raises((LedgerError, OSError)):
        read(tmp_path / FILE)
    run = tmp_path / "run"
    run.mkdir()
    instead(run / "certificate.json")
    assert not check(run).ok


def test_a_file_is_read_to_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    assert files.contents(path, 100) == b"x" * 100
    with pytest.raises(OSError, match="more than 99 bytes"):
        files.contents(path, 99)


def test_a_table_that_is_large_inside_takes_bounded_memory(
    plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What Arrow sets aside for itself when it is first used, a gigabyte, comes before the bound.
    assert store.load(plan).name == small_plans.replicas().name
    monkeypatch.setattr(files, "MEMORY_BYTES", 512 * MIB)
    assert store.load(plan).name == small_plans.replicas().name
    before = resource.getrlimit(resource.RLIMIT_AS)
    column = pa.array(np.zeros(16 * MIB, np.int64))
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    table = pa.schema([pa.field("number", pa.int64())])
    with pa.ipc.new_file(str(plan / "ops.arrow"), table, options=options) as writer:
        for _ in range(32):
            writer.write_batch(pa.record_batch([column], schema=table))
    del column
    assert (plan / "ops.arrow").stat().st_size < MIB
    with pytest.raises(InvalidInput, match=r"(is no Arrow file: malloc|takes more memory)"):
        store.load(plan)
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_the_narrower_bound_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MEMORY_BYTES", 256 * MIB)
    with files.bounded(tmp_path):
        outer = resource.getrlimit(resource.RLIMIT_AS)[0]
        monkeypatch.setattr(files, "MEMORY_BYTES", 4096 * MIB)
        with pytest.raises(InvalidInput, match="takes more memory to be read"):
            take_half_a_gigabyte(tmp_path, outer)
        assert resource.getrlimit(resource.RLIMIT_AS)[0] == outer


def take_half_a_gigabyte(where: Path, bound: int) -> None:
    with files.bounded(where):
        assert resource.getrlimit(resource.RLIMIT_AS)[0] == bound
        bytearray(512 * MIB)

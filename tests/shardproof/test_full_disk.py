"""A disk that is full is a fault of the machine: exit 4 and one message wherever it happens, and
the run goes on once there is room."""

from __future__ import annotations

import errno
import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from shardproof import cli
from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan_files import store
from shardproof.engine.storage.files import unwritable
from shardproof.inputs import rundir
from tests.shardproof.faces import ROOT, tiny

#: Verifies on a disk of $1 KiB, makes room, and goes on; says the exit codes and the messages.
ON_A_SMALL_DISK = """
set -e
mount -t tmpfs -o size=$1k none "$2"
shift
disk=$1 plan=$2 python=$3
run() { code=0; "$python" -m shardproof "$@" 2>"$disk.said" >"$disk.out" || code=$?;
        echo "$code $(grep -v ' MiB, ' "$disk.said" | tail -n 1)"; }
run verify "$plan" --no-cache --executor local --out "$disk/run" --json
test -f "$disk/run/run.json" || { ls -A "$disk/run"; exit 0; }
mount -o remount,size=100m "$disk"
run resume "$disk/run" --json
cat "$disk.out"
"""


@functools.cache
def can_mount() -> bool:
    """Whether this user may mount a small disk, in a namespace of its own."""
    there = subprocess.run(
        ["unshare", "--mount", "--map-root-user", "mount", "-t", "tmpfs", "none", "/mnt"],
        capture_output=True, check=False,
    )  # fmt: skip
    return there.returncode == 0


@pytest.mark.parametrize(
    ("kib", "begun"), [(8, False), (40, False), (100, True), (140, True), (220, True), (300, True)]
)
def test_a_run_on_a_full_disk(tmp_path: Path, kib: int, begun: bool) -> None:
    """From a disk without room for the plan to one that lacks room for the last tables."""
    if not can_mount():
        pytest.skip("no disk can be mounted here: unshare --mount is not permitted")
    store.save(tiny(layers=2), tmp_path / "plan")
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(
        ["unshare", "--mount", "--map-root-user", "sh", "-c", ON_A_SMALL_DISK, "sh",
         str(kib), str(disk), str(tmp_path / "plan"), sys.executable],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    assert first.startswith("4 shardproof: no space left on the disk"), done.stdout
    if not begun:
        assert first.endswith(": make room, then start again")
        assert rest == [], "nothing is in the way of another start"
        return
    assert first.endswith(f"make room, then go on with: shardproof resume {disk}/run")
    assert rest[0].split()[0] == "0"
    assert json.loads("\n".join(rest[1:]))["verdict"] == "proved"


def no_room(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/runs/here")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_no_invalid_input(number: int) -> None:
    full = OSError(number, os.strerror(number))
    with pytest.raises(OSError, match=re.escape(os.strerror(number))):
        raise unwritable(full, "plan")


def test_what_may_not_be_written_is_invalid_input() -> None:
    error = unwritable(PermissionError(errno.EACCES, "Permission denied"), "plan")
    assert isinstance(error, InvalidInput)
    assert str(error) == "plan: cannot be written: Permission denied"


@pytest.mark.parametrize(
    "command",
    [
        ["verify", "plan"],
        ["verify", "plan", "--out", "run"],
        ["plan", "llama3-8b", "--dp", "1", "--tp", "1", "--pp", "1", "--microbatches", "1",
         "--layers", "1", "-o", "made/plan"],
        ["mutate", "plan", "--count", "1", "--out", "mutants"],
        ["report", "run"],
    ],
    ids=lambda command: " ".join(command[:2]),
)  # fmt: skip
def test_every_command_says_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    store.save(tiny(), tmp_path / "plan")
    if command[0] == "report":
        done = CliRunner().invoke(cli.main, ["verify", "plan", "--out", "run", "--no-cache"])
        assert done.exit_code == 0
    monkeypatch.setattr(Path, "mkdir", no_room)
    monkeypatch.setattr(Path, "write_text", no_room)
    outcome = CliRunner().invoke(cli.main, command)
    assert outcome.exit_code == 4, outcome.output
    assert outcome.stderr == (
        "shardproof: no space left on the disk for /runs/here: make room, then start again\n"
    )


def test_a_folder_that_may_not_be_written_is_invalid_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refused)
    with pytest.raises(InvalidInput, match="cannot be the run directory: Permission denied"):
        rundir.create(tmp_path / "run", "plan", None)  # type: ignore[arg-type]
    monkeypatch.setattr(Path, "mkdir", no_room)
    with pytest.raises(OSError, match="No space left"):
        rundir.create(tmp_path / "run", "plan", None)  # type: ignore[arg-type]

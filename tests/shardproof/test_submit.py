"""Submitting from a folder that is no checkout: what to do is said before Ray is asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from shardproof.commands.submit import LOCK, SOURCES, lock_of

ROOT = Path(__file__).resolve().parents[2]


def test_a_folder_without_sources_is_told_to_use_what_is_installed(tmp_path: Path) -> None:
    (tmp_path / LOCK).parent.mkdir()
    (tmp_path / LOCK).write_text("msgspec==0.20.0\n")
    paths = os.environ.get("PYTHONPATH", str(ROOT))
    done = subprocess.run(
        [sys.executable, "-m", "shardproof", "submit", "--", "verify", "plan"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (3, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"shardproof: {tmp_path}: is no checkout of Shardproof")
    assert "--installed" in line


def test_a_checkout_gives_its_pinned_packages() -> None:
    assert (ROOT / SOURCES).is_file()
    assert lock_of(ROOT) == ROOT / LOCK

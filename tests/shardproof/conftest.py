"""Fixtures of the tests of the face: the command line in an empty folder, and a small plan
there."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from shardproof import cli
from shardproof.engine.plan_files import store
from tests.shardproof.faces import Run, tiny


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs ``shardproof ARGS`` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *args: CliRunner().invoke(cli.main, [str(arg) for arg in args])


@pytest.fixture
def plan_dir(tmp_path: Path) -> Path:
    """A stored plan beside it."""
    store.save(tiny(), tmp_path / "plan")
    return tmp_path / "plan"

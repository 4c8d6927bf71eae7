"""Run directories: new, or empty, or refused."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from shardproof.engine.errors import InvalidInput
from shardproof.inputs.rundir import create, refuse_used, slug

NOW = datetime(2026, 11, 21, 8, 5, 9)


def test_the_default_is_named_by_time_and_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = [create(None, "llama3 8b/dp2", NOW).relative_to(tmp_path) for _ in range(3)]
    assert [str(name) for name in names] == [
        "shardproof-runs/20261121-080509-llama3-8b-dp2",
        "shardproof-runs/20261121-080509-llama3-8b-dp2-2",
        "shardproof-runs/20261121-080509-llama3-8b-dp2-3",
    ]


def test_a_file_where_runs_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shardproof-runs").touch()
    with pytest.raises(InvalidInput, match=r"^shardproof-runs.*: "):
        create(None, "plan", NOW)


def test_new_and_empty_directories_are_taken(tmp_path: Path) -> None:
    assert create(tmp_path / "a" / "b", "plan", NOW).is_dir()
    assert create(tmp_path / "a" / "b", "plan", NOW) == tmp_path / "a" / "b"


@pytest.mark.parametrize("act", [refuse_used, lambda path: create(path, "plan", NOW)])
def test_others_are_refused(tmp_path: Path, act: object) -> None:
    assert callable(act)
    used, file, broken = tmp_path / "used", tmp_path / "file", tmp_path / "broken"
    used.mkdir()
    (used / "x").touch()
    file.touch()
    broken.symlink_to(tmp_path / "nowhere")
    expected = {
        used: "expected a new or empty directory for the run, found one with files in it",
        file: "expected a directory for the run, found a file",
        broken: "expected a directory for the run, found a file",
    }
    for path, message in expected.items():
        with pytest.raises(InvalidInput) as caught:
            act(path)
        assert str(caught.value) == f"{path}: {message}"


def test_a_directory_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput) as caught:
        create(tmp_path / "file" / "run", "plan", NOW)
    assert str(caught.value) == (
        f"{tmp_path / 'file' / 'run'}: cannot be the run directory: Not a directory"
    )


@pytest.mark.parametrize(
    ("name", "slugged"),
    [("../../x y", "x-y"), ("", "plan"), ("...", "plan"), ("a" * 300, "a" * 100)],
)
def test_names_of_plans_make_file_names(name: str, slugged: str) -> None:
    assert slug(name) == slugged

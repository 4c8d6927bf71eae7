"""Plan folders and text plans, as the face reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import shardproof
from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan_files import store
from shardproof.engine.plan_files.text import plan_text
from shardproof.engine.plan_files.text_parser import parse_plan
from shardproof.frontends.frontend import of, of_pair
from shardproof.frontends.plans.frontend import FOLDER, TEXT
from shardproof.frontends.zoo import build
from shardproof.inputs.assume import Assumptions
from shardproof.inputs.load import load_plan

SIZES: dict[str, Any] = {
    "layers": 1,
    "hidden": 96,
    "heads": 12,
    "vocabulary": 224,
    "sequence": 10,
    "tp": 2,
}


def written(folder: Path, text: str) -> Path:
    path = folder / "small.plan.txt"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def text() -> str:
    return plan_text(build("gpt3-175b", **SIZES))


def test_each_is_recognised_by_its_content(tmp_path: Path, text: str) -> None:
    path = written(tmp_path, "# a comment\n\n" + text)
    store.save(parse_plan(text), tmp_path / "plan")
    assert of(path) is TEXT
    assert of(tmp_path / "plan") is FOLDER
    assert of(tmp_path) is not FOLDER
    assert of(written(tmp_path, "a text that is no plan")) is not TEXT


def test_a_text_is_the_plan_that_it_writes_down(tmp_path: Path, text: str) -> None:
    plan = load_plan(written(tmp_path, text), None, Assumptions())
    assert plan_text(plan) == text


def test_a_text_is_proved_and_its_wrong_twin_is_not(tmp_path: Path, text: str) -> None:
    right = shardproof.verify(written(tmp_path, text), out=tmp_path / "right", cache=False)
    assert right.verdict == "proved"
    wrong = text.replace('op="sum"', 'op="max"', 1)
    assert wrong != text
    found = shardproof.verify(written(tmp_path, wrong), out=tmp_path / "wrong", cache=False)
    assert found.verdict == "refuted"


def test_errors_name_the_line(tmp_path: Path, text: str) -> None:
    path = written(tmp_path, text.replace("linear(", "linaer((", 1))
    with pytest.raises(InvalidInput, match=r"small\.plan\.txt'?:\d+"):
        load_plan(path, None, Assumptions())


def test_a_plan_with_both_sides_is_given_alone(tmp_path: Path, text: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InvalidInput, match="holds both sides of a plan and is given alone"):
        load_plan(path, path, Assumptions())


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("nothing.mlir", "nothing"),
        ("empty.hlo", "an empty file"),
        ("words.pt2", "a file of no known format"),
        ("folder", "a folder of no known format"),
    ],
)
def test_a_file_of_no_format_is_said_not_taken_for_another(
    tmp_path: Path, name: str, found: str
) -> None:
    """Each was "found an nnScaler plan", or the other side was refused for being none."""
    text = tmp_path / "text.hlo"
    text.write_text("HloModule m\n")
    (tmp_path / "empty.hlo").touch()
    (tmp_path / "words.pt2").write_text("words")
    (tmp_path / "folder").mkdir()
    for pair in ((text, tmp_path / name), (tmp_path / name, text)):
        with pytest.raises(
            InvalidInput, match=f"expected HLO.* as the other side is, found {found}$"
        ) as error:
            of_pair(*pair)
        assert str(tmp_path / name) in str(error.value)

"""``shardproof inspect RUN --claims``: what was claimed in a run, as text."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import shardproof
from shardproof.cli import main
from shardproof.engine.errors import InvalidInput
from shardproof.engine.records.run import read_run
from shardproof.frontends.zoo import build
from shardproof.report.claims import claims


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("claims") / "run"
    sizes = {"hidden": 96, "heads": 12, "vocabulary": 224, "sequence": 10}
    plan = build("gpt3-175b", layers=1, tp=2, **sizes)
    assert shardproof.verify(plan, out=out, cache=False).verdict == "proved"
    return out


def test_every_template_has_its_claim_and_its_obligation(run: Path) -> None:
    found = list(claims(run))
    assert len(found) == len(read_run(run).templates) > 10
    for number, text in enumerate(found):
        assert text.startswith(f"template {number}: ")
        assert "\n  out [" in text
        assert " == " in text
    reduce = next(text for text in found if "\nall_reduce over (tp=2) of 1" in text)
    assert " part #" in reduce.partition("\n  out ")[0]
    assert " part #" not in reduce.partition("\n  out ")[2].partition("\n")[0]


def test_the_command_prints_them(run: Path) -> None:
    outcome = CliRunner().invoke(main, ["inspect", str(run), "--claims"])
    assert outcome.exit_code == 0
    assert outcome.output == "".join(f"{text}\n" for text in claims(run))


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=str(tmp_path)):
        list(claims(tmp_path))

"""What CI reads of a result: JUnit XML, SARIF, annotations of GitHub Actions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as xml

import pytest
from click.testing import CliRunner
from click.testing import Result as Outcome

from shardproof import cli
from shardproof.engine.findings import Finding
from shardproof.engine.plan_files import store
from shardproof.report.ci.annotations import MOST, annotated
from shardproof.report.ci.junit import junit
from shardproof.report.ci.sarif import sarif
from shardproof.report.ci.subject import place, problems
from shardproof.run.result import Result
from tests.shardproof.faces import proved, refuted, stub_pipeline, tiny

INCONCLUSIVE = Result("inconclusive", reason="no declaration of operator gate_fw")
INVALID = Result("invalid input", reason="a.pkl: is no plan")

#: What the plan of somebody who means no good may hold.
HOSTILE = "x]]>&<b>\x1b[2J\r\n::error::%0A, a:b\udcff"


def hostile() -> Result:
    finding = Finding(HOSTILE, HOSTILE, operator=HOSTILE, layer=HOSTILE, source=HOSTILE)
    conclusions = tuple(
        replace(c, kind=HOSTILE, name=HOSTILE, message=HOSTILE) for c in refuted().conclusions
    )
    return replace(refuted(), reason=HOSTILE, findings=(finding,), conclusions=conclusions)


# -- what there is to show ------------------------------------------------------------------------


def test_a_cause_is_shown_once_and_what_follows_from_it_is_not() -> None:
    cause = Finding("mismatch", "the all-reduce is missing", group=1, cause="missing", repair="x")
    follows = Finding("conclusion", "the loss differs", group=1)
    beside = Finding("precision", "a sum runs in float16")
    result = replace(refuted(), findings=(cause, follows, beside, beside))
    assert [(p.level, p.message) for p in problems(result)] == [
        ("error", "the all-reduce is missing. Cause: missing. Repair: x"),
        ("note", "a sum runs in float16"),
    ]


def test_findings_beside_a_proof_are_notes() -> None:
    result = replace(proved(), findings=(Finding("precision", "a cast"),))
    assert [p.level for p in problems(result)] == ["note"]
    assert problems(proved()) == []


def test_without_a_finding_a_refutation_still_is_an_error() -> None:
    assert [(p.level, p.message) for p in problems(replace(refuted(), findings=()))] == [
        ("error", "rank 0: the loss is half of it")
    ]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('File "/models/gpt.py", line 214, in forward, x = y', ("/models/gpt.py", 214)),
        ("model.py:214", ("model.py", 214)),
        (f"{Path.cwd()}/model.py:7", ("model.py", 7)),
        ("cell 12", None),
        ("model.py:0", None),
        ("", None),
    ],
)
def test_a_source_is_a_file_and_a_line(source: str, expected: tuple[str, int] | None) -> None:
    assert place(source) == expected


# -- JUnit ----------------------------------------------------------------------------------------


def cases(text: str) -> dict[str, list[str]]:
    """The outcomes of every test, by name; the counts of the document are those of its tests."""
    (suite,) = root = xml.fromstring(text.encode())
    assert (root.tag, suite.tag) == ("testsuites", "testsuite")
    assert {case.tag for case in suite} == {"testcase"}
    found = {case.attrib["name"]: [child.tag for child in case] for case in suite}
    assert len(found) == len(suite)
    for element in (root, suite):
        assert int(element.attrib["tests"]) == len(found)
        for tag, many in (("failure", "failures"), ("error", "errors")):
            assert int(element.attrib[many]) == sum(tags == [tag] for tags in found.values())
    return found


def test_every_conclusion_is_a_test() -> None:
    assert cases(junit(proved(), "plan")) == {
        "verdict": [],
        "loss": [],
        "gradient of layers.0.w1": [],
        "gradient of norm.weight": [],
    }
    found = cases(junit(refuted(), "plan"))
    assert found["verdict"] == found["loss"] == found["gradient of w0"] == ["failure"]
    assert found["gradient of norm.weight"] == []


@pytest.mark.parametrize("result", [INCONCLUSIVE, INVALID])
def test_no_verdict_is_an_error_and_no_failure(result: Result) -> None:
    text = junit(result, "plan")
    assert cases(text) == {"verdict": ["error"]}
    assert result.reason in text


# -- SARIF ----------------------------------------------------------------------------------------


def runs(text: str) -> dict[str, Any]:
    document = json.loads(text)
    assert document["version"] == "2.1.0"
    (run,) = document["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert len(set(rules)) == len(rules)
    for result in run["results"]:
        assert rules[result["ruleIndex"]] == result["ruleId"]
        assert result["level"] in ("error", "warning", "note")
        assert result["message"]["text"]
        (location,) = result["locations"]
        assert location["physicalLocation"]["region"]["startLine"] >= 1
        assert len(result["partialFingerprints"]["shardproof/v1"]) == 64
    found: dict[str, Any] = run
    return found


def test_a_finding_is_shown_at_its_line_of_code() -> None:
    (first, *rest) = runs(sarif(refuted(), "plan", "plans/a b"))["results"]
    place = first["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": "model.py"}, "region": {"startLine": 214}}
    assert first["level"] == "error"
    elsewhere = [r["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for r in rest]
    assert "plans/a%20b" in elsewhere, "what names no line is shown at the plan"


def test_what_is_no_verdict_is_a_warning_and_a_bad_file_an_error() -> None:
    assert [r["level"] for r in runs(sarif(INCONCLUSIVE, "p", "p"))["results"]] == ["warning"]
    found = runs(sarif(INVALID, "p", "/p"))
    assert [r["level"] for r in found["results"]] == ["error"]
    assert found["invocations"] == [{"executionSuccessful": False, "exitCode": 3}]
    assert runs(sarif(proved(), "p", "p"))["results"] == []


# -- annotations ----------------------------------------------------------------------------------


def test_annotations() -> None:
    assert annotated(proved(), "plan") == [
        "::notice title=plan%3A proved::4 conclusions on 8 ranks"
    ]
    first, *rest = annotated(refuted(), "plan")
    assert first.startswith("::error title=plan%3A refuted,file=model.py,line=214::rank 0 adds ")
    assert len(rest) < MOST
    assert annotated(INCONCLUSIVE, "plan") == [
        "::warning title=plan%3A inconclusive::no declaration of operator gate_fw"
    ]


def test_names_of_a_plan_are_text_everywhere() -> None:
    cases_found = cases(junit(hostile(), HOSTILE))
    assert "verdict" in cases_found
    assert len(runs(sarif(hostile(), HOSTILE, "p"))["results"]) == 1
    for line in annotated(hostile(), HOSTILE):
        assert "\n" not in line
        assert "\r" not in line
        assert line.isprintable()
        properties = line.removeprefix("::error ").partition("::")[0]
        assert [part.partition("=")[0] for part in properties.split(",")] == ["title"]


# -- the command line -----------------------------------------------------------------------------


def verify(tmp_path: Path, *args: str, **environment: str) -> Outcome:
    runner = CliRunner(env={"GITHUB_ACTIONS": None, **environment})
    return runner.invoke(cli.main, ["verify", str(tmp_path / "plan"), *args])


def test_the_files_are_written_whatever_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store.save(tiny(), tmp_path / "plan")
    args = ["--junit", "j.xml", "--sarif", "s.json"]
    for result, code in ((proved(), 0), (refuted(), 1), (INCONCLUSIVE, 2)):
        stub_pipeline(monkeypatch, result)
        outcome = verify(tmp_path, *args)
        assert (outcome.exit_code, outcome.stderr) == (code, "")
        cases((tmp_path / "j.xml").read_text())
        found = runs((tmp_path / "s.json").read_text())
        assert found["properties"]["verdict"] == result.verdict
        assert found["automationDetails"] == {"id": "shardproof/plan"}
    (tmp_path / "plan" / "ops.arrow").write_bytes(b"")
    assert verify(tmp_path, *args).exit_code == 3
    assert cases((tmp_path / "j.xml").read_text()) == {"verdict": ["error"]}


def test_a_step_of_github_is_annotated_on_stderr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store.save(tiny(), tmp_path / "plan")
    stub_pipeline(monkeypatch, refuted())
    outcome = verify(tmp_path, "--json", GITHUB_ACTIONS="true")
    assert outcome.stderr.startswith("::error title=plan%3A refuted,file=model.py,line=214::")
    assert json.loads(outcome.stdout)["verdict"] == "refuted"
    assert verify(tmp_path, GITHUB_ACTIONS="").stderr == ""


@pytest.mark.parametrize("option", ["--junit", "--sarif"])
def test_a_file_that_cannot_be_written_is_refused_before_the_run(
    tmp_path: Path, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store.save(tiny(), tmp_path / "plan")
    stub = stub_pipeline(monkeypatch, proved())
    for name, said in ((".", "found a folder"), ("none/j.xml", "found none: none")):
        outcome = verify(tmp_path, option, name)
        assert outcome.exit_code == 3
        assert said in outcome.stderr
    assert stub.calls == []

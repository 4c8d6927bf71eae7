"""Nights: what a suite is, what counts as a change, and a night after another for real."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from shardproof.campaigns.nightly import night as nights
from shardproof.campaigns.nightly.changes import changes, exit_code
from shardproof.campaigns.nightly.night import INTERNAL, Night, Point, Template
from shardproof.campaigns.nightly.suite import Limits, read
from shardproof.cli import main
from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan_files import store
from tests.engine import small_plans

ROOT = Path(__file__).resolve().parents[2]


def point(**changed: Any) -> Point:
    same = Point(
        plan="plan", seed=1, expect="", verdict="proved", reason="", seconds=10.0,
        solve_seconds=5.0, peak_rss_mib=200.0, run_dir="",
        templates={"aa": Template("unsat", 0.1), "bb": Template("unsat", 0.2)},
    )  # fmt: skip
    return msgspec.structs.replace(same, **changed)


def night(*points: Point) -> Night:
    return Night("suite", "20260101-000000", {}, list(points))


def told(now: Sequence[Point], then: Sequence[Point] | None = None) -> tuple[list[str], int]:
    before = None if then is None else night(*then)
    found = changes(night(*now), before, Limits())
    return [f"{c.kind}: {c.message}" for c in found], exit_code(found)


def test_a_night_like_the_one_before_is_quiet() -> None:
    assert told([point()], [point()]) == ([], 0)
    assert told([point(expect="proved")]) == ([], 0)
    slightly = point(seconds=11.9, peak_rss_mib=259.0)
    assert told([slightly], [point()]) == ([], 0)


@pytest.mark.parametrize(
    ("changed", "message", "code"),
    [
        ({"verdict": "refuted"}, "verdict changed: seed 1: was proved, is refuted", 1),
        (
            {"verdict": "inconclusive", "reason": "timeout"},
            "new inconclusive: seed 1: was proved, is inconclusive (timeout)",
            2,
        ),
        ({"expect": "refuted"}, "not expected: seed 1: expected refuted, found proved", 1),
        ({"seconds": 16.0}, "slower: seed 1: 10.0 s before, 16.0", 2),
        ({"peak_rss_mib": 300.0}, "more memory: seed 1: 200 MiB before, 300", 2),
        (
            {"templates": {"aa": Template("timeout", 30.0), "bb": Template("unsat", 0.2)}},
            "new inconclusive: seed 1: 1 template is no longer decided: aa timeout",
            2,
        ),
        (
            {"templates": {"aa": Template("unsat", 0.1), "cc": Template("unsat", 0.1)}},
            "templates: 1 new, 1 gone, 1 the same",
            0,
        ),
    ],
)
def test_what_is_worse_is_told(changed: dict[str, Any], message: str, code: int) -> None:
    assert told([point(**changed)], [point()]) == ([message], code)


def test_what_got_better_is_told_as_a_change_of_verdict_only() -> None:
    assert told([point(seconds=1.0)], [point()]) == ([], 0)
    assert told([point()], [point(verdict="inconclusive")])[1] == 1


def test_plans_come_and_go() -> None:
    lines, code = told([point(plan="new")], [point(plan="old")])
    assert [line.partition(":")[0] for line in lines] == ["new plan", "plan gone"]
    assert code == 0


def test_what_depends_on_the_seed_is_told() -> None:
    other = point(seed=2, verdict="inconclusive")
    assert told([point(), other])[0] == [
        "unstable: the verdict depends on the seed: seed 1: proved, seed 2: inconclusive"
    ]
    slow = {"aa": Template("unsat", 5.0), "bb": Template("unknown", 0.2)}
    lines, code = told([point(), point(seed=2, templates=slow)])
    assert lines == [
        "unstable: template aa takes 0.1 to 5 s by seed",
        "unstable: template bb: seed 1: unsat, seed 2: unknown",
    ]
    assert code == 2


def test_a_failure_of_ours_counts_most() -> None:
    lines, code = told([point(verdict=INTERNAL), point(plan="other", expect="refuted")])
    assert [line.partition(":")[0] for line in lines] == ["internal error", "not expected"]
    assert code == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("plans: [", "expected YAML"),
        ("- 1", "expected keys and values"),
        ("plans: []", "plans: expected a list of plans"),
        ("name: x", "plans: is missing, expected a list of plans"),
        ("plans: [{model: 3}]", "plans[0].model: expected a text that is not empty, found 3"),
        ("plan: []", "plan: not a key here, near is plans; known are plans, name, verify, "),
        ("plans: [{model: m, single: s}]", "plans[0]: expected either a model of the zoo or files"),
        ("plans: [{expect: proved}]", "plans[0]: expected either a model of the zoo or files"),
        ("plans: [{single: s, parameters: {}}]", "expected parameters beside a model only"),
        ("plans: [{model: m, expect: good}]", "plans[0].expect: expected one of inconclusive"),
        ("plans: [{model: m}, {model: m}]", "expected different names, found 'm' twice"),
        ("plans: [{model: m}]\nseeds: [1, 1]", "seeds: expected different seeds"),
        (
            "plans: [{model: m}]\nverify: {timeout: soon}",
            "verify.timeout: expected a number, found 'soon'",
        ),
        (
            "plans: [{model: m}]\nlimits: {time: 0.5}",
            "limits.time: expected a number of at least 1, found 0.5",
        ),
    ],
)
def test_a_wrong_suite_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text(text)
    with pytest.raises(InvalidInput) as error:
        read(path)
    assert message in str(error.value)
    found = CliRunner().invoke(main, ["nightly", str(path), "--out", str(tmp_path / "out")])
    assert found.exit_code == 3


@pytest.mark.parametrize("path", sorted((ROOT / "configs" / "nightly").glob("*.yaml")), ids=str)
def test_our_suites_can_be_read(path: Path) -> None:
    assert read(path).entries


def test_one_night_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that is right, and one that breaks in the second night."""
    store.save(small_plans.replicas(), tmp_path / "right")
    store.save(small_plans.row_parallel(), tmp_path / "breaks")
    suite = tmp_path / "suite.yaml"
    suite.write_text(
        "name: two plans\nverify: {executor: local, workers: 1, cache: false}\nseeds: [1, 2]\n"
        # What else the machine does meanwhile is not what this test is about.
        "limits: {time: 1000, memory: 1000, unstable: 1000}\n"
        "plans: [{name: right, single: right, expect: proved}, {name: breaks, single: breaks}]\n"
    )

    def begin(number: int) -> dict[str, Any]:
        class Clock(nights.datetime):  # type: ignore[misc,name-defined]
            @classmethod
            def now(cls) -> Any:
                return cls(2026, 1, number)

        monkeypatch.setattr("datetime.datetime", Clock)
        run = CliRunner().invoke(
            main, ["nightly", str(suite), "--out", str(tmp_path / "nights"), "--json"]
        )
        data: dict[str, Any] = json.loads(run.stdout)
        assert run.exit_code == data["exit_code"]
        return data

    first = begin(1)
    assert (first["exit_code"], first["suites"][0]["before"]) == (0, "")
    assert [p["verdict"] for p in first["suites"][0]["points"]] == ["proved"] * 4
    quiet = begin(2)
    assert (quiet["exit_code"], quiet["suites"][0]["before"]) == (0, "20260101-000000")
    assert quiet["suites"][0]["changes"] == []
    store.save(small_plans.row_parallel(reduce=False), tmp_path / "breaks")
    loud = begin(3)
    assert loud["exit_code"] == 1
    kinds = [(c["kind"], c["plan"]) for c in loud["suites"][0]["changes"]]
    assert kinds[:2] == [("verdict changed", "breaks")] * 2
    place = Path(loud["suites"][0]["report"])
    page = place.read_text()
    assert "seed 1: was proved, is refuted" in page
    links = re.findall(r'href="([^"]+)"', page)
    assert len(links) == len(loud["suites"][0]["points"]) == 4
    verdicts = [p["verdict"] for p in loud["suites"][0]["points"]]
    for link, verdict in zip(links, verdicts, strict=True):
        assert f"<title>{verdict}: " in (place.parent / link).read_text()
    assert json.loads((Path(loud["suites"][0]["report"]).parent / "report.json").read_text())


def test_a_plan_that_we_fail_at_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(small_plans.replicas(), tmp_path / "right")
    suite = tmp_path / "suite.yaml"
    suite.write_text(
        "verify: {executor: local, workers: 1, cache: false}\n"
        "plans: [{name: bad, single: nothing}, {name: worse, model: llama3-8b}, "
        "{name: right, single: right}]\n"
    )

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("by us")

    monkeypatch.setattr("shardproof.frontends.zoo.build", fail)
    out = tmp_path / "nights"
    run = CliRunner().invoke(main, ["nightly", str(suite), "--out", str(out), "--json"])
    assert run.exit_code == 4
    (document,) = json.loads(run.stdout)["suites"]
    verdicts = [p["verdict"] for p in document["points"]]
    assert verdicts == ["invalid input", INTERNAL, "proved"]
    assert (
        "ZeroDivisionError" in (next(out.glob("*/*/runs/worse-1/internal-error.txt"))).read_text()
    )

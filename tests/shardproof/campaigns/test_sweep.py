"""Sweeps: every point once, none twice, whatever ends them; tables, growth, plots and the page."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shardproof.campaigns.sweep import many, page, plots, run, spec, table
from shardproof.campaigns.sweep.growth import growth
from shardproof.campaigns.sweep.measure import INTERNAL, Run, arguments
from shardproof.campaigns.sweep.spec import Point, Scalar
from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan_files import store
from tests.shardproof.faces import ROOT, tiny

TINY = "{model: llama3-8b, layers: 1, hidden: 8, heads: 2, kv_heads: 2, ffn: 6, vocabulary: 10, sequence: 4}"
AXES = """
base: {model: m}
axes: {dp: [1, 2, 16], tp: [1, 4]}
bounds: {dp: 1.2, tp: linear}
repeat: 2
"""


def sweep_of(folder: Path, text: str, name: str = "s") -> spec.Sweep:
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return spec.read(path)


class Measured:
    """Measures nothing: gives each point ``seconds`` of its degrees, and keeps what it was
    asked."""

    def __init__(self, verdicts: Mapping[str, str] | None = None, stop: int = -1) -> None:
        self.asked: list[str] = []
        self.verdicts = verdicts or {}
        self.stop = stop

    def __call__(
        self, key: str, point: Point, options: Mapping[str, Scalar], work: Path, reports: Path
    ) -> Run:
        if len(self.asked) == self.stop:
            raise KeyboardInterrupt
        self.asked.append(str(point))
        cost = 1.0 + 0.01 * int(point.parameters.get("dp", 1)) + int(point.parameters.get("tp", 0))
        verdict = self.verdicts.get(str(point), "proved")
        return Run(key, verdict, templates=10, obligations=50, parallel_operators=100, stages=60,
                   total=cost, cpu=cost, wall=cost, partition=cost, solve=cost, peak_mib=9.0)  # fmt: skip


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Measured:
    stub = Measured()
    monkeypatch.setattr(many, "measure", stub)
    return stub


def swept(sweep: spec.Sweep, folder: Path) -> run.Swept:
    return run.run([sweep], folder, [], lambda what, done, total: None)


def test_repetitions_go_round_by_round_and_are_not_made_again(
    tmp_path: Path, measured: Measured
) -> None:
    sweep = sweep_of(tmp_path, AXES)
    first = swept(sweep, tmp_path / "out")
    once = ["m dp=1", "m dp=2", "m dp=16", "m tp=1", "m tp=4"]
    assert measured.asked == once * 2
    assert (first.verdict, first.exit_code) == ("proved", 0)
    again = swept(sweep, tmp_path / "out")
    assert measured.asked == once * 2
    assert again.to_dict() == first.to_dict()
    # A point more costs that point; more repetitions cost those.
    wider = sweep_of(tmp_path, AXES.replace("16]", "16, 32]").replace("repeat: 2", "repeat: 3"))
    swept(wider, tmp_path / "out")
    assert measured.asked[10:] == ["m dp=32", "m dp=32", "m dp=1", "m dp=2", "m dp=16",
                                   "m dp=32", "m tp=1", "m tp=4"]  # fmt: skip


def test_a_sweep_that_was_stopped_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = sweep_of(tmp_path, AXES)
    stub = Measured(stop=7)
    monkeypatch.setattr(many, "measure", stub)
    with pytest.raises(KeyboardInterrupt):
        swept(sweep, tmp_path / "out")
    stub.stop = -1
    done = swept(sweep, tmp_path / "out")
    assert len(stub.asked) == 10
    assert [row["runs"] for row in done.rows[0]] == [2] * 5


def test_what_gave_no_result_is_tried_again_and_the_worst_verdict_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = sweep_of(tmp_path, AXES.replace("repeat: 2", ""))
    seen = []
    for verdicts in (
        {"m dp=1": INTERNAL, "m dp=2": "refuted"},
        {"m dp=1": "inconclusive"},
    ):
        stub = Measured(verdicts)
        monkeypatch.setattr(many, "measure", stub)
        seen.append((swept(sweep, tmp_path / "out").exit_code, len(stub.asked)))
    assert seen == [(4, 5), (1, 1)]
    assert table.worst([]) == INTERNAL


def test_one_sweep_at_a_time_in_a_folder(tmp_path: Path, measured: Measured) -> None:
    sweep = sweep_of(tmp_path, AXES)

    def meanwhile(what: str, done: int, total: int) -> None:
        with pytest.raises(InvalidInput, match="another sweep is at work in this folder"):
            swept(sweep, tmp_path / "out")

    run.run([sweep], tmp_path / "out", [], meanwhile)
    assert len(measured.asked) == 10


def test_a_file_that_holds_no_runs_is_refused(tmp_path: Path) -> None:
    (tmp_path / table.RUNS).write_bytes(b"something else")
    with pytest.raises(InvalidInput, match="expected the runs of a sweep"):
        table.read_runs(tmp_path)


def test_one_row_per_point_as_arrow_and_csv(tmp_path: Path, measured: Measured) -> None:
    done = swept(sweep_of(tmp_path, AXES), tmp_path / "out")
    with pa.OSFile(str(tmp_path / "out" / "points.arrow")) as file:
        rows = pa.ipc.open_file(file).read_all().to_pylist()
    assert [(row["dp"], row["tp"]) for row in rows] == [
        (1, None), (2, None), (16, None), (None, 1), (None, 4),
    ]  # fmt: skip
    assert rows == [{**dict.fromkeys(rows[0]), **row} for row in done.rows[0]]
    assert {row["operators_per_template"] for row in rows} == {10.0}
    assert {row["obligations_per_template"] for row in rows} == {5.0}
    with (tmp_path / "out" / "points.csv").open(newline="") as text:
        lines = list(csv.DictReader(text))
    assert [line["dp"] for line in lines] == ["1", "2", "16", "", ""]
    assert list(lines[0])[:6] == ["sweep", "model", "dp", "tp", "key", "verdict"]


def test_growth_is_the_last_value_against_the_first(tmp_path: Path, measured: Measured) -> None:
    sweep = sweep_of(tmp_path, AXES)
    done = swept(sweep, tmp_path / "out")
    dp, tp = done.growth[0]
    assert (dp.axis, dp.first, dp.last, dp.bound, dp.holds) == ("dp", 1, 16, 1.2, True)
    assert dp.ratios["cpu"] == pytest.approx(1.16 / 1.01, abs=1e-3)
    assert (tp.bound, tp.ratios["cpu"], tp.holds) == (4.0, round(5.01 / 2.01, 3), True)
    # Their twins: too much growth, and an end that is not proved.
    keys = [point.key(sweep.options) for point in sweep.points]
    rows = [{**row, "cpu": row["cpu"] * (9 if row["dp"] == 16 else 1)} for row in done.rows[0]]
    assert growth(sweep, rows, keys)[0].holds is False
    rows = [{**row, "verdict": "refuted" if row["tp"] == 4 else "proved"} for row in done.rows[0]]
    assert [one.holds for one in growth(sweep, rows, keys)] == [True, False]


def test_the_page_holds_all_it_shows(tmp_path: Path, measured: Measured) -> None:
    text = AXES + "points: [{model: '<b>m</b>'}]\n"
    done = swept(sweep_of(tmp_path, text), tmp_path / "out")
    written = page.write(done).read_text()
    assert written.count("<svg") == len(plots.PLOTS)
    assert "&lt;b&gt;m&lt;/b&gt;" in written
    assert "<b>m</b>" not in written
    # No script, and nothing to fetch: links within the drawings only.
    assert "<script" not in written
    assert set(re.findall(r'(?:src|href)="([^"#][^"]*)"', written)) == set()
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names >= {f"s-{plot}.{kind}" for plot in plots.PLOTS for kind in ("png", "svg")}


def test_scales_are_logarithmic_where_they_span_much() -> None:
    assert plots.spans([1, 8])
    assert not plots.spans([1, 7])
    assert not plots.spans([0, 8])
    assert not plots.spans([])


def test_options_reach_verify_as_flags() -> None:
    assert arguments({}) == ["--no-cache"]
    assert arguments({"cache": True, "solver": "z3", "exhaustive": True, "memory_limit": "1GiB"}) == [
        "--solver", "z3", "--exhaustive", "--memory-limit", "1GiB",
    ]  # fmt: skip
    assert arguments({"exhaustive": False, "timeout": 2.5}) == ["--no-cache", "--timeout", "2.5"]


def command(*args: object) -> list[str]:
    return [sys.executable, "-m", "shardproof", "sweep", *map(str, args)]


def sweep_command(*args: object) -> tuple[int, dict[str, Any], str]:
    done = subprocess.run(
        command(*args, "--json"), cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.returncode, json.loads(done.stdout), done.stderr


def test_points_of_the_zoo_and_from_files_for_real(tmp_path: Path) -> None:
    store.save(tiny(dp=1, tp=1, microbatches=1), tmp_path / "plan")
    (tmp_path / "zoo.yaml").write_text(f"base: {TINY}\ngrid: {{tp: [1, 3]}}\n")
    (tmp_path / "files.yaml").write_text("plans: [{single: plan}]\nverify: {solver: z3}\n")
    files = (tmp_path / "zoo.yaml", tmp_path / "files.yaml")
    code, document, errors = sweep_command(*files, "-o", tmp_path / "out")
    assert (code, document["verdict"]) == (3, "invalid input")
    zoo, from_files = (one["points"] for one in document["sweeps"])
    assert [row["verdict"] for row in zoo] == ["proved", "invalid input"]
    assert zoo[1]["reason"] == "llama3-8b: heads 2 is not divisible by tp 3"
    assert [(row["plan"], row["verdict"]) for row in from_files] == [("plan", "proved")]
    for row in (zoo[0], from_files[0]):
        assert 0 < row["partition"] <= row["total"] < row["wall"]
        assert row["cpu"] > 0
        assert 50 < row["peak_mib"] < 1000
        assert row["parallel_operators"] == 74
    assert (zoo[0]["make"] > 0, from_files[0]["make"]) == (True, 0)
    assert len(errors.splitlines()) == 3
    assert not (tmp_path / "out" / "work").exists()
    # Each run that there was has its page; the plan that could not be made has none.
    written = (tmp_path / "out" / "index.html").read_text()
    links = re.findall(r'href="(reports/[^"]+)"', written)
    assert links == [f"reports/{row['key']}.html" for row in (zoo[0], from_files[0])]
    for link in links:
        assert "<title>proved: " in (tmp_path / "out" / link).read_text()


def test_a_killed_sweep_continues_for_real(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(f"base: {TINY}\ngrid: {{layers: [1, 2]}}\n")
    arguments = (tmp_path / "s.yaml", "-o", tmp_path / "out")
    first = subprocess.Popen(
        command(*arguments), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while first.poll() is None and not (tmp_path / "out" / table.RUNS).exists():
        time.sleep(0.005)
    os.kill(first.pid, signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    (before,) = table.read_runs(tmp_path / "out")
    code, document, errors = sweep_command(*arguments)
    assert (code, document["verdict"]) == (0, "proved")
    assert errors.startswith("shardproof: 1 of 1, s: llama3-8b layers=2 ")
    assert table.read_runs(tmp_path / "out")[0] == before


def test_a_wrong_sweep_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("grid: {dp: 2}\n")
    done = subprocess.run(
        command(tmp_path / "s.yaml"), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == (
        f"shardproof: {tmp_path / 's.yaml'}, grid.dp: "
        "expected a list of at least one value, found 2\n"
    )


def test_runs_at_once_are_the_same_runs(tmp_path: Path, measured: Measured) -> None:
    sweep = sweep_of(tmp_path, AXES)
    alone = swept(sweep, tmp_path / "alone")
    measured.asked.clear()
    at_once = run.run([sweep], tmp_path / "many", [], lambda what, done, total: None, jobs=3)
    assert sorted(measured.asked) == sorted([str(p) for p in sweep.points] * 2)
    assert at_once.rows == alone.rows


def test_an_option_of_verify_can_be_an_axis(tmp_path: Path) -> None:
    sweep = sweep_of(
        tmp_path,
        "base: {model: m, dp: 2}\naxes: {verify.workers: [1, 2]}\nverify: {workers: 4, seed: 3}\n",
    )
    assert [str(point) for point in sweep.points] == [
        "m dp=2 verify.workers=1",
        "m dp=2 verify.workers=2",
    ]
    first = sweep.points[0]
    assert first.made_of == {"model": "m", "dp": 2}
    assert first.options(sweep.options) == {"workers": 1, "seed": 3}
    assert len({point.key(sweep.options) for point in sweep.points}) == 2
    moved = sweep.on("ray", "head:6379")
    assert moved.options == {"workers": 4, "seed": 3, "executor": "ray", "address": "head:6379"}
    elsewhere = sweep.on("ray", "other:6379")
    assert first.key(moved.options) == first.key(elsewhere.options) != first.key(sweep.options)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("points: [{model: m, verify.wrkers: 1}]", "points[0].verify.wrkers: not a key here"),
        (
            "points: [{model: m, verify.workers: many}]",
            "points[0].verify.workers: expected an integer",
        ),
    ],
)
def test_wrong_options_of_a_point_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        sweep_of(tmp_path, text)
    assert message in str(raised.value)

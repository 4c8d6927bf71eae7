"""What a sweep file asks for, and how a wrong one is refused: by file and key."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from shardproof.campaigns.sweep import compare, spec
from shardproof.commands.options import CONFIGS as OURS
from shardproof.commands.options import by_name
from shardproof.engine.errors import InvalidInput

CONFIGS = Path(__file__).resolve().parents[3] / "configs" / "sweeps"


def read(folder: Path, text: str) -> spec.Sweep:
    path = folder / "s.yaml"
    path.write_text(text)
    return spec.read(path)


def test_axes_run_one_at_a_time_from_the_base(tmp_path: Path) -> None:
    sweep = read(
        tmp_path,
        """
base: {model: m, dp: 2, layers: 4}
axes:
  dp: [2, 8]
  layers: {with: {tp: 2}, values: [4, {layers: 8, ffn: 3}]}
bounds: {dp: 1.2, layers: linear}
""",
    )
    assert sweep.name == "s"
    assert [dict(p.parameters) for p in sweep.points] == [
        {"model": "m", "dp": 2, "layers": 4},
        {"model": "m", "dp": 8, "layers": 4},
        {"model": "m", "dp": 2, "layers": 4, "tp": 2},
        {"model": "m", "dp": 2, "layers": 8, "tp": 2, "ffn": 3},
    ]
    assert sweep.axes == (spec.Axis("dp", (2, 8), (0, 1)), spec.Axis("layers", (4, 8), (2, 3)))
    assert (sweep.repeat, sweep.bounds) == (1, {"dp": 1.2, "layers": "linear"})
    assert str(sweep.points[1]) == "m dp=8 layers=4"


def test_a_grid_is_all_combinations_and_points_are_listed(tmp_path: Path) -> None:
    sweep = read(
        tmp_path,
        """
name: both
base: {model: m}
grid: {tp: [1, 2], sequence_parallel: [false, true]}
points: [{tp: 2, sequence_parallel: true}, {model: n}]
repeat: 3
verify: {solver: both, timeout: 5, exhaustive: true}
""",
    )
    assert [dict(p.parameters) for p in sweep.points] == [
        {"model": "m", "tp": 1, "sequence_parallel": False},
        {"model": "m", "tp": 1, "sequence_parallel": True},
        {"model": "m", "tp": 2, "sequence_parallel": False},
        {"model": "m", "tp": 2, "sequence_parallel": True},
        {"model": "n"},
    ]
    assert (sweep.name, sweep.repeat) == ("both", 3)
    assert sweep.options == {"solver": "both", "timeout": 5, "exhaustive": True}


def test_plans_from_files_are_points_that_know_their_content(tmp_path: Path) -> None:
    for name in ("one.pkl", "two.pkl", "a.toml"):
        (tmp_path / name).write_text(name)
    text = (
        "plans: [{single: one.pkl, parallel: two.pkl, assume: a.toml}, {name: x, single: one.pkl}]"
    )
    first, second = read(tmp_path, text).points
    assert dict(first.parameters) == {"plan": "two.pkl"}
    assert first.files == spec.Files(
        tmp_path / "one.pkl", tmp_path / "two.pkl", tmp_path / "a.toml"
    )
    assert second.files == spec.Files(tmp_path / "one.pkl", None, None)
    before = first.key({})
    assert before == read(tmp_path, text).points[0].key({})
    assert before != first.key({"solver": "z3"})
    (tmp_path / "two.pkl").write_text("changed")
    assert first.key({}) != before


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        ("a: [", "", "expected YAML: "),
        ("[1]", "", "expected keys and values, found [1]"),
        ("plans: [{single: 1}]", ", plans[0].single", "expected a file or a plan folder, found 1"),
        ("vrify: {}", ", vrify", "not a key here, near is verify; known are name, base, "),
        ("nonsense: 1", ", nonsense", "not a key here; known are name, base, axes, "),
        ("base: {model: m}", "", "expected points: axes, grid, points or plans"),
        ("base: 3", ", base", "expected keys and values, found 3"),
        ("base: {model: [m]}", ", base.model", "expected a number or a word, found ['m']"),
        ("grid: {dp: [1]}", ", grid", "expected a model for every point, in base or beside it"),
        ("grid: {dp: 2}", ", grid.dp", "expected a list of at least one value, found 2"),
        ("grid: {dp: []}", ", grid.dp", "expected a list of at least one value, found []"),
        ("grid: {dp: [{a: 1}]}", ", grid.dp[0]", "expected a number or a word, found {'a': 1}"),
        (
            "base: {model: m}\naxes: {dp: [1, {tp: 2}]}",
            ", axes.dp[1]",
            "expected a value of dp among ['tp']",
        ),
        (
            "base: {model: m}\naxes: {dp: {values: [1], also: 2}}",
            ", axes.dp.also",
            "not a key here, near is values; known are values, with",
        ),
        (
            "base: {model: m}\naxes: {dp: {with: {tp: 2}}}",
            ", axes.dp.values",
            "is missing, expected a list of at least one value",
        ),
        (
            "base: {model: m}\npoints: [7]",
            ", points[0]",
            "expected keys and values, found 7",
        ),
        (
            "plans: [{single: nowhere.pkl}]",
            ", plans[0].single",
            "expected a file or a plan folder, found nothing at ",
        ),
        ("plans: [{name: x}]", ", plans[0].single", "is missing, expected a file or a plan folder"),
        (
            "plans: [{file: x}]",
            ", plans[0].file",
            "not a key here, near is single; known are single, ",
        ),
        (
            "repeat: 0\npoints: [{model: m}]",
            ", repeat",
            "expected an integer of at least 1, found 0",
        ),
        ("name: 3\npoints: [{model: m}]", ", name", "expected a text that is not empty, found 3"),
        (
            "verify: {speed: 1}\npoints: [{model: m}]",
            ", verify.speed",
            "not a key here, near is seed; known are solver, timeout, ",
        ),
        (
            "verify: {workers: true}\npoints: [{model: m}]",
            ", verify.workers",
            "expected an integer, found True",
        ),
        (
            "bounds: {tp: 1}\npoints: [{model: m}]",
            ", bounds.tp",
            "expected an axis of this sweep: none",
        ),
        (
            "base: {model: m}\naxes: {dp: [1, 2]}\nbounds: {dp: flat}",
            ", bounds.dp",
            "expected a positive number or linear, found 'flat'",
        ),
    ],
)
def test_a_wrong_file_is_refused_by_key(
    tmp_path: Path, text: str, where: str, message: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        read(tmp_path, text)
    assert refused.value.where == f"{tmp_path / 's.yaml'}{where}"
    assert refused.value.message.startswith(message)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        spec.read(tmp_path / "none.yaml")


def test_what_comes_with_the_project_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sweeps, nights = by_name("sweeps"), by_name("nightly")
    assert sweeps.convert("growth", None, None) == OURS / "sweeps" / "growth.yaml"
    assert nights.convert("small", None, None).is_file()
    for other in ("growth.yaml", "x/growth"):
        assert sweeps.convert(other, None, None) == Path(other)
    with pytest.raises(click.BadParameter, match=r"did you mean growth\?.* growth, peer, scaling"):
        sweeps.convert("grwth", None, None)
    with pytest.raises(
        click.BadParameter, match=r"none of ours; those that come with us are small"
    ):
        nights.convert("none", None, None)
    # What is here comes first.
    (tmp_path / "growth").touch()
    assert sweeps.convert("growth", None, None) == Path("growth")


def test_the_sweeps_that_come_with_the_project_can_be_read() -> None:
    found = {path.stem: spec.read(path) for path in sorted(CONFIGS.glob("*.yaml"))}
    assert {"growth", "peer"} <= found.keys()
    growth = found["growth"]
    assert {axis.name: (axis.values[0], axis.values[-1]) for axis in growth.axes} == {
        "dp": (2, 512),
        "microbatches": (1, 64),
        "hidden": (4096, 8 * 4096),
        "heads": (32, 8 * 32),
        "sequence": (8192, 8 * 8192),
        "layers": (4, 64),
        "tp": (1, 16),
    }
    assert growth.bounds.keys() == {axis.name for axis in growth.axes}
    peer = found["peer"]
    assert sum(len(axis.points) for axis in peer.axes) == 40
    batches = {
        int(p["dp"]) * int(p["microbatches"]) * int(p["microbatch_size"])
        for p in (dict(point.parameters) for point in peer.points)
    }
    assert batches == {32, 512, 1024, 2048, 4096}


PEER = """success,num_layers,num_dp,num_pp,num_tp,num_mb,gbs,n_experts,t_total
True,32,2,2,2,2,512,,15.0
True,32,2,2,2,2,512,,17.0
True,32,2,2,2,2,1024,,20.0
"""


def test_figures_of_others_belong_to_points_that_agree_with_them(tmp_path: Path) -> None:
    (tmp_path / "peer.csv").write_text(PEER)
    figures = compare.read(tmp_path / "peer.csv")
    ours = {"model": "m", "layers": 32, "dp": 2, "tp": 2, "pp": 2, "microbatches": 2}
    assert compare.matching(figures, {**ours, "microbatch_size": 128}) == 16.0
    assert compare.matching(figures, {**ours, "microbatch_size": 256}) == 20.0
    assert compare.matching(figures, {**ours, "microbatch_size": 64}) is None
    assert compare.matching(figures, {**ours, "layers": 4, "microbatch_size": 128}) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a table with parameters"),
        ("colour,t_total\nred,3\n", "expected a table with parameters"),
        ("num_dp,colour\n2,red\n", "expected a table with parameters"),
        ("num_dp,t_total\n2,soon\n", "expected seconds in column t_total, found 'soon'"),
    ],
)
def test_another_table_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "peer.csv").write_text(text)
    with pytest.raises(InvalidInput) as refused:
        compare.read(tmp_path / "peer.csv")
    assert refused.value.message.startswith(message)
    assert refused.value.where.startswith(str(tmp_path / "peer.csv"))

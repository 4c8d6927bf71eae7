"""What a run takes from earlier runs: everything that is the same, nothing that is damaged."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shardproof.cluster.verdicts.cache import VerdictCache
from shardproof.cluster.verdicts.ledger import FILE, read
from shardproof.engine.plan.ir import Plan
from shardproof.engine.plan_files import store
from shardproof.frontends.zoo import build
from shardproof.inputs.assume import Assumptions
from shardproof.run import pipeline
from shardproof.run.options import Options
from shardproof.run.progress import Progress
from shardproof.run.result import Result
from shardproof.solvers import child as children
from tests.shardproof.faces import ROOT, tiny


def verify(plan: Plan, out: Path, cache: Path, **chosen: int) -> Result:
    options = Options(executor="local", workers=1, cache_dir=cache, **chosen)  # type: ignore[arg-type]
    return pipeline.run(
        plan,
        options=options,
        settings=options.settings(),
        out=out,
        assumptions=Assumptions(),
        load_seconds=0.0,
        progress=Progress(),
    )


def solved(out: Path) -> set[str]:
    """The texts that a run has solved itself."""
    table = read(out / FILE)
    rows = zip(table.column("key").to_pylist(), table.column("cached").to_pylist(), strict=True)
    return {key for key, cached in rows if not cached}


def on_record(out: Path) -> set[str]:
    return set(read(out / FILE).column("key").to_pylist())


def no_child(*_: object, **__: object) -> None:
    raise AssertionError("a solver child was started")


def entries(cache: Path) -> list[Path]:
    return sorted(cache.glob("??/*"))


def test_a_warm_run_of_the_same_plan_starts_no_solver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cold = verify(tiny(), tmp_path / "cold", tmp_path / "cache")
    assert (cold.verdict, cold.counts.cached) == ("proved", 0)
    assert len(solved(tmp_path / "cold")) == cold.counts.templates > 0
    monkeypatch.setattr(children.Child, "__init__", no_child)
    warm = verify(tiny(), tmp_path / "warm", tmp_path / "cache")
    assert (warm.verdict, warm.conclusions) == ("proved", cold.conclusions)
    assert warm.counts.cached == warm.counts.templates == cold.counts.templates
    assert solved(tmp_path / "warm") == set()
    # The twin: without its entries the same run does need a solver.
    with pytest.raises(AssertionError, match="a solver child was started"):
        verify(tiny(), tmp_path / "other", tmp_path / "empty")


def test_a_changed_operator_costs_its_templates_only(tmp_path: Path) -> None:
    cold = verify(tiny(), tmp_path / "cold", tmp_path / "cache")
    before = on_record(tmp_path / "cold")
    sizes = {"hidden": 8, "heads": 2, "kv_heads": 2, "ffn": 6, "vocabulary": 10, "sequence": 4}
    changed = build(
        "llama3-8b", dp=2, tp=2, pp=1, microbatches=2, layers=1, norm_eps="1e-4", **sizes
    )
    warm = verify(changed, tmp_path / "warm", tmp_path / "cache")
    assert warm.verdict == cold.verdict == "proved"
    assert solved(tmp_path / "warm") == on_record(tmp_path / "warm") - before
    assert 0 < len(solved(tmp_path / "warm")) < warm.counts.templates / 4
    assert warm.counts.cached == len(on_record(tmp_path / "warm") & before)


def test_another_plan_takes_what_it_shares(tmp_path: Path) -> None:
    verify(tiny(), tmp_path / "cold", tmp_path / "cache")
    deeper = verify(tiny(layers=2), tmp_path / "deeper", tmp_path / "cache")
    assert deeper.verdict == "proved"
    assert deeper.counts.cached > deeper.counts.templates / 2


def test_other_options_are_solved_anew(tmp_path: Path) -> None:
    verify(tiny(), tmp_path / "cold", tmp_path / "cache")
    other = verify(tiny(), tmp_path / "other", tmp_path / "cache", seed=2)
    assert (other.verdict, other.counts.cached) == ("proved", 0)


def test_a_damaged_entry_is_said_and_solved_again(tmp_path: Path) -> None:
    cold = verify(tiny(), tmp_path / "cold", tmp_path / "cache")
    entry = entries(tmp_path / "cache")[0]
    sound = entry.read_bytes()
    flipped = bytearray(sound)
    flipped[len(sound) // 2] ^= 4
    entry.write_bytes(flipped)
    again = verify(tiny(), tmp_path / "again", tmp_path / "cache")
    assert again.verdict == "proved"
    assert again.counts.cached == cold.counts.templates - 1
    assert len(solved(tmp_path / "again")) == 1
    (finding,) = again.findings
    assert (finding.kind, finding.message) == (
        "cache",
        f"1 entry of the verdict cache {tmp_path / 'cache'} damaged: not used, solved again",
    )
    # It was repaired: nothing to say any more.
    third = verify(tiny(), tmp_path / "third", tmp_path / "cache")
    assert (third.counts.cached, third.findings) == (cold.counts.templates, ())


def test_a_cache_that_cannot_be_written_is_said_beside_the_proof(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way")
    result = verify(tiny(), tmp_path / "run", tmp_path / "cache")
    assert result.verdict == "proved"
    (finding,) = result.findings
    assert finding.message.startswith("nothing is kept in the verdict cache")


def command(plan: Path, out: Path, cache: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "shardproof", "verify", str(plan), "--json", "--out", str(out)),
        *("--executor", "local", "--workers", "1", "--cache", str(cache)),
    ]


def test_two_runs_at_once_and_one_that_is_killed_share_a_cache(tmp_path: Path) -> None:
    store.save(tiny(), tmp_path / "plan")
    cache = tmp_path / "cache"
    killed = subprocess.Popen(
        command(tmp_path / "plan", tmp_path / "killed", cache),
        cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    while killed.poll() is None and len(entries(cache)) < 5:
        time.sleep(0.001)
    os.kill(killed.pid, signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    left = len(entries(cache))
    runs = [
        subprocess.Popen(
            command(tmp_path / "plan", tmp_path / f"run{n}", cache),
            cwd=ROOT, stdout=subprocess.PIPE,
        )
        for n in range(2)
    ]  # fmt: skip
    said = [json.loads(run.communicate()[0]) for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    for one in said:
        assert one["counts"]["cached"] >= left >= 5
        assert one["findings"] == []
    assert len(entries(cache)) == said[0]["counts"]["templates"]
    assert VerdictCache(cache).problems() == ()


def test_a_cache_and_no_cache_exclude_each_other(tmp_path: Path) -> None:
    done = subprocess.run(
        [*command(tmp_path, tmp_path / "run", tmp_path / "cache"), "--no-cache"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert "a folder for the cache and no cache exclude each other" in done.stderr

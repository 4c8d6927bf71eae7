"""A head and two worker nodes on this machine: the same proof as locally, jobs by the job API, and
nothing lost when nodes, workers and drivers are killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from shardproof.cluster.verdicts.ledger import FILE, read
from shardproof.engine.plan_files import store
from shardproof.frontends import zoo
from tests.cluster.nodes import ROOT, Cluster, family
from tests.engine import small_plans

pytestmark = [pytest.mark.ray, pytest.mark.slow]

SHARDPROOF = (sys.executable, "-m", "shardproof")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plans") / "plan"
    store.save(zoo.build("llama3-8b", dp=2, tp=2, layers=1), folder)
    return folder


@pytest.fixture(scope="module")
def whole(plan: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "local"
    words = ["verify", str(plan), "--out", str(out), "--executor", "local", *FIXED]
    assert subprocess.run([*SHARDPROOF, *words], cwd=ROOT, check=False).returncode == 0
    return out


FIXED = ("--no-cache", "--solver", "z3")


def verdicts(out: Path) -> list[tuple[str, ...]]:
    """What the ledger says of every text; raises if it says anything twice."""
    table = read(out / FILE)
    columns = (table.column(n).to_pylist() for n in ("key", "verdict", "rung", "solver", "version"))
    return sorted(zip(*columns, strict=True))


def same(out: Path, whole: Path) -> bool:
    one, other = (folder / "certificate.json" for folder in (out, whole))
    return verdicts(out) == verdicts(whole) and one.read_bytes() == other.read_bytes()


def test_one_proof_from_one_process_one_node_and_three(
    cluster: Cluster, plan: Path, whole: Path, tmp_path: Path
) -> None:
    words = ["verify", str(plan), "--executor", "ray", *FIXED]
    one, three = tmp_path / "one", tmp_path / "three"
    alone = {k: v for k, v in os.environ.items() if not k.startswith("RAY_ADDRESS")}
    done = subprocess.run(
        [*SHARDPROOF, *words, "--out", str(one)], cwd=ROOT, env=alone, check=False
    )
    assert done.returncode == 0
    on_three = cluster.run(*SHARDPROOF, *words, "--address", cluster.address, "--out", str(three))
    assert on_three.returncode == 0, on_three.stderr
    assert same(one, whole)
    assert same(three, whole)
    pools = [e for e in map(json.loads, (three / "events.jsonl").open()) if e["event"] == "pool"]
    assert [(e["workers"], e["nodes"]) for e in pools] == [(2, 2)]


def test_a_job_ends_with_the_code_of_its_verdict(
    cluster: Cluster, whole: Path, plan: Path, tmp_path: Path
) -> None:
    # A training repository, with packages that are called as ours are.
    repository = tmp_path / "repository"
    for name in ("engine", "cluster", "solvers"):
        (repository / name).mkdir(parents=True)
        (repository / name / "__init__.py").write_text("raise ImportError('not Shardproof')\n")
    store.save(small_plans.row_parallel(reduce=False), repository / "wrong")
    submit = [*SHARDPROOF, "submit", "--address", cluster.url, "--installed", "--"]
    there = [*submit[:-1], "--working-dir", str(repository), "--"]
    out = tmp_path / "run"
    right = cluster.run(*submit, "verify", str(plan), "--json", "--out", str(out), *FIXED)
    assert right.returncode == 0, right.stderr
    assert json.loads(right.stdout)["verdict"] == "proved"
    assert same(out, whole), "a job uses the cluster it runs on"
    events = [json.loads(line) for line in (out / "events.jsonl").open()]
    assert any(event["event"] == "pool" for event in events)
    wrong = cluster.run(*there, "verify", "wrong", "--json", "--out", str(tmp_path / "wrong-run"))
    assert (wrong.returncode, json.loads(wrong.stdout)["verdict"]) == (1, "refuted")
    missing = cluster.run(*submit, "verify", str(tmp_path / "nothing"))
    assert (missing.returncode, missing.stdout) == (3, "")
    assert "expected a plan folder, found nothing" in missing.stderr


def test_without_the_token_nothing_is_taken(cluster: Cluster, plan: Path) -> None:
    bare = {k: v for k, v in cluster.environment.items() if not k.startswith("RAY_AUTH")}
    for words in (
        ["submit", "--address", cluster.url, "--installed", "--", "verify", str(plan)],
        ["submit", "--address", "http://127.0.0.1:1", "--installed", "--", "verify", str(plan)],
    ):
        run = subprocess.run(
            [*SHARDPROOF, *words], cwd=ROOT, env=bare | {"HOME": "/nonexistent"}, text=True,
            capture_output=True, check=False,
        )  # fmt: skip
        assert (run.returncode, run.stdout) == (3, ""), run.stderr
        assert "does not take the job" in run.stderr


def same_but_for_rungs(out: Path, whole: Path) -> bool:
    """A text whose solver is killed on the linear rung may be proved on the next one."""
    found, expected = ([row[:2] for row in verdicts(folder)] for folder in (out, whole))
    one, other = (folder / "certificate.json" for folder in (out, whole))
    return found == expected and one.read_bytes() == other.read_bytes()


def test_kills_of_all_kinds_lose_nothing(cluster: Cluster, plan: Path, whole: Path,
                                         tmp_path: Path) -> None:  # fmt: skip
    """In short what benchmarks/faults does hundreds of times. A run may be over before its turn
    comes for everything on the list; then the next run is disturbed."""
    left = ["solver", "actor", "node", "driver", "solver", "actor", "driver", "solver"]
    for number in range(8):
        out = tmp_path / f"run-{number}"
        assert _disturbed(cluster, plan, out, left) == 0
        assert same_but_for_rungs(out, whole)
        if not left:
            break
    assert not left


def _disturbed(cluster: Cluster, plan: Path, out: Path, left: list[str]) -> int:
    """The exit code of a run that is resumed until nobody kills its driver any more."""
    where = ["--executor", "ray", "--address", cluster.address]
    chance = random.Random(1)
    while True:
        go_on = (out / "run.json").exists()
        words = ["resume", str(out)] if go_on else ["verify", str(plan), "--out", str(out), *FIXED]
        driver = subprocess.Popen(
            [*SHARDPROOF, *words, *where], cwd=ROOT, env=cluster.environment,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        while driver.poll() is None:
            time.sleep(chance.uniform(0.05, 0.4))
            if left and _disturb(cluster, driver, left[0]):
                left.pop(0)
        if driver.returncode >= 0:
            return driver.returncode


def _disturb(cluster: Cluster, driver: subprocess.Popen[bytes], kind: str) -> bool:
    actors = _processes(cluster, "ray::SolverActor")
    solvers = _processes(cluster, "solvers/worker.py")
    if not actors:
        return False
    if kind == "driver":
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    elif kind == "node":
        cluster.kill(cluster.nodes[1])
        cluster.add()
    else:
        victims = solvers if kind == "solver" else actors
        if not victims:
            return False
        victims[0].kill()
    return True


def _processes(cluster: Cluster, sign: str) -> list[psutil.Process]:
    found = []
    for node in cluster.nodes:
        for process in family(node.pid):
            try:
                if any(sign in word for word in process.cmdline()):
                    found.append(process)
            except psutil.Error:
                continue
    return found

"""The Ray executor: the same verdicts as locally, and none lost with a worker.

One local Ray serves the tests of this file, as a cluster that was there before.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil
import pytest
import ray

from shardproof import api
from shardproof.cluster import lower_claims as stating
from shardproof.cluster.execute import Execution, execute
from shardproof.cluster.local import LocalExecutor
from shardproof.cluster.memory.model import TRUSTED, Needs, learned, shape_of
from shardproof.cluster.on_ray.executor import RayExecutor
from shardproof.cluster.on_ray.pool import ClusterError
from shardproof.cluster.on_ray.shared_pool import shared_pool
from shardproof.cluster.on_ray.tasks import spread
from shardproof.cluster.settings import Settings
from shardproof.cluster.verdicts.events import Events
from shardproof.cluster.verdicts.ledger import FILE, Ledger, read
from shardproof.engine.plan_files import store
from shardproof.partition.stages.partition import partition
from shardproof.solvers import Query, Solved, SolverUnavailable
from tests.cluster.work import endless, expected, heavy, mixed
from tests.engine import small_plans
from tests.faults.plans import llama

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        # What runs on the nodes has their environment: no cache of earlier tests.
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        with pool() as running:
            running.close_workers()
            yield


def solved_by(executor: RayExecutor | LocalExecutor, queries: list[Query]) -> dict[str, Solved]:
    found: dict[str, Solved] = {}

    def on_solved(key: str, solved: Solved) -> None:
        assert key not in found
        found[key] = solved

    executor.solve(queries, on_solved)
    return found


def verdicts(found: dict[str, Solved]) -> dict[str, str]:
    return {key: solved.verdict for key, solved in found.items()}


def pool(**changes: Any) -> RayExecutor:
    settings: dict[str, Any] = {"executor": "ray", "workers": 2, "memory_limit_bytes": 512 << 20}
    return RayExecutor(Settings(**settings | changes))


@pytest.mark.ray
def test_ray_and_local_give_the_same_verdicts(cluster: None) -> None:
    with LocalExecutor(Settings(workers=1)) as local:
        solveds = solved_by(local, mixed(30))
    with pool() as executor:
        there = solved_by(executor, mixed(30))
        assert solved_by(executor, []) == {}
        assert 10 < max(executor.peaks.values()) < 500
    assert verdicts(there) == verdicts(solveds) == expected(30)
    for key, solved in there.items():
        assert (solved.rung, solved.model.keys()) == (solveds[key].rung, solveds[key].model.keys())
    answers = [a for found in (solveds, there) for solved in found.values() for a in solved.answers]
    versions = {(a.solver, a.version) for a in answers}
    assert len(versions) == len({solver for solver, _ in versions})


@pytest.mark.ray
def test_claims_are_stated_on_the_cluster_as_here(
    cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = llama(tp=2, microbatches=2)
    here, there = partition(plan), partition(plan)
    slices: list[tuple[int, int]] = []
    expected = stating.texts(here, Settings(executor="local"))
    settings = Settings(executor="ray", workers=2)
    assert stating.texts(partition(plan), settings) == expected  # too little to be sent out
    monkeypatch.setattr(stating, "TRIED_SECONDS", 0.0)
    monkeypatch.setattr(stating, "WORTH_SECONDS", 0.0)
    found = stating.texts(there, settings, lambda done, total: slices.append((done, total)))
    assert found == expected
    assert there.stages == here.stages
    assert slices == [(done, 16) for done in range(1, 17)]


def processes(sign: str, least_cpu: float = 0.0) -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            times = process.cpu_times()
            if sign in " ".join(process.cmdline()) and times.user + times.system >= least_cpu:
                found.append(process)
        except psutil.Error:
            continue
    return found


def when(find: Callable[[], list[psutil.Process]], count: int = 1) -> threading.Thread:
    """Kill, ``count`` times, the first process that is found and was not killed before."""

    def kill() -> None:
        killed: set[int] = set()
        until = time.perf_counter() + 120
        while len(killed) < count and time.perf_counter() < until:
            for process in find()[:1]:
                if process.pid not in killed:
                    killed.add(process.pid)
                    os.kill(process.pid, signal.SIGKILL)
            time.sleep(0.05)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    return thread


def busy_actors() -> list[psutil.Process]:
    """Workers whose solver has been at work for longer than small queries take."""
    actors = {process.pid: process for process in processes("ray::SolverActor")}
    solvers = processes("solvers/worker.py", least_cpu=1.0)
    return [actors[solver.ppid()] for solver in solvers if solver.ppid() in actors]


@pytest.mark.ray
def test_a_killed_solver_loses_nothing(cluster: None) -> None:
    with pool() as executor:
        killer = when(lambda: processes("solvers/worker.py"))
        assert verdicts(solved_by(executor, mixed(40))) == expected(40)
        killer.join()


@pytest.mark.ray
def test_a_killed_worker_loses_nothing(cluster: None) -> None:
    queries = mixed(40)
    queries.insert(20, endless())
    with pool(workers=1, mode="z3", timeout=6) as executor:
        killer = when(busy_actors)
        found = solved_by(executor, queries)
        killer.join()
    assert verdicts(found) == expected(40) | {"endless": "timeout"}


@pytest.mark.ray
def test_a_query_that_ends_worker_after_worker_is_crashed(cluster: None) -> None:
    with pool(workers=1, mode="z3", timeout=90) as executor:
        killer = when(busy_actors, count=4)
        found = solved_by(executor, [*mixed(5), endless()])
        killer.join()
    assert verdicts(found) == expected(5) | {"endless": "crashed"}
    assert found["endless"].reason.startswith("z3: 3 workers died of it; the last, worker ")
    until = time.perf_counter() + 5
    while processes("solvers/worker.py") and time.perf_counter() < until:
        time.sleep(0.1)
    assert processes("solvers/worker.py") == [], "solvers must end with their worker"


@pytest.mark.ray
def test_a_limit_beyond_the_cluster_ends_at_what_the_cluster_has(cluster: None) -> None:
    with pool(mode="z3", memory_limit_bytes=1 << 50) as executor:
        assert verdicts(solved_by(executor, mixed(2))) == expected(2)
        assert executor.level == 256 << 20, "small queries reserve little"
        assert max(executor.ladder()) < 1 << 50


@pytest.mark.ray
def test_a_query_that_does_not_fit_is_tried_with_more_memory(cluster: None, tmp_path: Path) -> None:
    fits, too_large = heavy("fits", 400_000), heavy("too large", 1_700_000)
    settings = Settings("ray", workers=2, mode="z3", memory_limit_bytes=1 << 30)
    wrong = Needs()
    for query in [fits, too_large] * TRUSTED:
        wrong = learned(wrong, shape_of(query), 60.0)
    with RayExecutor(settings, wrong, Events(tmp_path)) as executor:
        found = solved_by(executor, [*mixed(6), fits, too_large])
        (again,) = solved_by(executor, [heavy("alike", 390_000)]).values()
    assert verdicts(found) == expected(6) | {"fits": "unsat", "too large": "memory"}
    assert again.verdict == "unsat"
    assert "tried with 256, 512, 1024 MiB, held " in found["too large"].reason
    said = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    retries = [(e["templates"], e["level_mib"]) for e in said if e["event"] == "retry"]
    assert (["fits"], 512) in retries
    assert (["too large"], 1024) in retries
    assert not [templates for templates, _ in retries if templates == ["alike"]], "it has learned"


@pytest.mark.ray
def test_a_solver_that_does_not_start_is_said_so(cluster: None) -> None:
    with (
        pool(mode="z3", workers=1, memory_limit_bytes=40 << 20) as starved,
        pytest.raises(SolverUnavailable, match="z3 did not start under a memory limit of 40"),
    ):
        solved_by(starved, mixed(1))


@pytest.mark.ray
def test_an_error_of_the_caller_ends_the_pool_and_the_next_call_begins_another(
    cluster: None,
) -> None:
    def full(key: str, solved: Solved) -> None:
        raise OSError(28, "No space left on device")

    with pool() as executor:
        with pytest.raises(OSError, match="No space left"):
            executor.solve(mixed(30), full)
        assert verdicts(solved_by(executor, mixed(9))) == expected(9)


JOIN = """
import sys
from pathlib import Path
import ray
from shardproof.cluster.execute import execute
from shardproof.cluster.verdicts.ledger import Ledger
from shardproof.cluster.settings import Settings
from tests.cluster.work import expected, mixed
address = sys.argv[2] or None
settings = Settings(executor="ray", address=address, workers=1, memory_limit_bytes=512 << 20)
with Ledger(Path(sys.argv[1])) as ledger:
    done = execute(mixed(9), settings, ledger)
assert {key: one.verdict for key, one in done.solved.items()} == expected(9)
assert done.counts.solved == 9 and done.solver_peak_mib > 10
assert not ray.is_initialized()
"""


def joined(folder: Path, address: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return subprocess.run(
        [sys.executable, "-c", JOIN, str(folder), address],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.ray
def test_another_driver_joins_by_address_and_leaves_the_cluster_running(
    cluster: None, tmp_path: Path
) -> None:
    run = joined(tmp_path, ray.get_runtime_context().gcs_address)
    assert (run.returncode, run.stdout) == (0, ""), run.stderr
    with pool(workers=1) as executor:
        assert verdicts(solved_by(executor, mixed(3))) == expected(3)
    assert ray.is_initialized()


@pytest.mark.ray
def test_a_ray_of_its_own_is_silent_and_ends_with_the_run(tmp_path: Path) -> None:
    run = joined(tmp_path, "")
    assert (run.returncode, run.stdout) == (0, ""), run.stderr
    with Ledger(tmp_path) as ledger:
        assert ledger.dropped_bytes == 0


@pytest.mark.ray
def test_runs_at_once_use_one_pool_and_solve_nothing_twice(cluster: None, tmp_path: Path) -> None:
    settings = Settings("ray", workers=1, mode="z3", memory_limit_bytes=512 << 20)
    other = replace(settings, seed=2)
    asked = [(settings, 30), (settings, 12), (other, 6)]
    found: dict[int, Execution] = {}

    def one(number: int) -> None:
        here, count = asked[number]
        with Ledger(tmp_path / f"run-{number}") as ledger:
            found[number] = execute(mixed(count), pool.used_by(here), ledger)

    before = dict(os.environ)
    (tmp_path / "pool").mkdir()
    with shared_pool(settings, tmp_path / "pool", shared=True) as pool:
        assert dict(os.environ) == before, "nobody is told by the environment of this process"
        threads = [threading.Thread(target=one, args=(n,)) for n in range(len(asked))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        one(1)
    for number, (_, count) in enumerate(asked):
        assert verdicts(found[number].solved) == expected(count)
    rows = read(tmp_path / "pool" / FILE)
    assert rows.num_rows == 30 + 6, "the second run's texts are among the first one's"
    events = [json.loads(line) for line in (tmp_path / "pool" / "events.jsonl").open()]
    assert [e["workers"] for e in events if e["event"] == "pool"] in ([1, 1], [1, 1, 1])


@pytest.mark.ray
def test_a_pool_without_shared_verdicts_solves_for_each(cluster: None, tmp_path: Path) -> None:
    settings = Settings("ray", workers=1, mode="z3", memory_limit_bytes=512 << 20)
    (tmp_path / "pool").mkdir()
    with shared_pool(settings, tmp_path / "pool", shared=False) as pool:
        for name in ("one", "two"):
            with Ledger(tmp_path / name) as ledger:
                done = execute(mixed(4), pool.used_by(settings), ledger)
            assert verdicts(done.solved) == expected(4)
    assert not (tmp_path / "pool" / FILE).exists()


@pytest.mark.ray
def test_a_pool_that_cannot_work_says_so_to_its_runs(cluster: None, tmp_path: Path) -> None:
    settings = Settings("ray", workers=1, mode="z3", memory_limit_bytes=40 << 20)
    (tmp_path / "pool").mkdir()
    with (
        shared_pool(settings, tmp_path / "pool", shared=True) as pool,
        Ledger(tmp_path / "run") as ledger,
        pytest.raises(SolverUnavailable, match="z3 did not start under a memory limit of 40"),
    ):
        execute(mixed(2), pool.used_by(settings), ledger)


@pytest.mark.ray
@pytest.mark.slow
def test_a_sweep_and_a_night_of_plans_at_once(cluster: None, tmp_path: Path) -> None:
    """Runs are made all over the cluster; their verdicts are those of runs one by one."""
    store.save(small_plans.row_parallel(), tmp_path / "right")
    store.save(small_plans.row_parallel(reduce=False), tmp_path / "wrong")
    address = ray.get_runtime_context().gcs_address
    where = ("--executor", "ray", "--address", address, "--jobs", "2")
    (tmp_path / "sweep.yaml").write_text(
        "points: [{model: llama3-8b, layers: 1, tp: 2}, {model: llama3-8b, layers: 1, tp: 3}]\n"
        "plans: [{name: right, single: right}, {name: wrong, single: wrong}]\n"
        "verify: {solver: z3, cache: true, memory_limit: 512MiB}\n"
    )
    (tmp_path / "night.yaml").write_text(
        "seeds: [1, 2]\nverify: {solver: z3, memory_limit: 512MiB}\n"
        "plans: [{name: right, single: right, expect: proved},\n"
        "        {name: wrong, single: wrong, expect: refuted}]\n"
    )
    found = {}
    for command in ("sweep", "nightly"):
        words = [command, str(tmp_path / f"{command.removesuffix('ly')}.yaml"), *where, "--json"]
        run = subprocess.run(
            [sys.executable, "-m", "shardproof", *words, "-o", str(tmp_path / command)],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert run.stdout, run.stderr
        found[command] = (run.returncode, json.loads(run.stdout))
    code, swept = found["sweep"]
    points = swept["sweeps"][0]["points"]
    assert [p["verdict"] for p in points] == ["proved", "invalid input", "proved", "refuted"]
    assert code == 3
    assert read(tmp_path / "sweep" / "pool" / FILE).num_rows > 20
    code, night = found["nightly"]
    assert code == 0
    verdicts = [p["verdict"] for p in night["suites"][0]["points"]]
    assert verdicts == ["proved", "proved", "refuted", "refuted"]


@pytest.mark.ray
def test_a_proof_is_checked_in_parts_on_the_cluster(cluster: None, tmp_path: Path) -> None:
    store.save(small_plans.replicas(), tmp_path / "plan")
    options = api.Options(out=tmp_path / "run", executor="local", workers=1, cache=False)
    assert api.run(tmp_path / "plan", None, options).verdict == "proved"
    check_result = api.check(tmp_path / "run")
    there = api.check(tmp_path / "run", cluster=Settings("ray", workers=2))
    assert (there.ok, there.counts) == (check_result.ok, check_result.counts)
    assert check_result.ok
    (tmp_path / "run" / "stages.arrow").write_bytes(b"")
    assert not api.check(tmp_path / "run", cluster=Settings("ray", workers=2)).ok


@pytest.mark.ray
def test_a_task_that_fails_says_why(cluster: None) -> None:
    with pytest.raises(ZeroDivisionError):
        spread(_divide, 1, lambda workers: [1, 0, 2], Settings("ray"), 64 << 20)
    assert spread(_divide, 6, lambda workers: [1, 2, 3], Settings("ray"), 64 << 20) == [6, 3, 2]


@pytest.mark.ray
def test_tasks_have_the_priority_of_their_driver(cluster: None) -> None:
    """With Ray's own default, a niceness of 15, they stand still beside any other work."""
    assert spread(_niceness, None, lambda workers: [1], Settings("ray"), 64 << 20) == [os.nice(0)]


@pytest.mark.ray
def test_a_task_whose_worker_dies_is_tried_again(cluster: None, tmp_path: Path) -> None:
    found = spread(_dies_at_first, tmp_path, lambda workers: [1, 2, 3], Settings("ray"), 64 << 20)
    assert found == [1, 2, 3]
    assert {path.name for path in tmp_path.iterdir()} == {"1", "2", "3"}


def _dies_at_first(folder: Path, argument: int) -> int:
    died = folder / str(argument)
    if not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return argument


@pytest.mark.ray
def test_nodes_with_other_sources_do_no_part_of_a_run(
    cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardproof.cluster.on_ray.tasks.digest", lambda: "0" * 64)
    with pytest.raises(
        ClusterError, match=r"has other sources of Shardproof in .* install the same"
    ):
        spread(_divide, 6, lambda workers: [1, 2, 3], Settings("ray"), 64 << 20)


def _niceness(shared: None, argument: int) -> int:
    return os.nice(0)


def _divide(shared: int, argument: int) -> int:
    return shared // argument


@pytest.mark.ray
@pytest.mark.slow
def test_the_metrics_endpoint_tells_of_templates(cluster: None, tmp_path: Path) -> None:
    settings = Settings("ray", workers=1, mode="z3", memory_limit_bytes=512 << 20)
    with RayExecutor(settings, events=Events(tmp_path / "metered")) as executor:
        solved_by(executor, mixed(9))
        port = ray.nodes()[0]["MetricsExportPort"]
        until = time.perf_counter() + 60
        lines: list[str] = []
        while (
            not any("shardproof_rss_measured" in x for x in lines) and time.perf_counter() < until
        ):
            time.sleep(1)
            with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                text = answer.read().decode()
            lines = [line for line in text.splitlines() if 'run="metered"' in line]
    counted = [line for line in lines if line.startswith("ray_shardproof_templates")]
    found = {v: sum(float(x.split()[-1]) for x in counted if f'verdict="{v}"' in x)
             for v in ("unsat", "sat")}  # fmt: skip
    assert found == {"unsat": 6, "sat": 3}
    for name in ("solver_seconds", "queue_depth", "solver_rss_mib", "predicted_rss_mib"):
        assert any(f"shardproof_{name}" in line for line in lines), name

"""Ranks as families: the verdict of explicit programs, and what was not captured is said."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest
import torch
from ray import cloudpickle
from torch.distributed.device_mesh import init_device_mesh

import shardproof.torch as sp
from shardproof.cluster.settings import Settings
from shardproof.engine.errors import InvalidInput
from shardproof.frontends.torch.capture import Limits, capture
from shardproof.frontends.torch.families import Families
from shardproof.frontends.torch.plan import plan
from shardproof.frontends.torch.sides import sides
from shardproof.frontends.torch.trace import Trace
from shardproof.recorded import combination, prove
from shardproof.run.options import Options
from shardproof.run.progress import Progress
from shardproof.run.result import Result
from shardproof.torch import across
from shardproof.torch.run import full_parameters
from tests.shardproof.torch import meshes

Step = Callable[[sp.Job], None]


@cache
def alone(dp: int) -> Trace:
    (one,) = capture(meshes.single, 1, [0], meshes.spec(dp), {}, Limits())
    return one


def captured(step: Step, dp: int, tp: int, ranks: Sequence[int]) -> list[Trace]:
    one = alone(dp)
    return capture(step, dp * tp, ranks, meshes.spec(dp), full_parameters(one), Limits())


def decided(
    folder: Path, dp: int, traces: Sequence[Trace], *, together: bool
) -> tuple[Result, Families]:
    found = sides(alone(dp), traces, together=together)
    made = plan(found, combination=combination(found, None))
    options = Options(out=folder / f"run-{together}", executor="local", cache=False)
    return prove(made, found, options, Progress(), time.perf_counter()), found.families


CASES = {
    "right": (2, 2, "", -1, "proved"),
    "right, tensor parallel alone": (1, 4, "", -1, "proved"),
    "right, data parallel alone": (4, 1, "", -1, "proved"),
    "shard of another rank": (2, 2, "shard", 3, "refuted"),
    "one rank does not divide": (2, 2, "not divided", 1, "refuted"),
    "one rank does not reduce": (2, 2, "not reduced", 2, "refuted"),
    "a wrong group in one row": (2, 2, "group", 1, "refuted"),
    "right, shards in another order": (1, 4, "every shard", -1, "proved"),
}


QUICK = (
    "right",
    "shard of another rank",
    "a wrong group in one row",
    "right, shards in another order",
)


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CASES]
)
def test_families_have_the_verdict_of_explicit_programs(tmp_path: Path, name: str) -> None:
    dp, tp, fault, at, verdict = CASES[name]
    traces = captured(meshes.on_mesh(dp, tp, fault, at), dp, tp, range(dp * tp))
    together, found = decided(tmp_path, dp, traces, together=True)
    apart, explicit = decided(tmp_path, dp, traces, together=False)
    assert (together.verdict, apart.verdict) == (verdict, verdict)
    assert len(explicit.families) == dp * tp
    assert not found.assumed
    alike = name in ("right", "right, tensor parallel alone", "right, data parallel alone")
    assert (len(found.families) == 1) == alike
    reduced = {c.name for c in together.conclusions}
    assert reduced == {c.name for c in apart.conclusions}


def verify(folder: Path, step: Step, dp: int, tp: int, **options: object) -> Result:
    return sp.verify(
        meshes.single,
        step,
        world_size=dp * tp,
        batch=meshes.spec(dp),
        executor="local",
        cache=False,
        out=folder / "run",
        **options,  # type: ignore[arg-type]
    )


def uncaptured(result: Result) -> list[str]:
    return [a.about for a in result.assumption_details if a.kind == "not captured"]


@pytest.mark.parametrize("fault", [pytest.param("", marks=pytest.mark.slow), "hidden shard"])
def test_what_was_not_captured_is_an_assumption_that_names_the_ranks(
    tmp_path: Path, fault: str
) -> None:
    """Rank 13 is wrong, and nothing that is recorded says that it is treated apart."""
    step = meshes.on_mesh(5, 4, fault, 13)
    told = verify(tmp_path, step, 5, 4)
    assert told.verdict == "proved", sp.told(told)
    assert uncaptured(told) == ["ranks 5-7, 9, 11-15, 17-18"]
    strict = verify(tmp_path / "strict", step, 5, 4, strict=True)
    assert strict.verdict == "inconclusive"
    assert strict.reason.startswith("--strict: the proof rests on what is inferred")


@pytest.mark.parametrize("at", [13, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 6, 19))])
def test_a_rank_that_the_program_names_is_captured(tmp_path: Path, at: int) -> None:
    """A comparison with the number of a rank is recorded, wherever it is."""
    result = verify(tmp_path, meshes.on_mesh(5, 4, "shard", at), 5, 4)
    assert result.verdict == "refuted", sp.told(result)
    assert not uncaptured(result)


@pytest.mark.slow
def test_a_row_that_the_program_names_is_captured(tmp_path: Path) -> None:
    result = verify(tmp_path, meshes.on_mesh(5, 4, "group", 2), 5, 4)
    assert result.verdict == "refuted", sp.told(result)
    assert not uncaptured(result)


def test_a_place_in_a_mesh_is_compared_as_a_rank_is() -> None:
    """What a step asks of its coordinates, wherever it is recorded: that it tells rank 13 apart."""

    def step(job: sp.Job) -> None:
        mesh = init_device_mesh("cpu", (5, 4))
        place = mesh.get_coordinate()
        assert place == divmod(job.rank, 4)
        job.start(torch.nn.Linear(2, 2))
        row, column = place
        job.end(outputs={"x": job.batch["x"] * (2 if row == 3 and column == 1 else 1)})

    first, other = captured(step, 5, 4, [0, 14])
    assert (12,) in first.splits
    assert (13,) in other.splits


def test_too_few_ranks_are_inconclusive_and_named(tmp_path: Path) -> None:
    """Two ranks determine an affine function, and nothing confirms it."""
    result = verify(tmp_path, meshes.on_mesh(1, 4), 1, 4, ranks=[0, 1])
    assert result.verdict == "inconclusive"
    assert "ranks 2-3 have to be captured too" in result.reason


def test_a_fit_that_another_captured_rank_contradicts_is_not_used(tmp_path: Path) -> None:
    """Shards in another order: 0, 3, 2, 1 are no affine function of the coordinate."""
    step = meshes.on_mesh(1, 8, "every shard")
    found = sides(alone(1), captured(step, 1, 8, [0, 1, 4, 7])).families
    assert found.missing == (2, 3, 5, 6)
    found = sides(alone(1), captured(meshes.on_mesh(1, 8), 1, 8, [0, 1, 4, 7])).families
    assert found.assumed == (2, 3, 5, 6)


def carried(
    function: Callable[..., bytes],
    shared: object,
    work: Callable[[int], Sequence[int]],
    *_: object,
) -> list[bytes]:
    """What a cluster does with a map: functions and arguments travel, and run elsewhere."""
    there, held = cloudpickle.loads(cloudpickle.dumps((function, shared)))
    return [there(held, rank) for rank in work(2)]


def test_ranks_are_captured_by_the_map_that_the_face_hands_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardproof.cluster.on_ray.tasks.spread", carried)
    settings = Settings(executor="ray")

    def captured_there(step: Step, world: int) -> list[Trace]:
        asked = across.CaptureRequest(
            step, world, meshes.spec(1), full_parameters(alone(1)), Limits()
        )
        return across.record(asked, range(world), settings)

    traces = captured(meshes.on_mesh(1, 2), 1, 2, range(2))
    there = captured_there(meshes.on_mesh(1, 2), 2)
    assert [[e.name for e in t.events] for t in there] == [
        [e.name for e in t.events] for t in traces
    ]
    result, found = decided(tmp_path, 1, there, together=True)
    assert (result.verdict, len(found.families)) == ("proved", 1)

    def fails(job: sp.Job) -> None:
        raise RuntimeError("a mistake of the user's")

    with pytest.raises(InvalidInput, match="a mistake of the user's"):
        captured_there(fails, 2)


@pytest.mark.slow
def test_ranks_are_captured_on_ray(tmp_path: Path) -> None:
    step = meshes.on_mesh(2, 2)
    result = sp.verify(
        meshes.single,
        step,
        world_size=4,
        batch=meshes.spec(2),
        executor="ray",
        cache=False,
        out=tmp_path / "run",
    )
    assert result.verdict == "proved", sp.told(result)

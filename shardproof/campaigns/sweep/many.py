"""Several runs of a sweep at once: processes on this machine, or on the nodes of a Ray cluster.

On a cluster all of them use one pool of workers (`cluster.on_ray.shared_pool`). Nodes share no file
system: the files of a plan travel with its run.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from shardproof.campaigns.sweep.measure import Run, measure
from shardproof.campaigns.sweep.spec import Files, Point, Scalar


class Task(NamedTuple):
    """One run to be made: its key, its point, and the options of ``verify`` of its sweep.

    Example: ``Task("7ac4b2ca84bfb319f442", Point({"model": "llama", "tp": 2}), {"solver":
    "both"})``.
    """

    key: str
    point: Point
    options: Mapping[str, Scalar]


class Packed(NamedTuple):
    """A run that can be made on another machine: the point's files by role and place.

    Example: ``files`` is ``{"single": {"one.pkl": b"..."}}`` for a point of files, and empty for
    one of the zoo.
    """

    task: Task
    files: dict[str, dict[str, bytes]]
    environment: dict[str, str]


def here(tasks: Sequence[Task], jobs: int, work: Path, reports: Path) -> Iterator[tuple[int, Run]]:
    """The runs of tasks, by number, as they come, ``jobs`` at a time on this machine; the page of
    each is in ``reports``.

    Example: four tasks with two jobs: ``(1, run)`` may come before ``(0, run)``.
    """
    if jobs == 1:
        for number, task in enumerate(tasks):
            yield number, measure(*task, work, reports)
        return
    with ThreadPoolExecutor(jobs) as pool:
        begun = {
            pool.submit(measure, *task, work / str(number), reports): number
            for number, task in enumerate(tasks)
        }
        try:
            for done in as_completed(begun):
                yield begun[done], done.result()
        finally:
            pool.shutdown(cancel_futures=True)


def on_cluster(
    tasks: Sequence[Task], jobs: int, environment: Mapping[str, str]
) -> Iterator[tuple[int, Run]]:
    """The same on the nodes of the cluster that this process uses; ``environment``: what makes
    the runs use it too.

    Example: with eight jobs, eight nodes make a plan each, and verify it with the workers of the
    shared pool.
    """
    from shardproof.cluster.on_ray.tasks import stream

    packed = [_packed(task, environment) for task in tasks]
    yield from stream(_made, None, packed, jobs)


def _packed(task: Task, environment: Mapping[str, str]) -> Packed:
    files = task.point.files
    contents = {} if files is None else {
        role: _bytes(path)
        for role in ("single", "parallel", "assume")
        if (path := getattr(files, role)) is not None
    }  # fmt: skip
    return Packed(task, contents, dict(environment))


def _bytes(path: Path) -> dict[str, bytes]:
    """A file under its name, or the files of a plan folder under names within it."""
    if path.is_dir():
        return {f"{path.name}/{part.name}": part.read_bytes() for part in sorted(path.iterdir())}
    return {path.name: path.read_bytes()}


def _made(shared: None, packed: Packed) -> Run:
    """A run, in a folder of its own on whatever node this is."""
    key, point, options = packed.task
    os.environ.update(packed.environment)
    with tempfile.TemporaryDirectory(prefix="shardproof-sweep-") as folder:
        if point.files is not None:
            there = {role: _unpacked(Path(folder) / role, f) for role, f in packed.files.items()}
            files = Files(there["single"], there.get("parallel"), there.get("assume"))
            point = replace(point, files=files)
        return measure(key, point, options, Path(folder) / "work")


def _unpacked(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Where the file, or the plan folder, is now."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder / Path(next(iter(files))).parts[0]

"""Settings: sizes as people write them, and errors that say what would be right."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from shardproof.cluster.machine import WORKERS_PER_CPU, most_workers
from shardproof.cluster.settings import Settings, parse_size
from shardproof.solvers.child import LEAST_SECONDS


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("1000000", 10**6),
        ("512MiB", 512 << 20),
        ("2GiB", 2 << 30),
        ("2 gib", 2 << 30),
        ("2g", 2 << 30),
        ("1.5K", 1536),
        (" 3 GB ", 3 * 10**9),
        (".5kB", 500),
        ("1TiB", 1 << 40),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "2 potatoes", "1e3", "1,5G", "٣GiB", "nan"])
def test_what_is_no_size_is_said_so(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size: write a number and a unit, as in 512MiB"):
        parse_size(text)


def test_a_size_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a size must be at least one byte, not '0\.1B'"):
        parse_size("0.1B")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"executor": "slurm"}, "executor 'slurm' is none of auto, local, ray"),
        ({"mode": "yices"}, "solver 'yices' is none of portfolio, z3, cvc5, both"),
        (
            {"executor": "local", "address": "head:6379"},
            "the local executor has no use for the address 'head:6379'",
        ),
        ({"workers": 0}, "at least one worker is needed, not 0"),
        ({"timeout": 0}, "the timeout must be a positive number of seconds: 0"),
        ({"timeout": float("nan")}, "the timeout must be a positive number of seconds: nan"),
        ({"timeout": 2e9}, "the timeout must be at most 1000000000 seconds, not 2000000000.0"),
        ({"memory_limit_bytes": 0}, "the memory limit must be positive: 0 bytes"),
        ({"seed": -1}, r"the seed must be at least 0 and below 2\^31, not -1"),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        Settings(**wrong)


def test_options_name_the_versions_of_the_solvers_that_are_used() -> None:
    both = Settings(timeout=5).options
    assert both.z3
    assert both.cvc5
    assert json.loads(both.text()) == {
        "mode": "portfolio",
        "seed": 1,
        "timeout": 5.0,
        "memory_limit_bytes": 0,
        "z3": both.z3,
        "cvc5": both.cvc5,
    }
    alone = Settings(mode="z3").options
    assert (alone.z3, alone.cvc5) == (both.z3, "")


def test_workers_are_bounded_by_the_machine() -> None:
    cpus = len(os.sched_getaffinity(0))
    many = Settings(executor="local", workers=1000)
    assert many.local_workers() == most_workers() <= WORKERS_PER_CPU * cpus
    (said,) = many.notes()
    assert said.endswith(f"with {cpus} CPUs: {most_workers()} solve")
    for few in (Settings(), Settings(workers=1), Settings(workers=cpus)):
        assert few.local_workers() == (few.workers or cpus)
        assert few.notes() == ()
    assert Settings(executor="ray", address="head:6379", workers=1000).notes() == ()


def test_a_timeout_shorter_than_a_start_is_said() -> None:
    (said,) = Settings(timeout=1e-6).notes()
    assert said.startswith("a timeout of 1e-06 s is shorter than the start of a solver")
    assert Settings(timeout=LEAST_SECONDS).notes() == ()


def test_a_size_of_any_length_is_a_number() -> None:
    assert parse_size(f"{'9' * 400}G") == int("9" * 400) << 30

"""Numbers of the operating system, and of generators without a seed, are each process's own on the
cluster: they are the same where a step is recorded, which is printed."""

from __future__ import annotations

import os
import random
import secrets
import tempfile
import uuid
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from shardproof.frontends.torch.generators import SYSTEM  # noqa: E402
from tests.shardproof.torch.means import verified  # noqa: E402


def drawn() -> float:
    """A number of all of them: two of Python's generator after a seed that nobody gave."""
    random.seed()
    small = (
        random.random(),
        random.SystemRandom().random(),
        random.Random().random(),
        float(np.random.default_rng().random()),
        secrets.randbelow(100) / 100,
        uuid.uuid4().int % 10 / 10,
        os.urandom(1)[0] / 256,
    )
    return 1 + sum(round(8 * x) for x in small)


def scaled(gradient: Any, _: int) -> Any:
    number = drawn()
    gradient = gradient * number
    dist.all_reduce(gradient)
    return gradient / number / 2


def twice(gradient: Any, rank: int) -> Any:
    return scaled(gradient, rank) * 2


def seeded(gradient: Any, _: int) -> Any:
    """What names files is no number of the step's."""
    with tempfile.TemporaryDirectory():
        np.random.seed(seed=3)
        scale = 1 + np.random.randint(3) + random.Random(5).randint(0, 3)
    gradient = gradient * float(scale)
    dist.all_reduce(gradient)
    return gradient / float(scale) / 2


def test_numbers_of_the_system_are_the_same_on_every_rank() -> None:
    right = verified(scaled)
    assert right.verdict == "proved", sp.told(right)
    assert SYSTEM in right.assumptions
    assert verified(twice).verdict == "refuted"


def test_numbers_with_a_seed_need_no_word() -> None:
    right = verified(seeded)
    assert right.verdict == "proved", sp.told(right)
    assert not [text for text in right.assumptions if "random numbers" in text]

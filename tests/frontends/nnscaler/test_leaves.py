"""Inputs of a segment that are one tensor, and those at which no gradient arrives."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frontends.plan_generator import plans
from tests.frontends.plan_judge import judged


@pytest.mark.parametrize(("kind", "seed"), [("wider", 150000), ("seldom", 404004)])
def test_a_copy_that_nothing_differentiable_reads_adds_nothing(
    kind: str, seed: int, tmp_path: Path
) -> None:
    """Of three copies that are one tensor a stage reads one by ``zeros_like``: it runs."""
    judgement = judged(plans(seed, kind), seed, tmp_path)
    assert judgement.different == ""
    assert judgement.verdict == "proved", judgement.reason


def test_what_was_received_is_no_copy(tmp_path: Path) -> None:
    """The same, where each copy was sent by itself: the runtime stops at that without a gradient."""
    judgement = judged(plans(410008, "seldom"), 410008, tmp_path)
    assert judgement.different == "stuck: Stuck: got gradient None"
    assert judgement.verdict == "refuted"
    assert judgement.kinds == {"read before write"}


def test_copies_behind_adapters_are_not_known_as_one_tensor(tmp_path: Path) -> None:
    judgement = judged(plans(231028, "wider"), 231028, tmp_path)
    assert judgement.different == "stuck: Stuck: got gradient None"
    assert judgement.verdict == "inconclusive"
    assert "gradient of an input that nothing differentiable reads" in judgement.reason

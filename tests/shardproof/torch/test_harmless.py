"""What leaves the single device's values and comes back to them is not named as a cause: a loss
that is scaled, whose gradients are scaled back, beside a mistake elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.torch.unseen.precision import MASTER
from shardproof import torch as sp


def test_the_cause_is_named_and_not_the_scale_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    world, batch = MASTER.world_size, MASTER.batch
    right = sp.verify(MASTER.single, MASTER.right, world_size=world, batch=batch)
    assert right.verdict == "proved", right
    wrong = sp.verify(
        MASTER.single, MASTER.wrong["last bias untouched"], world_size=world, batch=batch
    )
    assert wrong.verdict == "refuted"
    assert wrong.findings[0].layer == "down.bias"
    assert not any("times the single-device" in finding.message for finding in wrong.findings)

"""One layer of Llama-3 70B's shapes at TP8 x FSDP8, where a rank of FSDP has an eighth of a head of
keys: captured, proved and checked by the commands that `benchmarks/torch/sizes.py` runs."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchmarks.torch.sizes import run


@pytest.mark.parametrize(("wrong", "verdict"), [({}, "proved"), ({"SIZED_WRONG": "9"}, "refuted")])
def test_one_layer_of_70b(wrong: dict[str, str], verdict: str, tmp_path: Path) -> None:
    """``SIZED_WRONG``: that rank reads another's batch."""
    row = run("70B 1", tmp_path, tmp_path / "cache", wrong)
    assert (row["verdict"], row["ranks"]) == (verdict, 64)
    assert wrong or row["check"] == "passes"

"""A mask of the batch by which a large number hides scores: what is wrong before it is seen on zeros
and ones, where any other numbers leave one key alone."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardproof
from tests.frontends.fx.graphs import Writer, verified

HEADS, KEYS, TYPES = 4, 6, 8


def attended(rank: int = 0, ranks: int = 1, wrong: bool = False, whole: bool = False) -> Any:
    """Scores of heads, a bias of relative positions of each, and a mask of keys; ``whole``: the
    mask has integers. Scores are scaled by a table, with whose own numbers both sides are run, too."""
    w, own = Writer(rank), HEADS // ranks
    scores, table = w.given("scores", (own, KEYS)), w.given("table", (KEYS, own))
    value = w.given("value", (own, KEYS))
    mask = w.given("mask", (KEYS,), "int64" if whole else "float32")
    if whole:
        mask = w.call("floats", "aten._to_copy.default", [mask], (KEYS,), dtype="torch.float32")
    bias = w.call("bias", "aten.permute.default", [table, [1, 0]], (own, KEYS))
    if wrong:
        cut = [
            w.call(f"row{n}", "aten.slice.Tensor", [bias, 0, n, n + 1], (1, KEYS))
            for n in reversed(range(own))
        ]
        bias = w.call("turned", "aten.cat.default", [cut, 0], (own, KEYS))
    off = w.call("off", "aten.rsub.Scalar", [mask, 1.0], (KEYS,))
    low = w.call("low", "aten.mul.Tensor", [off, -1e9], (KEYS,))
    scale = w.node("scale", "get_attr", "scale", [], (KEYS,))
    scores = w.call("scaled", "aten.mul.Tensor", [scores, scale], (own, KEYS))
    x = w.call("biased", "aten.add.Tensor", [scores, bias], (own, KEYS))
    x = w.call("masked", "aten.add.Tensor", [x, low], (own, KEYS))
    x = w.call("weights", "aten._softmax.default", [x, -1, False], (own, KEYS))
    x = w.call("weighed", "aten.mul.Tensor", [x, value], (own, KEYS))
    x = w.call("sum", "aten.sum.dim_IntList", [x, [0, 1]], ())
    if ranks > 1:
        x = w.call("all", "_c10d_functional.all_reduce.default", [x, "sum", "tp"], ())
    numbers = np.arange(1, KEYS + 1, dtype=np.float32) / KEYS
    return w.output(x) | {"tables": {"scale": base64.b64encode(numbers.tobytes()).decode()}}


@pytest.mark.parametrize("whole", [False, True], ids=["numbers", "integers"])
@pytest.mark.parametrize(("wrong", "expected"), [(False, "proved"), (True, "refuted")])
def test_heads_behind_a_mask(wrong: bool, expected: str, whole: bool, tmp_path: Path) -> None:
    ranks = [attended(rank, 2, wrong, whole) for rank in range(2)]
    result = verified(tmp_path, attended(whole=whole), ranks)
    assert result.verdict == expected, result.reason
    if wrong:
        checked = shardproof.check(tmp_path / "run")
        assert checked.ok, checked.problems

"""One expert on each rank, and whether a row's largest score is its expert's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import shardproof
from tests.frontends.fx.graphs import Writer, verified

ROWS, EXPERTS, WIDTH = 3, 4, 5


def experts(rank: int = 0, ranks: int = 1, wrong: bool = False) -> dict[str, Any]:
    """Rows times an expert's numbers, of the expert that the row chooses."""
    w = Writer(rank)
    count = EXPERTS // ranks
    x, scores = w.given("x", (ROWS, 1, WIDTH)), w.given("scores", (ROWS, EXPERTS))
    up = w.given("up", (1, count, WIDTH))
    wide, whole = (ROWS, count, WIDTH), (ROWS, WIDTH)
    each = w.call("each", "aten.mul.Tensor", [x, up], wide)
    each = w.call("positive", "aten.relu.default", [each], wide)
    chosen = w.call("chosen", "aten.argmax.default", [scores, 1], (ROWS,), "int64")
    if ranks == 1:
        hot = w.call("hot", "aten.one_hot.default", [chosen, EXPERTS], (ROWS, EXPERTS), "int64")
    else:
        own = (rank + wrong) % EXPERTS
        hot = w.call("hot", "aten.eq.Scalar", [chosen, own], (ROWS,), "bool")
    number = w.call("number", "aten.to.dtype", [hot, "float32"], (ROWS, *[EXPERTS][: ranks == 1]))
    column = w.call("column", "aten.view.default", [number, [ROWS, count, 1]], (ROWS, count, 1))
    kept = w.call("kept", "aten.mul.Tensor", [each, column], wide)
    total = w.call("total", "aten.sum.dim_IntList", [kept, [1]], whole)
    if ranks > 1:
        reduce = "_c10d_functional.all_reduce.default"
        total = w.call("all", reduce, [total, "sum", "ep"], whole)
    return w.output(total)


@pytest.mark.parametrize(("wrong", "verdict"), [(False, "proved"), (True, "refuted")])
def test_the_expert_of_a_rank_is_the_one_that_rows_choose(
    wrong: bool, verdict: str, tmp_path: Path
) -> None:
    ranks = [experts(rank, EXPERTS, wrong) for rank in range(EXPERTS)]
    result = verified(tmp_path, experts(), ranks)
    assert result.verdict == verdict, result.reason
    if not wrong:
        assert shardproof.check(tmp_path / "run").ok

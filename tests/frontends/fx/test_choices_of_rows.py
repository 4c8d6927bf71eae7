"""What is made of choices from rows, of which each rank has one, as many as a row has entries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import shardproof
from tests.frontends.fx.graphs import Writer, verified

ROWS = EXPERTS = 4
REDUCE = "_c10d_functional.all_reduce.default"


def gates(rank: int = 0, ranks: int = 1, *, chosen: int = 2) -> dict[str, Any]:
    """The squares of ``1 / total``, added up; on ranks ``1 / total ** 2``, where the total is of a
    row's chosen scores."""
    w, rows = Writer(rank), ROWS // ranks
    z = w.call("exp", "aten.exp.default", [w.given("z", (rows, EXPERTS))], (rows, EXPERTS))
    w.call("top", "aten.topk.default", [z, chosen], None)
    scores = w.call("scores", "<built-in function getitem>", [{"n": "top"}, 0], (rows, chosen))
    total = w.call("total", "aten.sum.dim_IntList", [scores, [1]], (rows,))
    if ranks == 1:
        inverse = w.call("inverse", "aten.reciprocal.default", [total], (rows,))
        each = w.call("each", "aten.mul.Tensor", [inverse, inverse], (rows,))
        return w.output(w.call("loss", "aten.sum.default", [each], ()))
    square = w.call("square", "aten.mul.Tensor", [total, total], (rows,))
    each = w.call("each", "aten.reciprocal.default", [square], (rows,))
    own = w.call("own", "aten.sum.default", [each], ())
    return w.output(w.call("loss", REDUCE, [own, "sum", "dp"], ()))


@pytest.mark.parametrize(("chosen", "verdict"), [(2, "proved"), (3, "refuted")])
def test_rows_are_represented_otherwise_on_each_rank(
    tmp_path: Path, chosen: int, verdict: str
) -> None:
    """Each rank's row cuts the experts as well, of which there are as many: three represent them
    on the first and the last rank, four on the others.  That was one function of three and of four
    arguments, which the checker could not write."""
    ranks = [gates(rank, ROWS, chosen=chosen) for rank in range(ROWS)]
    result = verified(tmp_path, gates(), ranks)
    assert result.verdict == verdict, result.reason
    assert verdict == "refuted" or shardproof.check(tmp_path / "run").ok

"""More ranks than heads of keys: ranks that are neighbours hold the same head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import shardproof
from shardproof.frontends.fx.layouts import divided
from tests.frontends.fx.graphs import Writer, verified

HEADS, RANKS, ROWS, SIZE = 2, 4, 3, 2


def test_neighbours_share_a_part_where_no_groups_have_it() -> None:
    over = divided("k", (4, 6), (2, 6), [(0, 1, 2, 3)], lambda *_: "parameter", {})
    assert over is not None
    assert over.box.starts == ((0, 0), (0, 0), (2, 0), (2, 0))
    (extent,) = over.over
    assert extent.fit == ((0, 0, 1, 1), (0, 1, 0, 1))
    assert divided("k", (6, 6), (2, 6), [(0, 1, 2, 3)], lambda *_: "parameter", {}) is None
    assert divided("k", (4, 4), (2, 2), [(0, 1)], lambda *_: "parameter", {}) is None


def scores(rank: int = 0, ranks: int = 1, wrong: bool = False) -> dict[str, Any]:
    """The scores [4, 3, 3] of four heads of queries, two for each head of keys."""
    w = Writer(rank)
    x = w.given("x", (ROWS, 6))
    parts = 1 if ranks > 1 else RANKS
    q = w.call("tq", "aten.t.default", [w.given("q", (parts * SIZE, 6))], (6, parts * SIZE))
    q = w.call("mq", "aten.mm.default", [x, q], (ROWS, parts * SIZE))
    own = 1 if ranks > 1 else HEADS
    k = w.call("tk", "aten.t.default", [w.given("k", (own * SIZE, 6))], (6, own * SIZE))
    k = w.call("mk", "aten.mm.default", [x, k], (ROWS, own * SIZE))
    if ranks > 1:
        k = w.call("tmk", "aten.t.default", [k], (SIZE, ROWS))
        score = w.call("score", "aten.mm.default", [q, k], (ROWS, ROWS))
        if wrong:
            score = w.call("scaled", "aten.mul.Tensor", [score, float(rank)], (ROWS, ROWS))
        gather = "_c10d_functional.all_gather_into_tensor.default"
        every = w.call("all", gather, [score, ranks, "tp"], (ranks * ROWS, ROWS))
        return w.output(w.call("out", "aten.view.default", [every, [RANKS, ROWS, ROWS]],
                               (RANKS, ROWS, ROWS)))  # fmt: skip
    q = w.call("hq", "aten.view.default", [q, [ROWS, RANKS, SIZE]], (ROWS, RANKS, SIZE))
    q = w.call("pq", "aten.permute.default", [q, [1, 0, 2]], (RANKS, ROWS, SIZE))
    k = w.call("hk", "aten.view.default", [k, [ROWS, HEADS, SIZE]], (ROWS, HEADS, SIZE))
    k = w.call("pk", "aten.permute.default", [k, [1, 2, 0]], (HEADS, SIZE, ROWS))
    shape = (HEADS, 2, SIZE, ROWS)
    k = w.call("uk", "aten.unsqueeze.default", [k, 1], (HEADS, 1, SIZE, ROWS))
    k = w.call("ek", "aten.expand.default", [k, list(shape)], shape)
    k = w.call("rk", "aten.reshape.default", [k, [RANKS, SIZE, ROWS]], (RANKS, SIZE, ROWS))
    return w.output(w.call("out", "aten.bmm.default", [q, k], (RANKS, ROWS, ROWS)))


@pytest.mark.parametrize("wrong", [False, True])
def test_heads_of_keys_that_ranks_share(wrong: bool, tmp_path: Path) -> None:
    ranks = [scores(rank, RANKS, wrong) for rank in range(RANKS)]
    result = verified(tmp_path, scores(), ranks)
    assert result.verdict == ("refuted" if wrong else "proved"), result.reason
    text = " ".join(map(str, result.assumptions))
    assert "input k is divided along dimension 0, part 0 on ranks [0, 1]" in text
    assert wrong or shardproof.check(tmp_path / "run").ok

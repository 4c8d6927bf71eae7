"""Decoding whose keys are divided along positions: ranks' attentions joined by gathered logarithms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.frontends.fx.graphs import Writer, verified

ROWS, WIDTH, KEYS, RANKS = 2, 3, 4, 2
GATHER = "_c10d_functional.all_gather_into_tensor.default"
REDUCE = "_c10d_functional.all_reduce.default"


def attention(w: Writer, keys: int, hidden: float, wrong: str = "") -> Any:
    """The scores of some keys, hidden where a mask says so, and the values beside them."""
    q, k = w.given("q", (ROWS, WIDTH)), w.given("k", (keys, WIDTH))
    v, late = w.given("v", (keys, WIDTH)), w.given("late", (ROWS, keys), "bool")
    t = w.call("t", "aten.permute.default", [k, [1, 0]], (WIDTH, keys))
    scores = w.call("s", "aten.mm.default", [q, t], (ROWS, keys))
    if wrong == "mask":
        late = w.call("n", "aten.logical_not.default", [late], (ROWS, keys), "bool")
    return w.call("a", "aten.masked_fill.Scalar", [scores, late, hidden], (ROWS, keys)), v


def single(hidden: float) -> Any:
    w = Writer(0)
    scores, v = attention(w, KEYS, hidden)
    p = w.call("p", "aten.softmax.int", [scores, 1], (ROWS, KEYS))
    return w.output(w.call("y", "aten.mm.default", [p, v], (ROWS, WIDTH)))


def ranked(rank: int, hidden: float, joined: str, wrong: str) -> Any:
    """A rank's attention, joined with others by the softmax of all logarithms, by its own less
    that of all, or by its own less the largest, over the sum of such weights; where a rank's keys are all hidden, numbers beside these are rounded away."""
    w, own = Writer(rank), KEYS // RANKS
    scores, v = attention(w, own, hidden, wrong)
    total = w.call("l", "aten.logsumexp.default", [scores, [1]], (ROWS,))
    p = w.call("p", "aten.softmax.int", [scores, 1], (ROWS, own))
    y = w.call("o", "aten.mm.default", [p, v], (ROWS, WIDTH))
    row = w.call("lr", "aten.unsqueeze.default", [total, 0], (1, ROWS))
    every = w.call("lg", GATHER, [row, RANKS, "tp"], (RANKS, ROWS))
    if joined == "softmax":
        shares = w.call("g", "aten.softmax.int", [every, 0], (RANKS, ROWS))
        if wrong == "order":
            shares = w.call("f", "aten.flip.default", [shares, [0]], (RANKS, ROWS))
        wide = w.call("gw", "aten.unsqueeze.default", [shares, 2], (RANKS, ROWS, 1))
        part = w.call("or", "aten.unsqueeze.default", [y, 0], (1, ROWS, WIDTH))
        parts = w.call("og", GATHER, [part, RANKS, "tp"], (RANKS, ROWS, WIDTH))
        both = w.call("m", "aten.mul.Tensor", [wide, parts], (RANKS, ROWS, WIDTH))
        return w.output(w.call("y", "aten.sum.dim_IntList", [both, [0]], (ROWS, WIDTH)))
    if joined == "largest":
        most = w.call("wx", "aten.amax.default", [every, [0]], (ROWS,))
        less = w.call("dx", "aten.sub.Tensor", [total, most], (ROWS,))
        share = w.call("ex", "aten.exp.default", [less], (ROWS,))
        wide = w.call("gwx", "aten.unsqueeze.default", [share, 1], (ROWS, 1))
        both = w.call("mx", "aten.mul.Tensor", [wide, y], (ROWS, WIDTH))
        above = w.call("ax", REDUCE, [both, "sum", "tp"], (ROWS, WIDTH))
        if wrong == "order":
            wide = w.call("bx", "aten.exp.default", [wide], (ROWS, 1))
        below = w.call("sx", REDUCE, [wide, "sum", "tp"], (ROWS, 1))
        return w.output(w.call("y", "aten.div.Tensor", [above, below], (ROWS, WIDTH)))
    whole = w.call("w", "aten.logsumexp.default", [every, [0]], (ROWS,))
    if wrong == "order":
        total, whole = whole, total
    less = w.call("d", "aten.sub.Tensor", [total, whole], (ROWS,))
    share = w.call("e", "aten.exp.default", [less], (ROWS,))
    wide = w.call("gw", "aten.unsqueeze.default", [share, 1], (ROWS, 1))
    both = w.call("m", "aten.mul.Tensor", [wide, y], (ROWS, WIDTH))
    return w.output(w.call("y", REDUCE, [both, "sum", "tp"], (ROWS, WIDTH)))


@pytest.mark.parametrize(
    ("joined", "wrong"),
    [
        *(("softmax", ""), ("softmax", "order"), ("logarithm", ""), ("logarithm", "mask")),
        *(("largest", ""), ("largest", "order")),
    ],
)
def test_attentions_of_ranks_joined_by_logarithms_of_their_sums(
    joined: str, wrong: str, tmp_path: Path
) -> None:
    hidden = -1e30 if joined == "softmax" else -3.4028234663852886e38
    ranks = [ranked(rank, hidden, joined, wrong) for rank in range(RANKS)]
    result = verified(tmp_path, single(hidden), ranks)
    assert result.verdict == ("refuted" if wrong else "proved")

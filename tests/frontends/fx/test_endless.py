"""Causal rings whose blocks are hidden by a number, and whose running maximum begins with one."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Any

import pytest

import shardproof
from tests.frontends.fx.graphs import Writer, verified

ROWS, WIDTH, RANKS = 8, 2, 2
OWN = ROWS // RANKS


def single(fill: float) -> dict[str, Any]:
    """Attention of each position to those up to it."""
    w = Writer(0)
    q, k, v = (w.given(name, (ROWS, WIDTH)) for name in "qkv")
    scores = blocks(w, q, k, 0, 0, ROWS, fill, "")
    weights = w.call("softmax", "aten._softmax.default", [scores, -1, False], (ROWS, ROWS))
    return w.output(w.call("y", "aten.mm.default", [weights, v], (ROWS, WIDTH)))


def number(x: float) -> Any:
    """A float as graphs write it."""
    return {"float": "-Infinity"} if x == -inf else x


def blocks(w: Writer, q: Any, k: Any, first: int, key: int, size: int, fill: float, n: str) -> Any:
    """The scores of ``size`` queries from ``first`` on and as many keys, hidden by ``fill``."""
    turned = w.call(f"t{n}", "aten.t.default", [k], (WIDTH, size))
    scores = w.call(f"scores{n}", "aten.mm.default", [q, turned], (size, size))
    ids = []
    for name, start in ((f"queries{n}", first), (f"keys{n}", key)):
        args = [start, start + size]
        ids.append(w.call(name, "aten.arange.start", args, (size,), "int64"))
    column = w.call(f"column{n}", "aten.unsqueeze.default", [ids[0], 1], (size, 1), "int64")
    shape = (size, size)
    mask = w.call(f"mask{n}", "aten.ge.Tensor", [column, ids[1]], shape, "bool")
    return w.call(f"hidden{n}", "aten.where.ScalarOther", [mask, scores, number(fill)], shape)


def ring(rank: int, fill: float, start: float, wrong: str = "") -> dict[str, Any]:
    """The blocks of a rank one after the other, its own first; ``wrong``: "first": last."""
    w = Writer(rank)
    q, k, v = (w.given(name, (OWN, WIDTH)) for name in "qkv")
    wholes = []
    for name, x in (("k", k), ("v", v)):
        target = "_c10d_functional.all_gather_into_tensor.default"
        sent = w.call(f"{name}_all", target, [x, RANKS, "g"], (ROWS, WIDTH))
        target = "_c10d_functional.wait_tensor.default"
        wholes.append(w.call(f"{name}_wait", target, [sent], (ROWS, WIDTH)))
    most = w.call("most", "aten.full.default", [[OWN], number(start)], (OWN,))
    total = w.call("total", "aten.full.default", [[OWN, 1], 0.0], (OWN, 1))
    y = w.call("y", "aten.full.default", [[OWN, WIDTH], 0.0], (OWN, WIDTH))
    order = [rank, 1 - rank] if wrong != "first" else [1 - rank, rank]
    for n, source in enumerate(order):
        begin = source * OWN
        rows = [begin, begin + OWN]
        own = [
            w.call(f"{name}{n}", "aten.slice.Tensor", [x, 0, *rows], (OWN, WIDTH))
            for name, x in zip(("k", "v"), wholes, strict=True)
        ]
        scores = blocks(w, q, own[0], rank * OWN, begin, OWN, fill, str(n))
        total, y, most = joined(w, scores, own[1], total, y, most, str(n), wrong)
    return w.output(w.call("ratio", "aten.div.Tensor", [y, total], (OWN, WIDTH)))


def joined(
    w: Writer, scores: Any, values: Any, total: Any, y: Any, most: Any, n: str, wrong: str
) -> tuple[Any, Any, Any]:
    """What is summed up so far, and one block more."""
    own = w.call(f"amax{n}", "aten.amax.default", [scores, [-1]], (OWN,))
    now = w.call(f"max{n}", "aten.maximum.default", [most, own], (OWN,))
    column = w.call(f"now{n}", "aten.unsqueeze.default", [now, 1], (OWN, 1))
    less = w.call(f"less{n}", "aten.sub.Tensor", [scores, column], (OWN, OWN))
    weights = w.call(f"exp{n}", "aten.exp.default", [less], (OWN, OWN))
    gap = w.call(f"gap{n}", "aten.sub.Tensor", [most, now], (OWN,))
    factor = w.call(f"factor{n}", "aten.exp.default", [gap], (OWN,))
    factor = w.call(f"wide{n}", "aten.unsqueeze.default", [factor, 1], (OWN, 1))
    added = w.call(f"sum{n}", "aten.sum.dim_IntList", [weights, [1], True], (OWN, 1))
    kept = total
    if wrong != "factor":
        kept = w.call(f"kept{n}", "aten.mul.Tensor", [total, factor], (OWN, 1))
    total = w.call(f"total{n}", "aten.add.Tensor", [kept, added], (OWN, 1))
    product = w.call(f"mm{n}", "aten.mm.default", [weights, values], (OWN, WIDTH))
    scaled = w.call(f"scaled{n}", "aten.mul.Tensor", [y, factor], (OWN, WIDTH))
    return total, w.call(f"y{n}", "aten.add.Tensor", [scaled, product], (OWN, WIDTH)), now


@pytest.mark.parametrize(
    ("alone", "fill", "start"),
    [(-1e30, -1e30, -1e30), (-inf, -1e30, -inf), (-inf, -inf, -inf), (-3e38, -1e9, -1e30)],
)
def test_a_causal_ring_hides_blocks_by_a_number(
    alone: float, fill: float, start: float, tmp_path: Path
) -> None:
    ranks = [ring(rank, fill, start) for rank in range(RANKS)]
    result = verified(tmp_path, single(alone), ranks)
    assert result.verdict == "proved", result.reason
    number_hides = any("that a mask hides are minus infinity" in a for a in result.assumptions)
    assert number_hides == (fill > -inf)
    assert shardproof.check(tmp_path / "run").ok


def test_a_ring_without_the_factor_of_its_sum_is_refuted(tmp_path: Path) -> None:
    ranks = [ring(rank, -1e30, -1e30, "factor") for rank in range(RANKS)]
    assert verified(tmp_path, single(-1e30), ranks).verdict == "refuted"


def test_a_number_less_itself_is_not_read_as_minus_infinity(tmp_path: Path) -> None:
    """A rank meets a block that is hidden before any other: exp(-1e30 + 1e30) is 1."""
    ranks = [ring(rank, -1e30, -1e30, "first") for rank in range(RANKS)]
    result = verified(tmp_path, single(-1e30), ranks)
    assert result.verdict != "proved"
    assert not any("that a mask hides are minus infinity" in a for a in result.assumptions)


def test_a_number_that_hides_no_scores_stays(tmp_path: Path) -> None:
    """A row of the single side is hidden altogether: its weights are all alike."""
    alone, ranks = single(-1e30), [ring(rank, -1e30, -1e30) for rank in range(RANKS)]
    for graph in (alone, *ranks):
        for node in graph["nodes"]:
            if node["target"] == "aten.ge.Tensor":
                node["target"] = "aten.gt.Tensor"
    result = verified(tmp_path, alone, ranks)
    assert result.verdict != "proved"
    assert not any("that a mask hides are minus infinity" in a for a in result.assumptions)

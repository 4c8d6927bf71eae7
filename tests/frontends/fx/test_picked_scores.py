"""The loss of a divided vocabulary that picks scores as they are, beside a cross-entropy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import shardproof
from tests.frontends.fx.graphs import Writer, verified

ROWS, CLASSES = 6, 8
REDUCE = "_c10d_functional.all_reduce.default"


def loss(rank: int = 0, ranks: int = 1, wrong: str = "") -> dict[str, Any]:
    w = Writer(rank)
    own, line = CLASSES // ranks, (ROWS,)
    z, y = w.given("z", (ROWS, own)), w.given("y", line, "int64")
    z = w.call("scores", "aten.mul.Tensor", [z, 2.0], (ROWS, own))
    if ranks == 1:
        return w.output(w.call("loss", "aten.cross_entropy_loss.default", [z, y], ()))
    low = rank * own
    most = w.call("most", "aten.amax.default", [z, [1]], line)
    most = w.call("top", REDUCE, [most, "max", "tp"], line)
    column = w.call("column", "aten.unsqueeze.default", [most, 1], (ROWS, 1))
    each = w.call("less", "aten.sub.Tensor", [z, column], (ROWS, own))
    each = w.call("exp", "aten.exp.default", [each], (ROWS, own))
    total = w.call("sum", "aten.sum.dim_IntList", [each, [1]], line)
    total = w.call("all", REDUCE, [total, "sum", "tp"], line)
    above = w.call("above", "aten.ge.Scalar", [y, low], line, "bool")
    below = w.call("below", "aten.lt.Scalar", [y, low + own], line, "bool")
    mine = w.call("mine", "aten.logical_and.default", [above, below], line, "bool")
    at = w.call("at", "aten.sub.Tensor", [y, low], line, "int64")
    at = w.call("place", "aten.where.ScalarOther", [mine, at, 0], line, "int64")
    at = w.call("places", "aten.unsqueeze.default", [at, 1], (ROWS, 1), "int64")
    score = w.call("picked", "aten.gather.default", [z, 1, at], (ROWS, 1))
    score = w.call("score", "aten.squeeze.dim", [score, 1], line)
    score = w.call("kept", "aten.where.ScalarOther", [mine, score, 0.0], line)
    if wrong != "score":
        score = w.call("label", REDUCE, [score, "sum", "tp"], line)
    log = w.call("log", "aten.log.default", [total], line)
    if wrong != "top":
        log = w.call("norm", "aten.add.Tensor", [log, most], line)
    each = w.call("each", "aten.sub.Tensor", [log, score], line)
    return w.output(w.call("loss", "aten.mean.default", [each], ()))


@pytest.mark.parametrize(
    ("wrong", "verdict"), [("", "proved"), ("score", "refuted"), ("top", "refuted")]
)
def test_scores_are_picked_as_they_are(wrong: str, verdict: str, tmp_path: Path) -> None:
    ranks, relations = [loss(rank, 2, wrong) for rank in range(2)], f"[domains]\ny = [0, {CLASSES}]"
    result = verified(tmp_path, loss(), ranks, relations)
    assert result.verdict == verdict, result.reason
    if not wrong:
        assert shardproof.check(tmp_path / "run").ok


def loss_by_one_hots() -> dict[str, Any]:
    w = Writer(0)
    shape = (ROWS, CLASSES)
    z, y = w.given("z", shape), w.given("y", (ROWS,), "int64")
    z = w.call("scores", "aten.mul.Tensor", [z, 2.0], shape)
    hot = w.call("hot", "aten.one_hot.default", [y, CLASSES], shape, "int64")
    log = w.call("log", "aten.log_softmax.int", [z, 1], shape)
    each = w.call("each", "aten.mul.Tensor", [hot, log], shape)
    total = w.call("total", "aten.sum.dim_IntList", [each, [1]], (ROWS,))
    total = w.call("mean", "aten.mean.default", [total], ())
    return w.output(w.call("loss", "aten.neg.default", [total], ()))


@pytest.mark.parametrize(("wrong", "verdict"), [("", "proved"), ("top", "refuted")])
def test_labels_of_a_one_hot_are_classes(wrong: str, verdict: str, tmp_path: Path) -> None:
    """PyTorch makes one-hots of classes alone; that labels are such is printed."""
    result = verified(tmp_path, loss_by_one_hots(), [loss(rank, 2, wrong) for rank in range(2)])
    assert result.verdict == verdict, result.reason
    assert any(f"from 0 to {CLASSES - 1}" in text for text in result.assumptions)
    if not wrong:
        assert shardproof.check(tmp_path / "run").ok

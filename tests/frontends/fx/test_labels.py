"""Labels that do not count (``ignore_index``): they may be among the labels of any rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import shardproof
from shardproof.engine.errors import InvalidInput
from shardproof.frontends.fx import replay
from shardproof.frontends.fx.domains import Domains
from shardproof.frontends.fx.records import Graph
from shardproof.frontends.graphs.relations import Relations
from tests.frontends.fx.graphs import Writer, reduced, ref, write

ROWS, CLASSES, WIDTH = 8, 6, 4
MEAN, SUM = 1, 2
GETITEM = "<built-in function getitem>"


def logits(w: Writer, rows: int) -> tuple[Any, Any]:
    ids = w.given("ids", (rows,), "int64")
    labels = w.given("labels", (rows,), "int64")
    table, up = w.given("table", (CLASSES, WIDTH)), w.given("up", (CLASSES, WIDTH))
    x = w.call("rows", "aten.embedding.default", [table, ids], (rows, WIDTH))
    turned = w.call("t", "aten.t.default", [up], (WIDTH, CLASSES))
    return w.call("mm", "aten.mm.default", [x, turned], (rows, CLASSES)), labels


def entropy(ignored: int = -100, rank: int = 0, ranks: int = 1) -> dict[str, Any]:
    """The mean of the losses of the labels that count; of ranks: the mean of their means."""
    w = Writer(rank)
    z, labels = logits(w, ROWS // ranks)
    given = [z, labels, None, MEAN, ignored, 0.0]
    loss = w.call("loss", "aten.cross_entropy_loss.default", given, ())
    if ranks > 1:
        loss = reduced(w, "loss", loss, ())
        loss = w.call("mean", "aten.mul.Scalar", [loss, 1 / ranks], ())
    return w.output(loss)


def counted(count: str, ignored: int = -100, rank: int = 0, ranks: int = 1) -> dict[str, Any]:
    """The sum of all losses by the number of labels that count: that of the loss, by comparison,
    of the rank's own, or of all labels."""
    w = Writer(rank)
    rows = ROWS // ranks
    z, labels = logits(w, rows)
    logs = w.call("logs", "aten._log_softmax.default", [z, 1, False], (rows, CLASSES))
    w.call("nll", "aten.nll_loss_forward.default", [logs, labels, None, SUM, ignored], None)
    loss = w.call("loss", GETITEM, [ref("nll"), 0], ())
    number = w.call("number", GETITEM, [ref("nll"), 1], ())
    if count == "compared":
        live = w.call("live", "aten.ne.Scalar", [labels, ignored], (rows,), "bool")
        number = w.call("live_sum", "aten.sum.default", [live], (), "int64")
    if ranks > 1:
        loss = reduced(w, "loss", loss, ())
        if count != "own":
            number = reduced(w, "number", number, ())
    if count == "all":
        return w.output(w.call("mean", "aten.mul.Scalar", [loss, 1 / ROWS], ()))
    return w.output(w.call("mean", "aten.div.Tensor", [loss, number], ()))


def verdict(folder: Path, single: dict[str, Any], ranks: list[dict[str, Any]]) -> Any:
    alone = write(folder / "single", [single])
    return shardproof.verify(alone, write(folder / "parallel", ranks), out=folder / "run")


@pytest.mark.parametrize("count", ["loss", "compared"])
def test_a_mean_over_all_labels_that_count_is_proved(count: str, tmp_path: Path) -> None:
    result = verdict(tmp_path, entropy(), [counted(count, rank=n, ranks=2) for n in range(2)])
    assert result.verdict == "proved", result.reason
    assert any("-100, which the single side tells" in text for text in result.assumptions)


def test_a_single_side_that_compares_its_labels_is_proved(tmp_path: Path) -> None:
    ranks = [counted("loss", rank=n, ranks=2) for n in range(2)]
    assert verdict(tmp_path, counted("compared"), ranks).verdict == "proved"


@pytest.mark.parametrize("count", ["own", "all", "means"])
def test_another_number_of_labels_is_refuted(count: str, tmp_path: Path) -> None:
    ranks = [
        entropy(rank=n, ranks=2) if count == "means" else counted(count, rank=n, ranks=2)
        for n in range(2)
    ]
    assert verdict(tmp_path, entropy(), ranks).verdict == "refuted"


def test_another_ignored_label_is_not_proved(tmp_path: Path) -> None:
    ranks = [counted("loss", -1, rank=n, ranks=2) for n in range(2)]
    assert verdict(tmp_path, entropy(), ranks).verdict == "inconclusive"


def test_labels_that_count_for_nothing_are_replayed() -> None:
    graphs = [msgspec.convert(counted("compared", rank=n, ranks=2), Graph) for n in range(2)]
    replayed = replay.validated(msgspec.convert(entropy(), Graph), graphs, Relations())
    assert (replayed.replayed, replayed.agrees, replayed.compared) == (True, True, 3), replayed


def test_rows_that_are_read_have_no_mark() -> None:
    domains = Domains({"stated": (0, 4)})
    domains.learn("labels", 6, -100)
    assert (domains.get("labels"), domains.marks) == ((-1, 6), {"labels": -100})
    domains.learn("labels", 6, None)
    assert (domains.get("labels"), domains.marks) == ((0, 6), {})
    assert domains.inferred() == domains.unmarked == {"labels"}
    with pytest.raises(InvalidInput, match="ids from 0 to 3 choose among 2 rows"):
        domains.learn("stated", 2, None)

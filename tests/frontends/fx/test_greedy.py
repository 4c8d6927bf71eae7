"""The word of the largest score, of which each rank sends its own, held against PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

import shardproof
from shardproof.frontends.fx.records import GETITEM, Graph
from shardproof.frontends.fx.words import MARK, whole_rows
from tests.frontends.fx.graphs import Writer, verified
from tests.frontends.fx.lockstep import run
from tests.frontends.fx.scores import ROWS, WIDTH, WORDS, largest_of, of_rank, word

GATHER = "_c10d_functional.all_gather_into_tensor.default"
WAIT = "_c10d_functional.wait_tensor.default"
KINDS = ("columns", "rows")
MISTAKES = ("first", "order", "smallest", "other scores")


def sent(w: Writer, name: str, x: Any, kind: str, ranks: int, dtype: str) -> Any:
    """What all ranks have of each row: [rows, ranks], or [ranks, rows]."""
    wide = (ROWS, 1) if kind == "columns" else (1, ROWS)
    dim = 1 if kind == "columns" else 0
    own = w.call(f"{name}w", "aten.unsqueeze.default", [x, dim], wide, dtype)
    shape = (ranks * wide[0], wide[1])
    y = w.call(f"{name}g", GATHER, [own, ranks, "tp"], shape, dtype)
    y = w.call(f"{name}a", WAIT, [y], shape, dtype)
    if kind == "rows":
        return y
    w.call(f"{name}p", "aten.chunk.default", [y, ranks], None)
    get = [[{"n": f"{name}p"}, n] for n in range(ranks)]
    parts = [w.call(f"{name}{n}", GETITEM, get[n], wide, dtype) for n in range(ranks)]
    return w.call(f"{name}c", "aten.cat.default", [parts, -1], (ROWS, ranks), dtype)


def decoded(rank: int = 0, ranks: int = 1, kind: str = "columns", wrong: str = "") -> Any:
    """The word of each row, by scores of which a rank has some columns."""
    w = Writer(rank)
    z = of_rank(w, ranks)
    if ranks == 1:
        return word(w, z)
    value, place = largest_of(w, z)
    if wrong == "other scores":
        value = w.call("n", "aten.neg.default", [value], (ROWS,))
    first = {"first": 0, "order": ranks - 1 - rank}.get(wrong, rank) * WORDS // ranks
    place = w.call("f", "aten.add.Tensor", [place, first], (ROWS,), "int64")
    values = sent(w, "V", value, kind, ranks, "float32")
    places = sent(w, "I", place, kind, ranks, "int64")
    dim, one = (-1, (ROWS, 1)) if kind == "columns" else (0, (1, ROWS))
    name = "aten.argmin.default" if wrong == "smallest" else "aten.argmax.default"
    best = w.call("b", name, [values, dim, True], one, "int64")
    y = w.call("y", "aten.gather.default", [places, dim, best], one, "int64")
    return w.output(w.call("r", "aten.reshape.default", [y, [ROWS]], (ROWS,), "int64"))


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_words_are_what_pytorch_says_of_equal_scores_too(kind: str, ranks: int) -> None:
    graphs = [msgspec.convert(decoded(r, ranks, kind), Graph) for r in range(ranks)]
    made = whole_rows(graphs)
    assert all(any(MARK in node.name for node in graph.nodes) for graph in made)
    seeded = torch.Generator().manual_seed(1)
    for _ in range(20):
        x = torch.randint(-1, 2, (ROWS, WIDTH), generator=seeded).float()
        head = torch.randint(-1, 2, (WIDTH, WORDS), generator=seeded).float()
        inputs = [{"x": x, "head": own} for own in head.chunk(ranks, 1)]
        expected = (x @ head).argmax(-1)
        for each in (graphs, made):
            assert all(torch.equal(own["r"], expected) for own in run(each, inputs))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wrong", ["", *MISTAKES])
def test_the_word_of_a_divided_vocabulary(kind: str, wrong: str, tmp_path: Path) -> None:
    result = verified(tmp_path, decoded(), [decoded(r, 2, kind, wrong) for r in range(2)])
    assert result.verdict == ("refuted" if wrong else "proved"), result.reason
    if not wrong:
        assert shardproof.check(tmp_path / "run").ok


@pytest.mark.parametrize("wrong", MISTAKES)
def test_what_is_another_word_stays_as_it_is(wrong: str) -> None:
    graphs = [msgspec.convert(decoded(r, 2, wrong=wrong), Graph) for r in range(2)]
    assert whole_rows(graphs) == graphs
    right = [msgspec.convert(decoded(0, 2), Graph), graphs[1]]
    assert whole_rows(right) == right

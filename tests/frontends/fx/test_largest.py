"""Words by two all-reduces, and the largest of the largest scores of each rank, held against
PyTorch."""

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

MOST = 2
REDUCE = "_c10d_functional.all_reduce.default"
GATHER = "_c10d_functional.all_gather_into_tensor.default"
WAIT = "_c10d_functional.wait_tensor.default"


def reduced(w: Writer, name: str, x: Any, how: str, dtype: str) -> Any:
    y = w.call(f"{name}r", REDUCE, [x, how, "tp"], (ROWS,), dtype)
    return w.call(f"{name}w", WAIT, [y], (ROWS,), dtype)


def least(rank: int = 0, ranks: int = 1, wrong: str = "") -> Any:
    """The least place of the largest score."""
    w = Writer(rank)
    z = of_rank(w, ranks)
    if ranks == 1:
        return word(w, z)
    value, place = largest_of(w, z)
    first = 0 if wrong == "first" else rank * WORDS // ranks
    place = w.call("f", "aten.add.Tensor", [place, first], (ROWS,), "int64")
    most = reduced(w, "most", value, "min" if wrong == "smallest" else "max", "float32")
    name = "aten.ge.Tensor" if wrong == "all" else "aten.eq.Tensor"
    pair = [most, value] if rank else [value, most]
    mask = w.call("mask", name, pair[::-1] if wrong == "all" else pair, (ROWS,), "bool")
    past = WORDS - 1 if wrong == "past" else WORDS
    chosen = w.call("c", "aten.where.ScalarOther", [mask, place, past], (ROWS,), "int64")
    return w.output(reduced(w, "y", chosen, "max" if wrong == "last" else "min", "int64"))


def largest(rank: int = 0, ranks: int = 1, dim: int = 1, wrong: str = "") -> Any:
    """The two largest scores of each row, or of each column of scores that are turned."""
    w = Writer(rank)
    own, z = WORDS // ranks, of_rank(w, ranks)
    lines, most, every = (ROWS, own), (ROWS, MOST), (ROWS, MOST * ranks)
    if dim == 0:
        z = w.call("t", "aten.t.default", [z], (own, ROWS))
        lines, most, every = lines[::-1], most[::-1], every[::-1]
    w.call("k", "aten.topk.default", [z, MOST, dim], None)
    value = w.call("v", GETITEM, [{"n": "k"}, 0], most)
    if ranks == 1:
        return w.output(value)
    if wrong == "one":
        value = w.call(
            "n", "aten.slice.Tensor", [value, dim, 0, 1], (ROWS, 1) if dim else (1, ROWS)
        )
        value = w.call("r", "aten.cat.default", [[value, value], dim], most)
    sent = w.call("g", GATHER, [value, ranks, "tp"], (ranks * most[0], most[1]))
    y = w.call("a", WAIT, [sent], (ranks * most[0], most[1]))
    if dim:
        w.call("p", "aten.chunk.default", [y, ranks], None)
        parts = [w.call(f"p{n}", GETITEM, [{"n": "p"}, n], most) for n in range(ranks)]
        y = w.call("j", "aten.cat.default", [parts[::-1], -1], every)
    w.call("b", "aten.topk.default", [y, MOST, dim, wrong != "smallest"], None)
    return w.output(w.call("y", GETITEM, [{"n": "b"}, 0], most))


def graphs(make: Any, ranks: int, *more: Any) -> list[Graph]:
    return [msgspec.convert(make(rank, ranks, *more), Graph) for rank in range(ranks)]


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(("make", "more"), [(least, ()), (largest, (1,)), (largest, (0,))])
def test_what_is_chosen_is_what_pytorch_says(make: Any, more: tuple[int, ...], ranks: int) -> None:
    """Of equal scores, too."""
    own = graphs(make, ranks, *more)
    made = whole_rows(own)
    assert all(any(MARK in node.name for node in graph.nodes) for graph in made)
    seeded = torch.Generator().manual_seed(1)
    for _ in range(20):
        x = torch.randint(-1, 2, (ROWS, WIDTH), generator=seeded).float()
        head = torch.randint(-1, 2, (WIDTH, WORDS), generator=seeded).float()
        inputs = [{"x": x, "head": part} for part in head.chunk(ranks, 1)]
        scores = x @ head
        expected = scores.argmax(-1) if make is least else scores.topk(MOST, 1).values
        expected = expected.t() if more == (0,) else expected
        name = "yw" if make is least else "y"
        for each in (own, made):
            assert all(torch.equal(values[name], expected) for values in run(each, inputs))


@pytest.mark.parametrize(
    ("make", "wrong", "expected"),
    [
        (least, "", "proved"),
        *((least, wrong, "inconclusive") for wrong in ("all", "past", "last", "first", "smallest")),
        (largest, "", "proved"),
        (largest, "one", "refuted"),
        (largest, "smallest", "refuted"),
    ],
)
def test_words_and_scores(make: Any, wrong: str, expected: str, tmp_path: Path) -> None:
    more = (1,) if make is largest else ()
    ranks = [make(rank, 2, *more, wrong) for rank in range(2)]
    result = verified(tmp_path, make(), ranks)
    assert result.verdict == expected, result.reason
    if expected == "proved":
        assert shardproof.check(tmp_path / "run").ok


@pytest.mark.parametrize(
    ("make", "wrong"),
    [*((least, w) for w in ("all", "past", "last", "first", "smallest")), (largest, "one")],
)
def test_what_is_something_else_stays_as_it_is(make: Any, wrong: str) -> None:
    own = graphs(make, 2, *((1,) if make is largest else ()), wrong)
    assert whole_rows(own) == own

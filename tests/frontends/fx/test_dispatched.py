"""Experts whose tokens are sorted, multiplied in groups and put back, held against NumPy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import shardproof
from shardproof.frontends.fx.dispatched import in_order
from shardproof.frontends.fx.records import Graph
from tests.frontends.fx.graphs import Writer, verified
from tests.frontends.fx.test_functional import run

GROUPED = "transformers.grouped_mm_fallback.default"
WIDTH, INNER = 3, 4


def layer(
    tokens: int,
    experts: int,
    each: int,
    rank: int = 0,
    changed: str = "",
    tables: bool = False,
    form: str = "inverse",
) -> dict[str, Any]:
    """A gated layer of experts as transformers writes it: x [tokens, 3], of which each token has
    ``each`` of the experts.  ``changed``: what is another operand than there; ``form``: how tokens
    are gathered, counted and put back (`FORMS`)."""
    w = Writer(rank)
    pairs = tokens * each
    x, gate = w.given("x", (tokens, WIDTH)), w.given("gate", (tokens, experts))
    up = w.given("up", (experts, WIDTH, 2 * INNER))
    down = w.given("down", (experts, INNER, WIDTH))
    share = w.call("softmax", "aten.softmax.int", [gate, -1], (tokens, experts))
    w.call("top", "aten.topk.default", [share, each], None)
    item = "<built-in function getitem>"
    weights = w.call("weights", item, [{"n": "top"}, 0], (tokens, each))
    places = w.call("places", item, [{"n": "top"}, 1], (tokens, each), "int64")
    weights = w.call("flat", "aten.reshape.default", [weights, [-1]], (pairs,))
    ids = w.call("ids", "aten.reshape.default", [places, [-1]], (pairs,), "int64")
    if form == "inverse" or tables:
        w.call("sort", "aten.sort.default", [ids], None)
        ordered = w.call("ordered", item, [{"n": "sort"}, 0], (pairs,), "int64")
        order = w.call("order", item, [{"n": "sort"}, 1], (pairs,), "int64")
    else:
        order = w.call("order", "aten.argsort.stable", [ids], (pairs,), "int64", stable=True)
        ordered = ids
    token = w.call("token", "aten.floor_divide.default", [order, each], (pairs,), "int64")
    wide = w.call("columns", "aten.unsqueeze.default", [token, 1], (pairs, 1), "int64")
    wide = token if changed == "across" else wide
    wide = w.call("wide", "aten.expand.default", [wide, [-1, WIDTH]], (pairs, WIDTH), "int64")
    rows = w.call("rows", "aten.index.Tensor", [x, [token]], (pairs, WIDTH))
    if form == "scatter":
        rows = w.call("gathered", "aten.gather.default", [x, 0, wide], (pairs, WIDTH))
    own = w.call("own", "aten.index.Tensor", [weights, [order]], (pairs,))
    kind = "bool" if changed == "flags" else "int64"
    numbers = w.call("numbers", "aten.to.dtype", [ordered, kind], (pairs,), kind)
    real = w.call("real", "aten.to.dtype", [numbers, "float32"], (pairs,))
    bins = [experts, 0, experts if changed == "bins" else experts - 1]
    counts = w.call("counts", "aten.histc.default", [real, *bins], (experts,))
    if form == "add":
        hot = w.call("hot", "aten.one_hot.default", [places, experts], (tokens, each, experts))
        counts = w.call("total", "aten.sum.dim_IntList", [hot, [0, 1]], (experts,), "int64")
    ends = w.call("ends", "aten.cumsum.default", [counts, 0], (experts,))
    if changed == "rows":
        rows = w.call("mixed", "aten.cumsum.default", [rows, 0], (pairs, WIDTH))
    y = w.call("y", GROUPED, [rows, up, ends], (pairs, 2 * INNER))
    w.call("halves", "aten.chunk.default", [y, 2, -1], None)
    first = w.call("first", item, [{"n": "halves"}, 0], (pairs, INNER))
    other = w.call("other", item, [{"n": "halves"}, 1], (pairs, INNER))
    first = w.call("silu", "aten.silu.default", [first], (pairs, INNER))
    y = w.call("gated", "aten.mul.Tensor", [first, other], (pairs, INNER))
    y = w.call("z", GROUPED, [y, down, ends], (pairs, WIDTH))
    if tables:
        table = w.given("table", (experts, WIDTH))
        more = w.call("more", "aten.index.Tensor", [table, [ordered]], (pairs, WIDTH))
        y = w.call("biased", "aten.add.Tensor", [y, more], (pairs, WIDTH))
    column = w.call("column", "aten.unsqueeze.default", [own, -1], (pairs, 1))
    if changed == "columns":
        column = own
    y = w.call("weighed", "aten.mul.Tensor", [y, column], (pairs, WIDTH))
    if form not in ("inverse", "again", "rows"):
        return w.output(added(w, form, y, tokens, wide if changed == "ids" else token, wide))
    if form == "rows":
        empty = w.call("empty", "aten.empty_like.default", [y], (pairs, WIDTH))
        y = w.call("there", "aten.index_put.default", [empty, [order], y], (pairs, WIDTH))
        y = w.call("each", "aten.view.default", [y, [tokens, each, WIDTH]], (tokens, each, WIDTH))
        return w.output(w.call("sum", "aten.sum.dim_IntList", [y, [1]], (tokens, WIDTH)))
    if changed == "sort":
        order = w.call("other", "aten.argsort.default", [ids], (pairs,), "int64")
    empty = w.call("empty", "aten.empty_like.default", [order], (pairs,), "int64")
    count = w.call("count", "aten.arange.default", [pairs], (pairs,), "int64")
    if changed == "order":
        order = token
    back = w.call("back", "aten.index_put.default", [empty, [order], count], (pairs,), "int64")
    if form == "again":
        back = w.call("inverse", "aten.argsort.default", [order], (pairs,), "int64")
    y = w.call("there", "aten.index.Tensor", [y, [back]], (pairs, WIDTH))
    y = w.call("each", "aten.view.default", [y, [tokens, each, WIDTH]], (tokens, each, WIDTH))
    return w.output(w.call("sum", "aten.sum.dim_IntList", [y, [1]], (tokens, WIDTH)))


#: Ways to put what experts computed back: by the inverse of the order (that is written, or sorted),
#: row by row, or added up for each token.
FORMS = ("inverse", "again", "rows", "add", "scatter", "put")


def added(w: Writer, form: str, y: Any, tokens: int, token: Any, wide: Any) -> Any:
    """Rows in the order of experts, added up for each token."""
    zeros = w.call("zeros", "aten.zeros.default", [[tokens, WIDTH]], (tokens, WIDTH))
    target, args = {
        "add": ("aten.index_add.default", [zeros, 0, token, y]),
        "scatter": ("aten.scatter_add.default", [zeros, 0, wide, y]),
        "put": ("aten.index_put.default", [zeros, [token], y, True]),
    }[form]
    return w.call("result", target, args, (tokens, WIDTH))


def graph(**given: Any) -> Graph:
    import msgspec

    return msgspec.convert(layer(**given), Graph)


def expected(
    given: list[np.ndarray[Any, Any]], each: int, table: np.ndarray[Any, Any] | None
) -> np.ndarray[Any, Any]:
    """Token by token, and expert by expert."""
    x, gate, up, down = given
    share = np.exp(gate) / np.exp(gate).sum(1, keepdims=True)
    result = np.zeros_like(x)
    for t in range(len(x)):
        for e in np.argsort(-share[t])[:each]:
            y = x[t] @ up[e]
            first, other = y[:INNER], y[INNER:]
            z = (first / (1 + np.exp(-first)) * other) @ down[e]
            result[t] += share[t, e] * (z if table is None else z + table[e])
    return result


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", range(4))
def test_a_layer_in_the_order_of_pairs_is_what_it_was(seed: int, form: str) -> None:
    rng = np.random.default_rng(seed)
    tokens, experts = int(rng.integers(1, 6)), int(rng.integers(2, 6))
    each, tables = int(rng.integers(1, experts + 1)), bool(seed % 2)
    more = {"tables": tables, "form": form}
    made = in_order(graph(tokens=tokens, experts=experts, each=each, **more))
    assert not any(node.target == GROUPED or "sort" in node.target for node in made.nodes)
    shapes = [(tokens, WIDTH), (tokens, experts), (experts, WIDTH, 2 * INNER)]
    shapes += [(experts, INNER, WIDTH), *([(experts, WIDTH)] if tables else [])]
    given = [rng.normal(size=shape) for shape in shapes]
    result = run(made, *map(torch.tensor, given))
    wanted = expected(given[:4], each, given[4] if tables else None)
    np.testing.assert_allclose(result.numpy(), wanted, atol=1e-12)


@pytest.mark.parametrize("changed", ["bins", "rows", "order", "columns", "sort"])
def test_what_is_no_such_layer_stays_as_it_is(changed: str) -> None:
    """Counts of other numbers, rows that are made of others, an order that is none, factors of rows
    that are those of columns, of which there are as many, and the order of another sort, in which
    pairs of one expert may lie otherwise."""
    before = graph(tokens=3, experts=4, each=1 if changed == "columns" else 2, changed=changed)
    made = in_order(before)
    targets = [node.target for node in made.nodes]
    assert GROUPED in targets
    assert "aten.sort.default" in targets
    assert made.nodes[-2:] == before.nodes[-2:]


@pytest.mark.parametrize(
    ("form", "changed"), [("scatter", "across"), ("put", "ids"), ("put", "flags")]
)
def test_what_only_looks_like_such_a_layer_stays_as_it_is(form: str, changed: str) -> None:
    """Tokens along each row and not along columns, of which there are as many; rows of ids where
    rows are added up; and counts of the truth values of ids."""
    size = {"tokens": WIDTH, "experts": 4, "each": 1}
    before = graph(**size, form=form, changed=changed)
    made = in_order(before)
    assert GROUPED in [node.target for node in made.nodes]
    assert made.nodes[-2:] == before.nodes[-2:]
    right = in_order(graph(**size, form=form))
    assert GROUPED not in [node.target for node in right.nodes]


@pytest.mark.parametrize("form", ["inverse", "add"])
@pytest.mark.parametrize("wrong", [False, True])
def test_rows_of_ranks_choose_their_own_experts(wrong: bool, form: str, tmp_path: Path) -> None:
    ranks = []
    for rank in range(2):
        text = json.dumps(layer(2, 4, 2, rank, form=form))
        if wrong:  # the gate's halves change places
            text = text.replace('[{"n": "halves"}, 0]', '[{"n": "halves"}, 9]')
            text = text.replace('[{"n": "halves"}, 1]', '[{"n": "halves"}, 0]')
            text = text.replace('[{"n": "halves"}, 9]', '[{"n": "halves"}, 1]')
        ranks.append(json.loads(text))
    result = verified(tmp_path, layer(4, 4, 2), ranks)
    assert result.verdict == ("refuted" if wrong else "proved"), result.reason
    assert wrong or shardproof.check(tmp_path / "run").ok


def test_a_sort_of_a_part_of_all_ids_is_inconclusive(tmp_path: Path) -> None:
    """What sorts rows of a rank is no part of what sorts all, and was an internal error."""

    def sorts(rows: int, rank: int = 0) -> dict[str, Any]:
        w = Writer(rank)
        x = w.given("x", (rows, 4))
        w.call("top", "aten.topk.default", [x, 2], None)
        item = "<built-in function getitem>"
        places = w.call("places", item, [{"n": "top"}, 1], (rows, 2), "int64")
        ids = w.call("ids", "aten.reshape.default", [places, [-1]], (2 * rows,), "int64")
        order = w.call("order", "aten.argsort.default", [ids], (2 * rows,), "int64")
        return w.output(w.call("y", "aten.index.Tensor", [ids, [order]], (2 * rows,), "int64"))

    result = verified(tmp_path, sorts(4), [sorts(2), sorts(2, 1)])
    assert result.verdict in ("inconclusive", "refuted")

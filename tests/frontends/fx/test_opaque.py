"""Functions of which nothing is known: the same on both sides where they are of whole matrices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import shardproof
from tests.frontends.fx.graphs import Writer, reduced, verified

N = 3


def whitened(batch: int, rank: int = 0, upper: bool = False, twice: bool = False) -> dict[str, Any]:
    """``solve(cholesky(x x^T), y)`` of each matrix of a batch."""
    w = Writer(rank)
    shape, wide = (batch, N, N), (batch, N, 4)
    x, y = w.given("x", shape), w.given("y", wide)
    turned = w.call("turned", "aten.permute.default", [x, [0, 2, 1]], shape)
    if twice:
        turned = w.call("more", "aten.add.Tensor", [turned, turned], shape)
    square = w.call("square", "aten.bmm.default", [x, turned], shape)
    own = {"upper": True} if upper else {}
    root = w.call("root", "aten.linalg_cholesky.default", [square], shape, **own)
    args: list[Any] = [root, y]
    target = "aten.linalg_solve_triangular.default"
    return w.output(w.call("solved", target, args, wide, upper=upper))


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [({}, "proved"), ({"upper": True}, "inconclusive"), ({"twice": True}, "inconclusive")],
)
def test_matrices_of_a_batch(wrong: dict[str, bool], expected: str, tmp_path: Path) -> None:
    ranks = [whitened(2, rank, **wrong) for rank in range(2)]
    result = verified(tmp_path, whitened(4), ranks)
    assert result.verdict == expected, result.reason
    assert any("stand for a function of which nothing is known" in a for a in result.assumptions)
    if expected == "proved":
        assert shardproof.check(tmp_path / "run").ok


def inverse(columns: int, rank: int = 0, wrong: str = "") -> dict[str, Any]:
    """``solve(a, y)`` for columns of y, and the inverse of a sum over ranks."""
    w = Writer(rank)
    a, y = w.given("a", (N, N)), w.given("y", (N, columns))
    x = w.given("x", (columns, N))
    square = w.call("t", "aten.t.default", [x], (N, columns))
    square = w.call("square", "aten.mm.default", [square, x], (N, N))
    if columns < 4 and wrong != "sum":
        square = reduced(w, "all", square, (N, N))
    solved = w.call("solved", "aten.linalg_solve.default", [a, y], (N, columns))
    return w.output(solved, w.call("inverse", "aten.linalg_inv.default", [square], (N, N)))


@pytest.mark.parametrize(("wrong", "expected"), [("", "proved"), ("sum", "inconclusive")])
def test_columns_and_sums_over_ranks(wrong: str, expected: str, tmp_path: Path) -> None:
    """The inverse of a part of a sum is no part of the inverse."""
    ranks = [inverse(2, rank, wrong) for rank in range(2)]
    result = verified(tmp_path, inverse(4), ranks)
    assert result.verdict == expected, result.reason
    if expected == "proved":
        assert shardproof.check(tmp_path / "run").ok


def decomposed(rows: int, rank: int = 0) -> dict[str, Any]:
    """Singular values, of which a rank's are of some rows alone."""
    w = Writer(rank)
    x = w.given("x", (rows, N))
    least = min(rows, N)
    values = w.call("values", "aten.linalg_svdvals.default", [x], (least,))
    return w.output(w.call("most", "aten.amax.default", [values, [0]], ()))


def test_a_part_of_a_matrix_is_another_matrix(tmp_path: Path) -> None:
    result = verified(tmp_path, decomposed(4), [decomposed(2, rank) for rank in range(2)])
    assert result.verdict == "inconclusive"


def test_numbers_of_a_function_are_not_accepted(tmp_path: Path) -> None:
    """A difference under particular numbers may be none with the function itself."""
    relations = tmp_path / "relations.toml"
    name = "numbers of linalg_svdvals.default(), result 0 of 4x3, operand 0"
    relations.write_text(f'accepted = ["{name}"]\n')
    verified(tmp_path, decomposed(4), [decomposed(4, rank) for rank in range(2)])
    files = tmp_path / "single.json", tmp_path / "ranks"
    result = shardproof.verify(*files, relations=relations, out=tmp_path / "again", cache=False)
    assert result.verdict == "invalid input"
    assert "taken for something else" in result.reason

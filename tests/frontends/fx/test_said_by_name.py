"""A relations file names what the graphs have: a domain, a constant or a group of another name is
refused, as a statement that nobody reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.frontends.fx.graphs import Writer, verified

ROWS, CLASSES = 4, 6


def summed(rank: int = 0, ranks: int = 1, wrong: bool = False) -> dict[str, Any]:
    """A row of a table for each label, times a constant that the export lost, divided by columns
    and gathered in the group "tp"."""
    w, own = Writer(rank), 8 // ranks
    table, y = w.given("table", (CLASSES, own)), w.given("y", (ROWS,), "int64")
    x = w.call("rows", "aten.embedding.default", [table, y], (ROWS, own))
    scale = w.node("scale", "get_attr", "scale", [], (), "float32")
    x = w.call("scaled", "aten.mul.Tensor", [x, scale], (ROWS, own))
    x = w.call("total", "aten.sum.dim_IntList", [x, [1]], (ROWS,))
    if ranks > 1:
        how = "avg" if wrong else "sum"
        x = w.call("all", "_c10d_functional.all_reduce.default", [x, how, "tp"], (ROWS,))
    return w.output(x)


def verdict(folder: Path, text: str, wrong: bool = False) -> Any:
    return verified(folder, summed(), [summed(rank, 2, wrong) for rank in range(2)], text)


SAID = """
domains.y = [0, 6]
constants.scale = 3
groups.tp = [[0, 1]]
"""


@pytest.mark.parametrize(("wrong", "expected"), [(False, "proved"), (True, "refuted")])
def test_what_is_said_of_names_of_the_graphs_counts(
    tmp_path: Path, wrong: bool, expected: str
) -> None:
    result = verdict(tmp_path, SAID, wrong)
    assert result.verdict == expected, result.reason


NO_NAMES = {
    "domains.labels = [0, 6]": "'labels': expected an input of integers of the single side ('y')",
    "domains.table = [0, 6]": "domains.'table': expected an input of integers",
    "constants.scales = 3": "constants.'scales': expected a constant whose value the graphs do not "
    "have ('scale')",
    "groups.dp = [[0, 1]]": "'dp': expected a group that collectives of the ranks name ('tp')",
}


@pytest.mark.parametrize("text", NO_NAMES)
def test_what_no_graph_has_is_refused(tmp_path: Path, text: str) -> None:
    result = verdict(tmp_path, text)
    assert result.verdict == "invalid input"
    assert NO_NAMES[text] in result.reason

"""What an operator of a graph is read as is printed with the verdict, as it is of recorded steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardproof.frontends.aten.positive import LEFT_OUT
from tests.frontends.fx.graphs import Writer, verified


def logarithm(*, numbers: bool) -> dict[str, Any]:
    """The logarithm of an input, which is none where that is negative, with a number there or not."""
    w = Writer(0)
    y = w.call("y", "aten.log.default", [w.given("x", (3,))], (3,))
    if numbers:
        y = w.call("z", "aten.nan_to_num.default", [y], (3,))
    return w.output(y)


@pytest.mark.parametrize(("single", "rank"), [(True, False), (False, True), (False, False)])
def test_that_everything_is_a_number_is_printed(tmp_path: Path, single: bool, rank: bool) -> None:
    result = verified(tmp_path, logarithm(numbers=single), [logarithm(numbers=rank)])
    assert result.verdict == "proved"
    said = {a.kind for a in result.assumption_details if "nan_to_num changes nothing" in a.text}
    assert said == ({"inferred"} if single or rank else set())


def test_a_choice_of_what_may_be_no_number_is_inferred(tmp_path: Path) -> None:
    w = Writer(0)
    x = w.given("x", (3,))
    above = w.call("above", "aten.gt.Scalar", [x, 0], (3,), "bool")
    log = w.call("log", "aten.log.default", [x], (3,))
    zero = w.call("zero", "aten.zeros_like.default", [x], (3,))
    graph = w.output(w.call("y", "aten.where.self", [above, log, zero], (3,)))
    result = verified(tmp_path, graph, [graph])
    assert result.verdict == "proved", result.reason
    assert {a.kind for a in result.assumption_details if a.text == LEFT_OUT} == {"inferred"}

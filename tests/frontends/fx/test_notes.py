"""What an operator of a graph is read as is printed with the verdict, as it is of recorded steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

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
    printed = any("nan_to_num changes nothing" in text for text in result.assumptions)
    assert printed == (single or rank)

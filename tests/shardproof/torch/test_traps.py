"""Programs near what is easily misread (`benchmarks.torch.traps`), beside wrong twins."""

from __future__ import annotations

import pytest

import shardproof.torch as sp
from benchmarks.torch.ordinary.parts import Case
from benchmarks.torch.table import judged
from benchmarks.torch.traps.cases import CASES
from benchmarks.torch.traps.local import UNCLEAR
from benchmarks.torch.traps.parts import BATCH, Loss, step

#: Why what has no meaning has none.
REASONS = (
    "a view of another type",
    "Python reads the value",
    "is not lowered",
    "there before the step",
    "written together",
    "writes one tensor twice",
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_right_programs_are_proved_and_wrong_twins_refuted(case: Case) -> None:
    right = judged(case, "right", case.right, validate=True)
    assert right.verdict == "proved", right.says
    for mistake, wrong in case.wrong.items():
        twin = judged(case, mistake, wrong, validate=False)
        assert twin.verdict == "refuted", twin.says


@pytest.mark.parametrize("pair", UNCLEAR.values(), ids=UNCLEAR)
def test_what_has_no_meaning_here_is_not_proved(pair: tuple[Loss, Loss]) -> None:
    single, other = map(step, pair)
    result = sp.verify(single, other, world_size=1, batch=BATCH, executor="local", cache=False)
    assert result.verdict in ("inconclusive", "invalid input")
    assert any(words in result.reason for words in REASONS), result.reason

"""A sample of the campaign of random programs (benchmarks/random_programs), with a fixed seed: no
program that NumPy finds different is proved, and none that it finds equal is refuted."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.random_programs.judge import judge
from benchmarks.random_programs.programs import CLASSES, make
from benchmarks.random_programs.run import outcomes
from shardproof.run.mutant import verify

SEEDS = range(27, 36)


def test_verdicts_agree_with_the_judge() -> None:
    found = list(outcomes(SEEDS, mistakes=1, edits=1))
    assert [outcome for outcome in found if outcome.disagreement] == []
    labels = Counter(outcome.label for outcome in found)
    assert labels["equal"] >= 8
    assert labels["different"] >= 5
    assert labels["meaningless"] >= 1
    assert any(outcome.verdict == "proved" for outcome in found)


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(940039, id="a softmax of zeros"),
        pytest.param(950014, id="sums in parts behind many definitions"),
    ],
)
def test_programs_that_were_not_proved_once(seed: int) -> None:
    made = make(seed)
    assert made is not None
    assert verify(made.plan) == ("proved", "")


def test_rows_that_have_every_word_once_do_not_hide_the_order_of_a_table() -> None:
    """The vocabulary's shards in reverse, of a loss that no order of tokens changes."""
    wrong = make(1600108, 0)
    assert wrong is not None
    assert wrong.mistake == "w0 is divided over tp in reverse"
    assert verify(wrong.plan)[0] == "refuted"
    right = make(1600108)
    assert right is not None
    assert verify(right.plan) == ("proved", "")


def test_the_judge_tells_a_mistake_from_the_program_without() -> None:
    right, wrong = make(0), make(0, 0)
    assert right is not None
    assert wrong is not None
    assert judge(right.plan, 1, CLASSES) == ""
    assert wrong.mistake
    assert judge(wrong.plan, 1, CLASSES) != ""

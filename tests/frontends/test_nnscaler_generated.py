"""Generated plans, right ones and changed ones: no verdict that the runtime's rules deny."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from tests.frontends.plan_generator import changed, plans
from tests.frontends.plan_judge import judged

#: A fixed sample; `benchmarks/nnscaler` runs as many as one likes.
SEEDS = range(5)


@pytest.mark.parametrize("alter", [False, True], ids=["right", "changed"])
def test_no_verdict_is_wrong(alter: bool, tmp_path: Path) -> None:
    found: Counter[tuple[bool, str]] = Counter()
    for seed in SEEDS:
        made = plans(seed)
        how = changed(made, random.Random(seed)) if alter else ""
        judgement = judged(made, seed, tmp_path)
        assert not judgement.wrong, (seed, how, judgement)
        assert alter or not judgement.different, (seed, judgement)
        found[bool(judgement.different), judgement.verdict] += 1
    # The sample shows something: most are decided, and both ways where plans are changed.
    assert found[False, "proved"] >= (0 if alter else 3), found
    assert not alter or found[True, "refuted"] >= 2, found


#: Plans in which a gradient is more than one thing under one name, or arrives more than once.
GRADIENTS = {
    "read twice by one operator, and by an adapter": 51,
    "a partial sum that is read beside its total": 308,
    "sent on to the next stage and used here": 10,
}


@pytest.mark.parametrize("seed", GRADIENTS.values(), ids=GRADIENTS.keys())
def test_what_arrives_at_one_value_is_added(seed: int, tmp_path: Path) -> None:
    judgement = judged(plans(seed), seed, tmp_path)
    assert (judgement.different, judgement.verdict) == ("", "proved"), judgement

"""The fourteen real plans with a bug put in: place and repair of each, and how many tries it took."""

from __future__ import annotations

from pathlib import Path

import pytest

from partition.partition import partition
from shardproof.assume import Assumptions
from shardproof.diagnosis import Diagnosis, diagnosed
from shardproof.load import load_plan
from shardproof.rounding import without_rounding

SINGLE = "llama3_default_dp1_pp1_tp1_nm1_gbs512_ly2_h32_hi4096_sq128.pkl"
NAMES = "bugs/llama3_br{}_dp2_pp2_tp2_nm2_gbs512_ly2_h32_hi4096_sq128.pkl"

#: Bug: (operator, part of the layer, ranks, part of the repair).
EXPECTED: dict[str, tuple[str, str, tuple[int, ...], str]] = {
    "01": ("add", "layers.0", (0, 1), "an all-reduce over ranks [0, 1] in place of identity"),
    "02": ("add", "layers.0", (0, 1), "an all-reduce over ranks [0, 1] inserted after linear"),
    "03": ("add", "layers.0", (0, 1), "an all-reduce over ranks [0, 1] in place of all-gather"),
    "04": ("all_reduce", "layers.1", (2, 3), "an all-gather of dimension 2 over ranks [2, 3]"),
    "05": ("backward of mul", "layers.1.ffn_norm", (2, 3), "an all-reduce over ranks [2, 3]"),
    "06": ("all_gather", "between layers.0 and layers.1", (2, 3), "1 to 3 and 0 to 2"),
    "07": ("add", "layers.0.attention_norm", (0,), "other about 1e-05 in place of 2"),
    "08": ("pow", "layers.0.ffn_norm", (0,), "exponent 2 in place of 1"),
    "09": ("add", "layers.1.attention_norm", (0, 1), "other about 1e-05 in place of 2"),
    "10": ("add_n", "layers.1.attention_norm", (2,), "added once, not twice"),
    "11": ("backward of apply_rotary_emb", "layers.1.attention", (2,), "in the other order"),
    "12": ("div", "layers.0.attention", (0,), "in place of 4"),
    "13": ("div", "layers.0.attention", (0, 1), "in place of 4"),
    "14": ("segment 269", "layers.1.attention_norm", (0,), "called for microbatch 1 too"),
}
QUICK = ("06", "14")


@pytest.mark.parametrize(
    "bug", [b if b in QUICK else pytest.param(b, marks=pytest.mark.slow) for b in EXPECTED]
)
def test_place_and_repair_of_real_bugs(bug: str, shared_plans: Path) -> None:
    operator, layer, ranks, repair = EXPECTED[bug]
    plan = load_plan(shared_plans / SINGLE, shared_plans / NAMES.format(bug), Assumptions())
    result = without_rounding(partition(plan))
    first = diagnosed(result, None)[0]
    assert first.operator == operator
    assert layer in first.layer
    assert first.ranks == ranks
    assert repair in first.repair
    assert first.microbatches == ((1,) if bug == "14" else ())
    search = Diagnosis(result)
    assert search.run()
    assert search.tries <= 3
    assert all(c.holds for c in partition(search.state.plan).conclusions)

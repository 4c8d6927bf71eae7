"""Programs that were written before they were run (`benchmarks.torch.unseen`), beside wrong twins.

A few of them; `python -m benchmarks.torch.unseen.run` has all.
"""

from __future__ import annotations

import pytest

from benchmarks.torch.ordinary.parts import Case, Step
from benchmarks.torch.table import cases, judged, main
from benchmarks.torch.unseen import (
    attention,
    contexts,
    divided,
    heads,
    library,
    maxima,
    mixtures,
    nets,
    objectives,
    recent,
    training,
    twofold,
    vision,
    zero,
)

#: Right ones, and the mistake that stands beside each.
PROVED = [
    (attention.ALIBI, "slopes of as many heads as a rank has"),  # a table that ranks alone have
    (attention.CAPPED, "loss times ranks"),  # windows
    (heads.TIED, "gradient of the head partial"),  # entries and zeros by computed ids
    (heads.SMOOTH, "mean over own count"),  # log-probabilities added up over their classes
    (heads.DINO, "center of own rows"),  # norms of weights
    (training.COUNTED, "divided by ranks as well"),  # a reduction that multiplies first
    (training.AVERAGED, "average before the step"),  # 1 - 0.99 is 0.01
    (vision.DENOISE, "times of the first rank"),  # numbers by ids, images made larger
    (attention.RELATIVE, "table of the first heads"),
    (attention.KEYS_SHARED, "copies of keys not summed"),
    (mixtures.MIXTRAL, "gradient of the gate not summed"),
    (mixtures.CHOOSING, "outputs not summed"),
    (mixtures.DEPTHS, "gate's gradient partial"),
    (training.MUON, "each part made orthogonal"),
    (divided.STAGED, "gradients in another order"),
    (divided.SQUARE, "targets of one column"),
    (nets.ROTARY, "keys turned back"),
    (nets.PAIRS, "gradients summed"),
    (nets.LSTM, "gradients summed"),
    (nets.GRU, "gradients summed"),
    (nets.BAGS, "the last id left out"),
    (nets.CODES, "steps of another size"),
    (maxima.BY_HAND, "sum detached"),  # a gradient through a maximum
    (zero.ZERO3, "gradients summed"),  # flat shards of full parameters
    (twofold.SUPERVISED, "gathered without gradient"),  # numbers where scores were hidden
    (twofold.CRITIC, "penalty without its gradient"),  # a gradient of a gradient
    (recent.SINK, "not summed"),
    (recent.EXPERT, "gate's gradient partial"),
    (objectives.RECOMMENDED, "own weights"),  # rows times a mask of ids
    (contexts.FLASH, "unmasked"),  # a logarithm of what the single device divides by
    (library.TRANSLATED, "not reduced"),  # layers that are copies
    (library.CLASSED, "not reduced"),  # which of three projections, beside one position
    (library.TOKENS, "not reduced"),  # what is one tensor for all rows, beside theirs
    (library.HALVES, "not reduced"),  # a softmax over some of the positions that there are
]
#: Those that CI runs.
SAMPLE = {c.name for c in (attention.ALIBI, heads.TIED, training.COUNTED, nets.CODES)}


@pytest.mark.parametrize(
    ("case", "mistake"),
    [
        pytest.param(c, m, id=c.name, marks=[] if c.name in SAMPLE else pytest.mark.slow)
        for c, m in PROVED
    ],
)
def test_right_programs_are_proved_and_wrong_ones_refuted(case: Case, mistake: str) -> None:
    right = judged(case, "right", case.right, validate=True)
    assert right.verdict == "proved", right.says
    wrong = judged(case, mistake, case.wrong[mistake], validate=False)
    assert wrong.verdict == "refuted", wrong.says


def test_a_table_fails_where_a_verdict_is_not_the_expected_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    step: Step = training.COUNTED.right
    right = training.COUNTED._replace(wrong={})
    assert main(cases("", [right]), []) == 0
    assert main(cases("", [right._replace(wrong={"nothing": step})]), []) == 1
    assert "0 of 1 wrong ones refuted" in capsys.readouterr().out

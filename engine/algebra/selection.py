"""A choice of the largest entries of a row, by the attributes that tell it from other choices.

Example: ``Selection(6, groups=8, topk_groups=3)`` takes 6 of the entries of the 3 best of 8 groups.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Selection:
    """How a mixture-of-experts gate chooses: the attributes of the uninterpreted choice.

    Example: ``Selection(8, groups=8, topk_groups=4, group_score="top2")`` is the gate of
    DeepSeek-V3: of 256 experts in 8 groups, 8 of the 4 groups whose two best scores add up to most.

    ``group_score`` is how a group of experts is ranked: by its "max", or by the sum of its two
    best ("top2").
    """

    topk: int
    groups: int = 1
    topk_groups: int = 1
    group_score: str = "max"

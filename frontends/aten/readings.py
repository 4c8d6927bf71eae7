"""How a loss of labels is read: the same number for a label that is a class, in three ways."""

from __future__ import annotations

from enum import IntEnum


class Reading(IntEnum):
    """What a cross-entropy picks at the label: a score of which the maximum is taken off; a score
    as it is, and the maximum is added to the logarithm; or an entry of log-probabilities. Where
    several are picked, the last counts.

    Example: ``log(total) - (z - max z)[y]``, ``log(total) + max z - z[y]``, and ``-(z - max z -
    log(total))[y]``, where ``total`` is the sum of ``exp(z - max z)``.
    """

    SHIFTED = 0
    SCORES = 1
    LOGARITHMS = 2

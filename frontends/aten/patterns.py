"""Windows of positions that both sides of a program move over, by what they have in common."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from typing import NamedTuple


class Pattern(NamedTuple):
    """Windows without how many positions they move over: ``taps`` that are ``dilation`` apart, and
    results that are ``stride`` apart; ``dim``: which of the dimensions that windows move along.

    Example: a convolution of 3 x 3 taps has ``Pattern(0, 3, 1, 1)`` along the height of images,
    whatever that is.
    """

    dim: int
    taps: int
    stride: int
    dilation: int


class Over(NamedTuple):
    """A pattern, over how many positions it moves, and how many results it has there: a rank with
    edges of its neighbours may have as many positions as the single device, which pads them.

    Example: ``Over(Pattern(0, 3, 1, 1), 16, 16)``, padded.
    """

    pattern: Pattern
    positions: int
    results: int


@dataclass(slots=True)
class Windows:
    """The windows of a program: those ``seen``, and the patterns that are read by slices, since
    ranks divide the positions of those.

    Example: of a convolution, ``{Over(Pattern(0, 3, 1, 1), 16, 16)}``, and none.
    """

    seen: set[Over] = field(default_factory=set)
    sliced: Set[Pattern] = frozenset()


def divided(single: Iterable[Over], ranks: Iterable[Over]) -> frozenset[Pattern]:
    """The patterns of windows that both sides have, over other numbers of positions, or with other
    numbers of results.

    Example: of three taps over 16 positions, and over 6 on each rank, the pattern of three taps;
    none where ranks divide the batch alone.
    """
    own, other = set(single), set(ranks)
    common = {over.pattern for over in own} & {over.pattern for over in other}
    return frozenset(o.pattern for o in own ^ other if o.pattern in common)

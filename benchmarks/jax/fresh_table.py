"""The steps of `fresh` and `fresh_ranks`, beside wrong twins, written before any was run."""

from __future__ import annotations

from collections.abc import Callable

import fresh as placed
import fresh_ranks as ranks
from shapes import Case, beside_twins

#: Steps, and what is wrong in each of their twins.
STEPS: dict[Callable[[str], Case], tuple[str, ...]] = {
    placed.vision: ("groups", "momentum"),
    placed.decoder: ("cap", "z-loss"),
    placed.pairs: ("one way", "cut"),
    placed.batches: ("momentum", "count"),
    ranks.context: ("begin", "own gradients"),
    ranks.stages: ("turned", "filling counts"),
    ranks.switch: ("unweighted", "own balance"),
    ranks.flat: ("sum over rounds", "count"),
}
RIGHT, WRONG = beside_twins(STEPS)

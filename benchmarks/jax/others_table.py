"""The steps of `others` and `others_ranks`, beside wrong twins, written before any was run."""

from __future__ import annotations

from collections.abc import Callable

import others as placed
import others_ranks as ranks
from shapes import Case, beside_twins

#: Steps, and what is wrong in each of their twins.
STEPS: dict[Callable[[str], Case], tuple[str, ...]] = {
    placed.modern: ("activation", "shift"),
    placed.logical: ("factor", "pad"),
    placed.mixer: ("pool", "smooth"),
    placed.adapters: ("scale", "not frozen"),
    placed.ensemble: ("three of four",),
    placed.distilled: ("rate", "heat"),
    ranks.megatron: ("no sum of gradients", "bias summed"),
    ranks.varying: ("count", "axis"),
    ranks.layered: ("own norm", "sum of gradients"),
    ranks.causal_ring: ("not rescaled", "places"),
    ranks.capacity: ("places from one", "not weighted"),
    ranks.policy: ("own mean", "sum"),
    ranks.divided: ("no z-loss", "all counted"),
    ranks.messages: ("own degree",),
}
RIGHT, WRONG = beside_twins(STEPS)

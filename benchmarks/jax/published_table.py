"""The steps of `published` and `published_ranks`, beside what is wrong in their twins."""

from __future__ import annotations

import published as layers
import published_ranks as ranks
from shapes import beside_twins

RIGHT, WRONG = beside_twins(
    {
        layers.mixtral: ("all", "balance"),
        layers.nano: ("decay", "b2"),
        layers.ratings: ("pooling", "sum"),
        layers.diffusion: ("time", "average"),
        layers.resnet: ("pool", "decay"),
        layers.mistral: ("window", "z"),
        ranks.zero: ("norm", "sum"),
        ranks.sequence: ("norm", "count"),
        ranks.ticks: ("offset", "stage"),
        ranks.ulysses: ("positions", "sum"),
        ranks.gathered: ("signs", "bias"),
        ranks.masked_words: ("bound", "weights"),
        ranks.preferences: ("mean", "sign"),
    }
)

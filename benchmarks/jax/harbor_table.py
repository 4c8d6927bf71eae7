"""The steps of `harbor` and its other files, beside what is wrong in their twins."""

from __future__ import annotations

import harbor as layers
import harbor_ranks as ranks
import harbor_training as training
from shapes import beside_twins

RIGHT, WRONG = beside_twins(
    {
        ranks.megatron: ("attention", "bias"),
        training.gathered_for_use: ("sum", "neighbour"),
        ranks.switch: ("gate", "back"),
        ranks.ring: ("owner", "old"),
        ranks.gpipe: ("place", "ring"),
        ranks.vocabulary: ("top", "spread"),
        ranks.context: ("offset", "mask"),
        training.accumulated: ("twice", "bias"),
        ranks.halo: ("swapped", "second"),
        ranks.gru: ("order", "own"),
        training.cube: ("data", "scale"),
        layers.llama: ("offset", "repeat"),
        layers.maxtext: ("clip", "norm"),
        training.muon: ("rounds", "ahead"),
        training.dropped: ("rate", "second"),
        layers.t5: ("far", "bias"),
        layers.mamba: ("join", "gate"),
        layers.gemma: ("cap", "window"),
        layers.latent: ("place", "scale"),
        training.distilled: ("sides", "square"),
        layers.decoding: ("place", "known"),
    }
)

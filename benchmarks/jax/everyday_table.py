"""The steps of `everyday` and `everyday_ranks`, beside wrong twins, written before any was run."""

from __future__ import annotations

from collections.abc import Callable

import everyday as placed
import everyday_ranks as ranks
from shapes import Case, beside_twins

#: Steps, and what is wrong in each of their twins.
STEPS: dict[Callable[[str], Case], tuple[str, ...]] = {
    placed.gpt: ("scale", "residual"),
    placed.llama: ("groups", "theta"),
    placed.vision: ("token", "no last norm"),
    placed.smoothing: ("alpha", "every position"),
    placed.adamw: ("schedule", "decay"),
    placed.precision: ("scaled", "upwards"),
    placed.inference: ("no mask", "position"),
    ranks.experts: ("not normalised", "other experts"),
    ranks.contrast: ("labels", "no gradient of others"),
    ranks.pipeline: ("direction", "place"),
    ranks.sequences: ("mean", "norms"),
    ranks.accumulation: ("last", "sum"),
}
RIGHT, WRONG = beside_twins(STEPS)

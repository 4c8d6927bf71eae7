"""The steps of `notebook` and `notebook_ranks`, beside wrong twins, written before any was run."""

from __future__ import annotations

from collections.abc import Callable

import notebook as placed
import notebook_ranks as ranks
from shapes import Case, beside_twins

#: Steps, and what is wrong in each of their twins.
STEPS: dict[Callable[[str], Case], tuple[str, ...]] = {
    ranks.momentum: ("sum", "one left out"),
    ranks.rotary: ("mean", "positions"),
    ranks.stages: ("labels", "not divided"),
    ranks.dispatch: ("not weighted", "sum"),
    ranks.divided: ("bound", "no log", "label", "class"),
    ranks.labels: ("shifted", "half"),
    placed.patches: ("columns", "sum"),
    placed.mixer: ("no decay", "norm of tokens"),
    placed.small_gpt: ("sees the next", "sum over batch"),
}
RIGHT, WRONG = beside_twins(STEPS)

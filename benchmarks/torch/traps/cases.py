"""All programs near traps."""

from __future__ import annotations

from benchmarks.torch.ordinary.parts import Case
from benchmarks.torch.traps import local

CASES: list[Case] = [trap.case for trap in local.TRAPS]

"""All training scripts."""

from __future__ import annotations

from benchmarks.torch.ordinary.parts import Case
from benchmarks.torch.scripts import divided, replicas

CASES: list[Case] = [*replicas.CASES, *divided.CASES]

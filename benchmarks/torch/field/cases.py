"""All bugs."""

from __future__ import annotations

from benchmarks.torch.field import models, replicas
from benchmarks.torch.field.parts import Bug

BUGS: list[Bug] = [*replicas.BUGS, *models.BUGS]

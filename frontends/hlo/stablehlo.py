"""StableHLO text, as JAX's ``lower().as_text()`` prints it, in HLO's words."""

from __future__ import annotations

from shardproof.frontends.errors import UnreadablePlan
from shardproof.frontends.hlo.module import Module


def parse(text: str) -> Module:
    """The module."""
    raise UnreadablePlan("StableHLO text is not read yet: use as_text(dialect='hlo')")

"""Blocks of what the registry has beyond `plan_families` and `plan_blocks`."""

from __future__ import annotations

from tests.frontends.plan_blocks import Blocks


class Wider(Blocks):
    """A model while it grows: the blocks here instead of the odd ones."""

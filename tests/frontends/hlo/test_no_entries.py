"""Tensors without entries: nothing of them is left."""

from __future__ import annotations

from shardproof.frontends.hlo import inline, text
from tests.frontends.hlo.test_lower import agree


def test_what_has_no_entries_is_left_out() -> None:
    """As ``jnp.pad`` by edges, which adds none at one end."""
    body = (
        "ENTRY e {\n  x = f32[3,4] parameter(0)\n  c = f32[3,0] slice(x), slice={[0:3], [0:0]}\n"
        "  d = f32[3,0] exponential(c)\n  z = f32[] constant(0)\n"
        "  b = f32[3,0] broadcast(z), dimensions={}\n"
        "  ROOT y = f32[3,4] concatenate(b, x, d), dimensions={1}\n}\n"
    )
    agree(inline.graph(text.parse("HloModule m\n\n" + body)))

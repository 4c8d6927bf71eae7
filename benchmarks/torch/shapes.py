"""Shapes of models at size, and the meshes that they are cut for."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Shape:
    """``sequence``: positions of a sample; one sample for every data-parallel rank."""

    width: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    sequence: int
    tp: int
    dp: int = 1
    adamw: bool = False


SHAPES = {
    "tiny": Shape(64, 128, 2, 8, 4, 256, 32, 4, 8),
    "8B": Shape(4096, 14336, 32, 32, 8, 128256, 8192, 8, adamw=True),
    "70B": Shape(8192, 28672, 80, 64, 8, 128256, 8192, 8, 8),
    "405B": Shape(16384, 53248, 126, 128, 8, 128256, 8192, 8, 16),
}


def of(text: str) -> Shape:
    """The shape of "NAME LAYERS" ("NAME": with all of its layers)."""
    name, _, layers = text.partition(" ")
    return replace(SHAPES[name], layers=int(layers)) if layers else SHAPES[name]

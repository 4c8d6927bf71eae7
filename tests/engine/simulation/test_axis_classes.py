"""Classes of axes that are split and made one again, layer by layer."""

from __future__ import annotations

from shardproof.engine.simulation.axis_classes import Axes, Factor


def test_a_class_that_many_layers_split_is_resolved() -> None:
    """Heads of 64 features beside 64 of 128: each layer splits the class that the last one left."""
    axes = Axes()
    (whole,) = axes.fresh(128)
    part = whole.axis
    for _ in range(2000):
        assert axes.split(part, 64)
        halves, features = axes.resolve((Factor(part, 128),))
        assert (halves.size, features.size) == (2, 64)
        (other,) = axes.fresh(128)
        axes.union(features.axis, other.axis)
        part = features.axis
    first, last = axes.resolve((whole,))
    assert (first.size, last.size, last.axis) == (2, 64, axes.find(part))

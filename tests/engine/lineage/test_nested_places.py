"""Places inside places leave what both leave, for whoever counts them: algebra and checker."""

from __future__ import annotations

from fractions import Fraction

import pytest

from shardproof.checker.values.views import ViewChecker
from shardproof.engine.lineage.lineage import Addend, Place, View
from shardproof.engine.lineage.places import left


@pytest.mark.parametrize(
    "places",
    [
        (Place(0, 0, 4, 8), Place(0, 0, 16, 48)),
        (Place(0, 4, 4, 8), Place(0, 16, 32, 48)),
        (Place(0, 1, 1, 2), Place(0, 2, 4, 8), Place(0, 8, 24, 48)),
    ],
    ids=["a half of a third", "a half of two thirds", "three"],
)
def test_what_nested_places_leave(places: tuple[Place, ...]) -> None:
    kept = [i for i in range(48) if all(p.start <= i % p.extent < p.start + p.size for p in places)]
    assert left((48,), places) == (len(kept),)
    addend = Addend(Fraction(1), 0, View(((),)), (), places)
    assert ViewChecker.left(addend, (48,)) == [len(kept)]

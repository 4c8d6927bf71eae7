"""Places: views that lie side by side in one tensor."""

from __future__ import annotations

import pytest

from shardproof.checker.values.views import ViewChecker
from shardproof.engine.lineage.lineage import Layout, Place, Term
from shardproof.engine.lineage.places import left

#: Places of a dimension of 2,048, innermost first, and what they leave: the first halves of heads
#: of 128 in the first 1,536 columns are 12 times 64.
CASES = [
    ([], 2048),
    ([Place(0, 64, 64, 128)], 1024),
    ([Place(0, 0, 1536, 2048)], 1536),
    ([Place(0, 0, 64, 128), Place(0, 0, 1536, 2048)], 768),
    ([Place(0, 0, 64, 128), Place(0, 1536, 256, 2048)], 128),
]


@pytest.mark.parametrize(("places", "expected"), CASES)
def test_places_inside_one_another_leave_their_shares(places: list[Place], expected: int) -> None:
    assert left((2048,), places) == (expected,)
    assert ViewChecker.left(Term(1, 0, Layout(((),)), (), tuple(places)), (2048,)) == [expected]  # type: ignore[arg-type]

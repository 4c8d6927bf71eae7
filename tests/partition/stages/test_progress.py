"""How far a partition is: counts that only grow, up to their total."""

from __future__ import annotations

from shardproof.partition.stages import partition as stages
from tests.shardproof.faces import tiny


def test_counts_grow_to_their_total() -> None:
    told: list[tuple[int, int]] = []
    found = stages.partition(tiny(layers=2), tell=lambda done, total: told.append((done, total)))
    done, totals = [d for d, _ in told], {t for _, t in told}
    assert len(done) > 4
    assert done == sorted(done)
    assert totals == {2 * len(found.stages)} == {done[-1]}

"""What cannot be multiplied out, against multiplying it out."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

from shardproof.partition.inference.closed import Closed
from shardproof.partition.inference.match import Matcher
from shardproof.partition.inference.substitution import TooLarge
from shardproof.partition.stages.partition import partition
from tests.faults.plans import attrs, edit_op, llama


def test_what_is_closed_has_no_expansion() -> None:
    result = partition(edit_op(llama(), "rms_norm", attrs(eps=Fraction(1, 2))))
    matcher = Matcher(result.nodes, result.reference_size, set())
    closed = Closed(result.nodes, result.reference_size)
    seen: Counter[tuple[bool, bool]] = Counter()
    for number in range(result.reference_size, len(result.nodes)):
        try:
            matcher._sum(number, frozenset(), 0)
            expands = True
        except TooLarge:
            expands = False
        seen[number in closed, expands] += 1
    assert not seen[True, True]
    assert seen[True, False]
    assert seen[False, True]

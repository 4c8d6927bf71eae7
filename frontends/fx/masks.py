"""Masks of random operators: named inputs, of which the ranks hold their parts."""

from __future__ import annotations

from collections.abc import Sequence

from shardproof.engine.algebra.affine import affine
from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.assumption import Assumption
from shardproof.engine.plan.ir import Shard
from shardproof.frontends.fx import place
from shardproof.frontends.fx.place import Box, Shape


def mask(number: int, box: Box, shape: Shape, rank: int) -> Shard:
    """The batch input from which a rank reads its part of a random operator's mask.

    Example: rank 1's mask [6, 6] of random operator 0, whose mask on the single side is [6, 12], is
    the part of "mask of random operator 0" that begins at (0, 6).
    """
    return Shard(
        f"mask of random operator {number}",
        box.full,
        shape,
        tuple(affine(n) for n in box.starts[rank]),
        trainable=False,
        kind="batch",
    )


class Masks:
    """Where masks lie: the k-th random operator of each rank draws its part of that of the single
    side's k-th.

    Example: a dropout of [6, 12] on the single side, and of [6, 6] on each of two ranks: ``box(0,
    (6, 6))`` begins at (0, 0) and at (0, 6).
    """

    def __init__(self, full: Sequence[Shape], ranks: int) -> None:
        self.full = full
        self.ranks = ranks
        self.boxes: dict[int, tuple[Box, Shape]] = {}

    def box(self, number: int, part: Shape) -> Box:
        """Where the ranks' parts of a mask lie in the single side's; raises `InvalidInput` if that
        is open."""
        if number >= len(self.full):
            return place.everywhere("", part, self.ranks)
        try:
            box, _ = place.inferred("mask", "", self.full[number], part, self.ranks)
        except InvalidInput as error:
            raise InvalidInput(error.message, f"random operator {number}") from None
        self.boxes[number] = box, part
        return box

    def check(self, counts: Sequence[int]) -> None:
        """Raise `InvalidInput` unless every rank has as many random operators as the single
        side."""
        for rank, count in enumerate(counts):
            if count != len(self.full):
                raise InvalidInput(
                    f"{count} random operators, the single side has {len(self.full)}",
                    f"rank {rank}",
                )

    def assumed(self) -> list[Assumption]:
        """That both sides drop the same elements: an assumption for each random operator."""
        return [
            Assumption(
                "inferred",
                "random operators",
                "",
                f"random operator {number} drops the same elements on both sides: its mask "
                f"{place.words(box, part)}",
            )
            for number, (box, part) in sorted(self.boxes.items())
        ]

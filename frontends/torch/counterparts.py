"""What ranks have and the single side has not."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.torch.families import Compared, Families

#: A kind and a name.
Row: TypeAlias = tuple[str, str]

#: What the single side has to have by the same name, if ranks have it.
NAMED = ("state", "output")


def none_alone(
    single: Collection[Row],
    parallel: Mapping[Row, Sequence[tuple[int, Compared]]],
    families: Families,
) -> None:
    """Refuse a state or an output that the single side does not have, whatever it holds; raises
    `InvalidInput`.  ``parallel``: by its row, the programs that have it.

    Example: of SGD with a momentum beside SGD without, the buffer of the momentum, which is the
    gradient itself in the first step.
    """
    for row, parts in parallel.items():
        if row[0] in NAMED and row not in single:
            name = families.families[parts[0][0]].program.name
            raise InvalidInput(
                f"{name} has the {row[0]} {row[1]}, the single side has none of that name"
            )

"""What a report says is wrong with a plan, or worth knowing beside its verdict."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """Something wrong with a plan, or beside its verdict, with everything a report needs."""

    kind: str
    message: str
    operator: str = ""
    layer: str = ""
    source: str = ""
    ranks: tuple[int, ...] = ()
    microbatches: tuple[int, ...] = ()
    expected: str = ""
    actual: str = ""

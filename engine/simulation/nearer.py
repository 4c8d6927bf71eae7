"""Numbers of a program beside which others are rounded away, made smaller.

``-1e30 + log(4)`` is -1e30 in double precision, so a row of scores of which all are hidden by such
a number is no mean over the reals' four positions.  A difference that both sides have with 1e30,
and not with 300, is rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Final

from shardproof.engine.plan.ir import Attr
from shardproof.engine.schedule.instances import Unrolled

#: Magnitudes from which on a number is as good as infinite where a program writes it.
LARGE: Final = 10**8
#: What they are made: beside it fourteen decimals are left in double precision, and its exponential
#: and that of minus it are numbers, which are nothing beside 1 or all.
NEARER: Final = Fraction(300)


def nearer(unrolled: Unrolled) -> Unrolled | None:
    """A side with smaller numbers where its own are as good as infinite; None: there are none.

    Example: of ``mul`` by -1e30, by -300.
    """
    smaller = [_smaller(instance.attrs) for instance in unrolled.instances]
    if not any(smaller):
        return None
    pairs = zip(unrolled.instances, smaller, strict=True)
    made = [one._replace(attrs={**one.attrs, **attrs}) for one, attrs in pairs]
    return replace(unrolled, instances=made)


def _smaller(attrs: Mapping[str, Attr]) -> dict[str, Fraction]:
    """What is large of an operator's numbers, made smaller."""
    return {
        name: NEARER if value > 0 else -NEARER
        for name, value in attrs.items()
        if isinstance(value, Fraction) and abs(value) >= LARGE
    }

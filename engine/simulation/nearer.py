"""Numbers of a program beside which others are rounded away, made smaller.

``-1e30 + log(4)`` is -1e30 in double precision, so a row of scores of which all are hidden by such
a number is no mean over the reals' four positions.  A difference that both sides have with 1e30,
and not with a few hundred, is rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Final

from shardproof.engine.plan.ir import Attr
from shardproof.engine.schedule.instances import Unrolled

#: Magnitudes from which on a number is as good as infinite where a program writes it.
LARGE: Final = 10**8
#: What they are made lies from here on, below twice that: beside it thirteen decimals are left in
#: double precision, and its exponential and that of minus it are numbers, nothing beside 1 or all.
#: No program writes it: one that has 300 for 1e9 differs from it.
NEARER: Final = Fraction(2113, 7)


def nearer(*sides: Unrolled) -> tuple[Unrolled, ...]:
    """Sides with smaller numbers where their own are as good as infinite, unlike ones for unlike
    ones; empty: there are none.

    Example: of ``mul`` by -1e30 and by 1e38, by -301.9 and by 452.8.
    """
    large = sorted({abs(x) for side in sides for i in side.instances for _, x in _large(i.attrs)})
    smaller = {x: NEARER + NEARER * n / len(large) for n, x in enumerate(large)}
    return tuple(_with(side, smaller) for side in sides) if large else ()


def _with(side: Unrolled, smaller: Mapping[Fraction, Fraction]) -> Unrolled:
    instances = []
    for instance in side.instances:
        made = {name: smaller[abs(x)] * (1 if x > 0 else -1) for name, x in _large(instance.attrs)}
        instances.append(instance._replace(attrs={**instance.attrs, **made}) if made else instance)
    return replace(side, instances=instances)


def _large(attrs: Mapping[str, Attr]) -> Iterator[tuple[str, Fraction]]:
    """An operator's numbers that are as good as infinite, by their names."""
    for name, value in attrs.items():
        if isinstance(value, Fraction) and abs(value) >= LARGE:
            yield name, value

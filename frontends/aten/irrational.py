"""Factors that are roots of fractions, each read as one exact number.

``x / math.sqrt(8)``, ``x * 8**-0.5`` and the scale of attention mean one real number; in floating
point they are three, which differ in the last digit.  So what is as near to a root as rounding
leaves it is read as that root, in one way: a fraction times the root of a whole number that no
square divides, of which 16 decimals are taken.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from math import isqrt
from typing import Final

#: The largest numerator and denominator of a fraction whose roots are recognised.
MOST: Final = 1 << 17
#: How far the square of a factor may be from the fraction, relatively: a few units in the last
#: place of a double.
ROUNDING: Final = Fraction(1, 1 << 49)
#: Factors with smaller denominators are meant as they are.
SHORT: Final = 10**9
#: Decimals of a root.
_DECIMALS: Final = 10**16


@lru_cache(maxsize=4096)
def rooted(factor: Fraction) -> Fraction:
    """A factor, or where it is a root of a fraction but for rounding, the number that stands for
    that root.

    Example: 0.35355339059327373, the double next to 1 / sqrt(8), is 14142135623730950 / 10**16 / 4,
    and so is 1 / 2.8284271247461903; 0.3 is itself.
    """
    if factor.denominator < SHORT or not factor:
        return factor
    near = (factor * factor).limit_denominator(MOST)
    if not 0 < near.numerator <= MOST or abs(factor * factor / near - 1) > ROUNDING:
        return factor
    square, rest = _apart(near.numerator * near.denominator)
    root = Fraction(isqrt(rest * _DECIMALS**2), _DECIMALS)
    exact = Fraction(square, near.denominator) * root
    return exact if factor > 0 else -exact


def _apart(number: int) -> tuple[int, int]:
    """``a`` and ``b`` with number = a a b, where no square divides b.

    Example: 72 is 6 * 6 * 2.
    """
    square, rest, divisor = 1, number, 2
    while divisor * divisor <= rest:
        while rest % (divisor * divisor) == 0:
            rest //= divisor * divisor
            square *= divisor
        divisor += 1
    return square, rest

"""Factors that are roots of fractions, or quotients, each read as one exact number.

``x / math.sqrt(8)``, ``x * 8**-0.5`` and the scale of attention mean one real number; in floating
point they are three, which differ in the last digit.  So what is as near to a root as rounding
leaves it is read as that root, in one way: a fraction times the root of a whole number that no
square divides, of which 16 decimals are taken.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from math import isqrt, ulp
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
#: Denominators of decimals that have many digits, and bounds of those of quotients.
_LONG: Final = 10**13
_DENOMINATORS: Final = (1 << 17, 1 << 24, 1 << 31)
_NUMERATOR: Final = 1 << 10
#: Numbers of which quotients lie so far apart that rounding takes none for another one.
_SMALL: Final = 1 << 12


@lru_cache(maxsize=4096)
def quotient(number: float) -> Fraction:
    """A finite number by its shortest decimal, if that has few digits; else a quotient of numbers
    below 2**17, or of one below 2**10 by one below 2**31, that is rounded to it, if there is one;
    else a quotient of numbers up to 2**12 that is two units in the last place from it.

    Example: 0.008333333333333333, which is what ``0.1 / 12`` gives, is 1/120; 0.10909090909090911,
    which is what ``0.1 * 12 / 11`` gives, is 6/55; 0.7071067811865476 is that decimal.
    """
    exact = Fraction(repr(number))
    if exact.denominator < _LONG:
        return exact
    near = (Fraction(number).limit_denominator(most) for most in _DENOMINATORS)
    simple = (q for q in near if q.denominator < _DENOMINATORS[0] or abs(q.numerator) < _NUMERATOR)
    rounded = next((q for q in simple if float(q) == number), None)
    return rounded or _twice_rounded(number) or exact


def _twice_rounded(number: float) -> Fraction | None:
    """The quotient of small numbers beside which rounding in two operators leaves a number."""
    q = Fraction(number).limit_denominator(_SMALL)
    small = 0 < abs(q.numerator) <= _SMALL
    return q if small and abs(q - Fraction(number)) <= 2 * Fraction(ulp(number)) else None


@lru_cache(maxsize=4096)
def rooted(factor: Fraction) -> Fraction:
    """A factor, or where it is a root of a fraction but for rounding, the number that stands for
    that root.

    Example: 0.35355339059327373, the double next to 1 / sqrt(8), is 14142135623730950 / 10**16 / 4,
    and so is 1 / 2.8284271247461903; 0.3 is itself.
    """
    near = squared(factor)
    if near is None:
        return factor
    return root(near) if factor > 0 else -root(near)


@lru_cache(maxsize=4096)
def squared(factor: Fraction) -> Fraction | None:
    """The fraction of which a factor is a root but for rounding; None: of none, or it is a short
    number.

    Example: of 0.35355339059327373 it is 1/8, of 0.5 and of 0.3 None.
    """
    if factor.denominator < SHORT or not factor:
        return None
    near = (factor * factor).limit_denominator(MOST)
    if not 0 < near.numerator <= MOST or abs(factor * factor / near - 1) > ROUNDING:
        return None
    return near


def root(of: Fraction) -> Fraction:
    """The number that stands for the root of a fraction that is not negative.

    Example: of 1/4 it is 1/2, of 2 it is 14142135623730950 / 10**16.
    """
    square, rest = _apart(of.numerator * of.denominator)
    return Fraction(square, of.denominator) * Fraction(isqrt(rest * _DECIMALS**2), _DECIMALS)


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

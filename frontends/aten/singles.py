"""Floats as the numbers that they are rounded from.

``jnp.mean`` of 24 numbers divides by 24, and its gradient multiplies by the constant 0.0416666679:
both are 1/24.  So a literal that rounding leaves of a short decimal or of a simple quotient is read
as that.  It changes a number by less than half a unit in the last place, and no two floats are read
as one number, since each number is rounded to its own float.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import Final

import numpy as np

from shardproof.frontends.aten.irrational import quotient

#: The largest power of ten that a short decimal is a fraction of, and how many of its digits count.
_LONGEST, _DIGITS = 10**12, 6
#: Bounds of a simple quotient: of both numbers, or of the one above and the one below.
_BOTH: Final = 1 << 11
_ABOVE, _BELOW = 1 << 6, 1 << 17


@lru_cache(maxsize=4096)
def meant(number: float) -> Fraction:
    """A finite float as the number that is rounded to it: a decimal of up to six digits, or a
    quotient of numbers below 2**11, or of one below 2**6 by one below 2**17; whole numbers, and
    whatever is rounded from no such number, as they are. A double that is no float32 is read as
    `quotient` says.

    Example: 0.0416666679084301 is 1/24, and 0.10000000149011612 is 1/10; 0.7071067690849304 is
    itself.
    """
    exact = Fraction(number)
    if exact.denominator == 1:
        return exact
    if np.float32(number) != number:
        return quotient(number)
    decimal = Fraction(str(np.float32(number)))
    digits = str(np.format_float_scientific(np.float32(number), unique=True)).split("e")[0]
    if len(digits.strip("-").replace(".", "")) <= _DIGITS and decimal.denominator <= _LONGEST:
        return decimal
    for most in (_BOTH, _BELOW):
        near = exact.limit_denominator(most)
        above = _BOTH if near.denominator < _BOTH else _ABOVE
        if abs(near.numerator) < above and np.float32(float(near)) == number:
            return near
    return exact

"""The logarithm of the gamma function, its derivatives, and the inverse of the error function, in
double precision.

Digamma and trigamma are taken to arguments of at least `LARGE` by their recurrences (Abramowitz and
Stegun, Handbook of Mathematical Functions, 6.3.5 and 6.4.6), and there by their asymptotic series
(6.3.18 and 6.4.12); to the right of zero by reflection (6.3.7 and 6.4.7).
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any, Final

import numpy as np

#: Where the series have 16 digits.
LARGE: Final = 12
#: Bernoulli's numbers of even index, from the second on.
BERNOULLI: Final = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)
_NORMAL: Final = NormalDist()


def lgamma(x: float) -> float:
    """log |gamma(x)|; infinite at zero and negative whole numbers.

    Example: of 5 it is log(24).
    """
    if not math.isfinite(x):
        return math.nan if math.isnan(x) else math.inf
    return math.inf if x <= 0 and x == math.floor(x) else math.lgamma(x)


def digamma(x: float) -> float:
    """The derivative of `lgamma`.

    Example: of 1 it is about -0.5772.
    """
    if x <= 0:
        return math.nan if x == math.floor(x) else digamma(1 - x) - math.pi / math.tan(math.pi * x)
    below = 0.0
    while x < LARGE:
        below += 1 / x
        x += 1
    series = sum(b / (2 * k * x ** (2 * k)) for k, b in enumerate(BERNOULLI, 1))
    return math.log(x) - 1 / (2 * x) - series - below


def trigamma(x: float) -> float:
    """The derivative of `digamma`.

    Example: of 1 it is pi squared over 6.
    """
    if x <= 0:
        if x == math.floor(x):
            return math.inf
        return (math.pi / math.sin(math.pi * x)) ** 2 - trigamma(1 - x)
    below = 0.0
    while x < LARGE:
        below += 1 / (x * x)
        x += 1
    series = sum(b / x ** (2 * k + 1) for k, b in enumerate(BERNOULLI, 1))
    return 1 / x + 1 / (2 * x * x) + series + below


def erfinv(x: float) -> float:
    """Where the error function has a value between -1 and 1.

    Example: of erf(0.5) it is 0.5.
    """
    if abs(x) >= 1:
        return math.copysign(math.inf, x) if abs(x) == 1 else math.nan
    return _NORMAL.inv_cdf((x + 1) / 2) / math.sqrt(2) if x else 0.0


def each(function: Any) -> Any:
    """A function of one number, of every entry of an array.

    Example: ``each(lgamma)([1, 2])`` is [0, 0].
    """
    return np.vectorize(function, otypes=[float])

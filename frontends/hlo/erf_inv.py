"""The inverse of the error function, as XLA writes it out: numbers of a normal distribution.

``jax.random.normal`` is the square root of 2 times the inverse of random numbers between -1 and 1.
XLA computes it by two polynomials of ``w = -log(1 - x x)`` (Giles, Approximating the erfinv
function, GPU Computing Gems, 2010), one for w below 5, in single precision.  The same operators are
written here where StableHLO names the function, so that both sides mean one thing.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from shardproof.frontends.hlo.module import Array

#: Coefficients, the highest power first, where w is below 5, and where it is not.
COEFFICIENTS: Final = (
    (2.81022636e-08, -0.000200214257),
    (3.43273939e-07, 0.000100950558),
    (-3.5233877e-06, 0.00134934322),
    (-4.39150654e-06, -0.00367342844),
    (0.00021858087, 0.00573950773),
    (-0.00125372503, -0.0076224613),
    (-0.00417768164, 0.00943887047),
    (0.246640727, 1.00167406),
    (1.50140941, 2.83297682),
)
#: Where the second polynomial begins, and what is taken off w and off its root.
BOUND, CENTRES = 5, (2.5, 3)


def value(x: Array) -> Array:
    """The numbers of it, by the same polynomials.

    Example: of 0.5 it is 0.4769363.
    """
    numbers = np.asarray(x, dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        w = -np.log1p(-numbers * numbers)
        low = w < BOUND
        at = np.where(low, w - CENTRES[0], np.sqrt(w) - CENTRES[1])
        total = np.zeros_like(at)
        for below, above in COEFFICIENTS:
            total = np.where(low, np.float32(below), np.float32(above)) + total * at
        inside = np.abs(numbers) == 1
        return np.where(inside, numbers * np.inf, total * numbers).astype(x.dtype)

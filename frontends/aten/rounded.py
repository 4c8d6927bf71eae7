"""Numbers that PyTorch itself rounds to single precision, read as the decimals that they are of.

``F.rms_norm(x, shape, weight, 1e-5)`` adds 9.999999747378752e-06, which is 1e-5 in single
precision, while a norm by hand adds 1e-5, in another place of another program.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shardproof.frontends.aten.lowering import Lowering

#: Digits of the decimals that are recognised.
_DIGITS = 6


def decimal(lo: Lowering, number: Any) -> Any:
    """A float that is a short decimal in single precision as that decimal, which is printed;
    anything else as it is.

    Example: of 9.999999747378752e-06 it is 1e-05, of 0.75, of 3 and of a tensor what they are.
    """
    if not isinstance(number, float):
        return number
    short = float(f"{number:.{_DIGITS - 1}e}")
    if short == number or not np.isfinite(np.float32(short)) or float(np.float32(short)) != number:
        return number
    lo.notes.setdefault(f"{number!r} is read as {short!r}, which it is in single precision")
    return short

"""Terms at one random point of a finite field: symbols and unknown functions get random values,
sums, products and inverses are exact.
"""

from __future__ import annotations

from hashlib import blake2b

from shardproof.engine.algebra.terms import Term
from shardproof.engine.algebra.walks import folded

#: A Mersenne prime.
PRIME = 2**61 - 1


class Point:
    """A random point, the same for all terms; ``inverses``: ``inv`` is 1 over its argument, and no
    unknown function.

    Example: at every point ``x * y`` and ``y * x`` are one number; ``x * inv(x)`` is 1 at those
    with inverses.
    """

    def __init__(self, inverses: bool = True) -> None:
        self.inverses = inverses
        self._values: dict[Term, int] = {}

    def value(self, root: Term) -> int:
        """The value of a term there.

        Example: of ``2 * x`` twice that of ``x``, modulo `PRIME`.
        """
        return folded(root, self._values, self._one)

    def _one(self, term: Term) -> int:
        args = [self._values[t] for t in term.args]
        if term.kind == "const":
            assert term.value is not None
            return term.value.numerator * pow(term.value.denominator, -1, PRIME) % PRIME
        if term.kind == "add":
            return sum(args) % PRIME
        if term.kind == "mul":
            result = 1
            for arg in args:
                result = result * arg % PRIME
            return result
        if term.name == "inv" and self.inverses and args[0]:
            return pow(args[0], -1, PRIME)
        text = repr((term.kind, term.name, args)).encode()
        return int.from_bytes(blake2b(text, digest_size=16).digest()) % PRIME

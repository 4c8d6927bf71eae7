"""Whether an obligation holds at one random point of a finite field.

Symbols and unknown functions get random values; sums, products and inverses are exact.  What does
not hold here does not follow from arithmetic, and no solver has to be asked whether it does.  That
it holds proves nothing.
"""

from __future__ import annotations

from hashlib import blake2b

from shardproof.engine.algebra.terms import Term
from shardproof.engine.obligations.obligation import Obligation

#: A Mersenne prime.
PRIME = 2**61 - 1


def holds(obligation: Obligation) -> bool:
    """Whether both sides of every goal have the same value at a random point.

    Example: ``v0 * v4 == v4 * v0`` holds; that half of a sum is the sum does not.
    """
    values: dict[Term, int] = {}
    return all(_value(a, values) == _value(b, values) for a, b in obligation.goals)


def _value(root: Term, values: dict[Term, int]) -> int:
    todo = [root]
    while todo:
        term = todo[-1]
        below = [t for t in term.args if t not in values]
        if below:
            todo += below
            continue
        values[term] = _one(term, [values[t] for t in term.args])
        todo.pop()
    return values[root]


def _one(term: Term, args: list[int]) -> int:
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
    if term.name == "inv" and args[0]:
        return pow(args[0], -1, PRIME)
    text = repr((term.kind, term.name, args)).encode()
    return int.from_bytes(blake2b(text, digest_size=16).digest()) % PRIME

"""``torch.einsum`` as exported programs keep it: with an ellipsis, without a result, with sizes of
1 that are repeated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from string import ascii_letters
from typing import Any

from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.frontends.aten.lowering import Lowered, Lowering, floating
from shardproof.frontends.aten.rules import lowers


def spelled(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """The letters of every operand and of the result, one for each dimension; ``ranks``: how many
    dimensions the operands have; raises `Unsupported` for a letter that an operand has twice.

    Example: ``...ij,jk`` of three and two dimensions is ``aij``, ``jk`` and ``aik``.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    names = left.split(",")
    unused = [a for a in ascii_letters if a not in equation]
    counts = [n - len(x.replace("...", "")) for x, n in zip(names, ranks, strict=True)]
    most = max((c for x, c in zip(names, counts, strict=True) if "..." in x), default=0)
    if most > len(unused):
        raise Unsupported(f"einsum {equation}")
    more = "".join(unused[:most])
    names = [x.replace("...", more[most - c :]) for x, c in zip(names, counts, strict=True)]
    if not arrow:
        once = sorted(a for a, n in Counter(left.replace("...", "")).items() if n == 1 and a != ",")
        right = more + "".join(once)
    result = right.replace("...", more)
    spellings = [*names, result]
    if any(len(set(x)) < len(x) or not x.isascii() for x in spellings):
        raise Unsupported(f"einsum {equation}: a dimension twice")
    if any(len(x) != n for x, n in zip(names, ranks, strict=True)):
        raise Unsupported(f"einsum {equation} of {list(ranks)} dimensions")
    return names, result


@lowers("aten.einsum.default")
def _einsum(lo: Lowering, equation: str, tensors: Sequence[Lowered], *, path: object = None) -> Any:
    """A sum of products; in which order they are made (``path``) has no meaning for the value."""
    if not all(floating(x.dtype) for x in tensors):
        raise Unsupported("einsum of integers")
    names, result = spelled(equation, [len(x.shape) for x in tensors])
    pairs = [
        pair
        for own, x in zip(names, tensors, strict=True)
        for pair in zip(own, x.shape, strict=True)
    ]
    sizes: dict[str, int] = {}
    for letter, n in pairs:
        sizes[letter] = n if sizes.get(letter, 1) == 1 else sizes[letter]
    if any(n not in (1, sizes[letter]) for letter, n in pairs):
        raise ShapeMismatch(f"einsum {equation} of {[list(x.shape) for x in tensors]}")
    operands, letters = [], []
    for own, x in zip(names, tensors, strict=True):
        # One position is repeated along a dimension that another operand has more of.
        kept = [d for d, a in enumerate(own) if x.shape[d] == sizes[a]]
        operands.append(lo.real(lo.reshape(x, tuple(x.shape[d] for d in kept))))
        letters.append("".join(own[d] for d in kept))
    return lo.emit("einsum", *operands, equation=f"{','.join(letters)}->{result}")

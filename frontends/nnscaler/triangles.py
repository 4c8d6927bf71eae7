"""Functions of the registry that are made with a triangle of ones: triangles, and sums up to each
position."""

from __future__ import annotations

from shardproof.frontends.nnscaler.calls import Arguments, Composed, Refused, operand, unless
from shardproof.frontends.nnscaler.chain import Chain
from shardproof.frontends.nnscaler.lowerings import dim_of, whole


def tril(arguments: Arguments) -> Composed:
    """What lies on a diagonal of the last two dimensions, or below it.

    Example: of [[1, 2], [3, 4]] it is [[1, 0], [3, 4]]; with ``diagonal=-1`` [[0, 0], [3, 0]].
    """
    chain, diagonal = _started(arguments)
    _lower(chain, diagonal)
    return chain.done()


def triu(arguments: Arguments) -> Composed:
    """What lies on a diagonal of the last two dimensions, or above it: all but what lies below.

    Example: ``triu(x, 1)`` is ``x - tril(x)``; of [[1, 2], [3, 4]] it is [[0, 2], [0, 0]].
    """
    chain, diagonal = _started(arguments)
    chain("sub", 0, _lower(chain, diagonal - 1))
    return chain.done()


def _started(arguments: Arguments) -> tuple[Chain, int]:
    unless(arguments, "out", None)
    x = operand(arguments, "input")
    if len(x.shape) < 2:
        raise Refused(f"input of {len(x.shape)} dimensions")
    return Chain(x), whole(arguments, "diagonal", 0)


def _lower(chain: Chain, diagonal: int) -> int:
    """The operand where the column is at most ``diagonal`` beyond the row, and 0 elsewhere."""
    if not diagonal:
        return chain("tril", 0)
    rows, columns = chain.shapes[0][-2:]
    # Entries [i, j] of a larger triangle that begin ``diagonal`` rows below its corner, or as many
    # columns beside it.
    below, beside = max(0, diagonal), max(0, -diagonal)
    size = max(rows + below, columns + beside)
    ones = chain("tril", chain("full", size=(size, size), value=1))
    part = chain("slice", ones, dim=0, start=below, size=rows)
    part = chain("slice", part, dim=1, start=beside, size=columns)
    return chain("mul", 0, part)


def cumsum(arguments: Arguments) -> Composed:
    """Sums up to each position: a product with the triangle of ones.

    Example: of x [2, 4] along 1 it is the ``einsum`` "ab,yb->ay" with the lower triangle of ones
    [4, 4].
    """
    unless(arguments, "out", None)
    unless(arguments, "dtype", None)
    x = operand(arguments, "input")
    dim = dim_of(whole(arguments, "dim"), len(x.shape))
    if len(x.shape) > 12:
        raise Refused(f"{len(x.shape)} dimensions")
    chain = Chain(x)
    size = x.shape[dim]
    ones = chain("tril", chain("full", size=(size, size), value=1))
    axes = "abcdefghijkl"[: len(x.shape)]
    after = axes.replace(axes[dim], "y")
    chain("einsum", 0, ones, equation=f"{axes},y{axes[dim]}->{after}")
    return chain.done()

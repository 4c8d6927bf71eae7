"""A plan with fewer positions of its indexed axes, each of which stands for as many true ones.

With fewer positions an indexed axis (classes, positions under a mask) is one of another plan, and
whatever counts its positions has another value there: the sum of a softmax over all rows, the norm
of vectors of norm 1.  Where each kept position counts as often as it stands for others, such sums
are what they are in the plan itself.  Two sides that are equal there differ with fewer positions
since these are fewer, and for no other reason.

Of classes that ids choose two positions are kept of each block: the first, which stands for itself
and is the only one that ids choose, and one for all others.  What is run is then the plan itself,
at a point where those are equal: a one-hot has one 1, whatever functions are taken of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.errors import Unsupported
from shardproof.engine.interpreters import FloatInterpreter, Weighted
from shardproof.engine.interpreters.dims import Dim, weights


@dataclass(frozen=True)
class StandingInterpreter(FloatInterpreter):
    """Tensors over float64 of which a kept position is the first of those that it stands for.

    Example: of 8 classes as (1, 3, 1, 3), positions 0, 1, 4 and 5 are kept; a one-hot of 4 is
    [0, 0, 1, 0].
    """

    def absolute(self, start: int, size: int) -> tuple[Dim, tuple[int, ...]]:
        """A positional dimension, and where the positions begin for which representatives stand."""
        dim = self.dim(size)
        if len(dim) > 1:
            raise Unsupported(f"positions of {dim}")
        places, position = [], start
        for weight in weights(dim):
            places.append(position)
            position += weight
        return dim, tuple(places)

    def onehot(self, ids: Weighted, start: Affine, size: int) -> Weighted:
        """A chosen class stands for itself; raises `Unsupported` where it stands for others, too,
        which ids do not choose."""
        chosen = super().onehot(ids, start, size)
        alone = np.array(weights(chosen.dims[-1])) == 1
        if bool(chosen.data[..., ~alone].any()):
            raise Unsupported("ids of positions that stand for others")
        return chosen

"""Which local dimensions the operator of a claim relates.

Example: a view ``[8, 6] -> [48]`` makes its output's dimension of its inputs' two, so the grid has
to cut all three alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from shardproof.engine.claims.claim import Claim
from shardproof.engine.errors import Unsupported
from shardproof.engine.ops import apply_backward, apply_forward
from shardproof.engine.ops.primitives import Interpreter
from shardproof.engine.small_model.mixed_radix import Axis, Relation
from shardproof.engine.small_model.shared_dims import Relating, Tensor


def related(claim: Claim, coarse: bool = False) -> list[Relation]:
    """Local dimensions that the operator of a claim takes for one another, as the grid names them
    (``coarse``: parts of a dimension as wholes); raises `Unsupported` where it cuts one otherwise
    than in blocks.

    Example: of ``linear`` of [4, 8] and [8, 8] the columns of both operands, the rows of the first
    one and those of the result, and the rows of the second one and the columns of the result.
    """
    reading = Relating(coarse)
    given = [x for x in claim.inputs if x is not None]
    tensors = [reading.tensor(x.shape) for x in (*given, *claim.outputs)]
    outputs = tensors[len(given) :]
    if claim.kind in ("op", "slice"):
        operands = iter(tensors)
        computed = applied(
            reading, claim, [None if x is None else next(operands) for x in claim.inputs]
        )
        for x, y in zip(computed, outputs, strict=True):
            reading.combine([x, y], [], Fraction(0))
    else:
        for tensor in tensors[1:]:
            for one, other in zip(tensors[0], tensor, strict=True):
                small, large = sorted((one, other), key=lambda d: d[0].size if d else 1)
                reading.inside(large, small)
    return relations_of(reading, tensors)


def relations_of(reading: Relating, tensors: Sequence[Tensor]) -> list[Relation]:
    """The digits that a reading has taken for one another, as the grid names them.

    Example: of a view ``[8, 6] -> [48]`` the second dimension and the output's at stride 1, the
    first one and the output's at stride 6, and that the output's is split there.
    """
    names = names_of(tensors, reading.count)
    joined: list[Relation] = [
        (names[x.root], x.stride, names[y.root], y.stride, x.size) for x, y in reading.relations
    ]
    split = [(names[root], stride, names[root], stride, 1) for root, stride in reading.splits]
    return joined + split


def names_of(tensors: Sequence[Tensor], count: int) -> dict[int, Axis]:
    """The axes of the dimensions that `Relating` numbers.

    Example: of tensors [8, 6] and [48] ``{0: (-1, 0), 1: (-1, 1), 2: (-2, 0)}``.
    """
    names = {
        dim[0].root: (-1 - i, d)
        for i, tensor in enumerate(tensors)
        for d, dim in enumerate(tensor)
        if dim
    }
    # Dimensions that begin and end inside the operator: no lineage has them.
    return names | {n: (-1 - len(tensors), n) for n in range(count) if n not in names}


def applied(interpreter: Interpreter[Any], claim: Claim, inputs: Sequence[Any]) -> list[Any]:
    """The operator of a claim, or its derivative, as an interpreter computes it.

    Example: over `Relating`, ``linear`` of a claim gives one tensor, whose dimensions are the rows
    of both operands.
    """
    if not claim.backward:
        return list(apply_forward(interpreter, claim.name, inputs, claim.attrs))
    wrt, arity = claim.attrs.get("wrt"), claim.attrs.get("arity")
    if not isinstance(wrt, tuple) or not isinstance(arity, int):
        raise Unsupported("a backward operator without wrt and arity")
    positions = [w for w in wrt if isinstance(w, int)]
    return list(
        apply_backward(
            interpreter, claim.name, inputs[:arity], inputs[arity:], claim.attrs, positions
        )
    )

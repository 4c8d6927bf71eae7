"""One operator instance as the prover claims it, and what its operator takes for one another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from engine.digits import Axis, Relation
from engine.dimensions import Relating, Tensor
from engine.errors import Unsupported
from engine.ir import Attr
from engine.lineage import Lineage
from engine.ops import apply_backward, apply_forward
from engine.reading import Reading
from engine.sums import Over

#: Kinds of rows that add their inputs up.
SUMS = frozenset({"all_reduce", "reduce", "reduce_scatter", "accumulate"})


class Claim(NamedTuple):
    """One operator instance as the prover claims it.

    ``kind``, ``name``, ``attrs``, ``backward``, ``over``: of its row; ``members``: programs that
    take part; ``inputs``, ``outputs``: lineages (None: an absent gradient); ``extents``: of the
    mesh coordinates that occur.
    """

    kind: str
    name: str
    attrs: Mapping[str, Attr]
    backward: bool
    over: Over
    members: int
    inputs: tuple[Lineage | None, ...]
    outputs: tuple[Lineage, ...]
    extents: Mapping[str, int]
    batched: tuple[bool, ...] = ()

    @property
    def adds(self) -> bool:
        """Whether the operator joins partial sums, so that these have to be read term by term."""
        if self.kind in SUMS:
            return True
        partial = {(t.node, t.parts) for x in self.inputs if x for t in x.terms if t.parts}
        nodes = {node for node, _ in partial}
        return any(
            view.node in nodes and (view.node, view.parts) not in partial
            for x in self.outputs
            for view in x.terms
        )


def related(claim: Claim, coarse: bool = False) -> list[Relation]:
    """Local dimensions that the operator of a claim takes for one another, as the grid names them
    (``coarse``: parts of a dimension as wholes); raises `Unsupported` where it cuts one otherwise
    than in blocks."""
    reading = Relating(coarse)
    given = [x for x in claim.inputs if x is not None]
    tensors = [reading.tensor(x.shape) for x in (*given, *claim.outputs)]
    outputs = tensors[len(given) :]
    if claim.kind in ("op", "slice"):
        held = iter(tensors)
        found = applied(reading, claim, [None if x is None else next(held) for x in claim.inputs])
        for x, y in zip(found, outputs, strict=True):
            reading.combine([x, y], [], Fraction(0))
    else:
        for tensor in tensors[1:]:
            for one, other in zip(tensors[0], tensor, strict=True):
                small, large = sorted((one, other), key=lambda d: d[0].size if d else 1)
                reading.inside(large, small)
    names = names_of(tensors, reading.count)
    joined: list[Relation] = [
        (names[x.root], x.stride, names[y.root], y.stride, x.size) for x, y in reading.relations
    ]
    split = [(names[root], stride, names[root], stride, 1) for root, stride in reading.splits]
    return joined + split


def names_of(tensors: Sequence[Tensor], count: int) -> dict[int, Axis]:
    """The axes of the dimensions that `Relating` numbers."""
    names = {
        dim[0].root: (-1 - i, d)
        for i, tensor in enumerate(tensors)
        for d, dim in enumerate(tensor)
        if dim
    }
    # Dimensions that begin and end inside the operator: no lineage has them.
    return names | {n: (-1 - len(tensors), n) for n in range(count) if n not in names}


def applied(reading: Reading[Any], claim: Claim, inputs: Sequence[Any]) -> list[Any]:
    """The operator of a claim in a reading of the declarations."""
    if not claim.backward:
        return list(apply_forward(reading, claim.name, inputs, claim.attrs))
    wrt, arity = claim.attrs.get("wrt"), claim.attrs.get("arity")
    if not isinstance(wrt, tuple) or not isinstance(arity, int):
        raise Unsupported("a backward operator without wrt and arity")
    positions = [w for w in wrt if isinstance(w, int)]
    return list(
        apply_backward(reading, claim.name, inputs[:arity], inputs[arity:], claim.attrs, positions)
    )

"""One operator instance as the prover claims it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from shardproof.engine.lineage.lineage import Lineage
from shardproof.engine.lineage.sums import Over
from shardproof.engine.plan.collectives import ADDS
from shardproof.engine.plan.ir import Attr

#: Kinds of rows that add their inputs up.
SUMS = ADDS | {"accumulate"}


class Claim(NamedTuple):
    """One operator instance as the prover claims it.

    Example: ``Claim("op", "linear", {}, False, (), 1, (x, w), (y,), {"tp": 2})``, the linear
    operator of the text in `engine.claims.text`: one program of two ranks along ``tp``.

    ``kind``, ``name``, ``attrs``, ``backward``, ``over``: of its instance; ``members``: programs
    that take part; ``inputs``, ``outputs``: lineages (None: an absent gradient); ``extents``: of
    the mesh coordinates that occur.
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
        """Whether the operator joins partial sums, so that these have to be read addend by
        addend."""
        if self.kind in SUMS:
            return True
        partial = {(t.node, t.partials) for x in self.inputs if x for t in x.addends if t.partials}
        nodes = {node for node, _ in partial}
        return any(
            view.node in nodes and (view.node, view.partials) not in partial
            for x in self.outputs
            for view in x.addends
        )

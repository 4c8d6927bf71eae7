"""Claims of reduce-scatters whose results are boxes of a tensor that no rank has all of.

A reduce-scatter gives each member its equal part of a sum.  Where all members' results are those
parts of one local tensor (`engine.lineage.containing`), they are what the operator gives if the sum
is that tensor: the claim of an all-reduce, in which no box has to begin where values do.
"""

from __future__ import annotations

from shardproof.engine.algebra.affine import ZERO, Affine, affine
from shardproof.engine.claims.claim import Claim
from shardproof.engine.lineage.containing import containing
from shardproof.engine.lineage.nodes import NodeTable


def of_the_sum(nodes: NodeTable, claim: Claim) -> Claim:
    """The claim from which that of a reduce-scatter follows, or the claim as it is.

    Example: of "the reduce-scatter of ``x`` along ``dp`` is ``n9[a0[<16*dp> +16 of 128]]``", with
    ``n9 = piece(n6[a0[64]] in 0[0 +64 of 128] + n7[a0[64]] in 0[64 +64 of 128])``, it is "the
    all-reduce of ``x`` along ``dp`` is ``n6[a0[64]] in ...  + n7[a0[64]] in ...``".
    """
    if claim.kind != "reduce_scatter" or len(claim.outputs) != 1 or claim.members != 1:
        return claim
    (given,), (output,) = claim.inputs, claim.outputs
    whole = containing(nodes, output)
    dim = claim.attrs.get("dim")
    if whole is None or given is None or not isinstance(dim, int):
        return claim
    total, starts = whole
    dim %= len(given.shape)
    parts, place = _position(claim)
    step, rest = divmod(given.shape[dim], parts)
    expected = [ZERO] * len(given.shape)
    expected[dim] = place * step
    joined = {axis for axis, _ in claim.over}
    coordinates = nodes[output.addends[0].node].coordinates
    if rest or total.shape != given.shape or [*starts] != expected or joined & coordinates:
        return claim
    attrs = {key: value for key, value in claim.attrs.items() if key != "dim"}
    return claim._replace(kind="all_reduce", name="all_reduce", attrs=attrs, outputs=(total,))


def _position(claim: Claim) -> tuple[int, Affine]:
    """How many members there are, and the position of one, as its coordinates tell it."""
    parts, place = 1, affine(0)
    for axis, extent in claim.over:
        parts *= extent
        place = place * extent + affine(0, {axis: 1})
    return parts, place

"""Integers of which the single side makes one-hots, and that choose no rows: they are among the
classes.

``jax.nn.one_hot(labels, 24)`` is zero for a label that is no class, and what is written for labels
(``1 - one_hot.sum()``, a loss by the logarithm of a sum) is another number there.  Ids of a lookup
are taken to be among its rows; so are these among the classes.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardproof.frontends.builder.piecewise import Piece
from shardproof.frontends.graphs.graph import Node
from shardproof.frontends.hlo.indices import positions
from shardproof.frontends.hlo.items import Ids
from shardproof.frontends.hlo.known import Known
from shardproof.frontends.hlo.state import Lowering


def named(low: Lowering) -> dict[int, int]:
    """Inputs of integers, by position, of which one-hots of floats are made over one number of
    classes, and that number; not those of which the program tells a mark.

    Example: ``{1: 24}`` for the second input of a loss with ``one_hot(labels, 24)``.
    """
    sizes: dict[int, set[int]] = {}
    for node in low.graph.nodes:
        for position, size in _classes(low, node):
            sizes.setdefault(position, set()).add(size)
    inputs = low.graph.inputs
    return {p: min(n) for p, n in sizes.items() if len(n) == 1 and inputs[p].mark is None}


def _classes(low: Lowering, node: Node) -> Iterator[tuple[int, int]]:
    """The input of which a comparison makes a one-hot, and how many classes that has."""
    if node.target != "compare" or node.attrs.get("direction") != "EQ":
        return
    users = [user for user in low.graph.nodes if node.results[0] in user.operands]
    if not all(
        u.target == "convert" and low.dtype(u).startswith(("float", "bfloat")) for u in users
    ):
        return
    xs = [low.items[v] for v in node.operands]
    for ids, other in (xs, xs[::-1]):
        counted = positions(other) if isinstance(other, Known) else None
        if not isinstance(ids, Ids) or counted is None or ids.origin not in low.origins:
            continue
        dim, firsts = counted
        (pieces, *others) = ids.functions
        whole = [piece._replace(low=0, high=0) for piece in pieces] == [Piece(0, 0, 1, 0)]
        if whole and not others and set(firsts) == {0} and ids.axes[dim] < 0:
            yield low.origins[ids.origin], ids.shape[dim]

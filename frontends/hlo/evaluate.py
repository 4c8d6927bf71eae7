"""A graph as it was read, run in NumPy on all ranks in lock-step: the judge of a translation.

Written from XLA's documentation and from nothing of ours that translates.  Floats are computed in
float64, and literals are the numbers that are rounded to them (`singles`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import numpy as np

from shardproof.engine.errors import InvalidInput, Unsupported
from shardproof.frontends.aten.singles import meant
from shardproof.frontends.graphs.graph import Graph, Node, PerRank
from shardproof.frontends.hlo import semantics
from shardproof.frontends.hlo.known import Known, of_type
from shardproof.frontends.hlo.module import Array


def run(graph: Graph, inputs: Sequence[Sequence[Array]]) -> list[list[Array]]:
    """The outputs of every rank (outer list: ranks) for the inputs of every rank.

    Example: ``ring.parallel.hlo`` of the tests on four ranks, each with all of ``x`` and its four
    rows of ``w``, gives each of them ``x @ w``.
    """
    if len(inputs) != graph.ranks or any(len(own) != len(graph.inputs) for own in inputs):
        raise InvalidInput(f"inputs of {len(inputs)} ranks for a graph on {graph.ranks}")
    memories: list[dict[int, Array]] = []
    for own in inputs:
        memories.append({i.value: _double(x) for i, x in zip(graph.inputs, own, strict=True)})
    for node in graph.nodes:
        if "refused" in node.attrs:
            raise Unsupported(node.attrs["refused"])
        if len(node.results) > 1:
            for values in memories:
                _several(graph, node, values)
            continue
        (result,) = node.results
        if node.groups or node.pairs or node.target == "collective-permute":
            for rank, result_of in enumerate(_joined(graph, node, memories)):
                memories[rank][result] = result_of
            continue
        for rank, values in enumerate(memories):
            values[result] = _local(graph, node, values, rank)
    return [[values[o.value] for o in graph.outputs] for values in memories]


def _double(x: Array) -> Array:
    return x.astype(np.float64) if np.issubdtype(x.dtype, np.floating) else np.asarray(x)


def _several(graph: Graph, node: Node, own: dict[int, Array]) -> None:
    """An operator with several results, on one rank."""
    shapes = [graph.values[v].shape for v in node.results]
    results = semantics.several(node.target, node.attrs, [own[v] for v in node.operands], shapes)
    for value, shape, result in zip(node.results, shapes, results, strict=True):
        if result.shape != shape:
            raise Unsupported(f"{node.name}: {node.target} gives {list(result.shape)}")
        own[value] = _double(result)


def _local(graph: Graph, node: Node, own: dict[int, Array], rank: int) -> Array:
    value = graph.values[node.results[0]]
    if node.target == "constant":
        known = node.attrs["value"]
        assert isinstance(known, Known)
        literal = _double(known.at(rank))
        number = known.number()
        if isinstance(number, float) and isfinite(number):
            return np.full_like(literal, float(meant(number)))
        return literal
    xs = [own[v] for v in node.operands]
    if "starts" in node.attrs:
        xs += [
            np.array(s.values[rank] if isinstance(s, PerRank) else s) for s in node.attrs["starts"]
        ]
    given = graph.values[node.operands[0]].dtype if node.operands else ""
    if node.target == "convert" and given == "float32" and value.dtype.startswith(("int", "uint")):
        # Where an integer begins, the type's own number decides.
        xs = [x.astype(np.float32) for x in xs]
    computed = semantics.apply(node.target, node.attrs, xs, value.shape)
    if computed.shape != value.shape:
        raise Unsupported(
            f"{node.name}: {node.target} gives {list(computed.shape)}, the file says "
            f"{list(value.shape)}"
        )
    return _double(of_type(computed, value.dtype))


def _joined(graph: Graph, node: Node, memories: Sequence[dict[int, Array]]) -> list[Array]:
    (x,) = node.operands
    given = [own[x] for own in memories]
    if node.target == "collective-permute":
        received = [np.zeros_like(g) for g in given]
        for source, target in node.pairs:
            received[target] = given[source]
        return received
    received = list(given)
    for group in node.groups:
        parts = [given[rank] for rank in group]
        for place, rank in enumerate(group):
            received[rank] = _member(node, parts, place)
    return received


def _member(node: Node, parts: Sequence[Array], place: int) -> Array:
    """What the member at ``place`` of a group has afterwards."""
    if node.target == "all-gather":
        return np.concatenate(parts, axis=node.attrs["dimensions"][0])
    if node.target == "all-to-all":
        (dim,) = node.attrs["dimensions"]
        cut = [np.split(p, len(parts), axis=dim)[place] for p in parts]
        return np.concatenate(cut, axis=dim)
    function, _ = semantics.REDUCTIONS[node.attrs["to_apply"]]
    total = np.asarray(function(np.stack(parts), axis=0))
    if node.target == "all-reduce":
        return total
    if node.target == "reduce-scatter":
        return np.split(total, len(parts), axis=node.attrs["dimensions"][0])[place]
    raise Unsupported(f"{node.target} joins ranks in no way that is known")

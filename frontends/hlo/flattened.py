"""Gathers and scatters by indices that were made one list, as XLA's passes leave them.

Rows are chosen where the indices lie, and made one list afterwards, which is the same: then the ids
stay the ids that masks and losses read.  For example, ``gather(x, reshape(i))`` with
``i = s32[2,8]`` and ``f32[16,4]`` as its result is a gather by ``i`` itself, ``f32[2,8,4]``, and a
reshape of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from shardproof.frontends.graphs.graph import Graph, Node, Shape, Value

#: What gives the same entries in the same order: of a transpose, if it only moves dimensions of 1.
_SAME = frozenset({"reshape", "transpose", "copy"})
#: Which attribute says what the boxes are, and which operand has them (None: the result).
_BOXES: Mapping[str, tuple[str, int | None]] = {
    "gather": ("offset_dims", None),
    "scatter": ("update_window_dims", 2),
}


def unflattened(graph: Graph) -> Graph:
    """The graph, whose gathers and scatters choose rows by indices before these are made one list.

    Example: of the graph above, a gather of ``f32[2,8,4]`` and a reshape.
    """
    values = list(graph.values)
    made = {result: node for node in graph.nodes for result in node.results}
    nodes: list[Node] = []
    #: Results that are reshapes now, and what of.
    listed: dict[int, int] = {}
    for node in graph.nodes:
        chooses = node.target in _BOXES and "index_vector_dim" in node.attrs
        source = _source(node, made, values) if chooses else -1
        if source >= 0:
            apart = _apart(node, source, values)
            listed.update((n.results[0], n.operands[0]) for n in apart if n.target == "reshape")
            nodes += apart
        elif node.target == "reshape" and node.operands[0] in listed:
            nodes.append(replace(node, operands=(listed[node.operands[0]],)))
        else:
            nodes.append(node)
    return replace(graph, values=tuple(values), nodes=_read(nodes, graph))


def _source(node: Node, made: Mapping[int, Node], values: Sequence[Value]) -> int:
    """The indices before they were made one list; -1: they were not, or not understood."""
    key, number = _BOXES[node.target]
    boxed = values[node.results[0] if number is None else node.operands[number]].shape
    windows = node.attrs.get(key, ())
    batch = [d for d in range(len(boxed)) if d not in windows]
    several = len(node.operands) != (2 if number is None else 3)
    in_a_row = batch == list(range(batch[0], batch[0] + len(batch))) if batch else False
    pairs = node.attrs.get("start_indices_batching_dims") or node.attrs.get(
        "scatter_indices_batching_dims"
    )
    if several or not in_a_row or pairs or any(d >= len(boxed) for d in windows):
        return -1
    own, vector = values[node.operands[1]].shape, node.attrs["index_vector_dim"]
    count = own[vector] if vector < len(own) else 1
    source = at = node.operands[1]
    if count > 1 and vector != len(own) - 1:
        return -1
    while at in made and made[at].target in _SAME and _kept(made[at], values):
        at = made[at].operands[0]
        if count == 1 or values[at].shape[-1:] == (count,):
            source = at
    same = _lead(values[source].shape, count) == tuple(boxed[d] for d in batch)
    return -1 if same or source == node.operands[1] else source


def _lead(shape: Shape, count: int) -> Shape:
    """The shape of indices without their vectors of ``count`` numbers."""
    return shape if count == 1 else shape[:-1]


def _kept(node: Node, values: Sequence[Value]) -> bool:
    """Whether entries are in the order of the operand's."""
    if node.target != "transpose":
        return True
    shape = values[node.operands[0]].shape
    wide = [d for d in node.attrs["dimensions"] if shape[d] != 1]
    return wide == sorted(wide)


def _apart(node: Node, source: int, values: list[Value]) -> list[Node]:
    """The gather or scatter by the indices as they were, and the reshape of its boxes."""
    key, number = _BOXES[node.target]
    boxed = node.results[0] if number is None else node.operands[number]
    shape, windows = values[boxed].shape, node.attrs.get(key, ())
    indices = values[node.operands[1]].shape
    vector = node.attrs["index_vector_dim"]
    count = indices[vector] if vector < len(indices) else 1
    lead = _lead(values[source].shape, count)
    first = next(d for d in range(len(shape)) if d not in windows)
    behind = [d for d in windows if d > first]
    before = [d for d in windows if d < first]
    whole = (*(shape[d] for d in before), *lead, *(shape[d] for d in behind))
    boxes = (*before, *(first + len(lead) + n for n in range(len(behind))))
    attrs = {**node.attrs, key: boxes, "index_vector_dim": len(lead)}
    values.append(Value(f"{values[boxed].name}.apart", whole, values[boxed].dtype))
    new = len(values) - 1
    operands = list(node.operands)
    operands[1] = source
    moved = replace(node, name=f"{node.name}.list", target="reshape", attrs={})
    if number is None:
        own = replace(node, operands=tuple(operands), results=(new,), attrs=attrs)
        return [own, replace(moved, operands=(new,), results=node.results)]
    operands[number] = new
    own = replace(node, operands=tuple(operands), attrs=attrs)
    return [replace(moved, operands=(boxed,), results=(new,)), own]


def _read(nodes: Sequence[Node], graph: Graph) -> tuple[Node, ...]:
    """Nodes without moves that nobody reads any more."""
    needed, kept = {o.value for o in graph.outputs}, []
    for node in reversed(nodes):
        if node.target not in _SAME or needed.intersection(node.results):
            needed.update(node.operands)
            kept.append(node)
    return tuple(reversed(kept))

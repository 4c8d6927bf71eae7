"""Graphs in archives of `torch.export`, with the numbers that a program has of its own.

A tensor that is neither a parameter nor given by the user nor in a checkpoint (a constant, a buffer
that is not persistent, unless the program writes it) is part of the program: its numbers count.
Parameters and other buffers are inputs.  A checkpoint gives buffers to both sides; that the ranks'
are the parts of the single side's that they are taken for is not so where the archives' differ.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.assumption import Assumption
from shardproof.frontends.fx import pt2, signature, written
from shardproof.frontends.fx.arrays import TYPES
from shardproof.frontends.fx.inputs import Inputs
from shardproof.frontends.fx.place import Part
from shardproof.frontends.fx.records import CONSTANT, PLACEHOLDER, Archived, Graph, Node
from shardproof.frontends.fx.stored import Stored
from shardproof.frontends.untrusted.inert import printable

Array = NDArray[Any]
#: NumPy's names of element types; halves are read as what they are the upper half of, or as such.
_KINDS: Final = {"bool": "?", "float16": "f2", "bfloat16": "u2"}
#: Elements of all tensors of an archive that are read.
MOST_OF_ALL: Final = 1 << 25


def read(path: Path, rank: int = 0) -> Archived:
    """The graph of an archive; raises `InvalidInput` and msgspec's errors.

    Example: of ``torch.export.export(Net(), (x,))`` with a linear layer: the placeholders
    ``p_up_weight``, ``p_up_bias``, ``x``, and a node ``linear`` of ``aten.linear.default``.
    """
    model = pt2.module(path)
    graph = pt2.graph(model, rank)
    tensors = signature.stored_tensors(model)
    names = {one.name: name for name, one in tensors.items()}
    leaves = tuple(names.get(name, name) for name in signature.left_names(model))
    graph = msgspec.structs.replace(graph, leaves=leaves)
    if not tensors:
        return graph
    stored, left = Stored(path), MOST_OF_ALL
    changing = written.may_be_written(graph)
    numbers: dict[bool, dict[str, Array]] = {True: {}, False: {}}
    for node in graph.nodes:
        size = prod(node.shape or ())
        if node.op != PLACEHOLDER or node.name not in tensors or size > left:
            continue
        name, own = tensors[node.name]
        array = _numbers(stored, name, node)
        if array is not None:
            numbers[own and node.name not in changing][node.name] = array
            left -= size
    return msgspec.structs.replace(graph, numbers=numbers[True], state=numbers[False])


def _numbers(stored: Stored, name: str, node: Node) -> Array | None:
    """The numbers of a tensor; None: they are pickled, too many or not there: it is an input."""
    shape, dtype = tuple(node.shape or ()), node.dtype or ""
    try:
        data = stored.read(name, shape, dtype)
    except InvalidInput:
        return None
    return _array(data, shape, dtype)


def _array(data: bytes, shape: tuple[int, ...], dtype: str) -> Array:
    """Numbers by their bytes, those of half precisions in single precision."""
    array = np.frombuffer(data, _KINDS.get(dtype, dtype))
    if dtype == "bfloat16":
        array = (array.astype(np.uint32) << 16).view(np.float32)
    elif dtype == "float16":
        array = array.astype(np.float32)
    return array.reshape(shape)


def with_tables(graph: Graph) -> Graph:
    """A graph of a file in JSON, with the numbers of its constants where the file has them; raises
    `InvalidInput`, naming the node, where these are not as many as the node has.

    Example: of a node ``{"name": "mask", "op": "get_attr", "shape": [2], "dtype": "bool", ...}``
    and ``tables`` of ``{"mask": "AAE="}`` they are False and True.
    """
    if graph.tables is None:
        return graph
    constants = {node.name: node for node in graph.nodes if node.op == CONSTANT}
    numbers = {}
    for name, data in graph.tables.items():
        node, where = constants.get(name), f"tables.{printable(name, 80)}"
        dtype = (node.dtype if node is not None else None) or ""
        if node is None or node.shape is None or dtype not in TYPES:
            raise InvalidInput(
                "is no node of kind get_attr with a shape and an element type", where
            )
        size = prod(node.shape) * np.dtype(_KINDS.get(dtype, dtype)).itemsize
        if len(data) != size:
            raise InvalidInput(f"{len(data)} bytes where the node has {size}", where)
        numbers[name] = _array(data, tuple(node.shape), dtype)
    return Archived(graph.rank, graph.nodes, graph.direction, graph.gid, numbers=numbers)


def alike(single: Graph, ranks: Sequence[Graph]) -> tuple[Graph, list[Graph]]:
    """Both sides, where a tensor of one name has known numbers on all of them or on none.

    Example: a buffer that is persistent on the ranks alone is an input of both sides.
    """
    graphs = [single, *ranks]
    inputs = {node.name for graph in graphs for node in graph.inputs}
    first, *others = (_with_inputs(graph, inputs) for graph in graphs)
    return first, others


def _with_inputs(graph: Graph, inputs: set[str]) -> Graph:
    if not isinstance(graph, Archived) or not graph.numbers.keys() & inputs:
        return graph
    kept = {name: array for name, array in graph.numbers.items() if name not in inputs}
    return msgspec.structs.replace(graph, numbers=kept)


def unlike(
    single: Graph, ranks: Sequence[Graph], inputs: Inputs, given: Collection[str]
) -> list[Assumption]:
    """Buffers of ranks whose numbers in their archive are not those of the part that they are taken
    for; ``given``: inputs of which somebody says where they lie.

    Example: a table of sines and cosines [4, 8], where rank 1 has cosines first: "... of rank 1 are
    others than the single device's".
    """
    assumptions = []
    for name, parts in inputs.ranks.items():
        for rank, graph in enumerate(ranks):
            if name not in given and _differs(_state(single), _state(graph), name, parts, rank):
                text = (
                    f"the numbers that the archives have of buffer {name} of rank {rank} are not "
                    "the single device's: say in a relations file where it lies, if a checkpoint "
                    "gives both"
                )
                assumptions.append(Assumption("not compared", name, "", text))
                break
    return assumptions


def _state(graph: Graph) -> Mapping[str, Array]:
    return graph.state if isinstance(graph, Archived) else {}


def _differs(
    single: Mapping[str, Array],
    own: Mapping[str, Array],
    name: str,
    parts: Sequence[Part],
    rank: int,
) -> bool:
    """Whether a rank's numbers are seen not to be those of the parts of the single side's."""
    whole = single.get(parts[0].box.of(rank).partition("[")[0])
    array = own.get(name)
    if whole is None or array is None:
        return False
    wholes = _split(whole, [part.box.full for part in parts])
    boxes = zip(wholes, _split(array, [part.shape for part in parts]), parts, strict=True)
    return not all(
        np.array_equal(full[_at(part, rank)], piece, equal_nan=full.dtype.kind == "f")
        for full, piece, part in boxes
    )


def _at(part: Part, rank: int) -> tuple[slice, ...]:
    start = part.box.starts[rank]
    return tuple(slice(s, s + n) for s, n in zip(start, part.shape, strict=True))


def _split(array: Array, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """An array in pieces of these shapes, along the one dimension in which they are smaller."""
    if len(shapes) == 1:
        return [array]
    (dim,) = (d for d, n in enumerate(array.shape) if shapes[0][d] != n)
    return np.split(array, np.cumsum([shape[dim] for shape in shapes])[:-1], dim)

"""Graphs as the files hold them, run operator by operator on all ranks in lock-step, against the
plan that they were read as.

PyTorch runs the operators of ATen; what is no operator of ATen (of XLA's graphs, of an inference
engine) is not run, and the graph is then not replayed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.engine.plan.ir import Plan
from shardproof.engine.reference_runtime.compare import fits
from shardproof.engine.reference_runtime.exchange import Stuck
from shardproof.frontends.aten.opaque import NUMBERS
from shardproof.frontends.fx import complexes, files, groups, read
from shardproof.frontends.fx.computed import Computed
from shardproof.frontends.fx.inputs import shape_of
from shardproof.frontends.fx.outputs import Output
from shardproof.frontends.fx.place import Part, everywhere
from shardproof.frontends.fx.records import (
    CALL,
    CONSTANT,
    GETITEM,
    PLACEHOLDER,
    Archived,
    Graph,
    Node,
    operand,
)
from shardproof.frontends.graphs import constants
from shardproof.frontends.graphs.relations import Relations
from shardproof.frontends.graphs.replayed import Validation, agreed, drawn, run, to_bytes

if TYPE_CHECKING:
    from types import ModuleType

Array = NDArray[Any]
#: Namespaces of collectives, and these by their names there.
FUNCTIONAL = ("_c10d_functional.", "_c10d_functional_autograd.")
REDUCE, GATHER, EXCHANGE = "all_reduce.", "all_gather_into_tensor.", "all_to_all_single."
SCATTER, WAIT = "reduce_scatter_tensor.", "wait_tensor."
#: Reductions, and the operator of two tensors that each of them is.
PAIRWISE = {
    "sum": "aten.add.Tensor",
    "max": "aten.maximum.default",
    "min": "aten.minimum.default",
}
#: What is asserted of sizes that depend on data.
ABOUT_SIZES: Mapping[str, Callable[..., Any]] = {
    "aten.sym_size.int": lambda x, dim: x.shape[dim],
    "<built-in function ge>": operator.ge,
    "<built-in function le>": operator.le,
    "aten._assert_scalar.default": lambda holds, message: None,
    "aten._assert_tensor_metadata.default": lambda *_: None,
}
#: Named inputs that no input of the graphs is.
POSITIONS, MASK = "positions 0 to ", "mask of random operator "


def pair(single: str, parallel: str, relations_file: str) -> bytes:
    """The validation of two sides, as bytes.  Made to be called in a bounded child.

    Example: ``shardproof verify single.pt2 ranks --validate`` calls it for these two paths.
    """
    return to_bytes(validated(*files.sides(single, parallel, relations_file)))


def tables(single: str, parallel: str, relations_file: str) -> bytes:
    """The numbers of constants of two sides, by the names that their plan has for them, as bytes.
    Made to be called in a bounded child.

    Example: of a program that adds ``cos(arange(4))``, four numbers of "constant ..." and a hash.
    """
    both, _ = read.paired(*files.sides(single, parallel, relations_file))
    return constants.to_bytes(both.tables)


def validated(
    alone: Graph, ranks: Sequence[Graph], relations: Relations, seed: int = 0
) -> Validation:
    """Both sides run by PyTorch and as a plan, on the same random values.

    Example: two outputs on the single device and on two ranks that agree: six tensors were
    compared. A graph with ``custom.gelu`` is not replayed.
    """
    both, plan = read.paired(alone, ranks, relations)
    if not fits(plan):
        return Validation(False, True, 0, "it is too large")
    try:
        from shardproof.frontends.torch import eager
    except ImportError:
        return Validation(False, True, 0, "PyTorch is not installed")
    values = drawn(plan, np.random.default_rng(seed)) | both.tables
    if any(name.startswith(NUMBERS) for name in values):
        return Validation(False, True, 0, "a function of which nothing is known")
    for name, array in values.items():
        if name.startswith(POSITIONS):
            values[name] = np.arange(len(array), dtype=float)
        elif name.startswith(MASK):
            values[name] = (array > 0).astype(float)
    try:
        expected = _evaluated(eager, both, _decoded(values, both.domains.marks))
        actual = run(plan, values)
    except (Unsupported, ShapeMismatch, Stuck) as error:
        return Validation(False, True, 0, str(error))
    return agreed(_pairs(both, plan, actual, expected), "PyTorch")


def _decoded(values: Mapping[str, Array], marks: Mapping[str, int]) -> dict[str, Array]:
    """Values as the graphs have them, of those that the plan has: its -1 is an input's mark."""
    return {
        name: np.where(array == -1, marks[name], array) if name in marks else array
        for name, array in values.items()
    }


def _evaluated(
    eager: ModuleType, both: read.Pairing, values: Mapping[str, Array]
) -> list[dict[str, Any]]:
    """The value of every node: of the single side, then of every rank."""
    wholes = {
        node.name: [Part(everywhere(node.name, shape_of(node), 1), shape_of(node))]
        for node in both.single.inputs
    } | dict(both.inputs.single)
    one = _World(eager, [both.single], [groups.groups([both.single], {})], both.relations, {})
    one.run([_inputs(both.single.inputs, wholes, values, 0)], values)
    count = range(len(both.ranks))
    named = [groups.groups(both.ranks, both.relations.groups, rank) for rank in count]
    many = _World(eager, both.ranks, named, both.relations, both.masks)
    inputs = both.inputs.ranks
    given = [_inputs(graph.inputs, inputs, values, rank) for rank, graph in enumerate(both.ranks)]
    many.run(given, values)
    return [*one.known, *many.known]


def _inputs(
    nodes: Sequence[Node],
    parts: Mapping[str, Sequence[Part]],
    values: Mapping[str, Array],
    rank: int,
) -> dict[str, Array]:
    """A rank's inputs, by name, put together of the named inputs that they are."""
    arrays = {}
    for node in nodes:
        boxes = []
        for part in parts[node.name]:
            if part.box.of(rank) in values:
                start = part.box.starts[rank]
                at = tuple(slice(s, s + n) for s, n in zip(start, part.shape, strict=True))
                boxes.append(values[part.box.of(rank)][at])
        if len(boxes) == 1:
            arrays[node.name] = boxes[0]
        elif boxes:
            whole = shape_of(node)
            dim = next(d for d, n in enumerate(whole) if boxes[0].shape[d] != n)
            arrays[node.name] = np.concatenate(boxes, axis=dim)
    return arrays


class _World:
    """All ranks of a side."""

    def __init__(
        self,
        eager: ModuleType,
        graphs: Sequence[Graph],
        named: Sequence[Mapping[str, tuple[int, ...]]],
        relations: Relations,
        masks: Mapping[int, Part],
    ) -> None:
        self.eager, self.graphs, self.groups, self.relations = eager, graphs, named, relations
        self.masks = masks
        self.numbers = [g.numbers if isinstance(g, Archived) else {} for g in graphs]
        #: What archives compute of no input, which `arrays` has beside PyTorch in its own tests.
        self.computed = [
            Computed(g, g.numbers) if isinstance(g, Archived) else None for g in graphs
        ]
        self.known: list[dict[str, Any]] = [{} for _ in graphs]
        self.drawn = [0] * len(graphs)

    def run(self, inputs: Sequence[Mapping[str, Array]], values: Mapping[str, Array]) -> None:
        if len({tuple(n.target for n in graph.nodes) for graph in self.graphs}) > 1:
            raise Unsupported("ranks run unlike graphs")
        for nodes in zip(*(graph.nodes for graph in self.graphs), strict=True):
            if _collective(nodes[0]).startswith((REDUCE, GATHER, SCATTER, EXCHANGE)):
                self.joined(nodes)
                continue
            for rank, node in enumerate(nodes):
                if node.op == PLACEHOLDER:
                    self.known[rank][node.name] = self.input_tensor(rank, node, inputs[rank])
                elif node.op == CONSTANT:
                    number = self.relations.constants.get(node.target, 0)
                    self.known[rank][node.name] = self.eager.tensor(np.asarray(number))
                elif node.op == CALL:
                    self.known[rank][node.name] = self.called(rank, node, values)

    def input_tensor(self, rank: int, node: Node, own: Mapping[str, Array]) -> Any:
        if node.name in self.numbers[rank]:
            return self.eager.tensor(self.numbers[rank][node.name])
        if node.name in self.relations.zeros or node.name not in own:
            return self.eager.of_type(np.zeros(tuple(node.shape or ())), node.dtype or "float32")
        return self.eager.of_type(
            complexes.numbers(own[node.name], node.dtype), node.dtype or "float32"
        )

    def argument(self, rank: int, x: Any) -> Any:
        name = operand(x)
        if name is not None:
            return self.known[rank][name]
        return [self.argument(rank, i) for i in x] if isinstance(x, (list, tuple)) else x

    def called(self, rank: int, node: Node, values: Mapping[str, Array]) -> Any:
        numbers = self.computed[rank]
        array = None if numbers is None else numbers.array(node.name)
        if array is not None:
            return self.eager.tensor(array)
        args = [self.argument(rank, a) for a in node.args]
        if node.target == GETITEM:
            return args[0][args[1]]
        if _collective(node).startswith(WAIT):
            return args[0]
        if node.target == "aten.native_dropout.default":
            x, p = args[0], args[1]
            mask = self.mask(rank, values)
            return (x * mask / (1 - p), mask)
        if node.target in ABOUT_SIZES:
            return ABOUT_SIZES[node.target](*args)
        kwargs = {k: self.argument(rank, v) for k, v in node.kwargs.items()}
        return self.eager.call(node.target, args, kwargs)

    def mask(self, rank: int, values: Mapping[str, Array]) -> Any:
        """A rank's part of the mask of its next random operator."""
        number = self.drawn[rank]
        self.drawn[rank] += 1
        whole = values.get(f"{MASK}{number}")
        if whole is None:
            raise Unsupported("a random operator of which no result is compared")
        part = self.masks.get(number)
        if part is not None:
            start = part.box.starts[rank]
            box = zip(start, part.shape, strict=True)
            whole = whole[tuple(slice(s, s + n) for s, n in box)]
        return self.eager.tensor(whole)

    def joined(self, nodes: Sequence[Node]) -> None:
        """A collective of all ranks."""
        given = [self.argument(rank, node.args[0]) for rank, node in enumerate(nodes)]
        for rank, node in enumerate(nodes):
            tag = str(node.args[-1])
            if tag not in self.groups[rank]:
                raise Unsupported(f"a group named {tag!r}, of which nothing says who is in it")
            members = self.groups[rank][tag]
            parts = [given[member] for member in members]
            name = _collective(node)
            if name.startswith(EXCHANGE):
                size, place = len(parts[0]) // len(members), members.index(rank)
                parts = [part[place * size :][:size] for part in parts]
            if name.startswith((GATHER, EXCHANGE)):
                args = [parts, 0]
                self.known[rank][node.name] = self.eager.call("aten.cat.default", args, {})
                continue
            pair = PAIRWISE.get(str(node.args[1]))
            if pair is None:
                raise Unsupported(f"a reduction by {node.args[1]}")
            total = parts[0]
            for part in parts[1:]:
                total = self.eager.call(pair, [total, part], {})
            if name.startswith(SCATTER):
                size = total.shape[0] // len(members)
                total = total[members.index(rank) * size :][:size]
            self.known[rank][node.name] = total


def _collective(node: Node) -> str:
    """A functional collective's name without its namespace; nothing of any other operator."""
    space = next((space for space in FUNCTIONAL if node.target.startswith(space)), None)
    return "" if space is None else node.target.removeprefix(space)


def _part(array: Array, output: Output, rank: int) -> Array:
    """What is compared of an output of the single side (-1) or of a rank."""
    if output.piece is None:
        return array
    dim, start, size = output.piece[0] if rank < 0 else output.piece[1]
    return array.take(range(start, start + size), dim)


def _pairs(
    both: read.Pairing,
    plan: Plan,
    actual: Mapping[int, Mapping[int, Array]],
    expected: Sequence[Mapping[str, Any]],
) -> list[tuple[str, Array, Array]]:
    """What is compared, of both sides: what the plan gives, and what PyTorch gives."""
    pairs = []
    for rank in (-1, *range(len(both.ranks))):
        outputs = (
            read.compared_outputs(both, rank)
            if rank >= 0
            else [{"n": o.single} for o in both.outputs]
        )
        for place, output in enumerate(both.outputs):
            name, value = operand(outputs[place]), both.values[rank][place]
            if name is None or value < 0 or value not in actual[rank]:
                continue
            where = "the single side" if rank < 0 else f"rank {rank}"
            wanted = _part(complexes.pairs(expected[rank + 1][name].numpy()), output, rank)
            pairs.append((f"{output.name} on {where}", actual[rank][value], wanted))
    return pairs

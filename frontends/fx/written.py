"""Operators that write their operand, in graphs whose values are read by name.

``y = aten.relu_.default(x)`` is read as a new value ``y``.  That is what it means as long as nobody
reads, later on, what was written under another name: ``x`` itself, or what shares its memory (a
view, or that of which it is one).  For example, after ``v = select(x, 1, 0); fill_(v, 0)`` a reader
of ``x`` sees the zeros, and by names it would not: such a graph is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.assumption import Assumption
from shardproof.frontends.fx.records import OUTPUT, Graph, Node, operands
from shardproof.frontends.untrusted.inert import printable

#: Operators of ATen whose results have memory of their own, whatever their arguments are.
_ALLOCATING: Final = frozenset(
    {
        *("linear", "addmm", "mm", "bmm", "baddbmm", "convolution", "conv1d", "conv2d", "conv3d"),
        *("batch_norm", "layer_norm", "native_layer_norm", "group_norm", "embedding", "cat"),
        *("add", "sub", "rsub", "mul", "div", "pow", "neg", "exp", "log", "sqrt", "rsqrt", "where"),
        *("relu", "gelu", "silu", "sigmoid", "tanh", "softmax", "_softmax", "log_softmax", "clone"),
        *("zeros", "ones", "full", "empty", "arange", "zeros_like", "ones_like", "empty_like"),
        *("full_like", "new_zeros", "new_ones", "new_full", "new_empty", "sum", "mean"),
        *("eq", "ne", "lt", "le", "gt", "ge", "masked_fill", "max_pool2d", "avg_pool2d"),
    }
)

#: Inputs that an assumption names.
MOST_NAMED: Final = 8
#: Python's augmented assignments, as ATen names them.
_AUGMENTED: Final = frozenset({"__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__"})


def check(graph: Graph) -> None:
    """Raise `InvalidInput`, naming the operator, where a value is read that was written under
    another name.

    Example: ``v = view(x); z = mul_(x, x); w = add(v, z)`` is refused at ``mul_``: ``v`` is no
    longer what it was; ``z = mul_(x, x); v = view(z); w = add(v, z)`` is not.
    """
    inputs_written(graph)


def inputs_written(graph: Graph) -> list[str]:
    """The inputs whose memory the graph writes, in order; raises as `check` does.

    Example: of ``v = view(x); z = mul_(v, y)`` it is ``["x"]``.
    """
    if not any(_writes(node) for node in graph.nodes):
        return []
    shared = _Shared()
    place: dict[str, int] = {}
    writers: dict[str, tuple[int, Node]] = {}
    for index, node in enumerate(graph.nodes):
        for name in (*operands(node.args), *operands(node.kwargs)):
            last, writer = writers.get(shared.root(name), (-1, node))
            if place[name] < last:
                raise InvalidInput(
                    f"writes memory that {printable(node.name, 80)} reads as "
                    f"{printable(name, 80)}: export a graph without operators that write "
                    "(program.run_decompositions({}))",
                    f"node {printable(writer.name, 80)} ({printable(writer.target, 80)})",
                )
        place[node.name] = index
        written = list(_written(node))
        for name in written or ([] if _allocates(node) else operands([node.args, node.kwargs])):
            before = [w for w in map(writers.get, (shared.root(node.name), shared.root(name))) if w]
            shared.join(node.name, name)
            if before:
                writers[shared.root(name)] = max(before, key=lambda w: w[0])
        for name in written:
            writers[shared.root(name)] = index, node
    return [node.name for node in graph.inputs if shared.root(node.name) in writers]


def assumed(graphs: Sequence[Graph]) -> list[Assumption]:
    """That no other input has the memory of one that a graph writes, where a graph does.

    Example: of graphs in which ``x`` is written by ``mul_``, one assumption, which names ``x``.
    """
    names = sorted({name for graph in graphs for name in inputs_written(graph)})
    if not names:
        return []
    listed = ", ".join(printable(name, 80) for name in names[:MOST_NAMED])
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    text = f"no two inputs share memory (written: {listed}{more})"
    return [Assumption("inferred", "memory of inputs", "", text)]


def _base(node: Node) -> str:
    return node.target.partition(".")[2].partition(".")[0]


def _writes(node: Node) -> bool:
    """Whether an operator writes an operand, by how ATen names those that do."""
    base = _base(node)
    if base == "batch_norm":
        return len(node.args) > 5 and node.args[5] is True
    return (
        (base.endswith("_") and not base.endswith("__"))
        or base in _AUGMENTED
        or "out" in node.kwargs
    )


def _written(node: Node) -> Iterator[str]:
    """The operands that it writes: the first, or the one to hold the result; of a batch norm in
    training the running statistics."""
    if _base(node) == "batch_norm":
        yield from operands(node.args[3:5] if _writes(node) else [])
    elif _writes(node):
        yield from operands(node.kwargs["out"] if "out" in node.kwargs else node.args[:1])


def _allocates(node: Node) -> bool:
    return node.op == OUTPUT or (node.target.startswith("aten.") and _base(node) in _ALLOCATING)


class _Shared:
    """Values that may share memory, as classes of names."""

    def __init__(self) -> None:
        self._above: dict[str, str] = {}

    def root(self, name: str) -> str:
        while (above := self._above.get(name, name)) != name:
            self._above[name] = self._above.get(above, above)
            name = above
        return name

    def join(self, name: str, other: str) -> None:
        self._above[self.root(name)] = self.root(other)

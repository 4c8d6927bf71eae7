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
        "lift_fresh_copy",
        *("zeros", "ones", "full", "empty", "arange", "zeros_like", "ones_like", "empty_like"),
        *("full_like", "new_zeros", "new_ones", "new_full", "new_empty", "sum", "mean"),
        *("eq", "ne", "lt", "le", "gt", "ge", "masked_fill", "max_pool2d", "avg_pool2d"),
        *("topk", "sort", "gather", "index", "index_select", "matmul", "stack", "cumsum", "argmax"),
        *("amax", "amin", "max", "min", "scatter", "one_hot", "bitwise_and", "bitwise_or"),
        *("logical_and", "logical_or", "logical_not", "bitwise_not", "remainder", "floor_divide"),
        *("abs", "sin", "cos", "square", "rms_norm", "scaled_dot_product_attention", "repeat"),
        *("tril", "triu", "var", "std", "any", "all", "clamp", "minimum", "maximum", "softplus"),
        *("index_put", "slice_scatter", "select_scatter", "scatter_add", "floor", "sign"),
    }
)

#: Inputs that an assumption names.
MOST_NAMED: Final = 8
#: Python's augmented assignments, as ATen names them.
_AUGMENTED: Final = frozenset({"__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__"})
#: Operators that change how a tensor lies, and no number of it: other views of it stay as they are.
_LIE_OTHERWISE: Final = frozenset(
    {
        *("t_", "transpose_", "swapaxes_", "swapdims_", "squeeze_", "unsqueeze_", "as_strided_"),
        *("resize_", "resize_as_", "set_"),
    }
)


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
    if not any(writes(node) for node in graph.nodes):
        return []
    shared = Shared()
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
        targets = list(written(node))
        for name in targets or ([] if allocates(node) else operands([node.args, node.kwargs])):
            before = [w for w in map(writers.get, (shared.root(node.name), shared.root(name))) if w]
            shared.join(node.name, name)
            if before:
                writers[shared.root(name)] = max(before, key=lambda w: w[0])
        for name in targets:
            writers[shared.root(name)] = index, node
    return [node.name for node in graph.inputs if shared.root(node.name) in writers]


def may_be_written(graph: Graph) -> set[str]:
    """The values that share memory, maybe, with what an operator of the graph writes.

    Example: of ``v = view(x); z = mul_(v, y)`` they are ``v``, ``x`` and ``z``.
    """
    shared, names = Shared(), list[str]()
    for node in graph.nodes:
        names += written(node)
        for name in () if allocates(node) else operands([node.args, node.kwargs]):
            shared.join(node.name, name)
    roots = {shared.root(name) for name in names}
    return {node.name for node in graph.nodes if shared.root(node.name) in roots}


def assumed(graphs: Sequence[Graph]) -> list[Assumption]:
    """That no other input has the memory of one that a graph writes, where a graph does; and that
    what it leaves there is nothing to anybody, where that is no output (`functional`).

    Example: of graphs in which ``x`` is written by ``mul_``, one assumption, which names ``x``.
    """
    left = sorted({name for graph in graphs for name in inputs_written(graph)})
    names = sorted({*left, *(name for graph in graphs for name in graph.written)})
    texts = [f"no two inputs share memory (written: {_listed(names)})"] if names else []
    texts += not_compared(left)
    return [Assumption("inferred", "memory of inputs", "", text) for text in texts]


def not_compared(names: Sequence[str]) -> list[str]:
    """That nothing is said of what programs leave in inputs, as a line, if there are any.

    Example: of the running mean ``b_mean``, "what programs leave in inputs is not compared:
    b_mean".
    """
    return [f"what programs leave in inputs is not compared: {_listed(names)}"] if names else []


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(printable(name, 80) for name in names[:MOST_NAMED]) + more


def _base(node: Node) -> str:
    return node.target.partition(".")[2].partition(".")[0]


def writes(node: Node) -> bool:
    """Whether an operator writes an operand, by how ATen names those that do.

    Example: ``add_`` does, and so does a batch norm in training.
    """
    base = _base(node)
    if base == "batch_norm":
        return len(node.args) > 5 and node.args[5] is True
    return (
        (base.endswith("_") and not base.endswith("__"))
        or base in _AUGMENTED
        or "out" in node.kwargs
    )


def written(node: Node) -> Iterator[str]:
    """The operands that it writes: the first, or the one to hold the result; of a batch norm in
    training the running statistics.

    Example: of ``add_(x, y)`` it is "x".
    """
    if _base(node) == "batch_norm":
        yield from operands(node.args[3:5] if writes(node) else [])
    elif writes(node):
        yield from operands(node.kwargs["out"] if "out" in node.kwargs else node.args[:1])


def without_writing(target: str) -> str | None:
    """The operator that gives what another one writes into its first operand; None: there is none,
    or nothing is written.

    Example: "aten.add.Tensor" of "aten.add_.Tensor".
    """
    space, _, rest = target.partition(".")
    base, _, overload = rest.partition(".")
    if space != "aten" or not base.endswith("_") or base in _AUGMENTED | _LIE_OTHERWISE:
        return None
    return f"{space}.{base.removesuffix('_')}.{overload}"


def allocates(node: Node) -> bool:
    """Whether the results of an operator have memory of their own, whatever its operands are.

    Example: those of ``add`` have, those of ``reshape`` may have.
    """
    return node.op == OUTPUT or (node.target.startswith("aten.") and _base(node) in _ALLOCATING)


class Shared:
    """Values that may share memory, as classes of names.

    Example: after ``join("v", "x")`` the root of both is one name.
    """

    def __init__(self) -> None:
        self._above: dict[str, str] = {}

    def root(self, name: str) -> str:
        """The name of a value's class.

        Example: of a value that was never joined it is its own.
        """
        while (above := self._above.get(name, name)) != name:
            self._above[name] = self._above.get(above, above)
            name = above
        return name

    def join(self, name: str, other: str) -> None:
        """Put two values into one class.

        Example: a view and what it shows.
        """
        self._above[self.root(name)] = self.root(other)

"""A graph whose operators write their operands, as one in which every value has a name of its own.

What is written is a tensor, or a view of one: of ``v = select(x, 1, 0); y = fill_(v, 0)`` the value
of ``y`` is that of ``v`` from then on, and ``x`` is what it was with that put in its place.  So a
write becomes the operator without it, ``x`` becomes ``select_scatter(x, y, 1, 0)``, and whoever
reads ``x``, or another view of it, afterwards reads the new one, or a view of that.

Views are those operators of ATen that always give one.  Of an operator that may give a view, or a
copy (``reshape``, ``contiguous``), nobody knows which from a graph: what is read afterwards of the
other one is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from msgspec.structs import replace

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.fx import written
from shardproof.frontends.fx.records import (
    CALL,
    GETITEM,
    Archived,
    Graph,
    Node,
    named,
    operand,
    operands,
)

#: Views that have the numbers of what they show in the same order.
_IN_ORDER: Final = frozenset(
    {
        *("aten.view.default", "aten.unsqueeze.default", "aten.detach.default"),
        *("aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims", "aten.alias.default"),
    }
)
#: Views with dimensions in another order; both undo themselves but for ``permute``.
_TURNED: Final = frozenset({"aten.transpose.int", "aten.t.default", "aten.permute.default"})
#: Views of a part, and the operator that puts one back.
_PARTS: Final = {
    "aten.slice.Tensor": "aten.slice_scatter.default",
    "aten.select.int": "aten.select_scatter.default",
}
#: Views that are read again after a write, but through which nothing is written.
_READ: Final = frozenset({"aten.expand.default", "aten.diagonal.default"})
#: Operators that give several views along a dimension, which is their last operand.
_SEVERAL: Final = frozenset(
    {
        *("aten.split.Tensor", "aten.split_with_sizes.default", "aten.chunk.default"),
        "aten.unbind.int",
    }
)
#: Memory that nothing has written, and a position behind all others.
_EMPTY: Final = frozenset(
    f"aten.{name}"
    for name in ("empty.memory_format", "empty_like.default", "new_empty.default", "empty.default")
)
MOST: Final = 1 << 62
#: What stands in the names of new nodes before their number.
MARK: Final = "@"
VIEWS: Final = _IN_ORDER | _TURNED | _READ | frozenset(_PARTS)


def functional(graph: Graph) -> Graph:
    """The graph without operators that write, where one of them is read under another name, or
    writes an input: what it leaves there is an output then, before the others.  Raises
    `InvalidInput` where what a value is then cannot be said.

    Example: ``y = div_(x, s); z = reshape(x, [8])`` becomes ``y = div(x, s); z = reshape(y, [8])``.
    """
    try:
        inputs = written.inputs_written(graph)
    except InvalidInput as refusal:
        return _Rewriting(graph, refusal).graph()
    if inputs:
        with suppress(InvalidInput):  # Written otherwise: that is not compared (`written.assumed`).
            return _Rewriting(graph, InvalidInput("what is left in an input")).graph()
    elif isinstance(graph, Archived) and graph.leaves:
        return replace(graph, written=graph.leaves)
    return graph


class _Rewriting:
    """A graph while it is written anew; ``refusal``: what is raised where that cannot be done.

    ``views``: of which tensor a value is a view, and by which steps; ``current``: what a tensor is
    now; ``version``: how often it was written; ``names``: as which node a value is read, at which
    version; ``parts``: of memory that nothing had written, what is there by now."""

    def __init__(self, graph: Graph, refusal: InvalidInput) -> None:
        self.before, self.refusal = graph, refusal
        self.nodes: list[Node] = []
        self.known = {node.name: node for node in graph.nodes}
        self.views: dict[str, tuple[str, tuple[Node, ...]]] = {}
        self.current: dict[str, str] = {}
        self.version: dict[str, int] = {}
        self.names: dict[str, tuple[int, str]] = {}
        self.shared = written.Shared()
        self.created: dict[str, int] = {}
        self.writes: list[tuple[int, str]] = []
        self.inputs: dict[str, None] = {}
        self.parts: dict[str, list[tuple[int, int, int, str]]] = {}

    def graph(self) -> Graph:
        """The new graph, which names the inputs that the old one writes."""
        if any(MARK in name for name in self.known):
            raise self.refusal  # New nodes would not have names of their own.
        for index, node in enumerate(self.before.nodes):
            self.created[node.name] = index
            args, keywords = self.read(node.args), self.read(node.kwargs)
            own = replace(node, args=args, kwargs=keywords)
            if not written.writes(node):
                self.nodes.append(own)
                self.result(node)
            else:
                self.write(own, node, index)
        inputs = [n.name for n in self.before.inputs if n.name in self.inputs]
        end = self.nodes.pop()
        left = [named(self.value(name)) for name in inputs]
        returned = replace(self.before, nodes=[end]).outputs
        self.nodes.append(replace(end, args=[[*left, *returned]]) if left else end)
        return replace(self.before, nodes=self.nodes, written=tuple(inputs))

    # -- reading ----------------------------------------------------------------------------------

    def read(self, x: Any) -> Any:
        """Arguments that name what their operands are now."""
        name = operand(x)
        if name is not None:
            return {"n": self.value(name)}
        if isinstance(x, (list, tuple)):
            return [self.read(one) for one in x]
        return {key: self.read(one) for key, one in x.items()} if isinstance(x, dict) else x

    def value(self, name: str) -> str:
        """The node that a value is now."""
        base, steps = self.views.get(name, (name, ()))
        self.refuse_doubt(base)
        version = self.version.get(base, 0)
        known, node = self.names.get(name, (0, name))
        if known != version:
            node = self.viewed(self.current.get(base, base), steps)
            self.names[name] = version, node
        return node

    def refuse_doubt(self, base: str) -> None:
        """Raise where another tensor was written that may be this one."""
        for index, other in reversed(self.writes):
            if index <= self.created[base]:
                return
            if other != base and self.shared.root(other) == self.shared.root(base):
                raise self.refusal

    def viewed(self, name: str, steps: Sequence[Node]) -> str:
        """A view of a node, by steps."""
        for step in steps:
            name = self.emit(step.target, [named(name), *step.args[1:]], step, **step.kwargs)
        return name

    def emit(self, target: str, args: list[Any], like: Node, **keywords: Any) -> str:
        """A new node, of the shape and type of ``like``."""
        name = f"{like.name}{MARK}{len(self.nodes)}"
        self.nodes.append(
            Node(name, CALL, target, args, keywords, like.shape, like.dtype, like.src)
        )
        return name

    # -- results ----------------------------------------------------------------------------------

    def result(self, node: Node) -> None:
        """Note of what a node is a view, or may be one."""
        step = self.step(node)
        given = list(operands([node.args, node.kwargs]))
        if step is None:
            whole = self.known.get(given[0]) if node.target == GETITEM and given else node
            if whole is None or not (whole.target in _SEVERAL or written.allocates(whole)):
                for name in given:
                    self.shared.join(node.name, self.views.get(name, (name, ()))[0])
            return
        name, own = step
        base, steps = self.views.get(name, (name, ()))
        self.views[node.name] = base, (*steps, own)
        self.names[node.name] = self.version.get(base, 0), node.name

    def step(self, node: Node) -> tuple[str, Node] | None:
        """What a node is a view of, and by which operator; None: it is no view."""
        if node.target in VIEWS and node.args and operand(node.args[0]) is not None:
            return str(operand(node.args[0])), node
        if node.target != GETITEM:
            return None
        whole = self.known.get(operand(node.args[0]) or "")
        if whole is None or whole.target not in _SEVERAL or operand(whole.args[0]) is None:
            return None
        name = str(operand(whole.args[0]))
        return name, self.part(node, whole, name)

    def part(self, node: Node, whole: Node, name: str) -> Node:
        """One of several views along a dimension, as a view by itself."""
        number = 1 if whole.target == "aten.unbind.int" else 2
        dim = whole.args[number] if len(whole.args) > number else whole.kwargs.get("dim", 0)
        rank = len(self.known[name].shape or ())
        place = node.args[1]
        if not isinstance(dim, int) or not isinstance(place, int):
            raise self.refusal
        dim %= max(rank, 1)
        if whole.target == "aten.unbind.int":
            return replace(node, target="aten.select.int", args=[named(name), dim, place])
        before = [
            (other.shape or [])[dim]
            for other in self.before.nodes
            if other.target == GETITEM
            and operand(other.args[0]) == whole.name
            and isinstance(other.args[1], int)
            and other.args[1] < place
        ]
        if len(before) != place or node.shape is None:
            raise self.refusal
        start = sum(before)
        args = [named(name), dim, start, start + node.shape[dim]]
        return replace(node, target="aten.slice.Tensor", args=args)

    # -- writing ----------------------------------------------------------------------------------

    def write(self, own: Node, node: Node, index: int) -> None:
        """A write: the operator without it, and what it is written into as it is afterwards."""
        targets = list(written.written(node))
        pure = written.without_writing(node.target)
        if len(targets) != 1 or pure is None or "out" in node.kwargs:
            raise self.refusal
        (name,) = targets
        base, steps = self.views.get(name, (name, ()))
        before = [self.current.get(base, base)]
        for step in steps:
            before.append(self.viewed(before[-1], [step]))
        self.nodes.append(self.copied(own) or replace(own, target=pure))
        made = node.name
        for step, inside in zip(reversed(steps), reversed(before[:-1]), strict=True):
            made = self.put_back(step, inside, made)
        version = self.version.get(base, 0) + 1
        self.version[base], self.current[base] = version, made
        self.views[node.name] = base, steps
        self.names[base] = version, made
        self.names[node.name] = self.names[name] = version, node.name
        self.writes.append((index, base))
        if base in {n.name for n in self.before.inputs}:
            self.inputs[base] = None

    def copied(self, node: Node) -> Node | None:
        """A copy as what is copied: of what it is written over nothing is left; None: another
        write, or what is copied is of another type."""
        if node.target != "aten.copy_.default" or len(node.args) < 2 or node.shape is None:
            return None
        source = self._like(operand(node.args[1]) or node.name)
        if source.dtype != node.dtype or source.shape is None:
            return None
        same = source.shape == node.shape
        target = "aten.alias.default" if same else "aten.expand.default"
        args = [node.args[1], *([] if same else [list(node.shape)])]
        return replace(node, target=target, args=args, kwargs={})

    def put_back(self, step: Node, into: str, made: str) -> str:
        """A tensor of which a view is now something else."""
        like = replace(self._like(into), name=step.name)
        if step.target in _IN_ORDER:
            return self.emit("aten.reshape.default", [named(made), list(like.shape or ())], like)
        if step.target == "aten.permute.default":
            order = [int(d) % len(step.args[1]) for d in step.args[1]]
            back = [order.index(d) for d in range(len(order))]
            return self.emit(step.target, [named(made), back], like)
        if step.target in _TURNED:
            return self.emit(step.target, [named(made), *step.args[1:]], like)
        if step.target in _PARTS and not step.kwargs:
            whole = self.joined(step, into, made, like)
            args = [named(into), named(made), *step.args[1:]]
            return whole or self.emit(_PARTS[step.target], args, like)
        raise self.refusal

    def joined(self, step: Node, into: str, made: str, like: Node) -> str:
        """Memory that nothing had written, all of whose parts along a dimension are there now, one
        behind the other; empty where it is none, or parts are missing."""
        rank, numbers = len(like.shape or ()), step.args[1:]
        if step.target != "aten.slice.Tensor" or not all(type(n) is int for n in numbers):
            return ""
        dim, start, stop, by = [*numbers, *(0, 0, MOST, 1)[len(numbers) :]][:4]
        size = (like.shape or [])[dim % rank] if rank else 0
        first, last, every = slice(start, stop, by).indices(size)
        before = self.parts.get(into, [] if self._like(into).target in _EMPTY else None)
        if before is None or every != 1:
            return ""
        parts = [*before, (dim % rank, first, last, made)]
        ends = sorted((a, b, name) for d, a, b, name in parts if d == dim % rank)
        beside = [b for _, b, _ in ends] == [*(a for a, _, _ in ends[1:]), size]
        if len(ends) == len(parts) and ends[0][0] == 0 and beside:
            names = [named(name) for _, _, name in ends]
            return self.emit("aten.cat.default", [names, dim % rank], like)
        args = [named(into), named(made), *numbers]
        name = self.emit(_PARTS[step.target], args, like)
        self.parts[name] = parts
        return name

    def _like(self, name: str) -> Node:
        """A node, of the graph or a new one."""
        if name in self.known:
            return self.known[name]
        return next(node for node in reversed(self.nodes) if node.name == name)

"""Tokens that are sorted by expert, computed on in groups, and put back: read in their own order.

A layer of experts sorts the chosen (token, expert) pairs by expert, takes the rows of the tokens in
that order, multiplies each expert's group of rows with its weights, and puts the results back where
they came from.  Which order that is the data say, and nothing depends on it: a function of each row
commutes with it, and the product of a group is that of each of its rows with the weights of the
expert that it chose.  So what leaves the sorted order again is written as it is in the order of the
pairs:

    ids, order = sort(chosen); y = grouped_mm(x[order // k], w, cumsum(histc(ids)))
    y[inverse of order]        is        sum over e of [chosen == e] (x, each row k times) @ w[e]

Nodes in the sorted order stay as they are, and are read by nobody then; where one is read by what
is not known here, nothing changes.  Source: the experts of transformers (``grouped_mm``), and
`torch._grouped_mm`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from shardproof.frontends.fx.records import CALL, GETITEM, Graph, Node, named, operand, operands

#: What stands in the names of new nodes before their number.
MARK: Final = "~"
#: Operators whose result at a position is made of the operands at that position alone.
_BY_ENTRY: Final = frozenset(
    {
        *("aten.silu.default", "aten.gelu.default", "aten.relu.default", "aten.sigmoid.default"),
        *("aten.tanh.default", "aten.mul.Tensor", "aten.add.Tensor", "aten.sub.Tensor"),
        *("aten.div.Tensor", "aten.clamp.default", "aten.to.dtype", "aten.alias.default"),
        *("aten.clone.default", "aten.mul.Scalar", "aten.add.Scalar", "aten.neg.default"),
    }
)
#: Operators along a dimension, which is this operand of theirs: rows are the first one.
_ALONG: Final[Mapping[str, int]] = {
    "aten.chunk.default": 2,
    "aten.split.Tensor": 2,
    "aten.unsqueeze.default": 1,
    "aten.slice.Tensor": 1,
}
_GROUPED: Final = frozenset(
    {"transformers.grouped_mm_fallback.default", "aten._grouped_mm.default"}
)
_SORT: Final = "aten.sort.default"
_EMPTY: Final = frozenset({"aten.empty_like.default", "aten.zeros_like.default"})
_ASIDE: Final = frozenset({*_EMPTY, _SORT})


class _Order(NamedTuple):
    """What a node is of the order ``key``, by which pairs are sorted: the order itself, or the
    order over ``by``, or its inverse, or how many pairs each expert has (``counts``), or where each
    expert's end (``ends``); or a tensor in that order, which is ``base`` in the order of pairs."""

    key: str
    kind: str
    by: int = 1
    base: str = ""


def in_order(graph: Graph) -> Graph:
    """The graph with what leaves a sorted order again written in the order of the pairs.

    Example: ``y[inverse]`` of a mixture of experts by `transformers`, as a sum over experts.
    """
    if not any(node.target in _GROUPED for node in graph.nodes):
        return graph
    if any(MARK in node.name for node in graph.nodes):
        return graph  # New nodes would not have names of their own.
    return _Reading(graph).graph()


class _Reading:
    """A graph while it is read: ``known``: its nodes, and new ones; ``orders``: what they are."""

    def __init__(self, graph: Graph) -> None:
        self.before = graph
        self.nodes: list[Node] = []
        self.known: dict[str, Node] = {}
        self.orders: dict[str, _Order] = {}

    def graph(self) -> Graph:
        for node in self.before.nodes:
            self.nodes.append(node)
            self.known[node.name] = node
            order = self.order(node)
            if order is not None and order.kind == "out":
                self.nodes[-1] = replace(
                    node, target="aten.alias.default", args=[named(order.base)], kwargs={}
                )
            elif order is not None:
                self.orders[node.name] = order
        return replace(self.before, nodes=self._read_nodes())

    def _read_nodes(self) -> list[Node]:
        """The nodes without those in sorted order that nobody reads any more."""
        read: set[str] = set()
        kept: list[Node] = []
        for node in reversed(self.nodes):
            aside = node.name in self.orders or MARK in node.name or node.target in _ASIDE
            if aside and node.name not in read:
                continue
            read.update(operands([node.args, node.kwargs]))
            kept.append(node)
        return kept[::-1]

    def emit(
        self, target: str, args: list[Any], like: Node, shape: Sequence[int], dtype: str
    ) -> str:
        name = f"{like.name}{MARK}{len(self.nodes)}"
        made = Node(name, CALL, target, args, {}, list(shape), dtype, like.src)
        self.nodes.insert(len(self.nodes) - 1, made)
        self.known[name] = made
        return name

    def of(self, x: Any) -> _Order | None:
        """What an argument is of an order."""
        return self.orders.get(operand(x) or "")

    # -- nodes ------------------------------------------------------------------------------------

    def order(self, node: Node) -> _Order | None:
        """What a node is of a sorted order; None: nothing that is known."""
        rule = _RULES.get(node.target)
        if rule is not None:
            return rule(self, node)
        if node.target in _BY_ENTRY or node.target in _ALONG:
            return self.by_rows(node)
        return None

    def item(self, node: Node) -> _Order | None:
        """A result of a sort, or a part of a tensor in sorted order."""
        whole = self.known.get(operand(node.args[0]) or "")
        if whole is None:
            return None
        if whole.target == _SORT:
            ids = self.known.get(operand(whole.args[0]) or "")
            if ids is None or len(ids.shape or ()) != 1 or len(whole.args) > 1 or whole.kwargs:
                return None
            kind = ("sorted", "order")[node.args[1]] if node.args[1] in (0, 1) else ""
            return _Order(ids.name, kind, base=ids.name) if kind else None
        order = self.orders.get(whole.name)
        if order is None or order.kind != "several":
            return None
        args = [named(order.base), node.args[1]]
        base = self.emit(GETITEM, args, node, node.shape or (), node.dtype or "")
        return order._replace(kind="sorted", base=base)

    def divided(self, node: Node) -> _Order | None:
        """Which token a pair is of: its number over how many each token has."""
        order = self.of(node.args[0])
        by = node.args[1] if len(node.args) == 2 else None
        if order is None or order.kind != "order" or type(by) is not int or by < 1:
            return None
        return order._replace(kind="token", by=by)

    def chosen(self, node: Node) -> _Order | None:
        """Rows in sorted order, or back in the order of pairs."""
        x = self.known.get(operand(node.args[0]) or "")
        index = node.args[1] if len(node.args) == 2 else None
        if x is None or not isinstance(index, list) or len(index) != 1 or not x.shape:
            return None
        order = self.of(index[0])
        if order is None:
            return None
        own = self.orders.get(x.name)
        if order.kind == "inverse":
            same = own is not None and own.kind == "sorted" and own.key == order.key
            return own._replace(kind="out") if own is not None and same else None
        if own is not None:
            return None
        count = self._count(order)
        if order.kind == "order":
            return order._replace(kind="sorted", base=x.name) if x.shape[0] == count else None
        if order.kind == "sorted":  # a row of a table for each pair, by what is sorted
            shape = (count, *x.shape[1:])
            args = [named(x.name), [named(order.base)]]
            base = self.emit("aten.index.Tensor", args, node, shape, x.dtype or "")
            return order._replace(base=base)
        if order.kind != "token" or x.shape[0] * order.by != count:
            return None
        return order._replace(kind="sorted", by=1, base=self._repeated(x, order.by, node))

    def _count(self, order: _Order) -> int:
        return (self.known[order.key].shape or [0])[0]

    def _repeated(self, x: Node, times: int, like: Node) -> str:
        """Each row ``times`` times."""
        shape = x.shape or [0]
        rows, rest, dtype = shape[0], shape[1:], x.dtype or ""
        apart = self.emit(
            "aten.unsqueeze.default", [named(x.name), 1], like, (rows, 1, *rest), dtype
        )
        shape = [rows, times, *rest]
        wide = self.emit("aten.expand.default", [named(apart), list(shape)], like, shape, dtype)
        shape = [rows * times, *rest]
        return self.emit("aten.reshape.default", [named(wide), list(shape)], like, shape, dtype)

    def by_rows(self, node: Node) -> _Order | None:
        """A function of each row of tensors in one sorted order."""
        own = [o for o in map(self.of, node.args) if o is not None]
        if not own or any((o.kind, o.key) != ("sorted", own[0].key) for o in own):
            return None
        if any(True for _ in operands(node.kwargs)):
            return None
        count = self._count(own[0])
        place = _ALONG.get(node.target)
        shape = self.known[operand(node.args[0]) or ""].shape or [] if place is not None else []
        if place is not None:
            dim = node.args[place] if len(node.args) > place else 0
            rank = len(shape) + (node.target == "aten.unsqueeze.default")
            if type(dim) is not int or dim % max(rank, 1) == 0:
                return None
        elif not all(self._broadcasts(x, node) for x in node.args):
            return None
        if node.shape is not None and (not node.shape or node.shape[0] != count):
            return None
        args = [x if (o := self.of(x)) is None else named(o.base) for x in node.args]
        base = self.emit(node.target, args, node, node.shape or (), node.dtype or "")
        self.known[base] = replace(
            self.known[base], kwargs=node.kwargs, shape=node.shape, dtype=node.dtype
        )
        self.nodes[-2] = self.known[base]
        return own[0]._replace(kind="several" if node.shape is None else "sorted", base=base)

    def _broadcasts(self, x: Any, node: Node) -> bool:
        """Whether an operand is in the sorted order, row by row, or the same for every row."""
        name, rank = operand(x), len(node.shape or [])
        if name is None:
            return not any(True for _ in operands(x))
        shape = self.known[name].shape or []
        if name in self.orders:
            return len(shape) == rank
        return len(shape) < rank or shape[0] == 1

    # -- experts ----------------------------------------------------------------------------------

    def counted(self, node: Node) -> _Order | None:
        """How many pairs each expert has."""
        order = self.of(node.args[0]) if node.args else None
        if order is None or order.kind != "sorted" or len(node.args) != 4 or node.kwargs:
            return None
        bins, low, high = node.args[1:]
        base = self._source(order.base)
        if base != order.key or (low, high) != (0, bins - 1) or self._experts(base) != bins:
            return None
        return order._replace(kind="counts", by=bins)

    def _source(self, name: str) -> str:
        """What was cast to another element type, before that."""
        node = self.known[name]
        while node.target in ("aten.to.dtype", "aten.alias.default"):
            node = self.known[operand(node.args[0]) or ""]
        return node.name

    def _experts(self, name: str) -> int:
        """Of how many experts ids are, which ``topk`` gave of scores; 0: nobody knows."""
        node = self.known[name]
        while node.target in (
            "aten.reshape.default",
            "aten.view.default",
            "aten.flatten.using_ints",
        ):
            node = self.known[operand(node.args[0]) or ""]
        whole = self.known.get(operand(node.args[0]) or "") if node.target == GETITEM else None
        if whole is None or whole.target != "aten.topk.default" or node.args[1] != 1:
            return 0
        scores = self.known[operand(whole.args[0]) or ""].shape or [0]
        dim = whole.args[2] if len(whole.args) > 2 else -1
        return scores[-1] if dim in (-1, len(scores) - 1) else 0

    def ended(self, node: Node) -> _Order | None:
        """Where each expert's pairs end."""
        order = self.of(node.args[0])
        if order is None or order.kind != "counts" or node.args[1:2] not in ([0], [-1]):
            return None
        return order._replace(kind="ends")

    def grouped(self, node: Node) -> _Order | None:
        """Each group of rows times its expert's matrix."""
        if len(node.args) < 2:
            return None
        x, ends = self.of(node.args[0]), self.of([*node.args[2:3], node.kwargs.get("offs")][0])
        weights = self.known.get(operand(node.args[1]) or "")
        if (
            x is None
            or ends is None
            or weights is None
            or (x.kind, ends.kind) != ("sorted", "ends")
        ):
            return None
        shape = weights.shape or []
        if x.key != ends.key or len(shape) != 3 or shape[0] != ends.by or node.shape is None:
            return None
        more = [*node.args[3:], *(x for key, x in node.kwargs.items() if key != "offs")]
        if any(value is not None for value in more):
            return None
        count, dtype = self._count(x), node.dtype or ""
        pairs = (count, shape[0])
        flags = self.emit("aten.one_hot.default", [named(x.key), shape[0]], node, pairs, "int64")
        factors = self.emit("aten.to.dtype", [named(flags), dtype], node, pairs, dtype)
        given = [named(x.base), named(weights.name), named(factors)]
        args = ["nd,edf,ne->nf", given]
        base = self.emit("aten.einsum.default", args, node, node.shape, dtype)
        return x._replace(base=base)

    def put(self, node: Node) -> _Order | None:
        """The inverse of an order: positions, written where it says."""
        if len(node.args) != 3 or not isinstance(node.args[1], list) or len(node.args[1]) != 1:
            return None
        order, into = self.of(node.args[1][0]), self.known.get(operand(node.args[0]) or "")
        positions = self.known.get(operand(node.args[2]) or "")
        if order is None or order.kind != "order" or into is None or positions is None:
            return None
        counted = positions.target == "aten.arange.default" and positions.args[:1] == [
            self._count(order)
        ]
        plain = counted and len([a for a in positions.args if type(a) is int]) == 1
        same = into.shape == positions.shape == [self._count(order)]
        return order._replace(kind="inverse") if plain and same and into.target in _EMPTY else None


_Rule = Callable[[_Reading, Node], "_Order | None"]
_RULES: Final[Mapping[str, _Rule]] = {
    GETITEM: _Reading.item,
    "aten.floor_divide.default": _Reading.divided,
    "aten.index.Tensor": _Reading.chosen,
    "aten.histc.default": _Reading.counted,
    "aten.cumsum.default": _Reading.ended,
    "aten.index_put.default": _Reading.put,
    "aten.index_put_.default": _Reading.put,
    **dict.fromkeys(_GROUPED, _Reading.grouped),
}

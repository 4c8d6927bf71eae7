"""Tokens that are sorted by expert, computed on in groups, and put back: read in their own order.

A layer of experts sorts the chosen (token, expert) pairs by expert, takes the rows of the tokens in
that order, multiplies each expert's group of rows with its weights, and puts the results back where
they came from.  Which order that is the data say, and nothing depends on it: a function of each row
commutes with it, and the product of a group is that of each of its rows with the weights of the
expert that it chose.  So what leaves the sorted order again is written as it is in the order of the
pairs:

    ids, order = sort(chosen); y = grouped_mm(x[order // k], w, cumsum(histc(ids)))
    y[inverse of order]        is        sum over e of [chosen == e] (x, each row k times) @ w[e]

What is added up for each token (`index_add` at ``order // k``) is the sum over its k pairs.

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
_SORTS: Final = frozenset({"aten.sort.default", "aten.sort.stable"})
_ARGSORTS: Final = frozenset({"aten.argsort.default", "aten.argsort.stable"})
_EMPTY: Final = frozenset({"aten.empty_like.default", "aten.zeros_like.default"})
_ASIDE: Final = frozenset({*_EMPTY, *_SORTS, *_ARGSORTS, "aten._assert_tensor_metadata.default"})
#: Another shape of the same entries in the same order.
_RESHAPES: Final = frozenset(
    {"aten.reshape.default", "aten.view.default", "aten.flatten.using_ints"}
)
#: Which operand names the dimension along which a choice is made.
_CHOICES: Final = {"aten.topk.default": 2, "aten.argmax.default": 1, "aten.max.dim": 1}
#: Types that have the numbers of all pairs.
_NUMBERS: Final = frozenset({"int32", "int64", "float32", "float64"})
_CASTS: Final = frozenset({"aten.to.dtype", "aten.alias.default"})


class _Order(NamedTuple):
    """What a node is of the order ``key``, by which pairs are sorted (the node that sorts): the
    order itself, or the order over ``by`` (``token``; ``wide``: in a row of equal entries), or its
    inverse, or a tensor in that order, which is ``base`` in the order of pairs; or of the ids
    ``key``: which expert a pair has (``flags``), or how many pairs each expert has (``counts``), or
    where each expert's end (``ends``)."""

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
    """A graph while it is read: ``known``: its nodes, and new ones; ``orders``: what they are;
    ``ids``: the ids of all pairs that a node sorts."""

    def __init__(self, graph: Graph) -> None:
        self.before = graph
        self.ids: dict[str, str] = {}
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
        if whole.target in _SORTS:
            order = self.arranged(whole)
            if order is None or order.kind != "order" or node.args[1] not in (0, 1):
                return None
            return order._replace(kind=("sorted", "order")[node.args[1]])
        order = self.orders.get(whole.name)
        if order is None or order.kind != "several":
            return None
        args = [named(order.base), node.args[1]]
        base = self.emit(GETITEM, args, node, node.shape or (), node.dtype or "")
        return order._replace(kind="sorted", base=base)

    def arranged(self, node: Node) -> _Order | None:
        """The order that sorts ids, the smallest first; of an order, its inverse."""
        ids = self.known.get(operand(node.args[0]) or "")
        given = dict(zip(("dim", "descending"), node.args[1:], strict=False)) | node.kwargs
        if ids is None or len(ids.shape or ()) != 1 or given.pop("stable", None) not in _FLAGS:
            return None
        if given.pop("dim", -1) not in (0, -1) or given.pop("descending", False) or given:
            return None
        own = self.orders.get(ids.name)
        if own is not None:
            return own._replace(kind="inverse") if own.kind == "order" else None
        self.ids[node.name] = ids.name
        return _Order(node.name, "order", base=ids.name)

    def divided(self, node: Node) -> _Order | None:
        """Which token a pair is of: its number over how many each token has."""
        order = self.of(node.args[0])
        by = node.args[1] if len(node.args) == 2 else None
        if order is None or order.kind != "order" or type(by) is not int or by < 1:
            return None
        if node.kwargs.get("rounding_mode", "floor") != "floor":
            return None
        return order._replace(kind="token", by=by)

    def widened(self, node: Node) -> _Order | None:
        """The token of each pair, in a column, or of a column in rows of equal entries."""
        order = self.of(node.args[0])
        tokens = order is not None and order.kind in ("order", "token", "wide")
        if order is None or not tokens or len(node.shape or ()) != 2:
            return self.by_rows(node)
        count, width = node.shape or (0, 0)
        alike = count == self._count(order) and (order.kind == "wide" or width == 1)
        return order._replace(kind="wide") if alike else None

    def gathered(self, node: Node) -> _Order | None:
        """Rows of tokens by `gather`, whose ids are the same along each row."""
        index = self.of(node.args[2]) if len(node.args) == 3 and node.args[1] == 0 else None
        x = self.known.get(operand(node.args[0]) or "")
        if x is None or index is None or index.kind != "wide" or x.name in self.orders:
            return None
        if (node.shape or [])[1:] != (x.shape or [])[1:]:
            return None
        return self._rows_of_tokens(x, index, node)

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
            if node.shape != [*shape]:
                return None
            args = [named(x.name), [named(order.base)]]
            base = self.emit("aten.index.Tensor", args, node, shape, x.dtype or "")
            return order._replace(base=base)
        return self._rows_of_tokens(x, order, node) if order.kind == "token" else None

    def _rows_of_tokens(self, x: Node, order: _Order, like: Node) -> _Order | None:
        """A row of a tensor for each pair, its token's."""
        if not x.shape or x.shape[0] * order.by != self._count(order):
            return None
        return order._replace(kind="sorted", by=1, base=self._repeated(x, order.by, like))

    def _count(self, order: _Order) -> int:
        """How many pairs there are."""
        return (self.known[self.ids[order.key]].shape or [0])[0]

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
        if len(node.args) != 4 or node.kwargs:
            return None
        bins, low, high = node.args[1:]
        key = self._ids(node.args[0])
        if (low, high) != (0, bins - 1) or self._experts(key) != bins:
            return None
        return _Order(key, "counts", by=bins)

    def flagged(self, node: Node) -> _Order | None:
        """Which expert each pair has, as a row of 1 and 0."""
        key = self._ids(node.args[0])
        count = node.args[1] if len(node.args) == 2 else 0
        if not count or self._experts(key) != count:
            return None
        return _Order(key, "flags", by=count)

    def totalled(self, node: Node) -> _Order | None:
        """How many pairs each expert has: the sum of what each pair has."""
        order, rank = self.of(node.args[0]), 0
        if order is not None and order.kind == "flags":
            rank = len(self.known[operand(node.args[0]) or ""].shape or ())
        dims = node.args[1] if len(node.args) == 2 else []
        whole = [d % rank for d in dims] if rank and isinstance(dims, list) else []
        if order is None or not rank or sorted(whole) != list(range(rank - 1)):
            return None
        return order._replace(kind="counts")

    def cast(self, node: Node) -> _Order | None:
        """Numbers of pairs in another element type are those numbers."""
        order = self.of(node.args[0])
        if order is None or order.kind in ("sorted", "several") or node.dtype not in _NUMBERS:
            return self.by_rows(node)
        return order

    def _ids(self, x: Any) -> str:
        """The ids that an operand is made of, in sorted order or as they were."""
        order, name = self.of(x), operand(x) or ""
        if order is not None:
            return self._source(order.base) if order.kind == "sorted" else ""
        return self._source(name) if name in self.known else ""

    def _source(self, name: str) -> str:
        """What was cast to another type of numbers, or another shape, before that."""
        node = self.known[name]
        while node.dtype in _NUMBERS and (node.target in _CASTS or node.target in _RESHAPES):
            node = self.known[operand(node.args[0]) or ""]
        return node.name

    def _experts(self, name: str) -> int:
        """Of how many experts ids are, which ``topk`` or a maximum gave of scores; 0: nobody
        knows."""
        whole = self.known.get(name)
        if whole is not None and whole.target == GETITEM and whole.args[1] == 1:
            whole = self.known.get(operand(whole.args[0]) or "")
        place = _CHOICES.get(whole.target) if whole is not None else None
        if whole is None or place is None or whole.kwargs:
            return 0
        scores = self.known[operand(whole.args[0]) or ""].shape or [0]
        default = -1 if whole.target == "aten.topk.default" else None
        dim = whole.args[place] if len(whole.args) > place else default
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
        ids = self.ids[x.key]
        if self._source(ids) != ends.key or node.shape is None:
            return None
        if len(shape) != 3 or shape[0] != ends.by:
            return None
        more = [*node.args[3:], *(x for key, x in node.kwargs.items() if key != "offs")]
        if any(value is not None for value in more):
            return None
        count, dtype = self._count(x), node.dtype or ""
        pairs = (count, shape[0])
        args = [named(ids), shape[0]]
        flags = self.emit("aten.one_hot.default", args, node, pairs, "int64")
        factors = self.emit("aten.to.dtype", [named(flags), dtype], node, pairs, dtype)
        given = [named(x.base), named(weights.name), named(factors)]
        args = ["nd,edf,ne->nf", given]
        base = self.emit("aten.einsum.default", args, node, node.shape, dtype)
        return x._replace(base=base)

    def put(self, node: Node) -> _Order | None:
        """What is written where an order says: positions, which are its inverse then, or rows in
        sorted order, which are back in the order of pairs; or added up for each token."""
        if len(node.args) < 3 or not isinstance(node.args[1], list) or len(node.args[1]) != 1:
            return None
        order, into = self.of(node.args[1][0]), self.known.get(operand(node.args[0]) or "")
        source = self.known.get(operand(node.args[2]) or "")
        if order is None or into is None or source is None or node.kwargs:
            return None
        if node.args[3:] == [True]:  # a row of ids is a row of rows
            return None if order.kind == "wide" else self._added(node, into, order, source)
        if order.kind != "order" or node.args[3:] not in ([], [False]):
            return None
        own = self.orders.get(source.name)
        if into.target not in _EMPTY or into.shape != source.shape:
            return None
        if own is not None:
            same = (own.kind, own.key) == ("sorted", order.key)
            return own._replace(kind="out") if same else None
        counted = source.target == "aten.arange.default" and source.args[:1] == [self._count(order)]
        plain = counted and len([a for a in source.args if type(a) is int]) == 1
        return order._replace(kind="inverse") if plain else None

    def added(self, node: Node) -> _Order | None:
        """Rows in sorted order, added up for each token (`index_add`, `scatter_add`)."""
        if len(node.args) != 4 or node.args[1] != 0 or node.kwargs.get("alpha", 1) != 1:
            return None
        into, source = (self.known.get(operand(node.args[n]) or "") for n in (0, 3))
        order = self.of(node.args[2])
        if into is None or source is None or order is None:
            return None
        scatters = node.target in _SCATTERS
        if scatters and self.known[operand(node.args[2]) or ""].shape != source.shape:
            return None
        if scatters != (order.kind == "wide"):
            return None
        return self._added(node, into, order, source)

    def _added(self, node: Node, into: Node, order: _Order, source: Node) -> _Order | None:
        own = self.orders.get(source.name)
        if own is None or (own.kind, own.key) != ("sorted", order.key):
            return None
        if order.kind not in ("order", "token", "wide"):
            return None
        shape, rest = into.shape or [0], (source.shape or [])[1:]
        if shape[0] * order.by != self._count(order) or shape[1:] != rest:
            return None
        dtype = source.dtype or ""
        apart = [shape[0], order.by, *rest]
        args = [named(own.base), list(apart)]
        pairs = self.emit("aten.reshape.default", args, node, apart, dtype)
        args = [named(pairs), [1]]
        total = self.emit("aten.sum.dim_IntList", args, node, shape, dtype)
        both = [named(into.name), named(total)]
        base = self.emit("aten.add.Tensor", both, node, shape, node.dtype or "")
        return own._replace(kind="out", base=base)


_FLAGS: Final = (None, True, False)
_SCATTERS: Final = frozenset({"aten.scatter_add.default", "aten.scatter_add_.default"})
_Rule = Callable[[_Reading, Node], "_Order | None"]
_RULES: Final[Mapping[str, _Rule]] = {
    GETITEM: _Reading.item,
    **dict.fromkeys(_ARGSORTS, _Reading.arranged),
    **dict.fromkeys(_CASTS, _Reading.cast),
    **dict.fromkeys(_RESHAPES, _Reading.widened),
    "aten.unsqueeze.default": _Reading.widened,
    "aten.expand.default": _Reading.widened,
    "aten.floor_divide.default": _Reading.divided,
    "aten.div.Tensor_mode": _Reading.divided,
    "aten.gather.default": _Reading.gathered,
    "aten.one_hot.default": _Reading.flagged,
    "aten.sum.dim_IntList": _Reading.totalled,
    "aten.index.Tensor": _Reading.chosen,
    "aten.histc.default": _Reading.counted,
    "aten.cumsum.default": _Reading.ended,
    "aten.index_put.default": _Reading.put,
    "aten.index_put_.default": _Reading.put,
    **dict.fromkeys(("aten.index_add.default", "aten.index_add_.default"), _Reading.added),
    **dict.fromkeys(sorted(_SCATTERS), _Reading.added),
    **dict.fromkeys(_GROUPED, _Reading.grouped),
}

"""The word of the largest score, and the largest scores, of a vocabulary that ranks divide.

Greedy decoding gathers two numbers of each row from each rank, its largest score and where that is,
and takes the place of the rank whose score is the largest::

    value, place = scores.max(-1)                               # of this rank's words
    values, places = gathered(value), gathered(place + first)   # [rows, ranks]
    word = places.gather(-1, values.argmax(-1, keepdim=True))

That is the first place of the largest score among all words, where ranks have consecutive words in
their order in the group: of equal scores both take the first one (the documentation of `argmax` and
`max` says so).  So the word is written as the place of the maximum of gathered scores, on all ranks
of the group or on none; what the ranks exchanged before is left as it is.

The same word comes of two all-reduces: ranks whose largest score is the largest of all give its
place, the others a number beyond all places, and the least of these is taken.  And the k largest of
scores of which each rank sends its k largest are those of all scores, whichever ranks they are of.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Final, NamedTuple, cast

import numpy as np
from msgspec.structs import replace

from shardproof.frontends.fx import groups
from shardproof.frontends.fx.arrays import Array
from shardproof.frontends.fx.computed import Computed
from shardproof.frontends.fx.records import CALL, GETITEM, Graph, Node, named, operand, operands

#: What stands in the names of new nodes before their number.
MARK: Final = "~w"
_PARTS: Final = frozenset({"aten.chunk.default", "aten.split.Tensor", "aten.unbind.int"})
#: Operators whose entries are those of their operands, elsewhere.
_MOVES: Final = frozenset(
    {
        *("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default"),
        *(
            "aten.unsqueeze.default",
            "aten.squeeze.dim",
            "aten.squeeze.dims",
            "aten.squeeze.default",
        ),
        *("aten.permute.default", "aten.transpose.int", "aten.t.default", "aten.select.int"),
        *("aten.slice.Tensor", "aten.cat.default", "aten.stack.default", "aten.flatten.using_ints"),
        *("aten.clone.default", "aten.contiguous.default", "aten.alias.default", *_PARTS),
    }
)
_GATHER: Final = "_c10d_functional.all_gather_into_tensor.default"
_WAIT: Final = "_c10d_functional.wait_tensor.default"
_REDUCE: Final = "_c10d_functional.all_reduce.default"
_TOPK: Final = "aten.topk.default"
_COLLECTIVES: Final = "_c10d_functional."
#: Tensors of more entries are not looked at.
_MOST: Final = 1 << 20


class Word(NamedTuple):
    """A node that chooses a word: of ``scores`` along ``dim``, of ``members`` ranks of a group, of
    which this one's begin at ``first``; ``before``: how many collectives come before it; ``past``:
    the number that stands for no place (None: there is none); ``most``: how many of the largest
    scores it is, along which dimension, and whether these are the largest (None: it is a place).

    Example: of rank 1 of two with six words each ``first`` is 6.
    """

    node: str
    scores: Node
    dim: int
    members: int
    group: str
    first: int
    before: int
    past: int | None = None
    most: tuple[int, int, bool] | None = None


class _Gathered(NamedTuple):
    """What each entry of a tensor is: of which rank, by its number in the group, and which entry of
    ``node``, which a rank sends."""

    node: str
    ranks: Array
    entries: Array
    members: int
    group: str


def whole_rows(graphs: list[Graph]) -> list[Graph]:
    """Graphs of all ranks with words that each takes from gathered scores.

    Example: where rank 1 adds another number than 6 to the places of its six words, all graphs are
    left as they are.
    """
    naming = [groups.named(graph.nodes) for graph in graphs]
    words = [
        [
            word._replace(members=word.members or sum(word.group in n for n in naming))
            for word in own
        ]
        for own in (_Reading(graph).words() for graph in graphs)
    ]
    if len(graphs) < 2 or not words[0] or len({len(own) for own in words}) > 1:
        return graphs
    alike = [n for n, row in enumerate(zip(*words, strict=True)) if _consecutive(row)]
    if not alike:
        return graphs
    return [
        _written(graph, {own[n].node: own[n] for n in alike})
        for graph, own in zip(graphs, words, strict=True)
    ]


def _consecutive(words: Sequence[Word]) -> bool:
    """Whether ranks choose the same word, by places that are consecutive in each group."""
    of_groups: dict[str, list[Word]] = {}
    for word in words:
        of_groups.setdefault(word.group, []).append(word)
    forms = {
        (w.node, w.dim, w.members, w.before, w.past, w.most, tuple(w.scores.shape or ()))
        for w in words
    }
    return len(forms) == 1 and all(
        len(own) == word.members
        and (word.most is not None or word.first == place * _size(word))
        and (word.past is None or word.past >= word.members * _size(word))
        for own in of_groups.values()
        for place, word in enumerate(own)
    )


def _size(word: Word) -> int:
    return (word.scores.shape or ())[word.dim]


class _Reading:
    """A graph in which words are looked for."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes = {node.name: node for node in graph.nodes}

    def words(self) -> list[Word]:
        """The nodes that choose a word, in the order of the graph."""
        words: list[Word] = []
        before = 0
        for node in self.graph.nodes:
            before += node.target.startswith(_COLLECTIVES) and node.target != _WAIT
            word = (
                self._word(node, before) or self._least(node, before) or self._scores(node, before)
            )
            if word is not None:
                words.append(word)
        return words if all(MARK not in name for name in self.nodes) else []

    def _word(self, node: Node, before: int) -> Word | None:
        if node.target != "aten.gather.default" or len(node.args) != 3 or node.kwargs:
            return None
        largest = self._largest(operand(node.args[2]), place=True)
        if largest is None or not largest[1]:
            return None
        whole, at = largest[0], largest[2]
        values, places = self._gathered(whole), self._gathered(operand(node.args[0]))
        if values is None or places is None or node.args[1] % values.ranks.ndim != at:
            return None
        if values[3:] != places[3:] or values.ranks.shape != places.ranks.shape:
            return None
        value = self._of_scores(values.node, places=False)
        place = self._of_scores(places.node, places=True)
        if value is None or place is None or value[:2] != place[:2]:
            return None
        rows = value[3].ravel()[values.entries], place[3].ravel()[places.entries]
        own = np.moveaxis(rows[0], at, 0)
        ranks = np.moveaxis(values.ranks, at, 0)
        numbers = np.arange(values.members).reshape(-1, *(1,) * (own.ndim - 1))
        if not (
            np.array_equal(*rows)
            and np.array_equal(values.ranks, places.ranks)
            and np.array_equal(ranks, np.broadcast_to(numbers, (values.members, *own.shape[1:])))
            and np.array_equal(own, np.broadcast_to(own[:1], own.shape))
            and np.array_equal(own[0].ravel(), np.arange(value[3].size))
        ):
            return None
        scores, dim = self.nodes[value[0]], value[1]
        return Word(node.name, scores, dim, values.members, values.group, place[2], before)

    def _least(self, node: Node, before: int) -> Word | None:
        """The least place that a rank gives whose largest score is the largest of all."""
        chosen = self._reduced(node, "min")
        choice = self.nodes.get(chosen[0]) if chosen else None
        if chosen is None or choice is None or choice.target != "aten.where.ScalarOther":
            return None
        mask, numbers, past = (*choice.args, None)[:3]
        equal = self.nodes.get(operand(mask) or "")
        place = self._of_scores(operand(numbers), places=True)
        if equal is None or equal.target != "aten.eq.Tensor" or place is None:
            return None
        for own, all_ranks in (equal.args[:2], equal.args[1::-1]):
            whole = self.nodes.get(operand(all_ranks) or "")
            most = self._reduced(whole, "max") if whole else None
            sides = operand(own), most[0] if most else None
            values = [self._of_scores(name, places=False) for name in sides]
            if most is None or most[1] != chosen[1] or type(past) is not int:
                continue
            rows = [x[3] for x in (*values, place) if x is not None and x[:2] == place[:2]]
            order = np.arange(place[3].size)
            if len(rows) == 3 and all(np.array_equal(x.ravel(), order) for x in rows):
                scores = self.nodes[place[0]]
                return Word(node.name, scores, place[1], 0, chosen[1], place[2], before, past)
        return None

    def _reduced(self, wait: Node, how: str) -> tuple[str, str] | None:
        """What a rank gives to an all-reduce, and its group; None: it is none of this kind."""
        node = self.nodes.get(operand(wait.args[0]) or "") if wait.target == _WAIT else None
        if node is None or node.target != _REDUCE or len(node.args) != 3:
            return None
        given, kind, group = operand(node.args[0]), node.args[1], node.args[2]
        if given is None or kind != how or not isinstance(group, str):
            return None
        return given, group

    def _scores(self, node: Node, before: int) -> Word | None:
        """The k largest of what all ranks of a group sent of their k largest scores."""
        outer = self._topk(node.name)
        sent = self._gathered(outer[0]) if outer else None
        moved = self._source(sent.node) if sent else None
        inner = self._topk(moved[0]) if moved else None
        if outer is None or sent is None or moved is None or inner is None:
            return None
        (_, count, at, largest), (name, own, dim, alike) = outer, inner
        if count > own or largest != alike or sent.ranks.shape[at] != sent.members * own:
            return None
        shape = self.nodes[moved[0]].shape or ()
        entries = np.moveaxis(np.arange(prod(shape)).reshape(shape), dim, -1)
        order = np.empty(prod(shape), dtype=np.int64)
        order[entries.ravel()] = np.arange(prod(shape))
        rows, places = np.divmod(order[moved[1].ravel()[sent.entries]], own)
        lines = np.moveaxis(sent.ranks * own + places, at, -1).reshape(-1, sent.members * own)
        numbers = np.moveaxis(rows, at, -1).reshape(lines.shape)
        whole = np.arange(lines.shape[1])
        if not ((np.sort(lines) == whole).all() and (np.arange(len(lines)) == numbers.T).all()):
            return None
        most = count, at, largest
        scores = self.nodes[name]
        return Word(node.name, scores, dim, sent.members, sent.group, 0, before, most=most)

    def _topk(self, name: str | None) -> tuple[str, int, int, bool] | None:
        """Of what a node is the largest entries, how many, along which dimension, and whether they
        are the largest; None: it is something else, or in no order."""
        node = self.nodes.get(name or "")
        if node is None or node.target != GETITEM or node.args[1] != 0:
            return None
        whole = self.nodes[operand(node.args[0]) or ""]
        scores = operand(whole.args[0]) if whole.target == _TOPK else None
        if scores is None or whole.kwargs:
            return None
        given: list[Any] = [*whole.args[1:], *(-1, True, True)[len(whole.args) - 2 :]]
        count, dim, largest, ordered = given[:4]
        rank = len(self.nodes[scores].shape or ())
        if not (type(count) is type(dim) is int and ordered is True and rank):
            return None
        return scores, count, dim % rank, largest is True

    def _source(self, name: str | None) -> tuple[str, Array] | None:
        """The one node whose entries a node has, and which entry each of its own is."""
        if name is None:
            return None
        leaves, left, seen = set[str](), [name], set[str]()
        while left:
            one = left.pop()
            if one in seen:
                continue
            seen.add(one)
            if self._moves(self.nodes[one]):
                left += operands(self.nodes[one].args)
            else:
                leaves.add(one)
        if len(leaves) != 1:
            return None
        (root,) = leaves
        shape = tuple(self.nodes[root].shape or ())
        if not 0 < prod(shape) <= _MOST:
            return None
        entries = np.arange(prod(shape)).reshape(shape)
        made = Computed(self.graph, {root: entries}).array(name)
        return None if made is None else (root, made.astype(np.int64))

    def _moves(self, node: Node) -> bool:
        if node.target == GETITEM:
            whole = self.nodes.get(operand(node.args[0]) or "")
            return whole is not None and whole.target in _PARTS
        return node.op == CALL and node.target in _MOVES

    def _gathered(self, name: str | None) -> _Gathered | None:
        """What a rank sent of a tensor that holds what all ranks of a group sent."""
        moved = self._source(name)
        wait = self.nodes[moved[0]] if moved else None
        if moved is None or wait is None or wait.target != _WAIT:
            return None
        node = self.nodes[operand(wait.args[0]) or ""]
        sent = operand(node.args[0]) if node.args else None
        if node.target != _GATHER or sent is None or len(node.args) != 3:
            return None
        own = prod(self.nodes[sent].shape or ())
        count, group = node.args[1:]
        if not isinstance(group, str) or own * count != prod(wait.shape or ()):
            return None
        return _Gathered(sent, moved[1] // own, moved[1] % own, count, group)

    def _of_scores(self, name: str | None, places: bool) -> tuple[str, int, int, Array] | None:
        """The scores, the dimension along which a value is their largest (or the place of it), what
        is added to it, and which row of the scores each entry is of."""
        moved, first = self._source(name), 0
        node = self.nodes[moved[0]] if moved else None
        if places and moved and node and node.target in ("aten.add.Tensor", "aten.add.Scalar"):
            inner = self._source(operand(node.args[0]))
            if inner is None or node.kwargs or type(node.args[1]) is not int:
                return None
            moved, first = (inner[0], inner[1].ravel()[moved[1]]), node.args[1]
        largest = self._largest(moved[0], places) if moved else None
        if moved is None or largest is None:
            return None
        scores, _, at = largest
        return scores, at, first, moved[1]

    def _largest(self, name: str | None, place: bool) -> tuple[str, bool, int] | None:
        """What a node is the largest of (``place``: the place of it), whether the dimension stays
        with size 1, and that dimension; None: it is something else."""
        node = self.nodes.get(name or "")
        if node is None:
            return None
        if node.target == GETITEM and node.args[1] == int(place):
            node = self.nodes[operand(node.args[0]) or ""]
            wanted = node.target == "aten.max.dim"
        else:
            wanted = node.target == ("aten.argmax.default" if place else "aten.amax.default")
        scores = operand(node.args[0]) if node.args else None
        dims = node.args[1] if wanted and len(node.args) > 1 else None
        dim = dims[0] if isinstance(dims, list) and len(dims) == 1 else dims
        if scores is None or type(dim) is not int or node.kwargs:
            return None
        rank = len(self.nodes[scores].shape or ())
        stays = bool(node.args[2]) if len(node.args) > 2 else False
        return (scores, stays, dim % rank) if rank else None


def _written(graph: Graph, words: dict[str, Word]) -> Graph:
    """The graph with words that are places of the largest of gathered scores."""
    nodes: list[Node] = []
    for node in graph.nodes:
        word = words.get(node.name)
        nodes += [node] if word is None else _of_all(node, word, len(nodes))
    return replace(graph, nodes=nodes)


def _of_all(node: Node, word: Word, number: int) -> list[Node]:
    """The nodes that gather scores and give the place of the largest one as ``node``."""
    shape = list(word.scores.shape or ())
    size, count = shape[word.dim], word.members
    rows = prod(shape) // size
    order = [d for d in range(len(shape)) if d != word.dim] + [word.dim]
    made: list[Node] = []

    def emit(target: str, args: list[Any], shape: list[int] | None, dtype: str | None) -> Any:
        name = f"{node.name}{MARK}{number}.{len(made)}"
        made.append(Node(name, CALL, target, args, {}, shape, dtype, node.src))
        return named(name)

    dtype = word.scores.dtype
    moved = emit(
        "aten.permute.default", [named(word.scores.name), order], [shape[d] for d in order], dtype
    )
    flat = emit("aten.reshape.default", [moved, [rows, size]], [rows, size], dtype)
    sent = emit(_GATHER, [flat, count, word.group], [count * rows, size], dtype)
    whole = emit(_WAIT, [sent], [count * rows, size], dtype)
    three = [count, rows, size]
    parts = emit("aten.reshape.default", [whole, three], three, dtype)
    turned = emit("aten.permute.default", [parts, [1, 0, 2]], [rows, count, size], dtype)
    line = [rows, count * size]
    every = emit("aten.reshape.default", [turned, line], line, dtype)
    if word.most is not None:
        count, at, largest = word.most
        both = emit(_TOPK, [every, count, 1, largest], None, None)
        most = emit(GETITEM, [both, 0], [rows, count], dtype)
        wide = [n for d, n in enumerate(node.shape or ()) if d != at]
        own = emit("aten.reshape.default", [most, [*wide, count]], [*wide, count], dtype)
        back = [len(wide) if d == at else d - (d > at) for d in range(len(wide) + 1)]
        return [*made, replace(node, op=CALL, target="aten.permute.default", args=[own, back])]
    place = emit("aten.argmax.default", [every, 1], [rows], node.dtype)
    view = [place, cast("list[int]", node.shape)]
    return [*made, replace(node, target="aten.reshape.default", args=view)]

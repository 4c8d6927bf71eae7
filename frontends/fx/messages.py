"""All-to-alls of parts of different sizes, as messages.

How large the parts are that other ranks exchange, no rank's graph says.  So such an all-to-all is
one message to each rank that something is sent to, and one from each that sends something, in all
ranks of its group; `permute_tensor` is one in which each rank sends all that it has to one other.
For example, with the sizes [0, 8] sent and [0, 8] received, rank 0 of two sends 8 rows to rank 1
and gets 8 from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

from msgspec import structs

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.fx.groups import groups
from shardproof.frontends.fx.records import CALL, Graph, Node, operand

EXCHANGES: Final = frozenset(
    f"_c10d_functional{kind}.all_to_all_single.default" for kind in ("", "_autograd")
)


class Exchange(NamedTuple):
    """An all-to-all as its node says it: what is sent, how many rows come from and go to each rank.

    Example: ``all_to_all_single(x, [0, 8], [0, 8], "0")`` on rank 0 of two.
    """

    node: Node
    x: Any
    received: tuple[int, ...]
    sent: tuple[int, ...]
    ranks: tuple[int, ...]

    @property
    def is_equal(self) -> bool:
        """Whether all parts are as large."""
        return len({*self.received, *self.sent}) == 1


def as_messages(graphs: Sequence[Graph], recorded: Mapping[str, list[list[int]]]) -> list[Graph]:
    """The graphs of all ranks, with messages in place of all-to-alls in groups in which a rank
    issues one of parts of different sizes; ``recorded``: groups that somebody states.

    Example: of two ranks that permute 8 rows, each sends them, then receives as many.
    """
    exchanges = [
        {e.node.name: e for e in _exchanges(graph, groups(graphs, recorded, rank))}
        for rank, graph in enumerate(graphs)
    ]
    parted = {e.ranks for own in exchanges for e in own.values() if not e.is_equal}
    if not parted:
        return list(graphs)
    return [
        structs.replace(graph, nodes=list(_rewritten(graph, rank, own, parted)))
        for rank, (graph, own) in enumerate(zip(graphs, exchanges, strict=True))
    ]


def _exchanges(graph: Graph, groups_of: Mapping[str, tuple[int, ...]]) -> Iterator[Exchange]:
    for node in graph.nodes:
        if node.target not in EXCHANGES or len(node.args) != 4 or node.kwargs:
            continue
        x, received, sent, name = node.args
        ranks = groups_of.get(name) if isinstance(name, str) else None
        if ranks is None or not (_are_sizes(received) and _are_sizes(sent)):
            continue
        if len(received) == len(sent) == len(ranks):
            yield Exchange(node, x, tuple(received), tuple(sent), ranks)


def _are_sizes(x: Any) -> bool:
    return isinstance(x, list) and all(type(n) is int and n >= 0 for n in x)


def _rewritten(
    graph: Graph, rank: int, own: Mapping[str, Exchange], parted: set[tuple[int, ...]]
) -> Iterator[Node]:
    shapes = {node.name: node.shape for node in graph.nodes}
    for node in graph.nodes:
        exchange = own.get(node.name)
        if exchange is None or exchange.ranks not in parted:
            yield node
            continue
        shape = shapes.get(operand(exchange.x) or "")
        if not shape or shape[0] != sum(exchange.sent):
            raise InvalidInput(
                f"an all-to-all of {sum(exchange.sent)} rows of {shape}",
                f"rank {rank}, {node.name}",
            )
        yield from _messages(exchange, rank, shape[1:])


def _messages(exchange: Exchange, rank: int, row: list[int]) -> Iterator[Node]:
    """What rank ``rank`` does: it says that it will receive, sends, receives, and joins the parts;
    receives are posted first, so nobody waits for ever."""
    node, dtype = exchange.node, exchange.node.dtype
    starts = list(accumulate(exchange.sent, initial=0))
    parts: dict[int, Node] = {}

    def made(name: str, target: str, args: list[Any], shape: list[int] | None) -> Node:
        kind = dtype if shape is not None else None
        return Node(f"{node.name}.{name}", CALL, target, args, {}, shape, kind, node.src)

    for peer, rows in zip(exchange.ranks, exchange.received, strict=True):
        if rows and peer != rank:
            yield made(f"post_recv.{peer}", "comm.post_recv", [peer], None)
    for peer, start, rows in zip(exchange.ranks, starts, exchange.sent, strict=False):
        if rows:
            ends = [exchange.x, 0, start, start + rows]
            part = made(f"part.{peer}", "aten.slice.Tensor", ends, [rows, *row])
            yield part
            if peer != rank:
                yield made(f"send.{peer}", "comm.send", [{"n": part.name}, peer], None)
            else:
                parts[peer] = part
    for peer, rows in zip(exchange.ranks, exchange.received, strict=True):
        if rows and peer != rank:
            parts[peer] = made(f"recv.{peer}", "comm.recv", [peer], [rows, *row])
            yield parts[peer]
    joined = [{"n": parts[peer].name} for peer in exchange.ranks if peer in parts]
    target, args = "aten.cat.default", [joined, 0]
    if not joined:
        target, args = "aten.slice.Tensor", [exchange.x, 0, 0, 0]
    yield structs.replace(node, target=target, args=args)

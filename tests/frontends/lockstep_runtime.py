"""What nnScaler's runtime does on one rank, and the messages and collectives between ranks."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shardproof.frontends.nnscaler import cells

Ranks = tuple[int, ...]
REAL = torch.float64
SECONDS = 30.0


class Stuck(Exception):
    """A rank waits for ever, or fails: what it would do in reality is hang or raise."""


class World:
    """What ranks exchange: messages on their way, and who waits in which collective."""

    def __init__(self, ranks: int) -> None:
        self.changed = threading.Condition()
        self.version = 0
        self.seen: dict[int, int] = {}
        self.alive = set(range(ranks))
        self.failure: BaseException | None = None
        self.mail: dict[tuple[int, int], deque[Tensor]] = defaultdict(deque)
        self.issued: dict[tuple[int, Ranks], int] = defaultdict(int)
        self.joined: dict[tuple[Ranks, int], dict[int, tuple[Any, Tensor | None]]] = defaultdict(
            dict
        )

    def tell(self) -> None:
        self.version += 1
        self.changed.notify_all()

    def ended(self, rank: int, failure: BaseException | None) -> None:
        with self.changed:
            self.alive.discard(rank)
            self.failure = self.failure or failure
            self.tell()

    def wait(self, rank: int, ready: Callable[[], bool]) -> None:
        """Until ``ready``; `Stuck` as soon as every rank that is left waits for another one."""
        while not ready():
            if self.failure is not None:
                raise Stuck("another rank has failed")
            self.seen[rank] = self.version
            if all(self.seen.get(r) == self.version for r in self.alive):
                raise Stuck(f"rank {rank} waits for ever")
            if not self.changed.wait(SECONDS):
                raise Stuck(f"rank {rank} has waited for {SECONDS} s")
        self.seen.pop(rank, None)

    def send(self, source: int, target: int, x: Tensor) -> None:
        if source == target:
            raise Stuck("a rank cannot send to itself")
        with self.changed:
            self.mail[source, target].append(x.detach().clone())
            self.tell()

    def receive(self, source: int, target: int, shape: Sequence[int]) -> Tensor:
        with self.changed:
            box = self.mail[source, target]
            self.wait(target, lambda: bool(box))
            x = box.popleft()
        if tuple(x.shape) != tuple(shape):
            raise Stuck(f"rank {target} receives {list(x.shape)} into {list(shape)}")
        return x

    def meet(self, rank: int, ranks: Sequence[int], what: Any, x: Tensor | None) -> list[Tensor]:
        """What each member of a group brings to a collective, in group order."""
        group = tuple(sorted(set(ranks)))
        if rank not in group:
            raise Stuck(f"rank {rank} is not in its group {group}")
        with self.changed:
            turn = self.issued[rank, group]
            self.issued[rank, group] += 1
            here = self.joined[group, turn]
            here[rank] = (what, None if x is None else x.detach().clone())
            self.tell()
            self.wait(rank, lambda: len(here) == len(group))
        if len({kind for kind, _ in here.values()}) > 1:
            raise Stuck(f"ranks {group} join in different collectives")
        return [here[r][1] for r in group]  # type: ignore[misc]


# -- the runtime's functions, on one rank ----------------------------------------------------------


@dataclass
class Comm:
    """Communication of one rank; ``shift``: the first rank of its replica."""

    world: World
    rank: int
    shift: int

    def ranks(self, prim: cells.Prim, key: str = "ranks") -> Ranks:
        return tuple(int(r) + self.shift for r in prim.kwargs[key])  # type: ignore[union-attr]

    def peer(self, prim: cells.Prim, key: str) -> int:
        return int(prim.kwargs[key]) + self.shift  # type: ignore[arg-type]

    def position(self, ranks: Ranks) -> int:
        return sorted(set(ranks)).index(self.rank)

    # Collectives.

    def all_reduce(self, x: Tensor, ranks: Ranks) -> Tensor:
        parts = self.alike(ranks, ("all_reduce", tuple(x.shape)), x)
        return torch.stack(parts).sum(0)

    def alike(self, ranks: Ranks, what: Any, x: Tensor) -> list[Tensor]:
        return self.world.meet(self.rank, ranks, what, x)

    def all_gather(self, x: Tensor, dim: int, ranks: Ranks) -> Tensor:
        return torch.concat(self.alike(ranks, ("all_gather", tuple(x.shape)), x), dim)

    def reduce_scatter(self, x: Tensor, dim: int, ranks: Ranks) -> Tensor:
        self.even(x, dim, ranks)
        parts = self.alike(ranks, ("reduce_scatter", dim, tuple(x.shape)), x)
        return torch.stack(parts).sum(0).chunk(len(ranks), dim)[self.position(ranks)]

    def all_to_all(self, x: Tensor, idim: int, odim: int, ranks: Ranks) -> Tensor:
        self.even(x, odim, ranks)
        parts = self.alike(ranks, ("all_to_all", odim, tuple(x.shape)), x)
        mine = [part.chunk(len(ranks), odim)[self.position(ranks)] for part in parts]
        return torch.concat(mine, idim)

    @staticmethod
    def even(x: Tensor, dim: int, ranks: Ranks) -> None:
        if x.shape[dim] % len(ranks):
            raise Stuck("chunks of different sizes in one collective")

    def chunk(self, x: Tensor, dim: int, ranks: Ranks) -> Tensor:
        return x.chunk(len(ranks), dim)[self.position(ranks)]

    def reduce(self, x: Tensor, dst: int, ranks: Ranks) -> Tensor:
        parts = self.alike(ranks, ("reduce", dst, tuple(x.shape)), x)
        # Nothing is said of the other ranks' buffers.
        return torch.stack(parts).sum(0) if self.rank == dst else torch.full_like(x, torch.nan)

    def broadcast(self, x: Tensor | None, shape: Sequence[int], src: int, ranks: Ranks) -> Tensor:
        if self.rank == src and x is None:
            raise Stuck("the root of a broadcast has no tensor")
        members = sorted(set(ranks))
        if src not in members:
            raise Stuck("the root of a broadcast is not in its group")
        found = self.world.meet(
            self.rank, ranks, ("broadcast", src), x if self.rank == src else None
        )
        y = found[members.index(src)]
        if tuple(y.shape) != tuple(shape):
            raise Stuck(f"a broadcast of {list(y.shape)} into {list(shape)}")
        return y


Primitive = Callable[[Comm, cells.Prim, list[Tensor]], Tensor | None]


def _shape(prim: cells.Prim, xs: Sequence[Tensor]) -> Sequence[int]:
    given = prim.kwargs.get("shape")
    return tuple(given) if isinstance(given, tuple) else tuple(xs[0].shape)


def _move(c: Comm, prim: cells.Prim, xs: list[Tensor]) -> Tensor:
    source, target = c.peer(prim, "src"), c.peer(prim, "dst")
    if c.rank == source:
        c.world.send(source, target, xs[0])
        return xs[0]
    if c.rank != target:
        raise Stuck(f"rank {c.rank} moves between {source} and {target}")
    return c.world.receive(source, target, _shape(prim, xs))


def _rdscatter(c: Comm, prim: cells.Prim, xs: list[Tensor]) -> Tensor:
    source, targets = c.peer(prim, "src"), c.ranks(prim, "dsts")
    dim = int(prim.kwargs["dim"])  # type: ignore[arg-type]
    if c.rank == source:
        for target, part in zip(targets, xs[0].chunk(len(targets), dim), strict=False):
            c.world.send(source, target, part)
        return xs[0]
    if c.rank not in targets:
        raise Stuck("not among those that receive")
    shape = list(_shape(prim, xs))
    shape[dim] //= len(targets)
    return c.world.receive(source, c.rank, shape)


def _rvscatter(c: Comm, prim: cells.Prim, xs: list[Tensor]) -> Tensor:
    source, targets = c.peer(prim, "src"), c.ranks(prim, "dsts")
    x = xs[0] / len(targets) if c.rank == source else None
    return c.broadcast(x, _shape(prim, xs), source, (source, *targets))


def _rdgather(c: Comm, prim: cells.Prim, xs: list[Tensor]) -> Tensor:
    sources, target = c.ranks(prim, "srcs"), c.peer(prim, "dst")
    if c.rank == target:
        parts = [c.world.receive(source, target, _shape(prim, xs)) for source in sources]
        return torch.cat(parts, int(prim.kwargs["dim"]))  # type: ignore[arg-type]
    if c.rank not in sources:
        raise Stuck("not among those that send")
    c.world.send(c.rank, target, xs[0])
    return xs[0]


def _rvgather(c: Comm, prim: cells.Prim, xs: list[Tensor]) -> Tensor:
    sources, target = c.ranks(prim, "srcs"), c.peer(prim, "dst")
    x = torch.zeros(tuple(_shape(prim, xs)), dtype=REAL) if c.rank == target else xs[0]
    return c.reduce(x, target, (*sources, target))


def _select(c: Comm, prim: cells.Prim, xs: list[Tensor]) -> Tensor:
    slices: Any = prim.kwargs["indmap"]
    parts = int(prim.kwargs["valmap"])  # type: ignore[arg-type]
    return xs[0][slices] / parts if parts > 1 else xs[0][slices]


def _dim(prim: cells.Prim, key: str = "dim") -> int:
    return int(prim.kwargs[key])  # type: ignore[arg-type]


PRIMITIVES: Mapping[str, Primitive] = {
    "IdentityPrim": lambda c, p, xs: xs[0],
    "SelectPrim": _select,
    "MergeDimPrim": lambda c, p, xs: torch.concat(xs, _dim(p)),
    "SumPrim": lambda c, p, xs: torch.stack(xs).sum(0),
    "MovePrim": _move,
    "BroadcastPrim": lambda c, p, xs: c.broadcast(
        xs[0] if xs else None, _shape(p, xs), c.peer(p, "src"), c.ranks(p)
    ),
    "ReducePrim": lambda c, p, xs: c.reduce(xs[0], c.peer(p, "dst"), c.ranks(p)),
    "AllReducePrim": lambda c, p, xs: c.all_reduce(xs[0], c.ranks(p)),
    "AllGatherPrim": lambda c, p, xs: c.all_gather(xs[0], _dim(p), c.ranks(p)),
    "ReduceScatterPrim": lambda c, p, xs: c.reduce_scatter(xs[0], _dim(p), c.ranks(p)),
    "AllToAllPrim": lambda c, p, xs: c.all_to_all(
        xs[0], _dim(p, "idim"), _dim(p, "odim"), c.ranks(p)
    ),
    "ChunkPrim": lambda c, p, xs: c.chunk(xs[0], _dim(p), c.ranks(p)),
    "VChunkPrim": lambda c, p, xs: xs[0] / len(c.ranks(p)),
    "RDScatterPrim": _rdscatter,
    "RVScatterPrim": _rvscatter,
    "RDGatherPrim": _rdgather,
    "RVGatherPrim": _rvgather,
}


def _root(c: Comm, prim: cells.Prim, key: str, x: Tensor) -> Tensor:
    root = c.peer(prim, key)
    return c.broadcast(x if c.rank == root else None, x.shape, root, c.ranks(prim))


#: Fused primitives: the forward and the backward half of an autograd function.
FUSED: Mapping[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "AllReduceIdentityPrim": (lambda c, p, x: c.all_reduce(x, c.ranks(p)), lambda c, p, g: g),
    "IdentityAllreducePrim": (lambda c, p, x: x, lambda c, p, g: c.all_reduce(g, c.ranks(p))),
    "AllReduceAllReducePrim": (
        lambda c, p, x: c.all_reduce(x, c.ranks(p)),
        lambda c, p, g: c.all_reduce(g, c.ranks(p)),
    ),
    "ReduceScatterAllGatherPrim": (
        lambda c, p, x: c.reduce_scatter(x, _dim(p), c.ranks(p)),
        lambda c, p, g: c.all_gather(g, _dim(p), c.ranks(p)),
    ),
    "AllGatherReduceScatterPrim": (
        lambda c, p, x: c.all_gather(x, _dim(p), c.ranks(p)),
        lambda c, p, g: c.reduce_scatter(g, _dim(p), c.ranks(p)),
    ),
    "AllGatherSplitPrim": (
        lambda c, p, x: c.all_gather(x, _dim(p), c.ranks(p)),
        lambda c, p, g: c.chunk(g, _dim(p), c.ranks(p)),
    ),
    "SplitAllGatherPrim": (
        lambda c, p, x: c.chunk(x, _dim(p), c.ranks(p)),
        lambda c, p, g: c.all_gather(g, _dim(p), c.ranks(p)),
    ),
    "AllToAllAllToAllPrim": (
        lambda c, p, x: c.all_to_all(x, _dim(p, "idim"), _dim(p, "odim"), c.ranks(p)),
        lambda c, p, g: c.all_to_all(g, _dim(p, "odim"), _dim(p, "idim"), c.ranks(p)),
    ),
    "ReduceBroadcastPrim": (
        lambda c, p, x: c.reduce(x, c.peer(p, "dst"), c.ranks(p)),
        lambda c, p, g: _root(c, p, "dst", g),
    ),
    "BroadcastRedducePrim": (
        lambda c, p, x: _root(c, p, "src", x),
        lambda c, p, g: c.reduce(g, c.peer(p, "src"), c.ranks(p)),
    ),
}


class Apply(torch.autograd.Function):
    """A function of one tensor with a backward half of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forth: Any, back: Any) -> Any:
        ctx.back = back
        y = forth(x)
        return y.view_as(y) if y is x else y

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return ctx.back(gradients[0]), None, None

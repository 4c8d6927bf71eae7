"""How a tensor gets from one layout over devices to another: primitives as nnScaler's planner
writes them, forward and backward, fused or not.

A layout is ``R`` (every device has all of it), ``D<dim>`` (device i has chunk i of dimension dim)
or ``V`` (device i has addend i).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.frontends.pickles import Obj
from tests.frontends.plan_records import Box, Builder
from tests.frontends.plan_values import Operation, Thing

REPLICATED, PARTIAL = "R", "V"


def cut(dim: int) -> str:
    return f"D{dim}"


def dim_of(layout: str) -> int:
    return int(layout[1:])


def box_of(shape: Sequence[int], layout: str, place: int, count: int) -> Box:
    box = [(0, n) for n in shape]
    if layout.startswith("D"):
        dim = dim_of(layout)
        size = shape[dim] // count
        box[dim] = (place * size, place * size + size)
    return tuple(box)


def addend_of(layout: str, place: int, count: int) -> tuple[int, int]:
    return (place, count) if layout == PARTIAL and count > 1 else (0, 1)


@dataclass
class Team:
    """Devices that hold a tensor, and the builder of their records."""

    build: Builder
    devices: list[int]
    draw: random.Random

    def part(self, full: Obj, layout: str, place: int, graded: str = REPLICATED) -> Obj:
        """What one device holds of a full tensor; ``graded``: the layout of its gradient."""
        count = len(self.devices)
        return self.build.part(
            full,
            box_of(full.state["_shape"], layout, place, count),
            addend_of(layout, place, count),
            graded=addend_of(graded, place, count),
        )

    def prims(self, device: int, inputs: Obj, output: Obj, *rows: tuple[Any, ...]) -> list[Obj]:
        """A chain of primitives from ``inputs`` to ``output``: kind, what passes on, attributes."""
        made, current = [], inputs
        for number, (kind, passing, kwargs) in enumerate(rows):
            last = number == len(rows) - 1
            into = [] if kind == "recv" else [current]
            current = output if last else passing
            made.append(self.build.prim(kind, into, [current], device, **kwargs))
        return made


#: (from, to, layout of the gradient there) with D for any dimension -> fused primitive.
FUSED = {
    ("R", "R", "V"): "IdentityAllreducePrim",
    ("R", "D", "D"): "SplitAllGatherPrim",
    ("D", "R", "R"): "AllGatherSplitPrim",
    ("D", "R", "V"): "AllGatherReduceScatterPrim",
    ("D", "D", "D"): "AllToAllAllToAllPrim",
    ("V", "R", "R"): "AllReduceIdentityPrim",
    ("V", "R", "V"): "AllReduceAllReducePrim",
    ("V", "D", "D"): "ReduceScatterAllGatherPrim",
}


def fused(
    source: str, target: str, graded: str, ranks: Sequence[int]
) -> tuple[str, dict[str, Any]]:
    kind = FUSED[source[0], target[0], graded[0]]
    kwargs: dict[str, Any] = {"ranks": list(ranks)}
    if kind.startswith("AllToAll"):
        kwargs.update(idim=dim_of(source), odim=dim_of(target))
    elif "D" in (source[0], target[0]):
        kwargs["dim"] = dim_of(source if source[0] == "D" else target)
    return kind, kwargs


Rows = list[tuple[Any, ...]]


def route(team: Team, full: Obj, source: str, target: str, place: int) -> Rows:
    """Plain primitives from one layout to another on one device, by one of the ways there are."""
    if source == target:
        return []
    if source == PARTIAL:
        return _summed(team, full, target, place)
    if source == REPLICATED:
        return _cut(team, full, target, place)
    ranks = {"ranks": list(team.devices)}
    if target == REPLICATED:
        return [("AllGatherPrim", None, {"dim": dim_of(source), **ranks})]
    if team.draw.random() < 0.5:
        return [("AllToAllPrim", None, {"idim": dim_of(source), "odim": dim_of(target), **ranks})]
    return [
        ("AllGatherPrim", team.part(full, REPLICATED, place), {"dim": dim_of(source), **ranks}),
        ("ChunkPrim", None, {"dim": dim_of(target), **ranks}),
    ]


def _summed(team: Team, full: Obj, target: str, place: int) -> Rows:
    """From addends."""
    ranks = {"ranks": list(team.devices)}
    if target == REPLICATED:
        dims = [d for d, n in enumerate(full.state["_shape"]) if n % len(team.devices) == 0]
        if dims and team.draw.random() < 0.4:
            dim = team.draw.choice(dims)
            return [
                ("ReduceScatterPrim", team.part(full, cut(dim), place), {"dim": dim, **ranks}),
                ("AllGatherPrim", None, {"dim": dim, **ranks}),
            ]
        return [("AllReducePrim", None, ranks)]
    dim = dim_of(target)
    if team.draw.random() < 0.5:
        return [("ReduceScatterPrim", None, {"dim": dim, **ranks})]
    return [
        ("AllReducePrim", team.part(full, REPLICATED, place), ranks),
        ("ChunkPrim", None, {"dim": dim, **ranks}),
    ]


def _cut(team: Team, full: Obj, target: str, place: int) -> Rows:
    """From copies."""
    ranks, shape = {"ranks": list(team.devices)}, full.state["_shape"]
    first = team.draw.random() < 0.5
    if target == PARTIAL:
        whole = tuple(slice(0, n) for n in shape)
        kwargs = {"indmap": whole, "valmap": len(team.devices)}
        return [("VChunkPrim", None, ranks) if first else ("SelectPrim", None, kwargs)]
    if first:
        return [("ChunkPrim", None, {"dim": dim_of(target), **ranks})]
    box = box_of(shape, target, place, len(team.devices))
    return [("SelectPrim", None, {"indmap": tuple(slice(*x) for x in box), "valmap": 1})]


def ways(team: Team, full: Obj, source: str, target: str) -> list[list[tuple[Any, ...]]]:
    """As `route`, for every device of the team, all on the same way."""
    state = team.draw.getstate()
    found = []
    for place in range(len(team.devices)):
        team.draw.setstate(state)
        found.append(route(team, full, source, target, place))
    return found


# -- between teams ---------------------------------------------------------------------------------


def crossing(
    senders: Team, receivers: Team, full: Obj, of_gradient: bool
) -> tuple[list[list[Obj]], list[list[Obj]]]:
    """Primitives that bring a tensor that all of one team have to all of another, by one of the
    ways there are: for each sender, for each receiver.  ``of_gradient``: it is ``full``'s gradient.
    """
    made = _Crossing(senders, receivers, full.state["_grad"] if of_gradient else full)
    a, b = made.a, made.b
    ways = [made.broadcast, made.share, made.sum]
    if len(a) == len(b):
        ways += [made.moves, made.moves]
        ways += [made.pieces, made.pieces] if made.dims and len(a) > 1 else []
    if made.dims and len(b) > 1:
        ways.append(made.scatter)
    if made.dims and len(a) > 1:
        ways.append(made.gather)
    if len(a) > 1:
        ways.append(made.reduce)
    senders.draw.choice(ways)()
    return made.out, made.into


def each_its_own(
    senders: Team, receivers: Team, tensors: Sequence[Obj]
) -> tuple[list[list[Obj]], list[list[Obj]]]:
    """Each device of one team sends what it has to the one in its place in another."""
    out: list[list[Obj]] = []
    into: list[list[Obj]] = []
    for source, target, x in zip(senders.devices, receivers.devices, tensors, strict=True):
        kwargs = {"src": source, "dst": target, "shape": x.state["_shape"],
                  "dtype": "torch.float32"}  # fmt: skip
        out.append([senders.build.prim("MovePrim", [x], [], source, **kwargs)])
        into.append([receivers.build.prim("MovePrim", [], [x], target, **kwargs)])
    return out, into


class _Crossing:
    """The ways from the devices ``a``, which all have a tensor, to the devices ``b``."""

    def __init__(self, senders: Team, receivers: Team, tensor: Obj) -> None:
        self.build, self.draw = senders.build, senders.draw
        self.a, self.b = senders.devices, receivers.devices
        self.tensor = tensor
        self.shape = tensor.state["_shape"]
        self.out: list[list[Obj]] = [[] for _ in self.a]
        self.into: list[list[Obj]] = [[] for _ in self.b]
        self.whole = self.piece("R", 0, 1)
        self.told = {"dtype": "torch.float32"}
        self.dims = [
            d for d, n in enumerate(self.shape) if n % len(self.a) == 0 and n % len(self.b) == 0
        ]
        self.dim = self.draw.choice(self.dims) if self.dims else 0

    def piece(self, layout: str, place: int, count: int) -> Obj:
        box = box_of(self.shape, layout, place, count)
        return self.build._sub(self.tensor, box, addend_of(layout, place, count))

    def sends(self, place: int, kind: str, x: Obj, y: list[Obj], **kwargs: Any) -> None:
        self.out[place].append(self.build.prim(kind, [x], y, self.a[place], **kwargs))

    def receives(self, place: int, kind: str, x: list[Obj], y: Obj, **kwargs: Any) -> None:
        self.into[place].append(self.build.prim(kind, x, [y], self.b[place], **kwargs))

    def broadcast(self, root: int | None = None) -> None:
        """From ``root``, a receiver that has it or any sender, to all receivers."""
        root = self.draw.choice(self.a) if root is None else root
        ranks = sorted({root, *self.b})
        kwargs = {"src": root, "ranks": ranks, "shape": self.shape, **self.told}
        for place, device in enumerate(self.b if len(ranks) > 1 else []):
            given = [self.whole] if device == root else []
            self.receives(place, "BroadcastPrim", given, self.whole, **kwargs)
        if root in self.a:
            self.sends(self.a.index(root), "BroadcastPrim", self.whole, [], **kwargs)

    def moves(self) -> None:
        for place, other in enumerate(self.draw.sample(range(len(self.a)), len(self.a))):
            kwargs = {"src": self.a[place], "dst": self.b[other], "shape": self.shape, **self.told}
            self.sends(place, "MovePrim", self.whole, [], **kwargs)
            self.receives(other, "MovePrim", [], self.whole, **kwargs)

    def pieces(self) -> None:
        for place, (source, target) in enumerate(zip(self.a, self.b, strict=True)):
            mine = self.piece(cut(self.dim), place, len(self.a))
            kwargs = {"src": source, "dst": target, "shape": mine.state["_shape"], **self.told}
            self.sends(place, "ChunkPrim", self.whole, [mine], dim=self.dim, ranks=list(self.a))
            self.sends(place, "MovePrim", mine, [], **kwargs)
            self.receives(place, "MovePrim", [], mine, **kwargs)
            self.joins(place, mine)

    def joins(self, place: int, mine: Obj) -> None:
        self.receives(place, "AllGatherPrim", [mine], self.whole, dim=self.dim, ranks=list(self.b))

    def scatter(self) -> None:
        root = self.draw.choice(self.a)
        kwargs = {"src": root, "dsts": tuple(self.b), "dim": self.dim, "shape": self.shape,
                  **self.told}  # fmt: skip
        self.sends(self.a.index(root), "RDScatterPrim", self.whole, [], **kwargs)
        for place in range(len(self.b)):
            mine = self.piece(cut(self.dim), place, len(self.b))
            self.receives(place, "RDScatterPrim", [], mine, **kwargs)
            self.joins(place, mine)

    def share(self) -> None:
        root = self.draw.choice(self.a)
        kwargs = {"src": root, "dsts": tuple(self.b), "shape": self.shape, **self.told}
        self.sends(self.a.index(root), "RVScatterPrim", self.whole, [], **kwargs)
        for place in range(len(self.b)):
            mine = self.piece("V", place, len(self.b))
            self.receives(place, "RVScatterPrim", [], mine, **kwargs)
            self.receives(place, "AllReducePrim", [mine], self.whole, ranks=list(self.b))

    def gather(self) -> None:
        target = self.draw.choice(self.b)
        size = box_of(self.shape, cut(self.dim), 0, len(self.a))
        shape = tuple(high - low for low, high in size)
        kwargs = {"srcs": tuple(self.a), "dst": target, "dim": self.dim, "shape": shape,
                  **self.told}  # fmt: skip
        for place in range(len(self.a)):
            mine = self.piece(cut(self.dim), place, len(self.a))
            self.sends(place, "ChunkPrim", self.whole, [mine], dim=self.dim, ranks=list(self.a))
            self.sends(place, "RDGatherPrim", mine, [], **kwargs)
        self.receives(self.b.index(target), "RDGatherPrim", [], self.whole, **kwargs)
        self.broadcast(target)

    def sum(self) -> None:
        target = self.draw.choice(self.b)
        kwargs = {"srcs": tuple(self.a), "dst": target, "shape": self.shape, **self.told}
        for place in range(len(self.a)):
            mine = self.piece("V", place, len(self.a))
            self.sends(place, "VChunkPrim", self.whole, [mine], ranks=list(self.a))
            self.sends(place, "RVGatherPrim", mine, [], **kwargs)
        self.receives(self.b.index(target), "RVGatherPrim", [], self.whole, **kwargs)
        self.broadcast(target)

    def reduce(self) -> None:
        root = self.draw.choice(self.a)
        for place, device in enumerate(self.a):
            mine = self.piece("V", place, len(self.a))
            given = [self.whole] if device == root else []
            self.sends(place, "VChunkPrim", self.whole, [mine], ranks=list(self.a))
            self.sends(place, "ReducePrim", mine, given, dst=root, ranks=list(self.a))
        self.broadcast(root)


# -- attributes ------------------------------------------------------------------------------------


def local(op: Operation, inputs: list[Any], outputs: list[Obj]) -> dict[str, Any]:
    """The attributes of an operation on one device."""
    if op.local is None:
        return op.kwargs
    if op.local in ("size", "shape"):
        rows = zip(op.kwargs[op.local], outputs[0].state["_shape"], strict=True)
        return {**op.kwargs, op.local: tuple(a if isinstance(a, Thing) else b for a, b in rows)}
    if op.local == "groups":
        whole = inputs[1].state["_full_tensor"].state["_shape"][0]
        return {**op.kwargs, "groups": op.kwargs["groups"] * inputs[1].state["_shape"][0] // whole}
    if op.local == "h":
        rows = inputs[1].state
        share = rows["_full_tensor"].state["_shape"][0] // rows["_shape"][0]
        return {**op.kwargs, "h": op.kwargs["h"] // share}
    table = next(x for x in inputs if isinstance(x, Obj) and x.state["_is_attr"])
    start, stop = table.state["_indmap"].state["_indices"][0]
    if op.local == "rows":
        return {**op.kwargs, "start": start, "stop": stop}
    return {**op.kwargs, "local_expert_start": start, "local_expert_end": stop}

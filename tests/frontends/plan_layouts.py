"""How a tensor gets from one layout over devices to another: primitives as nnScaler's planner writes
them, forward and backward, fused or not.

A layout is ``R`` (every device has all of it), ``D<dim>`` (device i has chunk i of dimension dim) or
``V`` (device i has addend i).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.frontends.pickles import Obj
from tests.frontends.plan_records import Box, Builder

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


def route(team: Team, full: Obj, source: str, target: str, place: int) -> list[tuple[Any, ...]]:
    """Plain primitives from one layout to another on one device, by one of the ways there are."""
    ranks = {"ranks": list(team.devices)}
    count = len(team.devices)

    def on_the_way(layout: str) -> Obj:
        return team.part(full, layout, place)

    if source == target:
        return []
    if source == PARTIAL and target == REPLICATED:
        dims = [d for d, n in enumerate(full.state["_shape"]) if n % count == 0]
        if dims and team.draw.random() < 0.4:
            dim = team.draw.choice(dims)
            return [
                ("ReduceScatterPrim", on_the_way(cut(dim)), {"dim": dim, **ranks}),
                ("AllGatherPrim", None, {"dim": dim, **ranks}),
            ]
        return [("AllReducePrim", None, ranks)]
    if source == PARTIAL:
        dim = dim_of(target)
        if team.draw.random() < 0.5:
            return [("ReduceScatterPrim", None, {"dim": dim, **ranks})]
        return [
            ("AllReducePrim", on_the_way(REPLICATED), ranks),
            ("ChunkPrim", None, {"dim": dim, **ranks}),
        ]
    if source == REPLICATED and target == PARTIAL:
        if team.draw.random() < 0.5:
            return [("VChunkPrim", None, ranks)]
        whole = tuple(slice(0, n) for n in full.state["_shape"])
        return [("SelectPrim", None, {"indmap": whole, "valmap": count})]
    if source == REPLICATED:
        dim = dim_of(target)
        if team.draw.random() < 0.5:
            return [("ChunkPrim", None, {"dim": dim, **ranks})]
        box = box_of(full.state["_shape"], target, place, count)
        return [("SelectPrim", None, {"indmap": tuple(slice(*x) for x in box), "valmap": 1})]
    if target == REPLICATED:
        return [("AllGatherPrim", None, {"dim": dim_of(source), **ranks})]
    if team.draw.random() < 0.5:
        return [("AllToAllPrim", None, {"idim": dim_of(source), "odim": dim_of(target), **ranks})]
    return [
        ("AllGatherPrim", on_the_way(REPLICATED), {"dim": dim_of(source), **ranks}),
        ("ChunkPrim", None, {"dim": dim_of(target), **ranks}),
    ]


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
    build, draw = senders.build, senders.draw
    a, b = senders.devices, receivers.devices
    tensor = full.state["_grad"] if of_gradient else full
    shape = tensor.state["_shape"]
    out: list[list[Obj]] = [[] for _ in a]
    into: list[list[Obj]] = [[] for _ in b]

    def piece(layout: str, place: int, count: int) -> Obj:
        return build._sub(
            tensor, box_of(shape, layout, place, count), addend_of(layout, place, count)
        )

    whole = piece("R", 0, 1)
    told = {"dtype": "torch.float32"}
    dims = [d for d, n in enumerate(shape) if n % len(a) == 0 and n % len(b) == 0]
    choices = ["broadcast", "share"]
    if len(a) == len(b):
        choices += ["moves", "moves"]
        choices += ["pieces", "pieces"] if dims and len(a) > 1 else []
    if dims and len(b) > 1:
        choices.append("scatter")
    if dims and len(a) > 1:
        choices.append("gather")
    choices.append("sum")
    if len(a) > 1:
        choices.append("reduce")
    way = draw.choice(choices)
    dim = draw.choice(dims) if dims else 0

    def broadcast(root: int, start: int) -> None:
        """From ``b[0]``, or from a sender, to all receivers."""
        ranks = sorted({root, *b})
        kwargs = {"src": root, "ranks": ranks, "shape": shape, **told}
        for place, device in enumerate(b):
            given = [whole] if device == root else []
            if len(ranks) > 1:
                into[place].append(build.prim("BroadcastPrim", given, [whole], device, **kwargs))
        if root in a:
            out[a.index(root)].append(build.prim("BroadcastPrim", [whole], [], root, **kwargs))

    if way == "broadcast":
        broadcast(draw.choice(a), 0)
    elif way == "moves":
        order = draw.sample(range(len(a)), len(a))
        for place, other in enumerate(order):
            kwargs = {"src": a[place], "dst": b[other], "shape": shape, **told}
            out[place].append(build.prim("MovePrim", [whole], [], a[place], **kwargs))
            into[other].append(build.prim("MovePrim", [], [whole], b[other], **kwargs))
    elif way == "pieces":
        for place in range(len(a)):
            mine = piece(cut(dim), place, len(a))
            kwargs = {"src": a[place], "dst": b[place], "shape": mine.state["_shape"], **told}
            chunk = build.prim("ChunkPrim", [whole], [mine], a[place], dim=dim, ranks=list(a))
            out[place] += [chunk, build.prim("MovePrim", [mine], [], a[place], **kwargs)]
            into[place] += [
                build.prim("MovePrim", [], [mine], b[place], **kwargs),
                build.prim("AllGatherPrim", [mine], [whole], b[place], dim=dim, ranks=list(b)),
            ]
    elif way == "scatter":
        root = draw.choice(a)
        kwargs = {"src": root, "dsts": tuple(b), "dim": dim, "shape": shape, **told}
        out[a.index(root)].append(build.prim("RDScatterPrim", [whole], [], root, **kwargs))
        for place, device in enumerate(b):
            mine = piece(cut(dim), place, len(b))
            into[place] += [
                build.prim("RDScatterPrim", [], [mine], device, **kwargs),
                build.prim("AllGatherPrim", [mine], [whole], device, dim=dim, ranks=list(b)),
            ]
    elif way == "share":
        root = draw.choice(a)
        kwargs = {"src": root, "dsts": tuple(b), "shape": shape, **told}
        out[a.index(root)].append(build.prim("RVScatterPrim", [whole], [], root, **kwargs))
        for place, device in enumerate(b):
            mine = piece("V", place, len(b))
            into[place] += [
                build.prim("RVScatterPrim", [], [mine], device, **kwargs),
                build.prim("AllReducePrim", [mine], [whole], device, ranks=list(b)),
            ]
    elif way == "gather":
        target = draw.choice(b)
        size = box_of(shape, cut(dim), 0, len(a))
        kwargs = {
            "srcs": tuple(a), "dst": target, "dim": dim,
            "shape": tuple(high - low for low, high in size), **told,
        }  # fmt: skip
        for place, device in enumerate(a):
            mine = piece(cut(dim), place, len(a))
            out[place] += [
                build.prim("ChunkPrim", [whole], [mine], device, dim=dim, ranks=list(a)),
                build.prim("RDGatherPrim", [mine], [], device, **kwargs),
            ]
        into[b.index(target)].append(build.prim("RDGatherPrim", [], [whole], target, **kwargs))
        broadcast(target, 1)
    elif way == "sum":
        target = draw.choice(b)
        kwargs = {"srcs": tuple(a), "dst": target, "shape": shape, **told}
        for place, device in enumerate(a):
            mine = piece("V", place, len(a))
            out[place] += [
                build.prim("VChunkPrim", [whole], [mine], device, ranks=list(a)),
                build.prim("RVGatherPrim", [mine], [], device, **kwargs),
            ]
        into[b.index(target)].append(build.prim("RVGatherPrim", [], [whole], target, **kwargs))
        broadcast(target, 1)
    else:
        root = draw.choice(a)
        for place, device in enumerate(a):
            mine = piece("V", place, len(a))
            given = [whole] if device == root else []
            out[place] += [
                build.prim("VChunkPrim", [whole], [mine], device, ranks=list(a)),
                build.prim("ReducePrim", [mine], given, device, dst=root, ranks=list(a)),
            ]
        broadcast(root, 1)
    return out, into

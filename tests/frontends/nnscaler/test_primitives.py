"""Every communication primitive against the runtime's functions, rank by rank, on random groups.

What the reader makes of a primitive is run here in lock-step on NumPy; what the runtime does is
`tests.frontends.lockstep`, on PyTorch.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from shardproof.engine.interpreters import FloatInterpreter, exact
from shardproof.engine.ops import apply_forward
from shardproof.engine.plan.ir import Group
from shardproof.frontends.errors import UnreadablePlan
from shardproof.frontends.nnscaler import cells
from shardproof.frontends.nnscaler.primitives import (
    FUSED,
    PLAIN,
    UNDEFINED,
    Steps,
    fused_steps,
    plain_steps,
)
from shardproof.frontends.nnscaler.records import FullTensor, Part, Tensor
from tests.frontends import lockstep_runtime

Array = np.ndarray[Any, Any]
RANKS = 5


def record(shape: tuple[int, ...], ident: int = 1) -> Tensor:
    box = tuple((0, n) for n in shape)
    full = FullTensor(ident, "x", shape, "float32", False, False, False, True)
    return Tensor(ident, Part("x", shape, "float32", False, False, box, (0, 1), full), None)


class Meeting:
    """Ranks that run steps, in turn, each until it waits for others."""

    def __init__(self) -> None:
        self.mail: dict[tuple[int, int], deque[Array]] = {}
        self.joined: dict[tuple[str, tuple[int, ...]], dict[int, Array | None]] = {}

    def run(self, rank: int, made: Steps, values: list[Array]) -> Iterator[None]:
        """One rank's steps; ``values`` grows by their results."""
        for step in made.steps:
            operands = [values[i] for i in step.operands]
            if step.name == "send":
                self.mail.setdefault((rank, step.attrs["peer"]), deque()).append(operands[0])  # type: ignore[arg-type]
                continue
            if step.name == "recv":
                box = self.mail.setdefault((step.attrs["peer"], rank), deque())  # type: ignore[arg-type]
                while not box:
                    yield
                result: Array | None = box.popleft()
            elif "group" in step.attrs and step.name != "chunk":
                group = step.attrs["group"]
                assert isinstance(group, Group)
                here = self.joined.setdefault((step.name, group.ranks), {})
                here[rank] = operands[0] if operands else None
                while len(here) < len(group.ranks):
                    yield
                result = exchanged(step.name, step.attrs, [here[r] for r in group.ranks], rank)
            elif step.name == "chunk":
                group = step.attrs["group"]
                assert isinstance(group, Group)
                (x,), dim = operands, step.attrs["dim"]
                size = -(-x.shape[dim] // len(group.ranks))  # type: ignore[index]
                low = group.ranks.index(rank) * size
                result = np.moveaxis(np.moveaxis(x, dim, 0)[low : low + size], 0, dim)  # type: ignore[arg-type]
            else:
                tensors = [exact(x) for x in operands]
                result = apply_forward(FloatInterpreter(), step.name, tensors, step.attrs)[0].data
            if step.result:
                assert result is not None
                assert step.shape is None or result.shape == step.shape
                values.append(result)


def exchanged(name: str, attrs: Any, given: list[Array | None], rank: int) -> Array | None:
    """A collective by its definition: what one rank has afterwards."""
    ranks = attrs["group"].ranks
    place = ranks.index(rank)
    if name == "broadcast":
        return given[ranks.index(attrs["root"])]
    xs = [x for x in given if x is not None]
    assert len(xs) == len(ranks)
    if name == "reduce":
        return sum(xs[1:], xs[0]) if rank == attrs["root"] else None
    if name == "all_reduce":
        return sum(xs[1:], xs[0])
    if name == "all_gather":
        return np.concatenate(xs, attrs["dim"])
    if name == "reduce_scatter":
        return np.split(sum(xs[1:], xs[0]), len(ranks), attrs["dim"])[place]
    assert name == "all_to_all"
    parts = [np.split(x, len(ranks), attrs["split_dim"])[place] for x in xs]
    return np.concatenate(parts, attrs["concat_dim"])


Case = dict[int, tuple[cells.Prim, Array | None]]


REDUCING = ("AllReducePrim", "VChunkPrim", "AllReduceIdentityPrim", "IdentityAllreducePrim",
            "AllReduceAllReducePrim")  # fmt: skip
LOCAL = ("IdentityPrim", "SumPrim", "MergeDimPrim", "SelectPrim")


class Drawing:
    """A group, a shape and two dimensions of it, for one primitive."""

    def __init__(self, kind: str, draw: random.Random) -> None:
        self.kind, self.draw = kind, draw
        count = draw.randint(2, RANKS)
        self.ranks = draw.sample(range(RANKS), count)
        self.one, self.rest = self.ranks[0], tuple(self.ranks[1:])
        self.shape = tuple(count * draw.randint(1, 3) for _ in range(draw.randint(2, 3)))
        if kind in ("ChunkPrim", "SplitAllGatherPrim"):
            # Not all parts are equal, but each rank gets one.
            uneven = ((n, n + draw.randint(0, 2)) for n in self.shape)
            self.shape = tuple(m if -(-m // -(-m // count)) == count else n for n, m in uneven)
        if kind in ("RDScatterPrim", "RVScatterPrim"):
            self.shape = tuple(len(self.rest) * n for n in self.shape)
        self.dim, self.other = draw.sample(range(len(self.shape)), 2)
        self.told = {"shape": self.shape, "dtype": "torch.float32"}

    def local(self) -> dict[str, Any]:
        if self.kind == "MergeDimPrim":
            return {"dim": self.dim}
        if self.kind != "SelectPrim":
            return {}
        low = [self.draw.randrange(n) for n in self.shape]
        ends = [self.draw.randint(a + 1, n) for a, n in zip(low, self.shape, strict=True)]
        return {"indmap": tuple(map(slice, low, ends)), "valmap": self.draw.randint(1, 3)}

    def rooted(self) -> tuple[dict[str, Any], set[int]] | None:
        """Attributes, and who has a tensor; None for a primitive without a root."""
        one, rest, told, ranks = self.one, self.rest, self.told, tuple(self.ranks)
        known: dict[str, tuple[dict[str, Any], set[int]]] = {
            "MovePrim": ({"src": one, "dst": rest[0], **told}, {one}),
            "BroadcastPrim": ({"src": one, "ranks": ranks, **told}, {one}),
            "ReducePrim": ({"dst": one, "ranks": ranks}, set(ranks)),
            "ReduceBroadcastPrim": ({"dst": one, "ranks": ranks}, set(ranks)),
            "BroadcastRedducePrim": ({"src": one, "ranks": ranks}, set(ranks)),
            "RDScatterPrim": ({"src": one, "dsts": rest, "dim": self.dim, **told}, {one}),
            "RVScatterPrim": ({"src": one, "dsts": rest, **told}, {one}),
            "RDGatherPrim": ({"srcs": rest, "dst": one, "dim": self.dim, **told}, set(rest)),
            "RVGatherPrim": ({"srcs": rest, "dst": one, **told}, set(rest)),
        }
        return known.get(self.kind)

    def alike(self) -> dict[str, Any]:
        ranks = {"ranks": tuple(self.ranks)}
        if "AllToAll" in self.kind:
            return {**ranks, "idim": self.dim, "odim": self.other}
        return ranks if self.kind in REDUCING else {**ranks, "dim": self.dim}


def drawn(kind: str, draw: random.Random) -> Case:
    """A primitive on every rank that it concerns, with the tensor that it reads there."""
    drawing = Drawing(kind, draw)
    rooted = drawing.rooted()
    where, senders = list(drawing.ranks), set(drawing.ranks)
    if kind in LOCAL:
        kwargs, where = drawing.local(), [drawing.one]
    elif rooted is not None:
        kwargs, senders = rooted
        where = where[:2] if kind == "MovePrim" else where
    else:
        kwargs = drawing.alike()
    numbers = np.random.default_rng(draw.randrange(1 << 30))
    found: Case = {}
    for rank in where:
        x = numbers.normal(size=drawing.shape) if rank in senders else None
        tensors = () if x is None else (record(drawing.shape),)
        found[rank] = (cells.Prim(kind, tensors, (), (rank,), dict(kwargs)), x)
    return found


def together(made: dict[int, tuple[Steps, list[Array]]]) -> dict[int, Array | None]:
    """What the reader's steps give on each rank."""
    meeting = Meeting()
    running = {r: meeting.run(r, steps, values) for r, (steps, values) in made.items()}
    for _ in range(99):
        for rank in list(running):
            if next(running[rank], running) is running:
                del running[rank]
    assert not running
    return {
        r: None if steps.result == UNDEFINED else values[steps.result]
        for r, (steps, values) in made.items()
    }


def runtime(case: Case, half: int | None) -> dict[int, Array]:
    """What the runtime's function gives on each rank."""
    world = lockstep_runtime.World(RANKS)
    found: dict[int, Array] = {}

    def work(rank: int, prim: cells.Prim, x: Array | None) -> None:
        failure: BaseException | None = None
        try:
            comm = lockstep_runtime.Comm(world, rank, 0)
            given = [] if x is None else [torch.from_numpy(x)]
            if half is None:
                y = lockstep_runtime.PRIMITIVES[prim.kind](comm, prim, given)
            else:
                y = lockstep_runtime.FUSED[prim.kind][half](comm, prim, given[0])
            assert y is not None
            found[rank] = y.numpy()
        except Exception as error:  # noqa: BLE001 - raised by the test
            failure = error
        world.ended(rank, failure)

    for rank in set(range(RANKS)) - case.keys():
        world.ended(rank, None)
    threads = [threading.Thread(target=work, args=(r, *x)) for r, x in case.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if world.failure is not None:
        raise world.failure
    return found


def assert_agree(mine: dict[int, Array | None], theirs: dict[int, Array]) -> None:
    for rank, x in mine.items():
        if x is None:
            # The runtime says nothing of this buffer: the judge fills it with NaN.
            assert np.isnan(theirs[rank]).all()
        else:
            np.testing.assert_allclose(x, theirs[rank])


@pytest.mark.parametrize("kind", sorted(PLAIN))
def test_a_primitive_does_what_the_runtime_does(kind: str) -> None:
    assert PLAIN.keys() == lockstep_runtime.PRIMITIVES.keys()
    for seed in range(30):
        case = drawn(kind, random.Random(seed))
        made = {}
        for rank, (prim, x) in case.items():
            steps = plain_steps(prim, rank, prim.inputs)
            made[rank] = (steps, [] if x is None else [x])
        assert_agree(together(made), runtime(case, None))


@pytest.mark.parametrize("kind", sorted(lockstep_runtime.FUSED))
@pytest.mark.parametrize("half", [0, 1])
def test_both_halves_of_a_fused_primitive(kind: str, half: int) -> None:
    assert FUSED.keys() - lockstep_runtime.FUSED.keys() == {"BroadcastReducePrim"}
    for seed in range(30):
        draw = random.Random(seed)
        case = drawn(kind, draw)
        made = {}
        for rank, (prim, x) in case.items():
            assert x is not None
            adapter = cells.Adapter(1, half == 0, (rank,), (record(x.shape),), (), (prim,), None)
            steps = fused_steps(adapter, rank)
            assert steps is not None
            made[rank] = (steps, [x])
        assert_agree(together(made), runtime(case, half))


def test_unequal_chunks_are_those_of_torch() -> None:
    for size in range(1, 12):
        for count in range(1, 6):
            case: Case = {
                r: (cells.Prim("ChunkPrim", (record((size, 2)),), (), (r,),
                               {"dim": 0, "ranks": tuple(range(count))}),
                    np.arange(2.0 * size).reshape(size, 2))
                for r in range(min(count, len(torch.arange(size).chunk(count))))
            }  # fmt: skip
            made = {
                r: (plain_steps(p, r, p.inputs), [x]) for r, (p, x) in case.items() if x is not None
            }
            assert_agree(together(made), runtime(case, None))


@pytest.mark.parametrize("kind", sorted({*PLAIN, *FUSED}))
def test_an_unknown_attribute_is_refused_by_name(kind: str) -> None:
    known = "BroadcastRedducePrim" if kind == "BroadcastReducePrim" else kind
    rank, (prim, _) = next(iter(drawn(known, random.Random(1)).items()))
    prim = cells.Prim(kind, prim.inputs or (record((4, 4)),), (), (rank,), {**prim.kwargs, "op": 1})
    adapter = cells.Adapter(1, True, (rank,), prim.inputs, (), (prim,), None)
    with pytest.raises(UnreadablePlan, match=f"{kind} than .*; found op"):
        fused_steps(adapter, rank) or plain_steps(prim, rank, prim.inputs)


def test_async_op_is_understood_and_nothing_else_by_that_name() -> None:
    rank, (prim, _) = next(iter(drawn("AllReducePrim", random.Random(1)).items()))
    ranks = prim.kwargs
    plain = plain_steps(prim, rank, prim.inputs)
    for value in (True, False):
        prim = cells.Prim(prim.kind, prim.inputs, (), (rank,), {**ranks, "async_op": value})
        assert plain_steps(prim, rank, prim.inputs) == plain
    prim = cells.Prim(prim.kind, prim.inputs, (), (rank,), {**ranks, "async_op": 3})
    with pytest.raises(UnreadablePlan, match="async_op of AllReducePrim to be true or false"):
        plain_steps(prim, rank, prim.inputs)


def test_an_unknown_primitive_is_refused_by_name() -> None:
    with pytest.raises(UnreadablePlan, match="primitive of nnScaler's runtime, found FooPrim"):
        plain_steps(cells.Prim("FooPrim", (), (), (0,), {}), 0, ())

"""A step that is another one but for names is lowered as if it were lowered by itself."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace

import pytest

from shardproof.frontends.builder.shapes import Inference
from shardproof.frontends.torch.lower import Side, lower
from shardproof.frontends.torch.memory import (
    CONSTANT,
    INPUT,
    SLICE,
    Compared,
    Functional,
    Input,
    Value,
)
from shardproof.frontends.torch.memory import Op as Step
from shardproof.frontends.torch.trace import Box, Event, Items, Ranks, Tensor, Trace
from shardproof.frontends.torch.twins import Once

ROWS, WIDTH = 8, 4


def trace(rank: int) -> Trace:
    events = (Event("aten.mm.default", source=0), Event("aten.mm.default", source=1))
    return Trace(rank, 4, (), events, ("train.py:1", "train.py:2"), ("",))


def step(rank: int, *, numbered_from: int = 0) -> Functional:
    """Rows of a weight times a batch, summed over a group; then half of it, twice."""
    names = ("x", "w", "ids", "flags", "y", "sum", "half", "again", "known", "total", "own")
    n = {name: numbered_from + at for at, name in enumerate(names)}
    group = Ranks((0, 1) if rank < 2 else (2, 3))
    box = Box("w", (4 * WIDTH, WIDTH), (WIDTH * rank, 0), (WIDTH, WIDTH), "stated")
    start = 4 * (rank % 2)
    ops = [
        Step(INPUT, ("batch", "x"), {}, (n["x"],), 0),
        Step(INPUT, ("parameter", "w"), {}, (n["w"],), 0),
        Step(INPUT, ("batch", "ids"), {}, (n["ids"],), 0),
        Step("aten.mm.default", (Tensor(n["x"]), Tensor(n["w"])), {}, (n["y"],), 0),
        Step("comm.all_reduce", (Tensor(n["y"]), group, "sum"), {}, (n["sum"],), 1),
        Step(SLICE, (Tensor(n["sum"]), 0, start, 4), {}, (n["half"],), 1),
        Step(SLICE, (Tensor(n["sum"]), 0, start, 4), {}, (n["again"],), 1),
        Step(CONSTANT, (), {}, (n["known"],), 1),
        Step("aten.mul.Tensor", (Tensor(n["half"]), Tensor(n["known"])), {}, (n["total"],), 1),
        Step("aten.add.Tensor", (Tensor(n["total"]), Tensor(n["again"])), {}, (n["own"],), 1),
    ]
    shapes = {"x": (ROWS, WIDTH), "w": (WIDTH, WIDTH), "y": (ROWS, WIDTH), "sum": (ROWS, WIDTH)}
    values = [Value((), "float32")] * numbered_from + [
        Value(shapes.get(name, (ROWS,) if name == "ids" else (4, WIDTH)), kind(name))
        for name in names
    ]
    inputs = [
        Input("batch", "x", n["x"]),
        Input("parameter", "w", n["w"], True, box),
        Input("batch", "ids", n["ids"], low=0, high=ROWS),
    ]
    return Functional(
        trace(rank),
        values=values,
        ops=ops,
        inputs=inputs,
        compared=[Compared("output", "out", n["own"], None, 1)],
        constants={n["known"]: struct.pack("16f", *range(16))},
        boxes={"w": box},
    )


def kind(name: str) -> str:
    return {"ids": "int64", "flags": "bool"}.get(name, "float32")


def lowered(one: Functional) -> Side:
    return lower(one, Inference())


def alike(one: Side, other: Side) -> bool:
    return (one.program, one.results, one.notes, one.gaps, one.slices) == (
        other.program,
        other.results,
        other.notes,
        other.gaps,
        other.slices,
    )


class Counted:
    """Lowers, and counts how often."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, one: Functional) -> Side:
        self.count += 1
        return lowered(one)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_ranks_of_one_program_are_lowered_once(rank: int) -> None:
    counted = Counted()
    once = Once(counted)
    once(step(0))
    other = step(rank, numbered_from=5 * rank)
    assert alike(once(other), lowered(other))
    assert counted.count == 1


def changed(at: int, of: str = "ops", **fields: object) -> Callable[[Functional], Functional]:
    """A step whose operator, or input, number ``at`` has other fields."""

    def change(one: Functional) -> Functional:
        rows = list(getattr(one, of))
        rows[at] = rows[at]._replace(**fields)
        return replace(one, **{of: rows})

    return change


#: What a second rank does otherwise, each so that what it is lowered to is another program.
OTHERWISE: dict[str, Callable[[Functional], Functional]] = {
    "another operator": changed(9, name="aten.sub.Tensor"),
    "another operand": changed(9, args=(Tensor(6), Tensor(7))),
    "another number": changed(9, kwargs={"alpha": 2}),
    "another line": changed(3, event=1),
    "another constant": lambda one: replace(one, constants={8: struct.pack("16f", *[2] * 16)}),
    "another reduction": changed(4, args=(Tensor(4), Ranks((0, 1)), "avg")),
    "another size of the group": changed(4, args=(Tensor(4), Ranks((0, 1, 2)), "sum")),
    "one of two equal slices from elsewhere": changed(6, args=(Tensor(5), 0, 2, 4)),
    "a slice along another dimension": lambda one: replace(
        changed(6, args=(Tensor(5), 1, 0, 4))(one),
        values=[*one.values[:7], Value((ROWS, WIDTH), "float32"), *one.values[8:]],
    ),
    "another part of the batch": changed(
        0, "inputs", box=Box("x", (2 * ROWS, WIDTH), (ROWS, 0), (ROWS, WIDTH), "stated")
    ),
    "another domain": changed(2, "inputs", high=4),
    "a parameter that is not trained": changed(1, "inputs", trainable=False),
    "a mark": changed(2, "inputs", low=-1, mark=-100),
    "another result": lambda one: replace(
        one, compared=[one.compared[0]._replace(value=one.compared[0].value - 1)]
    ),
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_what_is_no_name_is_lowered_by_itself(name: str) -> None:
    counted = Counted()
    once = Once(counted)
    once(step(0))
    other = OTHERWISE[name](step(0))
    assert alike(once(other), lowered(other))
    assert counted.count == 2


def test_starts_outside_of_the_dimension_are_not_taken_over() -> None:
    counted = Counted()
    once = Once(counted)
    once(step(0))
    other = step(0)
    for at in (5, 6):
        other = changed(at, args=(Tensor(5), 0, 6, 4))(other)
    assert once(other).gaps.keys() == lowered(other).gaps.keys() == {SLICE}
    assert counted.count == 2


def cleared(rank: int, start: int) -> Functional:
    """A mask of some columns of scores hides these; another one, of the columns that are left where
    the last ones are cut off, writes numbers into what is left."""
    ops = [
        Step(INPUT, ("batch", "x"), {}, (0,), 0),
        Step(SLICE, (Tensor(0), 1, start, 4), {}, (1,), 0),
        Step("aten.constant_pad_nd.default", (Tensor(0), Items((0, -4)), 0.0), {}, (2,), 0),
        Step("aten.le.Scalar", (Tensor(1), 0), {}, (3,), 0),
        Step("aten.le.Scalar", (Tensor(2), 0), {}, (4,), 0),
        Step("aten.masked_fill.Scalar", (Tensor(1), Tensor(3), float("-inf")), {}, (5,), 0),
        Step("aten._log_softmax.default", (Tensor(5), 1, False), {}, (6,), 0),
        Step("aten.masked_fill.Scalar", (Tensor(6), Tensor(4), 0.0), {}, (7,), 0),
    ]
    kinds = ("float32", "float32", "bool", "bool", "float32", "float32", "float32")
    return Functional(
        trace(rank),
        values=[Value((ROWS, 8), "float32"), *(Value((ROWS, 4), kind) for kind in kinds)],
        ops=ops,
        inputs=[Input("batch", "x", 0)],
        compared=[Compared("output", "out", 7, None, 1)],
    )


@pytest.mark.parametrize("starts", [(0, 4), (4, 0)])
def test_slices_that_a_rule_makes_begin_where_they_do(starts: tuple[int, int]) -> None:
    """Of the ranks with another mask nobody knows whether minus infinity is left."""
    counted = Counted()
    once = Once(counted)
    sides = [once(cleared(rank, start)) for rank, start in enumerate(starts)]
    for rank, (side, start) in enumerate(zip(sides, starts, strict=True)):
        assert alike(side, lowered(cleared(rank, start)))
        assert bool(side.gaps) == (start != 0)
    assert counted.count == 2


def test_slices_from_elsewhere_are_moved_beside_those_of_a_rule() -> None:
    counted = Counted()
    once = Once(counted)
    once(cleared(0, 2))
    other = once(cleared(1, 3))
    assert alike(other, lowered(cleared(1, 3)))
    assert counted.count == 1

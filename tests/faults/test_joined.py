"""Slices that are joined again: all of a tensor and in order, beside those that are not."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from shardproof.checker import check
from shardproof.engine.plan.ir import Attr, Body, Plan
from shardproof.engine.schedule.instances import NOWHERE, Instance, Tensor
from shardproof.engine.schedule.rejoin import rejoined
from shardproof.mutation.edit import Draft
from tests.faults.plans import assert_proved, assert_refuted, edit_body, find, llama, verify

#: (start, size) of each slice.
Pieces = tuple[tuple[int, int], ...]

#: A head's first channel, or one and a half heads, beside the rest.
RIGHT: list[Pieces] = [((0, 1), (1, 15)), ((0, 6), (6, 4), (10, 6)), ((0, 16),)]
WRONG: list[Pieces] = [
    ((1, 15), (0, 1)),
    ((0, 1), (0, 1), (2, 14)),
    ((0, 6), (6, 4), (6, 6)),
    ((0, 6), (10, 6), (6, 4)),
]


def cut(body: Body, number: int, dim: int, pieces: Pieces, factor: int = 0) -> Body:
    """The result of an operator in slices, each multiplied by ``factor`` (0: not), and joined."""
    (value,) = body.ops[number].outputs
    shape = body.values[value].shape
    draft = Draft(body)
    whole = draft.value(value)
    draft.change(number, outputs=(whole,))
    place, parts = number + 1, []
    for start, size in pieces:
        part = draft.value(value, (*shape[:dim], size, *shape[dim + 1 :]))
        attrs: dict[str, Attr] = {"dim": dim, "start": start, "size": size}
        draft.add(place, "slice", [whole], part, attrs)
        place += 1
        if factor:
            before, part = part, draft.value(part)
            draft.add(place, "mul", [before], part, {"other": Fraction(factor)})
            place += 1
        parts.append(part)
    draft.add(place, "concat", parts, value, {"dim": dim - len(shape)})
    return draft.built()


def joined(pieces: Pieces) -> Plan:
    """The result of attention, whose columns are heads and their channels, cut and joined."""

    def change(body: Body) -> Body:
        last = max(i for i, op in enumerate(body.ops) if op.name == "transpose")
        assert body.ops[last + 1].name == "view"
        return cut(body, last + 1, 2, pieces)

    return edit_body(llama(), 0, "forward", change)


@pytest.mark.parametrize("pieces", RIGHT)
def test_slices_that_are_joined_again_are_proved(pieces: Pieces) -> None:
    assert_proved(joined(pieces))


@pytest.mark.parametrize("pieces", WRONG)
def test_slices_that_are_joined_otherwise_are_refuted(pieces: Pieces) -> None:
    assert_refuted(joined(pieces), kind="mismatch", layer="layers.0.attention")


def test_joined_slices_are_checked_and_hold_for_every_instance(tmp_path: Path) -> None:
    assert verify(joined(RIGHT[1]), exhaustive=True, out=tmp_path).verdict == "proved"
    assert [str(p) for p in check(tmp_path).problems] == []


def test_slices_of_two_tensors_are_not_one_of_them() -> None:
    def row(name: str, inputs: tuple[int, ...], output: int, **attrs: Attr) -> Instance:
        return Instance("op", name, (0,), inputs, (output,), attrs, NOWHERE)

    first, join = row("slice", (0,), 2, dim=0, start=0, size=2), row("concat", (2, 3), 4, dim=0)
    own, other = (row("slice", (x,), 3, dim=0, start=2, size=2) for x in (0, 1))
    tensors = [Tensor(0, (4,), "x", True), Tensor(0, (4,), "y", True)]
    assert rejoined([first, other, join], tensors) == [first, other, join]
    assert rejoined([first, own, join], tensors)[2] == row("identity", (0,), 4)
    short = own._replace(attrs={**own.attrs, "size": 1})
    assert rejoined([first, short, join], tensors)[2] == join


@pytest.mark.parametrize("pieces", [((0, 1), (1, 3)), ((0, 3), (3, 1))])
def test_parts_of_what_does_not_vary_are_stated(pieces: Pieces) -> None:
    """The gradient of a sum is the same everywhere: nothing but the operator cuts it."""

    def scaled(factor: int) -> Plan:
        return edit_body(
            llama(cp=2), 0, "backward", lambda b: cut(b, find(b, "sum"), 1, pieces, factor)
        )

    assert_proved(scaled(1))
    assert_refuted(scaled(2), kind="mismatch")

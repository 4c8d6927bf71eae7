"""Flat messages that ranks, or blocks of one of them, divide unlike."""

from __future__ import annotations

import pytest

from shardproof.frontends.torch.divisions import agreed, blocks, common, rows
from shardproof.frontends.torch.memory import CONCAT, Functional, Memory
from shardproof.frontends.torch.trace import StridedTensor, Trace
from shardproof.frontends.torch.ways import Shapes

EVEN: Shapes = ((3, 4), (6,))
PADDED: Shapes = ((2, 4), (4,), (6,))


@pytest.mark.parametrize(
    ("several", "expected"),
    [
        ([EVEN, PADDED], EVEN),
        ([((2,), (2,), (4,)), ((4,), (1,), (3,))], ((4,), (4,))),
        ([((6,), (2,)), ((2,), (6,))], None),  # the ends of both: nobody has one piece there
        ([((6,),), ((4,),)], None),  # of other sizes
        ([((6,),), ((3, 2),)], ((3, 2),)),  # the shape that says most
    ],
)
def test_what_all_can_be_divided_into(several: list[Shapes], expected: Shapes | None) -> None:
    assert common(several) == expected


def test_ranks_agree_where_some_divide_a_message_unlike() -> None:
    group = (0, 1)
    assert agreed({0: {group: [EVEN, EVEN]}, 1: {group: [PADDED, EVEN]}}) == {group: [EVEN, EVEN]}
    assert agreed({0: {group: [EVEN]}, 1: {group: [EVEN]}}) == {}
    assert agreed({0: {group: [EVEN]}, 1: {group: []}}) == {}
    assert agreed({0: {group: [((6,), (2,))]}, 1: {group: [((2,), (6,))]}}) == {}


def memory_of(*shapes: tuple[int, ...]) -> tuple[Memory, int]:
    """Memory into which tensors of these shapes were written, one after the other, and its size."""
    memory = Memory(Functional(Trace(0, 1, (), (), ("",), ("",))))
    at = 0
    for shape in shapes:
        size = 1
        for n in shape:
            size *= n
        flat = StridedTensor(0, at, (size,), (1,), "float32")
        memory.write(flat, memory.reshape(memory.value(shape, "float32"), (size,)))
        at += size
    return memory, at


def test_padded_rows_are_rows() -> None:
    memory, _ = memory_of((2, 4), (1, 4))
    value = rows(memory, StridedTensor(0, 0, (3, 4), (4, 1), "float32"))
    assert memory.shape_of(value) == (3, 4)
    assert memory.made[value].name == CONCAT


def test_blocks_of_which_one_is_padded() -> None:
    memory, size = memory_of((3, 4), (6,), (2, 4), (4,), (6,))
    columns = blocks(memory, StridedTensor(0, 0, (size,), (1,), "float32"), 2)
    assert [[piece.offset for piece in column] for column in columns] == [[0, 18], [12, 30]]

"""Views and writes of memory as values, against PyTorch's own memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.torch import geometry
from shardproof.frontends.torch.memory import (
    CONCAT,
    EXPAND,
    PERMUTE,
    RESHAPE,
    SLICE,
    UNDEFINED,
    Functional,
    Memory,
)
from shardproof.frontends.torch.trace import Items, StridedTensor, Tensor, Trace

Array = NDArray[Any]


def empty() -> Functional:
    return Functional(Trace(0, 1, (), (), ("",), ("",)))


def evaluate(out: Functional, given: dict[int, Array]) -> dict[int, Array]:
    """All values, by NumPy."""
    known = dict(given)

    def of(arg: Any) -> Any:
        if isinstance(arg, Tensor):
            return known[arg.number]
        return [of(a) for a in arg.items] if isinstance(arg, Items) else arg

    for op in out.ops:
        args = [of(a) for a in op.args]
        (output,) = op.outputs
        if op.name == RESHAPE:
            known[output] = args[0].reshape(args[1])
        elif op.name == SLICE:
            known[output] = np.take(args[0], np.arange(args[2], args[2] + args[3]), args[1])
        elif op.name == PERMUTE:
            known[output] = args[0].transpose(args[1])
        elif op.name == EXPAND:
            known[output] = np.broadcast_to(args[0], args[1])
        elif op.name == CONCAT:
            known[output] = np.concatenate(args[0], args[1])
        else:
            assert op.name == UNDEFINED
            known[output] = np.full(out.values[output].shape, np.nan)
        assert known[output].shape == out.values[output].shape
    return known


def random_view(base: torch.Tensor, random: np.random.Generator) -> torch.Tensor:
    """A view of a view ... of memory, as a program makes them."""
    for _ in range(int(random.integers(4))):
        kind = random.integers(8)
        rank = base.dim()
        if kind == 0 and rank:
            dim = int(random.integers(rank))
            start = int(random.integers(base.shape[dim]))
            size = int(random.integers(1, base.shape[dim] - start + 1))
            base = base.narrow(dim, start, size)
        elif kind == 1 and rank > 1:
            base = base.permute(*random.permutation(rank).tolist())
        elif kind == 2 and rank:
            base = base.select(0, int(random.integers(base.shape[0])))
        elif kind == 3:
            base = base.unsqueeze(int(random.integers(rank + 1)))
        elif kind == 4 and base.is_contiguous():
            base = base.view(-1)
        elif kind == 5 and base.is_contiguous() and base.numel() % 2 == 0:
            base = base.view(2, -1)
        elif kind == 6 and rank:
            dim = int(random.integers(rank))
            start = int(random.integers(base.shape[dim]))
            places = [slice(None)] * rank
            places[dim] = slice(start, None, int(random.integers(2, 4)))
            base = base[tuple(places)]
        elif kind == 7 and rank > 1 and base.is_contiguous():
            offset = int(random.integers(min(2, base.shape[-1])))
            base = base.diagonal(offset, rank - 2, rank - 1)
    return base


def held_of(x: torch.Tensor) -> StridedTensor:
    return StridedTensor(0, x.storage_offset(), tuple(x.shape), x.stride(), "float64")


@pytest.mark.parametrize("seed", range(150))
def test_reads_and_writes_are_those_of_memory(seed: int) -> None:
    random = np.random.default_rng(seed)
    shape = tuple(int(n) for n in random.integers(1, 5, random.integers(1, 4)))
    memory = torch.tensor(random.normal(size=shape))
    out = empty()
    work = Memory(out)
    given = {work.value(shape, "float64"): memory.numpy().copy()}
    work.write(held_of(memory), 0)
    read: list[tuple[int, Array]] = []
    for _ in range(6):
        view = random_view(memory, random)
        if random.integers(2):
            value = work.value(tuple(view.shape), "float64")
            given[value] = random.normal(size=tuple(view.shape))
            work.write(held_of(view), value)
            view.copy_(torch.tensor(given[value]))
        read.append((work.read(held_of(view)), view.numpy().copy()))
    read.append((work.read(held_of(memory)), memory.numpy().copy()))
    known = evaluate(out, given)
    for value, expected in read:
        np.testing.assert_array_equal(known[value], expected)


@pytest.mark.parametrize("seed", range(40))
def test_memory_that_nothing_has_written_is_written_part_by_part(seed: int) -> None:
    """A border around what is there, as circular padding writes it, and windows that are read."""
    random = np.random.default_rng(seed)
    sizes = [int(n) for n in random.integers(1, 4, 3)]
    before, after = (int(n) for n in random.integers(1, 3, 2))
    memory = torch.full((*sizes[:2], sizes[2] + before + after), torch.nan, dtype=torch.float64)
    out = empty()
    work = Memory(out)
    given: dict[int, Array] = {}
    inside = slice(before, before + sizes[2])
    for places in (inside, slice(0, before), slice(before + sizes[2], None)):
        view = memory[..., places]
        value = work.value(tuple(view.shape), "float64")
        given[value] = random.normal(size=tuple(view.shape))
        work.write(held_of(view), value)
        view.copy_(torch.tensor(given[value]))
    length = int(random.integers(1, memory.shape[2] + 1))
    views = [memory, memory.unfold(2, length, int(random.integers(1, 3)))]
    read = [(work.read(held_of(v)), v.numpy().copy()) for v in views]
    known = evaluate(out, given)
    for value, expected in read:
        np.testing.assert_array_equal(known[value], expected)
        assert not np.isnan(expected).any()
    needed = {value for value, _ in read}
    for op in reversed(out.ops):
        if op.outputs[0] in needed:
            assert op.name != UNDEFINED
            needed |= {n for a in op.args for n in numbers(a)}


def numbers(arg: Any) -> list[int]:
    """The values that an argument names."""
    if isinstance(arg, Items):
        return [n for a in arg.items for n in numbers(a)]
    return [arg.number] if isinstance(arg, Tensor) else []


def test_a_flat_buffer_is_its_parts() -> None:
    """What is written and read part by part never becomes a concatenation."""
    out = empty()
    work = Memory(out)
    parts = [
        StridedTensor(0, 0, (2, 3), (3, 1), "float32"),
        StridedTensor(0, 6, (4,), (1,), "float32"),
    ]
    values = [work.value(p.shape, "float32") for p in parts]
    for part, value in zip(parts, values, strict=True):
        work.write(part, value)
    whole = StridedTensor(0, 0, (10,), (1,), "float32")
    assert work.parts(whole) == parts
    assert [work.read(p) for p in parts] == values
    assert not out.ops
    work.read(whole)
    assert CONCAT in {op.name for op in out.ops}


def test_rows_that_were_cut_are_joined_again() -> None:
    out = empty()
    work = Memory(out)
    value = work.value((4, 2), "float32")
    rows = [work.slice(value, 0, i, 1) for i in range(4)]
    assert work.concat(rows, 0) == value
    swapped = work.concat([rows[1], rows[0]], 0)
    assert out.ops[-1].name == CONCAT
    assert out.ops[-1].outputs == (swapped,)


def test_one_of_several_is_a_slice_and_nothing_else() -> None:
    """An expert's weight [1, 3, 4] of [2, 3, 4]: of a parameter, a box."""
    out = empty()
    work = Memory(out)
    work.write(
        StridedTensor(0, 0, (2, 3, 4), (12, 4, 1), "float32"), work.value((2, 3, 4), "float32")
    )
    one = work.read(StridedTensor(0, 12, (1, 3, 4), (12, 4, 1), "float32"))
    assert out.values[one].shape == (1, 3, 4)
    assert [op.name for op in out.ops] == [SLICE]


def test_elements_that_lie_apart_in_two_pieces() -> None:
    """A column of what two ranks sent, which lies in one piece for each of them."""
    out = empty()
    work = Memory(out)
    for at in range(2):
        value = work.value((3,), "float32")
        work.write(StridedTensor(0, 3 * at, (3,), (1,), "float32"), value)
    column = work.read(StridedTensor(0, 2, (2, 1), (3, 1), "float32"))
    assert out.values[column].shape == (2, 1)
    assert out.ops[-1].name == CONCAT


def test_memory_that_nothing_has_written_is_read_in_any_shape() -> None:
    """Heads before positions, with what is beside them, of fresh memory: as DTensor reads it to see
    which shape a result has."""
    out = empty()
    work = Memory(out)
    fresh = StridedTensor(0, 0, (4, 8, 16, 64), (24576, 192, 1536, 1), "float32")
    value = work.read(fresh)
    assert out.values[value].shape == fresh.shape
    assert [op.name for op in out.ops] == [UNDEFINED]


def test_windows_that_overlap_are_read_and_not_written() -> None:
    out = empty()
    work = Memory(out)
    given = np.arange(6.0)
    work.write(StridedTensor(0, 0, (6,), (1,), "float32"), work.value((6,), "float32"))
    windows = StridedTensor(0, 0, (4, 3), (1, 1), "float32")
    read = work.read(windows)
    known = evaluate(out, {0: given})
    np.testing.assert_array_equal(known[read], np.lib.stride_tricks.sliding_window_view(given, 3))
    with pytest.raises(InvalidInput, match="overlaps itself"):
        work.write(windows, work.value((4, 3), "float32"))


def test_a_view_along_no_dimension_of_what_was_written_is_refused() -> None:
    out = empty()
    work = Memory(out)
    work.write(
        StridedTensor(0, 0, (300, 301), (301, 1), "float32"), work.value((300, 301), "float32")
    )
    diagonal = StridedTensor(0, 0, (300,), (302,), "float32")
    with pytest.raises(InvalidInput, match="no part of what was written"):
        work.read(diagonal)
    with pytest.raises(InvalidInput, match="no part of what was written"):
        work.write(diagonal, work.value((300,), "float32"))


def test_another_element_type_of_the_same_memory_is_refused() -> None:
    out = empty()
    work = Memory(out)
    work.write(StridedTensor(0, 0, (4,), (1,), "float32"), work.value((4,), "float32"))
    with pytest.raises(InvalidInput, match="another type"):
        work.read(StridedTensor(0, 0, (4,), (1,), "int32"))


def test_what_nothing_has_written_is_undefined() -> None:
    out = empty()
    work = Memory(out)
    work.read(StridedTensor(0, 0, (4,), (1,), "float32"))
    assert [op.name for op in out.ops] == [UNDEFINED]


def test_dense_orders() -> None:
    assert geometry.dense_order((2, 3), (3, 1)) == (0, 1)
    assert geometry.dense_order((3, 2), (1, 3)) == (1, 0)
    assert geometry.dense_order((2, 3), (4, 1)) is None
    assert geometry.recipe((10,), 8, (4,), (1,)) is None
    cut = geometry.recipe((4, 6), 12, (1, 6), (6, 1))
    assert cut is not None
    assert cut.slices == ((2, 1), (0, 6))

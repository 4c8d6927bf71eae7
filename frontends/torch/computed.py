"""Parameters that the program makes of full ones: boxes of them, or runs of their entries in a flat
shard.

ZeRO by hand flattens full parameters, puts them one after the other, pads the end and cuts shards
from that.  What such a shard has of each is found by following which entries go where; the shard is
then written again box by box, so that the step sees of each what it has of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import Final, NamedTuple

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.torch import geometry, trace
from shardproof.frontends.torch.memory import (
    CAST,
    CONCAT,
    INPUT,
    RESHAPE,
    SLICE,
    Functional,
    Memory,
    Op,
    number,
)
from shardproof.frontends.torch.pieces import Cut
from shardproof.frontends.torch.trace import StridedTensor

#: Operators that put tensors one after the other.
JOINS: Final = (CONCAT, "aten.cat.default")
#: Runs of entries that a shard may be made of.
MOST_RUNS: Final = 4096


class Computed(NamedTuple):
    """A box of full parameter ``name``; ``cut``: where it lies in what was computed (None: it
    is all of it).

    Example: ``up.weight = job.full["up.weight"][8:16]`` of a tensor [16, 8]: the offset (8, 0) and
    the shape (8, 8).
    """

    name: str
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    input: int
    cut: Cut | None = None


class Run(NamedTuple):
    """``size`` entries from ``start`` on, in their order, of a full parameter (by the number of its
    value), or of a value that depends on none (None).

    Example: the last row of the parameter 7, of shape [2, 3], is ``Run(7, 3, 3)``.
    """

    input: int | None
    start: int
    size: int


def computed(memory: Memory, value: int) -> list[Computed]:
    """The boxes of full parameters that a value is made of, where the program cut it from them, one
    after the other along a dimension or in a flat buffer; none if it depends on no full parameter.
    Raises `InvalidInput` if it is anything else.

    Example: of ``torch.cat([full["q"][:2], full["q"][2:4]])`` two boxes of ``q``, with the cuts (0,
    0, 2) and (0, 2, 2); of ``full["q"] * 2`` it is refused.
    """
    out, made = memory.out, memory.made
    if not _depends(made, value):
        return []
    inner = value
    while inner in made and made[inner].name == CAST:
        inner = next(trace.tensors_of(*made[inner].args))
    box = _box(out, made, value)
    if box is not None:
        return [box]
    boxes = _joined(out, made, inner)
    return _flat_boxes(out, made, inner) if boxes is None else boxes


def rewritten(memory: Memory, tensor: StridedTensor, pieces: Sequence[Computed]) -> None:
    """Write a flat shard again, box by box, as memory has what is stated box by box.

    Example: a shard of the last row of ``w`` [2, 3] and all of ``b`` [2] is written at 0, in the
    shape [1, 3], and at 3.
    """
    if not geometry.in_order(tensor.shape, tensor.strides):
        raise InvalidInput("a flat parameter that is computed from full ones is not contiguous")
    for piece in pieces:
        value = piece.input
        for dim, (start, size) in enumerate(zip(piece.offset, piece.shape, strict=True)):
            value = memory.slice(value, dim, start, size)
        at = 0 if piece.cut is None else piece.cut.start
        strides = geometry.contiguous(piece.shape)
        part = StridedTensor(tensor.storage, tensor.offset + at, piece.shape, strides, tensor.dtype)
        memory.write(part, memory.cast(value, tensor.dtype))


def part_of(memory: Memory, value: int, cut: Cut) -> int:
    """What a gradient, or another tensor of a parameter's shape, has of one of its pieces.

    Example: of a flat gradient [8], ``Cut(0, 3, 4, (2, 2))`` is the matrix of its entries 3 to 6.
    """
    if cut.box is None:
        return memory.slice(value, cut.dim, cut.start, cut.size)
    entries = memory.reshape(value, (prod(memory.shape_of(value)),))
    return memory.reshape(memory.slice(entries, 0, cut.start, cut.size), cut.box)


def _box(out: Functional, made: dict[int, Op], value: int) -> Computed | None:
    """The box that a value is, if nothing but slices cut it from a full parameter."""
    chain: list[Op] = []
    while value in made and made[value].name in (SLICE, CAST):
        chain.append(made[value])
        value = next(trace.tensors_of(*made[value].args))
    if value not in made or not _full(made[value]):
        return None
    shape = list(out.values[value].shape)
    offset = [0] * len(shape)
    for op in reversed(chain):
        if op.name == SLICE:
            _, dim, start, size = op.args
            at = number(dim)
            offset[at] += number(start)
            shape[at] = number(size)
    return Computed(str(made[value].args[1]), tuple(offset), tuple(shape), value)


def _joined(out: Functional, made: dict[int, Op], inner: int) -> list[Computed] | None:
    """Boxes one after the other along a dimension."""
    if inner not in made or made[inner].name not in JOINS:
        return None
    args = made[inner].args
    dim = number(args[1]) % len(out.values[inner].shape) if len(args) > 1 else 0
    parts: list[Computed] = []
    start = 0
    for part in trace.tensors_of(args[0]):
        box = _box(out, made, part)
        if box is None:
            return None
        size = out.values[part].shape[dim]
        parts.append(box._replace(cut=Cut(dim, start, size)))
        start += size
    return parts


def _flat_boxes(out: Functional, made: dict[int, Op], value: int) -> list[Computed]:
    """The boxes that runs of entries of full parameters are, each at its place in the shard."""
    boxes: list[Computed] = []
    at = 0
    for run in _merged(_runs(out, made, value)):
        if run.input is not None:
            shape, start = out.values[run.input].shape, at
            for offset, own in geometry.boxes(shape, run.start, run.start + run.size):
                name = str(made[run.input].args[1])
                cut = Cut(0, start, prod(own), own)
                boxes.append(Computed(name, offset, own, run.input, cut))
                start += prod(own)
        at += run.size
    return boxes


def _merged(runs: Iterable[Run]) -> Iterator[Run]:
    """Runs that go on where the one before ends are one."""
    last: Run | None = None
    for run in runs:
        if (
            last is not None
            and run.input == last.input
            and (run.input is None or run.start == last.start + last.size)
        ):
            last = last._replace(size=last.size + run.size)
        else:
            if last is not None:
                yield last
            last = run
    if last is not None:
        yield last


def _runs(out: Functional, made: dict[int, Op], value: int) -> list[Run]:
    """The entries of a value in their order, as runs of entries of full parameters."""
    shape = out.values[value].shape
    if value not in made or not _depends(made, value):
        return [Run(None, 0, prod(shape))]
    op = made[value]
    if _full(op):
        return [Run(value, 0, prod(shape))]
    tensors = list(trace.tensors_of(*op.args))
    if op.name in (CAST, RESHAPE):
        return _runs(out, made, tensors[0])
    if op.name == SLICE:
        dim, start, size = (number(a) for a in op.args[1:])
        base = out.values[tensors[0]].shape
        inner = prod(base[dim + 1 :])
        rows = _runs(out, made, tensors[0])
        step, length = base[dim] * inner, size * inner
        wholes = range(start * inner, prod(base), step) if length else range(0)
        return _few(r for first in wholes for r in _cut(rows, first, length))
    if op.name in JOINS:
        dim = number(op.args[1]) % len(shape) if len(op.args) > 1 else 0
        count = prod(shape[:dim])
        parts = [(_runs(out, made, t), prod(out.values[t].shape[dim:])) for t in tensors]
        return _few(r for i in range(count) for p, n in parts for r in _cut(p, i * n, n))
    raise InvalidInput(
        f"a parameter is computed from full ones, and is not a box of one (by {op.name})"
    )


def _few(runs: Iterator[Run]) -> list[Run]:
    few: list[Run] = []
    for run in _merged(runs):
        few.append(run)
        if len(few) > MOST_RUNS:
            raise InvalidInput(
                f"a parameter is computed from full ones, of more than {MOST_RUNS} runs of entries"
            )
    return few


def _cut(runs: Sequence[Run], start: int, size: int) -> Iterator[Run]:
    """``size`` entries from ``start`` on."""
    at = 0
    for run in runs:
        first, last = max(start, at), min(start + size, at + run.size)
        if first < last:
            yield Run(
                run.input, run.start + first - at if run.input is not None else 0, last - first
            )
        at += run.size


def _full(op: Op) -> bool:
    return op.name == INPUT and op.args[0] == "full"


def _depends(made: dict[int, Op], value: int) -> bool:
    """Whether a value is made of full parameters."""
    seen: set[int] = set()
    open_values = [value]
    while open_values:
        at = open_values.pop()
        if at in seen or at not in made:
            continue
        seen.add(at)
        op = made[at]
        if _full(op):
            return True
        open_values += trace.tensors_of(*op.args, *op.kwargs.values())
    return False

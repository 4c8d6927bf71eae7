"""What one rank's recorded step is: tensors by storage, events in issue order, marks of the job.

A `Trace` has no tensors of any framework in it and needs none to be read.  `write` and `read` keep
it in one file; what is read is untrusted: it is typed, its size is bounded, and every number that
names something is checked before anything uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path
from typing import TypeAlias

import msgspec

from shardproof.engine.errors import InvalidInput

#: A trace file of more bytes is not read.
MOST_BYTES = 1 << 30
#: Dimensions of a tensor, elements of a storage.
MOST_DIMENSIONS, MOST_ELEMENTS = 24, 1 << 50
#: Masks of one step that choose rows.
MOST_MASKS = 4096
#: Ranks of a world.
MOST_WORLD = 1 << 17

#: Marks of the job, as names of events.
BATCH, FULL, PARAMETER, CONSTANT = "job.batch", "job.full", "job.parameter", "job.constant"
BUFFER = "job.buffer"
#: Who says of a box that it is all of the parameter, since it has its name and shape.
BY_NAME = ("same name", "DDP")
START, END, WAIT = "job.start", "job.end", "job.wait"
#: The argument of a random operator that is the state of its generator, in a few digits.
DRAW = "draw"


class StridedTensor(msgspec.Struct, frozen=True, array_like=True):
    """A tensor: a strided view of a storage (in elements).

    Example: ``x.t()`` of x [4, 8] has the shape (8, 4), the strides (1, 8) and the storage of
    ``x``.
    """

    storage: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


class Tensor(msgspec.Struct, frozen=True, array_like=True, tag="t"):
    """A reference to tensor ``number`` of the trace.

    Example: ``Tensor(15)``, the local part of ``up.weight``.
    """

    number: int


class Items(msgspec.Struct, frozen=True, array_like=True, tag="l"):
    """A list or tuple argument.

    Example: ``Items((Tensor(1), Tensor(2)))`` of ``torch.cat([x, y])``.
    """

    items: tuple[Arg, ...]


class Named(msgspec.Struct, frozen=True, array_like=True, tag="n"):
    """What is neither tensor nor number: ``kind`` "dtype", "device", "reduce", "work", ...

    Example: ``Named("dtype", "bfloat16")``.
    """

    kind: str
    text: str


class Ranks(msgspec.Struct, frozen=True, array_like=True, tag="g"):
    """A process group, its ranks in group order.

    Example: ``Ranks((0, 1))``.
    """

    ranks: tuple[int, ...]


Arg: TypeAlias = "int | float | bool | str | Tensor | Items | Named | Ranks | None"


#: The text of a box: all of a state that is shaped otherwise than its parameter.
OWN_SHAPE = "a shape of its own"


class Box(msgspec.Struct, frozen=True):
    """Which part of a full tensor a local one is, and who says so.

    Example: rank 1's part of ``up.weight`` [16, 8] under ``Shard(0)`` on two ranks: offset (8, 0),
    shape (8, 8), ``said`` "DTensor", ``text`` "S(0)".

    ``said``: "computed", "DTensor", "DDP", "stated", "same name"; ``full_shape`` has 0 where
    nothing says how long the full tensor is.  ``partial``: ranks over which local tensors have to
    be added up to get the box (the framework's Partial), with the reduction.
    """

    name: str
    full_shape: tuple[int, ...]
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    said: str
    partial: tuple[tuple[str, tuple[int, ...]], ...] = ()
    text: str = ""


def unlike(key: str, name: str) -> str:
    """Why a state is refused that is shaped otherwise than a parameter of which a rank has a part.

    Example: Adafactor's means, where FSDP has cut the parameter's rows.
    """
    return (
        f"the optimizer's {key} of {name} is not shaped as the parameter, of which this rank has a "
        "part: nothing says which part of the whole state it is"
    )


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """One operator as it was dispatched, or a mark of the job.

    Example: ``_c10d_functional.all_reduce.default`` with the arguments ``Tensor(46)``, "sum",
    ``Ranks((0, 1))`` and the output ``Tensor(47)``.

    ``source``: index into `Trace.sources`; ``module``: the path of the module whose forward runs,
    or whose forward is differentiated; ``work``: the handle that a collective gave (0: none), which
    a mark `WAIT` names; ``writes``: tensors that the operator's schema says it writes;
    ``still``: operands that no gradient goes to (``detach``, ``no_grad``), of the single side's
    forward; ``own``: of backward, but not of autograd's own (a custom function, a hook);
    ``communicator``: the name of the process group that a collective or a message is issued to.
    """

    name: str
    args: tuple[Arg, ...] = ()
    kwargs: dict[str, Arg] = {}
    outputs: tuple[Arg, ...] = ()
    source: int = 0
    module: int = 0
    backward: bool = False
    work: int = 0
    boxes: tuple[Box, ...] = ()
    writes: tuple[int, ...] = ()
    still: tuple[int, ...] = ()
    own: bool = False
    communicator: str = ""


class Trace(msgspec.Struct, frozen=True):
    """One rank's step.

    Example: rank 1 of 2, with the ``modules`` "", "up", "down" and the ``sources`` "train.py:9
    (__init__)".

    ``constants``: values of tensors that depend on no input, as bytes of their element type, by the
    number that an event `CONSTANT` names.  ``notes``: what the recorder had to assume.
    ``groups``: process groups that the program gave a name; ``splits``: ranks that it tells from
    the others, by comparing the number of a rank.  ``functions``: backwards of the program's own
    functions that ran; ``counts``: numbers that stand for how many rows data choose.
    """

    rank: int
    world_size: int
    tensors: tuple[StridedTensor, ...]
    events: tuple[Event, ...]
    sources: tuple[str, ...]
    modules: tuple[str, ...]
    constants: dict[int, bytes] = {}
    notes: tuple[str, ...] = ()
    groups: tuple[tuple[str, tuple[int, ...]], ...] = ()
    splits: tuple[tuple[int, ...], ...] = ()
    functions: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()


#: A note of where masks and data choose rows: no fewer than one.
CHOSEN = "of rows whose number data say (nonzero, x[mask]) there is at least one: at "
#: A note of what Python reads of a sum over ranks: it is made of one rank's own numbers.
SUMMED = "whole numbers that ranks add up before Python reads them are the same on all ranks: "


def tensors_of(*args: Arg) -> Iterator[int]:
    """The numbers of all tensors in arguments, in order.

    Example: of ``Items((Tensor(1), Tensor(2)))`` and "sum" they are 1, 2.
    """
    for arg in args:
        if isinstance(arg, Tensor):
            yield arg.number
        elif isinstance(arg, Items):
            yield from tensors_of(*arg.items)


def write(trace: Trace, path: Path) -> None:
    """Keep a trace in one file.

    Example: ``write(trace, Path("ranks/1.trace"))``; `read` gives the same trace back.
    """
    path.write_bytes(to_bytes(trace))


def read(path: Path) -> Trace:
    """The trace in a file; raises `InvalidInput` for anything that is none.

    Example: a file with "x" in it is refused: expected a trace of one rank.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InvalidInput(f"a trace of more than {MOST_BYTES} bytes", str(path))
        data = path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"cannot be read ({error.strerror})", str(path)) from error
    try:
        return from_bytes(data)
    except InvalidInput as error:
        raise error.within(str(path)) from error


def to_bytes(trace: Trace) -> bytes:
    """A trace as bytes, as files have it.

    Example: a step of a small MLP takes 15 kB.
    """
    return msgspec.msgpack.encode(trace)


def from_bytes(data: bytes) -> Trace:
    """The trace in bytes; raises `InvalidInput` for anything that is none.

    Example: ``b"x"`` is refused: expected a trace of one rank.
    """
    try:
        trace = msgspec.msgpack.decode(data, type=Trace)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidInput(f"expected a trace of one rank ({error})") from error
    check(trace)
    return trace


def check(trace: Trace) -> None:
    """Every number that names something names it; raises `InvalidInput` otherwise.

    Example: rank 2 of 2 is refused, as is an event that names tensor 9 of 8.
    """
    if not 0 <= trace.rank < trace.world_size <= MOST_WORLD:
        raise InvalidInput(f"rank {trace.rank} of {trace.world_size}, at most {MOST_WORLD}")
    groups = (*trace.splits, *(ranks for _, ranks in trace.groups))
    if any(not 0 <= rank < trace.world_size for ranks in groups for rank in ranks):
        raise InvalidInput(f"a group of ranks that are none of {trace.world_size}")
    if any(count < 1 for count in trace.counts) or len(set(trace.counts) - {1, 2}) > MOST_MASKS:
        raise InvalidInput("numbers of rows that are none")
    for number, tensor in enumerate(trace.tensors):
        fits = (
            len(tensor.shape) == len(tensor.strides) <= MOST_DIMENSIONS
            and min((tensor.storage, tensor.offset, *tensor.shape, *tensor.strides), default=0) >= 0
            and tensor.offset + prod(tensor.shape) <= MOST_ELEMENTS
        )
        if not fits:
            raise InvalidInput(f"tensor {number} has shape {list(tensor.shape)[:30]}")
    for number, event in enumerate(trace.events):
        tensors, ranks = [*event.writes, *event.still], list[int]()
        _named((*event.args, *event.kwargs.values(), *event.outputs), tensors, ranks)
        ranks.extend(rank for box in event.boxes for _, among in box.partial for rank in among)
        if tensors and not 0 <= min(tensors) <= max(tensors) < len(trace.tensors):
            raise InvalidInput(f"event {number} ({event.name[:60]}) names a tensor that is none")
        if ranks and not 0 <= min(ranks) <= max(ranks) < trace.world_size:
            raise InvalidInput(f"event {number} ({event.name[:60]}) names a rank that is none")
        inside = 0 <= event.source < len(trace.sources) and 0 <= event.module < len(trace.modules)
        if not inside:
            raise InvalidInput(f"event {number} ({event.name[:60]}) names a source that is none")
        if "." not in event.name or not all(map(_is_box, event.boxes)):
            raise InvalidInput(f"event {number} ({event.name[:60]}) is none, or names no box")
        if len(set(event.writes)) < len(event.writes):
            place = trace.sources[event.source][:200]
            raise InvalidInput(f"{place}: {event.name[:60]} writes one tensor twice")


def _is_box(box: Box) -> bool:
    """Whether a box has one place and one size along each dimension."""
    counts = {len(box.full_shape), len(box.offset), len(box.shape)}
    return len(counts) == 1 and min((*box.full_shape, *box.offset, *box.shape), default=0) >= 0


def _named(args: Iterable[Arg], tensors: list[int], ranks: list[int]) -> None:
    """Append the numbers of all tensors, and all ranks, that arguments name."""
    for arg in args:
        if isinstance(arg, Tensor):
            tensors.append(arg.number)
        elif isinstance(arg, Items):
            _named(arg.items, tensors, ranks)
        elif isinstance(arg, Ranks):
            ranks.extend(arg.ranks)

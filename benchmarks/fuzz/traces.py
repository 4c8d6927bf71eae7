"""Recorded traces as a target: a rank's step, changed, beside those of the other and of one device.

The bytes are the JSON of a trace, which is read as the file that `shardproof capture` would have
written of it: fields and numbers are changed, not the framing of MessagePack.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from benchmarks.fuzz.graphs import archive, document
from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan_files.wellformed import check as check_plan
from shardproof.frontends.fx import single_step
from shardproof.frontends.torch import trace
from shardproof.frontends.torch.plan import check_names, plan
from shardproof.frontends.torch.sides import sides
from shardproof.frontends.torch.trace import Event, Ranks, StridedTensor, Tensor, Trace

REDUCE = "_c10d_functional.all_reduce.default"


@cache
def single() -> Trace:
    """The step of one device: ``relu(linear(x, w)) * scale``."""
    with TemporaryDirectory() as folder:
        return trace.from_bytes(single_step.recorded(str(archive(Path(folder), document()))))


@cache
def rank() -> Trace:
    """The same step of rank 0 of two, whose result is a mean over both ranks."""
    alone = single()
    *before, output, end = alone.events
    (result,) = (n for n in trace.tensors_of(*output.args))
    count = len(alone.tensors)
    like = alone.tensors[result]
    made = tuple(
        StridedTensor(storage, 0, like.shape, like.strides, like.dtype)
        for storage in (count, count + 1)
    )
    total, mean = Tensor(count), Tensor(count + 1)
    reduce = Event(REDUCE, args=(Tensor(result), "sum", Ranks((0, 1))), outputs=(total,))
    half = Event("aten.mul.Scalar", args=(total, 0.5), outputs=(mean,))
    output = msgspec.structs.replace(output, args=(mean,))
    events = (*before, reduce, half, output, end)
    return msgspec.structs.replace(
        alone, world_size=2, tensors=(*alone.tensors, *made), events=events
    )


def _recorded(folder: Path, data: bytes) -> None:
    """Up to the plan, which is checked as `verify` does."""
    try:
        given = msgspec.json.decode(data, type=Trace)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(str(error)) from None
    path = folder / "0.trace"
    try:
        trace.write(given, path)
    except OverflowError as error:  # MessagePack has no such number.
        raise InvalidInput(str(error)) from None
    other = msgspec.structs.replace(rank(), rank=1)
    both = sides(single(), [trace.read(path), other])
    check_names(both)
    check_plan(plan(both))


#: Name, valid inputs, and what is done with bytes.
TRACES: tuple[tuple[str, Callable[[], list[bytes]], Callable[[Path, bytes], None]], ...] = (
    ("recorded trace", lambda: [msgspec.json.encode(rank())], _recorded),
)

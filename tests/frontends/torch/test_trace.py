"""Trace files are untrusted: what is none is refused, by what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.torch import trace
from shardproof.frontends.torch.functional import functional
from shardproof.frontends.torch.trace import (
    Box,
    Event,
    Items,
    Named,
    Ranks,
    StridedTensor,
    Tensor,
    Trace,
)


def sample() -> Trace:
    tensor = StridedTensor(0, 0, (2, 3), (3, 1), "float32")
    events = (
        Event("job.batch", (), {"name": "x", "low": None}, (Tensor(0),)),
        Event("aten.add.Tensor", (Tensor(0), Items((1, 2.5, None, True))), {}, (Tensor(0),)),
        Event("c10d.allreduce_.default", (Ranks((0, 1)), Named("reduce", "sum"))),
    )
    return Trace(0, 2, (tensor,), events, ("", "train.py:3 (step)"), ("",), {0: b"12"})


def test_a_trace_is_read_as_it_was_written(tmp_path: Path) -> None:
    trace.write(sample(), tmp_path / "0.trace")
    assert trace.read(tmp_path / "0.trace") == sample()


@pytest.mark.parametrize(
    "contents", [b"", b"\x00", b"\xff" * 40, b"not a trace", msgspec.msgpack.encode({"rank": "x"})]
)
def test_other_files_are_refused(tmp_path: Path, contents: bytes) -> None:
    (tmp_path / "0.trace").write_bytes(contents)
    with pytest.raises(InvalidInput, match="expected a trace"):
        trace.read(tmp_path / "0.trace")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        trace.read(tmp_path / "none")


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_truncated_file_is_refused(tmp_path: Path, cut: int) -> None:
    whole = msgspec.msgpack.encode(sample())
    (tmp_path / "0.trace").write_bytes(whole[:-cut])
    with pytest.raises(InvalidInput):
        trace.read(tmp_path / "0.trace")


def changed(**fields: object) -> Trace:
    return msgspec.structs.replace(sample(), **fields)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (changed(rank=2), "rank 2 of 2"),
        (changed(world_size=1 << 31), "at most 131072"),
        (changed(tensors=(StridedTensor(0, 0, (2,), (3, 1), "float32"),)), "tensor 0"),
        (changed(tensors=(StridedTensor(0, -1, (2,), (1,), "float32"),)), "tensor 0"),
        (changed(tensors=(StridedTensor(0, 0, (1 << 62,), (1,), "float32"),)), "tensor 0"),
        (changed(tensors=(StridedTensor(0, 0, (2,) * 30, (1,) * 30, "float32"),)), "tensor 0"),
        (changed(events=(Event("a", (Items((Tensor(7),)),)),)), "names a tensor that is none"),
        (changed(events=(Event("a", writes=(-1,)),)), "names a tensor that is none"),
        (changed(events=(Event("a", source=9),)), "names a source that is none"),
        (changed(events=(Event("a", (Ranks((0, 9)),)),)), "names a rank that is none"),
        (changed(events=(Event("a"),)), "is none, or names no box"),
        (changed(events=(Event("a.b", writes=(0, 0)),)), "writes one tensor twice"),
        (changed(events=(Event("a.b", boxes=(Box("w", (2,), (0, 0), (2,), "DTensor"),)),)), "box"),
        (changed(events=(Event("a.b", boxes=(Box("w", (2,), (-1,), (2,), "DTensor"),)),)), "box"),
        (
            changed(events=(Event("a.b", boxes=(Box("w", (), (), (), "", (("sum", (9,)),)),)),)),
            "names a rank that is none",
        ),
        (changed(counts=(0,)), "numbers of rows"),
        (changed(counts=tuple(range(3, 5000))), "numbers of rows"),
    ],
)
def test_numbers_that_name_nothing_are_refused(tmp_path: Path, wrong: Trace, message: str) -> None:
    trace.write(wrong, tmp_path / "0.trace")
    with pytest.raises(InvalidInput, match=message):
        trace.read(tmp_path / "0.trace")


@pytest.mark.parametrize(
    "event",
    [
        Event("aten.copy_.default", (1, 2), writes=(0,)),
        Event("c10d.allreduce_.default", (Items((Tensor(0),)),)),
        Event("c10d.allreduce_.default", (Items((Tensor(0),)), Ranks((1, 1)))),
        Event("c10d.send.default", (Items((Tensor(0),)), Ranks((0, 1)), 5)),
        Event("c10d.broadcast_.default", (Items((Tensor(0),)), Ranks((0, 1)), -1)),
        Event("fsdp.chunk_cat.default", (Items((Tensor(0),)), "x", 2), {"out": Tensor(0)}),
        Event("job.parameter", (), {"name": "w"}, ()),
        Event("job.batch", (), {}, (3,)),
        Event("job.constant", (), {"data": 7, "whole": True}, (Tensor(0),)),
    ],
)
def test_events_that_make_no_sense_are_refused_by_name(event: Event) -> None:
    with pytest.raises(InvalidInput, match=event.name.replace(".", r"\.")):
        functional(changed(events=(event,), constants={}))

"""Which calls that write into their operand are refused: those that others may see."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from shardproof.frontends.nnscaler import cells, memory
from shardproof.frontends.nnscaler.operators import declared
from tests.frontends.nnscaler.test_functions import X
from tests.frontends.nnscaler.test_functions import op as call
from tests.frontends.nnscaler.test_registry import record

R = "nnscaler.runtime.function"
A, B, C, D, E = (record(torch.zeros(3, 4), i) for i in range(1, 6))


def op(ident: int, signature: str, inputs: tuple[Any, ...], *outputs: Any) -> cells.ForwardOp:
    return cells.ForwardOp(ident, "f", signature, inputs, outputs, {}, (), "", None)


def sent(*inputs: Any) -> cells.Adapter:
    return cells.Adapter(70, True, (0,), inputs, (), (), None)


FULL = op(1, f"{R}.full", (), B)
SET = op(9, f"{R}.setitem", (B, 0, 2.0), C)
READ = "an operand that is read after it"
PART = "an operand that may be a part of another tensor"
SEGMENTS = {
    "made here": ((A,), (FULL, SET, op(3, "torch.add", (C, A), D)), (D,), ""),
    "read before": ((A,), (FULL, op(2, "torch.add", (B, A), D), SET), (C, D), ""),
    "a view of the result": ((), (FULL, SET, op(3, "torch.Tensor.view", (C, 4, 3), D)), (D,), ""),
    "a copy by name": ((), (FULL, op(2, f"{R}.identity", (B,), D),
                            op(9, "torch.fill_", (D, 1.0), C)), (C,), ""),
    "written twice": ((), (FULL, SET, op(8, f"{R}.setitem", (C, 1, 3.0), D)), (D,), ""),
    "read after": ((A,), (FULL, SET, op(3, "torch.add", (B, A), D)), (D,), READ),
    "a view read after": ((A,), (FULL, op(2, "torch.Tensor.view", (B, 4, 3), D), SET,
                                 op(3, "torch.add", (D, A), E)), (C, E), READ),
    "given": ((), (FULL, SET), (B, C), READ),
    "a view given": ((), (FULL, op(2, f"{R}.fullslice", (B, 0), D), SET), (D, C), READ),
    "listed": ((), (FULL, SET, op(3, "torch.cat", ((A, B), 0), D)), (D,), READ),
    "a name anew": ((), (FULL, SET, op(3, "torch.neg", (A,), B)), (B, C), ""),
    "of the segment": ((B,), (SET,), (C,), PART),
    "a view": ((), (op(1, f"{R}.full", (), A), op(2, "torch.Tensor.view", (A, 3, 4), B), SET), (C,),
               PART),
    "made by adapters": ((), (cells.Adapter(70, True, (0,), (), (B,), (), None), SET), (C,), PART),
    "sent before": ((), (FULL, sent(B), SET), (C,), "an operand that is communicated before it"),
    "sent after": ((), (FULL, SET, sent(C)), (C,), ""),
    "in place": ((A,), (op(1, "torch.nn.functional.relu", (A, True), B), SET), (C,), PART),
}  # fmt: skip


@pytest.mark.parametrize("name", SEGMENTS)
def test_what_others_may_see_is_refused(name: str) -> None:
    inputs, nodes, outputs, reason = SEGMENTS[name]
    segment = cells.Segment(5, inputs, outputs, nodes, None)
    reasons = memory.unsafe(segment)
    assert reasons.get(9, "") == reason
    assert set(reasons.values()) <= {reason}
    found = memory.named(declared(SET), SET, reasons)
    assert found.name == (f"setitem with {reason}" if reason else "setitem")


def test_outside_of_a_segment_nothing_is_written() -> None:
    assert (
        memory.named(declared(SET), SET, None).name == "setitem with an operand of another segment"
    )


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ((X, X, 2.0), "setitem with an index float32 [2, 4]"),
        ((X, slice(0, 2, 2), 2.0), "setitem with a slice of type slice"),
        ((X, 5, 2.0), "setitem with position 5 of 2"),
        ((X, 0, float("inf")), "setitem with value inf"),
        ((record(torch.zeros(3, dtype=int), 1), 0, 2.5),
         "setitem with a value 2.5 into int64"),
    ],
)  # fmt: skip
def test_other_indices_and_numbers_are_refused(setting: tuple[Any, ...], name: str) -> None:
    assert declared(call(f"{R}.setitem", *setting)).name == name

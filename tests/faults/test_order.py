"""A rank executes in order: messages by issue order, slots by last write, contexts first in, first
out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from shardproof.engine.plan.ir import Program
from tests.faults.plans import assert_proved, assert_refuted, edit_program, llama
from tests.faults.small import PASS, Step, segments, stages

# -- contexts: both microbatches forward, then both backward ---------------------------------------

GPIPE = tuple((name, m) for name in PASS for m in (0, 1))


def swapped(order: Sequence[tuple[str, int]], first: int, second: int) -> list[tuple[str, int]]:
    changed = list(order)
    changed[first], changed[second] = changed[second], changed[first]
    return changed


@pytest.mark.parametrize(
    "order",
    [
        GPIPE,
        [(name, m) for m in (0, 1) for name in PASS],
        [(name, m) for m in (1, 0) for name in PASS],
    ],
)
def test_any_order_of_microbatches_that_pairs_contexts_is_proved(
    order: Sequence[tuple[str, int]],
) -> None:
    assert_proved(segments(order))


@pytest.mark.parametrize("name", ["first backward", "second backward", "second"])
def test_gradients_of_one_microbatch_with_contexts_of_another_are_refuted(name: str) -> None:
    first = GPIPE.index((name, 0))
    assert_refuted(
        segments(swapped(GPIPE, first, first + 1)),
        kind="mismatch",
        operator="backward of silu",
        ranks=(0,),
    )


def test_a_backward_that_runs_before_its_gradient_arrives_is_refuted() -> None:
    early = swapped(GPIPE, GPIPE.index(("second backward", 0)), GPIPE.index(("first backward", 0)))
    assert_refuted(
        segments(early),
        kind="read before write",
        operator="first backward",
        ranks=(0,),
        says="gradient of h, which nothing has written",
    )


def test_a_backward_without_its_forward_is_refuted() -> None:
    assert_refuted(
        segments([step for step in GPIPE if step != ("first", 1)]),
        kind="read before write",
        ranks=(0,),
    )


def test_a_missing_backward_is_refuted() -> None:
    """The loss is right; the gradient lacks a microbatch."""
    short = [step for step in GPIPE if step != ("first backward", 1)]
    found = assert_refuted(
        segments(short), kind="conclusion", operator="gradient of w1", ranks=(0,)
    )
    assert [c.holds for c in found.conclusions if c.kind == "loss"] == [True]


# -- messages and slots ----------------------------------------------------------------------------

SENDS: tuple[Step, ...] = (
    ("load", 0, (), (0, 1)),
    ("compute", 0, (0,), (2,)),
    ("send to 1", 0, (2,), ()),
    ("load", 1, (), (3, 4)),
    ("compute", 1, (3,), (5,)),
    ("send to 1", 1, (5,), ()),
)
RECEIVES: tuple[Step, ...] = (
    ("load", 0, (), (0, 1)),
    ("load", 1, (), (2, 3)),
    ("receive", 0, (), (4,)),
    ("receive", 1, (), (5,)),
    ("compute", 0, (4, 1), (6,)),
    ("compute", 1, (5, 3), (7,)),
)
#: The first message's slot is written again by the second one.
REUSED: Step = ("receive", 1, (), (4,))


def test_stages_in_order_are_proved() -> None:
    assert_proved(stages(SENDS, RECEIVES))


def test_uses_given_the_other_microbatch_are_refuted() -> None:
    exchanged = (*RECEIVES[:4], ("compute", 0, (5, 1), (6,)), ("compute", 1, (4, 3), (7,)))
    assert_refuted(stages(SENDS, exchanged), kind="mismatch", operator="mul", ranks=(1,))


def test_a_slot_overwritten_before_it_is_read_is_refuted_and_harmless_reuse_proved() -> None:
    last = ("compute", 1, (4, 3), (7,))
    overwritten = (*RECEIVES[:3], REUSED, RECEIVES[4], last)
    assert_refuted(stages(SENDS, overwritten), kind="mismatch", operator="mul", ranks=(1,))
    harmless = (*RECEIVES[:3], RECEIVES[4], REUSED, last)
    assert_proved(stages(SENDS, harmless))


def test_a_read_before_the_message_arrives_is_refuted() -> None:
    early = (*RECEIVES[:3], RECEIVES[4], RECEIVES[5], RECEIVES[3])
    assert_refuted(
        stages(SENDS, early),
        kind="read before write",
        operator="compute",
        ranks=(1,),
        says="reads h, which nothing has written",
    )


def test_messages_issued_in_exchanged_order_are_refuted_unless_both_sides_exchange() -> None:
    late = (SENDS[0], SENDS[1], *SENDS[3:], SENDS[2])
    assert_refuted(stages(late, RECEIVES), kind="mismatch", operator="mul", ranks=(1,))
    both = (*RECEIVES[:2], ("receive", 1, (), (5,)), ("receive", 0, (), (4,)), *RECEIVES[4:])
    assert_proved(stages(late, both))


def test_a_message_to_the_wrong_rank_is_refuted() -> None:
    astray = (*SENDS[:2], ("send to 2", 0, (2,), ()), *SENDS[3:])
    assert_refuted(
        stages(astray, RECEIVES, idle=True),
        kind="unmatched message",
        operator="recv",
        ranks=(0, 1),
        says="1 sends, 2 receives",
    )
    assert_proved(stages(SENDS, RECEIVES, idle=True))


def test_a_message_to_no_rank_is_refuted() -> None:
    astray = (*SENDS[:2], ("send to 2", 0, (2,), ()), *SENDS[3:])
    assert_refuted(stages(astray, RECEIVES), kind="peer", operator="send", ranks=(0,))


def test_a_message_that_nobody_receives_is_refuted() -> None:
    short = (*RECEIVES[:3], RECEIVES[4])
    assert_refuted(
        stages(SENDS, short),
        kind="unmatched message",
        operator="send",
        ranks=(0, 1),
        says="2 sends, 1 receives",
    )


def test_ranks_that_both_receive_first_are_refuted() -> None:
    wait: Step = ("receive acknowledgement", 0, (), ())
    acknowledged = (*RECEIVES, ("acknowledge", 0, (6,), ()))
    assert_refuted(
        stages((wait, *SENDS), acknowledged), kind="deadlock", operator="recv", ranks=(0, 1)
    )
    assert_proved(stages((*SENDS, wait), acknowledged))


def test_a_stage_that_loads_microbatches_in_another_order_is_refuted() -> None:
    """Its tokens meet the other microbatch's targets."""
    plan = llama(pp=2, microbatches=2, layers=2)

    def exchanged(program: Program) -> Program:
        calls = tuple(
            replace(call, microbatch=1 - call.microbatch) if call.microbatch >= 0 else call
            for call in program.calls
        )
        return replace(program, calls=calls)

    assert_proved(plan)
    assert_refuted(edit_program(plan, 0, exchanged), kind="mismatch")

"""Which statements ask only to raise, and the answer with which they do not.

PYTEST_DONT_REWRITE: assertions are looked at as they stand in the file.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress

import pytest

pytest.importorskip("torch")

from shardproof.frontends.torch.checks import passing


class Asked:
    """What notes the answer that would pass, whoever asks for its truth or compares it."""

    def __init__(self) -> None:
        self.answers: list[bool | None] = []

    def _answer(self) -> bool:
        check = passing(sys._getframe(2))
        self.answers.append(None if check is None else check[0])
        return True if check is None else check[0]

    def __bool__(self) -> bool:
        return self._answer()

    def __lt__(self, _other: object) -> bool:
        return self._answer()

    def given(self) -> Asked:
        return self

    any = given


def raises_if(x: Asked) -> None:
    if x.given():
        raise ValueError


def raises_if_not(x: Asked) -> None:
    if not x:
        message = "no"
        raise ValueError(message)


def raises_in_one_line(x: Asked) -> None:
    if x.given(): raise ValueError  # fmt: skip  # noqa: E701


def asserts(x: Asked) -> None:
    assert x, "a reason"


def asserts_not(x: Asked) -> None:
    assert not x.given()


def compares(x: Asked) -> None:
    if not x < 3:
        raise ValueError


def raises_or_goes_on(x: Asked) -> list[int]:
    if x:
        raise ValueError
    else:
        return []


def does_something(x: Asked) -> int:
    return 1 if x else 2


def may_not_raise(x: Asked) -> None:
    if x:
        if x.answers:
            return
        raise ValueError


def asks_in_a_call(x: Asked) -> None:
    if bool(x):
        raise LookupError


def asks_of_two(x: Asked) -> None:
    if x.given() or not x:
        raise LookupError


def asks_of_both(x: Asked) -> None:
    if not x and x.answers:
        raise LookupError


def asserts_both(x: Asked) -> None:
    assert x and not x.any()  # noqa: PT018


def asserts_one(x: Asked) -> None:
    assert not x or x.answers == []


def does_something_in_between(x: Asked) -> None:
    if x and not x.given():
        raise LookupError


def asks_in_a_loop(x: Asked) -> None:
    if any(x for _ in range(2) if x):
        raise LookupError


def asks_for_one_of_two(x: Asked) -> None:
    if x.answers if x else None:
        raise LookupError


@pytest.mark.parametrize(
    ("asks", "answers"),
    [
        (raises_if, [False]),
        (raises_if_not, [True]),
        (raises_in_one_line, [False]),
        (asserts, [True]),
        (asserts_not, [False]),
        (compares, [True]),
        (asks_of_two, [False, True]),
        (asks_of_both, [True]),
        (asserts_both, [True, False]),
        (asserts_one, [False]),
    ],
)
def test_a_check_passes(asks: Callable[[Asked], None], answers: list[bool]) -> None:
    x = Asked()
    asks(x)
    assert x.answers == answers


@pytest.mark.parametrize(
    "asks",
    [
        *(raises_or_goes_on, does_something, may_not_raise),
        *(asks_in_a_call, asks_in_a_loop, asks_for_one_of_two, does_something_in_between),
    ],
)
def test_what_does_something_else_is_no_check(asks: Callable[[Asked], object]) -> None:
    x = Asked()
    with suppress(ValueError, LookupError):
        asks(x)
    assert set(x.answers) == {None}

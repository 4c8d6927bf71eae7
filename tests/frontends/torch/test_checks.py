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


def asks_twice(x: Asked) -> None:
    if x and x.answers:
        raise LookupError


@pytest.mark.parametrize(
    ("asks", "answer"),
    [
        (raises_if, False),
        (raises_if_not, True),
        (raises_in_one_line, False),
        (asserts, True),
        (asserts_not, False),
        (compares, True),
    ],
)
def test_a_check_passes(asks: Callable[[Asked], None], answer: bool) -> None:
    x = Asked()
    asks(x)
    assert x.answers == [answer]


@pytest.mark.parametrize(
    "asks",
    [raises_or_goes_on, does_something, may_not_raise, asks_in_a_call, asks_twice],
)
def test_what_does_something_else_is_no_check(asks: Callable[[Asked], object]) -> None:
    x = Asked()
    with suppress(ValueError, LookupError):
        asks(x)
    assert x.answers == [None]

"""What a program asks about the type of a number that nobody knows is what it is on the cluster."""

from __future__ import annotations

import json
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from shardproof.frontends.torch.conversions import NAMES  # noqa: E402
from shardproof.frontends.torch.unread import Unread  # noqa: E402
from shardproof.frontends.torch.watched import Splits, Watched  # noqa: E402

LOSS, COUNT = (
    Unread("train.py:9", torch.tensor(2.0)),
    Unread("train.py:9", torch.tensor(2)),
)


def own(text: str) -> Any:
    """What an expression of the program's own gives; as Python has it beside it."""
    code = compile(f"import numbers\ndef f(loss, count):\n    return {text}", "train.py", "exec")
    results = []
    for names, numbers in ((NAMES, (LOSS, COUNT)), ({}, (2.0, 2))):
        space: dict[str, Any] = dict(names)
        exec(code, space)
        results.append(space["f"](*numbers))
    recorded, real = results
    assert recorded == real, text
    return real


@pytest.mark.parametrize(
    "text",
    [
        "type(loss) is float and type(count) is int and type(1.5) is float and type(2) is int",
        "type(loss).__name__ + type(count).__name__",
        "isinstance(loss, numbers.Real) and isinstance(count, numbers.Integral)",
        "isinstance(loss, float), isinstance(loss, int), isinstance(count, float)",
        "isinstance(count, int), isinstance(loss, (int, float)), isinstance(count, (str, float))",
        "loss.__class__.__name__, type(loss) in (int, float), {float: 1}[type(loss)]",
        "isinstance(int, type), isinstance(loss, type), type(int) is type, issubclass(type, type)",
        "type('A', (int,), {})(3) + 1, str(type[int]), type(loss) is type(1.0)",
        "type('M', (type,), {})('A', (), {}).__name__",
    ],
)
def test_types_are_those_of_the_cluster(text: str) -> None:
    assert own(text)


def test_what_stands_for_a_tensor_is_one() -> None:
    kind = NAMES["type"]
    with FakeTensorMode():
        x, weight = torch.ones(2), torch.nn.Parameter(torch.ones(2))
    assert kind(x) is torch.Tensor
    assert kind(weight) is torch.nn.Parameter
    assert kind(weight * x) is torch.Tensor
    assert kind(weight.data) is torch.Tensor
    assert kind(Watched.of(1, {0: 0, 1: 1}, Splits(bool))) is int
    assert kind(str(LOSS)) is str


def test_libraries_are_told_that_it_is_no_float() -> None:
    # Python's own writer of indented JSON asks a float whether it is itself.
    assert json.dumps({"loss": "n/a"}, indent=1) == json.dumps(
        {"loss": LOSS}, default=str, indent=1
    )
    assert isinstance(LOSS, Unread)

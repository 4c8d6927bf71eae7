"""Each process orders sets of texts and of objects for itself, so ranks are recorded with two orders.

A step that communicates along such a set gave wrong gradients when it was run in processes of its
own over Gloo (three weights of one shape, hashes of texts as Python draws them).
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

import shardproof.torch as sp  # noqa: E402
from shardproof.frontends.torch import unordered  # noqa: E402
from shardproof.frontends.torch.conversions import NAMES  # noqa: E402
from tests.shardproof.torch.means import verified  # noqa: E402

ORDERS = unordered.ORDERS.split("{", maxsplit=1)[0]


def along(names: Any, gradient: Any) -> Any:
    parts = {"left": gradient[:2].clone(), "right": gradient[2:].clone()}
    for name in names:
        dist.all_reduce(parts[name])
    return torch.cat((parts["left"], parts["right"])) / 2


def named(gradient: Any, _: int) -> Any:
    return along({name.lower() for name in ("Left", "Right")}, gradient)


def in_order(gradient: Any, _: int) -> Any:
    halves = {"left": 0.5, "right": 0.5}
    names = {name.lower() for name in halves}
    for name in names - {"other"}:
        gradient = gradient * 2 * halves[name]
    return along(sorted(names), gradient)


def kept(gradient: Any, _: int) -> Any:
    parts = {"left": 0, "right": 0, "whole": 0}
    return along(parts.keys() - {"whole"}, gradient)


def test_collectives_along_keys_without_others_are_refuted() -> None:
    assert verified(kept).verdict == "refuted"


def test_collectives_along_a_set_of_names_are_refuted() -> None:
    assert verified(named).verdict == "refuted"


def test_what_does_not_depend_on_its_order_is_proved() -> None:
    right = verified(in_order)
    assert right.verdict == "proved", sp.told(right)
    assert any(text.startswith(ORDERS) for text in right.assumptions)


@pytest.fixture
def reversed_order() -> Iterator[list[str]]:
    told: list[str] = []
    unordered._REVERSED[:] = [told.append]
    yield told
    unordered._REVERSED.clear()


#: Ways in which a program's own code gives a list of a set: of rank 0, and of rank 1 backwards.
LISTS = (
    "list(set(names))",
    "[x for x in frozenset(names)]",
    "[*{x for x in names}]",
    "[x for x in {'key', 'query', 'value'}]",
    "list(map(str, {*names}))",
    "list(set(names) | {'out'})",
    "list(set(names).union(['out']))",
    "list(set(names).copy())",
    "(lambda own: [own.pop() for _ in list(own)])(set(names))",
    "list(dict.fromkeys(names).keys() - {'key'})",
    "[x for x, _ in dict.fromkeys(names).items() ^ dict.fromkeys(['key']).items()]",
    "list(dict.fromkeys(names).keys() & names)",
)


def own(text: str, names: Any) -> Any:
    space: dict[str, Any] = dict(NAMES)
    exec(unordered.with_sets(compile(f"def f(names): return {text}", "train.py", "exec")), space)
    return space["f"](names)


@pytest.mark.parametrize("text", LISTS)
def test_a_set_has_another_order_on_other_ranks(text: str, reversed_order: list[str]) -> None:
    names = ("query", "key", "value")
    turned = own(text, names)
    assert reversed_order
    unordered._REVERSED.clear()
    plain = own(text, names)
    assert turned == plain[::-1]
    assert len(plain) > 1


@pytest.mark.parametrize(
    "text",
    [
        "sorted(set(names))",
        "sorted(dict.fromkeys(names).keys() - {'key'}), dict.fromkeys(names).keys() | {'out'}",
        "len(dict.fromkeys(names).keys()) - 1, (5 & 3) ^ len({}.items()), [*{}.keys()] + [1 - 2]",
        "list({3, 1, 2})",
        "list({(1, 2), (3, 4)})",
        "{*names} == set(names) == frozenset(names), {'key'} <= set(names), 'key' in {*names}",
        "type({*names}) is set, type(set()) is set, type(frozenset()) is frozenset, set == type({1})",
        "isinstance({1}, set), isinstance(set(), frozenset), isinstance(1, (set, int))",
        "issubclass(type('A', (set,), {}), set), isinstance(type('A', (set,), {})(), set)",
        "repr({'key'}), str(set()), repr(frozenset(['key'])), set.__name__, len({*names})",
        "hash(frozenset(names)) == hash(frozenset(names[::-1])), {set: 1}[type({1})]",
    ],
)
def test_it_is_a_set_as_any_other(text: str, reversed_order: list[str]) -> None:
    names = ("query", "key", "value")
    assert own(text, names) == eval(text, {"names": names})
    assert not reversed_order


def test_copies_are_sets_too(reversed_order: list[str]) -> None:
    names = own("set(names)", ("query", "key"))
    assert copy.deepcopy(names) == pickle.loads(pickle.dumps(names)) == {"query", "key"}
    assert reversed_order

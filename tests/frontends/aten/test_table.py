"""Every ATen overload that is lowered means what PyTorch says, on random shapes and attributes."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from shardproof.engine.algebra.affine import affine
from shardproof.engine.errors import Unsupported
from shardproof.engine.plan.ir import Shard
from shardproof.frontends.aten import TABLE, Const, Lowering, Real, opaque, rule_of
from shardproof.frontends.aten.aliases import ALIASES
from shardproof.frontends.aten.ids import Ids
from shardproof.frontends.aten.lowering import Undefined
from shardproof.frontends.aten.positions import Compared, Positions
from tests.frontends.aten import (
    calls_of_bins,
    calls_of_choices,
    calls_of_complexes,
    calls_of_convolutions,
    calls_of_distances,
    calls_of_exports,
    calls_of_functions,
    calls_of_graphs,
    calls_of_ids,
    calls_of_images,
    calls_of_masks,
    calls_of_pairs,
    calls_of_products,
    calls_of_spectra,
    calls_of_twofold,
    calls_of_wholes,
)
from tests.frontends.aten.calls import CALLS, Both, Call, Draw
from tests.frontends.aten.calls_of_norms import REFERENCES
from tests.frontends.aten.evaluated import evaluated

#: Importing them registers their calls.
MORE = (
    calls_of_graphs,
    calls_of_bins,
    calls_of_choices,
    calls_of_complexes,
    calls_of_convolutions,
    calls_of_distances,
    calls_of_exports,
    calls_of_functions,
    calls_of_ids,
    calls_of_images,
    calls_of_masks,
    calls_of_pairs,
    calls_of_products,
    calls_of_spectra,
    calls_of_twofold,
    calls_of_wholes,
)

#: Rows that only move data, or that ranks join in: tested with recorded steps; of sizes that depend
#: on data: with graphs (`tests.frontends.fx.test_routed`).
OTHERS = {
    name
    for name in TABLE
    if name.startswith(
        ("move.", "comm.", "_c10d_functional", "vllm.", "aten.empty", "aten.new_empty")
    )
} | {
    "aten.nonzero.default",
    "aten._assert_scalar.default",
    "aten._assert_tensor_metadata.default",
    *opaque.FUNCTIONS,
    *opaque.SOLVES,
}
DRAWS = 12


def test_every_overload_has_calls() -> None:
    assert CALLS.keys() == TABLE.keys() - OTHERS


@pytest.mark.parametrize("name", sorted(CALLS))
def test_overload_is_what_pytorch_says(name: str) -> None:
    for number, make in enumerate(CALLS[name]):
        for seed in range(DRAWS):
            _compared(name, make, 1000 * number + seed)


def _compared(name: str, make: Callable[[Draw], Call], seed: int) -> None:
    """A drawn call, as PyTorch and as the lowering have it."""
    overload = REFERENCES.get(name) or torch.ops
    for part in name.split(".") if overload is torch.ops else ():
        overload = getattr(overload, part)
    args, kwargs = make(Draw(seed))
    expected = overload(*map(plain, args), **{k: plain(v) for k, v in kwargs.items()})
    made = lowered(name, args, kwargs, expected)
    for x, y in zip(flat(expected), made, strict=False):
        if x is not None and y is not None:
            np.testing.assert_allclose(y, x.numpy(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", sorted(ALIASES))
def test_second_names_are_what_pytorch_says(name: str) -> None:
    """The calls of the first name, made by the second."""
    for make in CALLS[f"aten.{ALIASES[name]}"]:
        _compared(f"aten.{name}", make, 0)


def test_a_wrong_rule_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: silu's derivative for gelu's."""
    monkeypatch.setitem(TABLE, "aten.gelu_backward.default", rule_of("aten.silu_backward.default"))
    with pytest.raises((AssertionError, TypeError)):
        test_overload_is_what_pytorch_says("aten.gelu_backward.default")


def test_in_place_overloads_have_the_rule_of_the_others() -> None:
    assert rule_of("aten.add_.Tensor") is rule_of("aten.add.Tensor") is not None
    assert rule_of("aten.nonsense.default") is None


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("aten.div.Tensor", (torch.ones(2), torch.zeros(()))),
        ("aten.full.default", ((2,), float("inf"))),
        ("aten._to_copy.default", (torch.ones(2),)),
    ],
)
def test_what_has_no_meaning_is_refused(name: str, args: tuple[Any, ...]) -> None:
    lo = Lowering()
    lo.expected = [((2,), "float64")]
    given = [
        Const((x.flatten()[0].item()), tuple(x.shape), "float64")  # type: ignore[arg-type]
        if isinstance(x, torch.Tensor)
        else x
        for x in args
    ]
    kwargs = {"dtype": "int64"} if name == "aten._to_copy.default" else {}
    given = [_half(x) if kwargs else x for x in given]
    rule = rule_of(name)
    assert rule is not None
    with pytest.raises(Unsupported):
        rule(lo, *given, **kwargs)


def _half(x: Any) -> Any:
    return Const(Fraction(1, 2), x.shape, x.dtype)


def test_a_difference_of_flags_is_no_difference() -> None:
    lo = Lowering()
    lo.expected = [((2,), "bool")]
    rule = rule_of("aten.sub.Tensor")
    assert rule is not None
    with pytest.raises(Unsupported, match="arithmetic of bool"):
        rule(lo, Const(Fraction(1), (2,), "bool"), Const(Fraction(1), (2,), "bool"))


@pytest.mark.parametrize("name", ["where.self", "logical_and.default", "bitwise_not.default"])
def test_flags_that_are_an_input_are_not_known_to_be_0_and_1(name: str) -> None:
    lo = Lowering()
    lo.expected = [((2,), "float64")]
    flags, x = (lo.hold(Shard(n, (2,), (2,), (affine(0),), n)) for n in ("bool", "float64"))
    rule = rule_of(f"aten.{name}")
    assert rule is not None
    operands = {"where.self": [flags, x, x], "logical_and.default": [flags, flags]}
    with pytest.raises(Unsupported, match="a mask that is an input"):
        rule(lo, *operands.get(name, [flags]))


def test_whole_numbers_compare_as_functions_of_ids_and_not_with_values() -> None:
    lo = Lowering()
    ids = lo.hold(Shard("ids", (2,), (2,), (affine(0),), "int64"))
    values = lo.hold(Shard("values", (2,), (2,), (affine(0),), "float32"))
    rule = rule_of("aten.ge.Scalar")
    assert rule is not None
    assert isinstance(rule(lo, ids, 1), Ids)
    with pytest.raises(Unsupported, match="ge of whole numbers"):
        rule(lo, ids, values)


def test_unwritten_memory_is_no_value() -> None:
    with pytest.raises(Unsupported, match="nothing has written"):
        Lowering().real(Undefined((2,), "float32"))


# -- evaluating -------------------------------------------------------------------------------


def flat(x: Any) -> list[Any]:
    return list(x) if isinstance(x, (tuple, list)) else [x]


def plain(x: Any) -> Any:
    if isinstance(x, list):
        return [plain(i) for i in x]
    return x.tensor if isinstance(x, Both) else x


def entries(of: Positions) -> np.ndarray[Any, Any]:
    index = np.indices(of.shape)
    return of.const + sum(
        (step * index[dim] for dim, step in enumerate(of.steps)), np.zeros(of.shape, dtype=int)
    )


def _domain(x: torch.Tensor) -> tuple[int, int] | None:
    if x.dtype == torch.bool:
        return 0, 2
    if x.dtype != torch.int64 or not x.numel():
        return None
    return int(x.min()), int(x.max()) + 1


def of_ids(found: Ids, given: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """What a function of ids is, where these are an input as it came."""
    assert not found.moves
    return np.vectorize(lambda i: next(p.at(i) for p in found.function if p.low <= i < p.high))(
        given[found.origin.number]
    )


def lowered(name: str, args: Any, kwargs: Any, expected: Any) -> list[Any]:
    """The results of the rule, by the engine's declarations over float64."""
    lo = Lowering()
    given: list[np.ndarray[Any, Any]] = []

    def operand(x: Any) -> Any:
        if isinstance(x, Both):
            return x.lowered
        if isinstance(x, torch.Tensor):
            given.append(x.numpy())
            zero = tuple(affine(0) for _ in x.shape)
            return lo.hold(
                Shard(
                    f"x{len(given)}",
                    tuple(x.shape),
                    tuple(x.shape),
                    zero,
                    str(x.dtype).removeprefix("torch."),
                    domain=_domain(x),
                )
            )
        if isinstance(x, torch.dtype):
            return str(x).removeprefix("torch.")
        if isinstance(x, (list, tuple)):
            return [operand(i) for i in x]
        return x

    lo.expected = [
        (tuple(x.shape), str(x.dtype).removeprefix("torch.")) if x is not None else ((), "")
        for x in flat(expected)
    ]
    rule = rule_of(name)
    assert rule is not None
    inputs = [operand(x) for x in args]
    if not given:
        operand(torch.zeros(2, dtype=torch.float64))
    found = rule(lo, *inputs, **{k: operand(v) for k, v in kwargs.items() if k != "out"})
    if isinstance(found, Ids):
        return [of_ids(found, given)]
    if isinstance(found, (Positions, Compared)):
        return [entries(found.of) >= 0 if isinstance(found, Compared) else entries(found)]
    results = [x if x is None or isinstance(x, Undefined) else lo.real(x) for x in flat(found)]
    values = evaluated(lo, {v: given[n] for v, n in lo.bound if n < len(given)})
    for result, wanted in zip(results, flat(expected), strict=False):
        assert result is None or wanted is None or result.shape == tuple(wanted.shape)
    return [values[r.number] if isinstance(r, Real) else None for r in results]

"""What is offered to those who declare operators: the conformance test, packages, the page."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterator, Mapping
from fractions import Fraction
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shardproof.engine.errors import InvalidInput, Unsupported
from shardproof.engine.ops import OPERATORS, lookup, packages
from shardproof.engine.ops.listing import foreign
from shardproof.engine.plan.ir import Plan
from shardproof.testing import Nonconforming, conforms
from tests.faults.plans import verify

PAGE = Path(__file__).parents[2] / "docs" / "own-operators.md"


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def declared() -> Iterator[types.ModuleType]:
    """The page's own module, imported; what it declares is forgotten afterwards."""
    module = types.ModuleType("my_kernels")
    sys.modules["my_kernels"] = module
    try:
        exec(compile(blocks("python")[0], "my_kernels.py", "exec"), module.__dict__)
        yield module
    finally:
        OPERATORS.pop("gated", None)
        del sys.modules["my_kernels"]
        packages.load.cache_clear()


def norm(x: Any, weight: Any, eps: float) -> Any:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def test_a_declared_operator_conforms_to_its_function() -> None:
    conforms("rms_norm", norm, "b s h, h", attrs={"eps": Fraction(1, 1000)})
    conforms("transpose", lambda x, dim0, dim1: x.transpose(dim0, dim1), "a b 3",
             attrs={"dim0": 0, "dim1": 2})  # fmt: skip


def test_inputs_and_attributes_may_depend_on_the_sizes() -> None:
    def draw(rng: np.random.Generator, sizes: Mapping[str, int]) -> list[Any]:
        return [rng.integers(0, sizes["v"], size=(3, 2)).astype(float),
                rng.normal(size=(sizes["v"], 4))]  # fmt: skip

    conforms("embedding", lambda ids, table: table[ids.long()], "v", draw=draw)
    conforms("view", lambda x, size: x.reshape(size), "a 6",
             attrs=lambda sizes: {"size": (sizes["a"], 2, 3)})  # fmt: skip


def test_another_function_does_not() -> None:
    with pytest.raises(Nonconforming, match="output 0 of silu"):
        conforms("silu", torch.tanh, "a b")
    with pytest.raises(Nonconforming, match="outputs"):
        conforms("silu", lambda x: (x, x), "a b")
    with pytest.raises(Nonconforming, match="shape"):
        conforms("silu", lambda x: torch.nn.functional.silu(x)[None], "a b")


class Doubled(torch.autograd.Function):
    """silu with twice its derivative."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return torch.nn.functional.silu(x)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return 2 * gradient * s * (1 + x * (1 - s))


def test_a_wrong_derivative_is_found_though_the_values_are_right() -> None:
    with pytest.raises(Nonconforming, match="gradient of input 0 of silu"):
        conforms("silu", Doubled.apply, "a b")
    conforms("silu", Doubled.apply, "a b", backward=False)


def test_what_is_not_declared_or_fits_no_call_is_said() -> None:
    with pytest.raises(InvalidInput, match=r"silu2 is not declared.*silu"):
        conforms("silu2", torch.tanh, "a b")
    with pytest.raises(InvalidInput, match="at least 1"):
        conforms("silu", torch.tanh, "a b", rounds=0)
    with pytest.raises(Nonconforming, match="rms_norm"):
        conforms("rms_norm", lambda x, w: x, "a b, b")


def test_the_page_is_true(declared: types.ModuleType) -> None:
    """Its module conforms, and its plan is proved under the assumption that the page quotes."""
    _, check, use = blocks("python")
    exec(compile(check, "page", "exec"), {})
    held: dict[str, Any] = {}
    exec(compile(use, "page", "exec"), held)
    plan: Plan = held["plan"]
    told = [assumption.text for assumption in foreign(plan)]
    assert told == ["operator gated is what the module my_kernels declares"]
    assert f'"{told[0]}"' in " ".join(PAGE.read_text(encoding="utf-8").split())
    result = verify(plan)
    assert result.verdict == "proved", result.reason
    assert told[0] in " ".join(str(line) for line in result.assumptions)


def test_the_operators_of_a_package_are_declared_when_they_are_asked_for(
    declared: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    toml, *_ = blocks("toml")
    assert f'[project.entry-points."{packages.GROUP}"]' in toml
    kept = OPERATORS.pop("gated")
    found = EntryPoint("my-kernels", "my_kernels", packages.GROUP)
    monkeypatch.setattr(packages, "entry_points", lambda group: [found])
    packages.load.cache_clear()
    # The module is imported already, so its declaration is put back as an import would.
    monkeypatch.setattr(EntryPoint, "load", lambda self: OPERATORS.setdefault("gated", kept))
    assert lookup("gated") is kept


def test_a_package_that_cannot_be_imported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = EntryPoint("broken", "no_such_module_anywhere", packages.GROUP)
    monkeypatch.setattr(packages, "entry_points", lambda group: [broken])
    packages.load.cache_clear()
    try:
        with pytest.raises(Unsupported, match=r"not loaded: broken .no_such_module_anywhere"):
            lookup("unheard_of")
    finally:
        packages.load.cache_clear()

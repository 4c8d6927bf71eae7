"""No operand of an ATen overload is left out: a rule takes those of the schema, and no more."""

from __future__ import annotations

import inspect
import re

import pytest

from shardproof.frontends.aten import TABLE, opaque, rule_of

#: Families whose further operands say where and how a tensor lies, or are counted by what they call.
COUNTED = re.compile(
    r"aten\.(arange|empty|empty_like|fill|full|full_like|new_\w+|ones|ones_like|to|zero|zeros|zeros_like"
    r"|\w*pool\dd\w*|_?upsample_\w+|_native_batch_norm_legit|native_batch_norm)\..*"
    r"|complex\.\w+\.\w+|_c10d_functional\.\w+_coalesced\.default"
)


def test_rules_of_any_number_of_operands_are_those_that_count_them() -> None:
    several = {
        name
        for name, rule in TABLE.items()
        if any(p.kind == p.VAR_POSITIONAL for p in inspect.signature(rule).parameters.values())
    }
    # What a function of which nothing is known takes beside its operands is part of its name.
    named = opaque.FUNCTIONS.keys() | opaque.SOLVES.keys()
    assert {name for name in several - named if COUNTED.fullmatch(name) is None} == set()


@pytest.mark.parametrize("name", ["exp", "tanh", "log", "sqrt", "rsqrt", "sigmoid", "sin"])
def test_a_function_of_one_tensor_takes_one(name: str) -> None:
    """So does the overload that writes into another one: what it writes into is no operand here."""
    for kind in ("default", "out"):
        rule = rule_of(f"aten.{name}.{kind}")
        assert rule is not None
        assert list(inspect.signature(rule).parameters) == ["lo", "x"]

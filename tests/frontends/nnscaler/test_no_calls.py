"""Calls that PyTorch rejects, as an edited record may have them: refused by name, not read as if
what is missing were a number."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from shardproof.frontends.nnscaler import cells
from shardproof.frontends.nnscaler.operators import declared
from tests.frontends.nnscaler.test_registry import call, record

F = "torch.nn.functional"
#: What is called with operands of [3, 4], by their numbers, and what is said of it.
REJECTED: dict[str, tuple[str, tuple[Any, ...], dict[str, Any], str]] = {
    "less nothing": ("torch.sub", (1,), {}, "sub with other None"),
    "less None": ("torch.sub", (1, None), {}, "sub with other None"),
    "None and a tensor": ("torch.add", (None, 1), {}, "add with input None"),
    "nothing is added": ("torch.Tensor.add", (1,), {"alpha": 2}, "add with other None"),
    "divided by nothing": ("_operator.truediv", (1,), {}, "truediv with other None"),
    "None is divided": ("torch.div", (None, 1), {}, "div with input None"),
    "times nothing": ("torch.mul", (1,), {}, "mul with other None"),
    "None times a tensor": ("torch.mul", (None, 1), {}, "mul with other None"),
    "larger than nothing": ("torch.gt", (1,), {}, "gt with other None"),
    "None is equal": ("torch.eq", (1, None), {}, "eq with other None"),
    "the smaller of one": ("torch.minimum", (1,), {}, "minimum with other None"),
    "the larger of it and None": ("torch.maximum", (1, None), {}, "maximum with other None"),
    "the largest along None": ("torch.max", (1,), {"dim": None}, "max with other None"),
    "the largest of all, kept": ("torch.max", (1,), {"keepdim": True}, "max with keepdim without"),
    "a type of nothing": ("torch.Tensor.type_as", (1,), {}, "type_as with other None"),
    "a product with nothing": ("torch.matmul", (1,), {}, "matmul with other None"),
    "a part of a table from nowhere": (
        "nnscaler.runtime.function.embedding", (1, 2), {"padding_idx": None, "stop": 3},
        "embedding with start None",
    ),
    "no weight": (f"{F}.linear", (1,), {}, "linear with weight None"),
    "a norm of no shape": (f"{F}.layer_norm", (1, None), {}, "layer_norm with normalized_shape"),
}  # fmt: skip


def made(signature: str, inputs: tuple[Any, ...], named: dict[str, Any]) -> cells.ForwardOp:
    operands = tuple(record(torch.zeros(3, 4), x) if type(x) is int else x for x in inputs)
    outputs = (record(torch.zeros(3, 4), 90),)
    return cells.ForwardOp(1, "f", signature, operands, outputs, named, (), "", None)


@pytest.mark.parametrize("name", REJECTED)
def test_what_pytorch_rejects_is_refused_by_name(name: str) -> None:
    signature, inputs, named, says = REJECTED[name]
    op = made(signature, inputs, named)
    with pytest.raises((TypeError, AttributeError)):
        call(op, lambda x: torch.ones(3, 4), strict=False)
    assert says in declared(op).name


@pytest.mark.parametrize("name", ["sub", "add", "gt", "eq", "minimum", "maximum", "div", "mul"])
def test_whole_calls_are_read(name: str) -> None:
    """The same functions, with all that they need."""
    op = made(f"torch.{name}", (1, 2), {})
    call(op, lambda x: torch.ones(3, 4), strict=False)
    assert " with " not in declared(op).name

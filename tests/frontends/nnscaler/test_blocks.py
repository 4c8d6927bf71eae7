"""Convolutions, stopped gradients, and sizes that are read in the graph, in plans beside the
runtime; each with a twin that differs."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardproof.frontends.nnscaler import cells
from shardproof.frontends.nnscaler.objects import computed, resolved
from shardproof.frontends.nnscaler.operators import declared
from shardproof.frontends.nnscaler.records import Constant, ObjectRef
from tests.frontends.nnscaler.test_functions import X, tensor
from tests.frontends.pickles import Obj
from tests.frontends.plan_blocks import Blocks
from tests.frontends.plan_generator import Plans, placed
from tests.frontends.plan_judge import judged
from tests.frontends.plan_values import Model


def model(block: str) -> Model:
    """A block between two linear layers, and the sum of it all."""
    made = Blocks(random.Random(3), 2)
    x = made.linear(made.batch("data", (made.b, made.s, made.h), "float32"), made.h)
    grown = getattr(made, block)(x)
    made.op("torch.sum", "a+ b+ c+ -> 1", made.linear(grown, made.h), shapes=(1,))
    made.operations[-1].output.loss = True
    return Model(made.batches, made.operations, made.weights, 1)


def plan(block: str) -> Plans:
    return placed(random.Random(5), model(block), [2], 1, 1)


def operators(made: Plans, name: str) -> list[Obj]:
    """An operator of the parallel plan, on each device."""
    return next(x for x in made.operators if x[0].state["signature"].endswith(name))


def altered(name: str, **kwargs: Any) -> Callable[[Plans], None]:
    def alter(made: Plans) -> None:
        for op in operators(made, name):
            op.state["_kwargs"] = {**op.state["_kwargs"], **kwargs}

    return alter


def not_stopped(made: Plans) -> None:
    """The gradient goes on where the single device stops it, as it would by a name only."""
    for op in operators(made, "detach"):
        op.state["signature"] = "torch.tanh"


def other_divisor(made: Plans) -> None:
    for op in operators(made, "floordiv"):
        op.state["_inputs"] = [op.state["_inputs"][0], 1]


@pytest.mark.parametrize(
    ("block", "alter", "verdict"),
    [
        ("along", altered("conv1d", padding=(1,), dilation=(1,)), "refuted"),
        ("rotated", altered("linspace", end=2), "refuted"),
        ("detached", not_stopped, "refuted"),
        ("sized", other_divisor, "refuted"),
    ],
)
def test_a_block_is_proved_and_its_twin_is_not(
    block: str, alter: Callable[[Plans], None], verdict: str, tmp_path: Path
) -> None:
    right = judged(plan(block), 1, tmp_path)
    assert (right.different, right.verdict) == ("", "proved"), right
    wrong = plan(block)
    alter(wrong)
    judgement = judged(wrong, 1, tmp_path)
    assert judgement.different
    assert judgement.verdict == verdict, judgement


def test_a_gradient_of_what_is_detached_is_refused() -> None:
    """Autograd has none: a plan that records one does something else."""
    call = cells.ForwardOp(1, "detach", "torch.detach", (X,), (X,), {}, (), "", None)
    assert declared(call).name == "detach"
    differentiated = cells.ForwardOp(1, "detach", "torch.detach", (X,), (X,), {}, (), "", 7)
    assert declared(differentiated).name == "detach with a gradient"


N, M = ObjectRef(5, "n"), ObjectRef(6, "m")


def op(signature: str, *inputs: Constant, outputs: Any = (N,), **kwargs: Constant) -> Any:
    return cells.ForwardOp(1, "f", signature, inputs, outputs, kwargs, (), "", None)


@pytest.mark.parametrize(
    ("call", "made"),
    [
        (op("torch.Tensor.size", X), {5: (2, 4)}),
        (op("torch.Tensor.size", X, dim=-1), {5: 4}),
        (op("torch.Tensor.size", X, outputs=((N, M),)), {5: 2, 6: 4}),
        (op("torch.Tensor.size", X, outputs=(N, M)), {5: 2, 6: 4}),
        (op("builtins.getattr", X, "shape"), {5: (2, 4)}),
        (op("_operator.getitem", (3, 4, 5), slice(1, None)), {5: (4, 5)}),
        (op("_operator.floordiv", 7, 2), {5: 3}),
        (op("math.sqrt", 16), {5: 4.0}),
        (op("nnscaler.runtime.function.ifexpr", True, 2, 3), {5: 2}),
        # What is not known, or is no number.
        (op("torch.Tensor.size", tensor(1)), None),
        (op("torch.Tensor.size", N), None),
        (op("builtins.getattr", X, "data"), None),
        (op("_operator.mul", (1, 2), 1 << 40), None),
        (op("_operator.mul", 1 << 60, 1 << 60), None),
        (op("_operator.floordiv", 7, 0), None),
        (op("_operator.add", X, X, outputs=(X,)), None),
        (op("my.model.size", X), None),
    ],
)
def test_what_is_no_tensor_is_computed_or_is_unknown(call: Any, made: Any) -> None:
    assert computed(call) == made


def test_known_objects_are_read_and_others_are_refused_by_name() -> None:
    call = op("torch.Tensor.view", X, (N, 2), outputs=(X,))
    assert declared(resolved(call, {5: 4})).attrs == {"size": (4, 2)}
    assert declared(resolved(call, {6: 4})).name == "view with size of type tuple"

"""Convolutions, stopped gradients, and sizes that are read in the graph, in plans beside the
runtime; each with a twin that differs."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardproof.frontends.nnscaler import cells
from shardproof.frontends.nnscaler.objects import Objects, computed, resolved
from shardproof.frontends.nnscaler.operators import declared
from shardproof.frontends.nnscaler.records import Constant, ObjectRef
from tests.faults.plans import verify
from tests.frontends.nnscaler.test_functions import X, tensor
from tests.frontends.pickles import Obj
from tests.frontends.plan_blocks import Blocks
from tests.frontends.plan_generator import Plans, placed
from tests.frontends.plan_judge import judged, paired
from tests.frontends.plan_records import viewed
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


def another(name: str, signature: str) -> Callable[[Plans], None]:
    def alter(made: Plans) -> None:
        for op in operators(made, name):
            op.state["signature"], op.state["_kwargs"] = signature, {}

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
        ("stacked", altered("conv1d", padding=2, dilation=2), "refuted"),
        ("stacked", another("gelu", "torch.tanh"), "refuted"),
        ("rotated", altered("linspace", end=2), "refuted"),
        ("rotated_beside", altered("linspace", end=2), "refuted"),
        ("rooted_beside", altered("rms_norm", eps=0.25), "refuted"),
        ("detached", not_stopped, "refuted"),
        ("sized", other_divisor, "refuted"),
        ("one_key", altered("softmax", dim=1), "refuted"),
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


def test_a_gate_whose_gradient_arrives_in_parts(tmp_path: Path) -> None:
    def routed() -> Plans:
        made = Blocks(random.Random(3), 1)
        made.b, made.s, made.h = 2, 2, 2
        x = made.linear(made.batch("data", (2, 2, 2), "float32"), 2)
        made.op("torch.sum", "a+ b+ c+ -> 1", made.linear(made.routed(x), 2), shapes=(1,))
        made.operations[-1].output.loss = True
        whole = Model(made.batches, made.operations, made.weights, 1)
        return placed(random.Random(5), whole, [2], 1, 1)

    assert judged(routed(), 1, tmp_path)[:2] == ("", "proved")
    wrong = routed()
    altered("gate_fw", route_scale=2.5)(wrong)
    assert judged(wrong, 1, tmp_path).verdict == "refuted"


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
        (op("_operator.is_", None, None), {5: True}),
        (op("_operator.is_not", 2, None), {5: True}),
        # What is not known, or is no number.
        (op("torch.Tensor.size", tensor(1)), None),
        (op("torch.Tensor.size", N), None),
        (op("builtins.getattr", X, "data"), None),
        (op("_operator.is_", 2, 2), None),
        (op("_operator.is_", N, None), None),
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


def apart(made: Plans) -> Plans:
    """What is no tensor is computed by cells of their own, before the segments that read it."""
    for root in (made.single, made.parallel):
        for sequence in root.state["execplan"].state["_seq"].values():
            for place, cell in enumerate(list(sequence)):
                body = cell.state.get("_cell", cell)
                nodes = body.state.get("_nodes", [])
                own = [x for x in nodes if any(y.name == "IRObject" for y in x.state["_outputs"])]
                body.state["_nodes"] = [x for x in nodes if x not in own]
                sequence[place:place] = own
    return made


def of_the_batch() -> Plans:
    """A view by a size of the batch."""
    made = Blocks(random.Random(3), 2)
    data = made.batch("data", (made.b, made.s, made.h), "float32")
    b, s, h = data.shape
    size = made.thing("torch.Tensor.size", data, dim=1)
    half = made.thing("_operator.floordiv", size, 2)
    x = made.linear(data, h)
    flat = made.op("torch.Tensor.reshape", f"a {s}^ {h}^ -> a {s // 2}^ {2 * h}^", x,
                   shapes=(b, s // 2, 2 * h), local="shape", shape=(b, half, 2 * h))  # fmt: skip
    made.op("torch.sum", "a+ b+ c+ -> 1", made.linear(flat, 2 * h), shapes=(1,))
    made.operations[-1].output.loss = True
    model = Model(made.batches, made.operations, made.weights, 1)
    return placed(random.Random(5), model, [2], 1, 1)


def test_a_size_of_another_cell_is_known(tmp_path: Path) -> None:
    made = apart(of_the_batch())
    one, many = viewed(made.single, tmp_path, "one"), viewed(made.parallel, tmp_path, "many")
    assert verify(paired(one, many)).verdict == "proved"
    for op in operators(made, "_operator.floordiv"):
        op.state["_inputs"] = [op.state["_inputs"][0], 4]
    other = viewed(made.parallel, tmp_path, "other")
    assert verify(paired(one, other)).verdict != "proved"


def test_a_size_that_two_cells_make_unlike_is_not_known() -> None:
    objects = Objects()
    objects.note({5: 4, 6: 2})
    objects.note({5: 2, 6: 2})
    objects.note({5: 2})
    assert objects.known == {6: 2}

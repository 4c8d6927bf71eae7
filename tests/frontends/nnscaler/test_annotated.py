"""Functions that a model registers with an annotation: what is assumed of them, and what is not."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardproof.engine.interpreters import FloatInterpreter, exact
from shardproof.engine.ops import apply_forward
from shardproof.frontends.nnscaler import cells
from shardproof.frontends.nnscaler.annotated import lowered, parsed
from shardproof.frontends.nnscaler.calls import Composed, Refused, SharedInput
from shardproof.frontends.nnscaler.operators import declared
from shardproof.frontends.nnscaler.records import FullTensor, Part, Tensor
from shardproof.frontends.untrusted.inert import DType
from tests.faults.plans import verify
from tests.frontends.pickles import Obj
from tests.frontends.plan_families import Families
from tests.frontends.plan_generator import Plans, placed
from tests.frontends.plan_judge import judged, paired
from tests.frontends.plan_records import viewed
from tests.frontends.plan_values import Model

Array = Any


# -- annotations -----------------------------------------------------------------------------------


def test_an_annotation_says_which_axes_there_are() -> None:
    found = parsed("L^ N (h+ d^ 3), ?, * k^ -> L^ N, 1", [3, None, 2])
    assert found.inputs[:2] == ((("L",), ("N",), ("h", "d", "3")), None)
    assert found.inputs[2] == (("*0",), ("k",))
    assert found.outputs == ((("L",), ("N",)), (("1",),))
    assert found.marks == {
        "L": "^", "N": "", "h": "+", "d": "^", "3": "^", "*0": "", "k": "^", "1": "^",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "ranks", "reason"),
    [
        ("a b", [2], "annotation"),
        ("a -> a -> a", [1], "annotation"),
        ("a, b -> a", [1], "annotation 'a, b -> a' for 1 operands"),
        ("a b^, b -> a", [2, 1], "axis b with two marks"),
        ("a~ -> a", [1], "annotation 'a~'"),
        ("a (b -> a", [2], "annotation"),
        ("a * c d e -> a", [2], "annotation"),
        ("a -> a", [None], "a constant as 'a'"),
        ("() -> a", [1], "annotation '()'"),
    ],
)
def test_what_is_no_annotation_is_refused(text: str, ranks: list[int | None], reason: str) -> None:
    with pytest.raises(Refused) as refused:
        parsed(text, ranks)
    assert reason in str(refused.value)


# -- what a call of one is -------------------------------------------------------------------------


def tensor(ident: int, shape: Sequence[int], dtype: str = "float32") -> Tensor:
    box = tuple((0, n) for n in shape)
    full = FullTensor(ident, "x", tuple(shape), dtype, False, False, False, True)
    return Tensor(ident, Part("x", tuple(shape), dtype, False, False, box, (0, 1), full), None)


def call(
    anno: str, inputs: Sequence[Any], outputs: Sequence[Sequence[int]], name: str = "mixed",
    signature: str = "my.kernels.mixed", **kwargs: Any,
) -> cells.ForwardOp:  # fmt: skip
    own = [tensor(i, x) if isinstance(x, tuple) else x for i, x in enumerate(inputs)]
    results = tuple(tensor(90 + i, shape) for i, shape in enumerate(outputs))
    return cells.ForwardOp(
        1, name, signature, tuple(own), results, kwargs, (), "", None, (anno,)
    )  # fmt: skip


def names(op: cells.ForwardOp) -> set[str]:
    return {x.name for x in lowered(op).operands if isinstance(x, SharedInput)}


X, W = (2, 4, 3), (3, 6)
ANNO = "b s h^, h^ o -> b s o"


@pytest.mark.parametrize(
    ("op", "reason"),
    [
        (call(ANNO, [X, W], [(2, 4, 6)], dropout_p=0.1), "dropout_p, which may draw random"),
        (call(ANNO, [X, W], [(2, 4, 6)], "add_"), "add_, which may draw random"),
        (call(ANNO, [X, W], [(2, 4, 6)], "rand_mix"), "rand_mix, which may draw random"),
        (call(ANNO, [X, (4, 6)], [(2, 4, 6)]), "a dimension of 3 as (h)"),
        (call(ANNO, [X, W], [(2, 4, 5)]), "a dimension of 6 as (o)"),
        (call(ANNO, [X, W], [(2, 4, 6), (2,)]), "2 operands and 2 results"),
        (call("b s h -> b s h", [X], [(2, 4)]), "3 dimensions for a tensor of 2"),
        (call("b s h+ -> b s, b h+", [X], [(2, 4), (2, 3)]), "axis h in some results"),
        (call("b s h, b -> b s h", [X, tensor(5, (2,), "int64")], [X]), "a tensor of int64"),
        (call("b s h -> b s h", [X], [X], mask=tensor(5, (2,))), "a tensor by name"),
        (call("a a -> a", [(3, 3)], [(3,)]), "an axis twice in one tensor"),
        (call("? -> 1", [3], [(1,)]), "0 operands and 1 results"),
        (call("(a b^) -> a", [(6,)], [(6,)]), None),
        (call("(a b^ c^) -> a", [(6,)], [(1,)]), "axis b of no known size"),
    ],
)
def test_what_is_not_understood_is_named(op: cells.ForwardOp, reason: str | None) -> None:
    if reason is None:
        assert isinstance(lowered(op), Composed)
        return
    assert reason in declared(op).name


def test_functions_are_one_where_name_constants_and_whole_axes_are() -> None:
    same = names(call(ANNO, [X, W], [(2, 4, 6)], eps=0.5))
    # Other sizes of axes that are not whole, and numbers named like axes, make no other function.
    assert names(call(ANNO, [(1, 8, 3), (3, 2)], [(1, 8, 2)], eps=0.5)) == same
    assert names(call(ANNO, [X, W], [(2, 4, 6)], eps=0.5, o=6)) == same
    for other in (
        call(ANNO, [X, W], [(2, 4, 6)], eps=0.25),
        call(ANNO, [X, W], [(2, 4, 6)], eps=0.5, o=3),
        call(ANNO, [X, W], [(2, 4, 6)], eps="0.5"),
        call(ANNO, [X, W], [(2, 4, 6)], eps=0.5, dtype=DType("torch", "float16")),
        call(ANNO, [X, W], [(2, 4, 6)], signature="my.others.mixed", eps=0.5),
        call(ANNO, [(2, 4, 5), (5, 6)], [(2, 4, 6)], eps=0.5),
        call("b s h^, h^ o^ -> b s o^", [X, W], [(2, 4, 6)], eps=0.5),
    ):
        assert names(other).isdisjoint(same)


def value(op: cells.ForwardOp, arrays: Sequence[Array], held: dict[str, Array]) -> list[Array]:
    """What the engine makes of a call; ``held``: the numbers that stand for functions."""
    made = lowered(op)
    draw = np.random.default_rng(len(held))
    values = [exact(x) for x in arrays]
    for x in made.operands:
        if isinstance(x, SharedInput):
            values.append(exact(held.setdefault(x.name, draw.normal(size=x.shape))))
    for step in made.steps:
        operands = [values[i] for i in step.operands]
        values += apply_forward(FloatInterpreter(), step.name, operands, step.attrs)
    return [values[i].data for i in made.results]


def cut(x: Array, axis: int, part: int) -> Array:
    return np.split(x, 2, axis)[part]


@pytest.mark.parametrize(
    ("anno", "shapes", "outs", "axes", "out"),
    [
        (ANNO, [X, W], [(2, 4, 6)], (0, None), 0),
        (ANNO, [X, W], [(2, 4, 6)], (1, None), 1),
        (ANNO, [X, W], [(2, 4, 6)], (None, 1), 2),
        ("b s h^, f+ h^, h^ f+ -> b s h^", [X, (4, 3), (3, 4)], [X], (None, 0, 1), None),
        ("l^ n e^, (h+ d^ 3^) e^, e^ (h+ d^) -> l^ n e^", [X, (12, 3), (3, 4)], [X],
         (None, 0, 1), None),
        ("a b c^, c^ -> a b c^, b a", [X, (3,)], [X, (4, 2)], (0, None), (0, 1)),
        ("* k^ -> *", [X], [(2, 4)], (1,), 1),
        ("a b c, b 1 -> a c b", [X, (4, 1)], [(2, 3, 4)], (1, 0), 2),
    ],
)  # fmt: skip
def test_parts_are_parts_and_sums_are_sums(
    anno: str, shapes: list[Any], outs: list[Any], axes: tuple[int | None, ...], out: Any
) -> None:
    draw = np.random.default_rng(1)
    arrays = [draw.normal(size=shape) for shape in shapes]
    held: dict[str, Array] = {}
    kwargs = {"h": 2} if "(h" in anno else {}
    whole = value(call(anno, shapes, outs, **kwargs), arrays, held)
    outs_along = out if isinstance(out, tuple) else (out,) * len(outs)
    total = [np.zeros_like(x) for x in whole]
    for part in (0, 1):
        own = [x if a is None else cut(x, a, part) for x, a in zip(arrays, axes, strict=True)]
        sizes = [
            tuple(x.shape if a is None else cut(x, a, part).shape)
            for x, a in zip(whole, outs_along, strict=True)
        ]
        local = {"h": 1} if kwargs else {}
        made = value(call(anno, [x.shape for x in own], sizes, **local), own, held)
        for x, y, z, a in zip(made, whole, total, outs_along, strict=True):
            if a is None:
                z += x
            else:
                np.testing.assert_allclose(x, cut(y, a, part), atol=1e-12)
    for y, z, a in zip(whole, total, outs_along, strict=True):
        if a is None:
            np.testing.assert_allclose(z, y, atol=1e-12)


# -- plans -----------------------------------------------------------------------------------------


def model(kind: str) -> Model:
    """``kind`` between two linear layers, and the sum of it all."""
    made = Families(random.Random(3), 2)
    x = made.linear(made.batch("data", (made.b, made.s, made.h), "float32"), made.h)
    made.draw.choice = lambda options: kind if kind in options else options[0]  # type: ignore[method-assign]
    made.op("torch.sum", "a+ b+ c+ -> 1", made.linear(made.registered(x), made.h), shapes=(1,))
    made.operations[-1].output.loss = True
    return Model(made.batches, made.operations, made.weights, 1)


def plan(kind: str, seed: int) -> Plans:
    return placed(random.Random(seed), model(kind), [2], 1, 1)


def registered(made: Plans) -> list[Obj]:
    return next(x for x in made.operators if "kernels" in x[0].state["signature"])


@pytest.mark.parametrize("kind", ["mixed", "expert", "headed"])
def test_what_is_equal_is_proved_and_what_is_assumed_is_printed(kind: str, tmp_path: Path) -> None:
    ways = set()
    for seed in range(3):
        made = plan(kind, seed)
        shapes = tuple(x.state["_shape"] for x in registered(made)[0].state["_inputs"])
        ways.add(shapes)
        one, many = viewed(made.single, tmp_path, "one"), viewed(made.parallel, tmp_path, "many")
        found = verify(paired(one, many))
        assert found.verdict == "proved", (seed, found.reason)
        kinds = {a.kind for a in paired(one, many).assumed if "kernels" in a.about}
        assert kinds == {"user's word", "stand-in"}
    assert len(ways) > 1


def other_number(made: Plans) -> None:
    for op in registered(made):
        op.state["_kwargs"] = {"eps": 0.25}


def other_module(made: Plans) -> None:
    for op in registered(made):
        op.state["signature"] = "my.others.mixed"


def other_annotation(made: Plans) -> None:
    for op in registered(made):
        op.state["_annos_candidates"] = ("b s h^, h^ o^ -> b s o^",)


def random_numbers(made: Plans) -> None:
    for op in registered(made):
        op.state["_kwargs"] = {"eps": 0.5, "dropout_p": 0.1}


def no_reduction(made: Plans) -> None:
    for prims in made.communications:
        for prim in prims:
            if "AllReduce" in prim.name or "Allreduce" in prim.name:
                prim.name, prim.state["kwargs"] = "IdentityPrim", {}


@pytest.mark.parametrize(
    "alter", [other_number, other_module, other_annotation, random_numbers, no_reduction]
)
def test_what_is_not_the_same_function_is_neither_proved_nor_refuted(
    alter: Callable[[Plans], None], tmp_path: Path
) -> None:
    """Whether it differs depends on the function, of which nothing is known."""
    for seed in range(9):
        made = plan("mixed", seed)
        before = [x.name for each in made.communications for x in each]
        alter(made)
        if alter is no_reduction and before == [x.name for e in made.communications for x in e]:
            continue
        found = judged(made, seed, tmp_path)
        assert found.verdict in ("inconclusive", "invalid"), (seed, found)
        return
    raise AssertionError("nothing was altered")


# -- functions of PyTorch that a model registers ---------------------------------------------------


def with_function(signature: str, anno: str, seed: int, **kwargs: Any) -> Plans:
    """A function between two linear layers on two devices, by whatever annotation."""
    made = Families(random.Random(3), 2)
    x = made.linear(made.batch("data", (made.b, made.s, made.h), "float32"), made.h)
    x = made.op(signature, anno, x, shapes=x.shape, **kwargs)
    made.op("torch.sum", "a+ b+ c+ -> 1", made.linear(x, made.h), shapes=(1,))
    made.operations[-1].output.loss = True
    model = Model(made.batches, made.operations, made.weights, 1)
    return placed(random.Random(seed), model, [2], 1, 1)


@pytest.mark.parametrize("signature", ["torch.nn.functional.mish", "torch.log1p"])
def test_what_a_model_registers_of_pytorch_is_its_annotations_function(
    signature: str, tmp_path: Path
) -> None:
    for seed in range(3):
        made = with_function(signature, "a b c -> a b c", seed)
        found = judged(made, seed, tmp_path)
        assert found.verdict == "proved", (seed, found.reason)
    one, many = viewed(made.single, tmp_path, "one"), viewed(made.parallel, tmp_path, "many")
    assert any(signature in a.text for a in paired(one, many).assumed)


def test_another_function_of_pytorch_is_not_proved(tmp_path: Path) -> None:
    made = with_function("torch.nn.functional.mish", "a b c -> a b c", 0)
    for op in next(x for x in made.operators if "mish" in x[0].state["signature"]):
        op.state["signature"] = "torch.nn.functional.softplus"
    assert judged(made, 0, tmp_path).verdict in ("inconclusive", "invalid")


@pytest.mark.parametrize(
    "signature",
    [
        "torch.rand_like", "torch.nn.functional.rrelu", "torch.Tensor.exponential_",
        "torch.empty_like", "torch.nn.functional.gumbel_softmax", "torch.nn.functional.batch_norm",
        "torch.distributed.all_reduce", "nnscaler.runtime.function.setitem", "torch.binomial",
    ],
)  # fmt: skip
def test_what_draws_or_writes_is_no_annotations_function(signature: str, tmp_path: Path) -> None:
    made = with_function(signature, "a b c -> a b c", 0)
    one, many = viewed(made.single, tmp_path, "one"), viewed(made.parallel, tmp_path, "many")
    found = verify(paired(one, many))
    assert found.verdict == "inconclusive"
    assert signature.rsplit(".", 1)[-1] in found.reason

"""Which declared operator a function of a plan is: by its whole signature, by position or by
name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardproof.engine.plan.ir import Plan
from shardproof.frontends.errors import UnreadablePlan
from shardproof.frontends.nnscaler import cells
from shardproof.frontends.nnscaler.convert import REPLICA, convert
from shardproof.frontends.nnscaler.operators import declared, known_by_name
from shardproof.frontends.nnscaler.records import FullTensor, Part, Tensor
from shardproof.frontends.untrusted.inert import DType
from tests.faults.plans import verify
from tests.frontends.pickles import Name, Obj
from tests.frontends.plan_generator import Plans, plans
from tests.frontends.plan_records import viewed


def tensor(*shape: int, dtype: str = "float32") -> Tensor:
    box = tuple((0, n) for n in shape)
    whole = FullTensor(1, "x", shape, dtype, False, False, False, True)
    return Tensor(2, Part("x", shape, dtype, False, False, box, (0, 1), whole), None)


X, Y = tensor(2, 4), tensor(2, 4)


def op(signature: str, *inputs: Any, **kwargs: Any) -> cells.ForwardOp:
    return cells.ForwardOp(
        1, signature.rsplit(".", 1)[-1], signature, inputs, (X,), kwargs, (), "", None
    )


FUSED = "IdentityAllreducePrim"
SOFTMAX = "torch.nn.functional.softmax"
TO, LAYER_NORM = "nnscaler.runtime.function.to", "nnscaler.runtime.function.layer_norm"
KNOWN = [
    (op(SOFTMAX, X, dim=-1, _stacklevel=3, dtype=None), ("softmax", 1, {"dim": -1})),
    (op(SOFTMAX, X, -1), ("softmax", 1, {"dim": -1})),
    (op("torch.add", X, 2, alpha=1), ("add", 1, {"other": 2, "alpha": 1})),
    (op("torch.add", 2, X), ("add", 1, {"other": 2})),
    (op("torch.add", 2, X, alpha=3), ("affine", 1, {"factor": 3, "shift": 2})),
    (op("torch.sub", X, Y, alpha=2), ("add", 2, {"alpha": -2})),
    (op("torch.sub", 1, X), ("affine", 1, {"factor": -1, "shift": 1})),
    (op("torch.div", 3, X), ("reciprocal", 1, {"numerator": 3})),
    (op("torch.Tensor.mul", X, Y), ("mul", 2, {})),
    (op("torch.nn.functional.silu", X, inplace=False), ("silu", 1, {})),
    (op("torch.nn.functional.silu", X, False), ("silu", 1, {})),
    (op("torch.nn.functional.linear", X, Y, None), ("linear", 2, {})),
    (op("torch.nn.functional.linear", X, Y, bias=Y), ("linear", 3, {})),
    (op("torch.Tensor.view", X, 4, 2), ("view", 1, {"size": (4, 2)})),
    (op("torch.Tensor.view", X, (4, 2)), ("view", 1, {"size": (4, 2)})),
    (op("torch.Tensor.view", X, size=(4, 2)), ("view", 1, {"size": (4, 2)})),
    (op("torch.nn.functional.dropout", X, p=0.0, training=True), ("identity", 1, {})),
    (op("torch.nn.functional.dropout", X, 0.5, False), ("identity", 1, {})),
    (op(LAYER_NORM, X, Y, Y, (4,), 0.5), ("layernorm", 3, None)),
    (op(LAYER_NORM, X, Y, None, (4,), 0.5), ("layernorm", 2, None)),
    (op("torch.clone", X, memory_format=None), ("identity", 1, {})),
    # Casts: the type counts, wherever it is given.
    (op(TO, X, dtype_or_device=DType("torch", "bfloat16")), ("to", 1, {"dtype": "bfloat16"})),
    (op(TO, X, DType("torch", "int32")), ("to", 1, {"dtype": "int32"})),
    (op(TO, X, dtype=DType("torch", "int32")), ("to", 1, {"dtype": "int32"})),
    (op("torch.Tensor.to", X, DType("torch", "int32")), ("to", 1, {"dtype": "int32"})),
    (op("torch.Tensor.to", X, "cuda", DType("torch", "int8")), ("to", 1, {"dtype": "int8"})),
    (op("torch.Tensor.to", X, tensor(1, dtype="int64")), ("to", 1, {"dtype": "int64"})),
    (op("torch.Tensor.to", X, "cuda"), ("identity", 1, {})),
    (op("torch.Tensor.type_as", X, tensor(1, dtype="int16")), ("to", 1, {"dtype": "int16"})),
    (op("torch.Tensor.long", X), ("to", 1, {"dtype": "int64"})),
    (op("torch.Tensor.type", X, "torch.LongTensor"), ("to", 1, {"dtype": "int64"})),
    (op("torch.Tensor.type", X, dtype="torch.cuda.HalfTensor"), ("to", 1, {"dtype": "float16"})),
    (op(SOFTMAX, X, dim=-1, dtype=DType("torch", "float32")), ("softmax", 1, {"dim": -1})),
    (op("torch.Tensor.float", X), ("float", 1, {"dtype": "float32"})),
    (op("torch.Tensor.long", tensor(3, dtype="int32")), ("identity", 1, {})),
    (op("torch.Tensor.int", tensor(3, dtype="int64")), ("to", 1, {"dtype": "int32"})),
]


@pytest.mark.parametrize(("call", "expected"), KNOWN)
def test_a_known_function(call: cells.ForwardOp, expected: tuple[str, int, Any]) -> None:
    found = declared(call)
    name, count, attrs = expected
    assert (found.name, len(found.tensors), found.word) == (name, count, "")
    if attrs is not None:
        assert found.attrs == attrs


UNKNOWN = [
    # The last word of a signature is no name.
    (op("my.kernels.approximate.softmax", X, dim=-1), "my.kernels.approximate.softmax"),
    (op("torch.create_mask", X, Y), "torch.create_mask"),
    (op("torch.fancy", X), "torch.fancy"),
    # What is not understood is named.
    (op("torch.nn.functional.silu", X, inplace=True), "silu with inplace True"),
    (op("torch.nn.functional.silu", X, True), "silu with inplace True"),
    (op("torch.nn.functional.silu", X, gamma=2), "silu with gamma"),
    (op("torch.sum", X, dtype=DType("torch", "int64")), "sum with dtype torch.int64"),
    (op(SOFTMAX, X, dtype=DType("torch", "float32")), "softmax with dim None"),
    (op("torch.any", tensor(3, dtype="bool"), dim=()), "any with dim of no dimension"),
    (
        op("torch.full_like", tensor(3, dtype="int64"), 2.5),
        "full_like with fill_value 2.5 in int64",
    ),
    (
        op("torch.full_like", X, 5, dtype=DType("torch", "bool")),
        "full_like with fill_value 5 in bool",
    ),
    (
        op("nnscaler.runtime.function.tensor", 2.5, dtype=DType("torch", "int32")),
        "tensor with data 2.5 in int32",
    ),
    (
        op("torch.nn.functional.pad", tensor(4, dtype="int64"), (1, 1), value=1.5),
        "pad with value 1.5 in int64",
    ),
    (op("torch.Tensor.type", X, "torch.Tensor"), "type with dtype 'torch.Tensor'"),
    (op("torch.add", tensor(3, dtype="bool"), tensor(3, dtype="bool"), 2), "add with alpha 2"),
    (op("torch.clamp", X, float("nan")), "clamp with nan"),
    (op("torch.clamp", X, float("inf")), "clamp with inf"),
    (op("torch.where", tensor(2, 4, dtype="bool")), "where with a condition alone"),
    (op("torch.sub", X, Y, alpha="2"), "sub with alpha '2'"),
    (op("torch.Tensor.contiguous", X, X), "contiguous with memory_format of type Tensor"),
    (op("torch.clone", X, memory_format=X), "clone with memory_format of type Tensor"),
    (op("torch.add", X, Y, out=X), "add with out of type Tensor"),
    (op("torch.mul", X, float("inf")), "mul with other inf"),
    (op("torch.Tensor.exp", X, None, 3), "exp with a constant operand 3"),
    (op("torch.nn.functional.dropout", X, 0.5, True, True), "dropout with inplace True"),
    # What is several operators takes no operand that its steps do not know.
    (op("torch.sign", X, None, X), "sign with 1 operands more"),
    (op("torch.where", X, X, X), "where with a condition of type float32"),
    (op("torch.clamp", X, 2, 1), "clamp with bounds"),
    (op("torch.triu", X, 0.5), "triu with diagonal 0.5"),
    (op("torch.tril", tensor(4)), "tril with input of 1 dimensions"),
    (
        op("torch.nn.functional.cross_entropy", X, X),
        "cross_entropy with classes of [2, 4] and labels [2, 4]",
    ),
    (op("torch.nn.functional.gelu", X, approximate="erf"), "gelu with approximate 'erf'"),
    (op(LAYER_NORM, X, Y, Y, (3, 4), 0.5), "layer_norm with normalized_shape [3, 4]"),
    (op("torch.Tensor.to", X, {"a": 1}), "to with dtype of type dict"),
    # Counts of the file are no reason to work without end.
    (op("torch.split", tensor(1 << 40), 1), "split with more than 4096 parts"),
    (op("torch.chunk", tensor(1 << 40), 1 << 40), "chunk with more than 4096 parts"),
    (
        op("einops.rearrange", X, "a b -> " + "1 " * 99),
        "rearrange with pattern " + repr(" " + "1 " * 19 + "1"),
    ),
    (
        op("einops.repeat", X, "a b -> a b " + "9" * 99),
        "repeat with pattern " + repr(" a b " + "9" * 35),
    ),
    (op("einops.rearrange", X, "a b -> (a"), "rearrange with pattern ' (a'"),
    (op("einops.rearrange", X, "a b c -> a b c"), "rearrange with 3 dimensions for a tensor of 2"),
    (op("einops.rearrange", X, "a b -> a"), "rearrange with axis b on one side"),
    (op("einops.reduce", X, "a b -> a", "max"), "reduce with reduction 'max'"),
    (op("einops.repeat", X, "a b -> a b c"), "repeat with no size for axis c"),
    (
        op("einops.rearrange", X, "a (b c) -> a b c", b=3),
        "rearrange with a dimension of 4 as (b c)",
    ),
    (
        op("torch.matmul", tensor(2, 3, 4), tensor(3, 2, 4, 2)),
        "matmul with operands of 3 and 4 dimensions",
    ),
    (
        op("nnscaler.runtime.function.fullslice", X, slice(0, 2, 2)),
        "fullslice with a slice of type slice",
    ),
    (op("torch.masked_fill", X, Y, float("inf")), "masked_fill with value inf"),
    (op("torch.topk", X, 2, sorted=None), "topk with sorted None"),
    (op("torch.gather", X, 0, X), "gather with index float32"),
    (op("torch.max", X, 0.5), "max with dim 0.5"),
    (op("torch.nn.functional.pad", X, (1, 1), "reflect"), "pad with mode 'reflect'"),
    (op("torch.bitwise_not", X), "bitwise_not with bits of float32"),
]


@pytest.mark.parametrize(("call", "name"), UNKNOWN)
def test_what_is_not_understood_is_named(call: cells.ForwardOp, name: str) -> None:
    assert declared(call).name == name


@pytest.mark.parametrize(
    "call",
    [
        op("torch.masked_fill", X, Y, float("-inf")),
        op("torch.where", tensor(2, 4, dtype="bool"), X, float("-inf")),
        op("torch.where", tensor(3, 1, 4, dtype="bool"), X, float("-inf")),
    ],
)
def test_minus_infinity_hides_entries_and_that_is_assumed(call: cells.ForwardOp) -> None:
    found = declared(call)
    assert found.steps[-1].attrs["value"] == -(10**30)
    assert "no row, nor a rank's part of one, is hidden" in found.assumed[0]


def test_an_index_counts_from_the_front_and_that_is_assumed() -> None:
    """PyTorch reads ``x[-1]`` from behind, and of ``embedding`` and ``gather`` refuses it."""
    ids = tensor(3, dtype="int64")
    found = declared(op("nnscaler.runtime.function.fullslice", X, ids))
    assert "no number that indexes a tensor (x[ids]) is negative" in found.assumed[0]
    assert declared(op("nnscaler.runtime.function.fullslice", X, 1)).assumed == ()
    assert declared(op("torch.index_select", X, 0, ids)).assumed == ()


def test_a_function_of_the_model_is_known_by_its_name_and_that_is_assumed() -> None:
    found = declared(op("my.model.apply_mask", X, Y))
    assert (found.name, found.word) == ("apply_mask", "my.model.apply_mask")
    assumed = known_by_name(found.word, found)
    assert (assumed.kind, assumed.about) == ("user's word", "my.model.apply_mask")
    assert assumed.text.startswith("my.model.apply_mask computes the declared operator apply_mask")


def converted(made: Plans, folder: Path) -> Plan:
    one = convert(viewed(made.single, folder, "single"), single=True)
    many = convert(viewed(made.parallel, folder, "parallel"), single=False)
    return Plan("made", one.programs[0], many.programs, many.microbatches, (REPLICA,), one.loss)


def made_with(signature: str) -> Plans:
    """The first small plan that has an operator."""
    for seed in range(100):
        made = plans(seed)
        if any(x[0].state["signature"] == signature for x in made.operators):
            return made
    raise AssertionError(signature)


def test_what_a_plan_does_in_place_is_inconclusive_by_name(tmp_path: Path) -> None:
    made = made_with("torch.nn.functional.silu")
    assert verify(converted(made, tmp_path)).verdict == "proved"
    for ops in made.operators:
        for each in ops:
            if each.state["signature"] == "torch.nn.functional.silu":
                each.state["_kwargs"] = {"inplace": True}
    found = verify(converted(made, tmp_path))
    assert found.verdict == "inconclusive"
    assert "silu with inplace True" in found.reason


@pytest.mark.parametrize("gone", [False, True])
def test_an_identity_of_nothing_is_no_plan(tmp_path: Path, gone: bool) -> None:
    """Its gradient would be of no value of the forward segment."""
    made = next(
        x
        for x in (plans(seed, "pipelines") for seed in range(100))
        if any(map(_identities, x.operators))
    )
    (found, *_) = [op for ops in made.operators for op in _identities(ops)]
    if not gone:
        assert verify(converted(made, tmp_path)).verdict == "proved"
        return
    found.state["_inputs"] = []
    with pytest.raises(UnreadablePlan, match="expected 0 input gradients, found 1"):
        converted(made, tmp_path)


def _identities(ops: list[Obj]) -> list[Obj]:
    return [x for x in ops if x.state["signature"] == "nnscaler.runtime.function.identity"]


def test_replicas_without_data_parallelism_are_no_plan(tmp_path: Path) -> None:
    made = next(x for x in map(plans, range(50)) if x.replicas == 2)
    assert made.parallel.state["enable_dp"]
    converted(made, tmp_path)
    made.parallel.state["enable_dp"] = False
    with pytest.raises(UnreadablePlan, match="expected enable_dp for"):
        converted(made, tmp_path)


def test_a_backward_operator_outside_a_segment_is_no_plan(tmp_path: Path) -> None:
    made = plans(1)
    sequence = made.parallel.state["execplan"].state["_seq"][0]
    segments = [x.state["_cell"] for x in sequence if "_cell" in x.state]
    nodes = [n for x in segments for n in x.state.get("_nodes", [])]
    backward = next(n for n in nodes if n.name == "IRBpOperation")
    sequence.append(backward)
    with pytest.raises(UnreadablePlan, match="a backward operator inside a segment") as caught:
        converted(made, tmp_path)
    assert caught.value.where.startswith("device 0, cell ")


def test_half_of_a_fused_primitive_is_no_plan(tmp_path: Path) -> None:
    """The two halves are one autograd function: none of them runs where the forward one is not."""
    for seed in range(100):
        made = plans(seed)
        for adapter in adapters(made):
            if adapter.state["_forward"] and adapter.state["_prims"][0].name == FUSED:
                converted(made, tmp_path)
                adapter.state["_prims"] = []
                with pytest.raises(UnreadablePlan, match=f"expected the forward half of {FUSED}"):
                    converted(made, tmp_path)
                return
    raise AssertionError(FUSED)


def adapters(made: Plans) -> list[Obj]:
    """Adapters in segments, with primitives."""
    sequences = made.parallel.state["execplan"].state["_seq"].values()
    bodies = [x.state["_cell"] for items in sequences for x in items if "_cell" in x.state]
    nodes = [n for x in bodies for n in x.state.get("_nodes", [])]
    return [n for n in nodes if n.name == "IRAdapter" and n.state["_prims"]]


TYPES = [
    (TO, Name("torch", "float32"), Name("torch", "float16"), Name("torch", "int32")),
    ("torch.Tensor.type", "torch.FloatTensor", "torch.cuda.HalfTensor", "torch.IntTensor"),
]


@pytest.mark.parametrize(("signature", "single", "right", "wrong"), TYPES)
def test_a_type_of_the_file_is_the_type_that_is_cast_to(
    tmp_path: Path, signature: str, single: Name | str, right: Name | str, wrong: Name | str
) -> None:
    """A cast to integers by position, or by the name of a tensor class, is no identity: what the
    reader once took it for."""
    made = made_with("torch.sigmoid")
    for kind, verdict in ((right, "proved"), (wrong, "inconclusive")):
        for ops in made.operators:
            for each in ops:
                if each.state["signature"] in ("torch.sigmoid", signature):
                    each.state["signature"] = signature
                    each.state["_inputs"] = [*each.state["_inputs"][:1], kind]
        nodes = made.single.state["execplan"].state["_seq"][0][1].state["_nodes"]
        for each in nodes:
            if isinstance(each, Obj) and each.state["signature"] in ("torch.sigmoid", signature):
                each.state["signature"] = signature
                each.state["_inputs"] = [each.state["_inputs"][0], single]
        found = verify(converted(made, tmp_path))
        assert found.verdict == verdict, found.reason
        assert verdict == "proved" or "a cast to int32" in found.reason


@pytest.mark.parametrize(("kind", "verdict"), [("float32", "proved"), ("int64", "inconclusive")])
def test_a_softmax_in_a_type_of_its_own(tmp_path: Path, kind: str, verdict: str) -> None:
    """As Llama's attention has it: a floating type is no other function over the reals."""
    made = plans(2, "families")
    called = [each for ops in made.operators for each in ops]
    nodes = made.single.state["execplan"].state["_seq"][0][1].state["_nodes"]
    for each in (*called, *nodes):
        if isinstance(each, Obj) and each.state.get("signature", "").endswith("softmax"):
            each.state["_kwargs"] = {**each.state["_kwargs"], "dtype": Name("torch", kind)}
    found = verify(converted(made, tmp_path))
    assert found.verdict == verdict, found.reason


@pytest.mark.parametrize(
    ("signature", "advice"),
    [
        ("torch.randn_like", "load them with the batch"),
        ("nnscaler.runtime.function.rand", "load them with the batch"),
        ("torch.binomial", "load them with the batch"),
        ("torch.empty", "zeros or full"),
        ("torch.nonzero", "where or masked_fill"),
        ("torch.Tensor.item", "compute with the tensor"),
    ],
)
def test_what_no_declaration_can_have_says_what_to_write_instead(
    signature: str, advice: str
) -> None:
    def called(signature: str) -> str:
        annotations = ("a b -> a b",)
        call = cells.ForwardOp(1, "f", signature, (X,), (X,), {}, (), "", None, annotations)
        return declared(call).name

    last = signature.rsplit(".", 1)[-1]
    assert called(signature).startswith(f"{last} with ")
    assert advice in called(signature)
    assert "instead" not in called(f"my.model.{last}"), "of the model's own, its annotation counts"

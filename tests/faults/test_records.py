"""Faults in real nnScaler plans: each refuted where it was put in, beside its proved twin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.nnscaler import frontend
from tests.faults.plans import assert_proved, assert_refuted, verify
from tests.faults.records import (
    LLAMA,
    LLAMA_3,
    LLAMA_222,
    MOE,
    MOE_222,
    Edit,
    Records,
    all_of,
    edited,
    first_operand,
    kwargs,
    operand,
    outputs_exchanged,
    prim_kwargs,
    signature,
    use_inputs_exchanged,
    weight,
    without_kwargs,
)

# Cells of `LLAMA_222` on devices 0 and 1, by what they are.
EMBEDDING, EPSILON, CAST, KEYS, SCALE, MASK, SOFTMAX, POWER, SILU = 1, 6, 9, 22, 24, 25, 27, 36, 330
QUERIES_VIEW, ROTARY_BACKWARD, ATTENTION_BACKWARD = 15, 253, 242
FIRST_BACKWARD, LAST_FORWARD = 269, 270
MASK_SENT, RESIDUAL_GRADIENT, FEED_FORWARD_REDUCED = 397, 543, 987
# Cells of `MOE_222` on devices 2 and 3.
GATE, EXPERTS, WEIGHTS_GRADIENT = 91, 403, 1594


def stale(device: int, cell: int) -> Edit:
    """The second use of a cell is given the first one's tensors."""

    def edit(records: Records) -> None:
        first, second = records.uses(device, cell)[:2]
        second._inputs = first._inputs

    return edit


def without_reducer(records: Records) -> None:
    sequence = records.sequence(0)
    for reducer in records.reducers(0):
        sequence.remove(reducer)


def early_reducer(records: Records) -> None:
    """On devices 0 and 1 alike: gradients are reduced before the last backward."""
    for device in (0, 1):
        sequence, reducers = records.sequence(device), records.reducers(device)
        for reducer in reducers:
            sequence.remove(reducer)
        last: Any = records.uses(device, FIRST_BACKWARD)[-1]
        place = max(i for i, item in enumerate(sequence) if item is last)
        sequence[place:place] = reducers


def exchanged_names(records: Records) -> None:
    """Queries' and keys' weights exchange their names."""
    first, second = (
        weight(records, 0, f"layers.0.attention.{name}.weight")[0]._full_tensor
        for name in ("wq", "wk")
    )
    first.name, second.name = second.name, first.name


def other_half(records: Records) -> None:
    """Device 1 claims the first half of a weight, as device 0 does."""
    index = weight(records, 1, "layers.0.feed_forward.w1.weight")[0]._indmap
    (low, high), columns = index._indices
    index._indices = ((0, high - low), columns)


def backward_as_forward(*devices: int) -> Edit:
    """The all-reduce of the routing weights' gradient becomes an identity."""

    def edit(records: Records) -> None:
        for device in devices:
            records.cell(device, WEIGHTS_GRADIENT)._forward = True

    return edit


def in_group(*ranks: int) -> Edit:
    return prim_kwargs(0, FEED_FORWARD_REDUCED, "AllReduceIdentityPrim", ranks=list(ranks))


Expected = tuple[Edit, str, str | None, tuple[int, ...] | None]

LLAMA_FAULTS: dict[str, Expected] = {
    "keys are not transposed": (kwargs(0, KEYS, dim0=2, dim1=2), "mismatch", "matmul", (0,)),
    "a view with two sizes exchanged": (
        kwargs(0, QUERIES_VIEW, size=(128, 32, 128, 128)),
        "shape",
        "view",
        (0,),
    ),
    "softmax over queries": (kwargs(0, SOFTMAX, dim=-2), "mismatch", "softmax", (0,)),
    "no mask": (
        all_of(signature(0, MASK, "nnscaler.runtime.function.identity"), first_operand(0, MASK)),
        "mismatch",
        None,
        (0,),
    ),
    "scores divided by another number": (operand(0, SCALE, 1, 4.0), "mismatch", "div", (0,)),
    "another epsilon": (operand(0, EPSILON, 1, 1e-6), "mismatch", "add", (0,)),
    "another power": (operand(0, POWER, 1, 3), "mismatch", "pow", (0,)),
    "a sigmoid for a silu": (
        all_of(signature(0, SILU, "torch.sigmoid"), without_kwargs(0, SILU)),
        "mismatch",
        None,
        (0,),
    ),
    "an embedding that starts one row late": (
        kwargs(0, EMBEDDING, start=1, stop=51201),
        "mismatch",
        "embedding",
        (0,),
    ),
    "an embedding that stops too early": (
        kwargs(0, EMBEDDING, stop=25600),
        "shape",
        "embedding",
        (0,),
    ),
    "gradients of rotary exchanged": (
        outputs_exchanged(0, ROTARY_BACKWARD),
        "mismatch",
        None,
        (0,),
    ),
    "gradients of a product exchanged": (
        outputs_exchanged(0, ATTENTION_BACKWARD),
        "mismatch",
        None,
        (0,),
    ),
    "a group without the other rank": (in_group(0), "unmatched collective", None, (0, 1)),
    "a group of another rank": (in_group(0, 2), "unmatched collective", "all_reduce", (0, 2)),
    "a rank outside its group": (in_group(1, 2), "group", "all_reduce", (0,)),
    "a message to the wrong rank": (
        prim_kwargs(1, MASK_SENT, "MovePrim", dst=2),
        "unmatched message",
        "send",
        (1, 2),
    ),
    "a message from another rank": (
        prim_kwargs(1, MASK_SENT, "MovePrim", src=0),
        "peer",
        "send",
        (1,),
    ),
    "a message received into another shape": (
        prim_kwargs(3, MASK_SENT, "MovePrim", shape=(1, 1, 64, 128)),
        "shape",
        "recv",
        None,
    ),
    "a chunk of another dimension": (
        prim_kwargs(0, MASK_SENT, "ChunkPrim", dim=2),
        "shape",
        None,
        (0,),
    ),
    "a gather along another dimension": (
        prim_kwargs(0, RESIDUAL_GRADIENT, "AllGatherPrim", dim=1),
        "collective mismatch",
        "all_gather",
        (0, 1),
    ),
    "uses given each other's tensors": (
        use_inputs_exchanged(2, LAST_FORWARD),
        "read before write",
        None,
        (2,),
    ),
    "a use given the tensors of the microbatch before": (
        stale(2, LAST_FORWARD),
        "mismatch",
        None,
        (2,),
    ),
    "a backward given the gradients of the microbatch before": (
        stale(0, FIRST_BACKWARD),
        "read before write",
        None,
        (0,),
    ),
    "gradients reduced before the last backward": (early_reducer, "mismatch", "all_reduce", (0,)),
    "gradients never reduced": (
        without_reducer,
        "conclusion",
        "gradient of tok_embeddings.weight",
        (0, 4),
    ),
    "parameters of equal shape exchanged": (exchanged_names, "mismatch", "linear", (0, 1)),
    "a shard that is the other half": (other_half, "mismatch", None, (1,)),
}
MOE_FAULTS: dict[str, Expected] = {
    "routing weights' gradient not reduced": (
        backward_as_forward(2, 3),
        "mismatch",
        "backward of nnscaler_moe_gmm",
        (2, 3),
    ),
    "routing weights' gradient not reduced on one rank": (
        backward_as_forward(2),
        "unmatched collective",
        "all_reduce",
        (2, 3),
    ),
    "the other rank's experts": (
        kwargs(2, EXPERTS, local_expert_start=8, local_expert_end=16),
        "mismatch",
        "nnscaler_moe_gmm",
        (2,),
    ),
    "another scale of the routing": (
        all_of(kwargs(2, GATE, route_scale=2.0), kwargs(3, GATE, route_scale=2.0)),
        "mismatch",
        "gate_fw",
        (2, 3),
    ),
    "another scoring function": (
        all_of(kwargs(2, GATE, score_func="softmax"), kwargs(3, GATE, score_func="softmax")),
        "mismatch",
        "gate_fw",
        (2, 3),
    ),
}


@pytest.mark.parametrize(("single", "parallel"), [(LLAMA, LLAMA_222), (MOE, MOE_222)])
def test_the_twins_are_proved(shared_plans: Path, single: str, parallel: str) -> None:
    assert_proved(edited(shared_plans, single, parallel))


@pytest.mark.parametrize("single", [LLAMA, MOE])
def test_a_plan_is_proved_against_itself(shared_plans: Path, single: str) -> None:
    assert_proved(edited(shared_plans, single, single))


#: Those that take longest, and have siblings among the others.
SLOW = {
    "a shard that is the other half",
    "a use given the tensors of the microbatch before",
    "gradients reduced before the last backward",
    "no mask",
    "routing weights' gradient not reduced",
}


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=[pytest.mark.slow] * (x in SLOW)) for x in LLAMA_FAULTS]
)
def test_a_fault_in_a_llama_plan_is_refuted_and_located(shared_plans: Path, name: str) -> None:
    edit, kind, operator, ranks = LLAMA_FAULTS[name]
    assert_refuted(
        edited(shared_plans, LLAMA, LLAMA_222, edit), kind=kind, operator=operator, ranks=ranks
    )


@pytest.mark.parametrize("name", MOE_FAULTS)
def test_a_fault_in_a_mixture_of_experts_is_refuted_and_located(
    shared_plans: Path, name: str
) -> None:
    edit, kind, operator, ranks = MOE_FAULTS[name]
    assert_refuted(
        edited(shared_plans, MOE, MOE_222, edit), kind=kind, operator=operator, ranks=ranks
    )


def test_microbatches_share_what_does_not_depend_on_them(shared_plans: Path) -> None:
    """The second microbatch reads the first one's mask: another tensor, the same value."""

    def edit(records: Records) -> None:
        first, second = records.uses(2, LAST_FORWARD)[:2]
        second._inputs = (first._inputs[0], *second._inputs[1:])

    assert_proved(edited(shared_plans, LLAMA, LLAMA_222, edit))


def test_a_cast_to_integers_is_not_taken_for_an_identity(shared_plans: Path) -> None:
    def edit(records: Records) -> None:
        integers = records.cell(0, EMBEDDING)._inputs[0]._full_tensor._dtype
        kwargs(0, CAST, dtype_or_device=integers)(records)

    found = verify(edited(shared_plans, LLAMA, LLAMA_222, edit))
    assert found.verdict == "inconclusive"
    assert "a cast to int64" in found.reason


def test_an_unknown_operator_is_inconclusive_by_name(shared_plans: Path) -> None:
    def edit(records: Records) -> None:
        signature(0, SILU, "our.own.swish")(records)
        records.cell(0, SILU)._annos_candidates = ()

    found = verify(edited(shared_plans, LLAMA, LLAMA_222, edit))
    assert found.verdict == "inconclusive"
    assert "operator our.own.swish is not declared" in found.reason


def test_a_registered_function_on_one_side_alone_is_invalid_input(shared_plans: Path) -> None:
    plan = edited(shared_plans, LLAMA, LLAMA_222, signature(0, SILU, "our.own.swish"))
    with pytest.raises(InvalidInput, match=r"our\.own\.swish.* is not in the single-device plan"):
        verify(plan)
    with pytest.raises(InvalidInput, match=r"rank 0: .* found our\.own\.swish.*annotation alone"):
        frontend.same_functions(plan.single, plan.programs)


@pytest.mark.parametrize(
    ("single", "says"),
    [
        (LLAMA_3, r"layers\.2\.attention_norm\.weight .* is on no rank"),
        (MOE, r"tok_embeddings\.weight has full shape \[51200, 4096\], expected \[51200, 512\]"),
    ],
)
def test_another_model_is_invalid_input(shared_plans: Path, single: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        verify(edited(shared_plans, single, LLAMA_222))


#: Where each of the plans in `bugs` was changed: kind, operator and ranks of the first finding.
BUGS = {
    "01": ("mismatch", "add", (0, 1)),
    "02": ("read before write", "add", (0, 1)),
    "03": ("mismatch", "add", (0, 1)),
    "04": ("shape", "all_reduce", None),
    "05": ("mismatch", "backward of mul", (2, 3)),
    "06": ("mismatch", "all_gather", (2, 3)),
    "07": ("mismatch", "add", (0,)),
    "08": ("mismatch", "pow", (0,)),
    "09": ("mismatch", "add", (0, 1)),
    "10": ("mismatch", "add_n", (2,)),
    "11": ("mismatch", "backward of apply_rotary_emb", (2,)),
    "12": ("mismatch", "div", (0,)),
    "13": ("mismatch", "div", (0, 1)),
    "14": ("missing call", "segment 269", (0,)),
}


@pytest.mark.parametrize("bug", BUGS)
def test_plans_with_a_bug_are_refuted_and_located(shared_plans: Path, bug: str) -> None:
    kind, operator, ranks = BUGS[bug]
    name = f"bugs/llama3_br{bug}_{LLAMA_222.removeprefix('llama3_default_')}"
    assert_refuted(edited(shared_plans, LLAMA, name), kind=kind, operator=operator, ranks=ranks)

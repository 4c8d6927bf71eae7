"""What a plan records about its values: contradictions are found, and change no verdict.

Each edit is of records that no operator computes with; the plan computes what it did before and is
proved.  The plan without an edit, proved by the same path, has no finding.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from shardproof.engine.findings import Finding
from shardproof.engine.plan.ir import Plan
from shardproof.frontends.nnscaler import cells
from shardproof.frontends.nnscaler.contradictions import contradictions
from shardproof.partition.evidence import recorded as metadata
from shardproof.partition.stages.partition import partition
from tests.faults.plans import assert_proved, assert_refuted, llama
from tests.faults.records import (
    LLAMA,
    LLAMA_222,
    MOE,
    MOE_222,
    Edit,
    Records,
    edited,
    index_map,
    prim_kwargs,
    records_of,
    value_map,
    weight,
)

# Cells of `LLAMA_222`: the feed-forward of layer 0, split over devices 0 and 1.
SILU, SILU_1, DOWN, DOWN_1, QUERIES, KEYS, SCALE = 330, 331, 342, 343, 12, 13, 24
#: The adapter that cuts a tensor in two at the pipeline boundary; one that all-reduces.
CUT, REDUCED = 397, 987
HALF, WIDTH, ROWS = 5504, 11008, (0, 128)
TP_8 = "llama3_default_dp2_pp4_tp8_nm8_gbs512_ly2_h32_hi4096_sq128"


def other_half(records: Records) -> None:
    """Every record on device 1 says that silu's result there is the first half, as on device 0."""
    for tensor in records_of(records, 1, SILU_1):
        index_map(tensor, ROWS, ROWS, (0, HALF))


def in_between(records: Records) -> None:
    """Device 1's half is recorded to begin in the middle of device 0's."""
    for tensor in records_of(records, 1, SILU_1):
        index_map(tensor, ROWS, ROWS, (HALF // 2, HALF // 2 + HALF))


def exchanged(records: Records) -> None:
    """Both halves are recorded the wrong way round, silu's result only."""
    for tensor in records_of(records, 0, SILU):
        index_map(tensor, ROWS, ROWS, (HALF, WIDTH))
    for tensor in records_of(records, 1, SILU_1):
        index_map(tensor, ROWS, ROWS, (0, HALF))


def reader_differs(records: Records) -> None:
    """One operator that reads silu's result records the other half."""
    reader = records_of(records, 1, SILU_1)[1]
    index_map(reader, ROWS, ROWS, (0, HALF))


def longer(records: Records) -> None:
    """The index map of silu's result covers more than its shape."""
    for tensor in records_of(records, 1, SILU_1):
        index_map(tensor, ROWS, ROWS, (0, WIDTH))


def another_shape(records: Records) -> None:
    """The operator that reads silu's result records another shape of it."""
    records_of(records, 1, SILU_1)[1]._shape = (128, 128, HALF + 1)


def complete(records: Records) -> None:
    """Both partial sums of the feed-forward are recorded as complete values."""
    for device, cell in ((0, DOWN), (1, DOWN_1)):
        for tensor in records_of(records, device, cell):
            value_map(tensor, 0, 1)


def same_addend(records: Records) -> None:
    """Both are recorded as the first addend."""
    for tensor in records_of(records, 1, DOWN_1):
        value_map(tensor, 0, 2)


def an_addend(records: Records) -> None:
    """The queries, which every rank has in full, are recorded as an addend on both."""
    for device in (0, 1):
        for tensor in records_of(records, device, QUERIES):
            value_map(tensor, device, 2)


def addend_of_the_whole(records: Records) -> None:
    """On device 0 the queries are recorded as an addend, of which there is no other."""
    for tensor in records_of(records, 0, QUERIES):
        value_map(tensor, 0, 2)


def another_model_tensor(records: Records) -> None:
    """The scaled scores are recorded as the queries' product before it was scaled."""
    before, after = records.cell(0, 23)._outputs[0], records_of(records, 0, SCALE)
    for tensor in after:
        tensor._full_tensor = before._full_tensor


def gradient_link(records: Records) -> None:
    """The gradient that silu's result links to is recorded as the other half."""
    tensor = records_of(records, 1, SILU_1)[0]
    made = type(tensor._grad)()
    for name in type(tensor._grad).__slots__:
        setattr(made, name, getattr(tensor._grad, name))
    tensor._grad = made
    index_map(made, ROWS, ROWS, (0, HALF))


def on_another_device(records: Records) -> None:
    records.cell(0, REDUCED)._device = (5,)


#: What records say against what the plan computes: edit, operator and ranks of the finding, and
#: what its message says.
CLAIMS: dict[str, tuple[Edit, str, tuple[int, ...], str]] = {
    "an index map off by a part": (in_between, "silu", (1,), "2752:8256] of full tensor"),
    "a value map: partial, claimed complete": (complete, "linear", (0, 1), "it is a partial sum"),
    "a value map: two first addends": (same_addend, "linear", (0,), "of these 2 addends"),
    "a value map: complete, claimed an addend": (
        addend_of_the_whole,
        "linear",
        (0,),
        "of these 2 addends the plan has [0]",
    ),
    "a value map: complete, claimed two addends": (
        an_addend,
        "linear",
        (0, 1),
        "it is the complete value",
    ),
    "another full tensor": (another_model_tensor, "div", (0,), "of which it is a multiple"),
}

#: What records say against each other.
RECORDS: dict[str, tuple[Edit, str, tuple[int, ...], str]] = {
    "a reader's index map": (reader_differs, "mul", (1,), "by another operator of this rank"),
    "an index map that is no box of this shape": (longer, "silu", (1,), "its index map covers"),
    "a gradient's index map": (gradient_link, "silu", (1,), "its gradient as [0:128, 0:128, 0:550"),
    "a recorded shape": (another_shape, "mul", (1,), "is recorded to have shape [128, 128, 5505]"),
    "the device of an adapter": (on_another_device, "adapter", (0,), "recorded to run on [5]"),
}

#: The same, to the verdict: it is "proved" all the same.
PROVED: dict[str, tuple[Edit, str, tuple[int, ...], str]] = {
    "an index map": (other_half, "silu", (1,), "is recorded as [0:128, 0:128, 0:5504]"),
    "ranks": (
        prim_kwargs(0, CUT, "ChunkPrim", ranks=[0, 3]),
        "ChunkPrim",
        (0, 1),
        "it names the group",
    ),
}


def assert_named(
    findings: Sequence[Finding], operator: str, ranks: tuple[int, ...], says: str
) -> None:
    """Assert that a finding of metadata says this, and that there is little else."""
    assert {f.kind for f in findings} == {metadata.KIND}
    found = [f for f in findings if says in f.message]
    assert found, findings
    assert (found[0].operator, found[0].ranks) == (operator, ranks)
    assert found[0].expected != found[0].actual
    assert len(findings) <= 3


def claims(plan: Plan) -> int:
    """How many values a plan records something about."""
    return sum(x is not None for p in plan.programs for b in p.bodies for x in b.claims)


def test_the_twin_is_proved_and_has_no_finding(shared_plans: Path) -> None:
    plan = edited(shared_plans, LLAMA, LLAMA_222)
    assert claims(plan) > 400
    assert assert_proved(plan).findings == ()


def test_a_mixture_of_experts_has_no_finding(shared_plans: Path) -> None:
    plan = edited(shared_plans, MOE, MOE_222)
    assert claims(plan) > 400
    assert metadata.metadata(partition(plan)) == []


def test_plans_of_the_builder_record_nothing() -> None:
    plan = llama(tp=2)
    assert claims(plan) == 0
    assert metadata.metadata(partition(plan)) == []


@pytest.mark.parametrize("name", PROVED)
def test_a_contradiction_is_a_finding_beside_the_proof(shared_plans: Path, name: str) -> None:
    edit, operator, ranks, says = PROVED[name]
    result = assert_proved(edited(shared_plans, LLAMA, LLAMA_222, edit))
    assert_named(result.findings, operator, ranks, says)


@pytest.mark.parametrize("name", CLAIMS)
def test_a_record_against_the_computation_is_a_finding(shared_plans: Path, name: str) -> None:
    edit, operator, ranks, says = CLAIMS[name]
    result = partition(edited(shared_plans, LLAMA, LLAMA_222, edit))
    assert all(c.holds for c in result.conclusions)
    found = metadata.metadata(result)
    assert_named(found, operator, ranks, says)


@pytest.mark.parametrize("name", RECORDS)
def test_records_against_each_other_are_a_finding(shared_plans: Path, name: str) -> None:
    edit, operator, ranks, says = RECORDS[name]
    records = Records(shared_plans / f"{LLAMA_222}.pkl")
    edit(records)
    assert_named(contradictions(cells.plan(records.root)), operator, ranks, says)


@pytest.mark.parametrize("name", [LLAMA, LLAMA_222, MOE_222, TP_8])
def test_records_of_right_plans_agree(shared_plans: Path, name: str) -> None:
    assert contradictions(cells.plan(Records(shared_plans / f"{name}.pkl").root)) == ()


def test_what_is_wrong_everywhere_is_listed_once_and_counted(shared_plans: Path) -> None:
    """Every index map of device 1 but for parameters says that it begins 1 later."""

    def edit(records: Records) -> None:
        met: set[int] = set()
        for item in records.sequence(1):
            for node in getattr(getattr(item, "_cell", item), "_nodes", ()):
                for tensor in node._outputs:
                    if id(tensor._indmap) not in met and not tensor._is_attr:
                        met.add(id(tensor._indmap))
                        (low, high), *rest = tensor._indmap._indices
                        tensor._indmap._indices = ((low, high - 1), *rest)

    records = Records(shared_plans / f"{LLAMA_222}.pkl")
    edit(records)
    found = contradictions(cells.plan(records.root))
    assert len(found) == 20
    assert found[-1].message.startswith("and ")
    assert found[-1].message.endswith(" more contradictions of the plan's records")


def test_a_recorded_shape_changes_no_verdict(shared_plans: Path) -> None:
    result = partition(edited(shared_plans, LLAMA, LLAMA_222, another_shape))
    assert not result.faults
    assert all(c.holds for c in result.conclusions)


def test_another_order_of_operators_is_a_finding(shared_plans: Path) -> None:
    """Device 0 makes the keys before the queries: neither needs the other."""

    def edit(records: Records) -> None:
        segment = next(
            item._cell
            for item in records.sequence(0)
            if any(n._id == QUERIES for n in getattr(item._cell, "_nodes", ()))
        )
        nodes = list(segment._nodes)
        first = next(i for i, n in enumerate(nodes) if n._id == QUERIES)
        assert [n._id for n in nodes[first : first + 2]] == [QUERIES, KEYS]
        nodes[first : first + 2] = reversed(nodes[first : first + 2])
        segment._nodes = nodes

    result = partition(edited(shared_plans, LLAMA, LLAMA_222, edit))
    assert all(c.holds for c in result.conclusions)
    (found,) = metadata.metadata(result)
    assert (found.operator, found.ranks) == ("linear", (0,))
    assert found.layer == "layers.0.attention.wq"
    assert "comes after linear in layers.0.attention.wk" in found.message


@pytest.mark.slow
def test_an_exchange_in_the_computation_is_refuted_whatever_is_recorded(shared_plans: Path) -> None:
    """The halves of a weight are exchanged, and everything that is computed of them is recorded as
    what it then is: consistent records prove nothing."""

    def edit(records: Records) -> None:
        for device, other in ((0, (HALF, WIDTH)), (1, (0, HALF))):
            index = weight(records, device, "layers.0.feed_forward.w1.weight")[0]._indmap
            index._indices = (other, index._indices[1])

    assert_refuted(edited(shared_plans, LLAMA, LLAMA_222, edit), kind="mismatch")

"""Views of records: right on good plans, and naming the place of whatever is wrong."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardproof.frontends.errors import UnreadablePlan
from shardproof.frontends.nnscaler import cells
from shardproof.frontends.nnscaler.read import read_records
from shardproof.frontends.nnscaler.records import Tensor, content
from shardproof.frontends.untrusted.inert import DType
from tests.frontends.pickles import Name, Obj, pickled, small_plan

PLANS = Path(__file__).resolve().parents[4] / "shared" / "plans"


def viewed(tmp_path: Path, parts: dict[str, Obj]) -> tuple[cells.Plan, list[Any]]:
    path = tmp_path / "plan.pkl"
    path.write_bytes(pickled(parts["root"]))
    plan = cells.plan(read_records(str(path)))
    return plan, [cell for device in plan.devices for cell in plan.sequence(device)]


def test_tensors_of_which_the_same_is_said_share_what_is_said(tmp_path: Path) -> None:
    """The batch is the loader's output and the segment's input; an extent True is none."""
    _, (data, use, _) = viewed(tmp_path, small_plan())
    given, read = data.outputs[0], use.cell.inputs[0]
    assert (given is read) or given.part is read.part
    assert given.part is not use.cell.outputs[0].part
    assert content((1, [2, 3])) == content((1, [2, 3])) != content((True, [2, 3]))
    assert content(object()) is None


def test_a_device_that_is_dropped_has_nothing_to_run(tmp_path: Path) -> None:
    plan, cells_ = viewed(tmp_path, small_plan())
    assert cells_
    plan.drop(0)
    assert list(plan.sequence(0)) == []


def test_views_of_a_small_plan(tmp_path: Path) -> None:
    plan, (data, use, reducer) = viewed(tmp_path, small_plan())
    assert (plan.devices, plan.ranks, plan.groups) == ((0,), 2, ((0, 1),))
    assert plan.microbatches is None
    assert isinstance(data, cells.DataOp)
    assert isinstance(use, cells.Use)
    assert isinstance(reducer, cells.Reducer)
    segment = use.cell
    assert isinstance(segment, cells.Segment)
    op, adapter, back = segment.nodes
    assert isinstance(op, cells.ForwardOp)
    assert isinstance(adapter, cells.Adapter)
    assert isinstance(back, cells.BackwardOp)
    assert back.forward is op
    assert op.backward_id == back.id
    assert op.module == ("layers.0",)
    assert op.comment == 'File "model.py", line 3'
    assert op.kwargs == {"alpha": 1, "size": (2, -1)}
    x, epsilon, exponent = op.inputs
    assert (epsilon, exponent) == (1e-5, 2)
    assert isinstance(x, Tensor)
    assert (x.id, x.shape, x.dtype, x.box, x.addend) == (
        10, (2, 4), "float32", ((0, 2), (0, 4)), (0, 1),
    )  # fmt: skip
    assert use.inputs[0] is x
    assert x.grad() == back.inputs[0]
    assert op.outputs[0].full.is_loss  # type: ignore[union-attr]
    assert adapter.prims[0].ranks() == (0, 1)
    assert adapter.prims[0].kind == "AllReducePrim"


def test_a_dtype_is_a_constant(tmp_path: Path) -> None:
    parts = small_plan()
    parts["op"].state["_kwargs"] = {"dtype": Name("torch", "bfloat16")}
    _, (_, use, _) = viewed(tmp_path, parts)
    found = use.cell.nodes[0].kwargs["dtype"]
    assert isinstance(found, DType)
    assert found.name == "bfloat16"


OP = "device 0, use 25, segment 24, cell 20"
X = "device 0, cell 26, tensor 10"


def put(part: str, key: str, value: Any) -> Callable[[dict[str, Obj]], None]:
    def change(parts: dict[str, Obj]) -> None:
        parts[part].state[key] = value

    return change


def drop(part: str, key: str) -> Callable[[dict[str, Obj]], None]:
    def change(parts: dict[str, Obj]) -> None:
        del parts[part].state[key]

    return change


def inside(part: str, key: str, inner: str, value: Any) -> Callable[[dict[str, Obj]], None]:
    def change(parts: dict[str, Obj]) -> None:
        parts[part].state[key].state[inner] = value

    return change


OPAQUE = Obj("nnscaler.graph.function.dimops", "OpAnno", {"a": 1})


def no_mirrors(parts: dict[str, Obj]) -> None:
    """Neither of the two operators says that it is the other one's mirror."""
    put("op", "_mirror", None)(parts)
    put("back", "_mirror", None)(parts)


WRONG = [
    (drop("x", "_shape"), X, "expected a field _shape of IRSubTensor"),
    (put("x", "_shape", (2, -4)), X, "expected sizes from 0 to 281474976710656, found -0x4"),
    (put("x", "_shape", (2, 1 << 60)), X, "expected sizes from 0"),
    (put("x", "_shape", (1 << 40, 1 << 40)), X, "expected at most 4611686018427387904 elements"),
    (put("x", "_shape", (1,) * 17), X, "expected at most 16 dimensions, found 17"),
    (put("x", "_shape", 8), X, "expected a list of sizes, found 'int'"),
    (put("x", "_shape", (2, True)), X, "expected sizes from 0"),
    (put("x", "_shape", (2, 4.0)), X, "found 'float'"),
    (put("x", "_id", -1), "device 0, cell 26, tensor", "expected a tensor id"),
    (put("x", "name", None), X, "expected a tensor's name"),
    (put("x", "name", "n" * 70_000), X, "found a longer one"),
    (put("x", "_is_attr", 1), X, "expected _is_attr to be true or false, found 'int'"),
    (put("x", "_dtype", "float32"), X, "expected a torch dtype, found 'str'"),
    (put("x", "_grad", 3), X, "expected IRSubTensor, found 'int'"),
    (put("x", "_full_tensor", None), X, "expected IRFullTensor, found 'NoneType'"),
    (inside("x", "_full_tensor", "_shape", (2, -4)), f"{X}, full tensor 1", "expected sizes"),
    (inside("x", "_full_tensor", "_shape", (2, 3)), X, "within dimension 1 of size 3"),
    (inside("x", "_full_tensor", "_shape", (2,)), X, "index ranges for 1 dimensions"),
    (inside("x", "_indmap", "_indices", ((0, 2), (3, 1))), X, "found 3 to 1"),
    (inside("x", "_indmap", "_indices", ((0, 2), (0, 4, 1))), X, "two numbers for an index range"),
    (put("x", "_indmap", Obj("nnscaler.ir.tensor", "IndexMap", None)), X, "_indices of IndexMap"),
    (put("x", "_valmap", Obj("nnscaler.ir.tensor", "ValueMap", None)), X, "_weight of ValueMap"),
    (inside("x", "_valmap", "_weight", (2, 2)), X, "expected addend i of n with i < n"),
    (put("x", "_indmap", OPAQUE), X, "expected IndexMap, found 'OpAnno'"),
    (drop("op", "_inputs"), OP, "expected a field _inputs of IRDimops"),
    (put("op", "_inputs", [OPAQUE]), OP, "expected a constant or a tensor, found 'OpAnno'"),
    (put("op", "_inputs", [Name("my.model", "MLP")]), OP, "found 'MLP'"),
    (put("op", "_inputs", [1 << 80]), OP, "expected a constant from"),
    (put("op", "_kwargs", []), OP, "expected a dictionary of attributes"),
    (put("op", "_kwargs", {3: 1}), OP, "expected an attribute's name"),
    (put("op", "_kwargs", {"a": [[[[[[[[[1]]]]]]]]]}), OP, "nested 8 deep"),
    (put("op", "_kwargs", {"a": [0] * 20_000}), OP, "at most 16384 items"),
    (put("op", "_module_stack", [1]), OP, "expected a module stack"),
    (put("op", "_mirror", 4), OP, "expected a mirror cell"),
    (put("op", "_id", None), "device 0, use 25, segment 24, cell", "expected a cell's id"),
    (put("back", "_mirror", None), OP, "expected its mirror, cell 21, to have this cell"),
    (put("op", "_mirror", None), "device 0, use 25, segment 24, cell 21", "expected its mirror, cell 20"),
    (no_mirrors, "device 0, use 25, segment 24, cell 21", "IRDimops or IRPyFunc"),
    (
        put("prim", "_inputs", [1]),
        "device 0, use 25, segment 24, adapter 22, AllReducePrim",
        "expected IRSubTensor",
    ),
    (put("adapter", "_prims", [1]), "device 0, use 25, segment 24, adapter 22", "a primitive"),
    (put("segment", "_nodes", [OPAQUE]), "device 0, use 25, segment 24", "expected an operator"),
    (put("segment", "_nodes", None), "device 0, use 25, segment 24", "a list of operators"),
    (put("use", "_cell", OPAQUE), "device 0, use 25", "expected a cell, found 'OpAnno'"),
    (put("execution", "_seq", {}), "", "a sequence of cells for each of 1 devices"),
    (put("execution", "_seq", {0: None}), "device 0", "expected a list of cells"),
    (put("execution", "_seq", {0: [1]}), "device 0", "expected a cell, found 'int'"),
    (drop("execution", "_seq"), "", "expected a field _seq of the plan"),
    (put("root", "devices", (0, 0)), "", "different devices"),
    (put("root", "devices", ()), "", "different devices"),
    (put("root", "runtime_ndevs", 0), "", "the number of ranks from 1"),
    (put("root", "comm_groups", [[0, 2]]), "", "a rank from 0 to 1, found 0x2"),
    (put("graph", "_sched", 3), "", "expected SchedulePlan"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "where", "message"), WRONG)
def test_what_is_wrong_is_said_with_its_place(
    tmp_path: Path, change: Callable[[dict[str, Obj]], None], where: str, message: str
) -> None:
    parts = small_plan()
    change(parts)
    with pytest.raises(UnreadablePlan) as caught:
        viewed(tmp_path, parts)
    assert message in caught.value.message
    assert caught.value.where == where
    assert "\n" not in str(caught.value)


def test_a_body_cannot_hold_itself(tmp_path: Path) -> None:
    parts = small_plan()
    parts["segment"].state["_nodes"].append(parts["segment"])
    with pytest.raises(UnreadablePlan, match="expected an operator, found 'IRSegment'"):
        viewed(tmp_path, parts)


def test_a_record_without_a_state(tmp_path: Path) -> None:
    parts = small_plan()
    parts["data"].state = None
    with pytest.raises(UnreadablePlan) as caught:
        viewed(tmp_path, parts)
    assert str(caught.value) == "device 0, cell: expected a field _id of IRDataOperation"


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({}, "expected a list of ranks of AllReducePrim, found 'NoneType'"),
        ({"ranks": [0, 0]}, r"expected different ranks for AllReducePrim, found \[0, 0\]"),
        ({"ranks": []}, r"expected different ranks for AllReducePrim, found \[\]"),
        ({"ranks": ["0"]}, "ranks of AllReducePrim from 0"),
    ],
)
def test_ranks_of_a_primitive(tmp_path: Path, kwargs: dict[str, Any], message: str) -> None:
    parts = small_plan()
    parts["prim"].state["kwargs"] = kwargs
    _, (_, use, _) = viewed(tmp_path, parts)
    with pytest.raises(UnreadablePlan, match=message):
        use.cell.nodes[1].prims[0].ranks()


@pytest.mark.parametrize("ranks", [(), (0, 0)])
def test_ranks_of_a_reducer(tmp_path: Path, ranks: tuple[int, ...]) -> None:
    """Nobody is in a group of none: by the runtime its device is not in it."""
    parts = small_plan()
    parts["reducer"].state["_device"] = ranks
    with pytest.raises(UnreadablePlan, match="expected different ranks for a weight reducer"):
        viewed(tmp_path, parts)


def test_attributes_of_a_primitive(tmp_path: Path) -> None:
    parts = small_plan()
    parts["prim"].state["kwargs"] = {"dim": -1}
    _, (_, use, _) = viewed(tmp_path, parts)
    prim = use.cell.nodes[1].prims[0]
    assert prim.number("dim") == -1
    with pytest.raises(UnreadablePlan, match="src of AllReducePrim"):
        prim.number("src")


def real(folder: str) -> list[Path]:
    return sorted((PLANS / folder).glob("*.pkl"))


def read_whole(path: Path) -> cells.Plan:
    plan = cells.plan(read_records(str(path)))
    for device in plan.devices:
        assert list(plan.sequence(device))
    gc.collect()
    return plan


@pytest.mark.parametrize(
    ("folder", "least"), [("", 13), pytest.param("bugs", 14, marks=pytest.mark.slow)]
)
def test_real_plans_are_read_whole(folder: str, least: int) -> None:
    found = real(folder)
    if not found:
        pytest.skip(f"the real plans are not here: expected them in {PLANS / folder}")
    assert len(found) >= least
    for path in found:
        plan = read_whole(path)
        # The file's name is no evidence, but these files are known to be named truly.
        sizes = {
            part[:2]: int(part[2:])
            for part in path.stem.split("_")
            if part.startswith(("dp", "pp", "tp", "nm"))
        }
        assert len(plan.devices) == sizes["pp"] * sizes["tp"], path.name
        assert plan.ranks == sizes["dp"] * len(plan.devices), path.name
        assert plan.microbatches in (None, sizes["nm"]), path.name


def test_a_full_size_plan_is_read() -> None:
    found = sorted((PLANS / "large").glob("*dp2_pp2_tp2_nm2*.pkl.gz"))
    if not found:
        pytest.skip(f"the full-size plans are not here: expected them in {PLANS / 'large'}")
    assert read_whole(found[0]).ranks == 8

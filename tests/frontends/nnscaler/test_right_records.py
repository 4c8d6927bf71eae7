"""What right plans record of their values contradicts nothing that they compute."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardproof.engine.lineage.places import has_places
from shardproof.partition.evidence.recorded import metadata
from shardproof.partition.stages.partition import Partition, partition
from tests.frontends.pickles import Obj
from tests.frontends.plan_generator import plans
from tests.frontends.plan_judge import paired
from tests.frontends.plan_records import viewed


def read(kind: str, seed: int, folder: Path) -> Partition:
    made = plans(seed, kind)
    one, many = viewed(made.single, folder, "single"), viewed(made.parallel, folder, "parallel")
    return partition(paired(one, many))


@pytest.mark.parametrize(
    ("kind", "seed"),
    [("small", 410003), ("families", 410004), ("families", 410005), ("wider", 410002)],
    ids=["replicas", "halves of a gradient", "positions apart", "losses in parts"],
)
def test_a_right_plan_contradicts_nothing(kind: str, seed: int, tmp_path: Path) -> None:
    """The loss of a replica that has one microbatch, and values that lie side by side, were taken
    for partial sums."""
    read_plan = read(kind, seed, tmp_path)
    assert all(x.holds for x in read_plan.conclusions)
    assert metadata(read_plan) == []


def test_other_rows_of_what_lies_side_by_side_are_noticed(tmp_path: Path) -> None:
    found = read("families", 410004, tmp_path)
    side = found.parallel
    for v, tensor in enumerate(side.unrolled.tensors):
        lineage, claim = side.lineages[v], tensor.claim
        if lineage is not None and has_places(lineage) and claim is not None and claim.low[1]:
            low = (claim.low[0], 0, *claim.low[2:])
            high = (claim.high[0], claim.high[1] - claim.low[1], *claim.high[2:])
            other = claim._replace(low=low, high=high)
            side.unrolled.tensors[v] = tensor._replace(claim=other)
            break
    (finding,) = metadata(found)
    assert "is recorded as [0:6, 0:2, 0:12]" in finding.message


def named_otherwise(folder: Path, *, exchanged: bool) -> list[str]:
    """Kinds of assumptions about a primitive that is its adapter, in a plan that gathers."""
    made = plans(46, "small")
    gathers: list[Obj] = []
    for sequence in made.parallel.state["execplan"].state["_seq"].values():
        for item in sequence:
            cell = item.state.get("_cell", item)
            for node in cell.state.get("_nodes", [cell]):
                prims = node.state.get("_prims", ())
                gathers += [x for x in prims if len(prims) == 1 and x.name == "AllGatherPrim"]
    one = gathers[0]
    two = next(x for x in gathers if x.state["_inputs"] != one.state["_inputs"])
    if exchanged:
        one.state["_inputs"], two.state["_inputs"] = two.state["_inputs"], one.state["_inputs"]
    single, many = viewed(made.single, folder, "one"), viewed(made.parallel, folder, "many")
    return [x.kind for x in paired(single, many).assumed if x.about == "AllGatherPrim"]


def test_a_primitive_that_names_other_tensors_than_its_adapter_is_assumed(tmp_path: Path) -> None:
    """Generated code has the primitive's names; the adapter's are followed, which is printed."""
    assert named_otherwise(tmp_path, exchanged=False) == []
    assert named_otherwise(tmp_path, exchanged=True) == ["inferred", "inferred"]

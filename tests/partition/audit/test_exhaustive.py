"""Symmetry off: every instance by its own numbers, the same templates, memory that stays flat."""

from __future__ import annotations

import gc
import tracemalloc
from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from shardproof.engine.plan.ir import Plan
from shardproof.partition.audit import exhaustive
from shardproof.partition.audit.exhaustive import SCHEMA, audit
from shardproof.partition.audit.members import Family
from shardproof.partition.stages.partition import Partition, is_same, partition
from tests.faults.plans import apart_llama, llama


def plans() -> dict[str, Plan]:
    return {
        "dp tp": llama(dp=2, tp=2, microbatches=2),
        "sequence parallel": llama(dp=2, tp=2, pp=2, microbatches=3, layers=2, sequence_parallel=True),
        "ranks apart": apart_llama(),
    }  # fmt: skip


@pytest.fixture(scope="module", params=list(plans()))
def result(request: pytest.FixtureRequest) -> Partition:
    return partition(plans()[request.param])


def rows(path: Path) -> list[dict[str, object]]:
    with pa.memory_map(str(path)) as file:
        found: list[dict[str, object]] = pa.ipc.open_file(file).read_all().to_pylist()
    return found


def test_every_member_is_looked_up_once_and_finds_its_stages_templates(
    result: Partition, tmp_path: Path
) -> None:
    found = audit(result, tmp_path / "instances.arrow")
    # Every instance is one that the symmetric run has stated, moved: no template more.
    assert (found.more, found.open) == ((), ())
    instances = rows(tmp_path / "instances.arrow")
    assert found.instances == len(instances)
    members = Counter(i["stage"] for i in instances)
    for number, claim, axes in exhaustive._families(result):
        sizes = [claim.extents[a] for a in axes]
        assert members.pop(number) == int(np.prod(sizes, dtype=int))
        mine = [i["coordinates"] for i in instances if i["stage"] == number]
        assert mine == [list(c) for c in product(*map(range, sizes))]
    assert not members
    assert {i["template"] for i in instances} <= set(range(len(result.templates)))
    stages = result.stages
    assert {stages[i["stage"]].template for i in instances} == {i["template"] for i in instances}  # type: ignore[index, call-overload]


def test_rows_of_numbers_say_what_claims_say(result: Partition) -> None:
    """All members of every family against its first and its last, both ways."""
    compared = different = 0
    for _, claim, axes in exhaustive._families(result):
        family = Family(result.nodes, claim, axes)
        if not family.regular:
            continue
        coordinates = family.coordinates(0, len(family))
        claims = [
            exhaustive._member(claim, dict(zip(axes, place, strict=True)))
            for place in coordinates.tolist()
        ]
        starts, attrs = family.numbers(coordinates)
        for example in {0, len(family) - 1}:
            same = family.translates((starts, attrs), (starts[example], attrs[example]))
            expected = [
                one.attrs == claims[example].attrs and is_same(result.nodes, one, claims[example])
                for one in claims
            ]
            assert same.tolist() == expected
            compared += len(expected)
            different += expected.count(False)
    assert compared > 100
    # The comparison is not empty: some members are other claims than the first (vocabulary ranges).
    assert different > 0 or all(p.axes == () for p in result.plan.programs)


def test_an_instance_that_no_template_states_is_stated_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were the symmetric run to overlook a member that is another claim, the audit would find
    it."""
    result = partition(llama(dp=2, tp=2, microbatches=2))
    every = exhaustive.points
    overlooked = sum(
        len(exhaustive._points(result, claim)) > 1 for _, claim, _ in exhaustive._families(result)
    )
    assert overlooked > 0
    monkeypatch.setattr(exhaustive, "points", lambda *args: every(*args)[:1])
    found = audit(result, tmp_path / "instances.arrow")
    assert 0 < len(found.more) <= overlooked
    templates = {i["template"] for i in rows(tmp_path / "instances.arrow")}
    beside = range(len(result.templates), len(result.templates) + len(found.more))
    assert templates >= set(beside)


def test_irregular_families_are_looked_up_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = partition(llama(dp=2, tp=2, microbatches=2))
    usual = audit(result, tmp_path / "usual.arrow")
    monkeypatch.setattr(Family, "regular", False)
    single = audit(result, tmp_path / "single.arrow")
    assert single.instances == usual.instances
    assert {i["stage"] for i in rows(tmp_path / "single.arrow")} == {
        i["stage"] for i in rows(tmp_path / "usual.arrow")
    }
    assert single.open == usual.open == ()


def peak_bytes(result: Partition, path: Path, batch: int) -> tuple[int, int]:
    """The instances of an audit, and the most memory that it held beyond what was there: of a
    second run, so that nothing is made that stays, and without the collector, whose time would
    decide."""
    audit(result, path, batch)
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        found = audit(result, path, batch)
        return found.instances, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        gc.enable()


def test_memory_does_not_grow_with_instances(tmp_path: Path) -> None:
    small, large = (partition(llama(dp=dp, tp=2, microbatches=4)) for dp in (2, 128))
    few, little = peak_bytes(small, tmp_path / "small.arrow", 256)
    many, more = peak_bytes(large, tmp_path / "large.arrow", 256)
    assert many > 50 * few
    assert more < 1.3 * little
    # Larger batches do take more: it is they that bound it.
    assert peak_bytes(large, tmp_path / "wide.arrow", 1 << 14)[1] > 1.5 * more


@pytest.mark.parametrize("batch", [1, 7, 100, 1 << 14])
def test_batches_are_as_small_as_asked_and_change_nothing(tmp_path: Path, batch: int) -> None:
    result = partition(llama(dp=4, tp=2, microbatches=2))
    told: list[tuple[int, int]] = []
    found = audit(
        result, tmp_path / "b.arrow", batch, lambda done, total: told.append((done, total))
    )
    with pa.memory_map(str(tmp_path / "b.arrow")) as file:
        reader = pa.ipc.open_file(file)
        assert reader.schema == SCHEMA
        sizes = [reader.get_batch(i).num_rows for i in range(reader.num_record_batches)]
    assert sum(sizes) == found.instances
    assert max(sizes) <= batch
    assert told[-1] == (found.instances, found.instances)
    audit(result, tmp_path / "usual.arrow")
    assert rows(tmp_path / "b.arrow") == rows(tmp_path / "usual.arrow")

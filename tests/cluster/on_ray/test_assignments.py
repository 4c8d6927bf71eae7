"""The driver's bookkeeping and its arithmetic over nodes, without a cluster."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardproof.cluster.on_ray import assignments as module
from shardproof.cluster.on_ray.assignments import DEATHS_ALONE, Batch, Work
from shardproof.cluster.on_ray.placement import (
    LEAST_BYTES,
    MIB,
    WORKER_BYTES,
    Node,
    level_for,
    levels,
    places,
    reservation,
    widest,
)
from shardproof.cluster.on_ray.worker import queries_in
from shardproof.solvers import Query
from tests.cluster.work import mixed


def names(work: Work, batch: Batch | None) -> list[str]:
    assert batch is not None
    return [work.key(number) for number in batch.numbers]


def take(work: Work, most: int = 9, shares: int = 1) -> Batch:
    batch = work.take(most, shares)
    assert batch is not None
    return batch


def test_only_what_a_dead_worker_was_at_work_on_is_suspected() -> None:
    work = Work(mixed(8))
    current, waiting = take(work, 3), take(work, 3)
    assert work.lost([current, waiting]) == []
    assert names(work, take(work)) == ["q6", "q7", "q3", "q4", "q5"]
    assert [names(work, take(work)) for _ in range(3)] == [["q0"], ["q1"], ["q2"]]
    assert work.left == 8


def test_a_query_is_given_up_after_deaths_alone_and_the_one_behind_it_is_not() -> None:
    queries = mixed(2)
    work = Work(queries)
    assert work.lost([take(work)]) == []
    for death in range(1, DEATHS_ALONE + 1):
        poisoned = take(work)
        behind = [take(work)] if death == 1 else []
        assert names(work, poisoned) == ["q0"]
        assert work.lost([poisoned, *behind]) == (queries[:1] if death == DEATHS_ALONE else [])
        if death < DEATHS_ALONE:
            order = [take(work), take(work)]
            for batch in sorted(order, key=lambda b: b.numbers, reverse=True):
                work.returned(batch, {})
    assert work.left == 1
    assert names(work, take(work)) == ["q1"]


def test_what_a_worker_had_no_time_for_comes_first_again() -> None:
    work = Work(mixed(6))
    work.returned(take(work, 4), {"q0": None, "q1": None})
    assert work.left == 4
    assert names(work, take(work)) == ["q2", "q3", "q4", "q5"]


def test_batches_are_fair_shares_of_what_is_left() -> None:
    work = Work(mixed(10))
    assert [len(take(work, 256, 4).rows) for _ in range(6)] == [3, 2, 2, 1, 1, 1]
    assert work.take(256, 4) is None


def test_some_are_sent_alone_from_the_beginning() -> None:
    work = Work(mixed(4), alone={"q1", "q2"})
    assert [names(work, take(work)) for _ in range(3)] == [["q0", "q3"], ["q1"], ["q2"]]


def test_a_batch_is_of_one_table_and_a_table_is_done_with_its_last_query(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queries = mixed(7)
    monkeypatch.setattr(module, "TABLE_BYTES", 900)
    work = Work(queries)
    batches = []
    while (batch := work.take(4, 1)) is not None:
        batches.append(batch)
    assert len({batch.table for batch in batches}) > 1
    sent: list[Query] = []
    for batch in batches:
        sent += queries_in(work.table(batch.table), batch.rows)
    assert sent == queries
    first = [batch for batch in batches if batch.table == 0]
    for batch in first:
        assert not work.finished(0)
        work.returned(batch, dict.fromkeys(names(work, batch)))
    assert work.finished(0)
    assert not work.finished(batches[-1].table)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_every_query_ends_once(seed: int) -> None:
    """Two workers that answer in part, answer wholly, or die; nothing is lost or told twice."""
    chance = random.Random(seed)
    work = Work(mixed(40))
    held: list[list[Batch]] = [[], []]
    ended: list[str] = []
    while work.left:
        for batches in held:
            if len(batches) < 2 and (batch := work.take(chance.randint(1, 9), 2)) is not None:
                batches.append(batch)
        batches = chance.choice([b for b in held if b])
        if chance.random() < 0.3:
            ended += [query.key for query in work.lost(batches)]
            batches.clear()
        else:
            batch = batches.pop(0)
            keys = names(work, batch)
            done = keys[: chance.randint(1, len(keys))]
            ended += done
            work.returned(batch, dict.fromkeys(done))
    assert sorted(ended) == sorted(q.key for q in mixed(40))
    assert work.waiting == 0


# -- reservations --------------------------------------------------------------------------------


def test_levels_double_to_the_limit_or_to_the_room() -> None:
    assert levels(2 << 30, 16 << 30, 1) == tuple(x * MIB for x in (256, 512, 1024, 2048))
    assert levels(2 << 30, WORKER_BYTES + 1400 * MIB, 2) == (256 * MIB, 512 * MIB, 700 * MIB)
    assert levels(100 * MIB, 16 << 30, 1) == (100 * MIB,)
    assert levels(2 << 30, WORKER_BYTES + 200 * MIB, 1) == ()
    assert levels(100 * MIB, WORKER_BYTES + 50 * MIB, 1) == ()


def test_without_a_limit_levels_go_up_to_what_the_node_has() -> None:
    node = WORKER_BYTES + 4 * 900 * MIB
    assert levels(None, node, 4) == (256 * MIB, 512 * MIB, 900 * MIB)
    assert reservation(900 * MIB, 4) == node
    assert levels(None, WORKER_BYTES + 200 * MIB, 1) == ()


def test_a_level_holds_a_peak_and_what_is_only_mapped() -> None:
    ladder = levels(1 << 30, 16 << 30, 1)
    assert level_for(ladder, 100) == 256 * MIB
    assert level_for(ladder, 250) == 512 * MIB
    assert level_for(ladder, 10_000) == 1 << 30


@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 16)), max_size=6),
    st.integers(1, 4),
    st.none() | st.integers(1, 20),
)
def test_no_node_is_promised_more_than_it_has(
    shapes: list[tuple[int, int]], gib: int, workers: int | None
) -> None:
    nodes = [Node(f"n{i}", cpus, mem << 30) for i, (cpus, mem) in enumerate(shapes)]
    chosen = places(nodes, gib << 30, workers)
    for node in nodes:
        assert chosen.count(node.name) <= min(node.cpus, node.memory_bytes // (gib << 30))
    room = sum(min(n.cpus, n.memory_bytes // (gib << 30)) for n in nodes)
    assert len(chosen) == (room if workers is None else min(workers, room))


def test_workers_are_spread_over_nodes() -> None:
    nodes = [Node("a", 2, 8 << 30), Node("b", 2, 8 << 30), Node("small", 4, 1 << 30)]
    assert sorted(places(nodes, 1 << 30, 3)) == ["a", "b", "small"]


def test_the_widest_level_costs_no_worker() -> None:
    nodes = [Node(n, 2, (gib << 30) + 2 * WORKER_BYTES) for n, gib in (("a", 4), ("b", 8))]
    ladder = levels(8 << 30, nodes[1].memory_bytes, 1)
    assert widest(ladder, nodes, 1, None) == 2 << 30
    assert widest(ladder, nodes, 2, None) == 1 << 30
    assert widest(ladder, nodes, 1, 1) == 8 << 30
    assert widest((LEAST_BYTES,), nodes, 1, None) == LEAST_BYTES

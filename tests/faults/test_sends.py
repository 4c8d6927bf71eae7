"""Who waits for ever, where sends are buffered and where they wait for their receive.

The order of issue is run by `engine.schedule.liveness` and, for random ranks, by an independent
judge.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from shardproof.checker import check
from shardproof.engine.algebra.affine import ZERO
from shardproof.engine.plan.assumption import texts
from shardproof.engine.plan.ir import Body, Call, Group, Op, Program, Shard, Value
from shardproof.engine.schedule.liveness import deadlock, statement
from shardproof.engine.schedule.messages import match
from shardproof.engine.schedule.unroll import unroll
from tests.checker.conftest import parts_of
from tests.checker.record.test_files import edit_certificate
from tests.faults.communication import exchange
from tests.faults.plans import assert_proved, assert_refuted, llama, verify

BUFFERED = "a send does not wait for its receive"


@pytest.mark.parametrize(
    ("first", "second", "assumes"),
    [("sr", "rs", False), ("psr", "psr", False), ("psr", "sr", False), ("sr", "sr", True)],
)
def test_who_waits_for_ever_under_which_protocol(
    first: str, second: str, assumes: bool, tmp_path: Path
) -> None:
    plan = exchange(first, second=second)
    found = verify(plan, out=tmp_path)
    assert found.verdict == "proved", found.reason
    said = [line for line in found.assumptions if line.startswith(BUFFERED)]
    assert bool(said) == assumes
    if assumes:
        assert (
            "if it waited, ranks 0, 1 would wait for each other, rank 0 in a send to rank 1"
            in said[0]
        )
    assert check(tmp_path).ok


def test_the_assumption_cannot_be_left_out(tmp_path: Path) -> None:
    """A run that does not say it is rejected, and so is one that says it for nothing."""
    for order, message in (("sr", "does not name the assumption"), ("psr", "does not assume")):
        run = tmp_path / order
        plan = exchange(order)
        parts_of(plan).store(run)
        assert check(run).ok
        said = json.loads((run / "certificate.json").read_bytes())["assumptions"]
        other = [line for line in said if not line.startswith(BUFFERED)]
        if other == said:
            other += texts(statement(exchange("sr")))
        edit_certificate(run, assumptions=other)
        found = check(run)
        assert not found.ok
        assert any(message in p.message and BUFFERED in p.message for p in found.problems)


def test_both_receive_first_is_a_deadlock_and_a_post_is_no_receive() -> None:
    assert_refuted(exchange("rs"), kind="deadlock", operator="recv", ranks=(0, 1))
    assert_refuted(exchange("prs"), kind="deadlock", operator="recv", ranks=(0, 1))
    assert_proved(exchange("psr"))


def test_a_receive_that_is_posted_and_never_waited_for_is_refuted() -> None:
    found = assert_refuted(
        exchange("ppsr", second="psr"), kind="unmatched message", operator="post_recv"
    )
    assert "a receive is posted, and nothing waits for it" in found.findings[0].message


def test_pipelines_say_what_they_need() -> None:
    """1F1B sends forward while its neighbour sends back."""
    plan = llama(pp=2, layers=2, microbatches=4)
    found = assert_proved(plan)
    assert [line for line in found.assumptions if line.startswith(BUFFERED)]
    assert not statement(llama(tp=2))
    assert len(statement(plan)) == 1
    # Unrolling has looked at it already.
    assert statement(plan, unroll(plan.programs, 4).waits) == statement(plan)
    assert unroll(llama(tp=2).programs, 1).waits == ()


# -- an independent judge of who waits
# --------------------------------------------------------------


def random_ranks(rng: Random) -> list[list[tuple[str, int]]]:
    """What ranks issue: (post, send or recv, peer), or ("all", 0); every message has a receive."""
    count = rng.choice([2, 2, 3, 4])
    todo: list[list[tuple[str, int]]] = [[] for _ in range(count)]
    for _ in range(rng.randint(1, 6)):
        if rng.random() < 0.15:
            for own in todo:
                own.append(("all", 0))
            continue
        a, b = rng.sample(range(count), 2)
        todo[a].append(("send", b))
        todo[b].append(("recv", a))
    for rank, own in enumerate(todo):
        for _ in range(rng.randint(0, 3)):
            i = rng.randrange(max(1, len(own) - 1))
            if len(own) > 1 and own[i] != own[i + 1] and "all" not in (own[i][0], own[i + 1][0]):
                own[i], own[i + 1] = own[i + 1], own[i]
        for i in range(len(own) - 1, -1, -1):
            if own[i][0] == "recv" and rng.random() < 0.4:
                own.insert(rng.randint(0, i), ("post", own[i][1]))
        assert 0 <= rank < count
    return todo


def posted(done: list[tuple[str, int]], peer: int) -> int:
    """How many receives from a peer were posted by then: a receive takes one that was, if any."""
    count = free = 0
    for what in done:
        if what == ("post", peer):
            count, free = count + 1, free + 1
        elif what == ("recv", peer):
            count, free = (count, free - 1) if free else (count + 1, 0)
    return count


def waits(ranks: list[list[tuple[str, int]]], *, synchronous: bool) -> bool:
    """Whether ranks wait for ever: every rank does one thing at a time, tried again and again."""
    place = [0] * len(ranks)
    begun: dict[tuple[int, int], int] = {}
    moved = True
    while moved:
        moved = False
        heads = [
            own[i] if i < len(own) else ("end", 0) for own, i in zip(ranks, place, strict=True)
        ]
        if all(what == "all" for what, _ in heads):
            place, moved = [i + 1 for i in place], True
            continue
        for rank, (what, peer) in enumerate(heads):
            done = ranks[rank][: place[rank]]
            if what == "post":
                place[rank], moved = place[rank] + 1, True
            elif what == "send":
                nth = done.count(("send", peer)) + 1
                begun[rank, peer] = nth
                reached = ranks[peer][: place[peer]] + [heads[peer]] * (heads[peer][0] == "recv")
                if not synchronous or posted(reached, rank) >= nth:
                    place[rank], moved = place[rank] + 1, True
            elif what == "recv" and begun.get((peer, rank), 0) > done.count(("recv", peer)):
                place[rank], moved = place[rank] + 1, True
            if moved:
                break
    return any(i < len(own) for own, i in zip(ranks, place, strict=True))


def issued(ranks: list[list[tuple[str, int]]]) -> list[Program]:
    everyone = Group(ranks=tuple(range(len(ranks))))
    programs = []
    for rank, own in enumerate(ranks):
        values, ops = [Value((1,))], []
        for what, peer in own:
            if what == "all":
                values.append(Value((1,)))
                ops.append(Op("all_reduce", (0,), (len(values) - 1,), {"group": everyone}))
            elif what == "recv":
                values.append(Value((1,)))
                ops.append(Op("recv", (), (len(values) - 1,), {"peer": peer}))
            else:
                name = "post_recv" if what == "post" else "send"
                ops.append(Op(name, (0,) if what == "send" else (), (), {"peer": peer}))
        shard = Shard("x", (1,), (1,), (ZERO,), trainable=False)
        body = Body("body", tuple(values), tuple(ops), shards=((0, 0),))
        programs.append(Program(f"rank {rank}", (body,), (Call(0),), (shard,), rank))
    return programs


@pytest.mark.parametrize("seed", range(3))
def test_ranks_wait_for_ever_exactly_where_an_independent_run_does(seed: int) -> None:
    rng = Random(seed)
    seen = {(False, False): 0, (False, True): 0, (True, True): 0}
    for _ in range(400):
        ranks = random_ranks(rng)
        programs = issued(ranks)
        matching = match(programs)
        posts = [(r, p) for r, own in enumerate(ranks) for w, p in own if w == "post"]
        if matching.findings:
            assert all(f.kind == "unmatched message" for f in matching.findings)
            assert posts
            continue
        found = tuple(
            deadlock(programs, matching, synchronous=strict) is not None for strict in (False, True)
        )
        assert found == tuple(waits(ranks, synchronous=strict) for strict in (False, True)), ranks
        seen[found] += 1  # type: ignore[index]
    assert all(count >= 15 for count in seen.values()), seen

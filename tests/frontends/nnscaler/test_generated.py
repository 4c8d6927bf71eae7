"""Generated plans, right ones and changed ones: no verdict that the runtime's rules deny."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.frontends.pickles import Obj
from tests.frontends.plan_changes import changed
from tests.frontends.plan_generator import Plans, plans
from tests.frontends.plan_judge import judged

#: A fixed sample; `benchmarks/nnscaler` runs as many as one likes.
SEEDS = range(5)


@pytest.mark.parametrize("alter", [False, True], ids=["right", "changed"])
def test_no_verdict_is_wrong(alter: bool, tmp_path: Path) -> None:
    found: Counter[tuple[bool, str]] = Counter()
    for seed in SEEDS:
        made = plans(seed)
        how = changed(made, random.Random(seed)) if alter else ""
        judgement = judged(made, seed, tmp_path)
        assert not judgement.wrong, (seed, how, judgement)
        assert alter or not judgement.different, (seed, judgement)
        found[bool(judgement.different), judgement.verdict] += 1
    # The sample shows something: most are decided, and both ways where plans are changed.
    assert found[False, "proved"] >= (0 if alter else 3), found
    assert not alter or found[True, "refuted"] >= 2, found


@pytest.mark.parametrize("alter", [False, True], ids=["right", "changed"])
def test_no_verdict_on_a_family_is_wrong(alter: bool, tmp_path: Path) -> None:
    """Attention, mixtures, losses of the registry, choices: see `tests.frontends.plan_families`."""
    found: Counter[tuple[bool, str]] = Counter()
    for seed in (11, 103) if alter else (302, 304):
        made = plans(seed, "families")
        how = changed(made, random.Random(seed)) if alter else ""
        judgement = judged(made, seed, tmp_path)
        assert not judgement.wrong, (seed, how, judgement)
        assert alter or not judgement.different, (seed, judgement)
        found[bool(judgement.different), judgement.verdict] += 1
    assert found[False, "proved"] >= (0 if alter else 2), found
    assert not alter or found[True, "refuted"] >= 1, found


def test_a_difference_that_large_scores_of_attention_hide_is_seen(tmp_path: Path) -> None:
    """Scores that are multiplied by 1.5 instead of 0.5, of which the softmax sees the largest."""
    made = plans(670107, "seldom")
    assert changed(made, random.Random(670107)) == "another number"
    judgement = judged(made, 670107, tmp_path)
    assert (judgement.verdict, judgement.wrong) == ("refuted", False), judgement


def forward_segments(made: Plans) -> list[Obj]:
    sequences = made.parallel.state["execplan"].state["_seq"].values()
    cells = [x.state["_cell"] for sequence in sequences for x in sequence if "_cell" in x.state]
    segments = [x for x in cells if x.name == "IRSegment"]
    return [x for x in segments if any(n.name == "IRDimops" for n in x.state["_nodes"])]


def reads(node: Obj) -> list[int]:
    inputs = [x for x in node.state["_inputs"] if isinstance(x, Obj)]
    return [x.state["_id"] for x in inputs if x.state["_grad"] is not None]


def is_total(node: Obj) -> bool:
    kinds = [prim.name for prim in node.state.get("_prims", ())]
    return kinds in (["AllReduceIdentityPrim"], ["AllReduceAllReducePrim"], ["AllReducePrim"])


def read_twice_and_moved(segment: Obj) -> bool:
    nodes = segment.state["_nodes"]
    twice = {i for n in nodes if n.name == "IRDimops" for i in reads(n) if reads(n).count(i) > 1}
    return any(i in twice for n in nodes if n.name == "IRAdapter" for i in reads(n))


def partial_and_total(segment: Obj) -> bool:
    nodes = segment.state["_nodes"]
    summed = {i for n in nodes if is_total(n) for i in reads(n)}
    return any(sum(i in reads(n) for n in nodes) > 1 for i in summed)


def given_and_used(segment: Obj) -> bool:
    given = {x.state["_id"] for x in segment.state["_outputs"]}
    return any(i in given for n in segment.state["_nodes"] for i in reads(n))


@pytest.mark.parametrize("case", [read_twice_and_moved, partial_and_total, given_and_used])
def test_what_arrives_at_one_value_is_added(case: Callable[[Obj], bool], tmp_path: Path) -> None:
    """Where a gradient arrives more than once, or is more than one thing under one name."""
    found = 0
    for seed in range(2000):
        made = plans(seed)
        if made.replicas * made.microbatches > 1 or not any(map(case, forward_segments(made))):
            continue
        judgement = judged(made, seed, tmp_path)
        assert not judgement.different, (seed, judgement)
        assert judgement.verdict != "refuted", (seed, judgement)
        found += judgement.verdict == "proved"
        if found == 2:
            return
    raise AssertionError(found)


@pytest.mark.parametrize(("alter", "verdict"), [(False, "proved"), (True, "refuted")])
def test_no_verdict_on_a_grid_is_wrong(alter: bool, verdict: str, tmp_path: Path) -> None:
    """Operators that are cut, copied and summed up at once: see `tests.frontends.plan_grids`."""
    seed = 700004
    made = plans(seed, "grids")
    how = changed(made, random.Random(seed)) if alter else ""
    judgement = judged(made, seed, tmp_path)
    assert not judgement.wrong, (how, judgement)
    assert judgement.verdict == verdict, (how, judgement)


def test_a_convolution_whose_gradient_is_cut_at_an_odd_place_is_proved(tmp_path: Path) -> None:
    """A rank has part of a sum in every other position, of which a `pad` leaves three of four."""
    made = plans(700011, "grids")
    judgement = judged(made, 700011, tmp_path)
    assert (judgement.different, judgement.verdict) == ("", "proved"), judgement


@pytest.mark.parametrize(
    ("seed", "verdict"),
    [
        (1000, "proved"),
        (1004, "proved"),
        # Of a weight whose rows are heads one part ends within a head.
        (1036, "proved"),
        (1001, "refuted"),
        (1003, "refuted"),
    ],
)
def test_no_verdict_on_operators_in_parts_is_wrong(seed: int, verdict: str, tmp_path: Path) -> None:
    """Each device runs an operator part by part: see `tests.frontends.plan_chunks`."""
    made = plans(seed, "chunks")
    how = changed(made, random.Random(seed)) if seed % 2 else ""
    nodes = [node for segment in forward_segments(made) for node in segment.state["_nodes"]]
    joins = [node for node in nodes if node.state.get("signature", "").endswith((".cat", ".accum"))]
    assert joins
    judgement = judged(made, seed, tmp_path)
    assert not judgement.wrong, (how, judgement)
    assert judgement.verdict == verdict, (how, judgement)


def test_a_claim_over_hundreds_of_thousands_of_products_is_stated(tmp_path: Path) -> None:
    """A reduce-scatter over four ranks of a sum of sums, each axis of which is cut in four."""
    judgement = judged(plans(312023, "families"), 312023, tmp_path)
    assert (judgement.different, judgement.verdict) == ("", "proved"), judgement

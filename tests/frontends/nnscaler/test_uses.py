"""Uses of segments: backward ones that name other gradients than those of their forward use's
tensors, and segments that return what they are given; beside the runtime."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from shardproof.frontends.errors import UnreadablePlan
from tests.frontends.plan_families import Families
from tests.frontends.plan_generator import Plans, laid_out, placed
from tests.frontends.plan_judge import judged
from tests.frontends.plan_structure import staged
from tests.frontends.plan_values import Model


def model(stages: int) -> Model:
    """A value of stage 0 that the last stage reads again."""
    made = Families(random.Random(1), 2)
    first = x = made.linear(made.batch("data", (made.b, made.s, made.h), "float32"), made.h)
    for made.stage in range(1, stages):
        x = made.same("torch.sigmoid", made.linear(x, made.h))
    made.op("torch.sum", "a+ b+ c+ -> 1", made.same("torch.mul", x, first), shapes=(1,))
    made.operations[-1].output.loss = True
    return Model(made.batches, made.operations, made.weights, stages)


def uses(made: Plans, device: int, *, backward: bool) -> list[list[object]]:
    """What the uses of the segments of a device read."""
    found = []
    for item in made.parallel.state["execplan"].state["_seq"][device]:
        nodes = item.state.get("_cell", item).state.get("_nodes", ())
        if any(node.name == "IRBpOperation" for node in nodes) == backward and nodes:
            found.append(item.state["_inputs"])
    return found


@pytest.mark.parametrize("exchanged", [False, True])
def test_a_backward_use_that_is_given_the_loss_of_another_microbatch(
    exchanged: bool, tmp_path: Path
) -> None:
    """The numbers are the same, but autograd starts nowhere."""
    made = placed(random.Random(2), model(2), [1, 1], 2, 1)
    one, two = uses(made, 1, backward=True)
    if exchanged:
        one[:], two[:] = list(two), list(one)
    judgement = judged(made, 1, tmp_path)
    assert bool(judgement.different) == exchanged
    assert judgement.verdict == ("refuted" if exchanged else "proved"), judgement.reason


@pytest.mark.parametrize("other", ["exchanged", "none"])
def test_a_backward_use_without_its_forward_one_has_no_meaning(other: str, tmp_path: Path) -> None:
    """Generated code names the tensors of the mirror."""
    made = placed(random.Random(2), model(2), [1, 1], 2, 1)
    backward = [
        item
        for item in made.parallel.state["execplan"].state["_seq"][1]
        if any(
            x.name == "IRBpOperation" for x in item.state.get("_cell", item).state.get("_nodes", ())
        )
    ]
    one, two = backward
    if other == "none":
        forward = one.state["_mirror"]
        one.state["_mirror"] = forward.state["_mirror"] = None
    else:
        one.state["_mirror"], two.state["_mirror"] = two.state["_mirror"], one.state["_mirror"]
    if other == "exchanged":
        with pytest.raises(UnreadablePlan, match="expected its mirror"):
            judged(made, 1, tmp_path)
    else:
        judgement = judged(made, 1, tmp_path)
        assert "has no forward" in judgement.different
        assert judgement.verdict == "refuted", judgement.reason


@pytest.mark.parametrize("identities", [True, False])
def test_a_stage_that_returns_what_it_is_given_on_the_device_that_made_it(
    identities: bool, tmp_path: Path
) -> None:
    """Its variable is detached then, and stage 0 gets no gradient through it."""
    of = model(3)
    if identities:
        staged(of)
    judgement = judged(laid_out(random.Random(2), of, [(0,)] * 3, 1, 1, 1), 1, tmp_path)
    assert bool(judgement.different) != identities
    assert judgement.verdict == ("proved" if identities else "refuted"), judgement.reason


def test_a_stage_may_return_what_it_is_given_from_elsewhere(tmp_path: Path) -> None:
    judgement = judged(placed(random.Random(2), model(3), [1, 1, 1], 1, 1), 1, tmp_path)
    assert not judgement.different
    assert judgement.verdict == "proved", judgement.reason

"""Records as other versions of nnScaler write them: what has moved is recognised by its fields.

Of main (commits 1deb17c, 7232e43, 01e1c94, 9c71da5): a plan returns a list for each microbatch
where the model returns more than its loss (``execplan.py``), objects have a value and a flag
(``cten.py``), tensors say whether they are persistent, adapters have a group of recomputation
(``adapter.py``), and graphs have anchors (``graph/function/anchor.py``).  Of the artifact: none.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardproof.frontends.errors import UnreadablePlan
from tests.faults.plans import verify
from tests.frontends.pickles import Obj, cell
from tests.frontends.plan_families import Families
from tests.frontends.plan_generator import Plans, placed
from tests.frontends.plan_judge import paired
from tests.frontends.plan_records import viewed
from tests.frontends.plan_values import Model


def made() -> Plans:
    """Two microbatches of a small model on two stages."""
    families = Families(random.Random(1), 2)
    x = families.linear(families.batch("data", (2, 2, families.h), "float32"), families.h)
    families.stage = 1
    families.op("torch.sum", "a+ b+ c+ -> 1", families.linear(x, families.h), shapes=(1,))
    families.operations[-1].output.loss = True
    model = Model(families.batches, families.operations, families.weights, 2)
    return placed(random.Random(2), model, [1, 2], 2, 1)


def every(value: Any, seen: set[int] | None = None) -> list[Obj]:
    """All records that can be reached from one."""
    seen = set() if seen is None else seen
    if isinstance(value, (list, tuple)):
        return [x for item in value for x in every(item, seen)]
    if isinstance(value, dict):
        return every(list(value.values()), seen)
    if not isinstance(value, Obj) or id(value) in seen:
        return []
    seen.add(id(value))
    return [value, *every(value.state, seen)]


def more_is_returned(root: Obj) -> None:
    execution = root.state["execplan"]
    losses = execution.state["_outputs"]
    execution.state["_outputs"] = [[{"loss": x}, None, 0.5] for x in losses]


def fields_of_main(root: Obj) -> None:
    for x in every(root):
        if x.name in ("IRFullTensor", "IRSubTensor"):
            x.state |= {"_persistent": False, "_is_constant": True, "_value": None, "_cell": None}
        elif x.name == "IRObject":
            x.state |= {"_value": 3, "_is_constant": True, "_cell": None}
        elif x.name == "IRAdapter":
            x.state |= {"_recompute": None, "_differentiable": True, "custom": True}


def anchors(root: Obj) -> None:
    for x in every(root):
        if x.name == "IRSegment":
            mark = Obj("nnscaler.graph.function.anchor", "IRGraphAnchor", cell(
                999, name="anchor", signature="nnscaler.runtime.function.anchor",
            ))  # fmt: skip
            x.state["_nodes"] = [mark, *x.state["_nodes"]]


def no_annotations(root: Obj) -> None:
    for x in every(root):
        x.state.pop("_annos_candidates", None)


@pytest.mark.parametrize(
    "alter", [lambda root: None, more_is_returned, fields_of_main, anchors, no_annotations]
)
def test_a_plan_of_another_version_says_the_same(
    alter: Callable[[Obj], None], tmp_path: Path
) -> None:
    plans = made()
    alter(plans.single)
    alter(plans.parallel)
    one, many = viewed(plans.single, tmp_path, "one"), viewed(plans.parallel, tmp_path, "many")
    found = verify(paired(one, many))
    assert found.verdict == "proved", found.reason
    losses = [c for c in found.conclusions if c.kind == "loss"]
    assert len(losses) == 3


@pytest.mark.parametrize(
    ("module", "kind", "name"),
    [("cube.graph.segment", "IRSegment", "cube"), ("nnscaler.ir.later", "IRThing", "IRThing")],
)
def test_a_version_that_is_not_known_is_named(
    module: str, kind: str, name: str, tmp_path: Path
) -> None:
    plans = made()
    segment = next(x for x in every(plans.parallel) if x.name == "IRSegment")
    segment.module, segment.name = module, kind
    with pytest.raises(UnreadablePlan) as refused:
        paired(viewed(plans.single, tmp_path, "one"), viewed(plans.parallel, tmp_path, "many"))
    assert name in str(refused.value)

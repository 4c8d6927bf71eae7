"""Norms of images, as nnScaler wraps their modules, in plans and by themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardproof.frontends.nnscaler import norms
from shardproof.frontends.nnscaler.operators import declared
from tests.frontends.nnscaler.test_functions import op, tensor
from tests.frontends.nnscaler.test_registry import W
from tests.frontends.nnscaler.test_wider import plan
from tests.frontends.plan_judge import judged
from tests.frontends.plan_values import Value
from tests.frontends.plan_wider import Wider

INSTANCE, BATCH = f"{W}.wrap_instancenorm2d_func", f"{W}.wrap_batchnorm2d_func"


class Images(Wider):
    """A model that reads its residual stream as images, one channel for each row."""

    def normed(self, x: Value) -> Any:
        """An image, normed."""
        b, s, h = x.shape
        image = self.op("torch.Tensor.view", "b s h -> b s h^ 1", x, shapes=(b, s, 2, h // 2),
                        size=(b, s, 2, h // 2), local="size")  # fmt: skip
        normed = self.op(
            INSTANCE, "n c^ h^ w^, c^, c^, ?, ? -> n c^ h^ w^", image, self.weight(s),
            self.weight(s), None, None, shapes=image.shape, momentum=0.1, eps=0.5, training=True,
            track_running_stats=False, num_features=s, affine=True,
        )  # fmt: skip
        return self.op("torch.Tensor.view", "b s a^ c -> b s c", normed, shapes=(b, s, h),
                       size=(b, s, h), local="size")  # fmt: skip


@pytest.mark.parametrize("seed", [1, 2])
def test_a_norm_of_images_is_cut_along_the_batch(seed: int, tmp_path: Path) -> None:
    for number, verdict in ((0.5, "proved"), (0.25, "refuted")):
        plans = plan("normed", seed, Images)
        normed = next(x for x in plans.operators if x[0].state["signature"] == INSTANCE)
        normed[0].state["_kwargs"] = {**normed[0].state["_kwargs"], "eps": number}
        found = judged(plans, seed, tmp_path)
        assert bool(found.different) is (verdict == "refuted"), found
        assert found.verdict == verdict, found


X, C = tensor(2, 3, 4, 4), tensor(3)
REFUSED = [
    (op(BATCH, X, C, C, C, C, None, training=True), "wrap_batchnorm2d_func with training True"),
    (op(BATCH, C, C, C, C, C, None, training=False), "input of 1 dimensions"),
    (op(INSTANCE, C, None, None, None, None), "input of 1 dimensions"),
    (op(INSTANCE, X, C, C, None, None, affine=True, num_features=4), "num_features 4"),
    (op(INSTANCE, X, None, None, None, None, training=2), "training 2"),
    (op(INSTANCE, tensor(2, 3, 1, 1), None, None, None, None), "one position for each channel"),
    (op(INSTANCE, X, C, C, None, None, training=False, track_running_stats=True), "running_mean"),
]


@pytest.mark.parametrize(("call", "says"), REFUSED)
def test_what_is_not_understood_is_named(call: Any, says: str) -> None:
    assert says in declared(call).name


def test_what_it_writes_is_an_assumption() -> None:
    for tracked, assumed in ((True, (norms.RUNNING,)), (False, ())):
        call = op(INSTANCE, X, C, C, C, C, track_running_stats=tracked)
        assert declared(call).assumed == assumed

"""Calls of the registry's functions that are seldom written, beside PyTorch: dimensions counted from
behind, none or an empty list of them, types of results, truth values, shapes that are repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from shardproof.frontends.untrusted.inert import DType
from tests.frontends.nnscaler.test_registry import (
    FLOAT,
    Calls,
    F,
    R,
    X,
    agree,
    at,
    ids,
    mask,
    named,
    rand,
    some,
)
from tests.frontends.nnscaler.test_wider import plan
from tests.frontends.plan_judge import judged
from tests.frontends.plan_seldom import Seldom

BOOLS = (lambda: mask(3, 4), lambda: mask(3, 4))
SEE = (some(2, 4, 3), some(2, 5, 3), some(2, 5, 2))
SELDOM: Calls = {
    **named("add", [at(*BOOLS), at(*BOOLS, alpha=1), at(BOOLS[0], X), at(BOOLS[0], 2)]),
    **named("sum mean amax", [at(X, -1), at(X, keepdim=False, dim=[-1, 0]), at(X, ()),
                               at(X, None, True), at(X, dim=(), keepdim=True)]),
    **named("sum", [at(BOOLS[0], dtype=DType("torch", "int64")), at(X, dim=-1, dtype=FLOAT)]),
    **named("mean", [at(X, 1, dtype=FLOAT)]),
    **named("norm", [at(X, dim=(), p=2), at(X, keepdim=True), at(X, 2.0, -1)]),
    **named("any", [at(BOOLS[0], keepdim=True, dim=-1), at(BOOLS[0], None, True)]),
    **named("softmax log_softmax", [at(X, -1, FLOAT)]),
    f"{F}.softmax": [at(X, dtype=FLOAT, dim=0)],
    f"{F}.log_softmax": [at(X, dim=-1, dtype=FLOAT)],
    f"{F}.gelu": [at(lambda: 4 * rand(3, 4) - 2, approximate="tanh")],
    **named("tril triu", [at(some(4, 3), k) for k in range(-4, 5)]),
    **named("triu", [at(some(2, 3, 5)), at(lambda: ids(9, 3, 3), diagonal=-1)]),
    **named("clamp", [at(X, float("-inf"), 0.5), at(X, 0.75, float("inf")),
                       at(X, min=float("-inf")), at(lambda: ids(9, 5), 2.5, 5)]),
    "torch.where": [at(BOOLS[0], 2.0, 3), at(lambda: mask(3, 1), some(4), 1.0),
                    at(lambda: mask(2, 3, 4), 0.5, some(3, 1)),
                    at(lambda: mask(3, 1), some(4), some(2, 1, 1))],
    "torch.full_like": [at(BOOLS[0], True), at(X, fill_value=-1.5), at(lambda: ids(9, 3), 2.0)],
    f"{R}.full": [at((2, 3), True), at(size=(2,), fill_value=1, dtype=DType("torch", "int64"))],
    f"{R}.tensor": [at(True), at([[1], [1]], FLOAT)],
    f"{R}.accum": [at(X), at(X, X, X, X)],
    "torch.Tensor.type": [at(lambda: ids(9, 3), "torch.FloatTensor"), at(X, "torch.DoubleTensor")],
    f"{F}.scaled_dot_product_attention": [
        at(*SEE, lambda: torch.eye(4, 5).bool() | mask(4, 5)),
        at(*SEE, attn_mask=torch.tensor([True, False, True, True, False]).expand(2, 1, 5)),
        at(*SEE, scale=0.25, attn_mask=torch.eye(4, 5).bool() | (torch.arange(5) == 0)),
    ],
    f"{F}.pad": [at(lambda: ids(9, 3, 4), (1, 1), value=2), at(BOOLS[0], (1, 0))],
    **{f"{place}.conv1d": [
        at(some(2, 3, 8), some(4, 3, 3), padding="same"), at(some(2, 3, 8), some(4, 3, 3), padding="valid"),
        at(some(1, 2, 5), some(2, 1, 2), None, 1, "same", 3, 2),
    ] for place in ("torch", F)},
    "torch.conv2d": [at(some(1, 2, 4, 5), some(3, 2, 3, 2), padding="same", dilation=(1, 2))],
}  # fmt: skip


@pytest.mark.parametrize("signature", SELDOM)
def test_a_seldom_call_is_pytorchs(signature: str) -> None:
    torch.manual_seed(len(signature))
    agree(signature, SELDOM[signature])


#: Blocks of such calls, and what one of them has instead on the ranks.
BLOCKS: dict[str, tuple[str, dict[str, Any]]] = {
    "bent": ("gelu", {"approximate": "none"}),
    "true_mask": ("tril", {"diagonal": -1}),
    "diagonals": ("tril", {"diagonal": 0}),
    "typed": ("softmax", {"dim": 1}),
    "same_size": ("conv1d", {"dilation": 2}),
    "truths": ("add", {}),
    "kept_sizes": ("clamp", {"max": 0.25}),
}


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("right", [True, False])
def test_a_block_of_seldom_calls_beside_the_runtime(
    block: str, right: bool, tmp_path: Path
) -> None:
    made = plan(block, 5, Seldom)
    if not right:
        name, other = BLOCKS[block]
        ends = [ops[0].state["signature"].rsplit(".", 1)[-1] for ops in made.operators]
        for op in made.operators[ends.index(name)]:
            op.state["_kwargs"] = {**op.state["_kwargs"], **other}
            if block == "truths":
                op.state |= {"signature": "torch.bitwise_and", "_kwargs": {}}
    judgement = judged(made, 1, tmp_path)
    assert bool(judgement.different) != right
    assert judgement.verdict == ("proved" if right else "refuted"), judgement.reason

"""Labels of which some are constants: the loss and its gradient, against PyTorch."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from shardproof.engine.algebra.affine import ZERO
from shardproof.engine.errors import Unsupported
from shardproof.engine.plan.ir import Shard
from shardproof.frontends.aten import Const, Lowering, rule_of
from shardproof.frontends.aten.joined import Joined, joined
from tests.frontends.aten.evaluated import evaluated


def rule(lo: Lowering, name: str, *args: Any) -> Any:
    found = rule_of(name)
    assert found is not None
    return found(lo, *args)


@pytest.mark.parametrize("kind", ["", "batch"])
@pytest.mark.parametrize("seed", range(20))
def test_loss_and_gradient_of_shifted_labels(seed: int, kind: str) -> None:
    """Labels are padded by the ignored one and shifted, as language models do it; those of the
    batch are one input, and a mask."""
    random = np.random.default_rng(seed)
    b, s, v = (int(n) + 1 for n in random.integers(1, 4, 3))
    reduction = int(random.integers(1, 3))
    ids = random.integers(0, v, (b, s))
    ids[0, 1] = -100 if random.integers(2) else ids[0, 1]
    logits = random.normal(size=(b * s, v))
    lo = Lowering()
    zero = (ZERO, ZERO)
    real = lo.hold(Shard("ids", (b, s), (b, s), zero, "int64", False, kind=kind))
    x = lo.hold(Shard("logits", (b * s, v), (b * s, v), zero, "float64"))
    padded = rule(lo, "aten.constant_pad_nd.default", real, [0, 1], -100)
    assert isinstance(padded, Joined)
    labels = lo.reshape(lo.slice(padded, 1, 1, s), (b * s,))
    logs = rule(lo, "aten._log_softmax.default", x, 1)
    loss, count = rule(lo, "aten.nll_loss_forward.default", logs, labels, None, reduction, -100)
    one = Const(Fraction(1), (), "float64")
    picked = rule(
        lo, "aten.nll_loss_backward.default", one, logs, labels, None, reduction, -100, count
    )
    gradient = rule(lo, "aten._log_softmax_backward_data.default", picked, logs, 1)
    loss, gradient = lo.real(loss), lo.real(gradient)
    values: dict[int, Any] = {real.number: ids.astype(float), x.number: logits}
    for number, shard in lo.bound:
        name = lo.shards[shard].name
        if name in lo.derived:
            moved = lo.derived[name]
            values[number] = np.roll(ids, -moved.by, moved.dim).astype(float)
    assert bool(lo.derived) == (kind == "batch")
    values = evaluated(lo, values)
    given = torch.tensor(logits, requires_grad=True)
    target = F.pad(torch.tensor(ids), (0, 1), value=-100)[:, 1:].reshape(-1)
    expected = F.cross_entropy(given, target, reduction=("", "mean", "sum")[reduction])
    expected.backward()
    np.testing.assert_allclose(values[loss.number], expected.item(), rtol=1e-9)
    np.testing.assert_allclose(values[gradient.number], given.grad.numpy(), atol=1e-9)


def test_parts_are_cut_and_joined() -> None:
    lo = Lowering()
    parts = [Const(Fraction(n), (2, n + 1), "int64") for n in range(3)]
    held = joined(lo, parts, 1)
    assert held.shape == (2, 6)
    assert held.slice(1, 1, 2) == parts[1]
    assert held.slice(1, 0, 2).parts == (parts[0], Const(Fraction(1), (2, 1), "int64"))
    assert held.slice(0, 1, 1).shape == (1, 6)
    with pytest.raises(Unsupported, match="after a view"):
        held.reshape((12,)).slice(0, 0, 3)

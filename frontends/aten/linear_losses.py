"""`torch.nn.functional.linear_cross_entropy` in chunks: an operator has the loss and its gradients.

Source: ``torch/nn/modules/linear_cross_entropy.py`` of PyTorch 2.13: the forward returns the loss
and, for a loss of one number, the gradients of input, weight and bias for an incoming gradient of
1, by which the backward multiplies them; those that nobody needs have no entries.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten.losses import MEAN, NONE, SUM, _nll_loss, _nll_loss_backward
from shardproof.frontends.aten.lowering import Const, Lowered, Lowering
from shardproof.frontends.aten.rows import _log_softmax, _log_softmax_backward
from shardproof.frontends.aten.rules import lowers

REDUCTIONS = {"mean": MEAN, "sum": SUM}


def _logarithms(lo: Lowering, x: Lowered, weight: Lowered, bias: Lowered | None) -> Any:
    if len(x.shape) != 2 or len(weight.shape) != 2:
        raise Unsupported("a linear cross entropy of other than rows of features")
    logits = lo.emit("matmul", lo.real(x), lo.real(lo.transpose(weight, 0, 1)))
    if bias is not None:
        logits = lo.add(logits, lo.expand(bias, logits.shape))
    return _log_softmax(lo, logits, 1)


@lowers("torch_nn._linear_cross_entropy_batch_chunked.default")
def _chunked(
    lo: Lowering,
    x: Lowered,
    weight: Lowered,
    target: Lowered,
    bias: Lowered | None,
    class_weights: Lowered | None,
    reduction: str,
    ignored: int,
    smoothing: float,
    chunk: int,
    policy: str,
    dtype: str,
    retained: bool,
    of_input: bool,
    of_weight: bool,
    of_bias: bool,
) -> Any:
    if reduction not in REDUCTIONS or smoothing:
        raise Unsupported(f"a linear cross entropy with {reduction}, or with smoothed labels")
    kind = REDUCTIONS[reduction]
    logs = _logarithms(lo, x, weight, bias)
    loss, count = _nll_loss(lo, logs, target, class_weights, kind, ignored)
    if not (of_input or of_weight or of_bias):
        return loss, None, None, None
    one = Const(Fraction(1), (), logs.dtype)
    picked = _nll_loss_backward(lo, one, logs, target, class_weights, kind, ignored, count)
    gradient = lo.real(_log_softmax_backward(lo, picked, logs, 1))
    turned = lo.real(lo.transpose(gradient, 0, 1))
    return (
        loss,
        lo.emit("matmul", gradient, lo.real(weight)) if of_input else None,
        lo.emit("matmul", turned, lo.real(x)) if of_weight else None,
        lo.sum(gradient, (0,)) if of_bias else None,
    )


@lowers("torch_nn._linear_cross_entropy_batch_chunked_no_reduction.default")
def _each(
    lo: Lowering,
    x: Lowered,
    weight: Lowered,
    target: Lowered,
    bias: Lowered | None,
    class_weights: Lowered | None,
    ignored: int,
    chunk: int,
    policy: str,
    dtype: str,
) -> Any:
    """The losses of the rows; their gradients are operators of their own."""
    logs = _logarithms(lo, x, weight, bias)
    return _nll_loss(lo, logs, target, class_weights, NONE, ignored)[0]

"""Losses of the registry, each as several declared operators."""

from __future__ import annotations

from typing import Final

from shardproof.frontends.nnscaler.calls import (
    Arguments,
    Composed,
    Refused,
    operand,
    shown,
    unless,
)
from shardproof.frontends.nnscaler.chain import Chain
from shardproof.frontends.nnscaler.lowerings import whole

#: What is assumed where a loss leaves out labels of one value.
IGNORED: Final = "no label is {value}, which {name} would leave out (ignore_index)"


def cross_entropy(arguments: Arguments) -> Composed:
    """The cross-entropy of logits and class ids, without label smoothing.

    Example: logits [2, 4] and ids [2] are ``cross_entropy`` and ``mean``, with "no label is -100,
    which cross_entropy would leave out (ignore_index)"; ``label_smoothing=0.1`` is refused.
    """
    unless(arguments, "label_smoothing", 0, 0.0)
    return _of_classes(arguments, "cross_entropy")


def nll_loss(arguments: Arguments) -> Composed:
    """Minus the log-probability at every row's class id.

    Example: log-probabilities [2, 4] and ids [2] are ``pick``, ``mul`` by -1 and ``mean``.
    """
    return _of_classes(arguments, "nll_loss")


def _of_classes(arguments: Arguments, name: str) -> Composed:
    """A loss over the dimension of classes: the second one, or the only one."""
    for other in ("weight", "size_average", "reduce"):
        unless(arguments, other, None)
    x, labels = operand(arguments, "input"), operand(arguments, "target")
    rank = len(x.shape)
    at = min(1, rank - 1)
    rows = x.shape[:at] + x.shape[at + 1 :] or (1,)
    if not rank or labels.shape != rows or not labels.dtype.startswith("int"):
        raise Refused(f"classes of {list(x.shape)} and labels {list(labels.shape)}")
    ignored = whole(arguments, "ignore_index", -100)
    chain = Chain(x, labels)
    scores = 0
    if rank > 2:
        dims = (0, *range(2, rank), 1)
        scores = chain("permute", 0, dims=dims)
    elif rank == 1:
        scores = chain("view", 0, size=(1, x.shape[0]))
    if name == "cross_entropy":
        each = chain("cross_entropy", scores, 1)
    else:
        each = chain("mul", chain("pick", scores, 1), other=-1)
    _reduced(chain, arguments, each)
    return chain.done(IGNORED.format(value=ignored, name=name))


def l1_loss(arguments: Arguments) -> Composed:
    """The mean or sum of the absolute differences.

    Example: two tensors [2, 4] are ``sub``, ``abs`` and ``mean``, of shape (1,) as nnScaler has it.
    """
    chain, gap = _gap(arguments)
    _reduced(chain, arguments, chain("abs", gap))
    return chain.done()


def mse_loss(arguments: Arguments) -> Composed:
    """The mean or sum of the squared differences.

    Example: with ``reduction="sum"``: ``sub``, ``mul`` of that with itself, ``sum``.
    """
    chain, gap = _gap(arguments)
    _reduced(chain, arguments, chain("mul", gap, gap))
    return chain.done()


def _gap(arguments: Arguments) -> tuple[Chain, int]:
    for other in ("size_average", "reduce", "weight"):
        unless(arguments, other, None)
    x, y = operand(arguments, "input"), operand(arguments, "target")
    if x.shape != y.shape:
        raise Refused(f"operands of shapes {list(x.shape)} and {list(y.shape)}")
    chain = Chain(x, y)
    return chain, chain("sub", 0, 1)


def _reduced(chain: Chain, arguments: Arguments, each: int) -> None:
    reduction = arguments.get("reduction", "mean")
    if reduction in ("mean", "sum"):
        chain(str(reduction), each)
    elif reduction != "none":
        raise Refused(f"reduction {shown(reduction)}")

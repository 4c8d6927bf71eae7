"""Functions of the registry that are several declared operators: losses, comparisons, choices.

All of them are exact over the reals; where a derivative has a jump (a comparison at equality, a
clamp at its bounds) it is that of `step`, which is 0 at 0.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from shardproof.frontends.nnscaler.calls import Arguments, Composed, Refused, operand, shown, unless
from shardproof.frontends.nnscaler.chain import Chain, exact_number
from shardproof.frontends.nnscaler.lowerings import dim_of, real, whole
from shardproof.frontends.nnscaler.records import Tensor

#: What is assumed where a loss leaves out labels of one value.
IGNORED: Final = "no label is {value}, which {name} would leave out (ignore_index)"


# -- losses ----------------------------------------------------------------------------------------


def cross_entropy(arguments: Arguments) -> Composed:
    unless(arguments, "label_smoothing", 0, 0.0)
    return _of_classes(arguments, "cross_entropy")


def nll_loss(arguments: Arguments) -> Composed:
    return _of_classes(arguments, "nll_loss")


def _of_classes(arguments: Arguments, name: str) -> Composed:
    """A loss over the last dimension of [positions, classes] with a label for each position."""
    for other in ("weight", "size_average", "reduce"):
        unless(arguments, other, None)
    x, labels = operand(arguments, "input"), operand(arguments, "target")
    if len(x.shape) != 2 or labels.shape != x.shape[:1] or not labels.dtype.startswith("int"):
        raise Refused(f"classes of {list(x.shape)} and labels {list(labels.shape)}")
    ignored = whole(arguments, "ignore_index", -100)
    chain = Chain(x, labels)
    if name == "cross_entropy":
        each = chain("cross_entropy", 0, 1)
    else:
        each = chain("mul", chain("pick", 0, 1), other=-1)
    _reduced(chain, arguments, each)
    return chain.done(IGNORED.format(value=ignored, name=name))


def l1_loss(arguments: Arguments) -> Composed:
    chain, gap = _gap(arguments)
    _reduced(chain, arguments, chain("abs", gap))
    return chain.done()


def mse_loss(arguments: Arguments) -> Composed:
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


# -- comparisons and choices -----------------------------------------------------------------------


def _pair(arguments: Arguments) -> tuple[Chain, int]:
    """The difference of two operands, of which one may be a number."""
    unless(arguments, "out", None)
    x, y = arguments.get("input"), arguments.get("other")
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        chain = Chain(x, y)
        return chain, chain("sub", 0, 1)
    if isinstance(x, Tensor):
        chain = Chain(x)
        return chain, chain("sub", 0, other=exact_number(real(arguments, "other", 0)))
    raise Refused(f"input {shown(x)}")


def greater(arguments: Arguments) -> Composed:
    chain, gap = _pair(arguments)
    chain("step", gap)
    return chain.done()


def less(arguments: Arguments) -> Composed:
    chain, gap = _pair(arguments)
    chain("step", chain("mul", gap, other=-1))
    return chain.done()


def at_least(arguments: Arguments) -> Composed:
    chain, gap = _pair(arguments)
    chain("affine", chain("step", chain("mul", gap, other=-1)), factor=-1, shift=1)
    return chain.done()


def at_most(arguments: Arguments) -> Composed:
    chain, gap = _pair(arguments)
    chain("affine", chain("step", gap), factor=-1, shift=1)
    return chain.done()


def unequal(arguments: Arguments) -> Composed:
    chain, gap = _pair(arguments)
    chain("add_n", chain("step", gap), chain("step", chain("mul", gap, other=-1)))
    return chain.done()


def equal(arguments: Arguments) -> Composed:
    chain, gap = _pair(arguments)
    other = chain("add_n", chain("step", gap), chain("step", chain("mul", gap, other=-1)))
    chain("affine", other, factor=-1, shift=1)
    return chain.done()


def sign(arguments: Arguments) -> Composed:
    unless(arguments, "out", None)
    chain = Chain(operand(arguments, "input"))
    chain("sub", chain("step", 0), chain("step", chain("mul", 0, other=-1)))
    return chain.done()


def where(arguments: Arguments) -> Composed:
    """One of two operands for each element, by a condition of truth values."""
    condition = operand(arguments, "condition")
    if condition.dtype != "bool":
        raise Refused(f"a condition of type {condition.dtype}")
    x, y = arguments.get("input"), arguments.get("other")
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        chain = Chain(condition, x, y)
        chosen = chain("mul", 1, 0)
        chain("add_n", chosen, chain("mul", 2, chain("affine", 0, factor=-1, shift=1)))
    elif isinstance(x, Tensor):
        chain = Chain(condition, x)
        other = chain("affine", 0, factor=-1, shift=1)
        chain("masked_fill", 1, other, value=exact_number(real(arguments, "other", 0)))
    elif isinstance(y, Tensor):
        chain = Chain(condition, y)
        chain("masked_fill", 1, 0, value=exact_number(real(arguments, "input", 0)))
    else:
        raise Refused("constant operands")
    return chain.done()


def clamp(arguments: Arguments) -> Composed:
    """min(max(x, low), high), by `relu`."""
    unless(arguments, "out", None)
    chain = Chain(operand(arguments, "input"))
    low, high = _bound(arguments, "min"), _bound(arguments, "max")
    if (low is None and high is None) or (low is not None and high is not None and low > high):
        raise Refused("bounds")
    x = 0
    if low is not None:
        x = chain("affine", chain("relu", chain("affine", x, factor=1, shift=-low)), factor=1,
                  shift=low)  # fmt: skip
    if high is not None:
        above = chain("relu", chain("affine", x, factor=-1, shift=high))
        chain("affine", above, factor=-1, shift=high)
    return chain.done()


def _bound(arguments: Arguments, name: str) -> int | Fraction | None:
    value = arguments.get(name)
    return None if value is None else exact_number(value)


# -- along dimensions ------------------------------------------------------------------------------


def triu(arguments: Arguments) -> Composed:
    """What lies above the diagonal."""
    unless(arguments, "out", None)
    unless(arguments, "diagonal", 1)
    if "diagonal" not in arguments:
        raise Refused("diagonal 0")
    chain = Chain(operand(arguments, "input"))
    chain("sub", 0, chain("tril", 0))
    return chain.done()


def tril(arguments: Arguments) -> Composed:
    unless(arguments, "out", None)
    unless(arguments, "diagonal", 0)
    chain = Chain(operand(arguments, "input"))
    chain("tril", 0)
    return chain.done()


def cumsum(arguments: Arguments) -> Composed:
    """Sums up to each position: a product with the triangle of ones."""
    unless(arguments, "out", None)
    unless(arguments, "dtype", None)
    x = operand(arguments, "input")
    dim = dim_of(whole(arguments, "dim"), len(x.shape))
    if len(x.shape) > 12:
        raise Refused(f"{len(x.shape)} dimensions")
    chain = Chain(x)
    size = x.shape[dim]
    ones = chain("tril", chain("full", size=(size, size), value=1))
    axes = "abcdefghijkl"[: len(x.shape)]
    after = axes.replace(axes[dim], "y")
    chain("einsum", 0, ones, equation=f"{axes},y{axes[dim]}->{after}")
    return chain.done()


def index_select(arguments: Arguments) -> Composed:
    """Rows of a table by number."""
    unless(arguments, "out", None)
    x, index = operand(arguments, "input"), operand(arguments, "index")
    if len(x.shape) != 2 or dim_of(whole(arguments, "dim"), 2) != 0 or len(index.shape) != 1:
        raise Refused(f"dim {shown(arguments.get('dim'))} of {list(x.shape)}")
    chain = Chain(index, x)
    chain("embedding", 0, 1)
    return chain.done()


def embedding(arguments: Arguments) -> Composed:
    for name in ("padding_idx", "max_norm"):
        unless(arguments, name, None)
    unless(arguments, "norm_type", 2, 2.0)
    unless(arguments, "scale_grad_by_freq", False)
    chain = Chain(operand(arguments, "input"), operand(arguments, "weight"))
    chain("embedding", 0, 1)
    return chain.done()

"""Calls of operators that draw random numbers: which masks they draw, by their arguments.

A mask is placed by the index maps of the operands: that this is the part that is drawn is an
assumption, like all that is known of masks (`frontends.nnscaler.masks`).
"""

from __future__ import annotations

from shardproof.frontends.nnscaler.calls import (
    Arguments,
    Composed,
    Drawn,
    Refused,
    operand,
    shown,
    unless,
)
from shardproof.frontends.nnscaler.chain import Chain, exact_number
from shardproof.frontends.nnscaler.lowerings import Lowered, real, whole
from shardproof.frontends.nnscaler.records import Constant, Tensor


def dropout(arguments: Arguments) -> Lowered:
    """Nothing where p is 0, or where the plan says that it does not train.

    Example: with p 0.1 it is ``dropout`` of x and a drawn mask; ``inplace=True`` is refused.
    """
    x = operand(arguments, "input")
    unless(arguments, "inplace", False)
    rate = _rate(arguments, "p", 0.5, "training")
    if rate == 0:
        return "identity", {"input": x}
    return "dropout", {"input": x, "mask": _drawn(x), "p": rate}


def _rate(arguments: Arguments, name: str, default: float, training: str) -> Constant:
    """The rate of a dropout: 0 where it is not one of training.  (A plan may hold the words
    ``self.training``: its step trains.)"""
    rate = real(arguments, name, default)
    assert isinstance(rate, (int, float))
    if arguments.get(training) is False:
        return 0
    unless(arguments, training, True, "self.training")
    if not 0 <= rate < 1:
        raise Refused(f"{name} {shown(rate)}")
    return rate


def _drawn(*parts: Tensor | tuple[Tensor, int]) -> Drawn:
    """The mask of a tensor, or of one whose dimensions are those of tensors."""
    shape: list[int] = []
    box: list[tuple[int, int]] = []
    for part in parts:
        x, dims = (part[0], [part[1]]) if isinstance(part, tuple) else (part, range(len(part.box)))
        if x.addend[1] != 1:
            raise Refused("a mask of addends")
        shape += [x.full.shape[dim] for dim in dims]
        box += [x.box[dim] for dim in dims]
    return Drawn(tuple(shape), tuple(box))


def feedforward(arguments: Arguments) -> Composed:
    """``linear(dropout(gelu(linear(x, proj1, proj1_bias))), proj2)``, as nnScaler's examples have
    it (``examples/nlp/blocks/mlp.py``)."""
    operands = [operand(arguments, name) for name in ("x", "proj1", "proj1_bias", "proj2")]
    rate = _rate(arguments, "dropout", 0, "is_training")
    masks = [_drawn((operands[0], 0), (operands[0], 1), (operands[1], 0))] * (rate != 0)
    chain = Chain(*operands, *masks)
    x, first, bias, second = range(4)
    h = chain("gelu", chain("linear", x, first, bias))
    chain("linear", _kept(chain, h, rate, 4), second)
    return chain.done()


def self_attention(arguments: Arguments) -> Composed:
    """Attention with its projections, as nnScaler's examples have it (``blocks/attention.py``).

    Rows of ``qkv_proj`` are (head, position, one of q, k and v); where there is a ``mask``, scores
    of later keys are -10000; what is dropped are weights [sample, head, query, key].
    """
    names = ("query", "qkv_proj", "qkv_bias", "out_proj")
    operands = [operand(arguments, name) for name in names]
    unless(arguments, "mask", True, False)
    heads, rate = whole(arguments, "h"), _rate(arguments, "dropout_p", 0, "training")
    x, rows = operands[:2]
    size = rows.shape[0] // heads if heads > 0 else 0
    if len(x.shape) != 3 or len(rows.shape) != 2 or size % 3 or not size:
        raise Refused(f"h {heads}")
    masks = [_weights_drawn(x, rows, size)] * (rate != 0)
    chain = Chain(*operands, *masks)
    q, k, v = (_head(chain, i, x.shape[:2], heads) for i in range(3))
    scores = chain("einsum", q, k, equation="anhd,bnhd->nhab")
    scores = chain("mul", scores, other=exact_number(real(arguments, "scale", 1)))
    if arguments.get("mask"):
        scores = chain("fill_after", scores, value=-10000)
    weights = _kept(chain, chain("softmax", scores, dim=3), rate, 4)
    mixed = chain("einsum", weights, v, equation="nhab,bnhd->anhd")
    chain("linear", chain("view", mixed, size=(*x.shape[:2], rows.shape[0] // 3)), 3)
    return chain.done()


def _head(chain: Chain, i: int, lead: tuple[int, ...], heads: int) -> int:
    """One of q, k and v: every third row of the projection, from row i on.  (What is cut away is
    the last dimension, so that no other one is a part of it.)"""
    rows, features = chain.shapes[1]
    third = rows // 3
    parts = chain("transpose", chain("view", 1, size=(third, 3, features)), dim0=1, dim1=2)
    weight = chain("index", parts, starts=(0, 0, i), sizes=(-1, -1, 1), kept=(0, 1))
    whole_bias = chain("view", 2, size=(third, 3))
    bias = chain("index", whole_bias, starts=(0, i), sizes=(-1, 1), kept=(0,))
    return chain("view", chain("linear", 0, weight, bias), size=(*lead, heads, third // heads))


def _weights_drawn(x: Tensor, rows: Tensor, size: int) -> Drawn:
    """The mask of attention weights, of whole heads and sequences."""
    low, high = rows.box[0]
    if x.shape[0] != x.full.shape[0] or low % size or high % size or rows.full.shape[0] % size:
        raise Refused("a part of a sequence or of a head")
    mask = _drawn((x, 1), (rows, 0), (x, 0), (x, 0))
    shape = (mask.shape[0], rows.full.shape[0] // size, *mask.shape[2:])
    return Drawn(shape, (mask.box[0], (low // size, high // size), *mask.box[2:]))


def _kept(chain: Chain, x: int, rate: Constant, mask: int) -> int:
    p = exact_number(rate)
    return chain("dropout", x, mask, p=p) if p else x

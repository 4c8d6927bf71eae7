"""Losses, norms and products that `torch.export` leaves whole, as sums and products of their parts.

Source: PyTorch's documentation of each function, and ATen's definitions of them
(``aten/src/ATen/native/Loss.cpp``, ``Distance.cpp``, ``LinearAlgebra.cpp``).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.frontends.aten.composite import _matmul
from shardproof.frontends.aten.criteria import _reduced, _xlogy
from shardproof.frontends.aten.einsums import _einsum
from shardproof.frontends.aten.losses import MEAN
from shardproof.frontends.aten.lowering import Lowered, Lowering, dimensions, fraction
from shardproof.frontends.aten.masks import _minimum, _vector_norm
from shardproof.frontends.aten.rules import lowers

ONE = Fraction(1)

# -- losses ----------------------------------------------------------------------------------------


@lowers("aten.l1_loss.default")
def _l1_loss(lo: Lowering, x: Lowered, y: Lowered, reduction: int = MEAN) -> Any:
    return _reduced(lo, lo.unary("abs", lo.sub(x, y)), reduction)


@lowers("aten.kl_div.default")
def _kl_div(
    lo: Lowering, x: Lowered, target: Lowered, reduction: int = MEAN, *, log_target: bool = False
) -> Any:
    """t (log t - x) of probabilities t; exp(t) (t - x) of their logarithms."""
    if log_target:
        each = lo.mul(lo.unary("exp", target), lo.sub(target, x))
    else:
        each = lo.sub(_xlogy(lo, target, target), lo.mul(target, x))
    return _reduced(lo, each, reduction)


@lowers("aten.poisson_nll_loss.default")
def _poisson(
    lo: Lowering,
    x: Lowered,
    target: Lowered,
    log_input: bool,
    full: bool,
    eps: float,
    reduction: int,
) -> Any:
    if full:
        raise Unsupported("a Poisson loss with Stirling's approximation")
    if log_input:
        each = lo.sub(lo.unary("exp", x), lo.mul(target, x))
    else:
        each = lo.sub(x, lo.mul(target, lo.unary("log", lo.shift(x, fraction(eps)))))
    return _reduced(lo, each, reduction)


@lowers("aten.margin_ranking_loss.default")
def _margin_ranking(
    lo: Lowering,
    x: Lowered,
    y: Lowered,
    target: Lowered,
    margin: float = 0.0,
    reduction: int = MEAN,
) -> Any:
    gap = lo.mul(lo.scale(target, -ONE), lo.sub(x, y))
    return _reduced(lo, lo.unary("relu", lo.shift(gap, fraction(margin))), reduction)


@lowers("aten.pairwise_distance.default")
def _pairwise(
    lo: Lowering, x: Lowered, y: Lowered, p: float = 2, eps: float = 1e-6, keepdim: bool = False
) -> Any:
    return _vector_norm(lo, lo.shift(lo.sub(x, y), fraction(eps)), p, (-1,), keepdim)


@lowers("aten.triplet_margin_loss.default")
def _triplet(
    lo: Lowering,
    anchor: Lowered,
    positive: Lowered,
    negative: Lowered,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: int = MEAN,
) -> Any:
    near, far = (_pairwise(lo, anchor, other, p, eps) for other in (positive, negative))
    if swap:
        far = _minimum(lo, far, _pairwise(lo, positive, negative, p, eps))
    each = lo.unary("relu", lo.shift(lo.sub(near, far), fraction(margin)))
    return _reduced(lo, each, reduction)


@lowers("aten.cosine_similarity.default")
def _cosine(lo: Lowering, x: Lowered, y: Lowered, dim: int = 1, eps: float = 1e-8) -> Any:
    """The product of both, each divided by its length, or by ``eps`` if that is more."""
    x, y, shape = lo.operands(x, y)
    dims, least = dimensions(shape, dim), fraction(eps)

    def directed(z: Lowered) -> Any:
        z = lo.expand(z, shape)
        length = _vector_norm(lo, z, 2, dims, True)
        return lo.div(z, lo.shift(lo.unary("relu", lo.shift(length, -least)), least))

    return lo.sum(lo.mul(directed(x), directed(y)), dims)


# -- norms -----------------------------------------------------------------------------------------


@lowers("aten.linalg_norm.default")
def _linalg_norm(
    lo: Lowering,
    x: Lowered,
    order: float | None = None,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    dtype: str | None = None,
) -> Any:
    """The length of a vector; without an order, of all entries of some dimensions."""
    over = len(x.shape) if dim is None else len(dim)
    if order is not None and over != 1:
        raise Unsupported(f"a norm of order {order} of matrices")
    return _vector_norm(lo, x, 2 if order is None else order, dim, keepdim)


@lowers("aten.linalg_matrix_norm.str_ord")
def _matrix_norm(
    lo: Lowering,
    x: Lowered,
    order: str = "fro",
    dim: Sequence[int] = (-2, -1),
    keepdim: bool = False,
    dtype: str | None = None,
) -> Any:
    if order != "fro":
        raise Unsupported(f"the {order} norm of matrices")
    return _vector_norm(lo, x, 2, dim, keepdim)


@lowers("aten.frobenius_norm.dim")
def _frobenius(lo: Lowering, x: Lowered, dim: Sequence[int], keepdim: bool = False) -> Any:
    return _vector_norm(lo, x, 2, dim, keepdim)


# -- products --------------------------------------------------------------------------------------


def _letters(count: int, first: int = 0) -> str:
    return "abcdefghijklmnopqrstuvwxyz"[first : first + count]


@lowers("aten.linalg_vecdot.default")
def _vecdot(lo: Lowering, x: Lowered, y: Lowered, *, dim: int = -1) -> Any:
    product = lo.mul(x, y)
    return lo.sum(product, dimensions(product.shape, dim))


@lowers("aten.tensordot.default")
def _tensordot(
    lo: Lowering, x: Lowered, y: Lowered, dims_self: Sequence[int], dims_other: Sequence[int]
) -> Any:
    own, others = dimensions(x.shape, dims_self), dimensions(y.shape, dims_other)
    if len(own) != len(others):
        raise ShapeMismatch(f"a product over {len(own)} and {len(others)} dimensions")
    left, right = list(_letters(len(x.shape))), list(_letters(len(y.shape), len(x.shape)))
    for a, b in zip(own, others, strict=True):
        right[b] = left[a]
    kept = [n for d, n in enumerate(left) if d not in own]
    kept += [n for d, n in enumerate(right) if d not in others]
    return _einsum(lo, f"{''.join(left)},{''.join(right)}->{''.join(kept)}", (x, y))


@lowers("aten.inner.default")
def _inner(lo: Lowering, x: Lowered, y: Lowered) -> Any:
    if not x.shape or not y.shape:
        return lo.mul(x, y)
    return _tensordot(lo, x, y, (-1,), (-1,))


@lowers("aten.bilinear.default")
def _bilinear(
    lo: Lowering, x: Lowered, y: Lowered, weight: Lowered, bias: Lowered | None = None
) -> Any:
    made = _einsum(lo, "...a,cab,...b->...c", (x, weight, y))
    return made if bias is None else lo.add(made, bias)


@lowers("aten.kron.default")
def _kron(lo: Lowering, x: Lowered, y: Lowered) -> Any:
    """Every entry of ``x`` times all of ``y``, in its place."""
    rank = max(len(x.shape), len(y.shape))
    a, b = ((1,) * (rank - len(z.shape)) + z.shape for z in (x, y))
    outer = lo.reshape(x, tuple(n for size in a for n in (size, 1)))
    inner = lo.reshape(y, tuple(n for size in b for n in (1, size)))
    return lo.reshape(lo.mul(outer, inner), tuple(m * n for m, n in zip(a, b, strict=True)))


@lowers("aten.chain_matmul.default", "aten.linalg_multi_dot.default")
def _chain(lo: Lowering, matrices: Sequence[Lowered]) -> Any:
    product, *rest = matrices
    for matrix in rest:
        product = _matmul(lo, product, matrix)
    return product


@lowers("aten.block_diag.default")
def _block_diagonal(lo: Lowering, matrices: Sequence[Lowered]) -> Any:
    """Matrices one below and beside the other, zeros around."""
    grown = [lo.reshape(m, ((1,) * (2 - len(m.shape))) + m.shape) for m in matrices]
    width, before, rows = sum(m.shape[1] for m in grown), 0, []
    for m in grown:
        parts = []
        for size, part in ((before, None), (m.shape[1], m), (width - before - m.shape[1], None)):
            if size:
                zeros = lo.scale(lo.expand(lo.slice(m, 1, 0, 1), (m.shape[0], size)), Fraction(0))
                parts.append(zeros if part is None else part)
        rows.append(lo.concat(parts, 1))
        before += m.shape[1]
    return lo.concat(rows, 0)

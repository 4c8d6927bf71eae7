"""Complex tensors of graphs, which are pairs of real numbers along one more dimension, the last.

``view_as_complex(x)`` of x [3, 4, 2] is x; an operator on complex operands is that of
`aten.complexes`; one that only moves numbers moves pairs.  For example ``unsqueeze(z, -1)`` of z
[3, 4], which is [3, 4, 2] here, is [3, 4, 1, 2].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten.complexes import AS_PAIRS, CONJUGATE, PARTS
from shardproof.frontends.aten.lowering import Lowering, Shape, dimensions
from shardproof.frontends.aten.rules import rule_of

Array = NDArray[Any]
#: The real type of each half.
HALVES: Final[Mapping[str, str]] = {"complex64": "float32", "complex128": "float64"}
Move = Callable[..., Any]


def shape_of(shape: Sequence[int] | None, dtype: str | None) -> Shape:
    """The shape of a tensor as it is lowered.

    Example: complex64 [3, 4] is [3, 4, 2], float32 [3, 4] is [3, 4].
    """
    return (*(shape or ()), 2) if dtype in HALVES else tuple(shape or ())


def real_type(dtype: str | None) -> str:
    """The element type of a tensor as it is lowered.

    Example: of complex64 it is float32, of int64 it is that.
    """
    return HALVES.get(dtype or "", dtype or "")


def pairs(array: Array) -> Array:
    """The pairs of complex numbers; other numbers are as they are.

    Example: [1 + 2j] is [[1, 2]].
    """
    if array.dtype.kind != "c":
        return array
    return np.stack([array.real, array.imag], axis=-1)


def numbers(array: Array, dtype: str | None) -> Array:
    """The numbers of a tensor of an element type, of those that it is lowered to.

    Example: of complex64, [[1, 2]] is [1 + 2j].
    """
    return array[..., 0] + 1j * array[..., 1] if dtype in HALVES else array


def lowered(
    lo: Lowering, name: str, args: Sequence[Any], named: Mapping[str, Any], flags: Sequence[bool]
) -> Any:
    """What an operator gives of which some operands, or the result (the last of ``flags``), are
    complex; raises `Unsupported` for one that is not known.

    Example: ``aten.mul.Tensor`` of pairs and real numbers, with the flags (True, False, True).
    """
    if name in AS_PAIRS:
        return args[0]
    if name in PARTS:
        last = len(args[0].shape) - 1
        return lo.reshape(lo.slice(args[0], last, PARTS[name], 1), args[0].shape[:-1])
    move = MOVES.get(name.removeprefix("aten."))
    if move is not None and flags[0]:
        return move(lo, *args, **named)
    rule = rule_of(CONJUGATE.get(name, name).replace("aten.", "complex.", 1))
    if rule is None:
        raise Unsupported("of complex numbers")
    return rule(lo, *args, **named, pairs=list(flags))


# -- moves ---------------------------------------------------------------------------------------


def _same(lo: Lowering, x: Any, *_: Any, **__: Any) -> Any:
    return x


def _view(lo: Lowering, x: Any, *_: Any) -> Any:
    """To the shape of the result, which has the pairs last."""
    return lo.reshape(x, lo.expected[0][0])


def _expand(lo: Lowering, x: Any, *_: Any, **__: Any) -> Any:
    shape = lo.expected[0][0]
    lead = (1,) * (len(shape) - len(x.shape))
    return lo.expand(lo.reshape(x, (*lead, *x.shape)), shape)


def _transpose(lo: Lowering, x: Any, dim0: int, dim1: int) -> Any:
    (i,), (j,) = (dimensions(x.shape[:-1], d) for d in (dim0, dim1))
    return lo.transpose(x, i, j)


def _permute(lo: Lowering, x: Any, dims: Sequence[int]) -> Any:
    return lo.permute(x, (*dimensions(x.shape[:-1], dims), len(x.shape) - 1))


def _slice(
    lo: Lowering,
    x: Any,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Any:
    (at,) = dimensions(x.shape[:-1], dim)
    first, last, every = slice(start, end, step).indices(x.shape[at])
    if every != 1:
        raise Unsupported("a slice of complex numbers with steps")
    return lo.slice(x, at, first, max(0, last - first))


def _select(lo: Lowering, x: Any, dim: int, index: int) -> Any:
    (at,) = dimensions(x.shape[:-1], dim)
    return lo.reshape(lo.slice(x, at, index % x.shape[at], 1), lo.expected[0][0])


#: Operators that move pairs as they move numbers, by their names without the namespace.
MOVES: Final[Mapping[str, Move]] = {
    **dict.fromkeys(("clone.default", "detach.default", "alias.default"), _same),
    **dict.fromkeys(("contiguous.default", "lift_fresh_copy.default"), _same),
    "resolve_conj.default": _same,
    **dict.fromkeys(("view.default", "_unsafe_view.default", "reshape.default"), _view),
    **dict.fromkeys(("unsqueeze.default", "squeeze.dim", "squeeze.default"), _view),
    **dict.fromkeys(("flatten.using_ints", "unflatten.int", "view_as.default"), _view),
    **dict.fromkeys(("expand.default", "expand_as.default"), _expand),
    "transpose.int": _transpose,
    "permute.default": _permute,
    "slice.Tensor": _slice,
    "select.int": _select,
}

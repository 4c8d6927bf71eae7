"""Functions of which nothing is known but what they are: linear algebra, special functions.

``cholesky(x)`` is, for each entry o of its result, ``phi(sum over i of c[i, o] x[i])`` over the
entries i of one matrix, with numbers c that both sides share and a function phi of which no law is
used.  For generic numbers, matrices that differ anywhere differ in that sum, so that ``phi`` may be
any function of the matrix (docs/soundness.md, section 5.8).  Both sides have the same one where
its name, its other arguments and the sizes of its operands are the same, and they are whole on
every rank.  A difference that shows under particular numbers refutes nothing: they are stand-ins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any, Final

from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.engine.plan.ir import whole as whole_input
from shardproof.frontends.aten.lowering import (
    Const,
    Lowering,
    Operand,
    Real,
    Shape,
    Undefined,
    broadcast,
    floating,
    is_symbolic,
)
from shardproof.frontends.aten.rules import lowers

#: How the names of the numbers begin.
NUMBERS: Final = "numbers of "
#: How many numbers a function may have for each of its operands.
MOST: Final = 1 << 22
#: A function of which no law is known.
_PHI: Final = "sin"
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
_MATRIX: Final = (2,)
#: By overload: how many dimensions a matrix, a vector or a number has that it takes, for each
#: operand, and that it gives, for each result (None: a result that nobody may read).
FUNCTIONS: Final[dict[str, tuple[tuple[int, ...], tuple[int | None, ...]]]] = {
    **{
        f"aten.{name}.default": (_MATRIX, _MATRIX)
        for name in (
            *("linalg_cholesky", "cholesky", "cholesky_inverse", "linalg_inv", "inverse"),
            *("linalg_pinv", "linalg_matrix_exp", "matrix_exp"),
        )
    },
    "aten.linalg_cholesky_ex.default": (_MATRIX, (2, None)),
    "aten.linalg_inv_ex.default": (_MATRIX, (2, None)),
    "aten.linalg_det.default": (_MATRIX, (0,)),
    "aten._linalg_det.default": (_MATRIX, (0, 2, None)),
    "aten.linalg_slogdet.default": (_MATRIX, (0, 0)),
    "aten._linalg_slogdet.default": (_MATRIX, (0, 0, 2, None)),
    "aten.linalg_eigvalsh.default": (_MATRIX, (1,)),
    "aten.linalg_eigh.default": (_MATRIX, (1, 2)),
    "aten._linalg_eigh.default": (_MATRIX, (1, 2)),
    "aten.linalg_qr.default": (_MATRIX, (2, 2)),
    "aten.linalg_svdvals.default": (_MATRIX, (1,)),
    "aten.linalg_svd.default": (_MATRIX, (2, 1, 2)),
    "aten._linalg_svd.default": (_MATRIX, (2, 1, 2)),
    **{
        f"aten.{name}.default": ((0,), (0,))
        for name in (
            *("i0", "sinc", "special_i0e", "special_i1", "special_i1e", "special_erfcx"),
            *("special_ndtri", "special_bessel_j0", "special_bessel_j1"),
        )
    },
}
#: Solutions of linear equations: which operand is the matrix; each right side has its own.
SOLVES: Final = {
    "aten.cholesky_solve.default": 1,
    "aten.linalg_solve_triangular.default": 0,
    "aten.linalg_solve.default": 0,
    "aten._linalg_solve_ex.default": 0,
}


def _function(name: str) -> None:
    @lowers(name)
    def rule(lo: Lowering, *args: Any, **kwargs: Any) -> Any:
        dims, given = FUNCTIONS[name]
        operands, others = args[: len(dims)], args[len(dims) :]
        constants = [str(x) for x in others] + [f"{k}={kwargs[k]}" for k in sorted(kwargs)]
        if any(_is_tensor(x) for x in (*others, *kwargs.values())):
            raise Unsupported("a tensor among what is no operand")
        key = f"{name.removeprefix('aten.')}({', '.join(constants)})"
        values = [_value(lo, x) for x in operands]
        results = zip(lo.expected, given, strict=True)
        made = [
            Undefined(*x, "what a function gives beside its result")
            if own is None
            else _applied(lo, f"{key}, result {n}", values, dims, (x[0], own))
            for n, (x, own) in enumerate(results)
        ]
        return made[0] if len(made) == 1 else tuple(made)


for _name in FUNCTIONS:
    _function(_name)


def _solves(name: str, matrix: int) -> None:
    @lowers(name)
    def rule(lo: Lowering, *args: Any, left: bool = True, **kwargs: Any) -> Any:
        """A solution of linear equations for each right side: column by column, or row by row."""
        a, b = _value(lo, args[matrix]), _value(lo, args[1 - matrix])
        constants = [f"{x}" for x in args[2:]] + [f"{k}={kwargs[k]}" for k in sorted(kwargs)]
        key = f"{name.removeprefix('aten.')}({', '.join([*constants, f'left={left}'])})"
        rank = len(b.shape)
        if rank < 2 or b.shape[:-2] != a.shape[:-2]:
            raise Unsupported(f"equations of {list(a.shape)} for {list(b.shape)}")
        order = (*range(rank - 2), rank - 1, rank - 2) if left else tuple(range(rank))
        sides = lo.permute(b, order)
        wide = lo.reshape(a, (*a.shape[:-2], 1, *a.shape[-2:]))
        (wanted, _), *beside = lo.expected
        given = (*wanted[:-2], wanted[-1], wanted[-2]) if left else wanted
        solved = _applied(lo, key, [lo.real(wide), lo.real(sides)], (2, 1), (given, 1))
        others = [Undefined(*x, "what a function gives beside its result") for x in beside]
        return (lo.permute(solved, order), *others) if others else lo.permute(solved, order)


for _name, _matrix in SOLVES.items():
    _solves(_name, _matrix)


def _is_tensor(x: object) -> bool:
    return isinstance(x, (Real, Const, Undefined)) or is_symbolic(x)


def _value(lo: Lowering, x: Operand) -> Real:
    value = lo.real(x)
    if not floating(value.dtype):
        raise Unsupported(f"a tensor of {value.dtype}")
    return value


def _applied(
    lo: Lowering,
    key: str,
    operands: Sequence[Real],
    dims: Sequence[int],
    given: tuple[Shape, int],
) -> Any:
    """A result of the function ``key`` of these operands; ``given``: its shape, and how many of its
    dimensions one value of the function has."""
    shape, own = given
    if any(len(x.shape) < n for x, n in zip(operands, dims, strict=True)):
        raise ShapeMismatch("fewer dimensions than a matrix has")
    leads = [x.shape[: len(x.shape) - n] for x, n in zip(operands, dims, strict=True)]
    lead = broadcast(*leads)
    if shape[: len(shape) - own] != lead:
        raise Unsupported(f"a result of {list(shape)} for each of {list(lead)}")
    sizes = [
        "x".join(map(str, x.shape[len(x.shape) - n :])) for x, n in zip(operands, dims, strict=True)
    ]
    about = f"{NUMBERS}{key} of {' and '.join(sizes)}"
    return _mixed(lo, about, operands, leads, (lead, shape[len(lead) :]))


def _mixed(
    lo: Lowering,
    about: str,
    operands: Sequence[Real],
    leads: Sequence[Shape],
    shape: tuple[Shape, Shape],
) -> Any:
    """``phi`` of the sum of products of operands with numbers that both sides hold; ``shape``: of
    what there is one function value for each of, and of one."""
    lead, own = shape
    total: Any = None
    for place, (x, first) in enumerate(zip(operands, leads, strict=True)):
        matrix = x.shape[len(first) :]
        table = _numbers(lo, f"{about}, operand {place}", (*matrix, *(own or (1,))))
        rows, read = _LETTERS[: len(first)], _LETTERS[len(first) : len(x.shape)]
        made = _LETTERS[len(x.shape) : len(x.shape) + len(own)]
        equation = f"{rows}{read},{read}{made or 'z'}->{rows}{made or 'z'}"
        part = lo.emit("einsum", x, table, equation=equation)
        wide = (*(1 for _ in lead[len(first) :]), *first, *(own or (1,)))
        part = lo.expand(lo.reshape(part, wide), (*lead, *(own or (1,))))
        total = part if total is None else lo.add(total, part)
    return lo.reshape(lo.unary(_PHI, total), (*lead, *own))


def _numbers(lo: Lowering, name: str, shape: Shape) -> Real:
    """The numbers of an operand, an input that both sides share."""
    if lo.functions is None:
        raise Unsupported("a function of which nothing is known")
    if prod(shape) > MOST:
        raise Unsupported(f"a function of which nothing is known, of {list(shape)}")
    lo.functions.setdefault(name, "stand for a function of which nothing is known")
    if name not in lo.tables:
        own = replace(whole_input(name, shape, trainable=False), kind="constant")
        lo.tables[name] = lo.hold(own)
    return lo.tables[name]

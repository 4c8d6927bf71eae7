"""Rows that a mask chooses, whose number depends on data: what `nonzero` and an index by it give.

All rows are carried, with the mask beside them.  An operator of which row i of the result depends
on row i alone is applied to all of them; what is summed over rows, or written back, counts only the
rows that the mask chooses.  A size that depends on data is a negative number, of its own for every
symbol of the file.  Any other operator on such rows is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import prod
from typing import Any

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten.lowering import Const, Lowered, Lowering, Real, Shape, Unviewed
from shardproof.frontends.aten.masks import inverse, numbers
from shardproof.frontends.aten.rules import TABLE, Rule, lowers


@dataclass(frozen=True, slots=True, eq=False)
class Where(Unviewed):
    """The positions at which a mask is true, in their order; ``size``: how many, a number that
    stands for it (negative in graphs, a prime in recorded steps); ``inside``: among how many rows
    that another mask chooses, of which ``mask`` is true nowhere else (0: there is no other one).

    Example: `nonzero` of a mask of 8 tokens, whose shape the file gives as ``["u0", 1]``: shape
    (-1, 1), of 8 rows.
    """

    about = "positions of which data says how many there are"

    mask: Lowered
    size: int
    dtype: str = "int64"
    inside: int = 0
    #: The same positions of a view of the mask, by its shape.
    views: dict[Shape, Where] = field(default_factory=dict)

    @property
    def shape(self) -> Shape:
        """As many rows as there are positions, with a number for each dimension of the mask."""
        return (self.size, len(self.mask.shape))

    @property
    def rows(self) -> int:
        """Among how many rows the mask chooses."""
        return prod(self.mask.shape)

    def real(self, lo: Lowering) -> Real:
        """Refused: such positions only choose rows."""
        raise Unsupported(self.about)

    def counts(self, lo: Lowering, x: Lowered, at: int) -> Any:
        """The mask as numbers, one for each position along dimension ``at`` of ``x``."""
        shape = tuple(n if d == at else 1 for d, n in enumerate(x.shape))
        return lo.expand(lo.reshape(self.numbers(lo, x.dtype), shape), x.shape)

    def numbers(self, lo: Lowering, dtype: str) -> Any:
        """The mask as 0 and 1 of an element type."""
        mask = self.mask if isinstance(self.mask, Const) else lo.real(self.mask)
        return numbers(lo, mask, dtype)

    def many(self, lo: Lowering, dtype: str, times: int = 1) -> Any:
        """How many positions there are, times a number."""
        every = tuple(range(len(self.mask.shape)))
        return lo.scale(lo.sum(self.numbers(lo, dtype), every), Fraction(times))


@dataclass(frozen=True, slots=True)
class Count:
    """How many positions there are.

    Example: ``sym_size`` of `Where` along dimension 0, which a view of the rows is given.
    """

    where: Where


@dataclass(frozen=True, slots=True)
class Read:
    """What rows were read of: of ``base``, at ``places``; ``more``: what was added to them (None:
    nothing).

    Example: of ``y[rows] + x[rows]`` the base is ``y``, and ``x[rows]`` more.
    """

    base: Lowered
    places: object
    more: Chosen | None = None


@dataclass(frozen=True, slots=True)
class Chosen(Unviewed):
    """Of ``rows``, along dimension ``at``, those at the positions of ``where``; ``read``: where
    they were read, and what was added to them; ``only``: all others are 0.

    Example: tokens [8, 4] at the positions of a mask: rows of shape (8, 1, 4), shape (-1, 1, 4).
    """

    about = "rows of which data says how many there are"

    rows: Lowered
    where: Where
    at: int = 0
    read: Read | None = None
    only: bool = False

    @property
    def shape(self) -> Shape:
        """That of the rows, with a size that depends on data."""
        whole: Shape = self.rows.shape
        return (*whole[: self.at], self.where.size, *whole[self.at + 1 :])

    @property
    def dtype(self) -> str:
        """That of the rows."""
        return self.rows.dtype

    def real(self, lo: Lowering) -> Real:
        """Refused: which ones they are is not known."""
        raise Unsupported(self.about)

    def counted(self, lo: Lowering) -> Any:
        """All rows, zero where the mask does not choose them."""
        return (
            self.rows if self.only else lo.mul(self.rows, self.where.counts(lo, self.rows, self.at))
        )


#: Rules for operands of which one is `Where`, `Chosen` or `Count`.
ROUTED: dict[str, Rule] = {}


def is_routed(x: object) -> bool:
    """Whether an operand, or an item of one, is of a size that depends on data.

    Example: ``is_routed([Count(where), 4])`` is True, ``is_routed([8, 4])`` is False.
    """
    if isinstance(x, (list, tuple)):
        return any(is_routed(item) for item in x)
    return isinstance(x, (Where, Chosen, Count))


def _routes(*names: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        ROUTED.update((name, rule) for name in names)
        return rule

    return register


@lowers("aten.nonzero.default")
def _nonzero(lo: Lowering, mask: Lowered) -> Any:
    ((shape, _),) = lo.expected
    if mask.dtype != "bool" or len(mask.shape) != 1 or len(shape) != 2 or shape[0] >= 0:
        raise Unsupported("positions of anything but a mask of one dimension")
    return Where(mask, shape[0])


@_routes("aten.sym_size.int")
def _size(lo: Lowering, x: Where | Chosen, dim: int) -> Any:
    where = x if isinstance(x, Where) else x.where
    return Count(where) if x.shape[dim] == where.size else x.shape[dim]


@_routes("<built-in function ge>")
def _at_least(lo: Lowering, x: Count, number: int) -> bool:
    if not isinstance(number, int) or number > 0:
        raise Unsupported("what is said of a number that depends on data")
    return True


@_routes("<built-in function le>")
def _at_most(lo: Lowering, x: Count, number: int) -> bool:
    if not isinstance(number, int) or number < x.where.rows:
        raise Unsupported("what is said of a number that depends on data")
    return True


@lowers("aten._assert_tensor_metadata.default")
def _of_type(
    lo: Lowering, x: Lowered, size: object = None, stride: object = None, **_: Any
) -> None:
    """That a tensor is of a shape and an element type: graphs say both of every tensor."""


@lowers("aten._assert_scalar.default")
def _asserted(lo: Lowering, holds: object, message: str) -> None:
    if holds is not True:
        raise Unsupported("an assertion of what is not known")


@_routes("aten.index.Tensor")
def _index(lo: Lowering, x: Lowered, indices: Sequence[Any]) -> Any:
    """x[positions], where positions are [k, 1]: [k, 1, ...]."""
    (where,) = indices
    if not isinstance(where, Where) or is_routed(x) or x.shape[0] != where.rows:
        raise Unsupported("an index by positions of another dimension")
    return Chosen(lo.reshape(lo.real(x), (x.shape[0], 1, *x.shape[1:])), where)


@_routes("aten.index_put.default")
def _index_put(
    lo: Lowering, x: Lowered, indices: Sequence[Any], values: Any, accumulate: bool = False
) -> Any:
    """Rows [k, 1, ...] written over, or added to, those at the positions."""
    (where,) = indices
    same = isinstance(values, Chosen) and values.where is where and values.at == 0
    if not isinstance(where, Where) or not same or is_routed(x) or x.shape[0] != where.rows:
        raise Unsupported("rows that are written at positions of other rows")
    if values.rows.shape != (x.shape[0], 1, *x.shape[1:]):
        raise Unsupported("rows that are written over larger ones")
    written = lo.reshape(values.counted(lo), x.shape)
    if isinstance(x, Const) and x.value == 0:
        return written
    kept = x if accumulate else lo.mul(x, inverse(lo, where.counts(lo, x, 0)))
    return lo.add(kept, written)


@_routes("aten.view.default", "aten._unsafe_view.default", "aten.reshape.default")
def _viewed(lo: Lowering, x: Any, shape: Sequence[Any]) -> Any:
    """Rows of another shape each."""
    if not isinstance(x, Chosen) or x.at != 0 or not isinstance(shape[0], Count):
        raise Unsupported("a view that joins rows of which data says how many there are")
    rest = tuple(shape[1:])
    if shape[0].where is not x.where or is_routed(rest) or prod(rest) != prod(x.shape[1:]):
        raise Unsupported("a view that joins rows of which data says how many there are")
    return replace(x, rows=lo.reshape(x.rows, (x.where.rows, *rest)))


@_routes("aten.t.default")
def _turned(lo: Lowering, x: Any) -> Any:
    if not isinstance(x, Chosen) or len(x.shape) != 2:
        raise Unsupported("a transpose of positions")
    return replace(x, rows=lo.permute(x.rows, (1, 0)), at=1 - x.at)


@_routes("aten.mm.default")
def _product(lo: Lowering, x: Any, y: Any) -> Any:
    """Rows times a matrix; or the sum over the rows of both."""
    product = TABLE["aten.mm.default"]
    if isinstance(x, Chosen) and not is_routed(y) and x.at == 0:
        return replace(x, rows=product(lo, x.rows, y))
    if isinstance(y, Chosen) and not is_routed(x) and y.at == 1:
        return replace(y, rows=product(lo, x, y.rows))
    summed = isinstance(x, Chosen) and isinstance(y, Chosen) and (x.at, y.at) == (1, 0)
    if summed and x.where is y.where:
        return product(lo, x.counted(lo), y.rows)
    raise Unsupported("a product of rows with rows that another mask chooses")


@_routes("aten.new_zeros.default")
def _zeros(lo: Lowering, x: Any, shape: Sequence[Any], **kwargs: Any) -> Any:
    """Zeros of the type of such rows; or as many as there are."""
    return _filled(lo, shape) if is_routed(shape) else _full(lo, lo.expected[0][0])


@_routes("aten.zeros.default")
def _filled(lo: Lowering, shape: Sequence[Any], **kwargs: Any) -> Any:
    first, *rest = shape
    if not isinstance(first, Count) or is_routed(rest):
        raise Unsupported("zeros of which data says how many there are")
    return Chosen(_full(lo, (first.where.rows, *rest)), first.where)


def _full(lo: Lowering, shape: Shape) -> Const:
    return Const(Fraction(0), shape, lo.expected[0][1])


def _entrywise(name: str) -> None:
    """An operator whose entries depend on the entries at their place, of rows of one mask."""

    @_routes(name)
    def rule(lo: Lowering, *args: Any, **kwargs: Any) -> Any:
        like = next((x for x in args if isinstance(x, Chosen)), None)
        if like is None or is_routed(list(kwargs.values())):
            raise Unsupported(f"{name} of positions")
        rows = [_beside(like, x) for x in args]
        lo.expected = [(like.rows.shape, lo.expected[0][1])]
        made = TABLE[name](lo, *rows, **kwargs)
        if made.shape != like.rows.shape:
            raise Unsupported(f"{name} of rows, to another shape")
        return replace(like, rows=made)


def _beside(like: Chosen, x: Any) -> Any:
    """An operand for all rows: rows of the same mask, a number, or what every row reads alike."""
    if isinstance(x, Chosen) and x.where is like.where:
        if (x.at, x.shape) == (like.at, like.shape):
            return x.rows
    elif not is_routed(x):
        rank = len(getattr(x, "shape", ()))
        if rank == 0 or (like.at == 0 and rank < len(like.shape)):
            return x
    raise Unsupported("rows beside rows that another mask chooses")


#: Total functions: they have a value at rows that the mask does not choose, too.
for _name in (
    *(f"aten.{name}.Tensor" for name in ("add", "sub", "mul")),
    *(f"aten.{name}.Scalar" for name in ("add", "sub", "mul")),
    *(f"aten.{name}.default" for name in ("neg", "relu", "silu", "gelu", "sigmoid", "tanh")),
    *(f"aten.{name}_backward.default" for name in ("silu", "gelu", "sigmoid", "tanh")),
    *(f"aten.{name}.default" for name in ("clone", "detach", "alias", "_to_copy")),
):
    _entrywise(_name)

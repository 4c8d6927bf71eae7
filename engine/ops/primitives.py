"""What an operator may be made of, and reverse differentiation of it.

An operator is declared once, as code over an `Interpreter`: an abstract tensor algebra of a dozen
primitives.  The same declaration is then read over float64, a finite field or terms
(`engine.interpreters`), and over reference values (`partition.inference.trace`).  A primitive's
derivative is stated here once, in the same primitives, so a reading never differentiates anything
itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Generic, Protocol, TypeVar

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.algebra.selection import Selection as Selection
from shardproof.engine.errors import ShapeMismatch, Unsupported

T = TypeVar("T")


def check_selection(experts: int, selection: Selection) -> None:
    """Raise `ShapeMismatch` unless a selection can be made among so many experts.

    Example: 2 of the best of 4 groups of 6 experts are refused: 6 cannot be divided by 4.
    """
    size, rest = divmod(experts, max(selection.groups, 1))
    least = 2 if selection.group_score == "top2" and selection.groups > 1 else 1
    if (
        rest
        or size < least
        or not 1 <= selection.topk_groups <= selection.groups
        or not 1 <= selection.topk <= size * selection.topk_groups
    ):
        raise ShapeMismatch(f"a choice {selection} among {experts} experts")


class Interpreter(Protocol[T]):
    """The primitives.  All shapes are those of the reading's own tensors."""

    def shape(self, x: T) -> tuple[int, ...]:
        """The sizes of its dimensions."""
        ...

    def einsum(self, spec: str, *xs: T, sizes: Mapping[str, int] | None = None) -> T:
        """Sum of products, ``"bk,nk->bn"``; an output label in no operand is broadcast to
        ``sizes[label]``.  Labels do not repeat within an operand."""
        ...

    def combine(self, xs: Sequence[T], factors: Sequence[Fraction], constant: Fraction) -> T:
        """``sum(f * x) + constant`` over tensors of one shape."""
        ...

    def unary(self, function: str, x: T) -> T:
        """An elementwise function of `FUNCTIONS`."""
        ...

    def reshape(self, x: T, shape: tuple[int, ...]) -> T:
        """The same entries, in row-major order, in other dimensions."""
        ...

    def slice(self, x: T, dim: int, start: Affine, size: int) -> T:
        """``size`` positions of one dimension, from ``start``."""
        ...

    def concat(self, xs: Sequence[T], dim: int) -> T:
        """Tensors one after the other along ``dim``."""
        ...

    def amax(self, x: T, dim: int) -> T:
        """Maximum over one dimension, which is dropped."""
        ...

    def onehot(self, ids: T, start: Affine, size: int) -> T:
        """A new last dimension: 1 where ``ids == start + position``, else 0."""
        ...

    def causal(self, queries: int, keys: int) -> T:
        """``[queries, keys]``: 0, or minus infinity where the key comes after the query."""
        ...

    def order(self, queries: int, keys: int) -> T:
        """``[queries, keys]``: 1, or 0 where the key comes after the query: a number, unlike
        `causal`."""
        ...

    def select(self, scores: T, selection: Selection) -> T:
        """``[a, experts]`` -> the chosen experts ``[a, topk]`` (data of index type)."""
        ...

    def constant(self, name: str) -> T:
        """A small tensor of `CONSTANTS`."""
        ...


#: ``complex_product[e, c, f]``: (x * y)[c] = sum over e, f of y[e] * x[f] * table[e, c, f] for
#: complex numbers stored as pairs (real, imaginary).
CONSTANTS: Mapping[str, tuple[tuple[tuple[int, ...], ...], ...]] = {
    "complex_product": (((1, 0), (0, 1)), ((0, -1), (1, 0))),
}


# ---------------------------------------------------------------------------------------------
# Elementwise functions: name -> derivative, in primitives, given input x and output y.

Derivative = Callable[["Interpreter[Any]", Any, Any], Any]


def scale(r: Interpreter[T], factor: Fraction | int, x: T) -> T:
    """``factor`` times a tensor.

    Example: 1/2 of [1, 2] is [1/2, 1].
    """
    return r.combine([x], [Fraction(factor)], Fraction(0))


def labels(rank: int) -> str:
    """``rank`` distinct einsum labels before "x"; raises `Unsupported` beyond 23 dimensions.

    Example: three are ``abc``.
    """
    if rank > 23:
        raise Unsupported(f"a tensor of {rank} dimensions (at most 23 are supported)")
    return "abcdefghijklmnopqrstuvw"[:rank]


def multiply(r: Interpreter[T], *xs: T) -> T:
    """Elementwise product of tensors of one shape.

    Example: [1, 2] and [1, 2] are [1, 4].
    """
    axes = labels(len(r.shape(xs[0])))
    return r.einsum(",".join([axes] * len(xs)) + "->" + axes, *xs)


def sum_dims(r: Interpreter[T], x: T, dims: Sequence[int]) -> T:
    """Sum over ``dims``, which are dropped.

    Example: of [[3, 4], [5, 6]] over dimension 0 [8, 10].
    """
    axes = labels(len(r.shape(x)))
    return r.einsum(axes + "->" + "".join(a for i, a in enumerate(axes) if i not in dims), x)


def expand_as(r: Interpreter[T], x: T, shape: tuple[int, ...]) -> T:
    """Broadcast by NumPy's rules to ``shape``; raises `ShapeMismatch` if that cannot be.

    Example: [[1, 2]] at (3, 2) is [[1, 2], [1, 2], [1, 2]]; at (3, 4) it is refused.
    """
    have = r.shape(x)
    if have == shape:
        return x
    lead = len(shape) - len(have)
    if lead < 0 or any(h not in (1, n) for h, n in zip(have, shape[lead:], strict=True)):
        raise ShapeMismatch(f"a tensor of shape {list(have)} cannot be broadcast to {list(shape)}")
    kept = [i for i, h in enumerate(have) if h == shape[lead + i]]
    squeezed = r.reshape(x, tuple(have[i] for i in kept))
    axes = labels(len(shape))
    spec = "".join(axes[lead + i] for i in kept) + "->" + axes
    sizes = {axes[i]: shape[i] for i in range(len(shape)) if i - lead not in kept}
    return r.einsum(spec, squeezed, sizes=sizes)


def _power_derivative(r: Interpreter[T], x: T, exponent: Fraction) -> T:
    if exponent == 2:
        return scale(r, 2, x)
    return scale(r, exponent, r.unary(f"pow:{exponent - 1}", x))


def _no_derivative(r: Interpreter[T], x: T, y: T) -> T:
    raise Unsupported("a derivative of trigamma")


FUNCTIONS: Mapping[str, Derivative] = {
    "exp": lambda r, x, y: y,
    "log": lambda r, x, y: r.unary("inv", x),
    "inv": lambda r, x, y: scale(r, -1, multiply(r, y, y)),
    "sqrt": lambda r, x, y: scale(r, Fraction(1, 2), r.unary("inv", y)),
    "rsqrt": lambda r, x, y: scale(r, Fraction(-1, 2), multiply(r, y, y, y)),
    "sigmoid": lambda r, x, y: r.combine(
        [y, multiply(r, y, y)], [Fraction(1), Fraction(-1)], Fraction(0)
    ),
    "tanh": lambda r, x, y: r.combine([multiply(r, y, y)], [Fraction(-1)], Fraction(1)),
    "normal_cdf": lambda r, x, y: r.unary("normal_pdf", x),
    "sin": lambda r, x, y: r.unary("cos", x),
    "cos": lambda r, x, y: scale(r, -1, r.unary("sin", x)),
    "erf": lambda r, x, y: r.unary("gaussian", x),
    "erfinv": lambda r, x, y: r.unary("inv", r.unary("gaussian", y)),
    "lgamma": lambda r, x, y: r.unary("digamma", x),
    "digamma": lambda r, x, y: r.unary("trigamma", x),
    "trigamma": _no_derivative,
    "atan": lambda r, x, y: r.unary(
        "inv", r.combine([multiply(r, x, x)], [Fraction(1)], Fraction(1))
    ),
    "gaussian": lambda r, x, y: scale(r, -2, multiply(r, x, y)),
    # At 0, where there is no derivative, it is taken as 0, as PyTorch does.
    "relu": lambda r, x, y: r.unary("step", x),
    "step": lambda r, x, y: scale(r, 0, x),
    "abs": lambda r, x, y: r.unary("sign", x),
    "sign": lambda r, x, y: scale(r, 0, x),
    # At whole numbers, where there is none, it is taken as 0, as PyTorch and JAX do.
    "floor": lambda r, x, y: scale(r, 0, x),
    "ceil": lambda r, x, y: scale(r, 0, x),
    "trunc": lambda r, x, y: scale(r, 0, x),
    "round": lambda r, x, y: scale(r, 0, x),
}

#: Functions whose real value exists on part of the line only: no plan may add one.
PARTIAL_FUNCTIONS = frozenset(
    {"log", "inv", "sqrt", "rsqrt", "erfinv", "lgamma", "digamma", "trigamma"}
)


def is_partial(function: str) -> bool:
    """Whether the function is undefined somewhere (a division, a root, a negative power).

    Example: ``log`` and ``sqrt`` are, ``exp`` is not.
    """
    if function.startswith("pow:"):
        exponent = Fraction(function[4:])
        return exponent < 0 or exponent.denominator != 1
    return function in PARTIAL_FUNCTIONS


def known_function(function: str) -> bool:
    """Whether `Interpreter.unary` has a meaning for a name.

    Example: ``exp`` and ``pow:3/2`` have one, ``lgamma`` has none.
    """
    return function in FUNCTIONS or function == "normal_pdf" or function.startswith("pow:")


def derivative(r: Interpreter[T], function: str, x: T, y: T) -> T:
    """The derivative of an elementwise function at ``x``; raises `Unsupported` without one.

    Example: of ``pow:3`` at [1, 2] it is [3, 12].
    """
    if function.startswith("pow:"):
        return _power_derivative(r, x, Fraction(function[4:]))
    if function not in FUNCTIONS:
        raise Unsupported(f"no derivative is declared for {function}")
    return FUNCTIONS[function](r, x, y)  # type: ignore[no-any-return]


# ---------------------------------------------------------------------------------------------
# Reverse differentiation over a reading.


@dataclass(slots=True)
class _Step(Generic[T]):
    """``pullback``: the gradient of the input at a position, from that of the output."""

    output: int
    inputs: tuple[int, ...]
    pullback: Callable[[T, int], T]


@dataclass(slots=True, eq=False)
class _Tracked(Generic[T]):
    value: T
    index: int


@dataclass(slots=True)
class Tape(Generic[T]):
    """An `Interpreter` that records what is computed on another one, for `pull`.

    Example: of ``exp`` of [1, 2], with ones as the gradient of the result, ``pull`` gives [e, e^2].

    Tensors of a tape are tracked wrappers; `track` makes one, ``.value`` takes it out.  Gradients
    are computed only for what is ``wanted``, and for what depends on it.
    """

    base: Interpreter[T]
    steps: list[_Step[T]] = field(default_factory=list)
    wanted: list[bool] = field(default_factory=list)

    def track(self, value: T, *, wanted: bool = False) -> _Tracked[T]:
        """A tensor on the tape; ``wanted``: its gradient is asked for."""
        self.wanted.append(wanted)
        return _Tracked(value, len(self.wanted) - 1)

    def _record(
        self, value: T, inputs: Sequence[_Tracked[T]], pullback: Callable[[T, int], T]
    ) -> _Tracked[T]:
        output = self.track(value, wanted=any(self.wanted[x.index] for x in inputs))
        if self.wanted[output.index]:
            self.steps.append(_Step(output.index, tuple(x.index for x in inputs), pullback))
        return output

    def shape(self, x: _Tracked[T]) -> tuple[int, ...]:
        """The shape of the tracked value."""
        return self.base.shape(x.value)

    def einsum(
        self, spec: str, *xs: _Tracked[T], sizes: Mapping[str, int] | None = None
    ) -> _Tracked[T]:
        """A contraction; a factor's gradient is the contraction of the result's with the other
        factors."""
        value = self.base.einsum(spec, *(x.value for x in xs), sizes=sizes)
        left, output = spec.split("->")
        operands = left.split(",")
        extents = dict(sizes or {})
        for names, x in zip(operands, xs, strict=True):
            extents.update(zip(names, self.shape(x), strict=True))

        def pullback(gradient: T, position: int) -> T:
            return self._einsum_pullback(position, operands, output, xs, gradient, extents)

        return self._record(value, xs, pullback)

    def _einsum_pullback(
        self,
        position: int,
        operands: Sequence[str],
        output: str,
        xs: Sequence[_Tracked[T]],
        gradient: T,
        extents: Mapping[str, int],
    ) -> T:
        others = [i for i in range(len(xs)) if i != position]
        names = [output, *(operands[i] for i in others)]
        seen = set("".join(names))
        target = operands[position]
        sizes = {a: extents[a] for a in target if a not in seen}
        spec = ",".join(names) + "->" + target
        return self.base.einsum(spec, gradient, *(xs[i].value for i in others), sizes=sizes)

    def combine(
        self, xs: Sequence[_Tracked[T]], factors: Sequence[Fraction], constant: Fraction
    ) -> _Tracked[T]:
        """A weighted sum; an addend's gradient is the result's times its factor."""
        value = self.base.combine([x.value for x in xs], factors, constant)
        return self._record(value, xs, lambda g, i: scale(self.base, factors[i], g))

    def unary(self, function: str, x: _Tracked[T]) -> _Tracked[T]:
        """A function of every entry; the gradient is the result's times the function's
        derivative."""
        value = self.base.unary(function, x.value)
        return self._record(
            value,
            [x],
            lambda g, _: multiply(self.base, g, derivative(self.base, function, x.value, value)),
        )

    def reshape(self, x: _Tracked[T], shape: tuple[int, ...]) -> _Tracked[T]:
        """The same entries in another shape; the gradient is brought back into the old one."""
        before = self.shape(x)
        return self._record(
            self.base.reshape(x.value, shape), [x], lambda g, _: self.base.reshape(g, before)
        )

    def slice(self, x: _Tracked[T], dim: int, start: Affine, size: int) -> _Tracked[T]:
        """A part of a dimension; the gradient is zero outside of it."""
        value = self.base.slice(x.value, dim, start, size)
        return self._record(value, [x], lambda g, _: self._padded(g, x.value, dim, start, size))

    def _padded(self, gradient: T, x: T, dim: int, start: Affine, size: int) -> T:
        """Zero outside of the slice."""
        if start.terms:
            raise Unsupported("the derivative of a slice that depends on a coordinate")
        end, whole = start.const + size, self.base.shape(x)[dim]
        parts = [gradient]
        if start.const:
            parts.insert(0, scale(self.base, 0, self.base.slice(x, dim, Affine(), start.const)))
        if end < whole:
            rest = self.base.slice(x, dim, Affine(end), whole - end)
            parts.append(scale(self.base, 0, rest))
        return self.base.concat(parts, dim) if len(parts) > 1 else gradient

    def concat(self, xs: Sequence[_Tracked[T]], dim: int) -> _Tracked[T]:
        """Tensors one after the other; each gets its slice of the gradient."""
        sizes = [self.shape(x)[dim] for x in xs]
        starts = [Affine(sum(sizes[:i])) for i in range(len(sizes))]
        value = self.base.concat([x.value for x in xs], dim)
        return self._record(value, xs, lambda g, i: self.base.slice(g, dim, starts[i], sizes[i]))

    def amax(self, x: _Tracked[T], dim: int) -> _Tracked[T]:
        """A maximum, through which no gradient is derived: reading one raises `Unsupported`."""

        def refuse(_: T, position: int) -> T:
            raise Unsupported(
                "the derivative of a maximum inside an operator: declare its backward"
            )

        return self._record(self.base.amax(x.value, dim), [x], refuse)

    def onehot(self, ids: _Tracked[T], start: Affine, size: int) -> _Tracked[T]:
        """A one-hot of ids, through which no gradient flows."""
        return self.track(self.base.onehot(ids.value, start, size))

    def causal(self, queries: int, keys: int) -> _Tracked[T]:
        """The additive causal mask, a constant."""
        return self.track(self.base.causal(queries, keys))

    def order(self, queries: int, keys: int) -> _Tracked[T]:
        """The causal mask as 0 and 1, a constant."""
        return self.track(self.base.order(queries, keys))

    def select(self, scores: _Tracked[T], selection: Selection) -> _Tracked[T]:
        """A choice of experts, through which no gradient flows."""
        return self.track(self.base.select(scores.value, selection))

    def constant(self, name: str) -> _Tracked[T]:
        """A declared table of integers, a constant."""
        return self.track(self.base.constant(name))

    def pull(self, outputs: Sequence[_Tracked[T]], gradients: Sequence[T | None]) -> dict[int, T]:
        """Gradients by tracked index, for all that is wanted and that the outputs depend on."""
        arriving: dict[int, list[T]] = {}
        for output, gradient in zip(outputs, gradients, strict=True):
            if gradient is not None:
                arriving.setdefault(output.index, []).append(gradient)
        total: dict[int, T] = {}

        def settle(index: int) -> T | None:
            if index not in total and index in arriving:
                parts = arriving[index]
                total[index] = (
                    parts[0]
                    if len(parts) == 1
                    else self.base.combine(parts, [Fraction(1)] * len(parts), Fraction(0))
                )
            return total.get(index)

        for step in reversed(self.steps):
            gradient = settle(step.output)
            if gradient is None:
                continue
            for position, index in enumerate(step.inputs):
                if self.wanted[index]:
                    arriving.setdefault(index, []).append(step.pullback(gradient, position))
        for index in list(arriving):
            settle(index)
        return total


def held_constant(r: Interpreter[T], x: T) -> T:
    """``x``, which reverse differentiation shall not look into.

    For what cancels in the result, such as the maximum that a softmax subtracts.
    """
    return r.track(x.value) if isinstance(r, Tape) else x

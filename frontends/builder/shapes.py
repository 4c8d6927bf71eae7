"""Operators read over shapes alone: what a builder needs to know of a result.

`ShapeInterpreter` is the `engine.ops.primitives.Interpreter` in which a tensor is its shape, so
that the shapes of a plan follow from the same declarations as its meaning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import prod

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.errors import ShapeMismatch
from shardproof.engine.ops import apply_backward, apply_forward
from shardproof.engine.ops.primitives import CONSTANTS, Selection
from shardproof.engine.plan.ir import Attr

Shape = tuple[int, ...]


class ShapeInterpreter:
    """An interpreter whose tensors are shapes; raises `ShapeMismatch` where operands do not fit.

    Example: ``einsum("ab,bc->ac", (2, 3), (3, 4))`` is (2, 4); of (5, 4) it raises "sizes 3 and 5
    of one axis (ab,bc->ac)".
    """

    def shape(self, x: Shape) -> Shape:
        """A tensor is its shape here."""
        return x

    def einsum(self, spec: str, *xs: Shape, sizes: Mapping[str, int] | None = None) -> Shape:
        """The extents of the output's labels; raises `ShapeMismatch` where operands' differ."""
        left, output = spec.split("->")
        extents = dict(sizes or {})
        for names, x in zip(left.split(","), xs, strict=True):
            if len(names) != len(x):
                raise ShapeMismatch(f"operand {names} of shape {list(x)}")
            for name, size in zip(names, x, strict=True):
                if extents.setdefault(name, size) != size:
                    raise ShapeMismatch(f"sizes {extents[name]} and {size} of one axis ({spec})")
        return tuple(extents[name] for name in output)

    def combine(
        self, xs: Sequence[Shape], factors: Sequence[Fraction], constant: Fraction
    ) -> Shape:
        """The one shape of all addends."""
        if any(x != xs[0] for x in xs):
            raise ShapeMismatch(f"sum of shapes {[list(x) for x in xs]}")
        return xs[0]

    def unary(self, function: str, x: Shape) -> Shape:
        """A function of every entry changes no shape."""
        return x

    def reshape(self, x: Shape, shape: Shape) -> Shape:
        """The new shape; raises `ShapeMismatch` unless it has as many entries."""
        if prod(x) != prod(shape):
            raise ShapeMismatch(f"view of {list(x)} as {list(shape)}")
        return shape

    def slice(self, x: Shape, dim: int, start: Affine, size: int) -> Shape:
        """The shape with ``size`` in one dimension; raises `ShapeMismatch` outside of the
        dimension."""
        if not 0 <= size <= x[dim] or (not start.terms and not 0 <= start.const <= x[dim] - size):
            raise ShapeMismatch(f"slice [{start}, +{size}) of a dimension of {x[dim]}")
        return (*x[:dim], size, *x[dim + 1 :])

    def concat(self, xs: Sequence[Shape], dim: int) -> Shape:
        """The shape with the sum of the sizes in one dimension."""
        first = xs[0]
        if any(x[:dim] != first[:dim] or x[dim + 1 :] != first[dim + 1 :] for x in xs):
            raise ShapeMismatch(f"concatenation of {[list(x) for x in xs]}")
        return (*first[:dim], sum(x[dim] for x in xs), *first[dim + 1 :])

    def amax(self, x: Shape, dim: int) -> Shape:
        """The shape without the dimension."""
        return (*x[:dim], *x[dim + 1 :])

    def onehot(self, ids: Shape, start: Affine, size: int) -> Shape:
        """The shape of the ids, and a last dimension of classes."""
        return (*ids, size)

    def causal(self, queries: int, keys: int) -> Shape:
        """[queries, keys]."""
        return (queries, keys)

    def order(self, queries: int, keys: int) -> Shape:
        """[queries, keys]."""
        return (queries, keys)

    def select(self, scores: Shape, selection: Selection) -> Shape:
        """The shape of the scores with the chosen experts in the place of all."""
        return (*scores[:-1], selection.topk)

    def constant(self, name: str) -> Shape:
        """The shape of a declared table."""
        table = CONSTANTS[name]
        return (len(table), len(table[0]), len(table[0][0]))


class Inference:
    """Shapes of results, each distinct question answered once (layers repeat).

    Example: ``forward("linear", [(2, 4), (8, 4)], {})`` is ``[(2, 8)]``.
    """

    def __init__(self) -> None:
        self._interpreter = ShapeInterpreter()
        self._known: dict[tuple[object, ...], list[Shape]] = {}

    def forward(self, name: str, inputs: Sequence[Shape], attrs: Mapping[str, Attr]) -> list[Shape]:
        """Shapes of the outputs; raises `ShapeMismatch`, `Unsupported`."""
        key = (name, tuple(inputs), _frozen(attrs))
        if key not in self._known:
            self._known[key] = apply_forward(self._interpreter, name, inputs, attrs)
        return self._known[key]

    def backward(
        self,
        name: str,
        inputs: Sequence[Shape],
        gradients: Sequence[Shape | None],
        attrs: Mapping[str, Attr],
        wrt: Sequence[int],
    ) -> list[Shape]:
        """Shapes of the gradients of the inputs at ``wrt``; raises like `forward`."""
        key = (name, tuple(inputs), _frozen(attrs), tuple(gradients), tuple(wrt))
        if key not in self._known:
            self._known[key] = apply_backward(
                self._interpreter, name, inputs, gradients, attrs, wrt
            )
        return self._known[key]


def _frozen(attrs: Mapping[str, Attr]) -> tuple[tuple[str, type, Attr], ...]:
    return tuple((key, type(value), value) for key, value in attrs.items())

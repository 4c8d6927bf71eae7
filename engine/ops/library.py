"""Operators that captured graphs are lowered onto: contractions, rows chosen by ids, constants."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.engine.ops.declare import Attrs, integer, integers, number, operator, position
from shardproof.engine.ops.primitives import Reading, expand_as

R = Reading[Any]


def _elementwise(function: str) -> None:
    @operator(function, "... -> ...", "x")
    def forward(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
        return [r.unary(function, inputs[0])]


for _name in ("sin", "cos", "erf", "step"):
    _elementwise(_name)


@operator("einsum", "a k+, k+ n -> a n", "xs+", "equation:text")
def _einsum(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """A sum of products, ``ab,bc->ac``, without repeated letters in an operand."""
    equation = attrs.get("equation")
    left, arrow, right = equation.partition("->") if isinstance(equation, str) else ("", "", "")
    operands = left.split(",")
    letters = [*operands, right]
    if not arrow or not all(x == "" or (x.isalpha() and x.isascii()) for x in letters):
        raise Unsupported(f"einsum {equation!r}")
    if any(len(set(x)) < len(x) for x in letters) or set(right) - set(left):
        raise Unsupported(f"einsum {equation!r}")
    if [len(r.shape(x)) for x in inputs] != [len(x) for x in operands]:
        raise ShapeMismatch(f"einsum {equation} of {[list(r.shape(x)) for x in inputs]}")
    sizes: dict[str, int] = {}
    for names, x in zip(operands, inputs, strict=True):
        for name, size in zip(names, r.shape(x), strict=True):
            if sizes.setdefault(name, size) != size:
                raise ShapeMismatch(f"einsum {equation} of {[list(r.shape(x)) for x in inputs]}")
    return [r.einsum(str(equation), *inputs)]


@operator("full", " -> a", "", "size:integers value:number")
def _full(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """A tensor of one number."""
    table = r.constant("complex_product")
    single = r.combine([r.einsum("abc->", table)], [Fraction(0)], number(attrs, "value"))
    return [expand_as(r, single, integers(attrs, "size"))]


@operator("onehot", "b s -> b s v#", "ids", "start:position size:integer", data=(0,))
def _onehot(r: R, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """1 where an id is ``start`` plus the position along a new last dimension, else 0."""
    return [r.onehot(inputs[0], position(attrs, "start"), integer(attrs, "size"))]

"""Rules for operators of HLO that work on every element by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import inf
from typing import Any

import numpy as np

from shardproof.engine.errors import Unsupported
from shardproof.frontends.builder import piecewise
from shardproof.frontends.graphs.graph import Node, PerRank
from shardproof.frontends.hlo import gates, indices, masks, origins
from shardproof.frontends.hlo.endless import Endless
from shardproof.frontends.hlo.items import Gated, Ids, Item, Lookup, Tensor
from shardproof.frontends.hlo.known import Known, compact, exact
from shardproof.frontends.hlo.positive import nonnegative
from shardproof.frontends.hlo.state import Bounded, Lowering, Rule, integral


def number_of(item: Item) -> Any:
    """The one number of a constant; None for anything else, for example inf."""
    return item.number() if isinstance(item, Known) else None


def finite(item: Item) -> Fraction | None:
    """The one finite number that a tensor is everywhere; None: it is none that is known.  Example:
    1/2 for ``broadcast(constant(0.5))``; None for minus infinity and for a parameter."""
    number = number_of(item)
    if number is None or number in (inf, -inf) or number != number:
        return None
    return exact(number)


def _constant(low: Lowering, node: Node, number: Fraction) -> Item:
    """A constant, known where it is a float (whole numbers that arithmetic gives are compared)."""
    rounded = np.array(float(number), dtype="float32")
    if low.dtype(node) == "float32" and exact(rounded.item()) == number:
        return Known((np.broadcast_to(rounded, low.shape(node)),), "float32")
    return Tensor(low.values.full(low.shape(node), number))


def _predicate(low: Lowering, node: Node, holds: bool) -> Known:
    return Known((np.broadcast_to(np.array(holds), low.shape(node)),), "bool")


def _of_ids(low: Lowering, node: Node, xs: Sequence[Item]) -> Item | None:
    """What is computed of ids, exactly; None: no operand is one, or it is a number that is no
    function of one id."""
    dtype = low.dtype(node)
    if not any(isinstance(x, Ids) for x in xs) or not (integral(dtype) or dtype == "bool"):
        return None
    try:
        return indices.combine(low, node, xs)
    except Unsupported:
        if dtype.startswith("uint"):
            raise
        return None


def _of_predicates(low: Lowering, node: Node, xs: Sequence[Item], word: str) -> Item:
    """The operator of logic that arithmetic of predicates is; there is none of a difference."""
    if not word:
        raise Unsupported("a difference of predicates")
    return logical(low, replace(node, target=word), xs)


def add(low: Lowering, node: Node, xs: Sequence[Item], sign: int = 1) -> Item:
    """x + y, or x - y with ``sign`` -1; exact where both are numbers or functions of one id.
    Example: of ids, ``i + 9`` is the same id with offset 9; of a tensor and the constant 2, ``add``
    with ``other=2``; of minus infinity and a tensor, minus infinity; of predicates, "or"."""
    if low.dtype(node) == "bool":
        return _of_predicates(low, node, xs, "or" if sign > 0 else "")
    exact = _of_ids(low, node, xs)
    if exact is not None:
        return exact
    endless = _endless(low, node, xs[0], xs[1], sign)
    if endless is not None:
        return endless
    hiding = masks.added(low, xs, sign)
    if hiding is not None:
        shown, rest, limit = hiding
        masks.assume_finite(low)
        return select(low, node, [shown, add(low, node, rest, sign), limit])
    a, b = (finite(x) for x in xs)
    if a is not None and b is not None:
        return _constant(low, node, a + sign * b)
    if b is not None:
        return xs[0] if b == 0 else low.op("add", low.tensor(xs[0]), other=sign * b)
    if a is not None:
        other = low.tensor(xs[1])
        moved = other if sign > 0 else low.tensor(low.op("mul", other, other=Fraction(-1)))
        return Tensor(moved) if a == 0 else low.op("add", moved, other=a)
    return low.op("add" if sign > 0 else "sub", *map(low.tensor, xs))


def _endless(low: Lowering, node: Node, x: Item, y: Item, sign: int) -> Known | None:
    """An infinite constant plus or minus a number, which is finite, is that constant; None: neither
    operand is one, or both are."""
    limits = [number_of(i) if number_of(i) in (inf, -inf) else None for i in (x, y)]
    if (limits[0] is None) == (limits[1] is None):
        return None
    limit, number = (limits[0], y) if limits[1] is None else (sign * limits[1], x)
    # Minus infinity that is added to minus infinity is no harm.
    harmless = limit == (-inf if number is x else -sign * inf)
    masks.finite(low, number, "a sum with infinity", lowest=harmless)
    masks.assume_finite(low)
    return Known((np.broadcast_to(np.array(limit, dtype="float32"), low.shape(node)),), "float32")


def subtract(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """x - y.  Example: ``x - 0`` is ``x``, ``1 - x`` is ``x`` times -1, plus 1."""
    return add(low, node, xs, -1)


def multiply(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """x y; exact where both are numbers or functions of one id; with one known number a factor, for
    example ``mul`` with ``other=2`` of ``x * 2``; of predicates, "and"."""
    if low.dtype(node) == "bool":
        return _of_predicates(low, node, xs, "and")
    exact = _of_ids(low, node, xs)
    if exact is not None:
        return exact
    a, b = (finite(x) for x in xs)
    if a is not None and b is not None:
        return _constant(low, node, a * b)
    for factor, other in ((a, xs[1]), (b, xs[0])):
        if factor is not None:
            if factor != 1 and isinstance(other, Gated):
                return gates.scaled(low, other, factor)
            return other if factor == 1 else low.op("mul", low.tensor(other), other=factor)
    for place in (0, 1):
        if isinstance(one := xs[place], Gated):
            return gates.product(low, one, xs[1 - place])
        if (number := number_of(one)) in (inf, -inf) and isinstance(xs[1 - place], Tensor):
            return Endless(low.tensor(xs[1 - place]), 1 if number > 0 else -1, low.shape(node))
    return low.op("mul", *map(low.tensor, xs))


def divide(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """x / y of floats (of integers: `remainders`); raises `Unsupported` for the constant zero.
    Example: ``x / 4`` is ``div`` with ``other=4``; of ``rsqrt(v) / v``, which the derivative of
    ``rsqrt(v)`` has, it is ``r * r * r``, as norms by hand write it."""
    a, b = (finite(x) for x in xs)
    if b == 0:
        raise Unsupported("a division by the constant zero")
    if a is not None and b is not None:
        return _constant(low, node, a / b)
    if b is not None:
        return low.op("div", low.tensor(xs[0]), other=b)
    maker = low.maker(node.operands[0])
    if maker is not None and maker.target == "rsqrt" and maker.operands == node.operands[1:]:
        root = low.tensor(xs[0])
        return low.op("mul", low.op("mul", root, root).value, root)
    return low.op("div", *(low.tensor(x) for x in xs))


def negate(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """-x; exact for an index.  Example: ``negate(x)`` is ``mul`` of ``x`` with ``other=-1``."""
    if isinstance(xs[0], Ids):
        return indices.of_one(xs[0], "negate")
    number = finite(xs[0])
    if number is not None:
        return _constant(low, node, -number)
    if isinstance(xs[0], Gated):
        return gates.scaled(low, xs[0], Fraction(-1))
    return low.op("mul", low.tensor(xs[0]), other=Fraction(-1))


#: What functions are of infinite constants.
_LIMITS = {
    ("exp", -inf): 0,
    ("sigmoid", -inf): 0,
    ("sigmoid", inf): 1,
    ("tanh", -inf): -1,
    ("tanh", inf): 1,
}


def function(operator: str) -> Rule:
    """The rule of a declared function of every entry; constants at infinity are its limits there.
    Example: the rule of ``exp`` makes ``exponential(x)`` the operator ``exp`` of ``x``, and of the
    constant minus infinity 0."""

    def rule(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
        number = number_of(xs[0])
        limit = _LIMITS.get((operator, number)) if number in (inf, -inf) else None
        if limit is not None:
            return _constant(low, node, Fraction(limit))
        return low.op(operator, low.tensor(xs[0]))

    return rule


def _step(low: Lowering, x: int) -> int:
    """1 where x > 0, else 0."""
    return low.op("step", x).value


def maximum(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """p x + (1 - p) y with p = step(x - y), which is x or y; of minus infinity, the other one.
    Example: ``maximum(x, 0)`` is ``x * step(x)``; in ``minimum(x, y)`` p is ``step(y - x)``."""
    made = _larger(low, node, xs)
    for one, other in (xs, xs[::-1]):
        if isinstance(made, Tensor) and isinstance(other, Tensor) and finite(one) is not None:
            low.bounded[made.value] = Bounded(node.target, tuple(xs), other.value)
    return made


def _larger(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """The larger (smaller) one of two."""
    exact = _of_ids(low, node, xs)
    if exact is not None:
        return exact
    ignored = -inf if node.target == "maximum" else inf
    for one, other in (xs, xs[::-1]):
        if number_of(one) == ignored:
            return other
    if finite(xs[0]) is not None and finite(xs[1]) is None:
        xs = xs[::-1]  # max(0, x) is max(x, 0).
    numbers = [low.tensor(i) for i in xs]
    x, y = numbers if node.target == "maximum" else numbers[::-1]
    if finite(xs[1]) == 0 and node.target == "maximum":
        return low.op("mul", x, _step(low, x))
    # A choice gives the chosen one exactly, so what is compared with it afterwards is equal still.
    first = Tensor(_step(low, low.op("sub", x, y).value))
    given = (i if isinstance(i, Known) else Tensor(v) for i, v in zip(xs, numbers, strict=True))
    return _mixed(low, node, first, *given)


def clamp(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """x between two bounds, which may be known numbers or tensors; for example, between 0 and 6 it
    is min(6, max(x, 0))."""
    if isinstance(xs[1], Ids):
        return indices.clamp(low, node, xs)
    lower = Node(node.name, "maximum", node.operands, node.results)
    upper = Node(node.name, "minimum", node.operands, node.results)
    return maximum(low, upper, [maximum(low, lower, [xs[1], xs[0]]), xs[2]])


def abs(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """|x|, made of the step function; x itself where it cannot be negative.  Example:
    ``x * (2 * step(x) - 1)``; ``abs(exponential(x))`` is ``exponential(x)``."""
    if isinstance(xs[0], Ids):
        return indices.of_one(xs[0], "abs")
    x = low.tensor(xs[0])
    if nonnegative(low.recorder, x):
        return Tensor(x)
    double = low.op("mul", _step(low, x), other=Fraction(2)).value
    return low.op("mul", x, low.op("add", double, other=Fraction(-1)).value)


def sign(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """1, 0 or -1: step(x) - step(-x).  Example: of a parameter that is two steps and their
    difference; of ids it is a function of the id."""
    if isinstance(xs[0], Ids):
        return indices.of_one(xs[0], "sign")
    x = low.tensor(xs[0])
    negative = low.op("mul", x, other=Fraction(-1)).value
    return low.op("sub", _step(low, x), _step(low, negative))


def compare(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """A comparison, as numbers 0 and 1.  Example: ``x > y`` is ``step(x - y)``, ``x >= y`` is
    ``1 - step(y - x)``, and ``x < inf`` is true, under the printed assumption that numbers are
    finite."""
    exact = _of_ids(low, node, xs)
    if exact is not None:
        return exact
    if node.attrs.get("type") == "TOTALORDER":
        raise Unsupported("comparison in total order")
    against = _against_infinity(low, node, xs)
    if against is not None:
        return against
    x, y = (low.tensor(i) for i in xs)
    if x == y:
        return _with_itself(low, node, xs[0])
    known = _never_negative(low, node, xs)
    if known is not None:
        return known
    over = _step(low, low.op("sub", x, y).value)
    under = _step(low, low.op("sub", y, x).value)
    match node.attrs.get("direction"):
        case "GT":
            return Tensor(over)
        case "LT":
            return Tensor(under)
        case "GE":
            return inverse(low, under)
        case "LE":
            return inverse(low, over)
        case "NE":
            return low.op("add", over, under)
        case "EQ":
            return inverse(low, low.op("add", over, under).value)
    raise Unsupported(f"comparison {node.attrs.get('direction')}")


def _against_infinity(low: Lowering, node: Node, xs: Sequence[Item]) -> Item | None:
    """A comparison of numbers, which are finite, with an infinite constant; None: it is none."""
    for place, sign in ((0, -1), (1, 1)):
        limit = number_of(xs[place])
        if limit in (inf, -inf):
            # How the number lies to the limit: below plus infinity, above minus infinity.
            below = (limit == inf) == (sign == 1)
            side = ("LT", "LE", "NE") if below else ("GT", "GE", "NE")
            holds = node.attrs.get("direction") in side
            masks.finite(low, xs[1 - place], "a comparison with infinity")
            masks.assume_finite(low)
            return _predicate(low, node, holds)
    return None


def _with_itself(low: Lowering, node: Node, x: Item) -> Known:
    """A comparison of a number with itself; of what may be none it is assumed to be one."""
    masks.finite(low, x, "a comparison with itself", lowest=True)
    if not low.reaches.is_total(low.tensor(x)):
        masks.assume_finite(low)
    return _predicate(low, node, node.attrs.get("direction") in ("EQ", "GE", "LE"))


def _never_negative(low: Lowering, node: Node, xs: Sequence[Item]) -> Known | None:
    """A comparison with a number that is not positive, of what is never negative by how it is made;
    None: another one, or it depends."""
    direction = node.attrs.get("direction")
    for item, other, holds, fails in (
        (xs[0], xs[1], ("GE", "GT", "NE"), ("LT", "LE", "EQ")),
        (xs[1], xs[0], ("LE", "LT", "NE"), ("GT", "GE", "EQ")),
    ):
        number = finite(other)
        if number is None or number > 0 or not nonnegative(low.recorder, low.tensor(item)):
            continue
        if direction in holds and (number < 0 or direction == holds[0]):
            return _predicate(low, node, True)
        if direction in fails and (number < 0 or direction == fails[0]):
            return _predicate(low, node, False)
    return None


def inverse(low: Lowering, x: int) -> Tensor:
    """1 - x: for example, what "not" is of predicates."""
    return low.op("add", low.op("mul", x, other=Fraction(-1)).value, other=Fraction(1))


def invert(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """not x, of predicates and, as -1 - x, of integers with a sign.  Example: ``not(m)`` of a mask
    that is an input is the function 1 - m of its ids, in [0, 2)."""
    if low.dtype(node).startswith("int"):
        ones = Known(
            (np.broadcast_to(np.array(-1, low.dtype(node)), low.shape(node)),), low.dtype(node)
        )
        return subtract(low, node, [ones, xs[0]])
    if low.dtype(node) != "bool":
        raise Unsupported("bits of integers")
    if isinstance(xs[0], Ids):
        negated = tuple(piecewise.negated(f) for f in xs[0].functions)
        return Ids(xs[0].origin, xs[0].axes, xs[0].shape, negated)
    return inverse(low, low.tensor(xs[0]))


def logical(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """and, or of predicates; with a known operand, the other one or a constant.  Example:
    ``and(m, true)`` is ``m``; of two tensors, ``or(p, q)`` is p + q - p q."""
    if low.dtype(node) != "bool":
        raise Unsupported("bits of integers")
    for one, other in (xs, xs[::-1]):
        number = one.number() if isinstance(one, Known | Ids) else None
        if number is not None and node.target == "xor":
            return invert(low, node, [other]) if number else other
        if number is not None:
            keeps = bool(number) == (node.target == "and")
            return other if keeps else one
    exact = _of_ids(low, node, xs) if all(isinstance(x, Ids) for x in xs) else None
    if exact is not None:
        return exact
    x, y = (low.tensor(i) for i in xs)
    both = low.op("mul", x, y).value
    if node.target == "and":
        return Tensor(both)
    if node.target == "xor":
        twice = low.op("mul", both, other=Fraction(2)).value
        return low.op("sub", low.op("add", x, y).value, twice)
    return low.op("sub", low.op("add", x, y).value, both)


def of_rank(p: Item) -> PerRank | None:
    """A predicate that is the same everywhere on a rank, as a number for each rank; None: it is
    another.  Example: of ``broadcast(partition-id() > 0)`` on two ranks, 0 and 1."""
    if not isinstance(p, Known) or len(p.arrays) < 2:
        return None
    cores = [compact(array) for array in p.arrays]
    if any(core.min() != core.max() for core in cores):
        return None
    return PerRank(tuple(int(core.min()) for core in cores))


def _is_part(low: Lowering, xs: Sequence[Item]) -> bool:
    """Whether a choice between numbers is by a part of a mask that the other side has."""
    p, *numbers = xs
    if not isinstance(p, Known) or any(number_of(x) in (inf, -inf) for x in numbers):
        return False
    return origins.parts(p, low.values.tables) is not None


def chosen_by_rank(low: Lowering, p: PerRank, x: int, y: int) -> Tensor:
    """One of two tensors side by side, by the rank.  Example: x where p is 1, y where it is 0."""
    shape = low.recorder.shape(x)
    both = low.op("concat", *(low.values.view(v, (1, *shape)) for v in (y, x)), dim=0).value
    own = low.op("slice", both, dim=0, start=p, size=1).value
    return Tensor(low.values.view(own, shape))


def select(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """p x + (1 - p) y; where p is known and the same everywhere on a rank, one of both.  Example:
    ``select(partition-id() == 0, x, 0)`` is a slice of zeros and ``x`` side by side, which begins
    at 1 on rank 0 and at 0 on the others."""
    p, x, y = xs
    number = p.number() if isinstance(p, Known | Ids) else None
    if number is not None:
        return x if number else y
    by_rank = None if _is_part(low, xs) else of_rank(p)
    if by_rank is not None and not any(isinstance(i, Ids) for i in (x, y)):
        return chosen_by_rank(low, by_rank, low.tensor(x), low.tensor(y))
    by_ids = isinstance(p, Ids) and any(isinstance(i, Ids | Lookup) for i in (x, y))
    if isinstance(p, Ids) and (by_ids or low.dtype(node) == "bool" or integral(low.dtype(node))):
        if integral(low.dtype(node)) and not indices.of_one_id(p, x, y):
            return _mixed(low, node, p, x, y)
        return indices.select(low, node, p, x, y)
    if isinstance(p, Known) and number_of(y) == -inf:
        shown = masks.causal(low, p, x)
        if shown is not None:
            return shown
    masks.assume_left_out(low, x, y)
    gated = _gated(low, p, x, y)
    if gated is not None:
        return gated
    return _mixed(low, node, p, *(masks.hidden(low, p, i) for i in (x, y)))


def _gated(low: Lowering, p: Item, x: Item, y: Item) -> Gated | None:
    """A tensor for some ids, zero for the others; None: another choice."""
    if not isinstance(p, Ids):
        return None
    by_rank = len(p.functions) > 1 and finite(x) is not None
    if finite(y) == 0 and (by_rank or (finite(x) is None and number_of(x) is None)):
        return gates.gated(low, x, p)
    if finite(x) == 0 and finite(y) is None and number_of(y) is None:
        negated = tuple(piecewise.negated(f) for f in p.functions)
        return gates.gated(low, y, Ids(p.origin, p.axes, p.shape, negated))
    return None


def _mixed(low: Lowering, node: Node, p: Item, x: Item, y: Item) -> Item:
    """p x + (1 - p) y of numbers."""
    for other in (x, y):
        if isinstance(other, Known) and other.number() is not None and finite(other) is None:
            raise Unsupported(f"a choice of {other.number()}")
    chosen = low.tensor(p)
    parts = []
    for mask, item in ((chosen, x), (None, y)):
        number = finite(item)
        if number == 0:
            continue
        if mask is None:
            mask = inverse(low, chosen).value
        if number is not None:
            parts.append(low.op("mul", mask, other=number).value if number != 1 else mask)
        else:
            parts.append(low.op("mul", mask, low.tensor(item)).value)
            low.reaches.chosen.add(parts[-1])
    if not parts:
        return _constant(low, node, Fraction(0))
    return Tensor(parts[0]) if len(parts) == 1 else low.op("add", *parts)


def is_finite(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """True everywhere, under the printed assumption that values are finite, for example of a loss
    before an optimizer step."""
    masks.finite(low, xs[0], "is-finite")
    masks.assume_finite(low)
    return _predicate(low, node, True)


def shifted(operator: str, before: int, after: int) -> Rule:
    """operator(x + before) + after.  Example: the rule of ``log-plus-one`` is
    ``shifted("log", 1, 0)``: an ``add`` of 1, then ``log``."""

    def rule(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
        x = low.tensor(xs[0])
        if before:
            x = low.op("add", x, other=Fraction(before)).value
        result = low.op(operator, x)
        return low.op("add", result.value, other=Fraction(after)) if after else result

    return rule

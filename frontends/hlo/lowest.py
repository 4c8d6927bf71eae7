"""Values that are minus infinity on some ranks, as a mask by the rank makes them.

A ring of ranks under a causal mask hides whole blocks from some ranks: ``where(keys <= queries,
scores, -inf)`` of a block is the scores on ranks whose queries come later, and minus infinity on
the others.  That is computed with as IEEE's arithmetic does, rank by rank: moved, and less or plus
a finite number, it stays; its largest entries are minus infinity; the larger one of it and a number
is that number; its exponential is 0.  Everything else is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import inf
from typing import Final

from shardproof.engine.errors import Unsupported
from shardproof.frontends.graphs.graph import Node, PerRank
from shardproof.frontends.hlo import elementwise, masks, own_rows
from shardproof.frontends.hlo.elementwise import finite, number_of
from shardproof.frontends.hlo.endless import Lowest
from shardproof.frontends.hlo.items import Item, Tensor
from shardproof.frontends.hlo.state import Lowering

Rule = Callable[[Lowering, Node, Sequence[Item]], Item]

#: Other places of the same entries, and casts between floats.
_MOVES: Final = frozenset({"broadcast", "reshape", "transpose", "reverse", "slice", "convert"})


def select(low: Lowering, node: Node, xs: Sequence[Item]) -> Item:
    """A choice (`own_rows.select`); of a tensor and minus infinity, by the rank, `Lowest`.

    Example: ``select(partition-id() >= 2, x, -inf)`` of four ranks is x on the last two.
    """
    p, *both = xs
    by_rank = elementwise.of_rank(p)
    for place, item in enumerate(both):
        other = both[1 - place]
        if by_rank is None or number_of(item) != -inf or number_of(other) == -inf:
            continue
        shown = tuple(bool(holds) == (place == 1) for holds in by_rank.values)
        if isinstance(other, Lowest):
            shown = tuple(a and b for a, b in zip(shown, other.shown, strict=True))
            return Lowest(other.value, shown, other.shape)
        return Lowest(low.tensor(other), shown, low.shape(node))
    return own_rows.select(low, node, xs)


def apply(low: Lowering, node: Node, xs: Sequence[Item], rule: Rule) -> Item:
    """The result of an operator of `Lowest` operands; ``rule``: what it is of others.

    Example: ``exponential`` of what is minus infinity on rank 0 is 0 there.
    """
    if node.target in _MOVES or (node.target == "reduce" and _is_largest(node, xs)):
        if not low.dtype(node).startswith(("float", "bfloat")):
            raise Unsupported("minus infinity as an integer")
        return _kept(low, node, xs, rule)
    if node.target == "maximum":
        return _larger(low, node, xs, rule)
    one, *rest = xs
    if node.target == "exponential" and isinstance(one, Lowest):
        e = low.tensor(rule(low, node, [Tensor(one.value)]))
        return _by_rank(low, one, e, low.values.full(one.shape, Fraction(0)))
    if node.target in ("add", "subtract"):
        number = next((x for x in xs if not isinstance(x, Lowest)), None)
        if number is None or (node.target == "subtract" and number is one):
            raise Unsupported("a difference of minus infinities, or from a number")
        masks.finite(low, number, "a sum with minus infinity", lowest=node.target == "add")
        return _kept(low, node, xs, rule)
    factor = finite(rest[0]) if len(rest) == 1 else None
    if node.target in ("multiply", "divide") and factor is not None and factor > 0:
        return _kept(low, node, xs, rule)
    raise Unsupported(f"{node.target} of what is minus infinity on some ranks")


def _is_largest(node: Node, xs: Sequence[Item]) -> bool:
    return len(xs) == 2 and node.attrs["to_apply"] == "maximum" and number_of(xs[1]) == -inf


def _kept(low: Lowering, node: Node, xs: Sequence[Item], rule: Rule) -> Lowest:
    """What a rule makes of the value, on the ranks that have it."""
    (item,) = (x for x in xs if isinstance(x, Lowest))
    made = rule(low, node, [Tensor(x.value) if x is item else x for x in xs])
    return Lowest(low.tensor(made), item.shown, low.shape(node))


def _larger(low: Lowering, node: Node, xs: Sequence[Item], rule: Rule) -> Item:
    """The larger one of two, of which one or both are minus infinity on some ranks."""
    one, other = xs if isinstance(xs[0], Lowest) else xs[::-1]
    assert isinstance(one, Lowest)
    if number_of(other) == -inf:
        return one
    if isinstance(other, Lowest):
        both = low.tensor(rule(low, node, [Tensor(one.value), Tensor(other.value)]))
        some = tuple(a or b for a, b in zip(one.shown, other.shown, strict=True))
        first = low.tensor(_by_rank(low, one, both, other.value))
        made = low.tensor(_by_rank(low, other, first, one.value))
        return Tensor(made) if all(some) else Lowest(made, some, low.shape(node))
    both = low.tensor(rule(low, node, [Tensor(one.value), other]))
    return _by_rank(low, one, both, low.tensor(other))


def _by_rank(low: Lowering, item: Lowest, shown: int, other: int) -> Tensor:
    """One value on the ranks that have the item's, another one on the others."""
    table = PerRank(tuple(map(int, item.shown)))
    return elementwise.chosen_by_rank(low, table, shown, other)

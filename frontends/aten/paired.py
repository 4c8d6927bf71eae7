"""Operators of complex tensors that move numbers or add them up: they do with pairs what they do
with real numbers, along dimensions that are counted from the front.

Example: ``roll(z, [1], [-1])`` of z [3, 4], which is [3, 4, 2] here, is that of dimension 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten.lowering import Lowering, dimensions
from shardproof.frontends.aten.rules import TABLE, lowers


class Place(NamedTuple):
    """Where an operator names its dimensions: the operand's name, its number among all, and what it
    is if it is left out (None: it must be there).

    Example: ``Place("dim", 1)`` of ``flip``, whose second operand is its dimensions.
    """

    name: str
    number: int
    default: Any = None


#: Those whose second operand is written into the first one.
WRITES: Final = frozenset({"slice_scatter.default", "select_scatter.default"})
#: By overload; the first operand is the tensor, or the tensors.
PLACES: Final[Mapping[str, Place]] = {
    "slice_scatter.default": Place("dim", 2, 0),
    "select_scatter.default": Place("dim", 2),
    "index_select.default": Place("dim", 1),
    "flip.default": Place("dims", 1),
    "roll.default": Place("dims", 2),
    "cumsum.default": Place("dim", 1),
    "mean.dim": Place("dim", 1),
    "stack.default": Place("dim", 1, 0),
    "split.Tensor": Place("dim", 2, 0),
    "split_with_sizes.default": Place("dim", 2, 0),
    "chunk.default": Place("dim", 2, 0),
    "unbind.int": Place("dim", 1, 0),
}


def _from_the_front(shape: Sequence[int], dim: Any, more: int) -> Any:
    """Dimensions of a complex tensor, counted from the front; ``more``: how many the result has
    beyond it, which may be named, too."""
    if dim is None or dim in ([], ()):
        raise Unsupported("complex numbers along dimensions that are not named")
    wide = (*(1,) * more, *shape)
    if isinstance(dim, int):
        return dimensions(wide, [dim])[0]
    return list(dimensions(wide, list(dim)))


def _registered(overload: str, place: Place) -> None:
    @lowers(f"complex.{overload}")
    def rule(lo: Lowering, x: Any, *args: Any, pairs: Sequence[bool], **named: Any) -> Any:
        several = isinstance(x, (list, tuple))
        every = list(x) if several else [x]
        shape = every[0].shape[:-1]
        beside = overload in WRITES and not pairs[1]
        if beside or any(len(one.shape) != len(shape) + 1 for one in every):
            raise Unsupported("complex tensors beside real ones")
        given = list(args)
        at = place.number - 1
        own = given[at] if at < len(given) else named.pop(place.name, place.default)
        wanted = _from_the_front(shape, own, int(overload == "stack.default"))
        if at < len(given):
            given[at] = wanted
        else:
            named[place.name] = wanted
        return TABLE[f"aten.{overload}"](lo, x, *given, **named)


for _overload, _place in PLACES.items():
    _registered(_overload, _place)


def _placed(overload: str) -> None:
    """A gradient put back where it was read, in zeros of given sizes: those of pairs."""

    @lowers(f"complex.{overload}")
    def rule(
        lo: Lowering,
        gradient: Any,
        sizes: Sequence[int],
        dim: int,
        *args: Any,
        pairs: Sequence[bool],
    ) -> Any:
        if not pairs[0]:
            raise Unsupported("a real gradient of complex numbers")
        (at,) = dimensions(tuple(sizes), [dim])
        return TABLE[f"aten.{overload}"](lo, gradient, [*sizes, 2], at, *args)


_placed("slice_backward.default")
_placed("select_backward.default")

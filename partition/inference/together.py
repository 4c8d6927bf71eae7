"""What ranks made of one addend each, added up, as what the single device makes of the sum.

The gradient of an expert's weight goes through the backward of the router's softmax and through a
product with the router's matrix.  A rank takes all that of the gradient for its own expert, the
single device of the sum for all of them: ``f(a) + f(b)`` is ``f(a + b)``, however many definitions
``f`` is made of, as long as each is linear in what the addends differ in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import count
from string import ascii_letters
from sys import maxsize
from typing import NamedTuple

from shardproof.engine.algebra.affine import ZERO
from shardproof.engine.lineage.expressions import Combine, Einsum, Operand
from shardproof.engine.lineage.lineage import BROADCAST, Addend, Lineage, StridedInterval, View
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.lineage.views import Misaligned
from shardproof.partition.inference.canonical import Draft, canonical
from shardproof.partition.inference.closing import composed
from shardproof.partition.inference.match import Matcher
from shardproof.partition.inference.one_by_one import OneByOne
from shardproof.partition.inference.opened import opened

#: Addends that are added up, and sums that are tried for one value.
MOST_ADDENDS, MOST_SUMS = 64, 24

ONE = Fraction(1)

#: The node of an operand that is left open, behind all others, and that of the result, before them.
_OPEN, _RESULT = maxsize, -1

#: A product with one operand left open, and how an addend views it.
Key = tuple[object, ...]


class _Open(NamedTuple):
    """An addend that is a view of a product, with one of its operands left open; ``numbers``: of
    its labels, by where they are in all else."""

    addend: Addend
    definition: Einsum
    place: int
    numbers: Mapping[int, int]

    @property
    def operand(self) -> Operand:
        """What is left open, in the order of its labels' numbers: its node may have its axes in any
        other."""
        operand = self.definition.operands[self.place]
        return operand._replace(
            intervals=tuple(sorted(operand.intervals, key=lambda own: self.numbers[own[-1]]))
        )


class _Made(NamedTuple):
    """A sum as what is made of the single device's values, and the definitions that show it."""

    lineage: Lineage
    opened: frozenset[int]


class Together:
    """Sums of values that ranks alone have, as linear operators of the single device's sums.

    Example: ``a c`` and ``b c`` add up to ``(a + b) c`` where the single device has ``a + b``.
    """

    def __init__(
        self,
        table: NodeTable,
        fold: Callable[[Lineage], Lineage],
        einsum: Callable[..., Lineage],
        matcher: Matcher,
    ) -> None:
        """``fold``, ``einsum``: sums and products over lineages, in which ``matcher`` finds
        values."""
        self._table = table
        self._reference_size = matcher.reference_size
        self._fold = fold
        self._einsum = einsum
        self._matcher = matcher
        self._opened = matcher.opened
        self._one_by_one = OneByOne(table, matcher.reference_size, einsum)
        self._memo: dict[tuple[tuple[int, ...], tuple[Addend, ...]], _Made | None] = {}
        self._sums = count()
        self._inside = False

    def of(self, x: Lineage) -> Lineage | None:
        """The sum as a value of the single device; None where it is none.

        Example: ``n40[a0[4]] + n41[a0[4]]``, which only ranks have, is ``n31[a0[4]]``.
        """
        if self._inside or not self._one_by_one.fit(x.addends):
            return None
        before = frozenset(self._opened)
        self._inside, self._sums = True, count()
        try:
            with self._matcher.aside():
                made = self._sum(self._at_positions(x))
        except Misaligned:
            made = None
        finally:
            self._inside = False
        if made is None or not self._is_known(made):
            self._opened.intersection_update(before)
            return None
        return made

    def _at_positions(self, x: Lineage) -> Lineage:
        """A sum, of whose parts of sums each position is an addend."""
        self._opened |= {t.node for t in x.addends if t.partials}
        return x._replace(addends=tuple(self._one_by_one.of(x.addends)))

    def _is_known(self, x: Lineage) -> bool:
        return all(t.node < self._reference_size and not t.partials for t in x.addends)

    def _sum(self, x: Lineage) -> Lineage | None:
        """A sum as what is made of the single device's values; None where it is none."""
        key = x.shape, tuple(sorted(x.addends, key=repr))
        if key not in self._memo:
            before = frozenset(self._opened)
            self._opened.clear()
            made = None if next(self._sums) >= MOST_SUMS else self._made(x)
            self._memo[key] = None if made is None else _Made(made, frozenset(self._opened))
            self._opened |= before
        known = self._memo[key]
        if known is None:
            return None
        self._opened |= known.opened
        return known.lineage

    def _made(self, x: Lineage) -> Lineage | None:
        if any(t.partials or t.places for t in x.addends) or len(x.addends) > MOST_ADDENDS:
            return None
        total = self._fold(x)
        if self._is_known(total):
            return total
        whole: list[Addend] = []
        alike: dict[Key, list[_Open]] = {}
        addends = list(self._addends(x))
        keys = [dict(self._keys(t)) for t in addends]
        counts: dict[Key, int] = {}
        for own in keys:
            for key in own:
                counts[key] = counts.get(key, 0) + 1
        for addend, own in zip(addends, keys, strict=True):
            if addend.node < self._reference_size and max((counts[k] for k in own), default=0) < 2:
                whole.append(addend)
            elif not own:
                return None
            else:
                best = max(own, key=lambda k: counts[k])
                alike.setdefault(best, []).append(own[best])
        for group in alike.values():
            made = self._of_group(x.shape, group)
            if made is None:
                return None
            whole += made
        total = self._fold(Lineage(x.shape, tuple(whole)))
        return total if not any(t.partials for t in total.addends) else None

    def _addends(self, x: Lineage) -> Iterator[Addend]:
        """The addends of a sum, those that are sums themselves, which ranks alone have, opened."""
        for addend in x.addends:
            definition = self._table[addend.node].definition
            if addend.node < self._reference_size or not isinstance(definition, Combine):
                yield addend
                continue
            parts = opened(self._table, addend)
            if not parts:
                raise Misaligned
            self._opened.add(addend.node)
            yield from self._addends(Lineage(x.shape, tuple(parts)))

    def _keys(self, addend: Addend) -> Iterator[tuple[Key, _Open]]:
        """An addend as a product with each of its operands left open in turn."""
        definition = self._table[addend.node].definition
        if not isinstance(definition, Einsum) or self._table[addend.node].coordinates:
            return
        for place in range(len(definition.operands)):
            yield _left_open(addend, definition, place)

    def _of_group(self, shape: tuple[int, ...], group: Sequence[_Open]) -> Sequence[Addend] | None:
        """Addends that differ in the operand that is left open, as one over the sum of these."""
        if len(group) < 2:
            return None
        first, *_ = group
        parts = tuple(_read(one.operand, one.addend.factor) for one in group)
        inner = self._sum(Lineage(_sizes(first.operand), parts))
        if inner is None:
            return None
        places = [
            (place, first.operand if place == first.place else o)
            for place, o in enumerate(first.definition.operands)
        ]
        operands = [
            inner if place == first.place else Lineage(_sizes(o), (_read(o),))
            for place, o in places
        ]
        names = ["".join(ascii_letters[x] for _, _, _, x in o.intervals) for _, o in places]
        output = "".join(ascii_letters[x] for x in first.definition.outputs)
        made = self._einsum(f"{','.join(names)}->{output}", *operands)
        self._opened |= {one.addend.node for one in group}
        self._opened |= {t.node for t in (*made.addends, *inner.addends)}
        whole = first.addend._replace(factor=Fraction(1))
        return [composed(whole, t) for t in made.addends]


def _left_open(addend: Addend, definition: Einsum, place: int) -> tuple[Key, _Open]:
    """A view of a product with one operand left open, and all of it but that operand's node and its
    factor: the order of the axes of what is left open tells nothing."""
    outputs = definition.outputs
    inside = [a for dim in addend.view.dims for a in dim if a.axis != BROADCAST]
    seen = [outputs[a.axis] for a in (*inside, *addend.view.fixed)]
    extents = {x: n for o in definition.operands for _, _, n, x in o.intervals}
    drafts: list[Draft] = [(_RESULT, _apart([(x, extents[x]) for x in seen]), (), ())]
    for number, o in enumerate(definition.operands):
        if number == place:
            drafts.append((_OPEN, _apart([(x, n) for _, _, n, x in o.intervals]), (), ()))
        else:
            read = tuple((StridedInterval(a, s, n, ZERO, n), x) for a, s, n, x in o.intervals)
            drafts.append((o.node, read, _fixed(o), ()))
    form = canonical(drafts, frozenset(outputs), extents)
    numbers = {x: number for x, (number, _, _) in form.labels.items()}
    one = _Open(addend, definition, place, numbers)
    labels = tuple((n, numbers[x]) for _, _, n, x in one.operand.intervals)
    dims = tuple(
        tuple((_number(a, outputs, numbers), a[1:]) for a in dim) for dim in addend.view.dims
    )
    fixed = tuple((_number(a, outputs, numbers), a[1:]) for a in addend.view.fixed)
    return (form.operands[1:-1], labels, dims, fixed), one


def _number(interval: StridedInterval, outputs: Sequence[int], numbers: Mapping[int, int]) -> int:
    """The number of the label that an interval of a view runs along."""
    return BROADCAST if interval.axis == BROADCAST else numbers[outputs[interval.axis]]


def _apart(labels: Sequence[tuple[int, int]]) -> tuple[tuple[StridedInterval, int], ...]:
    """Labels with their extents, each along an axis of its own."""
    return tuple((StridedInterval(i, 1, n, ZERO, n), x) for i, (x, n) in enumerate(labels))


def _fixed(operand: Operand) -> tuple[StridedInterval, ...]:
    return tuple(StridedInterval(a, s, n, start, 1) for a, s, n, start in operand.fixed)


def _sizes(operand: Operand) -> tuple[int, ...]:
    return tuple(n for _, _, n, _ in operand.intervals)


def _read(operand: Operand, factor: Fraction = ONE) -> Addend:
    """An operand as a tensor with a dimension for each of its labels."""
    dims = tuple((StridedInterval(a, s, n, ZERO, n),) for a, s, n, _ in operand.intervals)
    return Addend(factor, operand.node, View(dims, _fixed(operand)))

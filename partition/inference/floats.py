"""Where positions of one of many go: what a product or a sum makes of them.

One head of eight: a product of two tensors that are of this head keeps it, the output projection
sums over it, a fused gate has two halves of which each is one.  Which it is cannot be told from the
tensors, whose dimensions do not say (`engine.lineage.floating`).  The first guess follows the
dimensions. Where it gives a value that the single-device program does not have, the other ways are
tried, and the one that gives a value that it has is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, combinations, islice, product
from math import gcd
from typing import NamedTuple, TypeAlias

from shardproof.engine.algebra.affine import Affine, affine
from shardproof.engine.lineage.expressions import Einsum
from shardproof.engine.lineage.floating import floating, settled, within
from shardproof.engine.lineage.layout import Misaligned
from shardproof.engine.lineage.lineage import BROADCAST, Atom, Layout, Part, Term
from shardproof.engine.lineage.nodes import NodeTable, Token

#: Ways that are tried for one operator, and exposures that are combined.
MOST_WAYS, MOST_EXPOSED = 96, 4
#: Ways of rarer kinds that are tried for one operator.
MOST_RARER = 160
#: Ways to take positions together that are alike.
MOST_MATCHINGS = 12
#: The largest number of blocks that are fused in a position.
MOST_DIGITS = 4


#: A view as part of a sum of the single-device program (None: it is none).
Sides: TypeAlias = Callable[[Term], Term | None]


class Way(NamedTuple):
    """``terms``: views with dimensions behind their own, of size 1, named by ``labels`` term by
    term; ``kept``: those labels that the result keeps."""

    terms: tuple[Term, ...]
    labels: tuple[str, ...]
    kept: str


def ways(
    terms: Sequence[Term], mesh: Mapping[str, int], letters: str, *, sums: bool, sides: Sides
) -> Iterator[Way]:
    """Other ways to read views together; ``sums``: positions may be summed over.  ``letters``: for
    new labels; ``sides``: what a view is, as part of a sum."""
    yield from _ways(terms, mesh, letters, sums=sums)
    apart = [_in_blocks(t) for t in terms]
    if apart != list(terms):
        yield from _ways(apart, mesh, letters, sums=sums)
    parts = [sides(t) or t for t in terms] if sums else list(terms)
    if parts != list(terms):
        yield Way(tuple(parts), ("",) * len(parts), "")
        yield from _ways(parts, mesh, letters, sums=sums)
    yield from islice(_rarer(terms, mesh, letters, sums=sums), MOST_RARER)


def _rarer(
    terms: Sequence[Term], mesh: Mapping[str, int], letters: str, *, sums: bool
) -> Iterator[Way]:
    """Ways that read a block of an axis as one of many, a position as two digits, or positions that
    are alike by chance apart."""
    opened = [t._replace(layout=settled(t.layout)) for t in terms]
    cut = [[_cut(t, inner) for t in opened] for inner in _digits(opened)]
    views = [*([opened] if opened != list(terms) else []), *cut]
    for usual in (True, False):
        for view in views:
            yield from _ways(view, mesh, letters, sums=sums, usual=usual)
    yield from _ways(terms, mesh, letters, sums=sums, usual=False)


def _digits(terms: Sequence[Term]) -> list[int]:
    """Numbers that divide the extent of a position of one of many: which head, then which half."""
    extents = {a.extent for t in terms for a in floating(t.layout)[1]}
    return [n for n in range(2, MOST_DIGITS + 1) if any(e > n and e % n == 0 for e in extents)]


def _cut(term: Term, inner: int) -> Term:
    """A view whose positions of one of many are two digits, where the inner one is of ``inner``."""
    dims, single = floating(term.layout)
    found: list[Atom] = []
    for atom in single:
        rest = affine(atom.start.const % inner)
        if (
            atom.extent > inner
            and atom.extent % inner == 0
            and ((atom.start - rest).divisible(inner))
        ):
            outer = (atom.start - rest) // inner
            found.append(Atom(atom.axis, atom.stride * inner, atom.extent // inner, outer, 1))
            found.append(Atom(atom.axis, atom.stride, inner, rest, 1))
        else:
            found.append(atom)
    return term._replace(layout=Layout(dims, tuple(found)))


def _in_blocks(term: Term) -> Term:
    """The same view, of which every interval that lies in one of many equal blocks is that of a
    position, of the block, and an interval within: features of one head are a head and features."""
    dims: list[tuple[Atom, ...]] = []
    fixed = list(term.layout.fixed)
    for dim in term.layout.dims:
        own = []
        for atom in dim:
            block = gcd(*(n for _, n in atom.start.terms)) if atom.start.terms else atom.size
            inside = Affine(atom.start.const % block) if block else atom.start
            fits = block < atom.extent and inside.const + atom.size <= block
            if atom.axis == BROADCAST or atom.size == 1 or not fits or atom.extent % block:
                own.append(atom)
                continue
            own.append(atom._replace(extent=block, start=inside))
            place = (atom.start - inside) // block
            fixed.append(Atom(atom.axis, atom.stride * block, atom.extent // block, place, 1))
        dims.append(tuple(own))
    if len(fixed) == len(term.layout.fixed):
        return term
    return term._replace(layout=Layout(tuple(dims), tuple(fixed)))


def _ways(
    terms: Sequence[Term],
    mesh: Mapping[str, int],
    letters: str,
    *,
    sums: bool,
    usual: bool = True,
) -> Iterator[Way]:
    found = [floating(t.layout) for t in terms]
    if not any(single for _, single in found):
        return
    dims = [list(d) for d, _ in found]
    single = [list(s) for _, s in found]
    roles = ("kept", "summed", "fixed") if sums else ("kept", "fixed")
    count = 0
    for chosen in _exposures(dims, single, mesh):
        inner, outer = _exposed(dims, single, chosen)
        for groups in [_groups(outer)] if usual else _others(outer):
            if len(groups) > len(letters):
                continue
            for picked in product(roles, repeat=len(groups)):
                count += 1
                if count > MOST_WAYS:
                    return
                yield _way(terms, inner, groups, picked, letters)


#: (term, dimension, or -1 for a position, place in it, the positions that it is held against).
Exposure = tuple[int, int, int, tuple[Atom, ...]]


def _exposures(
    dims: Sequence[Sequence[Sequence[Atom]]],
    single: Sequence[Sequence[Atom]],
    mesh: Mapping[str, int],
) -> Iterator[tuple[Exposure, ...]]:
    """Atoms that lie in blocks that are other views' positions: all of them, some, and none."""
    found: list[Exposure] = []
    for k, own in enumerate(dims):
        others = [a for i, s in enumerate(single) if i != k for a in s]
        places = [(d, j, a) for d, dim in enumerate(own) for j, a in enumerate(dim)]
        places += [(-1, j, a) for j, a in enumerate(single[k])]
        for d, j, atom in places:
            blocks = _chain(atom, others, mesh)
            if blocks:
                found.append((k, d, j, blocks))
    if len(found) > MOST_EXPOSED:
        yield from (tuple(found), ())
        return
    sizes = range(len(found), -1, -1)
    yield from chain.from_iterable(combinations(found, n) for n in sizes)


def _chain(atom: Atom, others: Sequence[Atom], mesh: Mapping[str, int]) -> tuple[Atom, ...]:
    """Positions of other views that an atom lies in, one inside the other."""
    left = sorted(others, key=lambda o: o.extent)
    found: list[Atom] = []
    while True:
        outer = next((o for o in left if _lies_in(atom, o, mesh)), None)
        if outer is None:
            return tuple(found)
        parts = within(atom, outer)
        assert parts is not None
        left.remove(outer)
        found.append(outer)
        atom = parts[1]


def _lies_in(atom: Atom, outer: Atom, mesh: Mapping[str, int]) -> bool:
    if atom.axis == BROADCAST or (atom.size == 1 and atom.extent == outer.extent):
        return False
    parts = within(atom, outer)
    if parts is None:
        return False
    try:
        low, high = parts[2].span(mesh)
    except KeyError:
        return False
    return low >= 0 and high + atom.size <= parts[1].extent


def _exposed(
    dims: Sequence[Sequence[Sequence[Atom]]],
    single: Sequence[Sequence[Atom]],
    chosen: Sequence[Exposure],
) -> tuple[list[list[tuple[Atom, ...]]], list[list[Atom]]]:
    inner = [[list(d) for d in own] for own in dims]
    outer = [list(s) for s in single]
    gone: list[tuple[int, Atom]] = []
    for k, d, j, blocks in chosen:
        atom = whole = dims[k][d][j] if d >= 0 else single[k][j]
        for held in blocks:
            parts = within(atom, held)
            assert parts is not None
            outer[k].append(parts[0])
            atom = parts[1]
        if d >= 0:
            inner[k][d][j] = atom
        else:
            gone.append((k, whole))
            if atom.extent > 1:
                outer[k].append(atom)
    for k, atom in gone:
        outer[k].remove(atom)
    for k, own in enumerate(inner):
        for dim in own:
            outer[k] += [a for a in dim if a.size == 1 and a.extent > 1]
    return [[tuple(a for a in d if a.size != 1) for d in own] for own in inner], outer


#: Positions of views that go together: (view, position).
Groups: TypeAlias = list[list[tuple[int, Atom]]]


def _others(single: Sequence[Sequence[Atom]]) -> Iterator[Groups]:
    """Other ways to take positions together that are alike, perhaps by chance."""
    usual = sorted(map(_key, _groups(single)))
    for groups in islice(_matchings(list(enumerate(single)), []), MOST_MATCHINGS):
        if sorted(map(_key, groups)) != usual:
            yield groups


def _key(group: Sequence[tuple[int, Atom]]) -> str:
    return str(sorted((k, str(a)) for k, a in group))


def _matchings(left: Sequence[tuple[int, Sequence[Atom]]], groups: Groups) -> Iterator[Groups]:
    """Every way to put positions into groups of alike ones, at most one of every view."""
    if not left:
        yield groups
        return
    (k, atoms), *rest = left
    if not atoms:
        yield from _matchings(rest, groups)
        return
    first, *others = atoms
    for i, group in enumerate(groups):
        held = group[0][1]
        if (held.extent, held.start) == (first.extent, first.start) and (
            all(own != k for own, _ in group)
        ):
            grown = [*groups[:i], [*group, (k, first)], *groups[i + 1 :]]
            yield from _matchings([(k, others), *rest], grown)
    yield from _matchings([(k, others), *rest], [*groups, [(k, first)]])


def _groups(single: Sequence[Sequence[Atom]]) -> Groups:
    """Positions that are the same of as many, at most one of every view."""
    groups: dict[tuple[object, ...], list[tuple[int, Atom]]] = {}
    for k, atoms in enumerate(single):
        seen: dict[tuple[object, ...], int] = {}
        for atom in sorted(atoms, key=lambda a: (a.axis, -a.stride)):
            key = (atom.extent, atom.start)
            again = seen[key] = seen.get(key, -1) + 1
            groups.setdefault((*key, again), []).append((k, atom))
    return list(groups.values())


def _way(
    terms: Sequence[Term],
    dims: Sequence[Sequence[tuple[Atom, ...]]],
    groups: Sequence[Sequence[tuple[int, Atom]]],
    roles: Sequence[str],
    letters: str,
) -> Way:
    behind: list[list[tuple[Atom, ...]]] = [[] for _ in terms]
    fixed: list[list[Atom]] = [[] for _ in terms]
    labels = [""] * len(terms)
    kept = ""
    for group, role, letter in zip(groups, roles, letters, strict=False):
        for k, atom in group:
            if role == "fixed":
                fixed[k].append(atom)
            else:
                behind[k].append((atom,))
                labels[k] += letter
        kept += letter if role == "kept" else ""
    moved = tuple(
        t._replace(layout=Layout((*own, *more), tuple(held)))
        for t, own, more, held in zip(terms, dims, behind, fixed, strict=True)
    )
    return Way(moved, tuple(labels), kept)


def dropped(term: Term, rank: int) -> Term:
    """A view without its dimensions from ``rank`` on, which are of size 1."""
    layout = term.layout
    behind = tuple(a for dim in layout.dims[rank:] for a in dim if a.axis != BROADCAST)
    return term._replace(layout=Layout(layout.dims[:rank], (*layout.fixed, *behind)))


class Reductions:
    """Sums of one node over one of its labels that the single-device program has: a view of one
    position of many is part of such a sum."""

    def __init__(self, table: NodeTable, size: int) -> None:
        self.table = table
        self.of: dict[int, list[tuple[int, Einsum]]] = {}
        for number in range(size):
            definition = table[number].definition
            if isinstance(definition, Einsum) and len(definition.operands) == 1:
                self.of.setdefault(definition.operands[0].node, []).append((number, definition))

    def part(self, term: Term) -> Term | None:
        """A view as part of a sum; None where it is none."""
        for number, definition in self.of.get(term.node, ()):
            found = self._part(term, number, definition)
            if found is not None:
                return found
        return None

    def _part(self, term: Term, number: int, definition: Einsum) -> Term | None:
        (read,), outputs = definition.operands, definition.outputs
        summed = [(a, s, e, x) for a, s, e, x in read.atoms if x not in outputs]
        if len(summed) != 1 or read.fixed or term.parts:
            return None
        axis, stride, extent, label = summed[0]
        dims, single = floating(term.layout)
        own = [a for a in single if (a.axis, a.stride, a.extent) == (axis, stride, extent)]
        if len(own) != 1:
            return None
        place = {(a, s): (outputs.index(x), e) for a, s, e, x in read.atoms if x in outputs}

        def moved(atom: Atom) -> Atom:
            if atom.axis == BROADCAST:
                return atom
            for (a, s), (there, e) in place.items():
                inside = atom.stride % s == 0 and atom.stride * atom.extent <= s * e
                if a == atom.axis and atom.stride >= s and inside:
                    return atom._replace(axis=there, stride=atom.stride // s)
            raise Misaligned

        try:
            layout = Layout(
                tuple(tuple(moved(a) for a in dim) for dim in dims),
                tuple(moved(a) for a in single if a != own[0]),
            )
        except Misaligned:
            return None
        token = self.table.token(Token("sum", number, label))
        part = Part(token, own[0].start, 1, extent)
        return Term(term.factor, number, layout, (part,))

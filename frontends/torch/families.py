"""Ranks that run one program: recorded ranks with the same operators, as one affine program.

Two ranks run one program if their lowered steps are the same but for *places*: where boxes of
parameters and slices begin, who is in a group, who is sent to.  Places of ranks along an axis have
to be an affine function of the coordinate, at every captured rank.  For ranks that were not
captured, the function is believed only if there are more captured ranks than it takes to find it,
at three coordinates of every axis at least.  What does not fit is a program of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from math import prod
from typing import Any, NamedTuple

import numpy as np

from shardproof.engine.algebra.affine import Affine, affine
from shardproof.engine.errors import Unsupported
from shardproof.engine.ops.declare import lookup
from shardproof.engine.plan.collectives import TABLE
from shardproof.engine.plan.ir import Attr, Group, Op, Program, Shard
from shardproof.frontends.torch.lower import Result, Side
from shardproof.frontends.torch.mesh import Mesh, Ranks, Spread, mesh_of, samples, spread

#: How many captured coordinates of an axis it takes to believe in the others.
CONFIRMED = 3


class Compared(NamedTuple):
    """What is compared on every rank of a family: ``offset``: where the box begins (None: it is no
    box).

    Example: the gradient of ``up.weight``, of which rank t has rows from 8 t on, has the ``offset``
    (``8*every1``, 0).
    """

    result: Result
    offset: tuple[Affine, ...] | None


@dataclass(frozen=True, slots=True)
class Family:
    """Ranks that run one program. ``ranks``: all of them; ``captured``: those whose trace says so;
    ``first``: the one whose lowered step the program was made of.

    Example: two ranks of an MLP under tensor parallelism have ``ranks`` and ``captured`` (0, 1),
    ``first`` 0 and one program over ``every1``.
    """

    program: Program
    results: tuple[Compared, ...]
    ranks: Ranks
    captured: Ranks
    first: int


@dataclass(frozen=True, slots=True)
class Families:
    """All ranks of the world as families along the axes ``along`` of ``mesh``.

    Example: two ranks that run one program are one family ``along`` {"every1"}.

    ``missing``: ranks that have to be captured before it is known what all ranks run; there are
    no families then.
    """

    families: tuple[Family, ...]
    mesh: Mesh | None
    along: frozenset[str]
    missing: Ranks = ()

    def spread(self, group: Ranks, rank: int) -> Spread | None:
        """A group of ``rank`` as programs of these families name it."""
        if self.mesh is None:
            return Spread(tuple(sorted(group)), ())
        return spread(self.mesh, group, rank, self.along)

    @property
    def assumed(self) -> Ranks:
        """Ranks that were not captured."""
        return tuple(sorted(r for f in self.families for r in set(f.ranks).difference(f.captured)))


# -- what a rank's step is, but for places ---------------------------------------------------------


class Form(NamedTuple):
    """A lowered step: ``key`` is what ranks of one program have alike, ``starts`` are numbers that
    may be affine, ``groups`` and ``peers`` the ranks that it names, ``mixed`` whether a group may
    be of several programs and of axes of theirs; all in a fixed order.

    Example: rank 1 of an MLP under tensor parallelism has the ``groups`` ((0, 1),), which an
    all-reduce mixes, no ``peers``, and ``starts`` 8 where rank 0 has 0.
    """

    key: tuple[Any, ...]
    starts: tuple[int, ...]
    groups: tuple[Ranks, ...]
    mixed: tuple[bool, ...]
    peers: tuple[int, ...]


def form(side: Side) -> Form:
    """The form of one rank's lowered step.

    Example: ``starts`` of rank 1 begin with (8, 0): its ``up.weight`` begins in row 8.
    """
    starts: list[int] = []
    groups: list[Ranks] = []
    mixed: list[bool] = []
    peers: list[int] = []

    def number_kind(kind: str, value: Attr, name: str) -> object:
        if kind == "group" and isinstance(value, Group):
            groups.append(value.ranks)
            mixed.append(TABLE[name].joint)
        elif kind == "rank" and isinstance(value, int):
            peers.append(value)
        elif kind == "position" and isinstance(value, int):
            starts.append(value)
        else:
            return value
        return kind

    (body,) = side.program.bodies
    ops = []
    for op in body.ops:
        kinds = _places(op.name)
        attrs = tuple(
            (k, number_kind(kinds.get(k, ""), op.attrs[k], op.name)) for k in sorted(op.attrs)
        )
        ops.append((op.name, op.inputs, op.outputs, op.backward, attrs))
    shards = []
    for shard in side.program.shards:
        starts += [start.const for start in shard.offset]
        shards.append(replace(shard, offset=()))
    results: list[tuple[Any, ...]] = []
    for result in side.results:
        compared, box = result.compared, result.compared.box
        about = (compared.kind, compared.name, compared.state, result.value)
        if box is not None:
            starts += box.offset
            groups += [ranks for _, ranks in box.partial]
            mixed += [True for _ in box.partial]
            sums = tuple(how for how, _ in box.partial)
            results.append((about, box.name, box.full_shape, box.shape, box.said, sums))
        else:
            results.append((about,))
    key = (
        body.values,
        tuple(ops),
        body.shards,
        tuple(shards),
        tuple(results),
        tuple(sorted(side.gaps)),
    )
    return Form(key, tuple(starts), tuple(groups), tuple(mixed), tuple(peers))


@cache
def _places(name: str) -> Mapping[str, str]:
    """The attributes of an operator that tell places, with their kinds."""
    if name in TABLE:
        own = {key: a.kind for key, a in TABLE[name].attrs.items()}
        return {key: kind for key, kind in own.items() if kind in ("group", "rank")}
    try:
        return {a.name: a.kind for a in lookup(name).attributes if a.kind == "position"}
    except Unsupported:
        return {}


# -- families --------------------------------------------------------------------------------------


def families(
    sides: Mapping[int, Side],
    world: int,
    names: Mapping[Ranks, str] | None = None,
    *,
    together: bool = True,
) -> Families:
    """The families of a world of which some ranks were captured (``sides``, by rank).

    Example: ranks 0 and 1 of an MLP under tensor parallelism are one family along ``every1``; with
    an operator more on rank 1 they are two.

    Of all sets of mesh axes, the largest is taken along which every rank's program is one, checked
    at every captured rank.  Without ``together``, every rank is a program of its own.
    """
    forms = {rank: form(side) for rank, side in sorted(sides.items())}
    mesh = None
    if together and world > 1:
        groups = [g for f in forms.values() for g in f.groups]
        mesh = mesh_of(groups, world, names or {})
    if mesh is None:
        return _apart(sides, forms, world)
    wanted: Families | None = None
    for along in _sets(mesh):
        candidate = _along(sides, forms, mesh, along)
        if candidate is not None and not candidate.missing:
            return candidate
        if candidate is not None and wanted is None:
            wanted = candidate
    if wanted is not None and wanted.missing:
        return wanted
    return _apart(sides, forms, world)


def _apart(sides: Mapping[int, Side], forms: Mapping[int, Form], world: int) -> Families:
    """Every rank by itself."""
    missing = tuple(r for r in range(world) if r not in sides)
    if missing:
        return Families((), None, frozenset(), missing)
    own = [_family(sides, forms, [rank], (rank,), None, frozenset()) for rank in range(world)]
    return Families(tuple(f for f in own if f is not None), None, frozenset())


def _sets(mesh: Mesh) -> list[frozenset[str]]:
    """Sets of axes, those that join most ranks first."""
    axes = [axis for axis in mesh.axes if axis.extent > 1]
    sets = [s for n in range(1, len(axes) + 1) for s in combinations(axes, n)]
    sets.sort(key=lambda s: -prod(axis.extent for axis in s))
    return [frozenset(axis.name for axis in s) for s in sets]


def _along(
    sides: Mapping[int, Side], forms: Mapping[int, Form], mesh: Mesh, along: frozenset[str]
) -> Families | None:
    """Families along some axes; None if captured ranks that should be one program are not."""
    captured: dict[int, list[int]] = {}
    for rank in forms:
        captured.setdefault(mesh.base(rank, along), []).append(rank)
    bases = [r for r in range(mesh.world) if mesh.base(r, along) == r]
    programs, missing = [], False
    for base in bases:
        members = captured.get(base, [])
        axes = [axis for axis in mesh.axes if axis.name in along]
        ranks = tuple(r for r in range(mesh.world) if mesh.base(r, along) == base)
        if len(members) < len(ranks) and not _confirms(mesh, axes, members):
            missing = True
        if members:
            family = _family(sides, forms, members, ranks, mesh, along)
            if family is None:
                return None
            programs.append(family)
    if not missing and len(programs) == len(bases):
        return Families(tuple(programs), mesh, along)
    fixed = {a.name: range(a.extent) for a in mesh.axes if a.name not in along}
    needed = tuple(sorted(set(samples(mesh, fixed)).difference(forms)))
    return Families((), mesh, along, needed) if needed else None


def _confirms(mesh: Mesh, axes: Sequence[Any], members: Sequence[int]) -> bool:
    """Whether captured ranks tell what the others along ``axes`` do: they determine an affine
    function and are more than that takes, along every axis."""
    places = {rank: mesh.place(rank) for rank in members}
    for i, axis in enumerate(mesh.axes):
        if axis in axes and len({p[i] for p in places.values()}) < min(axis.extent, CONFIRMED):
            return False
    design = _design(mesh, axes, members)
    unknown = int(design.shape[1])
    rank = int(np.linalg.matrix_rank(design))
    return len(members) > unknown and rank == unknown


def _design(mesh: Mesh, axes: Sequence[Any], members: Sequence[int]) -> Any:
    """One row for every member: 1, and its coordinates."""
    chosen = [i for i, axis in enumerate(mesh.axes) if axis in axes]
    return np.array([[1, *(mesh.place(r)[i] for i in chosen)] for r in members], dtype=float)


def _family(
    sides: Mapping[int, Side],
    forms: Mapping[int, Form],
    members: Sequence[int],
    ranks: Ranks,
    mesh: Mesh | None,
    along: frozenset[str],
) -> Family | None:
    """The program of which captured ``members`` are ranks; None if they are not one."""
    first = members[0]
    axes = [axis for axis in mesh.axes if axis.name in along] if mesh is not None else []
    own = [forms[r] for r in members]
    if any(f.key != own[0].key for f in own[1:]):
        return None
    starts = _starts(mesh, axes, members, [f.starts for f in own])
    groups = _groups(mesh, along, members, own)
    peers = _peers(mesh, along, members, [f.peers for f in own])
    if starts is None or groups is None or peers is None:
        return None
    side = sides[first]
    writer = _Writer(iter(starts), iter(groups), iter(peers))
    (body,) = side.program.bodies
    ops = tuple(writer.op(op) for op in body.ops)
    shards = tuple(writer.shard(shard) for shard in side.program.shards)
    results = tuple(writer.compared(result) for result in side.results)
    program = replace(
        side.program,
        name=f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {shown(ranks)}",
        base=ranks[0],
        axes=tuple((axis.name, axis.extent, axis.stride) for axis in axes),
        bodies=(replace(body, ops=ops),),
        shards=shards,
    )
    return Family(program, results, ranks, tuple(members), first)


def shown(ranks: Sequence[int]) -> str:
    """Ranks in a few words: "0-3, 8-11".

    Example: [0, 1, 2, 3, 8, 9, 10, 11] are "0-3, 8-11".
    """
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    texts = [f"{a}" if a == b else f"{a}-{b}" for a, b in runs]
    return ", ".join(texts[:8]) + (f" and {len(texts) - 8} more intervals" if texts[8:] else "")


# -- places as functions of coordinates ------------------------------------------------------------


def _starts(
    mesh: Mesh | None, axes: Sequence[Any], members: Sequence[int], values: Sequence[Ranks]
) -> list[Affine] | None:
    """Numbers as affine functions; None if some are none at the members."""
    if mesh is None or len(members) == 1:
        return [affine(n) for n in values[0]]
    fit = _fit(mesh, axes, members)
    known: dict[Ranks, Affine | None] = {}
    starts = []
    for vector in zip(*values, strict=True):
        if vector not in known:
            known[vector] = fit(vector)
        function = known[vector]
        if function is None:
            return None
        starts.append(function)
    return starts


def _fit(
    mesh: Mesh, axes: Sequence[Any], members: Sequence[int]
) -> Callable[[Ranks], Affine | None]:
    """How numbers at the members become an affine function, which is exact at each of them."""
    design = _design(mesh, axes, members)
    inverse = np.linalg.pinv(design)
    rows = design.astype(int).tolist()

    def fit(values: Ranks) -> Affine | None:
        if len(set(values)) == 1:
            return affine(values[0])
        const, *steps = (round(x) for x in (inverse @ np.array(values, dtype=float)).tolist())
        exact = [sum(c * x for c, x in zip((const, *steps), row, strict=True)) for row in rows]
        if tuple(exact) != values:
            return None
        names = (axis.name for axis in axes)
        return affine(const, dict(zip(names, steps, strict=True)))

    return fit


def _groups(
    mesh: Mesh | None,
    along: frozenset[str],
    members: Sequence[int],
    forms: Sequence[Form],
) -> list[Group] | None:
    """Groups as explicit ranks and axes; None if they are not alike at the members, or if there is
    no rule for both in one."""
    if mesh is None or not along:
        return [Group(ranks) for ranks in forms[0].groups]
    known: dict[tuple[Ranks, int], Spread | None] = {}
    groups = []
    for mixed, *vector in zip(forms[0].mixed, *(f.groups for f in forms), strict=True):
        seen: set[Spread | None] = set()
        for rank, group in zip(members, vector, strict=True):
            if (group, rank) not in known:
                known[group, rank] = spread(mesh, group, rank, along)
            seen.add(known[group, rank])
        one = seen.pop()
        if seen or one is None:
            return None
        own = one.ranks if len(one.ranks) > 1 else ()
        if own and one.axes and not mixed:
            return None
        groups.append(Group(own, one.axes))
    return groups


def _peers(
    mesh: Mesh | None, along: frozenset[str], members: Sequence[int], values: Sequence[Ranks]
) -> list[int] | None:
    """Ranks that are sent to, at 0 along the axes; None if they lie elsewhere along these."""
    if mesh is None or not along:
        return list(values[0])
    peers = []
    for vector in zip(*values, strict=True):
        bases = set()
        for rank, peer in zip(members, vector, strict=True):
            if not 0 <= peer < mesh.world:
                return None
            base = mesh.base(peer, along)
            if peer - base != rank - mesh.base(rank, along):
                return None
            bases.add(base)
        if len(bases) > 1:
            return None
        peers.append(bases.pop())
    return peers


class _Writer:
    """Writes places into a lowered step, in the order in which `form` read them."""

    def __init__(
        self, starts: Iterator[Affine], groups: Iterator[Group], peers: Iterator[int]
    ) -> None:
        self.starts, self.groups, self.peers = starts, groups, peers

    def op(self, op: Op) -> Op:
        kinds = _places(op.name)
        attrs: dict[str, Attr] = {}
        changed = False
        for key in sorted(op.attrs):
            new = self.attribute(kinds.get(key, ""), op.attrs[key])
            changed = changed or new is not op.attrs[key]
            attrs[key] = new
        return replace(op, attrs=attrs) if changed else op

    def attribute(self, kind: str, value: Attr) -> Attr:
        if kind == "group" and isinstance(value, Group):
            return next(self.groups)
        if kind == "rank" and isinstance(value, int):
            return next(self.peers)
        if kind == "position" and isinstance(value, int):
            start = next(self.starts)
            return start if start.terms else start.const
        return value

    def shard(self, shard: Shard) -> Shard:
        return replace(shard, offset=tuple(next(self.starts) for _ in shard.offset))

    def compared(self, result: Result) -> Compared:
        box = result.compared.box
        if box is None:
            return Compared(result, None)
        for _ in box.partial:
            next(self.groups)
        return Compared(result, tuple(next(self.starts) for _ in box.offset))

"""Meshes that process groups span: against all ranks, one by one."""

from __future__ import annotations

import random
from itertools import combinations, product

import pytest

from shardproof.frontends.torch.mesh import Axis, Mesh, digits, mesh_of, samples, spread

MESHES = [(2,), (8,), (2, 4), (4, 2, 3), (8, 8), (2, 2, 2, 2)]


def mesh(extents: tuple[int, ...]) -> Mesh:
    axes, stride = [], 1
    for number, extent in reversed(list(enumerate(extents))):
        axes.append(Axis(f"a{number}", extent, stride))
        stride *= extent
    return Mesh(tuple(reversed(axes)))


def group(own: Mesh, rank: int, along: tuple[int, ...]) -> tuple[int, ...]:
    """The ranks at the same place as ``rank`` but along some axes."""
    place = own.place(rank)
    ranges = [range(a.extent) if i in along else (place[i],) for i, a in enumerate(own.axes)]
    return tuple(sorted(own.rank(at) for at in product(*ranges)))


@pytest.mark.parametrize("extents", MESHES)
def test_places_and_ranks_are_inverse(extents: tuple[int, ...]) -> None:
    own = mesh(extents)
    assert [own.rank(own.place(rank)) for rank in range(own.world)] == list(range(own.world))


@pytest.mark.parametrize("extents", MESHES)
def test_a_mesh_is_found_from_its_groups(extents: tuple[int, ...]) -> None:
    """And every group along some axes is these axes, at every rank."""
    own = mesh(extents)
    names = {group(own, 0, (i,)): f"a{i}" for i in range(len(extents))}
    found = mesh_of(names, own.world, names)
    assert found == own
    for n in range(len(extents) + 1):
        for along in combinations(range(len(extents)), n):
            for rank in random.Random(n).sample(range(own.world), min(4, own.world)):
                every = frozenset(axis.name for axis in own.axes)
                told = spread(own, group(own, rank, along), rank, every)
                assert told is not None
                assert (told.axes, told.ranks) == (tuple(f"a{i}" for i in along), (0,))
                apart = spread(own, group(own, rank, along), rank, frozenset())
                assert apart is not None
                assert apart.ranks == group(own, rank, along)


def test_groups_that_are_on_no_mesh() -> None:
    assert digits((0, 1, 3)) is None
    assert digits((0, 1, 4, 6)) is None
    assert mesh_of([(0, 1, 2), (0, 2)], 6, {}) is None
    assert mesh_of([(0, 1), (0, 1, 2)], 6, {}) is None


def test_part_of_an_axis_and_other_places_are_no_group_of_a_program() -> None:
    own = mesh((2, 4))
    every = frozenset({"a0", "a1"})
    assert spread(own, (0, 1), 0, every) is None
    assert spread(own, (1, 5), 0, every) is None
    assert spread(own, (0, 5), 0, every) is None
    assert spread(own, (0, 4, 1, 5), 0, every) is None


def test_samples_stand_for_all() -> None:
    own = mesh((8, 8))
    found = set(samples(own))
    assert len(found) == 9
    assert {own.rank(place) for place in product((0, 7), (0, 7))} <= found
    for i in range(2):
        assert len({own.place(rank)[i] for rank in found}) == 4
    rows = set(samples(own, {"a0": range(8)}))
    assert {own.place(rank)[0] for rank in rows} == set(range(8))
    assert all(
        len({own.place(rank)[1] for rank in rows if own.place(rank)[0] == row}) == 4
        for row in range(8)
    )

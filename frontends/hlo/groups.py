"""Groups of ranks and shardings as HLO text spells them: parsed wholly, or refused.

A group that is misread makes an all-reduce vanish, so every spelling has its own grammar here, and
what does not match one to its last character is refused.  The five of groups, on eight devices::

    {{0,1,2,3},{4,5,6,7}}                      written out; {} or {{}} is all devices
    [2,4]<=[8]                                 consecutive numbers, cut into 2 groups of 4
    [4,2]<=[2,4]T(1,0)                         the same, transposed first
    mesh['a'=2,'b'=4] {'b'}                    the axes of a mesh along which a group lies
    mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'a'}   of a mesh whose devices are permuted

In a mesh, ``'b':(2)4`` is the part of axis b of extent 4 that has 2 positions before it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardproof.engine.errors import InvalidInput, Unsupported
from shardproof.frontends.graphs.graph import MOST_RANKS, Groups, Placement, Shape

Devices = npt.NDArray[np.int64]

_NUMBERS = r"\[\d+(?:,\d+)*\]"
_IOTA = re.compile(rf"({_NUMBERS})<=({_NUMBERS})(?:T\((\d+(?:,\d+)*)\))?")
_AXIS = r"'?[A-Za-z_][\w.]*'?"
#: How far a mesh spelling reaches: it holds a comma of its own.
MESH = re.compile(
    rf"mesh\[({_AXIS}=\d+(?:,{_AXIS}=\d+)*)\]"
    rf"(?:, ?device_ids=\(((?:{_NUMBERS}(?:T\(\d+(?:,\d+)*\))?)|\d+(?:,\d+)*)\))?"
    rf" ?\{{((?:{_AXIS}(?::\(\d+\)\d+)?(?:, ?{_AXIS}(?::\(\d+\)\d+)?)*)?)\}}"
)
_LISTED = re.compile(r"\{(?:\{(?:\d+(?:,\d+)*)?\}(?:,\{\d+(?:,\d+)*\})*)?\}")
_SHARDING = re.compile(
    r"\{(?:(replicated)|(maximal device=\d+)|(manual)|"
    r"devices=(\[[^\]]*\]\S*)((?: last_tile_dim_replicate| last_tile_dims=\{[a-z, ]*\})?))\}"
)


def integers(text: str) -> tuple[int, ...]:
    """``1,2,3`` with any brackets around it.

    Example: "[1,2,3]" is (1, 2, 3), "{}" is ().
    """
    inner = text.strip("[](){}")
    return tuple(int(part) for part in inner.split(",")) if inner else ()


def iota(dims: Sequence[int], reshape: Sequence[int], perm: Sequence[int]) -> Devices:
    """The numbers from 0 on in shape ``reshape``, transposed by ``perm``, as ``dims``.

    Example: ``[4,2]<=[2,4]T(1,0)`` is [[0, 4], [1, 5], [2, 6], [3, 7]].
    """
    count = prod(reshape)
    if not 0 < count <= MOST_RANKS or prod(dims) != count:
        raise InvalidInput(f"{list(reshape)} numbers as {list(dims)}, expected as many")
    numbers = np.arange(count, dtype=np.int64).reshape(tuple(reshape))
    if perm:
        if sorted(perm) != list(range(len(reshape))):
            raise InvalidInput(f"{list(perm)} is no permutation of {len(reshape)} dimensions")
        numbers = numbers.transpose(tuple(perm))
    return numbers.reshape(tuple(dims))


def _iota(text: str) -> Devices | None:
    match = _IOTA.fullmatch(text)
    if match is None:
        return None
    dims, reshape, perm = match.groups()
    return iota(integers(dims), integers(reshape), integers(perm or ""))


def replica_groups(text: str, devices: int) -> Groups:
    """The groups of a collective on ``devices`` devices, each in its order.

    Example: ``[4,2]<=[2,4]T(1,0)`` on eight devices is ``((0, 4), (1, 5), (2, 6), (3, 7))``.

    Raises `InvalidInput` for a spelling that is not understood to its end, for groups of unequal
    sizes and for ones that are not all devices.
    """
    text = text.strip()
    if text.startswith("mesh"):
        table = _mesh(text)
    elif text.startswith("{"):
        table = _listed(text, devices)
    else:
        iota = _iota(text)
        if iota is None or iota.ndim != 2:
            raise InvalidInput(f"replica groups {text!r} are spelt in no known way")
        table = iota
    if sorted(table.ravel().tolist()) != list(range(devices)):
        raise InvalidInput(f"replica groups {text!r} are not all {devices} devices, each once")
    return tuple(tuple(row) for row in table.tolist())


def _listed(text: str, devices: int) -> Devices:
    plain = re.sub(r"\s+", "", text)
    if not _LISTED.fullmatch(plain):
        raise InvalidInput(f"replica groups {text!r} are spelt in no known way")
    rows = [integers(row) for row in re.findall(r"\{([\d,]*)\}", plain)]
    if not any(rows):
        rows = [tuple(range(devices))]
    if len({len(row) for row in rows}) != 1:
        raise InvalidInput(f"replica groups {text!r} are of unequal sizes")
    return np.array(rows, dtype=np.int64)


def _mesh(text: str) -> Devices:
    match = MESH.fullmatch(text)
    if match is None:
        raise InvalidInput(f"replica groups {text!r} are spelt in no known way")
    mesh, ids, chosen = match.groups()
    names, extents = [], []
    for part in mesh.split(","):
        name, _, extent = part.partition("=")
        names.append(name.strip("'"))
        extents.append(int(extent))
    if len(set(names)) < len(names):
        raise InvalidInput(f"replica groups {text!r} name an axis twice")
    if not ids:
        devices = iota(extents, [prod(extents)], ())
    elif ids.startswith("["):
        reshape, _, perm = ids.partition("T")
        devices = iota(extents, integers(reshape), integers(perm))
    else:
        if len(integers(ids)) != prod(extents):
            raise InvalidInput(f"replica groups {text!r} list another number of devices")
        devices = np.array(integers(ids), dtype=np.int64).reshape(extents)
    return _along(devices, names, chosen, text)


class _Part(NamedTuple):
    axis: int
    before: int
    size: int


def _along(devices: Devices, names: Sequence[str], chosen: str, text: str) -> Devices:
    """Groups along axes, or parts of axes: members in the order of the axes, first one slowest."""
    parts = []
    for item in chosen.split(",") if chosen else ():
        name, _, piece = item.strip().partition(":")
        axis = names.index(name.strip("'")) if name.strip("'") in names else -1
        if axis < 0:
            raise InvalidInput(f"replica groups {text!r} are along an axis that the mesh lacks")
        before, size = (int(n) for n in piece[1:].split(")")) if piece else (1, devices.shape[axis])
        parts.append(_Part(axis, before, size))
    split: list[int] = []
    at: dict[_Part, int] = {}
    for axis, extent in enumerate(devices.shape):
        done = 1
        for part in sorted((p for p in parts if p.axis == axis), key=lambda p: p.before):
            if part.before % done or extent % (part.before * part.size) or part in at:
                raise InvalidInput(f"replica groups {text!r} cut an axis where it has no cut")
            split.append(part.before // done)
            at[part] = len(split)
            split.append(part.size)
            done = part.before * part.size
        split.append(extent // done)
    order = [at[p] for p in parts]
    rest = [i for i in range(len(split)) if i not in order]
    members = prod(p.size for p in parts)
    result: Devices = devices.reshape(split).transpose([*rest, *order]).reshape(-1, members)
    return result


def pairs(text: str) -> tuple[tuple[int, int], ...]:
    """``{{0,1},{1,2}}``: the (source, target) pairs of a permutation of devices.

    Example: that text is ``((0, 1), (1, 2))``.
    """
    plain = re.sub(r"\s+", "", text)
    if not re.fullmatch(r"\{(?:\{\d+,\d+\}(?:,\{\d+,\d+\})*)?\}", plain):
        raise InvalidInput(f"source-target pairs {text!r} are spelt in no known way")
    rows = [integers(row) for row in re.findall(r"\{(\d+,\d+)\}", plain)]
    result = tuple((row[0], row[1]) for row in rows)
    for ends in zip(*result, strict=True):
        if len(set(ends)) < len(ends):
            raise InvalidInput(f"source-target pairs {text!r} name a device twice")
    return result


def sharding(text: str, shape: Shape, devices: int, *, local: bool) -> Placement | None:
    """The placement of a tensor by its sharding annotation: of its parts if ``shape`` is ``local``,
    as behind the partitioner, of the whole tensor otherwise.  None: it says nothing that can be
    told (manual, one device alone, a tensor that does not divide evenly).

    Example: ``{devices=[2,1,4]<=[8] last_tile_dim_replicate}`` of a whole tensor [4, 8]: devices 0
    to 3 have rows from 0 on, devices 4 to 7 rows from 2 on.
    """
    match = _spelt(text)
    replicated, maximal, manual, tiles, last = match.groups()
    if maximal or manual:
        return None
    if replicated:
        return Placement(shape, tuple((0,) * len(shape) for _ in range(devices)))
    return _tiled(_order(tiles, text), last.strip(), text, shape, devices, local)


def tiling(text: str, dimensions: int) -> Devices | None:
    """The devices of a sharding annotation, in as many dimensions as the tensor has, and one for
    copies; None: all have the whole tensor.  Raises `Unsupported` for other annotations.

    Example: ``{devices=[2,1,4]<=[8] last_tile_dim_replicate}`` of a matrix are the numbers from 0
    to 7 as [2, 1, 4].
    """
    replicated, _, _, tiles, last = _spelt(text).groups()
    if replicated:
        return None
    kinds = ("", "last_tile_dim_replicate", "last_tile_dims={replicated}")
    if not tiles or last.strip() not in kinds:
        raise Unsupported(f"sharding {text[:80]}")
    order = _order(tiles, text)
    if order.ndim != dimensions + bool(last):
        raise Unsupported(f"sharding {text[:80]} of a tensor of {dimensions} dimensions")
    if sorted(order.ravel().tolist()) != list(range(order.size)):
        raise InvalidInput(f"sharding {text!r} is not of {order.size} devices, each once")
    return order


def _spelt(text: str) -> re.Match[str]:
    match = _SHARDING.fullmatch(re.sub(r", metadata=.*", "", text.strip()))
    if match is None:
        raise InvalidInput(f"sharding {text!r} is spelt in no known way")
    return match


def _order(tiles: str, text: str) -> Devices:
    """The devices in the tiles of a sharding, as they are spelt."""
    order = _iota(tiles)
    if order is not None:
        return order
    dims, _, numbers = tiles.partition("]")
    listed = re.fullmatch(r"\d+(?:,\d+)*", numbers) and re.fullmatch(r"\[\d+(?:,\d+)*", dims)
    if not listed or len(integers(numbers)) != prod(integers(dims)):
        raise InvalidInput(f"sharding {text!r} is spelt in no known way")
    return np.array(integers(numbers), dtype=np.int64).reshape(integers(dims))


def _tiled(
    order: Devices, last: str, text: str, shape: Shape, devices: int, local: bool
) -> Placement | None:
    if sorted(order.ravel().tolist()) != list(range(devices)):
        raise InvalidInput(f"sharding {text!r} is not of {devices} devices, each once")
    extra = order.ndim - len(shape)
    if last.startswith("last_tile_dims"):
        kinds = last[last.index("{") + 1 : -1].replace(" ", "").split(",")
        if set(kinds) != {"replicated"} or extra != len(kinds):
            return None
    elif extra != (1 if last else 0):
        raise InvalidInput(f"sharding {text!r} is of another number of dimensions than {shape}")
    tiles = order.shape[: len(shape)]
    if not local and any(n % t for n, t in zip(shape, tiles, strict=True)):
        return None
    part = shape if local else tuple(n // t for n, t in zip(shape, tiles, strict=True))
    full = tuple(n * t for n, t in zip(part, tiles, strict=True))
    starts: list[Shape] = [()] * devices
    for index, device in np.ndenumerate(order):
        starts[int(device)] = tuple(i * n for i, n in zip(index[: len(shape)], part, strict=True))
    return Placement(full, tuple(starts))


def joined(
    opcode: str, attrs: dict[str, Any], channel: bool, partitions: bool, devices: int
) -> tuple[Groups, tuple[tuple[int, int], ...]]:
    """Groups of a collective, or the pairs of a permutation, as device numbers; by XLA's modes.
    They are removed from ``attrs``.

    With ``channel_id`` and ``use_global_device_ids`` numbers are of devices.  With neither they are
    of replicas.  With ``channel_id`` alone all-reduce, all-gather and reduce-scatter join all
    partitions of the replicas named; all-to-all and permutations name partitions.

    ``channel``: whether there is a ``channel_id``; ``partitions``: whether the devices are
    partitions, not replicas.

    Example: ``replica_groups={{0,1},{2,3}}`` of an all-reduce with ``channel_id`` and
    ``use_global_device_ids=true`` is ``((0, 1), (2, 3))``.
    """
    world = attrs.pop("use_global_device_ids", "false")
    if world not in ("true", "false") or (world == "true" and not channel):
        raise InvalidInput(f"use_global_device_ids={world} of {opcode}")
    own = opcode in ("all-to-all", "collective-permute")
    if opcode == "collective-permute":
        links = pairs(attrs.pop("source_target_pairs", "{}"))
        if channel != partitions:
            raise Unsupported("a collective-permute of the ids that this module has one of")
        if any(max(link) >= devices for link in links):
            raise InvalidInput("a collective-permute of devices that do not exist")
        return (), links
    text = attrs.pop("replica_groups", "{}")
    numbered = world == "true" or (own and channel == partitions)
    if numbered or (not partitions and not (own and channel)):
        return replica_groups(text, devices), ()
    replica_groups(text, 1)
    if channel and not own:
        return (tuple(range(devices)),), ()
    return tuple((n,) for n in range(devices)), ()

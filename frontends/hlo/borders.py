"""Manual computations (``shard_map``) whose borders are custom calls, as HLO text has them before
XLA's partitioner, and StableHLO text of JAX with GSPMD.

A value that enters is the rank's part of a whole one; what leaves is put together again.  For
example, ``Sharding`` with ``{devices=[2,1]<=[2]}`` and ``SPMDFullToShardShape`` behind it give each
of two ranks its half of the rows.  In between, a call runs what every rank computes.

Sources: XLA's partitioner (``SPMDFullToShardShape``, ``SPMDShardToFullShape``), Shardy's export for
HLO (``xla.sdy.GlobalToLocalShape``, ``xla.sdy.LocalToGlobalShape``), as JAX 0.4 to 0.10 print them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import NamedTuple

from shardproof.engine.errors import InvalidInput, Unsupported
from shardproof.frontends.hlo import manual
from shardproof.frontends.hlo.groups import integers, tiling
from shardproof.frontends.hlo.manual import Division, Mesh
from shardproof.frontends.hlo.module import Computation, Instruction, Module, Type
from shardproof.frontends.hlo.opcodes import COLLECTIVES

#: Custom calls at which values enter and leave, of one tensor (GSPMD) and of several (Shardy).
ENTER, LEAVE = "SPMDFullToShardShape", "SPMDShardToFullShape"
ALL_ENTER, ALL_LEAVE = "xla.sdy.GlobalToLocalShape", "xla.sdy.LocalToGlobalShape"
_BORDERS = frozenset({ENTER, LEAVE, ALL_ENTER, ALL_LEAVE})
_SHARDING = "Sharding"
#: How the names of computations begin that ranks run, though they may be given nothing.
_BODIES = ("xla.sdy.manual_computation_body", "shmap_body")
_MESH = re.compile(r'"?([\w.-]+)"? ?= ?#sdy\.mesh(<\[.*?\][^>]*>)')
_PER_VALUE = r"#sdy\.sharding_per_value<\[((?:<[^<>]*>(?:, )?)*)\]>"


class Part(NamedTuple):
    """What every rank has of a whole value, and how it is divided.

    Example: of a result that ``SPMDShardToFullShape`` puts together, the operand of that call.
    """

    name: str
    mesh: Mesh
    division: Division


def within(module: Module) -> Module:
    """The module on as many ranks as its manual computations are for, if it has any; raises
    `Unsupported` for what is not understood of them.

    Example: of a module with ``SPMDFullToShardShape`` of ``{devices=[2,1]<=[2]}``, a module of two
    partitions, whose parameter is the rank's half of the rows.
    """
    crossed = {name for name, c in module.computations.items() if any(map(_border, c.instructions))}
    if not crossed:
        return module
    meshes, devices = _meshes(module), _devices(module)
    done = {
        name: _Borders(c, meshes, devices).run() if name in crossed else _Within(c)
        for name, c in module.computations.items()
    }
    inside = {called for d in done.values() for called in d.inside}
    outside = {called for d in done.values() for called in d.outside}
    if crossed & _reached(inside, module.computations):
        raise Unsupported("a manual computation inside another one")
    computations = {name: d.computation for name, d in done.items()}
    own = done[module.entry]
    counts = {"partitions": module.partitions} if module.partitions > 1 else {}
    bodies = dict.fromkeys(inside - outside, Mesh({"devices": devices}))
    of_ranks = replace(module, computations=computations, results=own.results)
    return manual.on_devices(of_ranks, counts, bodies)


def unpartitioned(module: Module) -> bool:
    """Whether a module for one device is to become one for several by XLA's partitioner.

    Example: where a parameter has ``sharding={devices=[2,1]<=[2]}``, and no partitions are counted.
    """
    meshes = "xla.sdy.meshes" in module.header.get("frontend_attributes", "")
    return meshes or "unpartitioned" in module.header or max(annotated(module), default=1) > 1


@dataclass(frozen=True, slots=True)
class _Within:
    """A computation; ``inside``, ``outside``: those that it calls with values of ranks, and with
    whole ones; ``results``: how those are divided of which it gives parts."""

    computation: Computation
    inside: frozenset[str] = frozenset()
    outside: frozenset[str] = frozenset()
    results: Mapping[int, str] = field(default_factory=dict)


class _Borders:
    """What has been read so far of a computation with borders in it."""

    def __init__(self, computation: Computation, meshes: Mapping[str, Mesh], devices: int) -> None:
        self.computation, self.meshes, self.devices = computation, meshes, devices
        self.given = {i.name: i for i in computation.instructions}
        self.made: list[Instruction] = []
        self.parts: dict[str, Part] = {}
        #: Values of ranks, and computations by what they are called with.
        self.local: set[str] = set()
        self.inside: set[str] = set()
        self.outside: set[str] = set()

    def run(self) -> _Within:
        for i in self.computation.instructions:
            self.made += self.instruction(i)
        root, results = self.root()
        own = Computation(self.computation.name, _read(self.made, root), root)
        return _Within(own, frozenset(self.inside), frozenset(self.outside), results)

    def instruction(self, i: Instruction) -> Iterator[Instruction]:
        target = _target(i)
        if target in (*_BORDERS, _SHARDING) and not i.operands:
            raise InvalidInput(f"{target} of nothing")
        if target not in _BORDERS:
            yield self.inner(i)
            return
        several = i.type.parts is not None
        types = i.type.parts if i.type.parts is not None else (i.type,)
        # A space is in no name of HLO: these names are ours.
        names = tuple(f"{i.name} {n}" for n in range(len(types)))
        rows = list(self.rows(i, target, types))
        if len(rows) != len(types):
            raise InvalidInput(f"{target} of {len(rows)} values gives {i.type}")
        for name, type, (operand, mesh, division) in zip(names, types, rows, strict=True):
            cross = self.entered if target in (ENTER, ALL_ENTER) else self.left
            yield from cross(name, operand, mesh, division, type, i.line)
        if target in (ENTER, ALL_ENTER):
            self.local.add(i.name)
        elif not several:
            self.parts[i.name] = self.parts[names[0]]
        yield Instruction(i.name, "tuple" if several else "copy", i.type, names, line=i.line)

    def rows(self, i: Instruction, target: str, types: Sequence[Type]) -> Iterator[Part]:
        """The operands of a border, and how what they are parts of is divided."""
        if target in (ALL_ENTER, ALL_LEAVE):
            yield from self.several(i, "in" if target == ALL_ENTER else "out")
        elif target == LEAVE:
            mesh, division = divided_by(i.attrs.get("sharding", ""), len(i.type.shape))
            yield Part(i.operands[0], mesh, division)
        else:
            annotated = self.given[i.operands[0]]
            if _target(annotated) != _SHARDING:
                raise Unsupported(f"{ENTER} of a value without a sharding")
            text = annotated.attrs.get("sharding", "")
            mesh, division = divided_by(text, len(annotated.type.shape))
            yield Part(annotated.operands[0], mesh, division)

    def inner(self, i: Instruction) -> Instruction:
        """An instruction that is none of the borders: of a rank, if what it reads is."""
        if i.opcode == "get-tuple-element" and f"{i.operands[0]} {i.number}" in self.parts:
            self.parts[i.name] = self.parts[f"{i.operands[0]} {i.number}"]
        called = set(_called(i))
        body = any(name.startswith(_BODIES) for name in called)
        if body or any(name in self.local for name in i.operands):
            self.local.add(i.name)
            self.inside |= called
            if i.opcode in COLLECTIVES:
                return replace(i, attrs={**i.attrs, **manual.ORIGIN})
            return i
        self.outside |= called
        return i

    def several(self, i: Instruction, key: str) -> Iterator[Part]:
        """Of values that enter (``in``) or leave (``out``) together."""
        attrs = i.attrs.get("frontend_attributes", "").replace('\\"', '"')
        given = re.search(rf'xla\.sdy\.{key}_shardings="?{_PER_VALUE}', attrs)
        axes = re.search(r'xla\.sdy\.manual_axes="?#sdy<manual_axes\{([^{}]*)\}>', attrs)
        if given is None or axes is None:
            raise Unsupported(f"{_target(i)} with the attributes {attrs[:80]}")
        names = re.findall(r'"([\w.-]+)"', axes.group(1))
        shardings = manual.divisions(given.group(1), names)
        if len(shardings) != len(i.operands):
            raise InvalidInput(f"{len(shardings)} shardings of {len(i.operands)} values")
        for operand, (mesh, division) in zip(i.operands, shardings, strict=True):
            if mesh not in self.meshes or not set(names) <= set(self.meshes[mesh].axes):
                raise InvalidInput(f"a manual computation on mesh @{mesh}")
            yield Part(operand, self.meshes[mesh], division)

    def entered(
        self, name: str, operand: str, mesh: Mesh, division: Division, part: Type, line: int
    ) -> Iterator[Instruction]:
        operand = self.plain(operand)
        _divides(self.given[operand].type, part, division, mesh)
        before = self.parts.get(operand)
        if before is not None and before[1:] == (mesh, division):
            # Gathered and cut in the same way again: what the rank has.
            yield Instruction(name, "copy", part, (before.name,), line=line)
            return
        yield from manual.entered(name, operand, self.given[operand].type, division, mesh, line)

    def left(
        self, name: str, part: str, mesh: Mesh, division: Division, whole: Type, line: int
    ) -> Iterator[Instruction]:
        part = self.plain(part)
        type = self.given[part].type
        _divides(whole, type, division, mesh)
        self.parts[name] = Part(part, mesh, division)
        yield from manual.left(name, part, type, division, mesh, line)

    def root(self) -> tuple[str, dict[int, str]]:
        """What the computation gives: of results that ranks put together, what each has."""
        root = self.given[self.computation.root]
        several = root.opcode == "tuple"
        own, results = [], {}
        for n, name in enumerate(root.operands if several else (root.name,)):
            part = self.parts.get(self.plain(name))
            if part is not None:
                results[n] = manual.spelt(part.division, part.mesh)
            own.append(name if part is None else part.name)
        if not several:
            return own[0], results
        types = {i.name: i.type for i in self.made}
        whole = Type(parts=tuple(types[name] for name in own))
        self.made.append(Instruction("all returned", "tuple", whole, tuple(own), line=root.line))
        return "all returned", results

    def plain(self, name: str) -> str:
        """A value without its annotations."""
        while _target(self.given[name]) in (_SHARDING, "xla.sdy.FuncResultSharding"):
            name = self.given[name].operands[0]
        return name


def _divides(whole: Type, part: Type, division: Division, mesh: Mesh) -> None:
    """Raise `Unsupported` where a rank has another part of a value than its division says."""
    if manual.divided(whole, division, mesh) != part:
        raise Unsupported(f"{whole} of which a rank has {part} (by axes that are not manual)")


def divided_by(text: str, dimensions: int) -> tuple[Mesh, Division]:
    """A sharding of HLO as a mesh with an axis for each dimension, and one for copies.

    Example: ``{devices=[2,1,2]<=[4] last_tile_dim_replicate}`` of a matrix: axes of 2, 1 and 2, the
    first of which divides the rows.
    """
    order = tiling(text, dimensions)
    if order is None:
        return Mesh({}), ((),) * dimensions
    names = [str(n) for n in range(order.ndim)]
    numbers = tuple(int(n) for n in order.ravel())
    division = tuple((name,) for name in names[:dimensions])
    return Mesh(dict(zip(names, order.shape, strict=True)), numbers), division


def annotated(module: Module) -> set[int]:
    """How many devices the module's annotations divide tensors between; none, if they say nothing.

    Example: of ``sharding={devices=[2,1]<=[2]}`` behind a parameter, 2.
    """
    texts = {
        i.attrs.get("sharding", "") for c in module.computations.values() for i in c.instructions
    }
    tiles = {
        tile for text in texts for tile in re.findall(r"devices=\[(\d{1,9}(?:,\d{1,9})*)\]", text)
    }
    return {prod(integers(tile)) for tile in tiles}


def _target(i: Instruction) -> str:
    """Whom a custom call calls; of others nothing."""
    return i.attrs.get("custom_call_target", "").strip('"') if i.opcode == "custom-call" else ""


def _border(i: Instruction) -> bool:
    return _target(i) in _BORDERS


def _called(i: Instruction) -> Iterator[str]:
    """The computations that an instruction names."""
    if i.opcode != "custom-call":
        for key in ("to_apply", "calls", "condition", "body", "branch_computations"):
            yield from (name.strip(" %") for name in i.attrs.get(key, "").strip("{}").split(","))


def _reached(names: set[str], computations: Mapping[str, Computation]) -> set[str]:
    """Computations that are called from some, and these."""
    reached, waiting = set[str](), [name for name in names if name in computations]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            called = {n for i in computations[name].instructions for n in _called(i)}
            waiting += [n for n in called if n in computations]
    return reached


def _read(instructions: list[Instruction], root: str) -> tuple[Instruction, ...]:
    """The instructions that the root depends on, and parameters."""
    needed, kept = {root}, []
    for i in reversed(instructions):
        if i.name in needed or i.opcode == "parameter":
            needed.update(i.operands)
            kept.append(i)
    return tuple(reversed(kept))


def _meshes(module: Module) -> dict[str, Mesh]:
    text = module.header.get("frontend_attributes", "").replace('\\"', '"')
    return dict(manual.mesh(f"sdy.mesh @{name} = {mesh}") for name, mesh in _MESH.findall(text))


def _devices(module: Module) -> int:
    """How many ranks there are: as the head says, or as many as shardings name."""
    sizes = {mesh.devices for mesh in _meshes(module).values() if mesh.axes}
    if module.partitions > 1:
        sizes.add(module.partitions)
    sizes |= annotated(module)
    if len(sizes) != 1:
        counted = " and ".join(map(str, sorted(sizes))) or "nowhere said how many"
        raise Unsupported(f"manual computations of devices that are {counted}")
    return sizes.pop()

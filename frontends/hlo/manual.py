"""Manual computations of Shardy (``shard_map``): what enters and leaves the program of one rank.

Around a manual computation values are whole on every rank; a rank cuts its part of each operand by
its coordinates, and results are gathered along the axes that divide them.  Along other axes every
rank keeps the result that it has.  For example, on ``<["x"=2, "y"=2]>`` an operand of
``[{"y"}, {}]`` is cut along its first dimension, on ranks 1 and 3 to its second half.

Source: the definitions of Shardy's dialect (``sdy.mesh``, ``#sdy.sharding``,
``sdy.manual_computation``), as JAX 0.10 prints them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

import numpy as np
import numpy.typing as npt

from shardproof.engine.errors import InvalidInput, Unsupported
from shardproof.frontends.hlo.module import Computation, Instruction, Module, Type
from shardproof.frontends.hlo.opcodes import COLLECTIVES

#: Meshes with more devices are refused.
MOST_DEVICES = 1 << 16
_MESH = re.compile(r'sdy\.mesh @([\w.$-]+) = <\[((?:"[\w.-]+"=\d{1,9}(?:, )?)*)\](.*)>(?: \{.*\})?')
_HEAD = re.compile(
    r"\(((?:%[\w.#]+(?:, )?)*)\) in_shardings=\[(.*)\] out_shardings=\[(.*)\] "
    r"manual_axes=\{([^{}]*)\} \((.*)\) \{"
)
_SHARDING = re.compile(
    r"<@([\w.$-]+), \[((?:\{[^{}]*\}(?:, )?)*)\]"
    r"((?:, (?:replicated|unreduced)=\{[^{}]*\})*)>(?:, |$)"
)
#: What says of an instruction that it is ours, around a manual computation.
ORIGIN = {"origin": "manual computation"}
#: What says how a tensor is cut that enters a manual computation, as HLO spells shardings.
DIVIDED = "divided"
#: What a verdict on a program with manual computations rests on.
PARTITIONER = (
    "the partitioner keeps what the program says around its manual computations (shard_map): "
    "values there are read as whole on every rank"
)
#: How a tensor is divided: for each dimension its axes, the slowest first.
Division = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Mesh:
    """Axes with their sizes, the slowest first; ``order``: the rank at every place of the mesh, if
    it is not the number of the place.

    Example: of ``<["x"=2, "y"=4]>``, rank 6 is at x = 1 and y = 2.
    """

    axes: Mapping[str, int]
    order: tuple[int, ...] = ()

    @property
    def devices(self) -> int:
        """How many ranks there are.  Example: 8 on axes of 2 and 4."""
        return prod(self.axes.values())

    @property
    def ranks(self) -> npt.NDArray[np.int64]:
        """The rank at every place.  Example: 1 and 0 on ``<["x"=2], device_ids=[1, 0]>``."""
        return np.array(self.order or range(self.devices), dtype=np.int64)

    def along(self, axes: Sequence[str]) -> list[int]:
        """Each rank's place along some axes, the first of which is the slowest.

        Example: along ``("y", "x")`` of 2 by 2 ranks, 0, 2, 1 and 3.
        """
        grid = np.indices(tuple(self.axes.values())).reshape(len(self.axes), -1)
        rows = dict(zip(self.axes, grid, strict=True))
        place = np.zeros(self.devices, dtype=np.int64)
        for axis in axes:
            place = place * self.axes[axis] + rows[axis]
        places = np.empty_like(place)
        places[self.ranks] = place
        return [int(n) for n in places]

    def groups(self, axis: str) -> str:
        """The groups of ranks along an axis, as HLO writes them.

        Example: along ``x`` of 2 by 2 ranks, ``{{0,2},{1,3}}``.
        """
        at = list(self.axes).index(axis)
        numbers = self.ranks.reshape(tuple(self.axes.values()))
        rows = np.moveaxis(numbers, at, -1).reshape(-1, self.axes[axis]).tolist()
        return "{" + ",".join("{" + ",".join(map(str, row)) + "}" for row in rows) + "}"


@dataclass(frozen=True, slots=True)
class Head:
    """What stands before a manual computation: its operands, how they and its results are divided,
    and the parameters of its body, as written.

    Example: ``(%0) in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{}]>]
    manual_axes={"x"} (%arg1: tensor<2xf32>) {`` has ``operands == ("0",)`` and
    ``ins == ((("x",),),)``.
    """

    mesh: Mesh
    operands: tuple[str, ...]
    ins: tuple[Division, ...]
    outs: tuple[Division, ...]
    parameters: str


def mesh(line: str) -> tuple[str, Mesh]:
    """A mesh and its name; raises `Unsupported` for one that says more than its axes and the order
    of its devices.

    Example: ``sdy.mesh @mesh = <["x"=2, "y"=2]>`` is ``mesh`` of four ranks.
    """
    match = _MESH.fullmatch(line)
    if match is None:
        raise InvalidInput(f"mesh {line[:80]!r} is not understood")
    name, axes, rest = match.groups()
    ids = re.fullmatch(r"(?:, device_ids=\[(\d{1,9}(?:, ?\d{1,9})*)\])?", rest)
    if ids is None:
        raise Unsupported(f"a mesh with {rest.strip(', ')[:60]}")
    sizes = re.findall(r'"([\w.-]+)"=(\d+)', axes)
    order = tuple(int(n) for n in ids.group(1).split(",")) if ids.group(1) else ()
    made = Mesh({axis: int(size) for axis, size in sizes}, order)
    if len(made.axes) != len(sizes) or not 1 <= made.devices <= MOST_DEVICES:
        raise InvalidInput(f"mesh @{name} of axes {axes[:80]}")
    if order and sorted(order) != list(range(made.devices)):
        raise Unsupported(f"mesh @{name} of {made.devices} devices, device_ids {rest[:60]}")
    return name, made


def head(rest: str, meshes: Mapping[str, Mesh]) -> Head:
    """What stands before a manual computation.

    Example: of the text in `Head`, two operands would be invalid input: there is one sharding.

    Raises `InvalidInput` for what is not understood to its end, and `Unsupported` for values that
    lie on several meshes, parts of axes and results that are not added up yet.
    """
    match = _HEAD.fullmatch(rest)
    if match is None:
        raise InvalidInput("a manual computation that is written in another form")
    operands, ins, outs, axes, parameters = match.groups()
    manual = re.findall(r'"([\w.-]+)"', axes)
    read = [(name, division) for text in (ins, outs) for name, division in divisions(text, manual)]
    names = {name for name, _ in read}
    if len(names) > 1:
        raise Unsupported(f"a manual computation on meshes {', '.join(sorted(names))}")
    name = names.pop() if names else next(iter(meshes), "")
    if name not in meshes or not set(manual) <= set(meshes[name].axes):
        raise InvalidInput(f"a manual computation on axes {axes[:60]} of mesh @{name}")
    count = len(divisions(ins, manual))
    ways = [division for _, division in read]
    given = tuple(v[1:] for v in operands.split(", ") if v)
    if count != len(given):
        raise InvalidInput(f"{count} shardings of {len(given)} operands")
    return Head(meshes[name], given, tuple(ways[:count]), tuple(ways[count:]), parameters)


def divisions(text: str, manual: Sequence[str]) -> list[tuple[str, Division]]:
    """The mesh and the division of every sharding, by the axes that are manual: others say how a
    value is laid out, and what a rank computes is whole along them.

    Example: ``<@mesh, [{"x"}, {}]>`` is ``("mesh", (("x",), ()))``.

    Raises `Unsupported` for parts of axes, and for results that are not added up yet.
    """
    divisions, at = [], 0
    while at < len(text):
        match = _SHARDING.match(text, at)
        if match is None:
            raise Unsupported(f"sharding {text[at : at + 80]!r}")
        name, dims, more = match.groups()
        if "unreduced" in more:
            raise Unsupported("a value that is not added up yet (unreduced)")
        division = []
        for dim in re.findall(r"\{([^{}]*)\}", dims):
            axes = [a for a in dim.split(", ") if a and a != "?"]
            if not all(re.fullmatch(r'"[\w.-]+"', a) for a in axes):
                raise Unsupported(f"sharding {{{dim}}} of a dimension")
            division.append(tuple(a[1:-1] for a in axes if a[1:-1] in manual))
        divisions.append((name, tuple(division)))
        at = match.end()
    return divisions


def divided(whole: Type, division: Division, mesh: Mesh) -> Type:
    """What a rank has of a tensor; raises `InvalidInput` where axes do not divide it.

    Example: of ``f32[8, 6]`` divided by ``(("x",), ())`` on two ranks, ``f32[4, 6]``.
    """
    used = [axis for axes in division for axis in axes]
    if len(division) != len(whole.shape) or len(set(used)) != len(used):
        raise InvalidInput(f"a sharding of {len(division)} dimensions for {whole}")
    shape = []
    for size, axes in zip(whole.shape, division, strict=True):
        parts = prod(mesh.axes[axis] for axis in axes)
        if size % parts:
            raise InvalidInput(f"{whole} in {parts} parts")
        shape.append(size // parts)
    return Type(tuple(shape), whole.dtype)


def entered(
    name: str, operand: str, whole: Type, division: Division, mesh: Mesh, line: int
) -> Iterator[Instruction]:
    """The operand's part of every rank, as ``name``: its start is looked up by the rank.

    Example: of ``f32[8]`` divided by ``x`` on two ranks, ``dynamic-slice(operand, start)`` with
    start 0 on rank 0 and 4 on rank 1.
    """
    part = divided(whole, division, mesh)
    divides = {DIVIDED: spelt(division, mesh)}
    if not any(division):
        yield Instruction(name, "copy", whole, (operand,), divides, line=line)
        return
    own, number = f"{name}.rank", Type((), "int32")
    yield Instruction(own, "partition-id", Type((), "uint32"), (), ORIGIN, line=line)
    starts = []
    for dim, axes in enumerate(division):
        at, row, size = f"{name}.start{dim}", Type((1,), "int32"), {"dynamic_slice_sizes": "{1}"}
        table = np.array([n * part.shape[dim] for n in mesh.along(axes)], dtype=np.int32)
        all_of = Type(table.shape, "int32")
        yield Instruction(f"{at}.all", "constant", all_of, (), literal=table, line=line)
        yield Instruction(f"{at}.own", "dynamic-slice", row, (f"{at}.all", own), size, line=line)
        yield Instruction(at, "reshape", number, (f"{at}.own",), line=line)
        starts.append(at)
    sizes = {"dynamic_slice_sizes": "{" + ",".join(map(str, part.shape)) + "}"}
    attrs = {**sizes, **divides}
    yield Instruction(name, "dynamic-slice", part, (operand, *starts), attrs, line=line)


def left(
    name: str, part: str, type: Type, division: Division, mesh: Mesh, line: int
) -> list[Instruction]:
    """The whole of a result, as ``name``, from every rank's ``part``: gathered along the axes that
    divide it, of one dimension the fastest first.

    Example: of ``f32[4]`` that ``x`` divides on two ranks, an all-gather along dimension 0.
    """
    rounds = [(dim, axis) for dim, axes in enumerate(division) for axis in reversed(axes)]
    rounds = [(dim, axis) for dim, axis in rounds if mesh.axes[axis] > 1]
    if not rounds:
        return [Instruction(name, "copy", type, (part,), line=line)]
    names = [part, *(f"{name}.part{n}" for n in range(1, len(rounds))), name]
    made = []
    for (given, result), (dim, axis) in zip(pairwise(names), rounds, strict=True):
        shape = list(type.shape)
        shape[dim] *= mesh.axes[axis]
        type = Type(tuple(shape), type.dtype)
        attrs = {
            "replica_groups": mesh.groups(axis),
            "dimensions": f"{{{dim}}}",
            "channel_id": "1",
            "use_global_device_ids": "true",
            **ORIGIN,
        }
        made.append(Instruction(result, "all-gather", type, (given,), attrs, line=line))
    return made


def spelt(division: Division, mesh: Mesh) -> str:
    """A division as HLO spells shardings.

    Example: of ``(("x",), ())`` on axes of 2 and 2, ``{devices=[2,1,2]0,1,2,3
    last_tile_dim_replicate}``.
    """
    tiles = [prod(mesh.axes[axis] for axis in axes) for axes in division]
    if prod(tiles) == 1:
        return "{replicated}"
    places = np.array([mesh.along(axes) for axes in division])
    order = np.lexsort(places[::-1])
    copies = mesh.devices // prod(tiles)
    dims = ",".join(map(str, [*tiles, copies] if copies > 1 else tiles))
    last = " last_tile_dim_replicate" if copies > 1 else ""
    return f"{{devices=[{dims}]{','.join(map(str, order))}{last}}}"


def on_devices(module: Module, counts: Mapping[str, int], bodies: Mapping[str, Mesh]) -> Module:
    """The module on as many ranks as it is written for; ``counts``: of partitions and replicas, as
    its head says; ``bodies``: its manual computations; its ``results`` say how those of the entry
    are divided of which it gives parts.

    Example: with a manual computation on 2 by 2 devices, four partitions, whose inputs are whole on
    each; without one, if ``main`` has an all-reduce, what every partition runs; otherwise a program
    for one device, ``unpartitioned`` in the header if there are to be more.
    """
    joining = _joins(module.computations, module.entry, bodies, set())
    if joining and bodies:
        raise Unsupported("ranks are joined in and outside of manual computations")
    sizes = {mesh.devices for mesh in bodies.values()}
    if bodies:
        if sizes != {counts.get("partitions", max(sizes))}:
            counted = " and ".join(map(str, sorted(sizes)))
            raise InvalidInput(f"num_partitions = {counts.get('partitions')}, a mesh of {counted}")
        own = {
            n: _plain(_placed(c) if n == module.entry else c)
            for n, c in module.computations.items()
        }
        header = {"manual": PARTITIONER}
        return replace(module, computations=own, partitions=max(sizes), header=header)
    if joining:
        partitions, replicas = counts.get("partitions", 1), counts.get("replicas", 1)
        return replace(module, partitions=partitions, replicas=replicas)
    alone = {"unpartitioned": str(counts["partitions"])} if "partitions" in counts else {}
    return replace(module, header=alone)


def _placed(main: Computation) -> Computation:
    """A computation whose parameters are whole on every rank, but for those of which ranks only
    ever read one part, which are these parts."""
    made = {i.name: i for i in main.instructions}
    cuts: dict[str, list[Instruction]] = {}
    whole = {main.root}
    for i in main.instructions:
        for operand in i.operands[1:] if DIVIDED in i.attrs else i.operands:
            whole.add(operand)
        if DIVIDED in i.attrs:
            cuts.setdefault(i.operands[0], []).append(i)
    for i in main.instructions:
        if i.opcode != "parameter":
            continue
        ways = {(cut.attrs[DIVIDED], cut.type) for cut in cuts.get(i.name, ())}
        parts = len(ways) == 1 and i.name not in whole
        spelling, type = ways.pop() if parts else ("{replicated}", i.type)
        made[i.name] = replace(i, type=type, attrs={**i.attrs, "sharding": spelling})
        for cut in cuts.get(i.name, ()) if parts else ():
            made[cut.name] = Instruction(cut.name, "copy", type, (i.name,), line=cut.line)
    return replace(main, instructions=tuple(made.values()))


def _plain(computation: Computation) -> Computation:
    """A computation whose instructions say no more how they are divided."""
    instructions = (
        replace(i, attrs={k: v for k, v in i.attrs.items() if k != DIVIDED})
        for i in computation.instructions
    )
    return replace(computation, instructions=tuple(instructions))


def _joins(
    computations: Mapping[str, Computation], name: str, bodies: Mapping[str, Mesh], seen: set[str]
) -> bool:
    """Whether a computation joins ranks, or asks which one it is, but in manual ones."""
    if name in seen or name in bodies or name not in computations:
        return False
    seen.add(name)
    for i in computations[name].instructions:
        asks = i.opcode in COLLECTIVES or i.opcode in ("partition-id", "replica-id")
        if asks and ORIGIN.items() - i.attrs.items():
            return True
        called = (n.strip() for value in i.attrs.values() for n in value.strip("{}").split(","))
        if any(_joins(computations, n, bodies, seen) for n in called):
            return True
    return False

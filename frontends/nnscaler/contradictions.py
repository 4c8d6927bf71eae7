"""Where the records of a plan contradict each other, whatever its operators compute.

Nothing here is semantics: what a plan computes follows from its operators and its communication.
The same thing is said in several places, though (a tensor by every operator that reads it, a group
by every rank that is in it), and places that disagree are findings beside the verdict.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from shardproof.engine.findings import Finding
from shardproof.frontends.nnscaler import cells
from shardproof.frontends.nnscaler.records import Box, Constant, FullTensor, Part, Tensor

#: The kind of these findings.
KIND: Final = "metadata"
#: The kind of those about whose gradient arrives (`renamings`).
GRADIENT_NAME: Final = "gradient name"
#: Findings that are listed; the rest are counted.
MOST: Final = 20

#: Reducers by the parts of parameters whose gradients they reduce.
Weights = tuple[tuple[str, Box], ...]
#: Groups of collectives by adapter and primitive, then by the device that records them.
Groups = dict[tuple[int, str], dict[int, set[tuple[int, ...]]]]


class _Place(NamedTuple):
    """Where something is recorded: an operator, its layer and the cell, on a device."""

    device: int
    operator: str
    layer: str
    source: str


def contradictions(plan: cells.Plan) -> tuple[Finding, ...]:
    """What the records of a plan say that other records deny: one finding for each tensor (or
    group) and kind of contradiction, with all devices of the first replica that have it.

    Example: "silu #812 is recorded as [0:128, 0:128, 0:5504] of full tensor 113 here, as [0:128,
    0:128, 5504:11008] of full tensor 113 by another operator of this rank", of ``mul`` on rank 1.
    """
    comparison = Comparison()
    for device in sorted(plan.devices):
        comparison.device(device, plan.sequence(device))
    comparison.compare_groups(set(plan.devices))
    return comparison.findings()


class Comparison:
    """Takes one device after the other, then `compare_groups`; `findings` has what was found.

    Example: where device 0 records a ``ChunkPrim`` over [0, 3]: "it names the group [0, 3], rank 3
    has no part in it".
    """

    def __init__(self) -> None:
        self.by_key: dict[tuple[object, ...], Finding] = {}
        self.fulls: dict[int, FullTensor] = {}
        self.tensors: dict[int, Tensor] = {}
        #: Parts, with those of their gradients, that contradict nothing.
        self.consistent: dict[tuple[int, int], tuple[Part, Part | None]] = {}
        self.met: set[int] = set()
        self.groups: Groups = defaultdict(lambda: defaultdict(set))
        self.reducers: dict[Weights, dict[int, set[tuple[int, ...]]]] = defaultdict(
            lambda: defaultdict(set)
        )

    def findings(self) -> tuple[Finding, ...]:
        """What was noted, one finding for each tensor or group; the last one counts what is left
        out."""
        every = list(self.by_key.values())
        if len(every) <= MOST:
            return tuple(every)
        return (
            *every[: MOST - 1],
            Finding(KIND, f"and {len(every) - MOST + 1} more contradictions of the plan's records"),
        )

    def add(
        self,
        where: Callable[[], _Place],
        key: tuple[object, ...],
        what: str,
        expected: object,
        actual: object,
    ) -> None:
        """A contradiction about ``key``, on one more device if it is known; ``where`` is asked for
        where there is one, which is seldom."""
        place = where()
        finding = self.by_key.get(key)
        if finding is not None:
            ranks = tuple(sorted({*finding.ranks, place.device}))
            self.by_key[key] = finding._replace(ranks=ranks)
            return
        layer = f" in {place.layer}" if place.layer else ""
        self.by_key[key] = Finding(
            KIND,
            f"{place.operator}{layer} on rank {place.device}: {what}",
            place.operator,
            place.layer,
            place.source,
            (place.device,),
            (),
            str(expected),
            str(actual),
        )

    # -- walking ------------------------------------------------------------------------------

    def device(self, device: int, sequence: Iterable[cells.Use | cells.Cell]) -> None:
        """Compare what a device's sequence records: each segment's cells once for each device."""
        # Names of tensors are a device's own; a body is looked at once for each device.
        self.tensors = {}
        self.met = set()
        bodies: set[int] = set()
        for item in sequence:
            cell = item.cell if isinstance(item, cells.Use) else item
            if isinstance(item, cells.Use) and not isinstance(cell, cells.Reducer):
                self.use(device, item, cell)
            if id(cell) in bodies:
                continue
            bodies.add(id(cell))
            for node in cell.nodes if isinstance(cell, cells.Segment) else (cell,):
                self.node(device, node)

    def use(self, device: int, use: cells.Use, cell: cells.Segment | cells.Node) -> None:
        """A use has tensors of its own, which are the same parts as the body's."""
        place = partial(_place_of_use, device, cell)
        for mine, theirs in (
            *zip(use.inputs, cell.inputs, strict=False),
            *zip(use.outputs, cell.outputs, strict=False),
        ):
            if type(mine) is not Tensor or type(theirs) is not Tensor or mine is theirs:
                continue
            self.tensor(place, mine)
            if mine.part is not theirs.part and _place_of(mine) != _place_of(theirs):
                self.add(
                    place,
                    ("use", theirs.full.id),
                    f"a use gives it {_named(mine)} as {_part(mine)}, its body is written for "
                    f"{_part(theirs)}",
                    _part(theirs),
                    _part(mine),
                )

    def node(self, device: int, node: cells.Node | cells.Reducer | cells.Segment) -> None:
        """Compare the operands and devices of a cell."""
        if isinstance(node, cells.Segment):
            return
        if isinstance(node, cells.Reducer):
            weights = tuple((x.full.name, x.box) for x in node.weights)
            self.reducers[weights][device].add(tuple(sorted(node.device)))
            return
        place = partial(_place, device, node)
        self.operands(place, node.inputs)
        self.operands(place, node.outputs)
        if isinstance(node, cells.Adapter):
            self.adapter(device, node)

    def operands(self, place: Callable[[], _Place], operands: Sequence[Constant]) -> None:
        """Compare tensors among operands, each record once."""
        met = self.met
        for x in operands:
            if type(x) is Tensor and id(x) not in met:
                met.add(id(x))
                self.tensor(place, x)

    def adapter(self, device: int, adapter: cells.Adapter) -> None:
        """Compare an adapter's devices, tensors and groups."""
        place = partial(_place, device, adapter)
        for where, devices in (
            ("adapter", adapter.device),
            *((prim.kind, prim.device) for prim in adapter.prims),
        ):
            if device not in devices:
                self.add(
                    place,
                    ("device", adapter.id, where),
                    f"it is recorded to run on {list(devices)}",
                    device,
                    list(devices),
                )
        for prim in adapter.prims:
            place = partial(_place_of_prim, device, adapter, prim)
            self.operands(place, prim.inputs)
            self.operands(place, prim.outputs)
            if "ranks" in prim.kwargs:
                self.groups[adapter.id, prim.kind][device].add(tuple(sorted(prim.ranks())))

    # -- comparing ----------------------------------------------------------------------------

    def tensor(self, place: Callable[[], _Place], x: Tensor) -> None:
        """A tensor against itself, its gradient, and what was recorded by its name before."""
        gradient = x.grad()
        other = None if gradient is None else gradient.part
        record = (id(x.part), id(other))
        if record not in self.consistent and self.is_consistent(place, x, gradient):
            # Held, so that no other part gets its number.
            self.consistent[record] = (x.part, other)
        before = self.tensors.setdefault(x.id, x)
        if before.part is not x.part and _claim(before) != _claim(x):
            self.add(
                place,
                ("name", x.full.id),
                f"{_named(x)} is recorded as {_part(x)} here, as {_part(before)} by another "
                "operator of this rank",
                _part(before),
                _part(x),
            )

    def is_consistent(
        self, place: Callable[[], _Place], x: Tensor, gradient: Tensor | None
    ) -> bool:
        """Whether what is recorded of a tensor agrees with itself, its full tensor and its gradient
        (which need be looked at once for all tensors of which the same is recorded)."""
        consistent = True
        size = tuple([end - start for start, end in x.box])
        if size != x.shape:
            consistent = False
            self.add(
                place,
                ("shape", x.full.id),
                f"{_named(x)} is recorded to have shape {list(x.shape)}, its index map covers "
                f"{list(size)}",
                list(size),
                list(x.shape),
            )
        full = self.fulls.setdefault(x.full.id, x.full)
        if full is not x.full and full != x.full:
            consistent = False
            self.add(
                place,
                ("full", x.full.id),
                f"full tensor {full.id} is recorded as {x.full.name} {list(x.full.shape)} here, "
                f"as {full.name} {list(full.shape)} elsewhere",
                f"{full.name} {list(full.shape)}",
                f"{x.full.name} {list(x.full.shape)}",
            )
        if gradient is not None and (gradient.box, gradient.shape) != (x.box, x.shape):
            consistent = False
            self.add(
                place,
                ("gradient", x.full.id),
                f"{_named(x)} is recorded as {_part(x)}, its gradient as {_part(gradient)}",
                _part(x),
                _part(gradient),
            )
        return consistent

    def compare_groups(self, devices: set[int]) -> None:
        """A group as one rank records it, against what the ranks that it names record."""
        for (adapter, kind), by_device in self.groups.items():
            place = _Place(0, kind, "", f"adapter {adapter}")
            self.compare_group(place, ("group", adapter, kind), by_device, devices)
        for weights, by_device in self.reducers.items():
            place = _Place(0, "reducer", weights[0][0] if weights else "", "")
            self.compare_group(place, ("reducer", weights), by_device, devices)

    def compare_group(
        self,
        place: _Place,
        key: tuple[object, ...],
        by_device: dict[int, set[tuple[int, ...]]],
        devices: set[int],
    ) -> None:
        """Note devices that are in a group of which another member knows nothing."""
        for device, groups in sorted(by_device.items()):
            for ranks in sorted(groups):
                other = _denier(device, ranks, by_device, devices)
                if other is None:
                    continue
                says = [list(x) for x in sorted(by_device.get(other, ()))]
                self.add(
                    partial(place._replace, device=device),
                    key,
                    f"it names the group {list(ranks)}, rank {other} "
                    + (f"names {says}" if says else "has no part in it"),
                    says or "",
                    list(ranks),
                )


def renamings(renamed: Mapping[int, tuple[str, set[int]]]) -> tuple[Finding, ...]:
    """Where the plan names an arriving gradient for what an adapter read, and the generated code
    gives it to the adapter's result (`BodyWriter.owner_of`).

    Example: "adapter 5 gives its result the name of what it read, and the segment gives that: ...".
    """
    return tuple(
        Finding(
            GRADIENT_NAME,
            f"adapter {adapter} gives its result the name of what it read, and the segment gives "
            f"that: in the code that nnScaler generates, {name} arrives as the gradient of the "
            "adapter's result and passes through its backward half; the plan records it as that of "
            "what the adapter read",
            operator="adapter",
            source=f"adapter {adapter}",
            ranks=tuple(sorted(devices)),
        )
        for adapter, (name, devices) in sorted(renamed.items())
    )


def _denier(
    device: int, ranks: tuple[int, ...], by_device: dict[int, set[tuple[int, ...]]], known: set[int]
) -> int | None:
    """The first rank of a group that does not record it as ``device`` does; None if all do."""
    if device not in ranks:
        return device
    for other in ranks:
        if other not in known or ranks not in by_device.get(other, ()):
            return other
    return None


def _place(device: int, node: cells.Node) -> _Place:
    if isinstance(node, cells.Adapter):
        return _Place(device, "adapter", "", f"adapter {node.id}")
    forward = node.forward if isinstance(node, cells.BackwardOp) else node
    if isinstance(forward, cells.DataOp):
        return _Place(device, "load_batch", "", f"cell {node.id}")
    name = forward.signature.rsplit(".", 1)[-1] or forward.name
    layer = forward.module[-1] if forward.module else ""
    operator = f"backward of {name}" if forward is not node else name
    return _Place(device, operator, layer, f"cell {node.id}")


def _place_of_use(device: int, cell: cells.Segment | cells.Node) -> _Place:
    return _Place(device, "use", "", f"cell {cell.id}")


def _place_of_prim(device: int, adapter: cells.Adapter, prim: cells.Prim) -> _Place:
    return _Place(device, prim.kind, "", f"adapter {adapter.id}")


def _place_of(x: Tensor) -> tuple[object, ...]:
    """Which part of its full tensor a record says that a tensor is."""
    return x.box, x.addend


def _claim(x: Tensor) -> tuple[object, ...]:
    return x.box, x.addend, x.shape, x.full.id


def _named(x: Tensor) -> str:
    return f"{x.name or 'tensor'} #{x.id}"


def _part(x: Tensor) -> str:
    """Which part of which tensor a record says that it is."""
    box = ", ".join(f"{start}:{end}" for start, end in x.box)
    addend = f"addend {x.addend[0]} of {x.addend[1]} of " if x.addend[1] > 1 else ""
    return f"{addend}[{box}] of full tensor {x.full.id}"

"""What a forward body leaves for its backward one, and what bodies know of their device."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple, Protocol

from shardproof.engine.plan.assumption import Assumption
from shardproof.engine.plan.ir import Body, Source, Value
from shardproof.engine.plan_files.calling import Calls
from shardproof.frontends.errors import UnreadablePlan
from shardproof.frontends.nnscaler import cells
from shardproof.frontends.nnscaler.calls import SharedInput
from shardproof.frontends.nnscaler.masks import Drawings
from shardproof.frontends.nnscaler.objects import Objects
from shardproof.frontends.nnscaler.operators import Declared
from shardproof.frontends.nnscaler.otherwise import Otherwise
from shardproof.frontends.nnscaler.records import Constant, Tensor

_LOCATION = re.compile(r'File "([^"]{1,300})", line (\d{1,9})')


class Leaves(NamedTuple):
    """``alike``: for each input of a forward segment the first one that is the same tensor;
    ``fresh``: those that were received, which nothing else is.

    Example: of three inputs, the last two of which are copies of one value: ``alike`` (0, 1, 1).
    """

    alike: tuple[int, ...] = ()
    fresh: frozenset[int] = frozenset()

    def same_as(self, position: int) -> list[int]:
        """The other inputs that are the same tensor.

        Example: of ``alike`` (0, 1, 1) those of 2 are [1].
        """
        if position >= len(self.alike):
            return []
        return [i for i, x in enumerate(self.alike) if x == self.alike[position] and i != position]


NOTHING_KNOWN = Leaves()


@dataclass(slots=True)
class Forward:
    """What the body of a forward segment has for its backward one: by node the operator that it is
    declared as, the numbers of the values that it reads and of those that it makes, and of a
    function of several steps (``within``) those of its operands and steps; and the body's values.
    ``leaves``: which of its inputs are one tensor; ``relied``: whether the backward body is written
    so; ``used``: whether the segment was run before.

    Example: of a segment with the cells 19 and 23, both ``linear``, these are in ``called``.
    """

    segment: cells.Segment
    values: Sequence[Value] = ()
    reads: dict[int, tuple[int, ...]] = field(default_factory=dict)
    makes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    called: dict[int, tuple[cells.ForwardOp, Declared]] = field(default_factory=dict)
    within: dict[int, tuple[int, ...]] = field(default_factory=dict)
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    leaves: Leaves = NOTHING_KNOWN
    used: bool = False
    relied: bool = False
    _live: set[int] | None = None

    def live(self) -> set[int]:
        """The values of the body that a gradient can reach: what it gives, and what operators with
        a backward and adapters read that make such a value."""
        if self._live is None:
            self._live = set(self.outputs)
            for node in reversed(self.segment.nodes):
                kept = isinstance(node, cells.Adapter) or (
                    isinstance(node, cells.ForwardOp) and node.backward_id is not None
                )
                if kept and not self._live.isdisjoint(self.makes.get(node.id, ())):
                    self._live.update(self.reads.get(node.id, ()))
        return self._live

    def read_by(self, node: int) -> tuple[int, ...]:
        """What a node reads; raises `UnreadablePlan` if the segment has no such node."""
        values = self.reads.get(node)
        if values is None:
            raise UnreadablePlan(
                f"expected cell {node} in the forward segment {self.segment.id} of this backward "
                "segment"
            )
        return values

    def expect_half(self, adapter: cells.Adapter) -> None:
        """Raise `UnreadablePlan` for the all-reduce of a gradient whose forward half, an identity,
        this device has not: the two are one autograd function, so no code would run it.  (Of other
        fused primitives the forward half is missed in the forward pass.)"""
        other = next((x for x in self.segment.nodes if x.id == adapter.mirror_id), None)
        if isinstance(other, cells.Adapter) and not other.prims:
            for prim in adapter.prims:
                if prim.kind == "IdentityAllreducePrim":
                    raise UnreadablePlan(
                        f"expected the forward half of {prim.kind} in adapter {other.id}"
                    )

    def differentiated(self) -> dict[int, int]:
        """gradient -> the value at the segment's border whose gradient that is.  (Where several
        tensors name one gradient, the runtime starts from the last.)"""
        tensors = tensors_of((*self.segment.inputs, *self.segment.outputs))
        borders: dict[int, int] = {}
        for tensor, value in zip(tensors, (*self.inputs, *self.outputs), strict=True):
            gradient = tensor.grad()
            if gradient is not None:
                borders[gradient.id] = value
        return borders


class Device(Protocol):
    """What a body has to know of its device.  ``joined``: full tensors to which several stages
    contribute; ``claims``: whether records are kept; ``as_recorded``: see `convert`; ``assumed``:
    what the plan is assumed to mean; ``renamed``: see `BodyWriter.owner_of`; ``drawings``: which
    masks it draws; ``drawers``: the full tensor that each mask is drawn for; ``otherwise``: what is
    different as recorded; ``objects``: what it knows that is no tensor; ``made``: the calls that
    the plan's bodies make."""

    number: int
    as_recorded: bool
    claims: bool
    joined: set[int]
    assumed: set[Assumption]
    renamed: dict[int, tuple[str, set[int]]]
    drawings: Drawings
    drawers: dict[str, int]
    otherwise: Otherwise
    objects: Objects
    made: Calls
    bodies: list[Body]

    def shard(self, tensor: Tensor) -> int:
        """The number of the shard that a parameter or buffer is."""

    def held_alike(self, shared: SharedInput) -> int:
        """The number of the shard that stands for what both sides hold alike."""

    def graded_shard(self, tensor: Tensor) -> int:
        """The number of the shard whose gradient this is."""


def shape_of(tensor: Tensor, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Complex tensors are stored as pairs (real, imaginary): one more dimension of 2.

    Example: a complex64 tensor [2] has the shape (2, 2).
    """
    return (*shape, 2) if tensor.dtype.startswith("complex") else shape


def source_of(op: cells.ForwardOp, ident: int) -> Source:
    """Cell, module and ``file.py:line`` of an operator, where its comment has them.

    Example: the comment ``File "/home/u/model.py", line 12`` gives "model.py:12".
    """
    return Source(f"cell {ident}", op.module[-1] if op.module else "", _location(op.comment))


@lru_cache(maxsize=1 << 12)
def _location(comment: str) -> str:
    match = _LOCATION.search(comment)
    return f"{match[1].rsplit('/', 1)[-1]}:{match[2]}" if match else ""


def tensors_of(operands: Sequence[Constant]) -> list[Tensor]:
    """The tensors among operands, in their order.

    Example: of (x, 2, None, y) they are x and y.
    """
    return [x for x in operands if isinstance(x, Tensor)]

"""Declared operators of one body on all ranks, while a dialect's lowering emits them.

Attributes may depend on the rank (`PerRank`), groups and permutations are of ranks; `programs`
writes them as functions of mesh coordinates, in as few programs as there can be.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardproof.engine.algebra.affine import Affine, affine
from shardproof.engine.errors import InvalidInput, ShapeMismatch, Unsupported
from shardproof.engine.plan.assumption import Assumption
from shardproof.engine.plan.collectives import TABLE
from shardproof.engine.plan.ir import Attr, Body, Call, Op, Program, Shard, Source
from shardproof.engine.plan.ir import Value as BodyValue
from shardproof.frontends.builder.shapes import Inference
from shardproof.frontends.graphs.graph import PerRank, Placement, Shape
from shardproof.frontends.graphs.mesh import Mesh, find

Array = npt.NDArray[np.generic]


class Recorded(NamedTuple):
    """One operator; ``attrs`` may hold `PerRank` numbers, `GROUP` a table of groups, `PAIRS` a
    permutation of ranks.

    Example: ``Recorded("slice", (0,), (1,), {"dim": 0, "start": PerRank((0, 2)), "size": 2},
    source)``.
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attrs: Mapping[str, Any]
    source: Source


@dataclass(frozen=True, slots=True)
class PlacedInput:
    """A named input as the ranks have it: its value, and where their boxes begin in the full
    tensor.

    Example: ``PlacedInput(1, "w", "float32", Placement((8, 8), ((0, 0), (4, 0))))``.
    """

    value: int
    name: str
    dtype: str
    placement: Placement
    kind: str = ""
    domain: tuple[int, int] | None = None


@dataclass(slots=True)
class Constant:
    """A tensor of unlike numbers that the program holds, for one rank or for each; ``drawn``:
    numbers that nobody knows, of which equal ones in ``arrays`` are equal; ``domain``: of integers,
    from, to (exclusive); ``begins``: where it begins in a table of the other side, if that is known
    (for every rank, or once).

    Example: the causal mask of a program, one array for all ranks; a part of a table by rows, one
    array for each.
    """

    value: int
    arrays: tuple[Array, ...]
    domain: tuple[int, int] | None = None
    drawn: bool = False
    begins: tuple[tuple[int, ...], ...] = ()


GROUP, PAIRS = "group", "pairs"


@dataclass(slots=True)
class Recorder:
    """The operators of a body while they are recorded. ``ranks``: how many run them; ``source``:
    where the operators that follow come from.

    Example: ``op("exp", x)`` appends an operator and gives the number of its value.
    """

    ranks: int
    inference: Inference = field(default_factory=Inference)
    values: list[BodyValue] = field(default_factory=list)
    ops: list[Recorded] = field(default_factory=list)
    placed: list[PlacedInput] = field(default_factory=list)
    constants: list[Constant] = field(default_factory=list)
    notes: list[Assumption] = field(default_factory=list)
    source: Source = field(default_factory=Source)
    _same: dict[Any, int] = field(default_factory=dict)

    def shape(self, value: int) -> Shape:
        """The shape of a value."""
        return self.values[value].shape

    def value(self, shape: Shape, dtype: str, name: str) -> int:
        """A new value of the body, by number."""
        self.values.append(BodyValue(shape, dtype, name))
        return len(self.values) - 1

    def op(self, operator: str, *inputs: int, dtype: str = "float32", **attrs: Any) -> int:
        """Append a declared operator of one output; raises `Unsupported` where it does not fit."""
        shapes = [self.shape(v) for v in inputs]
        first = {k: v.values[0] if isinstance(v, PerRank) else v for k, v in attrs.items()}
        try:
            (shape,) = self.inference.forward(operator, shapes, first)
        except ShapeMismatch as error:
            raise Unsupported(f"{operator} of {[list(s) for s in shapes]}: {error}") from error
        return self.append(operator, inputs, shape, dtype, attrs)

    def several(
        self, operator: str, *inputs: int, dtypes: Sequence[str], **attrs: Any
    ) -> tuple[int, ...]:
        """Append a declared operator of several outputs; raises `Unsupported` as `op` does."""
        shapes = [self.shape(v) for v in inputs]
        try:
            given = self.inference.forward(operator, shapes, attrs)
        except ShapeMismatch as error:
            raise Unsupported(f"{operator} of {[list(s) for s in shapes]}: {error}") from error
        name = self.source.cell or operator
        outputs = tuple(self.value(s, d, name) for s, d in zip(given, dtypes, strict=True))
        self.ops.append(Recorded(operator, inputs, outputs, attrs, self.source))
        return outputs

    def append(
        self,
        operator: str,
        inputs: Sequence[int],
        shape: Shape,
        dtype: str,
        attrs: Mapping[str, Any],
    ) -> int:
        """Append an operator whose result has this shape."""
        output = self.value(shape, dtype, self.source.cell or operator)
        self.ops.append(Recorded(operator, tuple(inputs), (output,), attrs, self.source))
        return output

    def constant(self, arrays: Sequence[Array], begins: tuple[tuple[int, ...], ...] = ()) -> int:
        """A tensor of unlike numbers; the same one is held once.  Where all are 0 or 1 (masks),
        whoever tries others tries these.  ``begins``: where it begins in the other side's table."""
        key = (*begins, *(fingerprint(a) for a in arrays))
        if key not in self._same:
            flags = all(np.isin(a.astype(np.float64), (0, 1)).all() for a in arrays)
            value = self.value(arrays[0].shape, "int32" if flags else "float32", "constant")
            domain = (0, 2) if flags else None
            self.constants.append(Constant(value, tuple(arrays), domain, begins=begins))
            self._same[key] = value
        return self._same[key]

    def drawn(self, arrays: Sequence[Array], dtype: str, domain: tuple[int, int] | None) -> int:
        """A tensor of numbers that nobody knows; the same one is held once."""
        key = ("drawn", dtype, *(fingerprint(a) for a in arrays))
        if key not in self._same:
            value = self.value(arrays[0].shape, dtype, "random")
            self.constants.append(Constant(value, tuple(arrays), domain, True))
            self._same[key] = value
        return self._same[key]

    def refuse(self, value: int, why: str) -> None:
        """Make a value the result of an operator that nobody declares, named ``why``."""
        self.ops.insert(0, Recorded(why, (), (value,), {}, Source()))

    def once(self, key: Any, value: int) -> int:
        """The value known under ``key``, which is ``value`` if there is none yet."""
        return self._same.setdefault(key, value)

    def known(self, key: Any) -> int | None:
        """The value that was recorded under a key (`once`); None: there is none yet."""
        return self._same.get(key)


def fingerprint(array: Array) -> str:
    """What tells a tensor's numbers and shape from any other's.

    Example: "[3] b0c45303..." for [0, 1, 2], of whatever type.
    """
    data = np.ascontiguousarray(array.astype(np.float64))
    return f"{list(array.shape)} {hashlib.sha256(data.tobytes()).hexdigest()}"


def holds(table: Array, begins: Sequence[Sequence[int]], arrays: Sequence[Array]) -> bool:
    """Whether a table has these numbers from there on, for every rank.

    Example: the lower triangle of 4 by 4 has [[1, 0], [1, 1]] from (2, 2) on, and ones from (2, 0).
    """
    for rank in range(max(len(begins), len(arrays))):
        begin = begins[rank if len(begins) > 1 else 0]
        array = arrays[rank if len(arrays) > 1 else 0]
        if table.ndim != array.ndim:
            return False
        box = table[tuple(slice(b, b + n) for b, n in zip(begin, array.shape, strict=True))]
        if not np.array_equal(box, array):
            return False
    return True


def inside(part: Array, full: Array) -> tuple[int, ...] | None:
    """Where ``part`` lies in ``full``, at a multiple of its own size; None: nowhere.

    Example: [[1, 1]] in the lower triangle of 4 by 4 at (1, 0), first.
    """
    if part.ndim != full.ndim or any(f % p for p, f in zip(part.shape, full.shape, strict=True)):
        return None
    counts = [f // p for p, f in zip(part.shape, full.shape, strict=True)]
    for index in np.ndindex(*counts):
        at = tuple(i * p for i, p in zip(index, part.shape, strict=True))
        box = full[tuple(slice(a, a + p) for a, p in zip(at, part.shape, strict=True))]
        if np.array_equal(box, part):
            return at
    return None


def without_dead(recorder: Recorder, results: Sequence[int]) -> None:
    """Drop what no result depends on (every rank runs the same operators, so none waits for what
    is dropped).

    Example: of ``exp(x)``, its sum and ``x * x``, with the sum as result, the product is dropped.
    """
    live = set(results)
    kept = []
    for op in reversed(recorder.ops):
        if live.intersection(op.outputs):
            live.update(op.inputs)
            kept.append(op)
    recorder.ops = kept[::-1]
    recorder.constants = [c for c in recorder.constants if c.value in live]


# -- programs --------------------------------------------------------------------------------------


def mesh_of(
    recorder: Recorder,
    placements: Sequence[Placement],
    named: Sequence[tuple[str, int]] = (),
) -> Mesh:
    """The mesh on which everything recorded, and ``placements``, can be written.

    Example: groups {{0,1,2,3},{4,5,6,7}} and weights that begin at 0, 4, 8, 12, 0, 4, 8, 12 are on
    axes of 2 and 4; of one rank the mesh has no axes.
    """
    tables = {t for p in placements for t in columns(p)}
    groups, pairs, apart = set(), set(), set()
    for op in recorder.ops:
        for key, value in op.attrs.items():
            if isinstance(value, PerRank):
                tables.add(value.values)
            elif key == GROUP:
                groups.add(value)
                if op.name in TABLE and not TABLE[op.name].joint:
                    apart.add(value)
            elif key == PAIRS:
                pairs.add(value)
    if recorder.ranks == 1:
        return Mesh((), ())
    mesh = find(recorder.ranks, sorted(tables), sorted(groups), sorted(pairs), named, sorted(apart))
    if mesh is None:
        raise Unsupported("groups of ranks that are along no axes of any mesh")
    return mesh


def columns(placement: Placement) -> list[tuple[int, ...]]:
    """Where boxes begin, as a table over ranks for every dimension.

    Example: ``Placement((8, 8), ((0, 0), (4, 0)))`` is ``[(0, 4), (0, 0)]``.
    """
    return [tuple(row[d] for row in placement.starts) for d in range(len(placement.full))]


def offsets(placement: Placement, mesh: Mesh, base: int) -> tuple[Affine, ...]:
    """Where the box of the program at ``base`` begins, as functions of its coordinates.

    Example: starts 0, 4, 8, 12, 0, 4, 8, 12 on axes of 2 and 4 are ``4*axis1``.
    """
    functions = []
    for table in columns(placement):
        function = mesh.function(table, base) if mesh.extents else affine(table[0])
        if function is None:
            raise InvalidInput("a placement that is affine on no mesh")
        functions.append(function)
    return tuple(functions)


def programs(
    recorder: Recorder, mesh: Mesh, results: Sequence[int], name: str
) -> tuple[Program, ...]:
    """The programs that the ranks run, one for every coordinate of the explicit axes.

    Example: of eight ranks on axes of 2 and 4, one program; of four that pass rows on in a ring,
    four.
    """
    bases = mesh.bases() if mesh.extents else [0]
    made = []
    for base in bases:
        shards = tuple(
            Shard(
                h.name,
                h.placement.full,
                recorder.shape(h.value),
                offsets(h.placement, mesh, base),
                h.dtype,
                trainable=False,
                kind=h.kind,
                domain=h.domain,
            )
            for h in recorder.placed
        )
        body = Body(
            "step",
            tuple(recorder.values),
            tuple(_ops(recorder, mesh, base)),
            shards=tuple((h.value, i) for i, h in enumerate(recorder.placed)),
            results=tuple(dict.fromkeys(results)),
        )
        made.append(
            Program(
                f"{name} {base}" if len(bases) > 1 else name,
                (body,),
                (Call(0),),
                shards,
                base,
                mesh.axes() if mesh.extents else (),
            )
        )
    return tuple(made)


def _ops(recorder: Recorder, mesh: Mesh, base: int) -> list[Op]:
    """What a program runs; of tensors side by side of which it takes one, the others are not
    read."""
    joined: dict[int, Op] = {}
    ops = []
    for op in _written(recorder, mesh, base):
        own = _joined_part(recorder, joined, op)
        if own.name == "concat":
            joined[own.outputs[0]] = own
        ops.append(own)
    return ops


def _joined_part(recorder: Recorder, joined: Mapping[int, Op], op: Op) -> Op:
    """A slice of tensors side by side, which is just one of them, as that one."""
    source = joined.get(op.inputs[0]) if op.name == "slice" else None
    dim, start = op.attrs.get("dim"), op.attrs.get("start")
    if source is None or not isinstance(dim, int) or source.attrs.get("dim") != dim:
        return op
    at = 0
    for x in source.inputs:
        size = recorder.shape(x)[dim]
        if (start, op.attrs.get("size")) == (at, size):
            return Op("identity", (x,), op.outputs, {}, source=op.source)
        at += size
    return op


def _written(recorder: Recorder, mesh: Mesh, base: int) -> list[Op]:
    ops = []
    for op in recorder.ops:
        if PAIRS in op.attrs:
            ops += _permutation(recorder, op, mesh, base)
            continue
        attrs: dict[str, Attr] = {}
        for key, value in op.attrs.items():
            if isinstance(value, PerRank):
                function = mesh.function(value.values, base)
                if function is None:
                    raise InvalidInput(f"attribute {key} is affine on no mesh")
                attrs[key] = function if function.terms else function.const
            elif key == GROUP:
                group = mesh.group(value, base)
                if group is None:
                    raise InvalidInput("a group that lies along no axes")
                attrs[key] = group
            else:
                attrs[key] = value
        ops.append(Op(op.name, op.inputs, op.outputs, attrs, source=op.source))
    return ops


def _permutation(recorder: Recorder, op: Recorded, mesh: Mesh, base: int) -> list[Op]:
    """A permutation of ranks: what is sent, and what is received; zeros where nobody sends."""
    peers = mesh.peers(op.attrs[PAIRS])
    if peers is None:
        raise InvalidInput("a permutation of ranks along no axes")
    (x,), (y,) = op.inputs, op.outputs
    back = {to: source for source, to in peers.items()}
    if peers.get(base) == base:
        return [Op("identity", (x,), (y,), {}, source=op.source)]
    ops = []
    if base in peers:
        ops.append(Op("send", (x,), (), {"peer": peers[base]}, source=op.source))
    if base in back:
        ops.append(Op("recv", (), (y,), {"peer": back[base]}, source=op.source))
    else:
        zero: dict[str, Attr] = {"size": recorder.shape(y), "value": 0}
        ops.append(Op("full", (), (y,), zero, source=op.source))
    return ops


def everywhere(shape: Shape, ranks: int) -> Placement:
    """All of a tensor, on every rank.

    Example: of shape (4, 8) on two ranks, ``Placement((4, 8), ((0, 0), (0, 0)))``.
    """
    return Placement(shape, tuple((0,) * len(shape) for _ in range(ranks)))

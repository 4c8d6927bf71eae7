"""Symmetry turned off: every instance of every claim, materialised and looked up on its own.

A stage stands for a family of ranks and microbatches.  Here every member is a row of concrete
numbers (`partition.audit.members`) that is held against the members that were looked at before; one
that is none of them, moved, is made a claim, brought to canonical form by itself and looked up
among the members that the symmetric run has stated.  One that is none of those either is stated
itself, to be solved beside the templates.  Rows are made, looked up and written to an Arrow file in
batches, so that memory stays flat however many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.claims.cone import Cut, cone
from shardproof.engine.claims.scattered import of_the_sum
from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.engine.lineage.members import concrete
from shardproof.engine.obligations.obligation import Claim, Obligation, build, points
from shardproof.engine.plan.ir import MICROBATCH, Attr
from shardproof.engine.records.run import PARALLEL, StageRecord
from shardproof.partition.audit.members import Family, Mask, Numbers
from shardproof.partition.stages.partition import Partition, is_same
from shardproof.partition.templates.keys import key

SCHEMA = pa.schema(
    [
        pa.field("stage", pa.int32(), nullable=False),
        pa.field("coordinates", pa.list_(pa.int32()), nullable=False),
        pa.field("template", pa.int32(), nullable=False),
    ]
)

#: Instances per Arrow batch.
BATCH = 1 << 14

#: What an instance is that has no template (yet).
NONE = -1


class Audit(NamedTuple):
    """What looking at every instance came to. ``instances``: how many were looked up; ``more``:
    obligations that no template states; ``open``: stages with an instance for which none can be
    stated.

    Example: ``Audit(1404, (), ())`` of the GPT of examples/gpt.py: its 204 templates state every
    instance.
    """

    instances: int
    more: tuple[Obligation, ...]
    open: tuple[int, ...]


#: Members that are stated, by form: (claim, template).
Examples = dict[tuple[object, ...], list[tuple[Claim, int]]]


def audit(
    result: Partition,
    file: Path,
    batch: int = BATCH,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> Audit:
    """Look every instance of the parallel side up and record it in ``file``, ``batch`` at a time;
    ``tell`` is told how many of how many are done.

    Example: the first all-reduce of that GPT, a sum over ``tp``, is four rows, at (dp, mb) = (0, 0)
    to (1, 1), each with the template that states it.
    """
    families = list(_families(result))
    total = sum(_count(claim, axes) for _, claim, axes in families)
    lookup = _Lookup(result)
    unstated: set[int] = set()
    with _Writer(file, batch) as writer:
        for number, claim, axes in families:
            steps = result.wider.get(result.stages[number].template, 0)
            for coordinates, templates in lookup.batches(claim, axes, batch, steps):
                if (templates == NONE).any():
                    unstated.add(number)
                writer.add(number, coordinates, templates)
                tell(writer.written, total)
    return Audit(writer.written, tuple(lookup.more), tuple(sorted(unstated)))


def _families(result: Partition) -> Iterator[tuple[int, Claim, tuple[str, ...]]]:
    """The stages of the parallel side with their claims and the axes of their members."""
    for number, stage in enumerate(result.stages):
        if stage.side == PARALLEL and stage.template >= 0:
            side = result.side(stage.side)
            claim = side.claim(side.unrolled.instances[stage.row])
            if claim is not None:
                yield number, of_the_sum(result.nodes, claim), member_axes(result, stage)


def member_axes(result: Partition, stage: StageRecord) -> tuple[str, ...]:
    """The coordinates along which a stage has members; the microbatch is the last.

    Example: ``("dp", "mb")`` of an all-reduce over ``tp``, ``("tp",)`` of the gradients' all-reduce
    over ``dp``.
    """
    side = result.side(stage.side)
    instance = side.unrolled.instances[stage.row]
    joined = {axis for axis, _ in instance.over}
    axes = [a for a in side.programs[instance.programs[0]].extents if a not in joined]
    if (
        MICROBATCH not in joined
        and side.unrolled.symbolic
        and any(side.unrolled.tensors[v].batched for v in instance.outputs)
    ):
        axes.append(MICROBATCH)
    return tuple(axes)


def _count(claim: Claim, axes: tuple[str, ...]) -> int:
    return int(np.prod([claim.extents[a] for a in axes], dtype=np.int64))


class _Lookup:
    """Templates of instances; ``more``: obligations that no template states, as they turn up."""

    def __init__(self, result: Partition) -> None:
        self.result = result
        self.more: list[Obligation] = []
        self.examples: Examples = {}
        for template, (side, row) in enumerate(result.examples):
            claim = result.side(side).claim(result.side(side).unrolled.instances[row])
            if claim is None or template in result.wider:
                continue
            claim = of_the_sum(result.nodes, claim)
            for here in _points(result, claim):
                member = _member(claim, here)
                form = key(result.nodes, member)
                self.examples.setdefault(form, []).append((member, template))

    def batches(
        self, claim: Claim, axes: tuple[str, ...], batch: int, cut: Cut = 0
    ) -> Iterator[tuple[Numbers, Numbers]]:
        """The coordinates of a claim's members and their templates, at most ``batch`` at a time;
        ``cut``: how the cut of the claim is moved back."""
        family = Family(self.result.nodes, claim, axes)
        if cut:
            yield from self._widened(family, batch, cut)
            return
        known: list[tuple[Numbers, Numbers, int]] = []
        # Those at which the symmetric run would state this claim come first: most are one of them.
        for here in _points(self.result, claim) if family.regular else ():
            place = np.array([[here[a] for a in axes]], np.int64).reshape(1, len(axes))
            starts, attrs = family.numbers(place)
            fixed = {a: here[a] for a in axes}
            known.append((starts[0], attrs[0], self.one(_member(claim, fixed))))
        for first in range(0, len(family), batch):
            coordinates = family.coordinates(first, min(batch, len(family) - first))
            yield coordinates, self._templates(family, coordinates, known)

    def _widened(self, family: Family, batch: int, cut: Cut) -> Iterator[tuple[Numbers, Numbers]]:
        """Members whose cut is moved back: what lies behind it is not compared by their numbers, so
        that each is stated by itself."""
        for first in range(0, len(family), batch):
            coordinates = family.coordinates(first, min(batch, len(family) - first))
            templates = []
            for place in coordinates.tolist():
                member = _member(family.claim, dict(zip(family.axes, place, strict=True)))
                self.more.append(
                    build(self.result.nodes, member, widened=cut, more=self.result.more)
                )
                templates.append(len(self.result.templates) + len(self.more) - 1)
            yield coordinates, np.array(templates, np.int64)

    def _templates(
        self, family: Family, coordinates: Numbers, known: list[tuple[Numbers, Numbers, int]]
    ) -> Numbers:
        """``known``: members of this family that were looked up one by one, with their template."""
        mine = family.numbers(coordinates)
        templates = np.full(len(coordinates), NONE, np.int64)
        open_: Mask = np.ones(len(coordinates), np.bool_)
        for starts, attrs, template in known:
            same = family.translates(mine, (starts, attrs)) & open_
            templates[same] = template
            open_ &= ~same
        while open_.any():
            one = int(np.argmax(open_))
            here = dict(zip(family.axes, coordinates[one].tolist(), strict=True))
            template = self.one(_member(family.claim, here))
            same = open_ & False
            same[one] = True
            if family.regular:
                example = mine[0][one], mine[1][one]
                same |= family.translates(mine, example) & open_
                known.append((*example, template))
            templates[same] = template
            open_ &= ~same
        return templates

    def one(self, claim: Claim) -> int:
        """The template of one instance: of a stated member that it is, moved, or one of ``more``
        (numbered after the templates); -1 if no obligation can be stated."""
        nodes = self.result.nodes
        try:
            examples = self.examples.setdefault(key(nodes, claim), [])
            for example, template in examples:
                if is_same(nodes, claim, example):
                    return template
            self.more.append(build(nodes, claim, more=self.result.more))
        except (Unsupported, ShapeMismatch):
            return NONE
        examples.append((claim, len(self.result.templates) + len(self.more) - 1))
        return examples[-1][1]


class _Writer:
    """Instances to an Arrow file, ``batch`` at a time."""

    def __init__(self, file: Path, batch: int) -> None:
        self.written = 0
        self._batch = batch
        self._pending: list[tuple[int, Numbers, Numbers]] = []
        self._count = 0
        self._sink = pa.OSFile(str(file), "wb")
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        self._writer = pa.ipc.new_file(self._sink, SCHEMA, options=options)

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._flush()
            self._writer.close()
        finally:
            self._sink.close()

    def add(self, stage: int, coordinates: Numbers, templates: Numbers) -> None:
        """Members of one stage, at most a batch of them."""
        if self._count + len(templates) > self._batch:
            self._flush()
        self._pending.append((stage, coordinates, templates))
        self._count += len(templates)
        self.written += len(templates)

    def _flush(self) -> None:
        if not self._pending:
            return
        stages = np.concatenate([np.full(len(t), n, np.int32) for n, _, t in self._pending])
        lengths = np.concatenate([np.full(len(t), c.shape[1]) for _, c, t in self._pending])
        values = np.concatenate([c.reshape(-1) for _, c, _ in self._pending])
        templates = np.concatenate([t for _, _, t in self._pending])
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(values.astype(np.int32)))
        arrays = [pa.array(stages), lists, pa.array(templates.astype(np.int32))]
        self._writer.write_batch(pa.record_batch(arrays, schema=SCHEMA))
        self._pending, self._count = [], 0


def _points(result: Partition, claim: Claim) -> list[dict[str, int]]:
    """The members of a family at which its obligation is stated, by their coordinates."""
    joined = {axis for axis, _ in claim.over}
    given = [x for x in claim.inputs if x is not None]
    here = cone(result.nodes, given, claim.outputs, adds=claim.adds)
    usual = {a: min(1, n - 1) for a, n in claim.extents.items() if a not in joined}
    return [
        {**usual, **{a: p for a, p in point.items() if a not in joined}}
        for point in points(result.nodes, claim, here)
    ]


def _member(claim: Claim, here: Mapping[str, int]) -> Claim:
    """The claim of one member of a family."""
    return claim._replace(
        inputs=tuple(None if x is None else concrete(x, here) for x in claim.inputs),
        outputs=tuple(concrete(x, here) for x in claim.outputs),
        attrs={k: _fixed(v, here) for k, v in claim.attrs.items()},
    )


def _fixed(value: Attr, here: Mapping[str, int]) -> Attr:
    if isinstance(value, Affine):
        for axis, position in here.items():
            value = value.fix(axis, position)
    elif isinstance(value, tuple):
        return tuple(_fixed(part, here) for part in value)
    return value

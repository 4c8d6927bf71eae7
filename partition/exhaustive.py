"""Symmetry turned off: every instance of every claim, canonicalised on its own.

A stage stands for a family of ranks and microbatches.  Here each member is made concrete, brought
to canonical form by itself and looked up among the members that the symmetric run has stated.  One
that is none of them, moved, is stated itself, to be solved beside the templates.  Instances stream
to an Arrow file in batches, so that memory stays flat.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from engine.affine import Affine
from engine.cone import cone
from engine.errors import ShapeMismatch, Unsupported
from engine.grid import concrete
from engine.ir import MICROBATCH, Attr
from engine.obligation import SUMS, Claim, Obligation, build, points
from partition.partition import PARALLEL, Partition, Stage, is_same
from partition.templates import key

SCHEMA = pa.schema(
    [
        pa.field("stage", pa.int32(), nullable=False),
        pa.field("coordinates", pa.list_(pa.int32()), nullable=False),
        pa.field("template", pa.int32(), nullable=False),
    ]
)

#: Instances per Arrow batch.
BATCH = 1 << 16


class Audit(NamedTuple):
    """``instances``: how many were looked up; ``more``: obligations that no template states;
    ``open``: stages with an instance for which none can be stated."""

    instances: int
    more: tuple[Obligation, ...]
    open: tuple[int, ...]


#: Members that are stated, by form: (claim, template).
Stated = dict[tuple[object, ...], list[tuple[Claim, int]]]


def audit(result: Partition, file: Path, batch: int = BATCH) -> Audit:
    """Look every instance of the parallel side up and record it in ``file``, ``batch`` at a time."""
    stages = [(n, s) for n, s in enumerate(result.stages) if s.side == PARALLEL and s.template >= 0]
    stated: Stated = {}
    for template, (side, row) in enumerate(result.examples):
        claim = result.side(side).claim(result.side(side).unrolled.rows[row])
        for member in _stated(result, claim) if claim is not None else ():
            stated.setdefault(key(result.nodes, member), []).append((member, template))
    more: list[Obligation] = []
    unstated: set[int] = set()
    count = 0
    columns: tuple[list[int], list[list[int]], list[int]] = ([], [], [])
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
        for number, stage in stages:
            for coordinates, claim in instances(result, stage):
                template = _lookup(result, claim, stated, more)
                if template < 0:
                    unstated.add(number)
                count += 1
                columns[0].append(number)
                columns[1].append(coordinates)
                columns[2].append(template)
                if len(columns[0]) >= batch:
                    _flush(writer, columns)
        _flush(writer, columns)
    return Audit(count, tuple(more), tuple(sorted(unstated)))


def _stated(result: Partition, claim: Claim) -> list[Claim]:
    """The members of a family at which its obligation is stated."""
    joined = {axis for axis, _ in claim.over}
    given = [x for x in claim.inputs if x is not None]
    here = cone(result.nodes, given, claim.outputs, adds=claim.kind in SUMS)
    usual = {a: min(1, n - 1) for a, n in claim.extents.items() if a not in joined}
    members = []
    for point in points(result.nodes, claim, here):
        at = {**usual, **{a: p for a, p in point.items() if a not in joined}}
        members.append(_member(claim, at))
    return members


def _flush(
    writer: pa.RecordBatchWriter, columns: tuple[list[int], list[list[int]], list[int]]
) -> None:
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    writer.write_batch(pa.record_batch(arrays, schema=SCHEMA))
    for column in columns:
        column.clear()


def _lookup(result: Partition, claim: Claim, stated: Stated, more: list[Obligation]) -> int:
    """The template of an instance: of a stated member that it is, moved, or one of ``more``
    (numbered after the templates); -1 if no obligation can be stated."""
    try:
        examples = stated.setdefault(key(result.nodes, claim), [])
        for example, template in examples:
            if is_same(result.nodes, claim, example):
                return template
        more.append(build(result.nodes, claim))
    except (Unsupported, ShapeMismatch):
        return -1
    examples.append((claim, len(result.templates) + len(more) - 1))
    return examples[-1][1]


def instances(result: Partition, stage: Stage) -> Iterator[tuple[list[int], Claim]]:
    """The members of a stage's family: coordinates (microbatch last) and concrete claim."""
    side = result.side(stage.side)
    row = side.unrolled.rows[stage.row]
    claim = side.claim(row)
    if claim is None:
        return
    joined = {axis for axis, _ in row.over}
    axes = [a for a in side.programs[row.programs[0]].extents if a not in joined]
    if (
        MICROBATCH not in joined
        and side.unrolled.symbolic
        and any(side.unrolled.tensors[v].batched for v in row.outputs)
    ):
        axes.append(MICROBATCH)
    for chosen in product(*(range(claim.extents[a]) for a in axes)):
        yield list(chosen), _member(claim, dict(zip(axes, chosen, strict=True)))


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
    return value

"""Symmetry turned off: every instance of every claim, canonicalised on its own.

A stage stands for a family of ranks and microbatches.  Here each member is made concrete, brought
to canonical form by itself and looked up among the forms that the symmetric run has built; one
that is not there is built too, and its text has to be among the templates'.  Instances stream to
an Arrow file in batches, so that memory stays flat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from engine.affine import Affine
from engine.errors import ShapeMismatch, Unsupported
from engine.grid import concrete
from engine.ir import MICROBATCH, Attr
from engine.obligation import Claim, Obligation, build
from partition.partition import PARALLEL, Partition, Stage
from partition.templates import key

SCHEMA = pa.schema([
    pa.field("stage", pa.int32(), nullable=False),
    pa.field("coordinates", pa.list_(pa.int32()), nullable=False),
    pa.field("template", pa.int32(), nullable=False),
])

#: Instances per Arrow batch.
BATCH = 1 << 16


class Audit(NamedTuple):
    """``instances``: how many were looked up; ``strange``: stages with an instance whose text is
    no template of the symmetric run."""

    instances: int
    strange: tuple[int, ...]


def audit(
    result: Partition,
    file: Path,
    text: Callable[[Obligation], str],
    known: Mapping[str, int],
) -> Audit:
    """Look every instance up and record it in ``file``; ``text``: the text of an obligation,
    ``known``: text -> template."""
    forms: dict[tuple[object, ...], int] = {}
    strange: set[int] = set()
    count = 0
    columns: tuple[list[int], list[list[int]], list[int]] = ([], [], [])
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
        for number, stage in enumerate(result.stages):
            if stage.side != PARALLEL or stage.template < 0:
                continue
            for coordinates, claim in instances(result, stage):
                template = _lookup(result, claim, forms, text, known)
                if template < 0:
                    strange.add(number)
                count += 1
                for column, item in zip(
                    columns, (number, coordinates, template), strict=True
                ):
                    column.append(item)  # type: ignore[arg-type]
                if len(columns[0]) >= BATCH:
                    _flush(writer, columns)
        _flush(writer, columns)
    return Audit(count, tuple(sorted(strange)))


def _flush(
    writer: pa.RecordBatchWriter, columns: tuple[list[int], list[list[int]], list[int]]
) -> None:
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    writer.write_batch(pa.record_batch(arrays, schema=SCHEMA))
    for column in columns:
        column.clear()


def _lookup(
    result: Partition,
    claim: Claim,
    forms: dict[tuple[object, ...], int],
    text: Callable[[Obligation], str],
    known: Mapping[str, int],
) -> int:
    try:
        form = key(result.nodes, claim)
        if form not in forms:
            forms[form] = known.get(text(build(result.nodes, claim)), -1)
        return forms[form]
    except (Unsupported, ShapeMismatch):
        return -1


def instances(result: Partition, stage: Stage) -> Iterator[tuple[list[int], Claim]]:
    """The members of a stage's family: coordinates (microbatch last) and concrete claim."""
    side = result.side(stage.side)
    row = side.unrolled.rows[stage.row]
    claim = side.claim(row)
    if claim is None:
        return
    joined = {axis for axis, _ in row.over}
    axes = [a for a in side.programs[row.programs[0]].extents if a not in joined]
    if MICROBATCH not in joined and side.unrolled.symbolic and any(
        side.unrolled.tensors[v].batched for v in row.outputs
    ):
        axes.append(MICROBATCH)
    for chosen in product(*(range(claim.extents[a]) for a in axes)):
        here = dict(zip(axes, chosen, strict=True))
        yield list(chosen), claim._replace(
            inputs=tuple(None if x is None else concrete(x, here) for x in claim.inputs),
            outputs=tuple(concrete(x, here) for x in claim.outputs),
            attrs={k: _fixed(v, here) for k, v in claim.attrs.items()},
        )


def _fixed(value: Attr, here: Mapping[str, int]) -> Attr:
    if isinstance(value, Affine):
        for axis, position in here.items():
            value = value.fix(axis, position)
    return value

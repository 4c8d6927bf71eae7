"""What is cut into slices and joined again, all of it and in order, is what it was.

A slice that cuts through a block of a view (one position of a head, say) is no view of a
single-device value.  Where such slices only come together again, nothing needs to be known of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardproof.engine.schedule.instances import Row, Tensor


def rejoined(rows: Sequence[Row], tensors: Sequence[Tensor]) -> list[Row]:
    """The rows, where a concatenation of all consecutive slices of one tensor is that tensor."""
    slices = {row.outputs[0]: row for row in rows if _forward(row, "slice")}
    if not slices:
        return list(rows)
    return [_whole(row, slices, tensors) if _forward(row, "concat") else row for row in rows]


def _forward(row: Row, name: str) -> bool:
    return row.kind == "op" and row.name == name and not row.backward and len(row.outputs) == 1


def _whole(row: Row, slices: Mapping[int, Row], tensors: Sequence[Tensor]) -> Row:
    parts = [slices[v] for v in row.inputs if v in slices]
    sources = {part.inputs for part in parts}
    if len(parts) < max(1, len(row.inputs)) or len(sources) != 1 or len(parts[0].inputs) != 1:
        return row
    (source,) = parts[0].inputs
    shape = tensors[source].shape
    joined = _dimension(row, len(shape))
    # Whatever else is said of the concatenation or of a slice has to be understood first.
    if joined is None or set(row.attrs) != {"dim"}:
        return row
    end = 0
    for part in parts:
        size = part.attrs.get("size")
        if set(part.attrs) != {"dim", "start", "size"} or not isinstance(size, int):
            return row
        if _dimension(part, len(shape)) != joined or part.attrs["start"] != end:
            return row
        end += size
    if end != shape[joined]:
        return row
    return row._replace(name="identity", inputs=(source,), attrs={})


def _dimension(row: Row, rank: int) -> int | None:
    """The dimension that is cut or joined; None if there is none of that number."""
    dim = row.attrs.get("dim")
    return dim % rank if isinstance(dim, int) and -rank <= dim < rank else None

"""What is cut into slices and joined again, all of it and in order, is what it was.

A slice that cuts through a block of a view (one position of a head, say) is no view of a
single-device value.  Where such slices only come together again, nothing needs to be known of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardproof.engine.schedule.instances import Instance, Tensor


def rejoined(instances: Sequence[Instance], tensors: Sequence[Tensor]) -> list[Instance]:
    """The instances, where a concatenation of all consecutive slices of one tensor is that
    tensor.

    Example: ``concat(x[:, 0:4], x[:, 4:8])`` along dimension 1 of 8 columns is ``identity(x)``; the
    two slices in the other order stay a concatenation.
    """
    slices = {
        instance.outputs[0]: instance for instance in instances if _forward(instance, "slice")
    }
    if not slices:
        return list(instances)
    return [
        _whole(instance, slices, tensors) if _forward(instance, "concat") else instance
        for instance in instances
    ]


def _forward(instance: Instance, name: str) -> bool:
    return (
        instance.kind == "op"
        and instance.name == name
        and not instance.backward
        and len(instance.outputs) == 1
    )


def _whole(
    instance: Instance, slices: Mapping[int, Instance], tensors: Sequence[Tensor]
) -> Instance:
    parts = [slices[v] for v in instance.inputs if v in slices]
    sources = {part.inputs for part in parts}
    if len(parts) < max(1, len(instance.inputs)) or len(sources) != 1 or len(parts[0].inputs) != 1:
        return instance
    (source,) = parts[0].inputs
    shape = tensors[source].shape
    joined = _dimension(instance, len(shape))
    # Whatever else is said of the concatenation or of a slice has to be understood first.
    if joined is None or set(instance.attrs) != {"dim"}:
        return instance
    end = 0
    for part in parts:
        size = part.attrs.get("size")
        if set(part.attrs) != {"dim", "start", "size"} or not isinstance(size, int):
            return instance
        if _dimension(part, len(shape)) != joined or part.attrs["start"] != end:
            return instance
        end += size
    if end != shape[joined]:
        return instance
    return instance._replace(name="identity", inputs=(source,), attrs={})


def _dimension(instance: Instance, rank: int) -> int | None:
    """The dimension that is cut or joined; None if there is none of that number."""
    dim = instance.attrs.get("dim")
    return dim % rank if isinstance(dim, int) and -rank <= dim < rank else None

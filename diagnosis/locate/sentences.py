"""A divergence in words: operator, layer, source, ranks."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final

from shardproof.diagnosis.locate.divergences import Divergence, shown
from shardproof.engine.findings import Finding
from shardproof.engine.schedule.instances import Instance
from shardproof.partition.evidence.alignment import PLACES, counterparts
from shardproof.partition.stages.partition import Partition

#: Attributes that differ where a rank has a part only.
_OF_SHARDS: Final = PLACES | {"start", "size"}

#: Ranks that are named one by one.
FEW: Final = 4


def between(result: Partition, instances: Sequence[Instance]) -> str:
    """Where in the model instances are that belong to no layer: what comes before and after
    them.

    Example: "between wte and wpe" for the all-reduce of partial embeddings.
    """
    every = result.parallel.unrolled.instances
    made = {v: instance for instance in every for v in instance.outputs}
    read: dict[int, Instance] = {}
    for instance in every:
        for v in instance.inputs:
            read.setdefault(v, instance)

    def nearest(start: Sequence[Instance], ahead: bool) -> str:
        seen, here = set(), list(start)
        while here:
            instance = here.pop(0)
            values = instance.outputs if ahead else instance.inputs
            for v in values:
                other = (read if ahead else made).get(v)
                if other is None or id(other) in seen:
                    continue
                seen.add(id(other))
                if other.source.module:
                    return other.source.module
                here.append(other)
        return ""

    first, last = nearest(instances[:1], False), nearest(instances[:1], True)
    if first and last and first != last:
        return f"between {first} and {last}"
    return first or last


def explain(result: Partition, divergence: Divergence) -> Finding:
    """A divergence as a finding: operator, layer, source, ranks and microbatches, in words.

    Example: "add in h.1.mlp on ranks [0, 1] of the first replica: its input h.1.mlp.linear is still
    a partial sum: a reduction before it is missing", with the layer, line and ranks in fields of
    their own.
    """
    instances = [result.parallel.unrolled.instances[n] for n in divergence.instances]
    instance = instances[0]
    ranks, microbatches = _who(result, instances)
    name = f"backward of {instance.name}" if instance.backward else instance.name
    layer = instance.source.module or between(result, instances)
    right, right_microbatches = _who(result, alike(result, divergence))
    return Finding(
        "mismatch",
        fault_sentence(result, name, layer, ranks, divergence.cause),
        name,
        layer,
        instance.source.location or instance.source.cell,
        ranks,
        microbatches,
        cause=divergence.kind,
        reference=reference(result, divergence),
        layers=(instance.source.module,) if instance.source.module else (),
        agreeing_ranks=tuple(rank for rank in right if rank not in ranks),
        agreeing_microbatches=tuple(m for m in right_microbatches if m not in microbatches),
    )


def fault_sentence(
    result: Partition, name: str, layer: str, ranks: Sequence[int], cause: str
) -> str:
    """What is wrong with an operator, in a sentence; ``layer``: modules, or as `between` has it.

    Example: "linear in layers.0 on ranks 0 to 7: its result is 1/2 times the single-device
    operator's".
    """
    where = f" {layer}" if layer.startswith("between") else f" in {layer}" if layer else ""
    return f"{name}{where} on ranks {_span(ranks)}{of_replicas(result)}: {cause}"


def _span(ranks: Sequence[int]) -> str:
    """Ranks as a list, or from where to where if they are many in a row."""
    if len(ranks) > FEW and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]} to {ranks[-1]}"
    return str(list(ranks))


def of_replicas(result: Partition) -> str:
    """What to say of ranks where there are several replicas.

    Example: " of the first replica" with dp 2, nothing with tp alone.
    """
    extents = result.plan.programs[0].extents
    replicas = prod(extents.get(axis, 1) for axis in result.plan.replica_axes)
    return " of the first replica" if replicas > 1 else ""


def _who(
    result: Partition, instances: Sequence[Instance]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ranks of the first replica, and the microbatches, of instances."""
    ranks = tuple(sorted({x for r in instances for p in r.programs for x in ranks_of(result, p)}))
    return ranks, tuple(sorted({r.microbatch for r in instances if r.microbatch >= 0}))


def ranks_of(result: Partition, program: int) -> list[int]:
    """The ranks of a program in the first replica.

    Example: ``[0, 1]`` of a program on dp 2, tp 2, where ``dp`` divides the batch.
    """
    own = result.parallel.programs[program]
    ranks = [own.base]
    for axis, extent, stride in own.axes:
        if axis not in result.plan.replica_axes:
            ranks = [rank + stride * place for rank in ranks for place in range(extent)]
    return ranks


def alike(result: Partition, divergence: Divergence) -> list[Instance]:
    """The instances that do right what those of a divergence do wrong.

    Example: where a norm has another epsilon on rank 0, the same norm on rank 1, which has the
    right one.
    """
    every = result.parallel.unrolled.instances
    if divergence.counterpart >= 0:
        right = [
            n
            for n, m in enumerate(counterparts(result, loosely=True))
            if m == divergence.counterpart
        ]
    else:
        instance = every[divergence.instances[0]]
        what = (instance.kind, instance.name, instance.source)
        alike = instance.kind == "op" or any((instance.source.cell, instance.source.location))
        right = [n for n, r in enumerate(every) if alike and (r.kind, r.name, r.source) == what]
    return [every[n] for n in right if n not in divergence.instances]


def reference(result: Partition, divergence: Divergence) -> str:
    """The operator of the single-device side that a divergence was held against, and which of its
    constants are other ones; empty if none was.

    Example: "mul (examples/gpt.py:156) with other 1/512 (here about 0.000976562)".
    """
    if divergence.counterpart < 0:
        return ""
    theirs = result.single.unrolled.instances[divergence.counterpart]
    mine = result.parallel.unrolled.instances[divergence.instances[0]]
    name = f"backward of {theirs.name}" if theirs.backward else theirs.name
    place = ", ".join(x for x in (theirs.source.cell, theirs.source.location) if x)
    constants = [
        f"{key} {shown(value)} (here {shown(mine.attrs[key])})"
        for key, value in theirs.attrs.items()
        if key in mine.attrs and key not in _OF_SHARDS and mine.attrs[key] != value
    ]
    with_constants = f" with {', '.join(constants)}" if constants else ""
    return f"{name}{f' ({place})' if place else ''}{with_constants}"

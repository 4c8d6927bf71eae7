"""Whether two sides are of one model, before anything is proved: parameters and batch by size.

Pure; what is wrong is an `InvalidInput` that names the tensor and how it differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.ir import Plan, Program, Shard, Value
from shardproof.engine.system.names import near


def check(plan: Plan) -> None:
    """Raise `InvalidInput` unless both sides of ``plan`` have the same parameters, by name and
    full shape, and batches that fit.

    Example: "batch tensor 0 (x) has shape [4, 8], expected [3, 8]: 1/4 of [12, 8] in the
    single-device plan, for 2 replicas with 2 microbatches each".
    """
    _parameters(plan)
    _batch(plan)


def _parameters(plan: Plan) -> None:
    single = {shard.name: shard for shard in plan.single.shards}
    problems = list(_differences(plan, single))
    if problems:
        problem = problems[0]
        more = len(problems) - 1
        if more:
            problem = InvalidInput(f"{problem.message} ({more} more differ)", problem.where)
        raise problem


def _differences(plan: Plan, single: dict[str, Shard]) -> Iterator[InvalidInput]:
    """What differs, each name once: first in shape, then unknown, then missing."""
    shards: dict[str, tuple[Shard, int]] = {}
    unknown: dict[str, tuple[Shard, int]] = {}
    differing: set[str] = set()
    for program in plan.programs:
        for shard in program.shards:
            known = single.get(shard.name)
            if known is None:
                unknown.setdefault(shard.name, (shard, program.base))
                continue
            shards.setdefault(shard.name, (shard, program.base))
            if shard.full_shape != known.full_shape and shard.name not in differing:
                differing.add(shard.name)
                yield InvalidInput(
                    f"{_kind(known)} {shard.name} has full shape {list(shard.full_shape)}, "
                    f"expected {list(known.full_shape)} as in the single-device plan",
                    f"rank {program.base}",
                )
    for name, (shard, rank) in unknown.items():
        yield InvalidInput(
            f"{_kind(shard)} {name} of full shape {list(shard.full_shape)} is not in the "
            "single-device plan",
            f"rank {rank}",
        )
    for name, shard in single.items():
        if shard.trainable and name not in shards:
            yield InvalidInput(
                f"parameter {name} of full shape {list(shard.full_shape)} in the single-device "
                "plan is on no rank of the parallel one"
            )


def _kind(shard: Shard) -> str:
    if shard.kind:
        return f"{shard.kind} input"
    return "parameter" if shard.trainable else "buffer"


# -- the batch -----------------------------------------------------------------------------------


def _loads(program: Program) -> Iterator[tuple[Value, ...]]:
    """What each load of the batch that the program issues gives."""
    for number in sorted({call.body for call in program.calls}):
        body = program.bodies[number]
        for op in body.ops:
            if op.name == "load_batch":
                yield tuple(body.values[v] for v in op.outputs)


def _batch(plan: Plan) -> None:
    full = next(_loads(plan.single), ())
    for program in plan.programs:
        replicas = prod(program.extents.get(axis, 1) for axis in plan.replica_axes)
        for tensors in _loads(program):
            try:
                _load(full, tensors, replicas, plan.microbatches)
            except InvalidInput as error:
                hint = _meant(plan, program)
                raise InvalidInput(f"{error}{hint}", f"rank {program.base}") from None


def _meant(plan: Plan, program: Program) -> str:
    """What to say of a replica axis that is none of a program's, where one has a name like it."""
    for axis in plan.replica_axes:
        if axis not in program.extents and (hint := near(axis, program.extents)):
            return f"; the replica axis {axis} is no axis of {program.name}{hint}"
    return ""


def _load(
    full: tuple[Value, ...], tensors: tuple[Value, ...], replicas: int, microbatches: int
) -> None:
    """One load: every tensor is read in full or cut in one dimension, and not all are in full."""
    if len(tensors) > len(full):
        raise InvalidInput(
            f"a microbatch has {len(tensors)} tensors, the single-device batch has {len(full)}"
        )
    count = replicas * microbatches
    cut = 0
    for number, (tensor, whole) in enumerate(zip(tensors, full, strict=False)):
        differing = [
            (n, local) for n, local in zip(whole.shape, tensor.shape, strict=False) if n != local
        ]
        fits = len(whole.shape) == len(tensor.shape) and (
            not differing or (len(differing) == 1 and differing[0][0] == differing[0][1] * count)
        )
        cut += bool(differing)
        if not fits:
            raise _misfit(number, tensor, whole, replicas, microbatches)
    if tensors and count > 1 and not cut:
        raise _misfit(0, tensors[0], full[0], replicas, microbatches)


def _misfit(
    number: int, tensor: Value, whole: Value, replicas: int, microbatches: int
) -> InvalidInput:
    count = replicas * microbatches
    name = f"batch tensor {number}" + (f" ({tensor.name})" if tensor.name else "")
    what = f"{name} has shape {list(tensor.shape)}"
    shape = whole.shape
    if count == 1:
        return InvalidInput(f"{what}, expected {list(shape)} as in the single-device plan")
    share = f"for {replicas} replicas with {microbatches} microbatches each"
    if shape and shape[0] % count == 0:
        part = [shape[0] // count, *shape[1:]]
        return InvalidInput(
            f"{what}, expected {part}: 1/{count} of {list(shape)} in the single-device plan, "
            f"{share}"
        )
    return InvalidInput(
        f"{what}, expected 1/{count} of {list(shape)} in the single-device plan, {share}"
    )

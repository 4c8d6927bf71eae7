"""Plans of two formulas: what one device computes, and what every rank does.

A formula is given a body under construction and its `Given` (parameters by name, batch tensors) and
returns the loss.  Backward passes are derived; gradients are reduced along the axes that a test
names.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from shardproof.checker import check
from shardproof.engine.plan.ir import Group, Plan, Program
from shardproof.engine.plan.unrolled import unrolled
from shardproof.frontends.builder.builder import BodyBuilder, ProgramBuilder, along
from shardproof.run.result import Result
from tests.faults.plans import verify

Split = Mapping[int, str | tuple[str, ...]]
Formula = Callable[[BodyBuilder, "Given"], int]


class Given(NamedTuple):
    """What a formula reads: parameters by name, batch tensors, extents of the axes."""

    weights: Mapping[str, int]
    batch: tuple[int, ...]
    extents: Mapping[str, int]

    def __getitem__(self, name: str) -> int:
        return self.weights[name]


class Weight(NamedTuple):
    """A parameter of full ``shape``, divided as ``split`` says; its gradient is reduced over
    ``over``."""

    shape: tuple[int, ...]
    split: Split = MappingProxyType({})
    over: tuple[str, ...] = ()
    trainable: bool = True


def pair(
    single: Formula,
    parallel: Formula,
    weights: Mapping[str, Weight],
    batch: Sequence[tuple[int, ...]],
    *,
    axes: Mapping[str, int],
    replicas: tuple[str, ...] = (),
    microbatches: int = 1,
    loss: str = "sum",
    types: Sequence[str] = (),
    backward: bool = True,
    buckets: Sequence[Sequence[str]] = (),
) -> Plan:
    """``batch``: shapes in full; replicas and microbatches divide their first dimension.  ``axes``:
    extents, the outermost first.  ``buckets``: parameters whose gradients are reduced as one flat
    tensor, all along the first one's axes."""

    def program(formula: Formula, alone: bool) -> Program:
        held: list[tuple[str, int, int]] = []
        stride = 1
        for name, extent in reversed([] if alone else list(axes.items())):
            held.insert(0, (name, extent, stride))
            stride *= extent
        made = ProgramBuilder("single" if alone else "ranks", axes=tuple(held))
        numbers = {
            name: made.parameter(
                name, w.shape, None if alone else w.split, trainable=w.trainable and backward
            )
            for name, w in weights.items()
        }
        count = 1
        if not alone:
            count = microbatches
            for axis in replicas:
                count *= axes[axis]
        body = made.body("forward")
        loaded = body.load_batch(
            *(
                (f"x{i}", (shape[0] // count, *shape[1:]), types[i] if types else "float32")
                for i, shape in enumerate(batch)
            )
        )
        values = {name: body.parameter(number) for name, number in numbers.items()}
        body.loss(formula(body, Given(values, loaded, made.extents)))
        if not backward:
            for microbatch in range(1 if alone else microbatches):
                made.call(body, (), (made.slot(),), microbatch)
            return made.build()
        made.schedule(body, body.backward(), 1 if alone else microbatches)
        if not alone:
            together = {name for bucket in buckets for name in bucket}
            for bucket in buckets:
                flat_reduce(made, [numbers[n] for n in bucket], along(*weights[bucket[0]].over))
            over = {n: w.over for n, w in weights.items() if w.over and w.trainable}
            alone_too = [(numbers[n], along(*o)) for n, o in over.items() if n not in together]
            if alone_too:
                made.reduce(alone_too)
        return made.build()

    return Plan(
        "formulas", program(single, True), (program(parallel, False),), microbatches, replicas, loss
    )


def flat_reduce(made: ProgramBuilder, shards: Sequence[int], group: Group) -> None:
    """All-reduce gradients as one flat tensor, as buckets do."""
    body = made.body("bucket")
    held = [made.shards[s] for s in shards]
    read = [body.value(s.shape, f"gradient of {s.name}") for s in held]
    flat = [body.view(v, -1) for v in read]
    whole = body.all_reduce(body.op("concat", *flat, dim=0), group)
    start = 0
    for shard, value, own in zip(shards, read, flat, strict=True):
        size = body.shape(own)[0]
        part = body.op("slice", whole, dim=0, start=start, size=size)
        body.reduced.append((value, body.view(part, *body.shape(value)), shard))
        start += size
    made.call(body)


def taken_apart(plan: Plan, *axes: str) -> Plan:
    """Every rank along the axes with a program of its own."""
    for axis in axes:
        plan = unrolled(plan, axis)
    return plan


def proved(plan: Plan) -> Result:
    """Assert that a plan is proved, and that the check of its run agrees."""
    with tempfile.TemporaryDirectory(prefix="shardproof-") as folder:
        out = Path(folder) / "run"
        result = verify(plan, out=out)
        assert result.verdict == "proved", (
            result.verdict,
            result.reason,
            [f.message for f in result.findings[:4]],
        )
        assert result.conclusions
        report = check(out)
        assert report.ok, report.problems[:4]
    return result


def not_proved(plan: Plan) -> Result:
    """Assert that a wrong plan is not proved."""
    result = verify(plan)
    assert result.verdict != "proved"
    return result

"""Graphs as they were read, run in NumPy on all ranks, against the plan that they were read as."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardproof.engine.errors import InvalidInput, ShapeMismatch, Unsupported
from shardproof.engine.plan.ir import Plan
from shardproof.engine.reference_runtime.compare import fits
from shardproof.engine.reference_runtime.exchange import Stuck
from shardproof.frontends.graphs.graph import Graph
from shardproof.frontends.graphs.replayed import Validation, agreed, drawn, to_bytes
from shardproof.frontends.graphs.replayed import run as run_plan
from shardproof.frontends.graphs.sides import Side
from shardproof.frontends.hlo import evaluate, read
from shardproof.frontends.hlo.marks import decoded
from shardproof.frontends.untrusted.inert import printable

Array = NDArray[Any]
JUDGE = "an evaluator of HLO in NumPy"


def pair(single: str, parallel: str, relations: str) -> bytes:
    """The validation of two files, as bytes; ``relations``: a file that states more (or empty).
    Made to be called in a bounded child.

    Example: ``mlp.single.hlo`` and ``mlp.parallel.hlo`` of the tests agree in 27 tensors.
    """
    alone, ranks = read.both(single, parallel, relations)
    try:
        return to_bytes(validated(*read.paired(alone, ranks, "plan")))
    except InvalidInput as error:
        raise error.within(printable(parallel, 400)) from None


def validated(plan: Plan, single: Side, parallel: Side, seed: int = 0) -> Validation:
    """Both sides run as they were read and as a plan, on the same random values.

    Example: with dropout nothing is replayed: "it draws random numbers".
    """
    if not fits(plan):
        return Validation(False, True, 0, "it is too large", JUDGE)
    if any(c.drawn for c in (*single.recorder.constants, *parallel.recorder.constants)):
        return Validation(False, True, 0, "it draws random numbers", JUDGE)
    values = drawn(plan, np.random.default_rng(seed))
    for number, constant in enumerate(single.recorder.constants):
        values[f"constant {number}"] = np.asarray(constant.arrays[0], dtype=float)
    try:
        wanted = [
            evaluate.run(side.graph, _inputs(side.graph, single.graph, values))
            for side in (single, parallel)
        ]
        actual = run_plan(plan, values)
    except (Unsupported, ShapeMismatch, Stuck) as error:
        return Validation(False, True, 0, str(error), JUDGE)
    return agreed(_pairs(single, parallel, wanted, actual), JUDGE)


def _inputs(graph: Graph, single: Graph, values: Mapping[str, Array]) -> list[list[Array]]:
    """The inputs of every rank: boxes of what the single side's are."""
    full = []
    for item in single.inputs:
        whole = decoded(item, _whole(item.name, single.values[item.value].shape, values))
        dtype = single.values[item.value].dtype
        full.append(whole if dtype.startswith("float") else whole.astype(_kind(dtype)))
    inputs = []
    for rank in range(graph.ranks):
        own = []
        for number, item in enumerate(graph.inputs):
            shape = graph.values[item.value].shape
            start = item.placement.starts[rank] if item.placement else (0,) * len(shape)
            own.append(
                full[number][tuple(slice(s, s + n) for s, n in zip(start, shape, strict=True))]
            )
        inputs.append(own)
    return inputs


def _kind(dtype: str) -> str:
    return "float64" if dtype == "bfloat16" else dtype


def _whole(name: str, shape: Sequence[int], values: Mapping[str, Array]) -> Array:
    """A named input, put together of its rows where it is a stack of these; zero where nothing
    reads it."""
    if name in values:
        return values[name]
    rows = [values.get(f"{name}[{row}]") for row in range(shape[0] if shape else 0)]
    empty = np.zeros((1, *shape[1:]))
    return np.concatenate([empty if r is None else r for r in rows]) if rows else np.zeros(shape)


def _pairs(
    single: Side,
    parallel: Side,
    wanted: Sequence[Sequence[Sequence[Array]]],
    actual: Mapping[int, Mapping[int, Array]],
) -> list[tuple[str, Array, Array]]:
    pairs = []
    for first, side, ranks in ((-1, single, wanted[0]), (0, parallel, wanted[1])):
        for rank, outputs in enumerate(ranks, first):
            where = "the single side" if rank < 0 else f"rank {rank}"
            for item, value, expected in zip(
                side.graph.outputs, side.outputs, outputs, strict=True
            ):
                if value in actual[rank]:
                    pairs.append((f"{item.name} on {where}", actual[rank][value], expected))
    return pairs
